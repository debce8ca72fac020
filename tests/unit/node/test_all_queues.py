"""`read` and `to_arrow` of all queues of a topic, and topics and queues that do not exist."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tailrace import Message, MessageStore, StoreConfig
from tailrace.errors import StoreError, UnknownTopicError
from tailrace.formats.commitlog import SysFlag, encode_batch
from tailrace.kernels.properties import encode_properties
from tailrace.model import MessageExtBrokerInner
from tailrace.node.store_opening import StoreParts
from tailrace.testing import CrashFileSystem, SimClock

CONFIG = StoreConfig(
    mapped_file_size_commit_log=1 << 16, mapped_file_size_consume_queue=400, max_hash_slot_num=64, max_index_num=400,
    mapper_file_size_batch_consume_queue=460, enable_lmq=True, enable_multi_dispatch=True, timer_wheel_enable=False)


@pytest.fixture
def store():
    with MessageStore.open("/s", config=CONFIG, parts=StoreParts(
            services=False, file_system=CrashFileSystem(), clock=SimClock(1_000_000))) as made:
        for number in range(10):
            made.put(Message(topic="orders", body=b"%d" % number, keys=["k"]), queue_id=number % 4)
        yield made


def bodies(store, *place, **more):
    """What `read` yields, which must be the rows of `to_arrow`."""
    found = [(one.queue_id, one.body) for one in store.read(*place, **more)]
    if "max_count" in more:
        more["count"] = more.pop("max_count")
    table = store.to_arrow(*place, **more, columns=["queueId", "body"])
    assert [tuple(row.values()) for row in table.to_pylist()] == found
    return [body for _, body in found]


def test_all_queues_are_read_one_after_the_other(store):
    assert bodies(store, "orders") == [b"0", b"4", b"8", b"1", b"5", b"9", b"2", b"6", b"3", b"7"]
    assert bodies(store, "orders", 1) == bodies(store, "orders", queue_id=1) == [b"1", b"5", b"9"]
    assert bodies(store, "orders", 1, 1) == [b"5", b"9"]


@pytest.mark.parametrize("most", [0, 1, 3, 4, 9, 10, 99])
def test_a_count_is_that_of_all_queues_together(store, most):
    assert bodies(store, "orders", max_count=most) == bodies(store, "orders")[:most]


def test_messages_that_are_put_after_the_call_are_not_read(store):
    found = store.read("orders")
    store.put(Message(topic="orders", body=b"late"))
    assert b"late" not in [one.body for one in found]


def test_an_offset_needs_its_queue(store):
    for read in (store.read, store.to_arrow):
        with pytest.raises(ValueError, match="offset=1 is a place in one queue: name the queue with queue_id"):
            read("orders", offset=1)


def test_queues_that_a_topic_had_before_are_read_as_well(store):
    store.create_topic("orders", 2)
    assert len(bodies(store, "orders")) == 10
    assert bodies(store, "orders", 3) == [b"3", b"7"]


def test_all_queues_of_a_batch_topic(store):
    store.create_topic("batches", 2, {"queue.type": "BatchCQ"})
    for queue_id in (1, 0):
        body = encode_batch([(0, b"%d%d" % (queue_id, n), encode_properties({"UNIQ_KEY": f"m{n}"})) for n in range(3)])
        assert store.put_inner(MessageExtBrokerInner(
            "batches", queue_id, body, encode_properties({"UNIQ_KEY": "b", "INNER_NUM": "3"}),
            sys_flag=int(SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP))).ok
    assert bodies(store, "batches") == [b"00", b"01", b"02", b"10", b"11", b"12"]
    assert bodies(store, "batches", max_count=4) == [b"00", b"01", b"02", b"10"]


def test_all_queues_of_a_compacted_topic(store):
    store.create_topic("state", 2, {"cleanup.policy": "COMPACTION"})
    for number in range(4):
        store.put(Message(topic="state", body=b"%d" % number, keys=[f"k{number}"]), queue_id=1 - number % 2)
    assert [one.body for one in store.read("state")] == [b"1", b"3", b"0", b"2"]
    with pytest.raises(StoreError, match=r"cleanup\.policy=COMPACTION"):
        store.to_arrow("state")


def test_an_lmq_is_a_topic_with_one_queue_once_it_has_a_message(store):
    with pytest.raises(UnknownTopicError, match="has no topic %LMQ%a"):
        store.read("%LMQ%a")
    store.put(Message(topic="orders", body=b"x", properties={"INNER_MULTI_DISPATCH": "%LMQ%a"}))
    assert bodies(store, "%LMQ%a") == bodies(store, "%LMQ%a", 0) == [b"x"]


def test_a_topic_without_messages_is_empty(store):
    store.create_topic("quiet", 3)
    assert bodies(store, "quiet") == bodies(store, "quiet", 2) == []
    assert store.max_offset_in_queue("quiet", 2) == 0


CALLS = {
    "read": lambda store, topic: store.read(topic),
    "read of a queue": lambda store, topic: store.read(topic, 0),
    "to_arrow": lambda store, topic: store.to_arrow(topic),
    "query": lambda store, topic: store.query_message(topic, "k"),
    "min": lambda store, topic: store.min_offset_in_queue(topic, 0),
    "max": lambda store, topic: store.max_offset_in_queue(topic, 0),
    "time": lambda store, topic: store.get_offset_in_queue_by_time(topic, 0, 5),
    "store time": lambda store, topic: store.get_message_store_timestamp(topic, 0, 0),
    "purge": lambda store, topic: store.purge_topic(topic),
    "delete": lambda store, topic: store.delete_topics([topic]),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_unknown_topic_is_an_error_with_the_nearest_name(store, name):
    store.wait_dispatched()
    before = store.queues()
    with pytest.raises(UnknownTopicError, match=r"^/s has no topic ordres; is orders meant[?]$") as error:
        CALLS[name](store, "ordres")
    assert (error.value.topic, error.value.where) == ("ordres", "/s")
    assert store.queues() == before
    CALLS[name](store, "orders")


@pytest.mark.parametrize("name", [name for name in CALLS if name not in {"delete", "purge"}])
def test_a_topic_that_is_not_a_text_is_refused(store, name):
    with pytest.raises(TypeError, match="topic is a text, not None"):
        CALLS[name](store, None)


def test_names_that_are_not_near_are_listed_while_they_are_few(store):
    with pytest.raises(UnknownTopicError, match=r"^/s has no topic x; it has orders$"):
        store.read("x")


def test_a_queue_that_does_not_exist_is_an_error(store):
    for call in (
        lambda number: store.read("orders", number), lambda number: store.to_arrow("orders", number),
        lambda number: store.min_offset_in_queue("orders", number),
        lambda number: store.max_offset_in_queue("orders", number),
        lambda number: store.get_offset_in_queue_by_time("orders", number, 5),
    ):
        with pytest.raises(ValueError, match=r"^orders has no queue 4; it has queues 0 to 3$"):
            call(4)
        with pytest.raises(ValueError, match="must not be negative: -1"):
            call(-1)


def test_a_deleted_topic_is_unknown(store):
    store.delete_topics(["orders"])
    with pytest.raises(UnknownTopicError):
        store.read("orders")


def test_a_time_is_a_number_a_text_or_a_datetime(store):
    for time in (1_000_000, "1000000", "1970-01-01T00:16:40+00:00", datetime(1970, 1, 1, 0, 16, 40, tzinfo=UTC)):
        assert store.get_offset_in_queue_by_time("orders", 0, time) == 0
    with pytest.raises(ValueError, match="timestamp_ms 'noon' is not a time; write 2026-01-31T12:00"):
        store.get_offset_in_queue_by_time("orders", 0, "noon")


@pytest.mark.parametrize(("call", "error", "text"), [
    (lambda store: store.delete_topics("orders"), TypeError, "topics is a list of names; write ['orders']"),
    (lambda store: store.query_message("orders", 42), TypeError, "key is a text, not 42"),
    (lambda store: store.put_many(Message(topic="orders", body=b"x")), TypeError, "messages is a list of Message;"),
    (lambda store: store.put(Message(topic="orders", body=b"x"), queue_id="0"), StoreError, "whole number, not '0'"),
    (lambda store: store.put(Message(topic="new", body=b"x"), queue_id="0"), StoreError, "whole number, not '0'"),
    (lambda store: store.put(Message(topic="orders", body=b"x"), queue_id=None, ordering_key=5), StoreError,
     "ordering_key: is a text, not 5"),
    (lambda store: store.create_topic("new", "4"), StoreError, "queues='4' is not a whole number above 0"),
    (lambda store: store.create_topic("new", 4, "a=b"), StoreError, "attributes='a=b' is not a dict"),
    (lambda store: store.look_message_by_id(None), StoreError, "msgId: is a text, not None"),
    (lambda store: MessageStore.open("/s", config={"a": "1"}), StoreError, "config is a StoreConfig, not {'a': '1'}"),
])
def test_an_argument_of_another_type_is_named(store, call, error, text):
    with pytest.raises(error) as found:
        call(store)
    assert text in str(found.value)
    assert store.topics.select("new") is None
