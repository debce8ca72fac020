"""Messages that cannot be put into their retry topic as they are, and reads that fail."""

from __future__ import annotations

import contextlib

import pytest

from tailrace.config import BrokerConfig
from tailrace.formats.copied_properties import LEFT_OUT
from tailrace.node.subscription_group import SubscriptionGroupConfig

LONG = 32_600


def bodies(ones):
    return [one.body for one in ones]


class FailingReads:
    """`MessageStore.get_message` that fails for some (topic, queue, offset)."""

    def __init__(self, world, monkeypatch):
        self.places, self.failed = {}, []
        get_message = world.store.get_message

        def fails(topic, queue_id, offset, most, *args, **more):
            error = next((e for (t, q, o), e in self.places.items()
                          if (t, q) == (topic, queue_id) and offset <= o < offset + most), None)
            if error is not None:
                self.failed.append((topic, queue_id, offset))
                raise OSError(error, "the read failed")
            return get_message(topic, queue_id, offset, most, *args, **more)

        monkeypatch.setattr(world.store, "get_message", fails)


@pytest.fixture
def reads(world, monkeypatch):
    return FailingReads(world, monkeypatch)


def test_a_message_with_long_properties_comes_back_each_time(world):
    world.send(b"long", TAGS="t", trace="x" * LONG)
    world.send(b"short", TAGS="t")
    one, _ = world.pop(queueId=0)
    assert len(one.message.properties["trace"]) == LONG
    for times in range(1, 4):
        world.run(14_000)
        ones = world.pop(exp="t")
        assert sorted(bodies(ones)) == [b"long", b"short"]
        long = next(one for one in ones if one.body == b"long")
        assert (long.reconsume_times, long.message.tags, long.message.topic) == (times, "t", "orders")
        assert long.message.properties[LEFT_OUT] == "trace"
        assert long.message.properties["ORIGIN_GROUP"] == "g"
    for one in ones:
        assert world.ack(one).code == 0
    world.run(30_000)
    assert world.pop() == []


def test_a_message_that_its_retry_topic_never_takes_becomes_a_dead_letter_after_its_tries(world, caplog):
    group, topic = "g" * 150, "t" * 110  # with %RETRY%: longer than the name of a topic may be
    world.store.topics.create_if_missing(topic, 1)
    world.send(b"a", topic, TAGS="t")
    world.send(b"b", topic)
    world.broker.groups.update_all([SubscriptionGroupConfig(group_name=group, retry_max_times=3)])
    assert bodies(world.pop(topic=topic, consumerGroup=group)) == [b"a", b"b"]
    world.run(30_000)
    assert world.records(f"%DLQ%{group}") == []
    world.run(100_000, 1_000)
    dead = world.records(f"%DLQ%{group}")
    assert [(m.body, m.properties["RETRY_TOPIC"]) for m in dead] == [(b"a", topic), (b"b", topic)]
    assert dead[0].tags == "t"
    assert dead[0].properties["ORIGIN_MESSAGE_ID"]
    lines = [record.getMessage() for record in caplog.records]
    assert sum("popped message becomes a dead letter" in line for line in lines) == 2
    assert sum("popped message is tried later" in line for line in lines) == 6
    world.run(100_000, 1_000)
    assert len(world.records(f"%DLQ%{group}")) == 2
    assert world.pop_part.revive.pending == 0


def test_a_message_that_cannot_be_read_delays_itself_only(world, reads):
    for n in range(4):
        world.send(b"%d" % n)
    world.pop(queueId=0)
    reads.places["orders", 0, 1] = 5
    world.run(14_000)
    assert sorted(bodies(world.pop())) == [b"0", b"2", b"3"]
    reads.places.clear()
    world.run(14_000)
    found = bodies(world.pop())
    assert b"1" in found
    assert world.pop_part.revive.lost == 0


def test_a_message_that_can_never_be_read_is_counted_in_the_end(world, reads, monkeypatch):
    monkeypatch.setattr("tailrace.broker.pop.revive.AGAIN_S", (5, 5))
    world.send(b"0")
    world.pop(queueId=0)
    reads.places["orders", 0, 0] = 5
    world.run(60_000)
    assert (world.pop_part.revive.lost, world.pop_part.revive.pending) == (1, 0)


@pytest.mark.parametrize("number", [12, 23, 24])
def test_a_shortage_loses_nothing_and_changes_no_order(world, reads, number):
    for n in range(3):
        world.send(b"%d" % n)
    world.pop(queueId=0)
    world.run(9_000)
    reads.places["orders", 0, 1] = number
    for _ in range(8):
        with contextlib.suppress(OSError):
            world.run(1_000)
    assert len(reads.failed) > 1
    reads.places.clear()
    world.run(2_000)
    assert bodies(world.pop()) == [b"0", b"1", b"2"]
    assert world.pop_part.revive.lost == 0


def test_a_record_of_the_revive_topic_that_cannot_be_read_holds_up_no_other_queue(open_world, monkeypatch):
    world = open_world(broker_config=BrokerConfig(revive_queue_num=2))
    reads = FailingReads(world, monkeypatch)
    topic = world.pop_part.revive._topic
    for n in range(4):
        world.send(b"%d" % n)
        world.pop(queueId=0, maxMsgNums=1)
    reads.places[topic, 0, 0] = 5
    failures = 0
    for _ in range(60):
        try:
            world.run(500)
        except OSError:
            failures += 1
    assert 10 < failures <= 30
    found = bodies(world.pop())
    assert len(found) == 3  # the checkpoint of one message is damaged; the others of its queue are redelivered
    assert set(found) < {b"0", b"1", b"2", b"3"}


def test_a_queue_that_cannot_be_read_costs_no_message_of_another_one(world, reads):
    world.send(b"0", queue_id=0)
    world.send(b"1", queue_id=1)
    for failing in (0, 1):
        reads.places = {("orders", failing, failing and 0): 24}
        ones = world.pop()
        assert bodies(ones) == [b"%d" % (1 - failing)]
        world.ack(ones[0])
        reads.places = {}
        world.broker.offsets.commit("g", "orders", 1 - failing, 0)
    reads.places = {("orders", 0, 0): 24, ("orders", 1, 0): 24}
    with pytest.raises(OSError, match="the read failed"):
        world.pop()
    reads.places = {}
    assert sorted(bodies(world.pop())) == [b"0", b"1"]


def test_a_retry_without_room_for_its_receipt_is_popped_with_one(world):
    """A Java broker leaves no room in the copies that it puts into retry topics."""
    world.store.topics.create_if_missing("%RETRY%g_orders", 1)
    world.send(b"full", "%RETRY%g_orders", ORIGIN_GROUP="g", TAGS="t", trace="x" * 32_700)
    one, = world.pop()
    assert (one.body, one.message.topic, one.message.tags) == (b"full", "orders", "t")
    assert one.message.properties[LEFT_OUT] == "trace"
    assert one.topic == "%RETRY%g_orders"
    assert world.ack(one).code == 0
    world.run(20_000)
    assert world.pop() == []
