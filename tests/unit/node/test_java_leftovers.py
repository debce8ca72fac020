"""When a store opens, it names everything of a Java broker that Tailrace does not serve, by kind."""

from __future__ import annotations

import pytest

from tailrace import Message, MessageStore, StoreConfig
from tailrace.errors import MessageIllegalError
from tailrace.kernels.properties import encode_properties
from tailrace.model import MessageExtBrokerInner
from tailrace.node import foreign_engines
from tailrace.node.store_opening import StoreParts
from tailrace.node.topic_config import TopicConfig

CONFIG = StoreConfig(
    mapped_file_size_commit_log=1 << 20, mapped_file_size_timer_log=65536, max_hash_slot_num=100,
    max_index_num=400)
HALF, OP = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"
REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"


def opened(path, config=CONFIG):
    return MessageStore.open(path, config=config, parts=StoreParts(services=False))


def put(store, topic, body, queue_id=0, **properties):
    message = MessageExtBrokerInner(
        topic, queue_id, body, encode_properties({"WAIT": "true", **properties}), born_host=store.inner.store_host)
    assert store.put_inner(message).status.appended


def named(path, caplog, config=CONFIG):
    """Kinds and counts of the warnings of an open."""
    caplog.clear()
    with opened(path, config):
        pass
    lines = [m for m in caplog.messages if m.startswith("a Java broker left")]
    return {
        kind: count for line in lines
        for kind, _, count in [line.partition("kind=")[2].partition(" path=")[0].partition(" count=")]}


def file(path, name, text):
    (path / name).parent.mkdir(parents=True, exist_ok=True)
    (path / name).write_text(text)


@pytest.fixture
def path(tmp_path):
    with opened(tmp_path / "store") as store:
        store.put(Message(topic="orders", body=b"x"))
    return tmp_path / "store"


def test_a_store_of_our_own_is_opened_without_a_word(path, caplog):
    assert named(path, caplog) == {}


@pytest.mark.parametrize(("name", "text", "kind", "count"), [
    ("config/rdb/000008.sst", "table", "configuration in RocksDB", "1"),
    ("config/metadata/000008.log", "log", "configuration in RocksDB", "1"),
    ("config/users/000008.sst", "table", "users in RocksDB", "1"),
    ("config/acls/000008.sst", "table", "permissions in RocksDB", "1"),
    ("kvStore/000008.sst", "table", "popped messages in RocksDB", "1"),
    ("brokerIdentity", "a#b#1", "controller mode", "1"),
    ("epochFileCheckpoint", "1\n1-0", "controller mode", "1"),
    ("config/topicQueueMapping.json",
     '{"topicQueueMappingInfoMap":{"st":{"bname":"b"},"su":{},"sv":{"bname":"broker-a"}},"dataVersion":{}}',
     "static topics of another brokerName", "2"),
])
def test_a_file_of_a_kind_is_named(path, caplog, name, text, kind, count):
    file(path, name, text)
    assert named(path, caplog) == {kind: count}
    assert f"path={path}" in caplog.text
    file(path, name, "" if not name.endswith("json") else '{"topicQueueMappingInfoMap":{}}')
    assert named(path, caplog) == {}


@pytest.mark.parametrize(("attribute", "value", "why"), [
    ("message.type", "LITE", " without enableLmq=true and enableMultiDispatch=true"),
    ("cleanup.policy", "OfTomorrow", ""), ("queue.type", "OfTomorrow", ""),
])
def test_a_topic_of_a_type_is_named_and_takes_no_messages(path, caplog, attribute, value, why):
    with opened(path) as store:
        store.topics.update_all([
            TopicConfig(topic_name=name, attributes={attribute: value}) for name in ("a", "b")])
        store.topics.update(TopicConfig(topic_name="c", attributes={"message.type": "FIFO"}))
        for call in (store.put, lambda message: store.put_many([message])):
            with pytest.raises(MessageIllegalError, match=f"a has {attribute}={value}{why}, which is not supported"):
                call(Message(topic="a", body=b"x"))
        store.put(Message(topic="c", body=b"x"))
    assert named(path, caplog) == {f"topics of {attribute}={value}{why}": "2"}


def test_a_static_topic_takes_no_messages(path):
    file(path, "config/topicQueueMapping.json", '{"topicQueueMappingInfoMap":{"orders":{}}}')
    with opened(path) as store, pytest.raises(MessageIllegalError, match="orders is a static topic"):
        store.put(Message(topic="orders", body=b"x"))


def test_half_messages_in_the_queues_are_no_leftover(path, caplog):
    with opened(path) as store:
        put(store, "RMQ_SYS_TRANS_HALF_TOPIC", b"half", UNIQ_KEY="K", TRAN_MSG="true")
    assert named(path, caplog) == {}


def test_half_messages_of_a_broker_with_rocksdb_are_settled_by_their_position(path, caplog):
    with opened(path) as store:
        for n in range(3):
            put(store, HALF, b"half", UNIQ_KEY=f"K{n}", TRAN_MSG="true")
        store.wait_dispatched()
        unit = store.inner.queues.get(HALF, 0).unit(1)
        for position in (str(unit[0]), "²", ""):
            put(store, OP, b"d", TAGS="d", TRANS_OFFSET=position)
    assert named(path, caplog) == {"half messages of transactions in RocksDB": "2"}
    assert "path=" + str(path / "consumequeue/RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC") in caplog.text


def test_counting_reads_a_bounded_number_of_messages(path, caplog, monkeypatch):
    monkeypatch.setattr(foreign_engines, "MOST", 10)
    with opened(path) as store:
        for n in range(100):
            put(store, HALF, b"half", UNIQ_KEY=f"K{n}")
        store.wait_dispatched()
        for n in range(95):
            unit = store.inner.queues.get(HALF, 0).unit(n)
            put(store, OP, b"d", TAGS="d", TRANS_OFFSET=str(unit[0]))
        store.wait_dispatched()
        read = []
        monkeypatch.setattr(
            store.inner.reader, "decode_at", lambda at, old=store.inner.reader.decode_at: (
                read.append(at), old(at))[1])
        foreign_engines.name_leftovers(
            store.file_system, store.path, store.inner, store.topics)
    assert 0 < len(read) <= 2 * 10
    counts = named(path, caplog)
    assert counts in ({}, *({"half messages of transactions in RocksDB": f"at least {n}"} for n in range(1, 6)))
    with opened(path) as store:  # none of the last ones is settled, so they count
        for n in range(200, 220):
            put(store, HALF, b"half", UNIQ_KEY=f"K{n}")
    assert named(path, caplog) == {"half messages of transactions in RocksDB": "at least 10"}


def test_a_failed_search_for_leftovers_does_not_refuse_the_open(path, caplog, monkeypatch):
    def fail(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(foreign_engines, "_in_queues", fail)
    with opened(path) as store:
        assert store.is_writeable
    assert "cannot look at what a Java broker left" in caplog.text


@pytest.mark.parametrize("body", [
    b'{"aol":5,"t":"a"}', b'{"t":[1],"c":{},"ao":1}', b'{"ao":[[1]]}', b'{"so":1e300,"d":5,"n":9,"bm":1}', b"[[[[",
    b'{"so":0,"n":2000000000,"bm":0}',
])
def test_whatever_a_client_sends_to_the_revive_topic_the_store_opens(path, body):
    with opened(path) as store:
        for number, tag in enumerate(("ck", "ack", "bAck")):
            put(store, REVIVE, body, number, TAGS=tag)
    with opened(path) as store:
        assert store.is_writeable
