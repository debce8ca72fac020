"""Each read of the timer services fails once: nothing is missing, nothing comes twice, nothing waits."""

import errno
import importlib.util
import pathlib
import sys

import pytest
from long_runs import LONG

_spec = importlib.util.spec_from_file_location(
    "timer_world", pathlib.Path(__file__).parents[1] / "unit" / "timer" / "world.py")
_module = importlib.util.module_from_spec(_spec)
sys.modules["timer_world"] = _module
_spec.loader.exec_module(_module)
World = _module.World


def played(number, error, odd):
    """Play timers, a far one, a large one, levels, recalls and a kill; read ``number`` fails. Return the world."""
    world = World(odd=odd)
    seen = 0

    def error_of(what, position, size):
        nonlocal seen
        seen += 1
        return error if seen == number + 1 else 0

    world.reads.error_of = error_of
    keys = [world.send(TIMER_DELAY_MS=900 + 300 * n)[0] for n in range(6)]
    world.send(TIMER_DELAY_MS=1500, body=b"x" * 6000)
    world.send(TIMER_DELAY_SEC=70)
    for level in (1, 1, 2):
        world.send("L", DELAY=level)
    world.run(500, step=100, flush_every=400)
    world.recall(keys[4])
    world.run(1200, step=100, flush_every=400)
    world.files = world.files.killed()
    try:
        world.open()
    except OSError:
        assert world.reads.failed == 1
        world.files = world.files.killed()
        world.open()
    world.run(7000, step=100)
    for key in keys[:4]:
        assert key in world.delivered(), f"{key} waits"
    world.run(66_000, step=1000)
    return world, keys[4]


@pytest.mark.crash
@pytest.mark.parametrize(("error", "odd"), [(errno.EMFILE, True), (errno.EIO, False)])
def test_any_read_may_fail_once(error, odd):
    number, failed = 0 if odd or LONG else 4, 1
    while failed:
        world, recalled = played(number, error, odd)
        failed = world.reads.failed
        found = {key: len(times) for topic in ("T", "L") for key, times in world.delivered(topic).items()}
        assert found == dict.fromkeys(set(world.due) - {recalled}, 1), f"read {number}"
        assert not world.timers.due.slots, f"read {number}"
        number += 1 if LONG else 8
    assert number > 30
