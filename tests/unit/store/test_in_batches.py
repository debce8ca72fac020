"""Properties that a batch cannot honour: nothing of such a batch is stored."""

from __future__ import annotations

import pytest

from tailrace import Message, MessageStore, StoreConfig
from tailrace.formats.commitlog import SysFlag, encode_batch
from tailrace.kernels.properties import encode_properties
from tailrace.model import MessageExtBrokerInner, PutMessageStatus
from tailrace.node.store_opening import StoreParts
from tailrace.node.topic_config import TopicConfig
from tailrace.testing import CrashFileSystem, SimClock

CONFIG = StoreConfig(
    mapped_file_size_commit_log=65536, mapped_file_size_consume_queue=400, max_hash_slot_num=16,
    max_index_num=64, commit_log_allocate_step=4096)
NOT_IN_BATCHES = {
    "DELAY": "3", "TIMER_DELAY_SEC": "60", "TIMER_DELAY_MS": "60000", "TIMER_DELIVER_MS": "99999999999999",
    "TRAN_MSG": "TRUE", "__LITE_TOPIC": "one", "_SYS_MSG_PRIORITY_": "0"}
HARMLESS = [
    {"DELAY": "0"}, {"DELAY": "-1"}, {"DELAY": "soon"}, {"TIMER_DELAY_SEC": ""}, {"NO_DELAY": "3"},
    {"TIMER_DELAY_SEC": "60", "TIMER_OUT_MS": "1"}, {"TRAN_MSG": "false"}, {"__LITE_TOPIC": ""},
    {"_SYS_MSG_PRIORITY_": "-1"}, {"value": "DELAY"}, {"__SHARDINGKEY": "g", "TRACE_ON": "true"}]


@pytest.fixture
def store():
    with MessageStore.open(
        "/s", config=CONFIG, parts=StoreParts(services=False, file_system=CrashFileSystem(), clock=SimClock())
    ) as store:
        store.topics.update(TopicConfig(topic_name="B", attributes={"queue.type": "BatchCQ"}))
        yield store


def items(properties):
    return encode_batch([(0, b"a", b""), (0, b"b", encode_properties({"KEYS": "k", **properties}))])


@pytest.mark.parametrize("name", NOT_IN_BATCHES)
def test_a_message_of_a_batch(store, name):
    result = store.inner.put_batch(MessageExtBrokerInner("t", 0, b""), items({name: NOT_IN_BATCHES[name]}))
    assert (result.status, result.msg_num) == (PutMessageStatus.MESSAGE_ILLEGAL, 0)
    assert f"message 1 of the batch has the property {name}={NOT_IN_BATCHES[name]}" in result.remark
    assert store.max_phy_offset == 0


def put_inner_batch(store, outer, inner):
    body = items(inner)
    return store.put_inner(MessageExtBrokerInner(
        "B", 0, body, encode_properties({"INNER_NUM": "2", **outer}),
        sys_flag=SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP))


@pytest.mark.parametrize("name", NOT_IN_BATCHES)
@pytest.mark.parametrize("where", ["outer", "inner"])
def test_an_inner_batch_and_its_messages(store, name, where):
    property_ = {name: NOT_IN_BATCHES[name]}
    result = put_inner_batch(store, property_ if where == "outer" else {}, property_ if where == "inner" else {})
    assert result.status is PutMessageStatus.MESSAGE_ILLEGAL
    assert name in result.remark
    assert store.max_phy_offset == 0


@pytest.mark.parametrize("properties", HARMLESS)
def test_properties_that_ask_for_nothing_are_stored(store, properties):
    assert store.inner.put_batch(MessageExtBrokerInner("t", 0, b""), items(properties)).msg_num == 2
    assert put_inner_batch(store, {}, properties).msg_num == 2


@pytest.mark.parametrize("properties", [
    {"DELAY": "3"}, {"TIMER_DELAY_SEC": "60"}, {"TIMER_DELAY_MS": "60000"}, {"TIMER_DELIVER_MS": "99999999999999"}])
def test_many_messages_and_tables_honour_delays_or_refuse_them(store, properties):
    """Nothing of the message is readable before its time, whether the put is refused or honoured."""
    for put in (
        lambda: store.put_many([Message(topic="t", body=b"x", properties=properties)] * 2),
        lambda: store.put_table({"body": [b"x", b"x"], "properties": [properties] * 2}, topic="t"),
    ):
        try:
            put()
        except Exception as error:
            assert "timer" in str(error) or "delay" in str(error)
        store.wait_dispatched()
        assert store.max_offset_in_queue("t", 0) == 0
