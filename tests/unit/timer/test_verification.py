"""Our own timer files have no findings of `verify`, after any sequence of operations."""

import random

import pytest
from timer_world import CONFIG, ROOT, World

from tailrace.store.directory import StoreDirectory
from tailrace.testing import CrashFileSystem, SimClock
from tailrace.timer.verification import timer_files, verify_timers

FILE = CONFIG.mapped_file_size_timer_log


@pytest.mark.parametrize("seed", [1, 2])
def test_stops_rolls_and_recalls_leave_nothing_to_find(seed):
    rnd = random.Random(seed)
    files, clock = CrashFileSystem(), SimClock()
    world = World(files, clock)
    several = 0
    for _ in range(6):
        for number in range(30):
            key, _ = world.send(TIMER_DELAY_MS=rnd.choice([100, 250 * number + 100, 5000, 90_000]))
            if number % 6 == 5:
                world.recall(key)
                world.run(400, step=100, flush_every=rnd.choice([10**9, 300]))
        world.close()
        directory = StoreDirectory(ROOT, config=world.config, file_system=files, raw=True)
        counts, found = verify_timers(directory, world.clock.now_ms())
        assert not found
        several = max(several, len(timer_files(directory)[0]))
        assert counts.units
        world.files = files
        world.open(clean=True)
    assert several > 2, "lists go from file to file"


@pytest.mark.parametrize("stop", ["clean", "kill"])
def test_timers_that_made_way_for_a_clock_set_back_are_nothing_to_find(stop):
    files = CrashFileSystem()
    world = World(files, SimClock())
    for number in range(40):
        world.send(TIMER_DELAY_MS=20_000 + 300 * number)
    world.run(1000, step=100)
    world.clock.step_wall(-2 * world.slots * world.timers.precision_ms)
    world.steps()
    for number in range(40):
        world.send(TIMER_DELAY_MS=20_000 + 300 * number)
    world.run(2000, step=100)
    if stop == "clean":
        world.close()
    else:
        world.flush()
        files = files.killed()
    counts, found = verify_timers(
        StoreDirectory(ROOT, config=world.config, file_system=files, raw=True), world.clock.now_ms())
    assert counts.units >= 80
    assert not found


@pytest.mark.parametrize(("last", "place", "data", "told"), [
    (False, "end", b"\0" * 30, "zeros before the last file"),
    (False, "end", b"\0\0\0\x07", "no unit from 2080 on"),
    (False, 104, b"\0\0\0\x35", "no unit from 104 on"),
    (True, "end", b"", ""),
    (True, "end", b"\x07", "no unit from 520 on"),
])
def test_the_end_of_a_file_of_the_timer_log_is_a_blank_unit_or_zeros(last, place, data, told):
    files = CrashFileSystem()
    world = World(files, SimClock())
    for _ in range(50):  # forty in the first file, ten in the second
        world.send(TIMER_DELAY_MS=90_000)
    world.run(400, step=100)
    world.close()
    path = f"{ROOT}/timerlog/{FILE if last else 0:020d}"
    at = (52 * 10 if last else 52 * 40) if place == "end" else place
    files.open(path, writable=True).pwrite(data, at)
    directory = StoreDirectory(ROOT, config=world.config, file_system=files, raw=True)
    found = [one for one in verify_timers(directory, world.clock.now_ms())[1] if one.file == path]
    assert [one.detail for one in found if one.kind == "timer-log-damaged"] == ([told] if told else [])
