"""The power fails at any operation of a store with timers and delay levels: nothing flushed is lost."""

import importlib.util
import pathlib
import sys

import pytest

from tailrace.env.entropy import SeededEntropy
from tailrace.testing import CrashFileSystem, SimClock, SimulatedCrash

_spec = importlib.util.spec_from_file_location(
    "timer_world", pathlib.Path(__file__).parents[1] / "unit" / "timer" / "world.py")
_module = importlib.util.module_from_spec(_spec)
sys.modules["timer_world"] = _module
_spec.loader.exec_module(_module)
World = _module.World


def workload(files, clock, sure, due):
    """Send, deliver, flush, roll the timer log, close, open again; notes what was flushed."""
    world = World(files, clock)
    world.due = due
    for _ in range(2):
        for number in range(24):
            if number % 4 == 3:
                world.send(DELAY=1 + number % 8 // 4)
            else:
                world.send(TIMER_DELAY_MS=250 * number + 100)
            if number % 6 == 5:
                world.run(400, step=100, flush_every=10**9)
                world.flush()
                sure.update(due)
        world.close()
        sure.update(due)
        world.files = files
        world.open(clean=True)


def operations():
    files = CrashFileSystem()
    workload(files, SimClock(), {}, {})
    return files.operations


@pytest.mark.crash
@pytest.mark.parametrize("keep", [0, 50, 100])
def test_a_power_loss_at_any_operation_loses_and_hastens_nothing(keep):
    for place in range(0, operations(), 7):
        def stop(number, name, path, place=place):
            if number >= place:
                raise SimulatedCrash

        files, clock, sure, due = CrashFileSystem(stop), SimClock(), {}, {}
        with pytest.raises(SimulatedCrash):
            workload(files, clock, sure, due)
        world = World(files.power_lost(SeededEntropy(place), keep), clock)
        world.run(8_000, step=100, flush_every=10**9)
        found = world.delivered()
        assert not set(sure) - set(found), f"place={place}: lost"
        assert not {key for key, times in found.items() if len(times) > 1}, f"place={place}: doubled"
        assert all(
            times[0] >= due[key] for key, times in found.items() if key in due), f"place={place}: early"
