"""The list of pending timers of an open store."""

import dataclasses
import time

import pytest
from timer_world import CONFIG, World

from tailrace import Message, MessageStore, StoreConfig
from tailrace.timer.pending import pending_timers


def told(world):
    return [(timer.due_ms, timer.uniq_key) for timer in pending_timers(world.timers)]


def test_pending_timers_are_those_that_will_be_delivered_in_this_order():
    config = dataclasses.replace(CONFIG, timer_max_delay_sec=1000)
    world = World(config=config)
    keys = {}
    for number in range(60):
        key, _ = world.send("T", number % 4, TIMER_DELAY_MS=500 + 3001 * (number * 7 % 60))
        keys[key] = number % 4
        world.clock.advance(13)
    gone = [key for number, key in enumerate(keys) if number % 9 == 1]
    for number, key in enumerate(gone):
        world.recall(key, bare=number % 2 == 0)
    due = {key: world.due[key] for key in keys if key not in gone}
    wanted = sorted((ms, key) for key, ms in due.items())
    while world.store.reput.step():
        pass
    assert told(world) == wanted  # what is in the queue only is put into the wheel first
    for _ in range(8):
        world.run(20_000, 100)
        left = [entry for entry in wanted if entry[0] > world.clock.now_ms()]
        assert told(world) == left
        world.files = world.files.killed()
        world.open()
        world.steps()
        assert told(world) == left
    assert any(timer.rounds for timer in pending_timers(world.timers))
    assert {timer.uniq_key: timer.queue_id for timer in pending_timers(world.timers)} == {
        key: keys[key] for _, key in left}
    world.run(60_000, 100)
    assert told(world) == []


@pytest.mark.parametrize("stop", ["close", "kill"])
def test_a_timer_that_was_delivered_in_the_present_second_is_not_listed_after_the_next_open(stop):
    world = World()
    world.send(TIMER_DELAY_MS=150)
    kept, _ = world.send(TIMER_DELAY_MS=1700)
    world.run(300, 50)
    assert told(world) == [(world.due[kept], kept)]
    if stop == "close":
        world.close()
    else:
        world.flush()
    world.files = world.files.killed()
    world.open(clean=stop == "close")
    assert world.timers.recovered.mode == "replay"
    assert told(world) == [(world.due[kept], kept)]


def test_a_store_tells_timers_and_levels_together(tmp_path):
    levels = StoreConfig(message_delay_level="10s 1h")
    with MessageStore.open(tmp_path / "s", config=levels) as store:
        began = int(time.time() * 1000)
        store.put(Message(topic="a", body=b"x", delay=1800, keys=["k1", "k2"]), queue_id=3)
        store.put(Message(topic="b", body=b"x", delay_level=2))
        store.put(Message(topic="c", body=b"x", delay_level=1), queue_id=1)
        kept = store.put(Message(topic="d", body=b"x", delay=7200))
        assert [(t.topic, t.queue_id, t.keys, t.level) for t in store.timers()] == [
            ("c", 1, "", 1), ("a", 3, "k1 k2", 0), ("b", 0, "", 2), ("d", 0, "", 0)]
        for timer, wanted in zip(store.timers(), (10, 1800, 3600, 7200), strict=True):
            assert 0 <= timer.due_ms - began - wanted * 1000 < 5000
            assert store.look_message_by_offset(timer.phy_offset).properties["REAL_TOPIC"] == timer.topic
        store.recall(kept.recall_handle)
        assert [t.topic for t in store.timers()] == ["c", "a", "b"]
        stats = store.stats()
        assert stats["timerPendingWithin"][3600] == 1
        assert stats["schedulePendingByLevel"] == {1: 1, 2: 1}
