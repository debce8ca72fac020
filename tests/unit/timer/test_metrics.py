"""``config/timermetrics``: pending timers by topic, over everything that may happen to them."""

import dataclasses
import datetime as dt
import json
import threading

import numpy as np
import pytest
from patience import until
from timer_world import CONFIG, START, World

from tailrace import Message
from tailrace.errors import ConfigError
from tailrace.formats.timerlog import TIMER_UNIT, TimerUnit
from tailrace.node.message_store import MessageStore
from tailrace.timer.timer_metrics import TimerMetrics


def counts(world):
    return {topic: count for topic, count in world.timers.metrics.counts().items() if count}


def test_timers_count_from_their_enqueue_until_they_are_delivered():
    world = World()
    for ms in (1500, 2500, 70_000):
        world.send("A", TIMER_DELAY_MS=ms)
    world.send("B", TIMER_DELAY_MS=900)
    world.steps()
    assert counts(world) == {"A": 3, "B": 1}
    world.run(1000)
    assert counts(world) == {"A": 3}
    world.run(1000)
    assert counts(world) == {"A": 2}
    world.run(71_000, 50)  # the far one is sent round on the way
    assert world.timers.put_back.counters["timerRolled"] > 0
    assert world.timers.metrics.counts() == {"A": 0, "B": 0}


def test_a_request_to_delete_counts_against_what_it_deletes():
    world = World()
    key, _ = world.send(TIMER_DELAY_MS=5000)
    world.send(TIMER_DELAY_MS=5000)
    world.steps()
    world.recall(key)
    world.recall("NOBODY" if world.due.setdefault("NOBODY", world.due[key]) else "")
    world.steps()
    assert counts(world) == {}  # 2 - 2, as the reference counts until the slot is read
    world.run(6000, 10)
    assert world.timers.metrics.counts() == {"T": 0}
    assert world.timers.put_back.counters["timerRecalled"] == 1


def test_what_is_parked_or_unreadable_does_not_count(monkeypatch):
    world = World(odd=True)
    world.send(TIMER_DELAY_MS=1500)
    world.send(TIMER_DELAY_MS=2500)
    world.steps()
    monkeypatch.setattr(world.timers.put_back.reads, "message", lambda *_: None)
    world.run(1600, 10)
    assert counts(world) == {"T": 1}
    assert world.delivered() == {}
    monkeypatch.undo()
    world.run(1600, 10)
    assert counts(world) == {}


@pytest.mark.parametrize("kept", [True, False])
def test_an_open_counts_anew_whatever_the_file_says(kept):
    world = World()
    for number in range(20):
        world.send(f"T{number % 3}", TIMER_DELAY_MS=1000 + 400 * number)
    world.steps()
    text = world.timers.metrics.encode()
    world.run(3000, 10)
    left = counts(world)
    assert sum(left.values()) not in {0, 20}
    world.files = world.files.killed()
    world.open()
    if kept:
        metrics = TimerMetrics(world.clock, world.timers._topic_at)
        metrics.decode(json.loads(text))
        assert sum(metrics.counts().values()) == 20
        metrics.revise(world.timers.live_units(world.timers.recovered.read_time_ms))
        assert metrics.counts() == world.timers.metrics.counts()
    world.steps()
    assert counts(world) == left
    world.run(8000, 10)
    assert counts(world) == {}


def test_a_topic_that_is_deleted_does_not_count_below_zero():
    world = World()
    for _ in range(40):
        world.send("A", TIMER_DELAY_MS=1500)
    world.send("B", TIMER_DELAY_MS=1500)
    world.steps()
    world.timers.metrics.remove({"A", "none"})
    world.run(3000, 500)
    assert world.timers.metrics.counts() == {"B": 0}


def test_topics_of_one_hash_are_told_apart_by_their_messages():
    world = World()
    for topic, times in (("Aa", 3), ("BB", 2), ("C", 1)):
        for _ in range(times):
            world.send(topic, TIMER_DELAY_MS=4000)
    world.steps()
    world.timers.metrics.revise(world.timers._pending_units())
    assert counts(world) == {"Aa": 3, "BB": 2, "C": 1}
    world.run(5000, 100)
    assert counts(world) == {}


def test_a_revision_leaves_large_topics_and_those_of_their_hash_alone():
    def unit(topic_hash, magic=1):
        return TimerUnit(52, -1, magic, START, 0, 0, 10, topic_hash, 0)

    world = World()
    metrics = TimerMetrics(world.clock, lambda phy_offset, size: None)
    for topic, count in (("Aa", 50), ("BB", 3), ("C", 3), ("D", 4)):
        metrics.add(topic, count)
    units = [unit(2112), unit(67), unit(67), unit(67, 5)]
    metrics.revise([TIMER_UNIT.view(b"".join(TIMER_UNIT.pack(*u) for u in units))], 50)
    assert metrics.counts() == {"Aa": 50, "BB": 3, "C": 1, "D": 0}
    metrics.revise([np.concatenate([TIMER_UNIT.view(TIMER_UNIT.pack(*unit(68)))] * 3)])
    assert metrics.counts() == {"Aa": 0, "BB": 0, "C": 0, "D": 3}


def test_a_check_is_made_in_its_hour_and_70_minutes_apart():
    hour = dt.datetime.fromtimestamp((START + 80 * 60_000) / 1000).hour  # noqa: DTZ006
    config = dataclasses.replace(CONFIG, timer_check_metrics_when=f"{hour}")
    world = World(config=config)
    world.send(TIMER_DELAY_MS=50_000)
    world.steps()
    metrics = world.timers.metrics
    metrics.add("T", 5)
    world.timers.check_metrics_step()
    assert counts(world) == {"T": 6}  # an open is as good as a check
    assert not metrics.is_time_to_check(f"{hour}")
    world.clock.advance(80 * 60_000)
    assert not metrics.is_time_to_check(f"{(hour + 1) % 24}")
    assert metrics.is_time_to_check(f"{(hour + 1) % 24};{hour}")
    assert not metrics.is_time_to_check(f"{hour}")
    off = dataclasses.replace(config, timer_enable_check_metrics=False)
    world.timers.config = off
    world.clock.advance(24 * 3600_000)
    world.timers.check_metrics_step()
    assert metrics._last_check_ms == START + 80 * 60_000
    world.timers.config = config
    world.timers.check_metrics_step()
    assert counts(world) == {"T": 1}
    with pytest.raises(ConfigError, match="timerCheckMetricsWhen=24 "):
        dataclasses.replace(CONFIG, timer_check_metrics_when="24")


def wait_for(store, pending):
    until(lambda: store.stats()["timerPending"] == pending)


def test_the_file_is_the_one_of_the_reference(tmp_path):
    path = tmp_path / "s/config/timermetrics"
    with MessageStore.open(tmp_path / "s") as store:
        store.put(Message(topic="later", body=b"x", delay=3600))
        store.put(Message(topic="later", body=b"x", delay=7200))
        store.put(Message(topic="gone", body=b"x", delay=7200))
        wait_for(store, 3)
    found = json.loads(path.read_text())
    stamps = {topic: entry["timeStamp"] for topic, entry in found["timingCount"].items()}
    stamp = found["dataVersion"]["timestamp"]
    assert path.read_text() == (
        f'{{"dataVersion":{{"counter":3,"stateVersion":0,"timestamp":{stamp}}},"timingCount":'
        f'{{"gone":{{"count":1,"timeStamp":{stamps["gone"]}}},'
        f'"later":{{"count":2,"timeStamp":{stamps["later"]}}}}}}}')
    with MessageStore.open(tmp_path / "s") as store:
        wait_for(store, 3)
        store.delete_topics({"gone"})
        assert store.timer_services.messages.metrics.counts() == {"later": 2}
    assert json.loads(path.read_text())["timingCount"].keys() == {"later"}
    (tmp_path / "s/config/timermetrics").unlink()
    (tmp_path / "s/config/timermetrics.bak").unlink()
    with MessageStore.open(tmp_path / "s") as store:
        assert store.timer_services.messages.metrics.counts() == {"later": 2, "gone": 1}


def test_counts_may_be_read_while_the_delivery_begins_slots():
    world = World()
    due = world.timers.due
    units = np.zeros(50, TIMER_UNIT.dtype)
    units["delay_ms"] = 1000 * np.arange(50)
    stop = threading.Event()

    def begins():
        while not stop.is_set():
            due.add(units)
            taken = due.take(0, 0, 100)[0]
            due.leave(taken, due.slot_times(taken))

    thread = threading.Thread(target=begins)
    thread.start()
    try:
        for _ in range(300):
            assert world.timers.stats()["timerWaiting"] in range(51)
    finally:
        stop.set()
        thread.join()
