"""Timers and delayed messages whose topic was deleted, or has fewer queues, since they were put."""

import logging

import pytest
from timer_world import World

from tailrace.timer.parking import NOWHERE
from tailrace.timer.properties import PARKED_TOPIC

SENT = 40


class Targets:
    """Topics of a test: by name the position that their life begins at, and the number of queues."""

    def __init__(self):
        self.begins = {}
        self.queues = {}

    def first_position(self, topic):
        return self.begins.get(topic, 0)

    def queue_id(self, topic, queue_id):
        return queue_id % self.queues.get(topic, 1 << 31)


def sent(world, topic="T", count=SENT, queue_id=0, **more):
    return [world.send(topic, queue_id=queue_id, TIMER_DELAY_MS=3000 + n, **more)[0] for n in range(count)]


@pytest.mark.parametrize("odd", [False, True])
def test_timers_of_a_deleted_topic_are_parked_with_one_line(odd, caplog):
    targets = Targets()
    world = World(targets=targets, odd=odd)
    gone, kept = sent(world), sent(world, "U")
    level = world.send("L", DELAY=2)[0]
    world.run(1000)
    targets.begins = {"T": NOWHERE, "L": world.store.commit_log.max_offset}
    with caplog.at_level(logging.ERROR):
        world.clock.advance(6000)
        world.steps()
    assert not [key for key in world.store.queues.table if key[0] in ("T", "L")]
    assert set(world.delivered("U")) == set(kept)
    parked = world.records(PARKED_TOPIC)
    assert {message.unique_key for message in parked} == {*gone, level}
    assert len(parked) == SENT + 1
    assert {message.properties["TIMER_PARKED_REASON"] for message in parked} == {
        "its topic T was deleted", "its topic L was deleted"}
    lines = [line for line in caplog.text.splitlines() if "message parked" in line]
    assert len(lines) == 2
    assert f"topic=T messages={SENT}" in lines[0]
    assert world.timers.metrics.counts() == {"T": 0, "U": 0}
    assert not world.timers.due.slots


@pytest.mark.parametrize("odd", [False, True])
def test_messages_of_an_earlier_life_do_not_come_into_the_new_one(odd):
    targets = Targets()
    world = World(targets=targets, odd=odd)
    sent(world)
    world.send("T", DELAY=2)
    targets.begins = {"T": world.store.commit_log.max_offset}
    new = sent(world)
    new.append(world.send("T", DELAY=2)[0])
    world.run(6000, step=10)
    assert set(world.delivered()) == set(new)
    assert len(world.records(PARKED_TOPIC)) == SENT + 1


def test_a_far_timer_of_a_deleted_topic_is_not_rolled_into_the_next_life():
    targets = Targets()
    world = World(targets=targets)
    key = world.send(TIMER_DELAY_MS=150_000)[0]
    world.run(1000)
    targets.begins = {"T": world.store.commit_log.max_offset}
    world.run(160_000, step=250)
    assert world.timers.put_back.counters["timerRolled"] == 0
    assert [message.unique_key for message in world.records(PARKED_TOPIC)] == [key]
    assert world.delivered() == {}


def test_a_request_to_delete_a_far_timer_of_a_deleted_topic_is_dropped():
    targets = Targets()
    world = World(targets=targets)
    key = world.send(TIMER_DELAY_MS=150_000)[0]
    world.recall(key)
    world.run(1000)
    targets.begins = {"T": world.store.commit_log.max_offset}
    world.run(160_000, step=250)
    assert all("TIMER_DEL_UNIQKEY" not in message.properties for message in world.records(PARKED_TOPIC))
    assert world.delivered() == {}
    assert world.timers.metrics.counts() == {"T": 0}


@pytest.mark.parametrize("odd", [False, True])
def test_parked_timers_stay_parked_after_a_kill(odd):
    targets = Targets()
    world = World(targets=targets, odd=odd)
    sent(world)
    level = world.send("T", DELAY=2)[0]
    world.run(1000)
    targets.begins = {"T": NOWHERE}
    world.run(6000, step=10)
    world.files = world.files.killed()
    world.open()
    world.run(6000, step=10)
    parked = [message.unique_key for message in world.records(PARKED_TOPIC)]
    assert len(parked) == len(set(parked)) == SENT + 1
    assert level in parked


@pytest.mark.parametrize("odd", [False, True])
def test_messages_of_a_queue_that_is_gone_go_to_one_that_can_be_read(odd, caplog):
    targets = Targets()
    world = World(targets=targets, odd=odd)
    keys = {queue_id: sent(world, queue_id=queue_id) for queue_id in (3, 7)}
    keys[6] = [world.send("T", queue_id=6, DELAY=2)[0]]
    world.run(1000)
    targets.queues = {"T": 4}
    with caplog.at_level(logging.WARNING):
        world.clock.advance(6000)
        world.steps()
    assert {key[1] for key in world.store.queues.table if key[0] == "T"} == {2, 3}
    found = {}
    for message in sorted(world.records(), key=lambda message: message.queue_offset):
        found.setdefault(message.queue_id, []).append(message.unique_key)
    assert found[2] == keys[6]
    for queue_id in (3, 7):
        assert [key for key in found[3] if key in keys[queue_id]] == keys[queue_id], "in order"
    lines = [line for line in caplog.text.splitlines() if "queue of waiting messages is gone" in line]
    assert len(lines) == 2
    assert any(f"topic=T queue_id=7 to=3 messages={SENT}" in line for line in lines)
    assert any("topic=T queue_id=6 to=2 messages=1" in line for line in lines)
