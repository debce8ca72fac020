"""Heartbeats, group members, offsets, locks."""

from __future__ import annotations

import json

import pytest
from broker_kit import clients_of

from tailrace.broker import wiring
from tailrace.broker.clients import rebalance_lock
from tailrace.errors import MessageIllegalError, StoreError
from tailrace.filters.subscriptions import SubscriptionData
from tailrace.formats.commitlog import java_string_hash
from tailrace.formats.remoting import ResponseCode
from tailrace.model import MessageExtBrokerInner
from tailrace.node.topic_config import TopicConfig
from tailrace.store.queue_reader import QueueReader


@pytest.fixture
def clients(broker, kit):
    return kit.served(clients_of(broker))


def heartbeat(kit, client="c1", group="g", topics=("orders",), version=1, **more):
    data = {
        "clientID": client,
        "producerDataSet": [{"groupName": "pg"}],
        "consumerDataSet": [{
            "groupName": group, "consumeType": "CONSUME_PASSIVELY",
            "messageModel": more.pop("model", "CLUSTERING"),
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "unitMode": False,
            "subscriptionDataSet": [
                {"topic": t, "subString": "a||b", "tagsSet": ["a", "b"], "codeSet": [97, 98],
                 "subVersion": version, "expressionType": "TAG", "classFilterMode": False}
                for t in topics
            ],
        }],
        **more,
    }
    return kit.request(34, body=json.dumps(data).encode(), version=479)


def members(clients, kit, channel, group="g"):
    answer = clients.consumer_list(channel, kit.request(38, {"consumerGroup": group}))
    return json.loads(answer.body)["consumerIdList"] if answer.code == 0 else answer


def test_a_member_is_listed_as_soon_as_its_heartbeat_is_answered(clients, kit, channel, broker):
    answer = clients.heartbeat(channel, heartbeat(kit))
    assert answer.ext == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
    assert answer.version == 479
    assert members(clients, kit, channel) == ["c1"]
    assert broker.topics.select("%RETRY%g").write_queue_nums == 1
    assert broker.clients.consumers.find("g").subscriptions["orders"].codes == {97, 98}
    assert [m.client_id for m in broker.clients.producers.members("pg")] == ["c1"]


def test_every_member_is_told_when_one_joins_or_leaves(clients, kit, channel):
    other = kit.FakeChannel("127.0.0.1:50001")
    clients.heartbeat(channel, heartbeat(kit))
    assert [c.code for c in channel.sent] == [40]  # itself included
    clients.heartbeat(channel, heartbeat(kit))
    assert len(channel.sent) == 1  # nothing new
    clients.heartbeat(other, heartbeat(kit, "c2"))
    assert [c.ext for c in other.sent] == [{"consumerGroup": "g"}]
    assert [c.is_oneway for c in channel.sent] == [True, True]
    assert members(clients, kit, channel) == ["c1", "c2"]
    leave = kit.request(35, {"clientID": "c2", "consumerGroup": "g", "producerGroup": "pg"})
    assert clients.unregister_client(other, leave).code == 0
    assert len(channel.sent) == 3
    assert members(clients, kit, channel) == ["c1"]


def test_broadcasting_members_are_not_told(clients, kit, channel):
    clients.heartbeat(channel, heartbeat(kit, model="BROADCASTING"))
    assert channel.sent == []


def test_changed_topics_are_told_and_newer_subscriptions_replace_older(clients, kit, channel, broker):
    clients.heartbeat(channel, heartbeat(kit))
    clients.heartbeat(channel, heartbeat(kit, topics=("orders", "bills")))
    assert len(channel.sent) == 2
    clients.heartbeat(channel, heartbeat(kit, topics=("bills",)))
    assert len(channel.sent) == 3
    assert set(broker.clients.consumers.find("g").subscriptions) == {"bills"}


def test_a_closed_connection_leaves_all_its_groups(clients, kit, channel, broker):
    other = kit.FakeChannel("127.0.0.1:50001")
    clients.heartbeat(channel, heartbeat(kit))
    clients.heartbeat(other, heartbeat(kit, "c2"))
    channel.sent.clear()
    broker.clients.consumers.closed(other)
    broker.clients.producers.closed(other)
    assert [c.code for c in channel.sent] == [40]
    broker.clients.consumers.closed(channel)
    broker.clients.producers.closed(channel)
    answer = members(clients, kit, channel)
    assert (answer.code, answer.remark) == (1, "no consumer for this group, g")
    assert broker.clients.producers.groups() == {}


def test_silent_clients_are_forgotten(clients, kit, channel, broker, clock):
    clients.heartbeat(channel, heartbeat(kit))
    clock.ms += 119_000
    broker.clients.consumers.expire()
    broker.clients.producers.expire()
    assert members(clients, kit, channel) == ["c1"]
    clock.ms += 2_000
    broker.clients.consumers.expire()
    assert channel.closed
    broker.clients.producers.expire()
    assert broker.clients.producers.members("pg") == []
    assert members(clients, kit, channel).code == 1


def test_heartbeats_without_subscriptions_keep_those_of_the_same_fingerprint(clients, kit, channel, broker):
    beat = heartbeat(kit, heartbeatFingerprint=5)
    # "true" would make a Java client send everything again, for ever.
    assert clients.heartbeat(channel, beat).ext["IS_SUB_CHANGE"] == "false"
    short = heartbeat(kit, topics=(), heartbeatFingerprint=5, withoutSub=True)
    assert clients.heartbeat(channel, short).ext["IS_SUB_CHANGE"] == "false"
    assert set(broker.clients.consumers.find("g").subscriptions) == {"orders"}
    other = heartbeat(kit, topics=(), heartbeatFingerprint=6, withoutSub=True)
    assert clients.heartbeat(channel, other).ext["IS_SUB_CHANGE"] == "true"
    # Over a new connection it is a member immediately, even before it tells its subscriptions again.
    clients.unregister_client(channel, kit.request(35, {"clientID": "c1", "consumerGroup": "g"}))
    assert clients.heartbeat(channel, short).ext["IS_SUB_CHANGE"] == "true"
    assert members(clients, kit, channel) == ["c1"]
    assert clients.heartbeat(channel, short).ext["IS_SUB_CHANGE"] == "true"
    assert clients.heartbeat(channel, beat).ext["IS_SUB_CHANGE"] == "false"
    assert clients.heartbeat(channel, short).ext["IS_SUB_CHANGE"] == "false"


def test_a_member_whose_pull_is_newer_than_its_subscriptions_is_asked_for_them(
    clients, kit, channel, broker
):
    """A Java client may drop the heartbeat that tells them, and leave them out of all later ones."""
    broker.topics.create_if_missing("orders", 1)
    pulls = kit.served(wiring.pulls(broker))
    pull = kit.request(11, {
        "consumerGroup": "g", "topic": "orders", "queueId": "0", "queueOffset": "0",
        "maxMsgNums": "1", "sysFlag": "0", "commitOffset": "0", "subVersion": "2",
        "suspendTimeoutMillis": "0"})
    short = heartbeat(kit, topics=(), heartbeatFingerprint=5, withoutSub=True)
    clients.heartbeat(channel, heartbeat(kit, heartbeatFingerprint=5))
    assert clients.heartbeat(channel, short).ext["IS_SUB_CHANGE"] == "false"
    assert pulls.pull(channel, pull).code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    assert clients.heartbeat(channel, short).ext["IS_SUB_CHANGE"] == "true"
    newer = heartbeat(kit, version=2, heartbeatFingerprint=5)
    assert clients.heartbeat(channel, newer).ext["IS_SUB_CHANGE"] == "false"
    assert clients.heartbeat(channel, short).ext["IS_SUB_CHANGE"] == "false"
    assert pulls.pull(channel, pull).code == ResponseCode.PULL_NOT_FOUND


def test_one_group_that_the_broker_does_not_know_is_a_change_whatever_the_others_are(
    clients, kit, channel
):
    def beat(*groups, **more):
        consumers = [{"groupName": g, "subscriptionDataSet": []} for g in groups]
        return kit.request(34, body=json.dumps({
            "clientID": "c1", "consumerDataSet": consumers, "heartbeatFingerprint": 5, **more,
        }).encode())

    clients.heartbeat(channel, beat("known"))
    answer = clients.heartbeat(channel, beat("new", "known", withoutSub=True))
    assert answer.ext["IS_SUB_CHANGE"] == "true"


def test_offsets_that_no_java_broker_could_read_are_refused(clients, kit, channel, broker):
    broker.groups.find_or_create("g")
    broker.topics.create_if_missing("orders", 1)
    broker.groups.find_or_create("g")
    for queue_id, offset, code, remark in (
        (0, 1 << 63, 1, "<commitOffset> is not a whole number in its range: '9223372036854775808'"),
        (1 << 31, 5, 1, "<queueId> is not a whole number in its range: '2147483648'"),
        (-1, 5, 29, "topic orders has no queue -1"),
    ):
        answer = clients.update_offset(channel, kit.request(15, {
            "consumerGroup": "g", "topic": "orders", "queueId": str(queue_id),
            "commitOffset": str(offset)}))
        assert answer.code == code
        assert remark in answer.remark
    assert broker.offsets.topics_of("g") == []


def test_locks_that_nobody_renews_are_forgotten_and_a_bad_queue_locks_none(
    clients, kit, channel, broker, clock
):
    good = {"topic": "t", "brokerName": "b", "queueId": 0}
    body = {"consumerGroup": "g", "clientId": "c1", "mqSet": [good, {"topic": "t"}]}
    with pytest.raises(MessageIllegalError, match="brokerName is missing"):
        clients.lock_batch(channel, kit.request(41, body=json.dumps(body).encode()))
    assert broker.clients.locks.try_lock("g", "c2", [good]) == [good]
    clock.ms += 60_001
    broker.clients.locks.expire()
    assert broker.clients.locks.try_lock("g", "c3", [good]) == [good]
    assert len(broker.clients.locks._locks) == 1


def test_the_names_of_locked_queues_are_bounded(broker, clock, monkeypatch):
    monkeypatch.setattr(rebalance_lock, "LOCKED_CHARS_MAX", 1_000)
    long = [{"topic": f"{number}{'t' * 200}", "brokerName": "b" * 200, "queueId": 0} for number in range(3)]
    with pytest.raises(StoreError, match="the limit is 1000"):
        broker.clients.locks.try_lock("g", "c1", long)
    assert broker.clients.locks.try_lock("g", "c1", long[:2]) == long[:2]
    with pytest.raises(StoreError, match="the limit is 1000"):
        broker.clients.locks.try_lock("g", "c1", long[2:])
    assert broker.clients.locks.try_lock("g", "c1", long[:2]) == long[:2]
    clock.ms += 60_001
    assert broker.clients.locks.try_lock("g", "another client", long[:1]) == long[:1]
    broker.clients.locks.expire()
    broker.clients.locks.unlock("g", "another client", long[:1])
    assert broker.clients.locks._chars == 0


def test_a_group_that_may_not_be_created_is_not_registered(clients, kit, channel):
    clients.heartbeat(channel, heartbeat(kit, group="no group"))
    assert members(clients, kit, channel, "no group").code == 1


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff"])
def test_a_heartbeat_that_is_no_object_is_an_error(clients, kit, channel, body):
    with pytest.raises(MessageIllegalError, match="body"):
        clients.heartbeat(channel, kit.request(34, body=body))


def test_other_filters_are_refused_beforehand(clients, kit, channel):
    def check(kind):
        body = json.dumps({"subscriptionData": {"expressionType": kind}}).encode()
        return clients.check_client_config(channel, kit.request(46, body=body))

    assert check("TAG").code == 0
    assert check("SQL92").code == 1


@pytest.mark.parametrize(
    ("text", "tags"), [("*", ()), ("", ()), ("a", ("a",)), (" a || b ||", ("a", "b"))]
)
def test_tag_expressions_are_parsed(text, tags):
    found = SubscriptionData.parse("t", text)
    assert found.tags == tags
    assert found.codes == (frozenset(map(java_string_hash, tags)) if tags else None)


# --- offsets


def offset_request(kit, **more):
    return kit.request(14, {"consumerGroup": "g", "topic": "orders", "queueId": "0", **more})


def commit(clients, kit, channel, offset, topic="orders"):
    fields = {"consumerGroup": "g", "topic": topic, "queueId": "0", "commitOffset": str(offset)}
    return clients.update_offset(channel, kit.request(15, fields))


def test_an_offset_of_an_unknown_group_is_refused_and_not_kept(clients, kit, channel, broker):
    broker.topics.update(TopicConfig(topic_name="orders"))
    for topic in ("orders", "nothing"):
        answer = commit(clients, kit, channel, 200, topic)
        assert (answer.code, answer.remark) == (26, "Group g not exist!")
    assert broker.offsets.entries() == []
    assert broker.groups.select("g") is None
    clients.heartbeat(channel, heartbeat(kit))
    assert commit(clients, kit, channel, 0).code == 0


def test_offsets_come_back_up_to_the_end_of_the_queue(clients, kit, channel, broker, store):
    broker.topics.update(TopicConfig(topic_name="orders"))
    for _ in range(3):
        store.put_inner(MessageExtBrokerInner("orders", 0, b"x"))
    assert commit(clients, kit, channel, 2).code == 26
    broker.groups.find_or_create("g")
    for offset in (3, 0, 2):  # a lower one as well, because consumers go back
        assert commit(clients, kit, channel, offset).code == 0
        assert clients.query_offset(channel, offset_request(kit)).ext == {"offset": str(offset)}
    for offset in (-1, 4, (1 << 63) - 1):
        answer = commit(clients, kit, channel, offset)
        assert (answer.code, answer.remark) == (
            29, f"offset {offset} is not in 0 to 3, the end of queue 0 of topic orders")
    assert clients.query_offset(channel, offset_request(kit)).ext == {"offset": "2"}
    assert commit(clients, kit, channel, 1, "nothing").code == 17


def test_a_new_group_reads_a_topic_that_was_made_again_from_its_begin(clients, kit, channel, store, monkeypatch):
    monkeypatch.setattr(QueueReader, "begin_of_life", 6000)
    monkeypatch.setattr(QueueReader, "min", 6000)
    assert clients.query_offset(channel, offset_request(kit)).ext == {"offset": "6000"}
    monkeypatch.setattr(QueueReader, "min", 6001)
    assert clients.query_offset(channel, offset_request(kit)).code == 22


def test_a_new_group_reads_a_young_queue_from_its_begin(clients, kit, channel, store, monkeypatch):
    answer = clients.query_offset(channel, offset_request(kit))
    assert (answer.code, answer.ext) == (0, {"offset": "0"})
    answer = clients.query_offset(channel, offset_request(kit, setZeroIfNotFound="false"))
    assert (answer.code, answer.remark[:9]) == (22, "Not found")
    store.put_inner(MessageExtBrokerInner("orders", 0, b"x"))
    store.max_phy_offset = 1 << 40  # the first message has long left the memory
    assert clients.query_offset(channel, offset_request(kit)).code == 22
    monkeypatch.setattr(QueueReader, "min", 5)
    assert clients.query_offset(channel, offset_request(kit)).code == 22


# --- locks


def lock(clients, kit, channel, client, *queues):
    body = {
        "consumerGroup": "g", "clientId": client,
        "mqSet": [{"topic": "orders", "brokerName": "broker-a", "queueId": q} for q in queues],
    }
    request = kit.request(41, body=json.dumps(body).encode())
    answer = clients.lock_batch(channel, request)
    return [q["queueId"] for q in json.loads(answer.body)["lockOKMQSet"]], request


def test_a_queue_has_one_owner_until_it_is_freed_or_not_renewed(clients, kit, channel, clock):
    assert lock(clients, kit, channel, "c1", 0, 1)[0] == [0, 1]
    assert lock(clients, kit, channel, "c2", 0, 1, 2)[0] == [2]
    again, request = lock(clients, kit, channel, "c1", 0)
    assert again == [0]
    assert clients.unlock_batch(channel, request).code == 0
    assert lock(clients, kit, channel, "c2", 0, 1)[0] == [0]
    clock.ms += 61_000
    assert lock(clients, kit, channel, "c2", 1)[0] == [1]
