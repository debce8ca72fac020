"""A life of a store, cut off or failed at one of its operations.

A life has ``run(files)`` and ``check(files, case)``; ``make`` makes one.
"""

from __future__ import annotations

import pytest

from tailrace.env.entropy import SeededEntropy
from tailrace.errors import StoreError
from tailrace.testing import CrashFileSystem, SimulatedCrash


def crash_at(make, place, keep):
    """Die before operation ``place``, by a kill (None) or with ``keep`` percent of what was not synced."""
    life = make()

    def before(number, _name, _path):
        if number == place:
            raise SimulatedCrash

    files = CrashFileSystem(before)
    with pytest.raises(SimulatedCrash):
        life.run(files)
    after = files.killed() if keep is None else files.power_lost(
        SeededEntropy(place * 31 + keep), keep)
    life.check(after, f"place={place} keep={keep}")


def fail_once_at(make, place, number, end):
    """Have operation ``place`` fail with an errno; ``end(files)`` returns the files that remain."""
    life = make()

    def before(count, _name, path):
        if count == place:
            raise OSError(number, "injected", path)

    files = CrashFileSystem(before)
    try:
        life.run(files)
    except (StoreError, OSError):
        pass
    files.before = None
    life.check(end(files), f"place={place} errno={number}")
