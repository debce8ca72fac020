"""LMQ queues over the wire: sends into them, pulls and offsets, and what is refused."""

from __future__ import annotations

import pytest
from broker_kit import admin_of, clients_of

from tailrace.broker import wiring
from tailrace.broker.messages.service import CODES
from tailrace.config import StoreConfig
from tailrace.formats.remoting import ResponseCode
from tailrace.kernels.properties import encode_properties
from tailrace.model import MessageExtBrokerInner, PutMessageStatus

PULL = {"consumerGroup": "%LMQ%g", "topic": "%LMQ%a", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
        "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "1", "subscription": "*",
        "subVersion": "0", "expressionType": "TAG"}
TOPIC = {"defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
         "topicFilterType": "SINGLE_TAG"}


@pytest.fixture
def lmq(broker):
    broker.topics.enable_lmq = broker.groups.enable_lmq = True
    return broker


def test_a_pull_needs_no_topic_and_no_group(lmq, channel, kit):
    answer = kit.served(wiring.pulls(lmq)).pull(channel, kit.request(11, PULL))
    assert answer.code == ResponseCode.PULL_NOT_FOUND
    assert kit.served(wiring.pulls(lmq)).pull(
        channel, kit.request(11, {**PULL, "queueId": "1"})).code == ResponseCode.INVALID_PARAMETER
    assert "%LMQ%a" not in lmq.topics.table
    assert "%LMQ%g" not in [group.group_name for group in lmq.groups.items()]


def test_without_the_setting_they_are_unknown(broker, channel, kit):
    answer = kit.served(wiring.pulls(broker)).pull(channel, kit.request(11, PULL))
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST


def test_offsets_can_be_committed(kit, loop, channel, tmp_path):
    store = kit.open_store(tmp_path / "lmq", config=StoreConfig(enable_lmq=True, enable_multi_dispatch=True))
    clients = kit.served(clients_of(kit.make_broker(store, loop)))
    where = {"consumerGroup": "%LMQ%g", "topic": "%LMQ%a", "queueId": "0"}
    store.put_inner(MessageExtBrokerInner("orders", 0, b"x", encode_properties({"INNER_MULTI_DISPATCH": "%LMQ%a"})))
    for offset, code in (("1", ResponseCode.SUCCESS), ("2", ResponseCode.INVALID_PARAMETER)):
        assert clients.update_offset(channel, kit.request(15, {**where, "commitOffset": offset})).code == code
    assert clients.query_offset(channel, kit.request(14, where)).ext == {"offset": "1"}


def test_no_config_is_kept_of_them(lmq, channel, kit):
    topics = kit.served(admin_of(lmq))
    answer = topics.update_topic(channel, kit.request(17, {**TOPIC, "topic": "%LMQ%a"}))
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "is an LMQ queue" in answer.remark
    answer = topics.topic(channel, kit.request(351, {"topic": "%LMQ%a"}))
    assert b'"readQueueNums":1' in answer.body
    assert "%LMQ%a" not in lmq.topics.table
    answer = topics.update_group(
        channel, kit.request(200, body=b'{"groupName":"%LMQ%g","consumeEnable":false}'))
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "is an LMQ group" in answer.remark
    assert "%LMQ%g" not in [group.group_name for group in lmq.groups.items()]


def test_too_many_queues_have_a_code_of_their_own():
    assert CODES[PutMessageStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED] == 2017
    assert {status for status in PutMessageStatus if not status.appended} <= set(CODES)
