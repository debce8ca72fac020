"""The services of timers: which of them run, how often, and what each one does."""

import dataclasses
import datetime as dt
import errno

import pytest

from tailrace import Message, MessageStore, StoreConfig
from tailrace.env.entropy import SeededEntropy
from tailrace.env.scheduler import period_of
from tailrace.node.store_opening import StoreParts
from tailrace.testing import (
    CrashFileSystem,
    FaultyFileSystem,
    IdleService,
    ManualScheduler,
    SimClock,
    SimScheduler,
)
from tailrace.timer.timer_message_store import TimerMessageStore

START = 1_700_000_000_000
MINUTE = 60_000
CONFIG = StoreConfig(
    mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=4000, max_hash_slot_num=64,
    max_index_num=4096, commit_log_allocate_step=1 << 16, mapped_file_size_timer_log=52 * 20 + 30)


class Only:
    """A scheduler of the simulated clock that runs some services only, so that hours pass quickly."""

    def __init__(self, inner, *names):
        self.inner, self.names, self.periods = inner, names, {}

    def every(self, name, period_ms, step, *, rest_ms=0):
        assert name not in self.periods, "two services have one name"
        self.periods[name] = period_of(period_ms)
        return self.inner.every(name, period_ms, step) if name in self.names else IdleService()

    def stop_all(self):
        self.inner.stop_all()


class Place:
    def __init__(self, *names, config=CONFIG):
        self.clock = SimClock(START)
        self.scheduler = Only(SimScheduler(self.clock, SeededEntropy(1)), *names)
        self.store = MessageStore.open(
            "/s", config=config,
            parts=StoreParts(clock=self.clock, file_system=CrashFileSystem(), entropy=SeededEntropy(2),
                scheduler=self.scheduler))
        self.timers = self.store.timer_services.messages

    def run(self, ms):
        self.scheduler.inner.run(ms)


def recorded(monkeypatch, name):
    """The times, ms after the start, at which a step of the timers is made."""
    times, step = [], getattr(TimerMessageStore, name)

    def record(self):
        times.append(self._clock.now_ms() - START)
        return step(self)

    monkeypatch.setattr(TimerMessageStore, name, record)
    return times


@pytest.mark.parametrize(("service", "step", "period", "at_start"), [
    ("TimerLogCleanService", "clean_step", 30_000, [0]),
    ("TimerMetricsCheck", "check_metrics_step", 45 * MINUTE, [0]),
    ("TimerFlushService", "flush_step", 1000, []),
    ("TimerEnqueueService", "enqueue_step", 50, []),
])
def test_a_service_makes_its_step_in_its_period(monkeypatch, service, step, period, at_start):
    times = recorded(monkeypatch, step)
    place = Place(service)
    del times[:]  # an open also makes some of them
    place.run(4 * period + period // 2)
    assert times == [*at_start, period, 2 * period, 3 * period, 4 * period]
    place.store.close()


DELIVERY = ("TimerEnqueueService", "TimerDequeueService", "ScheduleMessageService", "ReputMessageService")


def test_messages_are_moved_into_the_wheel_more_often_while_there_are_some(monkeypatch):
    times = recorded(monkeypatch, "enqueue_step")
    place = Place("TimerEnqueueService", "ReputMessageService")
    del times[:]  # an open also makes some of them
    place.run(1000)
    place.store.put(Message(topic="T", body=b"x", delay=60))
    place.run(10_000)
    assert times[:20] == list(range(50, 1001, 50))
    assert set(map(int.__sub__, times[23:], times[22:])) == {20}
    place.run(1000)
    del times[:-10]
    assert set(map(int.__sub__, times[1:], times)) == {50}
    place.store.close()


def test_slots_are_looked_at_when_they_begin_and_more_often_while_timers_wait_in_one(monkeypatch):
    times = recorded(monkeypatch, "dequeue_step")
    place = Place(*DELIVERY)
    place.run(10)  # so that no step is made at a whole second by chance
    place.run(3000)
    assert {1000, 2000, 3000} <= set(times)
    assert len(times) < 40
    place.store.put(Message(topic="T", body=b"x", delay=2.49))
    place.run(4000)
    assert set(map(int.__sub__, times, [0, *times])) <= set(range(101))
    waiting = [time for time in times if 5000 <= time < 5500]
    assert waiting[0] == 5000
    assert max(map(int.__sub__, waiting[1:], waiting)) == 5
    assert len(times) < 200
    place.store.close()


@pytest.mark.parametrize("seed", range(3))
def test_timers_are_delivered_within_some_milliseconds_although_services_wait_long(seed):
    entropy, place = SeededEntropy(seed), Place(*DELIVERY)
    due = {}
    for number in range(150):
        place.run(entropy.randrange(400))
        delay = [entropy.randrange(60), entropy.randrange(1500), entropy.randrange(9000)][number % 3] + 1
        due[b"%d" % number] = place.clock.now_ms() + delay, delay
        assert place.store.put(Message(topic="T", body=b"%d" % number, delay=delay / 1000)).ok
    place.run(10_000)
    late = {message.body: message.store_timestamp - due[message.body][0] for message in place.store.read("T")}
    assert late.keys() == due.keys()
    # A message is dispatched within 50 ms and in the wheel 50 ms later; if it is due before, it is late by as much.
    assert all(0 <= ms <= 5 + max(0, 105 - due[body][1]) for body, ms in late.items()), late
    place.store.close()


def test_levels_are_delivered_when_they_are_due():
    place = Place(*DELIVERY)
    due = {}
    for number in range(60):
        place.run(37)
        due[b"%d" % number] = place.clock.now_ms() + 1000 * (1, 5)[number % 2]
        assert place.store.put(Message(topic="T", body=b"%d" % number, properties={"DELAY": str(1 + number % 2)})).ok
    place.run(6000)
    late = [message.store_timestamp - due[message.body] for message in place.store.read("T")]
    assert (len(late), min(late)) == (60, 0)
    assert max(late) <= 1
    place.store.close()


def test_files_of_the_timer_log_go_half_a_minute_after_they_were_delivered():
    place = Place("TimerLogCleanService", "TimerFlushService", "TimerEnqueueService",
                  "TimerDequeueService", "ReputMessageService")
    for number in range(120):
        place.store.put(Message(topic="T", body=b"x", delay=1 + number / 100))
    place.run(10_000)
    assert sum(place.store.queue_of("T", n).max for n in range(4)) == 120
    files = place.timers.timer_log.files
    assert len(files.files) == 6, "they go by the service, not with the delivery"
    place.run(19_000)
    assert len(files.files) == 6
    place.run(2_000)
    assert len(files.files) == 2, "the last two stay for a Java broker"
    place.store.close()


def test_counts_of_pending_timers_are_set_right_in_the_hour_that_is_set():
    hour = dt.datetime.fromtimestamp((START + 90 * MINUTE) / 1000).hour  # noqa: DTZ006
    config = dataclasses.replace(CONFIG, timer_check_metrics_when=str(hour))
    place = Place("TimerMetricsCheck", config=config)
    place.store.put(Message(topic="T", body=b"x", delay=2 * 86_400.0))
    while place.store.inner.reput.step():
        pass
    while place.timers.enqueue_step():
        pass
    place.timers.metrics.add("T", 5)
    first = 45 * MINUTE
    place.run(first + 1)
    early = dt.datetime.fromtimestamp((START + first) / 1000).hour == hour  # noqa: DTZ006
    assert place.timers.metrics.counts() == {"T": 1 if early else 6}
    place.run(first)
    assert place.timers.metrics.counts() == {"T": 1}
    place.store.close()


def test_everything_that_is_to_run_does():
    place = Place()
    assert {name: period for name, period in place.scheduler.periods.items()
            if "Timer" in name or "Delay" in name or "Schedule" in name} == {
        "ScheduleMessageService": 100, "DelayOffsetPersist": CONFIG.flush_delay_offset_interval,
        "TimerEnqueueService": 50, "TimerDequeueService": 5,
        "TimerFlushService": CONFIG.timer_flush_interval_ms, "TimerLogCleanService": 30_000,
        "TimerMetricsPersist": 5000, "TimerMetricsCheck": 45 * MINUTE}
    place.store.close()


@pytest.mark.parametrize(("service", "name"), [
    ("TimerMetricsPersist", "timermetrics"), ("DelayOffsetPersist", "delayOffset.json")])
def test_a_file_that_could_not_be_written_is_written_by_the_next_step(service, name):
    failing = []

    def error_of(_number, operation, path):
        return errno.ENOSPC if failing and operation == "pwrite" and f"/{name}" in path else 0

    steps = ManualScheduler()
    store = MessageStore.open(
        "/s", config=CONFIG,
        parts=StoreParts(clock=SimClock(START), entropy=SeededEntropy(2), scheduler=steps,
            file_system=FaultyFileSystem(CrashFileSystem(), error_of)))
    store.timer_services.messages.metrics.add("T", 5)
    store.timer_services.delay_offsets.update(1, 7)
    failing.append(True)
    with pytest.raises(OSError, match="No space"):
        steps.steps[service]()
    assert not store.file_system.exists(f"/s/config/{name}")
    failing.clear()
    steps.steps[service]()
    assert store.file_system.exists(f"/s/config/{name}")
    store.close()


def test_a_timer_log_file_with_a_unit_of_the_next_slot_is_not_deleted():
    place = Place("TimerEnqueueService", "TimerDequeueService", "TimerFlushService",
                  "ReputMessageService")
    for number in range(100):  # five files of units, all in the slot of one second
        place.store.put(Message(topic="T", body=b"x", delay=10 + number / 1000))
    place.run(2000)
    log = place.timers.timer_log
    assert len(log.files.files) == 5
    newest = max(log._newest_slot_ms(file) for file in log.files.files[:-1])
    place.run(newest - place.clock.now_ms() - 1)
    for _ in range(3):  # the last moments before the slot begins, and the first ones of it
        place.timers.flush_step()
        place.timers.clean_step()
        assert len(log.files.files) == 5, place.clock.now_ms() - newest
        place.run(10)
    place.run(20_000)
    place.timers.clean_step()
    assert len(log.files.files) == 2
    place.store.close()


def test_a_written_delay_offset_is_never_after_a_message_that_a_power_loss_removes():
    def opened():
        return MessageStore.open(
            "/s", config=CONFIG,
            parts=StoreParts(clock=clock, file_system=files, entropy=SeededEntropy(2), scheduler=scheduler))

    def run(*names):
        for name in names:
            while scheduler.steps[name]():
                pass

    services = "ReputMessageService", "ScheduleMessageService", "ReputMessageService"
    files, clock, scheduler = CrashFileSystem(), SimClock(START), ManualScheduler()
    store = opened()
    store.put(Message(topic="T", body=b"x", delay_level=1))
    store.flush()
    clock.advance(1000)
    run(*services)
    assert [m.body for m in store.read("T")] == [b"x"]
    run("DelayOffsetPersist")
    files = files.power_lost(SeededEntropy(1), 0)
    scheduler = ManualScheduler()
    store = opened()
    assert store.timer_services.delay_offsets.query(1) == 1
    run(*services)
    assert [m.body for m in store.read("T")] == [b"x"], "the level is past it, and nobody has it"
    store.close()


@pytest.mark.parametrize(("given", "lost"), [
    ({"delay": 4.0}, "/s/config/timercheck"), ({"delay_level": 1}, "/s/config/delayOffset.json")])
def test_what_a_purge_has_released_is_not_delivered_again_if_the_progress_is_lost(given, lost):
    place = Place(*DELIVERY)
    place.store.put(Message(topic="T", body=b"x", **given))
    place.run(6000)
    assert [m.body for m in place.store.read("T")] == [b"x"]
    place.store.purge_topic("T")
    place.store.close()
    files = place.store.file_system
    removed = [path for path in (lost, f"{lost}.bak") if files.exists(path)]
    assert removed
    for path in removed:
        files.remove(path)
    again = SimScheduler(place.clock, SeededEntropy(1))
    store = MessageStore.open(
        "/s", config=CONFIG,
        parts=StoreParts(clock=place.clock, file_system=files, entropy=SeededEntropy(2), scheduler=Only(again,
            *DELIVERY)))
    again.run(10_000)
    assert not list(store.read("T"))
    store.close()


def test_copied_delay_offsets_are_not_past_the_end_of_their_queues():
    """A slave may get the offset of a level whose messages it lacks; the next copy brings it again."""
    place = Place("ReputMessageService")
    timers = place.store.timer_services
    for _ in range(3):
        place.store.put(Message(topic="t", body=b"x", delay_level=1))
    place.run(1000)
    timers.take_delay_offsets({"offsetTable": {"1": 2, "2": 0}, "dataVersion": {}})
    assert timers.delay_offsets.query(1) == 2
    timers.take_delay_offsets({"offsetTable": {"1": 9, "2": 4}, "dataVersion": {}})
    assert [timers.delay_offsets.query(level) for level in (1, 2)] == [3, 0]
    place.store.close()
