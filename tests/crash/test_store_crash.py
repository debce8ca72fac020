"""A seeded part of the crash sweep; `make crash` runs the whole of it."""

import errno
import importlib.util
import os
import pathlib

import pytest
from long_runs import some

_spec = importlib.util.spec_from_file_location("sweep", pathlib.Path(__file__).with_name("sweep.py"))
sweep = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sweep)

SEED = int(os.environ.get("SEED", "1"))
PLACES = range(0, sweep.operations(SEED), 3)
KEEP = [None, 0, 50, 100]
"""Per cent of what was not synced that is on the disk after a power loss; None: a kill."""


@pytest.mark.crash
@pytest.mark.parametrize("keep", KEEP)
def test_a_crash_anywhere_loses_nothing_acknowledged(keep):
    for place in some(PLACES, 2, KEEP.index(keep) % 2):
        try:
            sweep.crash_at(place, keep, SEED)
        except Exception as error:
            raise AssertionError(f"SEED={SEED} place={place} keep={keep}: {error}") from error


@pytest.mark.crash
@pytest.mark.parametrize("sticky", [False, True])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_failing_operation_loses_nothing_acknowledged(number, sticky):
    for place in some(PLACES, 2, int(sticky)):
        try:
            sweep.fail_at(place, number, sticky=sticky, seed=SEED)
        except Exception as error:
            raise AssertionError(
                f"SEED={SEED} place={place} errno={number} sticky={sticky}: {error}") from error
