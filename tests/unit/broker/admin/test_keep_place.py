"""Consumers keep their place when topics, queues and offsets change."""

from __future__ import annotations

import asyncio

import pytest
from broker_kit import admin_of, clients_of

from tailrace.broker import wiring
from tailrace.broker.admin.group_offsets import GroupOffsetsProcessor
from tailrace.formats import fastjson
from tailrace.model import MessageExtBrokerInner
from tailrace.node.topic_config import TopicConfig
from tailrace.store.queue_reader import QueueReader


class Group:
    """A consumer group of one member, which pulls queue 0 of a topic."""

    def __init__(self, broker, kit, channel):
        self.broker, self.kit, self.channel = broker, kit, channel
        self.topics = kit.served(admin_of(broker))
        self.clients = kit.served(clients_of(broker))
        self.pulls = kit.served(wiring.pulls(broker))

    def create(self, queues=1):
        self.broker.topics.update(
            TopicConfig(topic_name="orders", read_queue_nums=queues, write_queue_nums=queues))

    def send(self, count, queue_id=0):
        for _ in range(count):
            self.broker.store.put_inner(MessageExtBrokerInner("orders", queue_id, b"x", b""))

    def pull(self, offset, sys_flag=4, commit=0, suspend=0):
        fields = {
            "consumerGroup": "g", "topic": "orders", "queueId": 0, "queueOffset": offset, "maxMsgNums": 2,
            "sysFlag": sys_flag, "commitOffset": commit, "suspendTimeoutMillis": suspend, "subscription": "*",
            "subVersion": 0}
        answer = self.pulls.pull(
            self.channel, self.kit.request(11, {name: str(value) for name, value in fields.items()}))
        return self.kit.decoded(answer)

    def commit(self, offset, queue_id=0):
        return self.clients.update_offset(self.channel, self.kit.request(15, {
            "consumerGroup": "g", "topic": "orders", "queueId": str(queue_id), "commitOffset": str(offset)}))

    def query(self, queue_id=0, **more):
        return self.clients.query_offset(self.channel, self.kit.request(14, {
            "consumerGroup": "g", "topic": "orders", "queueId": str(queue_id), **more}))

    def delete(self):
        assert self.topics.delete_topic(self.channel, self.kit.request(215, {"topic": "orders"})).code == 0

    def stats(self):
        answer = self.topics.consume_stats(self.channel, self.kit.request(
            208, {"consumerGroup": "g", "topicList": "orders"}))
        (found,) = fastjson.loads(answer.body)["offsetTable"].values()
        return found["consumerOffset"], found["pullOffset"]


@pytest.fixture
def group(broker, kit, channel):
    broker.groups.find_or_create("g")
    made = Group(broker, kit, channel)
    made.create()
    made.send(5)
    return made


def test_a_topic_that_is_deleted_and_created_again_is_consumed_from_its_start(group, broker):
    assert group.pull(0).code == 0
    group.commit(5)
    group.delete()
    late = group.commit(5)
    assert (late.code, late.remark) == (17, "Topic orders not exist!")
    assert group.pull(5).code == 17
    group.create()
    start = broker.store.queue_of("orders", 0).begin_of_life
    assert start > 5
    assert group.query().ext["offset"] == str(start)
    assert group.stats() == (start, start)
    moved = group.pull(5)  # a member that continues where it was
    assert (moved.code, moved.ext["nextBeginOffset"]) == (21, str(start))
    group.send(2)
    assert group.pull(start).code == 0


def test_a_group_that_pulled_and_never_committed_leaves_nothing_of_a_deleted_topic(group, broker):
    group.pull(2)
    assert broker.offsets.query_pull("g", "orders", 0) == 4
    group.delete()
    assert broker.offsets.query_pull("g", "orders", 0) == -1


def test_a_reset_while_a_member_consumes_shows_as_pulled_too(group, broker, kit, channel):
    for offset in (0, 2):
        group.pull(offset)
    group.commit(4)
    assert group.stats() == (4, 4)
    reset = {"topic": "orders", "group": "g", "timestamp": "-1", "isForce": "true", "queueId": "0", "offset": "1"}
    assert broker.make(GroupOffsetsProcessor).reset_offset(channel, kit.request(222, reset)).code == 0
    assert group.query().ext["offset"] == "1"
    assert group.commit(4).remark == "Offset has been previously reset"
    told = group.pull(4, sys_flag=5, commit=4)
    assert (told.code, told.ext["nextBeginOffset"]) == (21, "1")
    assert group.stats() == (1, 1)
    assert group.pull(1).code == 0
    assert group.stats() == (1, 3)


def test_a_pull_commits_when_it_comes_and_not_again_when_it_has_waited(group, broker):
    waiting = group.pull(5, sys_flag=7, commit=3, suspend=1_000)
    assert waiting is None
    assert group.query().ext["offset"] == "3"
    group.commit(4)  # by another request, while the pull waits
    group.send(1)
    group.pulls.service.hold.arriving("orders", 0, 6, [0], 1)
    broker.loop.run_until_complete(asyncio.sleep(0))
    assert group.channel.sent.pop().code == 0
    assert group.query().ext["offset"] == "4"


def test_a_pull_without_the_flag_commits_nothing(group, broker):
    assert group.pull(0, sys_flag=4, commit=3).code == 0
    assert broker.offsets.query("g", "orders", 0) == -1


def test_a_new_group_starts_at_0_of_a_young_queue_unless_it_asks_for_nothing(group, broker, monkeypatch):
    assert (group.query().code, group.query().ext["offset"]) == (0, "0")
    asked = group.query(setZeroIfNotFound="false")
    assert asked.code == 22
    monkeypatch.setattr(QueueReader, "min", 3)
    assert group.query().code == 22  # the client goes by its consumeFromWhere


def test_new_queues_are_consumed_from_their_start_and_old_ones_are_committed_to_the_end(group, broker):
    group.create(queues=2)
    assert group.query(queue_id=1).ext["offset"] == "0"
    group.send(3, queue_id=1)
    assert group.query(queue_id=1).ext["offset"] == "0"
    group.create(queues=1)
    assert group.commit(2, queue_id=1).code == 0
    assert broker.offsets.query("g", "orders", 1) == 2
    assert group.commit(2, queue_id=7).code == 29
