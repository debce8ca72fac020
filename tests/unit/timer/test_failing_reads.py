"""Reads that fail: a message leaves its place only when it is in hand; one that cannot be read delays itself only."""

import errno
from dataclasses import replace

import pytest
from long_runs import LONG
from timer_world import CONFIG, World

from tailrace.env.entropy import SeededEntropy

SMALL = replace(CONFIG, mapped_file_size_commit_log=16 << 10, timer_precision_ms=100)
TIMES = 400


def length(world, result):
    return len(world.store.commit_log.record_at(result.phy_offset))


def counted(world):
    found = {}
    for topic in ("T", "L"):
        for key, times in world.delivered(topic).items():
            found[key] = len(times)
    return found


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("seed", range(1, 9))
def test_faults_of_600_ms_delay_and_lose_nothing(seed, odd):
    world = World(seed=seed, odd=odd, config=SMALL)
    entropy = SeededEntropy(seed)
    for n in range(TIMES):
        body = bytes(entropy.randrange(5000) if entropy.randrange(8) == 0 else 20)
        delay = 150 + entropy.randrange(1300)
        if n % 4 == 3:
            world.send("L", body=body + b"x", DELAY=1 + entropy.randrange(2))
        else:
            world.send("T", body=body + b"x", TIMER_DELAY_MS=delay)
        world.clock.advance(1)
        if n % 10 == 0:
            world.steps()
    until = world.clock.now_ms() + 600
    world.reads.at_random(entropy, 30, what=("log", "timerlog", "queue", "index"))
    while world.clock.now_ms() < until:
        world.clock.advance(5)
        world.steps()
    failed = world.reads.failed
    world.reads.end()
    world.run(15_000, step=20)
    assert failed > 20
    found = counted(world)
    assert {key for key in world.due if key not in found} == set()
    assert {key for key, count in found.items() if count > 1} == set()
    assert world.timers.metrics.counts() == {"T": 0}
    assert not world.timers.due.slots
    world.close()


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO, errno.ENOMEM])
def test_one_failed_read_of_a_due_timer_is_read_again(number, odd):
    world = World(odd=odd)
    for n in range(3):
        world.send(TIMER_DELAY_MS=3000 + n)
    world.run(100)
    failing = [number]
    world.reads.error_of = lambda what, *_: failing.pop() if what == "log" and failing else 0
    world.run(4000)
    assert world.reads.failed == 1
    assert len(world.delivered()) == 3


def test_a_late_timer_whose_read_fails_is_delivered_when_it_can_be_read():
    world = World()
    for n in range(3):
        world.send(TIMER_DELAY_MS=3000 + n)
    while world.store.reput.step():
        pass
    world.clock.advance(10_000)
    world.timers.dequeue_step()
    reads = []

    def second_fails(what, *_):
        reads.append(what)
        return errno.EMFILE if what == "log" and reads.count("log") == 2 else 0

    world.reads.error_of = second_fails
    world.run(1000)
    assert world.reads.failed == 1
    assert len(world.delivered()) == 3


def test_a_large_due_timer_whose_second_read_fails_is_delivered():
    world = World()
    world.send(body=b"x" * 6000, TIMER_DELAY_MS=3000)
    world.run(2500)  # the slot is read; the message is too large to stay in memory
    failing = [errno.EMFILE]
    world.reads.error_of = lambda what, *_: failing.pop() if what == "log" and failing else 0
    world.run(2000)
    assert world.reads.failed == 1
    assert len(world.delivered()) == 1


@pytest.mark.parametrize("odd", [False, True])
def test_a_bad_sector_delays_its_own_message_only_and_is_left_out_in_the_end(odd, caplog):
    world = World(odd=odd)
    bad, result = world.send(TIMER_DELAY_MS=3000)
    for n in range(40):
        world.send(TIMER_DELAY_MS=3000 + n)
    world.run(100)
    world.reads.under(result.phy_offset)
    world.run(4500, step=5)
    assert len(world.delivered()) == 40
    world.run(40_000, step=50)
    assert world.timers.put_back.counters["timerUnreadable"] == 0, "not given up that early"
    world.run(60_000, step=50)
    assert world.timers.put_back.counters["timerUnreadable"] == 1
    world.reads.end()
    assert caplog.text.count("cannot be read, it is left out") == 1
    (line,) = manifest(world)
    assert (line["physicalOffset"], line["length"]) == (result.phy_offset, length(world, result))
    assert "Input/output error" in line["reason"]
    assert not world.timers.due.slots
    assert bad not in world.delivered()
    assert world.timers.metrics.counts() == {"T": 0}


def manifest(world):
    import orjson

    path = "/store/tailrace/quarantine/manifest.jsonl"
    if not world.files.exists(path):
        return []
    file = world.files.open(path)
    return [orjson.loads(line) for line in file.pread(file.size(), 0).splitlines()]


def test_a_bad_sector_in_the_timer_queue_does_not_stop_the_messages_behind_it():
    world = World()
    bad, result = world.send(TIMER_DELAY_MS=3000)
    world.reads.under(result.phy_offset)
    for n in range(10):
        world.send(TIMER_DELAY_MS=3000 + n)
    world.run(4000, step=5)
    assert len(world.delivered()) == 10
    world.run(100_000, step=50)
    assert world.timers.put_back.counters["timerUnreadable"] == 1
    assert world.timers.queue_offset == 11
    assert len(manifest(world)) == 1


def test_a_message_of_the_timer_queue_that_is_read_later_survives_a_kill_in_between():
    world = World()
    bad, result = world.send(TIMER_DELAY_MS=9000)
    world.reads.under(result.phy_offset, errno.EMFILE)
    for n in range(10):
        world.send(TIMER_DELAY_MS=3000 + n)
    world.run(4000, step=5)
    assert len(world.delivered()) == 10
    assert world.timers.queue_offset == 0
    world.flush()
    world.files = world.files.killed()
    world.reads.end()
    world.open()
    world.run(8000, step=5)
    assert {key: len(times) for key, times in world.delivered().items()} == dict.fromkeys(world.due, 1)


def test_a_bad_sector_in_a_level_stops_no_other_level_and_no_later_message():
    world = World()
    bad, result = world.send("L", DELAY=1)
    world.reads.under(result.phy_offset)
    world.clock.advance(10)
    others = [world.send("L", DELAY=level)[0] for level in (1, 1, 2, 3)]
    world.run(11_000, step=10)
    assert set(world.delivered("L")) == set(others)
    assert world.schedule.first_pending(1) == result.phy_offset, "retention keeps it"
    assert sum(world.schedule.pending().values()) == 1
    world.run(100_000, step=100)
    assert world.schedule.counters["scheduleUnreadable"] == 1
    assert len(manifest(world)) == 1
    assert world.schedule.first_pending(1) == -1
    assert {len(times) for times in world.delivered("L").values()} == {1}


@pytest.mark.parametrize("readable", [False, True])
def test_a_kill_while_a_message_of_a_level_cannot_be_read_repeats_nothing(readable):
    world = World()
    bad, result = world.send("L", DELAY=1)
    world.reads.under(result.phy_offset, errno.EMFILE)
    world.clock.advance(10)
    for _ in range(5):
        world.send("L", DELAY=1)
    world.run(2000, step=10)
    assert len(world.delivered("L")) == 5
    world.flush()
    world.files = world.files.killed()
    if readable:
        world.reads.end()
    world.open()
    world.run(3000, step=10)
    world.reads.end()
    world.run(3000, step=10)
    assert {key: len(times) for key, times in world.delivered("L").items()} == dict.fromkeys(world.due, 1)


def test_a_message_of_a_level_that_is_read_late_after_an_open_is_searched_for_all_the_same():
    """It was delivered before the kill; in the meantime messages that were put since are delivered."""
    world = World()
    first, result = world.send("L", DELAY=1)
    world.store.flush_commit_log.flush()
    world.run(2000, step=7 if LONG else 10, flush_every=1 << 40)
    assert len(world.delivered("L")) == 1
    world.files = world.files.killed()
    world.files.remove("/store/config/delayOffset.json") if world.files.exists(
        "/store/config/delayOffset.json") else None
    world.open()
    world.reads.under(result.phy_offset)
    for _ in range(50):
        world.send("L", DELAY=1)
    world.run(3000, step=10)
    world.reads.end()
    world.run(6000, step=10)
    assert {key: len(times) for key, times in world.delivered("L").items()} == dict.fromkeys(world.due, 1)


def test_a_shortage_never_uses_up_the_tries():
    world = World()
    world.send(TIMER_DELAY_MS=3000)
    world.send("L", DELAY=2)
    world.run(1000)
    world.reads.error_of = lambda what, *_: errno.EMFILE if what == "log" else 0
    world.run(3_600_000, step=2000)
    world.reads.end()
    world.run(6000, step=10)
    assert len(world.delivered()) == len(world.delivered("L")) == 1
    assert world.timers.put_back.counters["timerUnreadable"] == 0
    assert manifest(world) == []


def test_a_segment_that_cannot_be_read_at_all_uses_up_no_tries():
    world = World()
    world.send(TIMER_DELAY_MS=3000)
    world.run(1000)
    world.reads.error_of = lambda what, *_: errno.EIO if what == "log" else 0
    world.run(600_000, step=500)
    world.reads.end()
    world.run(6000, step=10)
    assert len(world.delivered()) == 1


def test_the_list_of_a_slot_that_cannot_be_read_stops_no_other_slot():
    world = World()
    first, _ = world.send(TIMER_DELAY_MS=3000)
    world.send(TIMER_DELAY_MS=5500)
    world.run(100)
    unit = world.timers.wheel.get_slot((world.due[first] - 1) // 1000 * 1000).last_pos
    world.reads.error_of = lambda what, at, size: (
        errno.EIO if what == "timerlog" and at <= unit < at + size and size < 52 * 40 else 0)
    world.reads.error_of = lambda what, at, size: (
        errno.EIO if what == "timerlog" and at + size == unit + 52 else 0)
    world.run(7000, step=10)
    assert first not in world.delivered()
    assert len(world.delivered()) == 1
    assert world.timers.commit_read_time_ms <= world.due[first]
    world.reads.end()
    world.run(6000, step=10)
    assert {key: len(times) for key, times in world.delivered().items()} == dict.fromkeys(world.due, 1)


def test_timers_wait_for_a_request_of_their_topic_that_cannot_be_read_now():
    world = World()
    key, _ = world.send(TIMER_DELAY_MS=3000)
    other, _ = world.send("U", TIMER_DELAY_MS=3000)
    result = world.recall(key)
    world.run(100)
    world.reads.under(result.phy_offset, errno.ENFILE)
    world.run(4000, step=10)
    assert world.delivered() == {}
    assert set(world.delivered("U")) == {other}
    world.reads.end()
    world.run(6000, step=10)
    assert world.delivered() == {}
    assert world.timers.put_back.counters["timerRecalled"] == 1


def test_an_open_with_a_timer_log_that_cannot_be_read_rebuilds_the_timers():
    world = World()
    world.send(TIMER_DELAY_MS=30_000)
    world.run(2000)
    world.close()
    world.files = world.files.killed()
    world.timer_log_is_bad = True
    original = world.reads.wrap

    def wrap(what, owner, name):
        original(what, owner, name)
        if what == "timerlog":
            for_good = owner.load

            def load():
                for_good()
                for file in owner.files:
                    def bad(*_):
                        raise OSError(errno.EIO, "Input/output error")
                    file.read = bad
            owner.load = load

    world.reads.wrap = wrap
    world.open(clean=True)
    world.reads.wrap = original
    assert world.timers.recovered.mode == "rebuild"
    world.run(31_000, step=20)
    assert {key: len(times) for key, times in world.delivered().items()} == dict.fromkeys(world.due, 1)


def test_the_list_of_pending_timers_names_those_that_cannot_be_read_and_does_not_end_there():
    from tailrace.timer.pending import pending_levels, pending_timers

    world = World()
    _, bad = world.send(TIMER_DELAY_MS=30_000)
    world.send(TIMER_DELAY_MS=31_000)
    world.send("L", DELAY=4)
    world.run(1000)
    world.reads.under(bad.phy_offset)
    listed = list(pending_timers(world.timers))
    assert [timer.state for timer in listed] == ["unreadable", "pending"]
    assert listed[0].phy_offset == bad.phy_offset
    assert "Input/output error" in listed[0].reason
    assert [timer.state for timer in pending_levels(world.schedule)] == ["pending"]
    assert world.timers.put_back.counters["timerUnreadable"] == 0


def test_a_metric_that_cannot_name_the_topic_of_a_timer_is_counted_again_later():
    world = World()
    for _ in range(2):
        world.send("Aa", TIMER_DELAY_MS=3000)
        world.send("BB", TIMER_DELAY_MS=3000)  # the same hash as Aa
    world.run(2000)
    entropy = SeededEntropy(3)
    world.reads.at_random(entropy, 60)
    world.run(2000, step=5)
    world.reads.end()
    world.run(4000, step=10)
    assert len(world.delivered("Aa")) == len(world.delivered("BB")) == 2
    world.timers.check_metrics_step()
    assert world.timers.metrics.counts() == {"Aa": 0, "BB": 0}


def test_the_list_of_a_directory_names_messages_that_cannot_be_read(monkeypatch):
    from tailrace.doctor.timers import pending_timers
    from tailrace.store.directory import StoreDirectory

    world = World()
    _, bad = world.send(TIMER_DELAY_MS=30_000)
    world.send(TIMER_DELAY_MS=31_000)
    world.run(1000)
    world.close()
    real = StoreDirectory.read

    def read(self, phy_offset, size):
        if phy_offset <= bad.phy_offset < phy_offset + size:
            raise OSError(errno.EIO, "Input/output error")
        return real(self, phy_offset, size)

    monkeypatch.setattr(StoreDirectory, "read", read)
    listed = pending_timers(StoreDirectory("/store", file_system=world.files, config=world.config))
    assert [timer.state for timer in listed] == ["unreadable", "pending"]
    assert (listed[0].phy_offset, listed[0].timer_log_pos) == (bad.phy_offset, 0)
    assert listed[0].due_ms == (min(world.due.values()) - 1) // 1000 * 1000 + 1000
