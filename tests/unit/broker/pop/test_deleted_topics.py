"""Topics and groups that are deleted and created again, in a broker: what waited for the old topic never returns."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

import pytest
from broker_kit import admin_of, clients_of, wired

from tailrace.broker import wiring
from tailrace.broker.messages.send_back import SendBackProcessor
from tailrace.broker.messages.transaction_checks import TransactionChecks
from tailrace.errors import RefusalError
from tailrace.formats import fastjson
from tailrace.formats.commitlog import SysFlag, decode_properties
from tailrace.kernels.properties import encode_properties
from tailrace.model import MessageExtBrokerInner

PAIRS = (("g_a", "x"), ("g", "a_x"))
SHARED = "%RETRY%g_a_x"


def bodies(ones):
    return [one.body for one in ones]


def served(world, kind):
    return world.kit.served(kind(world.broker))


def delete(world, turns, topic="orders"):
    answer = world.ask(served(world, admin_of).delete_topic, {"topic": topic}, code=215)
    assert answer.code == 0
    turns()
    return fastjson.loads(answer.body)


def again(world, turns, topic="orders", queues=1):
    found = delete(world, turns, topic)
    world.store.topics.create_if_missing(topic, queues)
    return found


@pytest.fixture
def world(open_world):
    world = open_world()
    world.broker.groups.find_or_create("g")
    return world


def test_popped_messages_of_the_old_topic_do_not_return(world, turns):
    for n in range(3):
        world.send(b"old%d" % n)
    assert len(world.pop(invisibleTime=10_000)) == 3
    again(world, turns)
    world.send(b"new")
    world.run(20_000)
    assert bodies(world.pop()) == [b"new"]
    assert world.pop() == []


def test_retries_go_with_the_topic(world, turns):
    world.send(b"old")
    world.pop(invisibleTime=10_000)
    world.run(12_000)
    assert len(world.records("%RETRY%g_orders")) == 1
    assert again(world, turns)["deletedTopics"] == ["%RETRY%g_orders", "orders"]
    assert world.store.topics.select("%RETRY%g_orders") is None
    world.send(b"new")
    world.run(12_000)
    assert bodies(world.pop()) == [b"new"]
    assert not [key for key in world.broker.offsets._table if "%RETRY%" in key], "no offset of a topic without messages"


def test_retries_in_a_topic_that_another_pair_uses_are_passed_over(open_world, turns, caplog):
    world = open_world()
    for group, topic in PAIRS:
        world.store.topics.create_if_missing(topic, 1)
        world.broker.groups.find_or_create(group)
        for n in range(5):
            world.send(b"%s:%d" % (topic.encode(), n), topic)
        world.pop(consumerGroup=group, topic=topic, invisibleTime=10_000)
    world.run(12_000)
    assert len(world.records(SHARED)) == 10
    found = again(world, turns, "x")
    assert (found["deletedTopics"], len(found["kept"])) == (["x"], 1)
    world.send(b"new", "x")
    with caplog.at_level(logging.INFO):
        assert bodies(world.pop(consumerGroup="g_a", topic="x")) == [b"new"]
    assert "retries of a deleted topic are passed over" in caplog.text
    assert bodies(world.pop(consumerGroup="g", topic="a_x")) == [b"a_x:%d" % n for n in range(5)]


def test_an_orderly_pop_of_the_old_topic_blocks_nothing(world, turns):
    world.send(b"old")
    assert bodies(world.pop(order="true", invisibleTime=60_000, queueId=0)) == [b"old"]
    assert world.pop(order="true", queueId=0) == []
    world.persist()
    again(world, turns)
    world.send(b"new")
    assert bodies(world.pop(order="true", invisibleTime=60_000, queueId=0)) == [b"new"]


def test_an_orderly_pop_that_a_crash_left_blocks_nothing(world, turns):
    world.send(b"old")
    world.pop(order="true", invisibleTime=3_600_000, queueId=0)
    world.persist()
    again(world, turns)
    world.send(b"new")
    world.kill()
    world.open()
    assert bodies(world.pop(order="true", queueId=0)) == [b"new"]


def test_a_group_takes_its_topics_its_offsets_and_its_pops_along(world, turns):
    world.send(b"x")
    world.pop(order="true", queueId=0)
    for topic in ("%RETRY%g", "%DLQ%g"):
        world.store.topics.create_if_missing(topic, 1)
    for clean in ("false", "true"):
        world.broker.groups.find_or_create("g")
        answer = world.ask(served(world, admin_of).delete_group, {
            "groupName": "g", "cleanOffset": clean}, code=207)
        turns()
        found = fastjson.loads(answer.body)
        assert (answer.code, world.broker.groups.select("g")) == (0, None)
        assert (world.broker.offsets.topics_of("g") == []) == (clean == "true")
        assert found["kept"] == ([] if clean == "true" else ["the offsets of g, because cleanOffset is false"])
        assert found["deletedTopics"] == ([] if clean == "true" else ["%DLQ%g", "%RETRY%g"])
        assert world.pop_part.order.entries() == []


@pytest.mark.parametrize(("away_s", "comes"), [(15, True), (60, True), (400, False)])
def test_messages_of_a_group_that_is_not_there_yet_are_redelivered(world, away_s, comes, caplog):
    """A slave that is promoted before it has copied a group learns of it from its members."""
    world.send(b"x")
    world.pop(invisibleTime=5_000)
    world.broker.groups.delete("g")
    world.run(away_s * 1000)
    world.broker.groups.find_or_create("g")
    world.run(70_000)
    assert bodies(world.pop()) == ([b"x"] if comes else [])
    assert ("their topic or group is gone" in caplog.text) is not comes


def test_a_new_group_begins_at_the_first_message_of_the_new_topic(world, turns):
    world.send(b"old")
    again(world, turns)
    begin = world.store.queue_of("orders", 0).begin_of_life
    clients = served(world, clients_of)
    asked = {"consumerGroup": "new", "topic": "orders", "queueId": "0"}
    for count in range(3):
        assert world.ask(clients.query_offset, asked, code=14).ext["offset"] == str(begin)
        stats = world.ask(served(world, admin_of).consume_stats, {
            "consumerGroup": "new", "topic": "orders"}, code=208)
        [queue] = fastjson.loads(stats.body)["offsetTable"].values()
        assert (queue["brokerOffset"], queue["consumerOffset"]) == (begin + count, begin)
        world.send(b"%d" % count)
    assert bodies(world.pop(consumerGroup="new", initMode=1)) == [b"0", b"1", b"2"]


def test_a_message_of_a_deleted_topic_is_not_sent_back(world, turns):
    old = world.send(b"old")
    again(world, turns)
    new = world.send(b"new")
    back = served(world, partial(wired, SendBackProcessor)).send_back
    for put, count in ((old, 0), (new, 1)):
        world.store.topics.create_if_missing("%RETRY%g", 1)
        end = world.store.max_phy_offset
        answer = world.ask(back, {
            "group": "g", "offset": str(put.phy_offset), "delayLevel": "3", "originTopic": "orders"}, code=36)
        assert (answer.code, world.store.max_phy_offset > end) == (0, count == 1)


def half_of(world, key):
    stored = encode_properties({"TRAN_MSG": "true", "PGROUP": "p", "UNIQ_KEY": key})
    message = MessageExtBrokerInner(
        "orders", 0, key.encode(), stored, 0, SysFlag.TRANSACTION_PREPARED, world.clock.now_ms())
    service = world.broker.transactions
    half = service.prepare(message, decode_properties(stored))
    result = world.store.put_inner(message)
    service.prepared(half, result)
    world.store.wait_dispatched()
    return result


def end(world, result):
    processor = wiring.ends_of_transactions(world.broker)
    return world.ask(processor.end_transaction, {
        "producerGroup": "p", "tranStateTableOffset": result.queue_offset, "commitLogOffset": result.phy_offset,
        "commitOrRollback": 8, "fromTransactionCheck": "false", "msgId": "x", "transactionId": ""}, code=37)


def test_a_half_message_of_a_deleted_topic_is_never_committed(world, turns, loop, caplog):
    service = world.broker.transactions
    assert service.load()
    committed, checked = half_of(world, "old"), half_of(world, "asked")
    again(world, turns)
    new = half_of(world, "new")
    with caplog.at_level(logging.WARNING):
        with pytest.raises(RefusalError, match="was deleted after the half message was sent"):
            end(world, committed)
        world.clock.advance(60_000)
        loop.run_until_complete(asyncio.wait_for(world.broker.make(TransactionChecks).run_pass(), 10))
    assert caplog.text.count("half message of a deleted topic is dropped") == 2
    assert not service.queue.is_pending(committed.queue_offset)
    assert not service.queue.is_pending(checked.queue_offset)
    latest = world.records("RMQ_SYS_TRANS_HALF_TOPIC")[-1]
    assert latest.unique_key == "new", "only its producer is asked"
    new.queue_offset, new.phy_offset = latest.queue_offset, latest.phy_offset
    assert service.queue.pending == 1
