"""Offsets that consumers have, request 223, and resets that are sent to them (request 220)."""

from __future__ import annotations

import asyncio

import pytest
from broker_kit import wired

from tailrace.broker.admin.group_offsets import GroupOffsetsProcessor
from tailrace.broker.consumers.offsets import ConsumerOffsetsProcessor
from tailrace.config import BrokerConfig
from tailrace.errors import RefusalError, RemotingTimeoutError
from tailrace.formats import fastjson
from tailrace.model import MessageExtBrokerInner
from tailrace.node.topic_config import TopicConfig

QUEUE = b'{"brokerName":"broker-a","queueId":%d,"topic":"orders"}:%d'


def member(kit, broker, client_id, answer=None, version=479):
    """A consumer that answers request 221 with ``answer``, or raises it."""
    channel = kit.FakeChannel(client_id)
    channel.asked = []

    async def request(command, timeout_ms):
        channel.asked.append(command)
        if isinstance(answer, Exception):
            raise answer
        return command.answer(body=answer)

    channel.request = request
    broker.clients.consumers.register(channel, kit.request(34, version=version), client_id, {"groupName": "g"})
    channel.sent.clear()
    return channel


async def ask(kit, broker, channel, **more):
    asked = kit.request(223, {"topic": "orders", "group": "g", **more}, opaque=9)
    assert wired(ConsumerOffsetsProcessor, broker).status(channel, asked) is None
    for _ in range(200):
        if channel.sent:
            return channel.sent.pop()
        await asyncio.sleep(0.01)
    raise AssertionError("no answer")


def test_consumers_are_asked_and_one_that_does_not_answer_is_left_out(store, kit, channel):
    async def test():
        broker = kit.make_broker(store, asyncio.get_running_loop())
        good = member(kit, broker, "c1", b'{"consumerTable":{},"messageQueueTable":{%b,%b}}' % (
            QUEUE % (0, 7), QUEUE % (1, 5)))
        member(kit, broker, "c2", RemotingTimeoutError("c2", 5000))
        member(kit, broker, "c3", b'{"messageQueueTable":{"text":5}}')
        answer = await ask(kit, broker, channel)
        assert (answer.code, answer.opaque) == (0, 9)
        assert answer.body == b'{"consumerTable":{"c1":{%b,%b}},"messageQueueTable":{}}' % (
            QUEUE % (0, 7), QUEUE % (1, 5))
        assert good.asked[0].code == 221
        assert good.asked[0].ext == {"topic": "orders", "group": "g"}

    asyncio.run(test())


def test_one_consumer_can_be_named(store, kit, channel):
    async def test():
        broker = kit.make_broker(store, asyncio.get_running_loop())
        body = b'{"messageQueueTable":{%b}}' % (QUEUE % (0, 1))
        first, second = (member(kit, broker, name, body) for name in ("c1", "c2"))
        answer = await ask(kit, broker, channel, clientAddr="c2")
        assert set(fastjson.loads(answer.body)["consumerTable"]) == {"c2"}
        assert (len(first.asked), len(second.asked)) == (0, 1)
        nobody = await ask(kit, broker, channel, clientAddr="c9")
        assert fastjson.loads(nobody.body)["consumerTable"] == {}

    asyncio.run(test())


def test_tables_of_many_queues_are_read(store, kit, channel):
    async def test():
        broker = kit.make_broker(store, asyncio.get_running_loop())
        member(kit, broker, "c1", b'{"messageQueueTable":{%b}}' % b",".join(QUEUE % (q, q) for q in range(1000)))
        answer = await ask(kit, broker, channel)
        assert len(fastjson.loads(answer.body)["consumerTable"]["c1"]) == 1000

    asyncio.run(test())


def test_a_group_without_members_or_with_an_old_one_is_refused(broker, kit, channel):
    processor = wired(ConsumerOffsetsProcessor, broker)
    asked = kit.request(223, {"topic": "orders", "group": "g"})
    with pytest.raises(RefusalError, match=r"No Any Consumer online in the consumer group: \[g\]"):
        processor.status(channel, asked)
    member(kit, broker, "old", version=27)
    with pytest.raises(RefusalError, match=r"does not support this feature\. version=27"):
        processor.status(channel, asked)
    with pytest.raises(RefusalError, match="<group> is null"):
        processor.status(channel, kit.request(223, {"topic": "orders"}))


@pytest.fixture
def pushing(store, loop, kit, channel):
    broker = kit.make_broker(store, loop, BrokerConfig(use_server_side_reset_offset=False))
    broker.topics.update(TopicConfig(topic_name="orders", read_queue_nums=1, write_queue_nums=2))
    broker.groups.find_or_create("g")
    for _ in range(3):
        store.put_inner(MessageExtBrokerInner("orders", 0, b"x", b""))

    def ask(language=0, **more):
        ext = {"topic": "orders", "group": "g", "timestamp": "-1", "isForce": "true", **more}
        return broker.make(GroupOffsetsProcessor).reset_offset(channel, kit.request(222, ext, language=language))

    return broker, ask


def test_a_reset_is_sent_to_the_members_who_commit_it(pushing, kit):
    broker, ask = pushing
    with pytest.raises(RefusalError, match="The consumer group <g> not exist: it has no offset of queue 0 of orders"):
        ask()
    for queue_id in (0, 1):
        broker.offsets.commit("g", "orders", queue_id, 1 - queue_id)
    with pytest.raises(RefusalError, match="Consumer not online, so can not reset offset") as refused:
        ask()
    assert refused.value.code == 206
    consumer = member(kit, broker, "c1")
    table = b'{"offsetTable":{%b,%b}}' % (QUEUE % (0, 3), QUEUE % (1, 0))
    assert ask().body == table
    told = consumer.sent.pop()
    assert (told.code, told.is_oneway, told.body) == (220, True, table)
    assert told.ext == {"group": "g", "topic": "orders", "timestamp": "-1", "isForce": "false", "queueId": "-1"}
    assert broker.offsets.query("g", "orders", 0) == 1  # the consumer commits
    assert not broker.offsets.is_reset("g", "orders", 0)


def test_without_force_no_offset_moves_forward_and_cpp_gets_a_list(pushing, kit):
    broker, ask = pushing
    for queue_id in (0, 1):
        broker.offsets.commit("g", "orders", queue_id, 1 - queue_id)
    consumer = member(kit, broker, "c1")
    assert ask(language=1, isForce="false").body == b'{"offsetTable":{%b,%b}}' % (QUEUE % (0, 1), QUEUE % (1, 0))
    assert fastjson.loads(consumer.sent.pop().body)["offsetTable"] == [
        {"brokerName": "broker-a", "offset": 1, "queueId": 0, "topic": "orders"},
        {"brokerName": "broker-a", "offset": 0, "queueId": 1, "topic": "orders"}]
