"""Topics and queues of an embedded program, and messages whose fields contradict each other."""

from __future__ import annotations

import itertools
import time

import pytest

from tailrace import Message, MessageStore
from tailrace.errors import ConfigError, MessageIllegalError
from tailrace.node.store_opening import StoreParts
from tailrace.node.topic_queue_mapping import TopicQueueMappingDetail


@pytest.fixture
def store(tmp_path):
    with MessageStore.open(tmp_path / "store", parts=StoreParts(services=False)) as opened:
        yield opened


def bodies(store, topic, queue_id):
    return [message.body for message in store.read(topic, queue_id)]


def test_a_topic_is_created_and_changed(store):
    assert store.create_topic("t", queues=2).write_queue_nums == 2
    changed = store.create_topic("t", queues=6, attributes={"message.type": "NORMAL"})
    assert (changed.read_queue_nums, changed.attributes) == (6, {"message.type": "NORMAL"})
    store.put(Message(topic="t", body=b"x"), queue_id=5)
    for wrong in ({"topic": "a/b"}, {"topic": "t", "queues": 0}, {"topic": "t", "attributes": {"unknown": "1"}}):
        with pytest.raises(ConfigError):
            store.create_topic(**wrong)


def test_queues_take_turns_or_follow_a_key(store):
    store.create_topic("t", queues=3)
    turns = [store.put(Message(topic="t", body=b"x"), queue_id=None).queue_id for _ in range(6)]
    assert turns == [0, 1, 2, 0, 1, 2]
    keyed = {key: store.put(Message(topic="t", body=b"x"), queue_id=None, ordering_key=key).queue_id for key in "abc"}
    assert keyed == {"a": 97 % 3, "b": 98 % 3, "c": 99 % 3}  # as Java's String.hashCode
    with pytest.raises(MessageIllegalError, match="ordering_key"):
        store.put(Message(topic="t", body=b"x"), queue_id=1, ordering_key="a")
    many = store.put_many([Message(topic="t", body=b"x")] * 4, queue_id=None)
    assert len({one.queue_id for one in many}) == 1


def test_interleaved_topics_go_together_and_results_are_in_the_order_of_the_messages(store):
    messages = [Message(topic=f"t{number % 3}", body=b"%d" % number, keys=["k"]) for number in range(30)]
    results = store.put_many(messages)
    store.wait_dispatched()
    for number, result in enumerate(results):
        assert (result.queue_offset, store.look_message_by_offset(result.phy_offset).body) == (
            number // 3, b"%d" % number)
    assert results[-1] == results[29]
    assert [bodies(store, f"t{n}", 0) for n in range(3)] == [[b"%d" % k for k in range(n, 30, 3)] for n in range(3)]
    starts = sorted(result.phy_offset for result in results)
    runs = [list(run) for _, run in itertools.groupby(starts, lambda at: store.look_message_by_offset(at).topic)]
    assert len(runs) == 3


@pytest.mark.parametrize(("wrong", "text"), [
    ({"body": "text"}, "body: must be bytes, not str"),
    ({"properties": {"n": 1}}, "'n': 1: names and values are texts"),
    ({"delay": 1, "delay_level": 2}, "delay and delay_level are given"),
    ({"keys": ["a"], "properties": {"KEYS": "b"}}, "KEYS is the stored form of the field keys"),
    ({"tags": 5}, "tags: is one text"),
    ({"keys": [1]}, "keys: must be a list of strings"),
    ({"topic": 5}, "topic: is a text"),
])
def test_a_wrong_message_is_refused_by_name(store, wrong, text):
    """What a message refuses when it is made, the store refuses when a field was set afterwards."""
    message = Message(topic="t", body=b"")
    for name, value in wrong.items():
        setattr(message, name, value)
    for put in (store.put, lambda one: store.put_many([Message(topic="t", body=b"fine"), one])):
        with pytest.raises(MessageIllegalError, match=text):
            put(message)
    store.create_topic("t")
    assert bodies(store, "t", 0) == []


def test_a_change_of_a_topic_counts_for_the_next_put(store):
    """Puts into a queue that has messages see it as well."""
    def put(queue_id=5, keys=()):
        return store.put(Message(topic="t", body=b"x", keys=keys), queue_id=queue_id)

    store.create_topic("t", queues=6)
    assert [put().queue_offset for _ in range(3)] == [0, 1, 2]
    store.create_topic("t", queues=2)
    with pytest.raises(MessageIllegalError, match="t has queues 0 to 1"):
        put()
    put(1)
    put(1)
    store.topics.mappings.change(lambda draft: draft.put("t", TopicQueueMappingDetail(topic="t", bname="b")))
    with pytest.raises(MessageIllegalError, match="static topic"):
        put(1)
    store.topics.mappings.change(lambda draft: draft.remove("t"))
    put(1)
    store.delete_topics(["t"])
    assert put(3).ok  # created again, with four queues
    assert put(3).ok
    store.create_topic("t", queues=4, attributes={"message.type": "NORMAL"})
    assert put(3).ok
    store.create_topic("c", queues=1, attributes={"cleanup.policy": "COMPACTION"})
    for _ in range(2):
        store.put(Message(topic="c", body=b"x", keys=["a"]))
        with pytest.raises(MessageIllegalError, match="key is missing"):
            store.put(Message(topic="c", body=b"x"))
    for queue_id in (0.0, "0", [0]):
        with pytest.raises(MessageIllegalError, match="queueId"):
            put(queue_id)


def test_a_put_is_born_when_it_is_stored_on_this_machine(store):
    for message in (Message(topic="t", body=b"x"), Message(topic="t", body=b"y", properties={"a": "b"})):
        before = time.time_ns() // 1_000_000
        stored = store.look_message_by_offset(store.put(message).phy_offset)
        assert before <= stored.born_timestamp <= stored.store_timestamp <= time.time_ns() // 1_000_000
        assert stored.born_host == stored.store_host
