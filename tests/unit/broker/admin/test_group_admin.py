"""Offsets and permissions of groups, for admin tools: requests 308, 314, 353 and 402."""

from __future__ import annotations

import json

import pytest
from broker_kit import admin_of, clients_of, use_control, wired
from people import People, sent_by

from tailrace.broker import wiring
from tailrace.broker.admin.group_offsets import GroupOffsetsProcessor
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import RefusalError, StoreError
from tailrace.model import MessageExtBrokerInner
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.subscription_group import SubscriptionGroupManager
from tailrace.node.topic_config import TopicConfig


@pytest.fixture
def modes(broker):
    return broker.state.modes


@pytest.fixture
def processor(broker):
    for topic in ("orders", "bills"):
        broker.topics.update(TopicConfig(topic_name=topic, read_queue_nums=2, write_queue_nums=2))
    return wired(GroupOffsetsProcessor, broker)


def test_the_least_offset_among_groups_and_where_one_is_behind_all(processor, broker, kit, channel):
    for group, offsets in {"a": (5, 9), "b": (7, 3), "c": (1, 8)}.items():
        for queue_id, offset in enumerate(offsets):
            broker.offsets.commit(group, "orders", queue_id, offset)
    broker.offsets.commit("a", "bills", 0, 1)

    def ask(**more):
        ext = {"topic": "orders", "compareGroup": "nobody", **more}
        found = processor.correction_offset(channel, kit.request(308, ext))
        return json.loads(found.body)["correctionOffsets"]

    assert ask() == {"0": 1, "1": 3}
    assert ask(filterGroups="c,b") == {"0": 5, "1": 9}
    assert ask(filterGroups="c", compareGroup="c") == {"0": (1 << 63) - 1, "1": 3}
    assert ask(topic="nobody") == {}
    assert broker.offsets.query("c", "orders", 0) == 1  # nothing is deleted
    with pytest.raises(RefusalError, match="<compareGroup> is null"):
        processor.correction_offset(channel, kit.request(308, {"topic": "orders"}))


def test_a_group_gets_the_offsets_of_another(processor, broker, kit, channel, clock, store):
    for topic, queue_id in (("orders", 0), ("orders", 1), ("bills", 0), ("deleted", 0)):
        broker.offsets.commit("a", topic, queue_id, 5 + queue_id)

    def clone(**more):
        return processor.clone_offset(
            channel, kit.request(314, {"srcGroup": "a", "destGroup": "b", "offline": "false", **more}))

    assert clone(topic="orders").code == 0
    assert [broker.offsets.query("b", "orders", q) for q in (0, 1)] == [5, 6]
    assert broker.offsets.query("b", "bills", 0) == -1
    assert clone(destGroup="c").code == 0  # of all topics that exist
    assert broker.offsets.topics_of("c") == ["bills", "orders"]
    again = ConsumerOffsetManager(OsFileSystem(), store.config_dir, clock)
    again.load()
    assert again.query("c", "orders", 1) == 6  # durable
    broker.clients.consumers.register(kit.FakeChannel(), kit.request(34), "c1", {
        "groupName": "a", "subscriptionDataSet": [{"topic": "bills"}]})
    clone(destGroup="d")
    assert broker.offsets.topics_of("d") == ["bills"]
    clone(destGroup="d", offline="true")
    assert broker.offsets.topics_of("d") == ["bills", "orders"]


@pytest.mark.parametrize(("user", "entries", "code"), [
    ("mallory", [("Group:mine", "Update")], 16), ("mallory", [("Group:mine", "Update"), ("Group:a", "Pub")], 16),
    ("reader", [("Group:mine", "Update"), ("Group:a", "Get")], 0), ("root", [], 0)])
def test_a_clone_needs_a_permission_for_the_source_group(processor, broker, kit, channel, user, entries, code):
    use_control(broker, People(**({} if user == "root" else {user: entries})).control)
    processor = wired(GroupOffsetsProcessor, broker)
    broker.offsets.commit("a", "orders", 0, 5)
    answer = kit.served(processor).clone_offset(
        channel, sent_by(user, kit.request(314, {"srcGroup": "a", "destGroup": "mine", "topic": "orders"})))
    assert (answer.code, broker.offsets.query("mine", "orders", 0)) == (code, -1 if code else 5)


def test_a_clone_that_cannot_be_changes_nothing(processor, broker, kit, channel, store):
    broker.offsets.commit("a", "orders", 0, 5)
    with pytest.raises(RefusalError, match="illegal characters") as refused:
        processor.clone_offset(channel, kit.request(314, {"srcGroup": "a", "destGroup": "b c"}))
    assert refused.value.code == 29
    full = ConsumerOffsetManager(OsFileSystem(), store.config_dir, store.clock, limit=1)
    full.commit("a", "orders", 0, 5)
    with pytest.raises(StoreError, match="maxConsumerOffsets=1"):
        full.clone("a", "b", ["orders"])
    assert full.query("b", "orders", 0) == -1
    store.read_only = "read-only"
    with pytest.raises(RefusalError, match="read-only"):
        processor.clone_offset(channel, kit.request(314, {"srcGroup": "a", "destGroup": "b"}))


def test_a_group_is_forbidden_to_read_a_topic(processor, broker, kit, channel, clock, store):
    broker.groups.find_or_create("g")
    consumer = kit.FakeChannel()
    broker.clients.consumers.register(consumer, kit.request(34), "c1", {
        "groupName": "g", "subscriptionDataSet": [{"topic": "orders"}]})

    def ask(**more):
        answer = processor.forbidden(channel, kit.request(353, {"group": "g", "topic": "orders", **more}))
        assert answer.code == 0
        return json.loads(answer.body)

    assert ask() == {"group": "g", "readable": True, "topic": "orders"}
    assert ask(readable="false")["readable"] is False
    assert ask(topic="bills", readable="false")["readable"] is False
    again = SubscriptionGroupManager(OsFileSystem(), store.config_dir, broker.config, clock)
    again.load()
    assert again.is_read_forbidden("g", "orders")  # durable
    pull = {"consumerGroup": "g", "topic": "orders", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1",
            "sysFlag": "0", "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0"}
    refused = kit.served(wiring.pulls(broker)).pull(consumer, kit.request(11, pull))
    assert (refused.code, refused.remark) == (16, "the consumer group[g] is forbidden for topic[orders]")
    assert ask(readable="true")["readable"] is True
    assert broker.groups.is_read_forbidden("g", "bills")  # the other topic stays
    broker.groups.delete("g")
    assert not broker.groups.is_read_forbidden("g", "bills")
    again.load()
    assert not again.is_read_forbidden("g", "bills")


@pytest.mark.parametrize(("ext", "code", "said"), [
    ({"group": "nobody", "topic": "orders", "readable": "false"}, 26, "subscription group not exist, nobody"),
    ({"group": "g", "topic": "nothing", "readable": "false"}, 17, r"topic\[nothing\] not exist"),
    ({"group": "g"}, 1, "<topic> is null"),
    ({"group": "g", "topic": "orders", "readable": "maybe"}, 1, "<readable> is not true or false"),
])
def test_a_permission_that_cannot_be_set_is_refused(processor, broker, kit, channel, ext, code, said):
    broker.groups.find_or_create("g")
    writes = broker.groups.writes
    with pytest.raises(RefusalError, match=said) as refused:
        processor.forbidden(channel, kit.request(353, ext))
    assert refused.value.code == code
    assert broker.groups.writes == writes


def test_permissions_that_cannot_be_written_do_not_hold(broker, monkeypatch):
    broker.groups.find_or_create("g")

    def fail(*_):
        raise OSError(28, "full")

    monkeypatch.setattr(broker.groups, "_replace", fail)
    with pytest.raises(OSError, match="full"):
        broker.groups.set_readable("g", "orders", readable=False)
    assert not broker.groups.is_read_forbidden("g", "orders")


def test_request_modes_are_handed_out(processor, modes, kit, channel):
    assert json.loads(processor.request_modes(channel, kit.request(402)).body) == {"messageRequestModeMap": {}}
    modes.change(modes.setting("orders", "g", "PULL", 0))
    found = json.loads(processor.request_modes(channel, kit.request(402)).body)
    assert found == {"messageRequestModeMap": {"orders": {"g": {
        "consumerGroup": "g", "mode": "PULL", "popShareQueueNum": 0, "topic": "orders"}}}}


PROGRESS = [("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC"), ("CID_RMQ_SYS_REVIVE_GROUP", "orders")]


@pytest.mark.parametrize(("group", "topic"), PROGRESS)
def test_no_request_changes_the_progress_of_the_broker(broker, kit, channel, store, group, topic):
    """Without it half messages are not checked again, or popped messages not delivered again."""
    broker.topics.update(TopicConfig(topic_name="orders"))
    for _ in range(3):
        store.put_inner(MessageExtBrokerInner(topic, 0, b"x"))
    broker.groups.find_or_create(group)
    broker.offsets.commit(group, topic, 0, 1)
    broker.offsets.commit("a", topic, 0, 3)
    admin, clients, pulls = map(kit.served, (admin_of(broker), clients_of(broker), wiring.pulls(broker)))
    offsets = kit.served(wired(GroupOffsetsProcessor, broker))
    place = {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": "3"}
    pull = {**place, "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "5", "suspendTimeoutMillis": "0",
            "subscription": "*", "subVersion": "0"}
    reset = {"topic": topic, "group": group, "timestamp": "-1", "isForce": "true"}
    assert clients.update_offset(channel, kit.request(15, place)).code == 29
    pulls.pull(channel, kit.request(11, pull))
    assert offsets.reset_offset(channel, kit.request(222, reset)).code == 29
    assert offsets.clone_offset(channel, kit.request(314, {"srcGroup": "a", "destGroup": group})).code == 29
    assert admin.delete_group(channel, kit.request(207, {"groupName": group, "cleanOffset": "true"})).code == 29
    names = json.dumps({"groupNameList": ["a", group], "cleanOffset": True}).encode()
    assert admin.delete_groups(channel, kit.request(5003, body=names)).code == 29
    assert broker.offsets.query(group, topic, 0) == 1
    assert broker.offsets.query("a", topic, 0) == 3, "nor is another one deleted"
    assert broker.groups.select(group) is not None
