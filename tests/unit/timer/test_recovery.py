"""Timers after a kill, a power loss, a long downtime, and with files missing, stale or torn."""

import dataclasses
import json
import tracemalloc

import numpy as np
import pytest
from long_runs import LONG
from timer_world import CONFIG, ROOT, START, World

from tailrace import kernels
from tailrace.env.entropy import SeededEntropy
from tailrace.formats.commitlog import decode_message
from tailrace.formats.timercheckpoint import TIMER_CHECKPOINT
from tailrace.formats.timerlog import TIMER_UNIT
from tailrace.formats.timerwheel import SLOT
from tailrace.testing import CrashFileSystem
from tailrace.timer.pending import pending_timers
from tailrace.timer.recovery import TimerRecovery

DAY = 86_400_000


def counts(world, topic="T"):
    return {key: len(times) for key, times in world.delivered(topic).items()}


def all_once(world):
    found = world.delivered()
    assert {key: len(times) for key, times in found.items()} == dict.fromkeys(world.due, 1)
    assert all(found[key][0] >= due for key, due in world.due.items())


def killed(world):
    world.files = world.files.killed()
    return world


def loaded(count=60, flush=True):
    """A world with timers over 20 s, the first of them delivered."""
    world = World()
    for number in range(count):
        world.send(TIMER_DELAY_MS=300 * number + 150)
    world.run(4_321, step=7 if LONG else 10, flush_every=1000 if flush else 10**9)
    return world


@pytest.mark.parametrize("flush", [False, True])
def test_a_kill_loses_and_doubles_nothing(flush):
    world = killed(loaded(flush=flush)).open()
    world.run(20_000, step=50)
    all_once(world)


@pytest.mark.parametrize("seconds", range(1, 12, 2))
def test_kills_one_after_the_other(seconds):
    world = loaded()
    for _ in range(6):
        world.run(seconds * 333, step=37)
        killed(world).open()
    world.run(20_000, step=50)
    all_once(world)


def test_a_clean_stop_within_a_second_delivers_nothing_twice_here_or_at_a_java_broker():
    world = loaded()
    before = set(world.delivered())
    assert len([due for due in world.due.values() if START + 4000 < due <= world.clock.now_ms()]) > 0
    world.close()
    listed = listed_for_a_java_broker(world)
    assert not listed & before
    assert listed | before == set(world.due)
    world.open(clean=True)
    world.steps()
    assert not listed_for_a_java_broker(world) & before
    world.run(20_000, step=50)
    all_once(world)


def listed_for_a_java_broker(world):
    """What the lists of the slots from the read time on lead to, from the files alone."""
    read_time = TIMER_CHECKPOINT.unpack_from(
        world.files.open(f"{ROOT}/config/timercheck").pread(56, 0)).last_read_time_ms
    slots = SLOT.view(world.files.open(f"{ROOT}/timerwheel").pread(1 << 20, 0))
    found = set()
    for slot in slots[(slots["time"] * 1000 >= read_time) & (slots["num"] > 0)].tolist():
        pos = slot[2]
        while pos >= 0:
            size = CONFIG.mapped_file_size_timer_log
            file = world.files.open(f"{ROOT}/timerlog/{pos // size * size:020d}")
            unit = TIMER_UNIT.unpack_from(file.pread(TIMER_UNIT.size, pos % size))
            record = world.store.commit_log.read(unit.phy_offset, unit.msg_size) or world.files.open(
                f"{ROOT}/commitlog/{0:020d}").pread(unit.msg_size, unit.phy_offset)
            found.add(decode_message(record).unique_key)
            pos = unit.prev_pos
    return found


@pytest.mark.parametrize("what", ["timerwheel", "timerlog", "timercheck", "all"])
@pytest.mark.parametrize("stop", ["kill", "close"])
def test_missing_files_are_made_again(what, stop):
    world = loaded()
    if stop == "close":
        world.close()
    killed(world)
    for path in [p for p in world.files._files if p.startswith(ROOT)]:
        if what in path or (what == "all" and "timer" in path and "consumequeue" not in path):
            world.files.remove(path)
    world.open(clean=stop == "close")
    assert world.timers.recovered.mode == ("replay" if what == "timerwheel" else "rebuild")
    world.run(20_000, step=50)
    all_once(world)


@pytest.mark.parametrize("name", ["timerwheel", "timerlog/00000000000000000000", "config/timercheck"])
def test_garbage_is_found_out(name):
    world = killed(loaded())
    file = world.files.open(f"{ROOT}/{name}", writable=True)
    noise = SeededEntropy(5)
    file.pwrite(noise.bytes(min(file.size(), 4000)), 0)
    world.open()
    world.run(20_000, step=50)
    all_once(world)


def test_a_wheel_of_an_earlier_day_and_snapshots_are_no_danger():
    """N2: a 5.5.0 broker may leave snapshots instead of a wheel; a stale one would win there."""
    world = loaded()
    world.files.open(f"{ROOT}/timerwheel.520", writable=True, create=True).pwrite(b"old", 0)
    killed(world).open()
    assert not world.files.exists(f"{ROOT}/timerwheel.520")
    world.run(20_000, step=50)
    all_once(world)


@pytest.mark.parametrize("what", ["timerwheel", "timerlog", "timercheck"])
def test_files_of_an_earlier_moment_are_found_out(what):
    """As a copy that was put back, or a disk that lied about a sync, leaves them."""
    world = loaded(30)
    before = {p: bytes(d.volatile) for p, d in world.files._files.items() if f"/{what}" in p}
    for number in range(60):  # more than a file of units
        world.send(TIMER_DELAY_MS=100 * number + 3_050)
    world.run(2_100, step=50)
    killed(world)
    for path in [p for p in world.files._files if f"/{what}" in p]:
        world.files.remove(path)
    for path, data in before.items():
        world.files.open(path, writable=True, create=True).pwrite(data, 0)
    world.open()
    assert world.timers.recovered.mode == ("rebuild" if what == "timerlog" else "replay")
    world.run(20_000, step=50)
    all_once(world)


def test_the_log_is_cut_at_a_bad_unit_and_what_follows_is_enqueued_again():
    world = killed(loaded())
    pos = 33 * TIMER_UNIT.size
    world.files.open(f"{ROOT}/timerlog/00000000000000000000", writable=True).pwrite(b"\xff" * 9, pos)
    world.timers.checkpoint.write(world.timers.checkpoint.fields._replace(last_timer_log_flush_pos=0))
    world.files.open(f"{ROOT}/config/timercheck", writable=True).pwrite(
        TIMER_CHECKPOINT.pack(*world.timers.checkpoint.fields), 0)
    world.open()
    assert world.timers.recovered.cut_at == pos
    world.run(20_000, step=50)
    all_once(world)


@pytest.mark.parametrize("keep", [0, 30, 70, 100])
def test_a_power_loss_loses_nothing_that_was_flushed(keep):
    for seed in range(6 if LONG else 1 if keep in {0, 100} else 3):  # nothing or all: chance decides nothing
        world = loaded()
        world.flush()
        sure = dict(world.due)
        for number in range(20):
            world.send(TIMER_DELAY_MS=100 * number + 50)
        world.run(700, step=50, flush_every=10**9)
        world.files = world.files.power_lost(SeededEntropy(seed), keep)
        world.open()
        world.run(20_000, step=50)
        found = counts(world)
        assert not set(sure) - set(found), f"seed {seed}"
        assert set(found.values()) == {1}
        delivered = world.delivered()
        assert all(delivered[key][0] >= due for key, due in world.due.items() if key in found)


def test_units_of_messages_that_the_commit_log_lost_are_cut():
    """No stuck dequeue: the reference waits for ever for a record that is not there."""
    world = loaded()
    world.flush()
    for number in range(5):
        world.send(TIMER_DELAY_MS=2000 + number)
    world.steps()
    world.timers.timer_log.flush()
    logs = {p: bytes(d.volatile) for p, d in world.files._files.items() if "/timerlog/" in p}
    world.files = world.files.power_lost(SeededEntropy(1), 0)
    for path, data in logs.items():
        world.files.open(path, writable=True, create=True).pwrite(data, 0)
    world.open()
    assert world.timers.recovered.cut_at == 60 // 40 * (52 * 40 + 30) + 20 * 52
    again, _ = world.send(TIMER_DELAY_MS=1000)
    world.run(20_000, step=50)
    assert again in world.delivered()
    assert set(counts(world).values()) == {1}


@pytest.mark.parametrize("days", [1, 8, 60])
@pytest.mark.parametrize("stop", ["kill", "close"])
def test_a_long_downtime(days, stop):
    """W22: the reference skips what is older than its ring. First what is overdue, oldest first."""
    world = World()
    for number in range(30):
        world.send(TIMER_DELAY_MS=1000 + 700 * (29 - number))
    world.run(3_000, step=50)
    if stop == "close":
        world.close()
    killed(world)
    world.clock.advance(days * DAY)
    world.open(clean=stop == "close")
    late, _ = world.send(TIMER_DELAY_MS=2500)
    world.run(4_000, step=50)
    all_once(world)
    order = [m.unique_key for m in world.records() if m.unique_key != late]
    assert order == sorted(order, key=world.due.get)


def test_a_rebuild_honours_recalls_and_rolled_copies():
    world = World()
    gone, _ = world.send(TIMER_DELIVER_MS=START + 300_700)
    world.send(TIMER_DELIVER_MS=START + 300_700)
    world.send(TIMER_DELAY_MS=1_700)
    world.run(200_000, step=500)
    world.recall(gone)
    world.steps()
    del world.due[gone]
    killed(world)
    world.files.remove(f"{ROOT}/config/timercheck")
    world.clock.advance(DAY)
    world.open()
    assert world.timers.recovered.mode == "rebuild"
    world.run(3_000, step=50)
    all_once(world)


def test_a_crash_during_a_rebuild_ends_in_another_one():
    for place in range(12):
        world = killed(loaded(20))
        world.files.remove(f"{ROOT}/config/timercheck")
        start = world.files.operations

        def stop(number, name, path, until=start + 40 + place * 3):
            if number >= until:
                raise KeyboardInterrupt

        world.files.before = stop
        try:
            world.open()
            world.run(2_000, step=100)
        except KeyboardInterrupt:
            pass
        world.files.before = None
        killed(world).open()
        world.run(20_000, step=50)
        all_once(world)


def test_the_wheel_s_numbers_come_out_of_the_log():
    """W20: the reference keeps what was on disk."""
    world = World()
    key, _ = world.send(TIMER_DELIVER_MS=START + 9_500)
    for _ in range(4):
        world.send(TIMER_DELIVER_MS=START + 9_500)
    world.recall(key)
    world.steps()
    assert world.timers.slot_num(START + 9_000) == 4
    killed(world).open()
    assert world.timers.recovered.mode == "rebuild"  # nothing was ever flushed
    world.steps()
    world.flush()
    killed(world).open()
    assert world.timers.recovered.mode == "replay"
    assert world.timers.slot_num(START + 9_000) == 4


def test_a_new_directory_is_fresh():
    assert World(CrashFileSystem(), config=CONFIG).timers.recovered.mode == "fresh"


def test_delivered_files_of_the_timer_log_go_and_nothing_pending_with_them():
    world = World()
    for number in range(200):
        world.send(TIMER_DELAY_MS=100 * number + 50)
    world.steps()
    assert len(world.timers.timer_log.files.files) == 5
    world.timers.clean_step()
    assert world.timers.timer_log.min_offset == 0
    world.run(9_000, step=50)
    world.flush()
    world.timers.clean_step()
    assert world.timers.timer_log.min_offset == 2 * CONFIG.mapped_file_size_timer_log
    killed(world).open()
    assert world.timers.recovered.mode == "replay"
    world.run(13_000, step=50)
    all_once(world)


@pytest.mark.parametrize("ticks", [False, True])
def test_a_rebuild_without_services_leaves_nothing_that_a_java_broker_would_repeat(ticks):
    world = killed(loaded())
    before = set(world.delivered())
    world.files.remove(f"{ROOT}/timerlog/{0:020d}")

    def tick(number, name, path):
        if ticks and name == "remove" and path.endswith("config/timercheck"):
            world.clock.advance(1000)  # the next second begins before the messages are enqueued

    world.files.before = tick
    world.open()
    world.files.before = None
    assert world.timers.recovered.mode == "rebuild"
    assert {timer.uniq_key for timer in pending_timers(world.timers)} == set(world.due) - before
    world.close()
    assert listed_for_a_java_broker(world) == set(world.due) - before
    fields = TIMER_CHECKPOINT.unpack_from(world.files.open(f"{ROOT}/config/timercheck").pread(56, 0))
    assert fields.master_timer_queue_offset == len(world.due)
    world.open(clean=True)
    world.run(20_000, step=50)
    all_once(world)


def test_the_length_of_timer_log_files_is_taken_from_them():
    world = killed(loaded())
    world.config = dataclasses.replace(CONFIG, mapped_file_size_timer_log=1 << 20)
    world.open()
    assert world.timers.recovered.mode == "replay"
    world.run(20_000, step=50)
    all_once(world)


def test_units_that_were_listed_again_do_not_bring_messages_back_into_the_wheel():
    """A clean stop in the middle of a second lists the rest of its slot again, after newer units."""
    world = World()
    for ms in (1100, 1500, 1900, 30_000, 100_000):
        world.send(TIMER_DELAY_MS=ms)
    world.steps()
    world.run(1300)
    world.close()
    world.files = world.files.killed()
    world.open(clean=True)
    assert world.timers.queue_offset == 5
    assert sum(world.timers.metrics.counts().values()) == 4
    world.clock.advance(200_000)
    world.run(3000, 100)
    assert {key: len(times) for key, times in world.delivered().items()} == dict.fromkeys(world.due, 1)


def test_a_timer_that_waits_twice_is_delivered_once():
    """Two units of one far timer whose slots have both come, after a jump of the clock."""
    world = World()
    key, _ = world.send(TIMER_DELAY_MS=100_000)
    world.steps()
    world.run(3000, 500)
    world.timers.state.queue_offset = 0  # as after a recovery that looked too far back
    world.steps()
    world.clock.advance(400_000)
    world.run(2000, 100)
    assert len(world.delivered()[key]) == 1
    assert world.timers.put_back.counters["timerDouble"] == 1
    assert world.timers.metrics.counts() == {"T": 0}


@pytest.mark.parametrize(("number", "prev"), [(3, 0), (3, -1), (7, 52), (0, 104)])
def test_a_list_that_leads_astray_is_no_list(number, prev):
    """Each slot has its units in one list; what breaks one means a rebuild, what shortens one means orphans."""
    world = World()
    for n in range(12):
        world.send(TIMER_DELAY_MS=20_000 + n % 2 * 10_000)
    world.steps()
    world.flush()
    path = next(p for p in sorted(world.files._files) if "timerlog/0" in p)
    file = world.files.open(path, writable=True)
    unit = TIMER_UNIT.unpack_from(file.pread(52, 52 * number))
    file.pwrite(TIMER_UNIT.pack(*unit._replace(prev_pos=prev)), 52 * number)
    world.files = world.files.killed()
    world.open()
    assert (world.timers.recovered.mode == "replay") == (prev < 0)
    assert len(world.timers.recovered.orphans) == (1 if prev < 0 else 0)
    world.run(31_000, 500)
    assert {key: len(times) for key, times in world.delivered().items()} == dict.fromkeys(world.due, 1)


@pytest.mark.skipif(not kernels.compiled(), reason="200,000 units take long interpreted")
def test_a_replay_takes_the_memory_of_a_piece_however_long_the_log_is(monkeypatch):
    world = World(config=dataclasses.replace(CONFIG, mapped_file_size_timer_log=52 * 200_100))
    world.send(TIMER_DELAY_MS=50_000)
    world.steps()
    world.flush()
    log, count = world.timers.timer_log, 200_000
    units = np.repeat(next(units for _, units in log.scan()), count)
    units["prev_pos"] = TIMER_UNIT.size * np.arange(count)
    log.append(units.tobytes())
    world.files = world.files.killed()
    real = TimerRecovery._replay

    def replay(self, *arguments):
        tracemalloc.start()
        return real(self, *arguments)

    monkeypatch.setattr(TimerRecovery, "_replay", replay)
    try:
        world.open()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (world.timers.recovered.mode, world.timers.recovered.units) == ("replay", count + 1)
    assert world.timers.slot_num(START + 49_000) == count + 1
    assert peak < 5 << 20  # the log has 10 MB


@pytest.mark.parametrize("precision", [100, 500, 2000, 7000])
@pytest.mark.parametrize("stop", ["kill", "close"])
def test_another_precision_misreads_no_slot(precision, stop):
    """W21: a slot's time is a number of precisions, and the reference takes the wheel as it is."""
    world = loaded()
    if stop == "close":
        world.close()
    killed(world)
    world.config = dataclasses.replace(
        CONFIG, timer_precision_ms=precision, timer_roll_window_slot=200_000 // precision)
    world.open(clean=stop == "close")
    world.send(TIMER_DELAY_MS=1234)
    world.run(1_000, step=10)
    world.flush()
    assert json.loads(world.files.open(f"{ROOT}/tailrace/format.json").pread(4096, 0))[
        "timer"]["precisionMs"] == precision
    world.run(19_000, step=10)
    all_once(world)
    late = [times[0] - world.due[key] for key, times in world.delivered().items()]
    assert max(late) <= 10
