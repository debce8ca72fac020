"""A full disk at some writes of a store's life; ``tools/enospc_run.py`` takes every one."""

import importlib.util
import pathlib

import pytest

pytestmark = [pytest.mark.crash, pytest.mark.slow]

_spec = importlib.util.spec_from_file_location("enospc", pathlib.Path(__file__).with_name("enospc.py"))
enospc = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(enospc)


@pytest.mark.parametrize("place", [3, 200, 601])
def test_a_full_disk_is_told_loses_nothing_and_is_over_with_the_next_check(place):
    life = enospc.Life(place)
    life.run()
    assert life.counts["operations refused"]
    assert life.counts["puts acknowledged"]


def test_the_life_notices_a_lost_message():
    """A planted bug: an acknowledged message that is not in the log."""
    life = enospc.Life(200)
    life.acknowledged["a", 1 << 40] = b"never put", 0, 1 << 60
    with pytest.raises(enospc.Violation, match=r"acknowledged and not there|a young message is gone"):
        life.run()
