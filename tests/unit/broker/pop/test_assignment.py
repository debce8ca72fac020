"""Queues allocated by the broker (requests 400 and 401), and attributes of groups."""

from __future__ import annotations

import asyncio
import itertools
import json

import pytest
from broker_kit import admin_of, clients_of, wired

from tailrace.broker.pop import query_assignment
from tailrace.broker.pop.query_assignment import QueryAssignmentProcessor
from tailrace.client.allocation import averagely, in_turn
from tailrace.config import BrokerConfig
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import StoreError
from tailrace.node import message_request_mode
from tailrace.node.message_request_mode import MessageRequestModeManager
from tailrace.node.subscription_group import SubscriptionGroupManager
from tailrace.node.topic_config import TopicConfig

QUEUES = list(range(8))


@pytest.fixture
def modes(broker):
    return broker.state.modes


@pytest.fixture
def assignment(broker):
    return wired(QueryAssignmentProcessor, broker)


@pytest.fixture
def join(broker, kit):
    clients = kit.served(clients_of(broker))

    def joined(*client_ids, group="g"):
        for number, client_id in enumerate(client_ids):
            data = {"clientID": client_id, "consumerDataSet": [{
                "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
                "subscriptionDataSet": []}]}
            channel = kit.FakeChannel(f"127.0.0.1:{50_000 + number}")
            clients.heartbeat(channel, kit.request(34, body=json.dumps(data).encode()))

    return joined


@pytest.fixture
def query(assignment, kit, channel):
    def queried(client_id="c1", topic="orders", mode="PULL", **more):
        body = {"topic": topic, "consumerGroup": "g", "clientId": client_id, "strategyName": "AVG",
                "messageModel": "CLUSTERING", **more}
        answer = assignment.query(channel, kit.request(400, body=json.dumps(body).encode()))
        if answer.code:
            return answer.code, answer.remark
        found = json.loads(answer.body).get("messageQueueAssignments")
        if found is None:
            return None
        assert {entry["mode"] for entry in found} <= {mode}
        assert {entry["messageQueue"]["topic"] for entry in found} <= {topic}
        return [entry["messageQueue"]["queueId"] for entry in found]

    return queried


@pytest.mark.parametrize(("queues", "members", "shares"), [
    (8, 1, [QUEUES]), (8, 2, [[0, 1, 2, 3], [4, 5, 6, 7]]), (8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
    (2, 4, [[0], [1], [], []]), (8, 8, [[n] for n in QUEUES]), (0, 2, [[], []]),
    (5, 3, [[0, 1], [2, 3], [4]]),
])
def test_shares_are_those_of_the_reference(queues, members, shares):
    mine = list(range(queues))
    assert [list(averagely(mine, n, members)) for n in range(members)] == shares
    circle = [list(in_turn(mine, n, members)) for n in range(members)]
    assert circle == [mine[n::members] for n in range(members)]


def test_each_queue_has_one_member_whoever_asks(query, join, broker):
    broker.topics.update(TopicConfig(topic_name="orders", read_queue_nums=8, write_queue_nums=8))
    join("c2", "c1", "c3")
    assert [query(c) for c in ("c1", "c2", "c3")] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert query("c1", strategyName="AVG_BY_CIRCLE") == [0, 3, 6]
    assert query("c3", strategyName=None) == [6, 7]
    assert query("a stranger") == []
    assert query("c2", messageModel="BROADCASTING") == QUEUES


def test_what_is_not_known_yet_leaves_a_client_its_queues(query, join, broker):
    assert query() is None
    broker.topics.update(TopicConfig(topic_name="orders"))
    assert query() is None, "the group has no member"
    join("c1")
    assert query() == [0, 1, 2, 3]
    assert query(topic="nothing") is None


def test_a_topic_that_may_not_be_read_has_no_queues(query, join, broker):
    broker.topics.update(TopicConfig(topic_name="orders", perm=2))
    join("c1")
    assert query() == []


def test_queues_of_other_brokers_are_shared_too(query, join, broker):
    data = {"perm": 6, "readQueueNums": 2}
    broker.name_servers.route = lambda topic: {
        "queueDatas": [{"brokerName": "b2", **data}, {"brokerName": "b1", **data}]}
    join("c1", "c2")
    assert (query("c1"), query("c2")) == ([0, 1], [0, 1])


def test_a_broker_that_registers_endless_queues_ends_nobody(query, join, broker):
    broker.name_servers.route = lambda topic: {"queueDatas": [
        {"brokerName": name, "perm": 6, "readQueueNums": 60_000} for name in ("b1", "b2")]}
    join("c1")
    with pytest.raises(StoreError, match="orders has 120000 queues, the limit is 100000"):
        query()


def test_a_strategy_that_is_not_known_is_an_error_so_that_the_client_allocates(query, join, broker):
    broker.topics.update(TopicConfig(topic_name="orders"))
    join("c1")
    assert query(strategyName="CONSISTENT_HASH") == (
        29, "unsupported strategy [CONSISTENT_HASH]; known are AVG, AVG_BY_CIRCLE")
    assert query(strategyName="CONSISTENT_HASH", messageModel="BROADCASTING") == [0, 1, 2, 3]


def test_the_mode_is_set_and_kept(assignment, modes, broker, store, kit, channel):
    broker.topics.update(TopicConfig(topic_name="orders"))

    def set_mode(**more):
        body = {"topic": "orders", "consumerGroup": "g", "mode": "PULL", **more}
        answer = assignment.set_mode(channel, kit.request(401, body=json.dumps(body).encode()))
        return answer.code, answer.remark

    assert set_mode(topic="%RETRY%g") == (16, "retry topic is not allowed to set mode")
    assert set_mode(topic="nothing") == (17, "topic[nothing] not exist")
    assert set_mode(consumerGroup="no group") == (26, "subscription group does not exist")
    assert set_mode(mode="PUSH") == (29, "mode PUSH is not supported; known are PULL and POP")
    with pytest.raises(StoreError, match="popShareQueueNum"):
        set_mode(popShareQueueNum="x")
    assert not OsFileSystem().exists(modes.path)
    assert set_mode() == (0, None)
    assert set_mode(mode="POP", popShareQueueNum=2) == (0, None)
    again = MessageRequestModeManager(OsFileSystem(), store.config_dir)
    assert again.load()
    assert again.to_json()["messageRequestModeMap"] == {"orders": {"g": {
        "consumerGroup": "g", "mode": "POP", "popShareQueueNum": 2, "topic": "orders"}}}


def test_modes_are_bounded_and_those_of_deleted_groups_make_room(assignment, modes, broker, kit, channel, monkeypatch):
    monkeypatch.setattr(message_request_mode, "MODES_MAX", 2)

    def set_mode(topic):
        broker.topics.update(TopicConfig(topic_name=topic))
        body = {"topic": topic, "consumerGroup": "g", "mode": "POP"}
        assignment.set_mode(channel, kit.request(401, body=json.dumps(body).encode()))
        return modes.mode(topic, "g")

    assert set_mode("a") == set_mode("b") == ("POP", 0)
    with pytest.raises(StoreError, match="2 modes of groups are set, the limit"):
        set_mode("c")
    assert set_mode("a") == ("POP", 0), "one that is there can be changed"
    broker.topics.delete("b")
    assert set_mode("c") == ("POP", 0)
    assert modes.mode("b", "g") is None


@pytest.mark.parametrize(("shared", "found"), [
    (0, [[-1]] * 4), (-1, [[-1]] * 4), (3, [[-1]] * 4),
    (1, [[0, 1], [1, 2], [2, 3], [0, 3]]), (2, [[0, 1, 2], [1, 2, 3], [0, 2, 3], [0, 1, 3]]),
])
def test_members_that_pop_share_queues(query, join, modes, broker, shared, found):
    broker.topics.update(TopicConfig(topic_name="orders"))
    members = [f"c{n}" for n in range(4)]
    join(*members)
    modes._decode({"messageRequestModeMap": {"orders": {"g": {"mode": "POP", "popShareQueueNum": shared}}}})
    assert [sorted(query(member, mode="POP")) for member in members] == found


def test_more_members_that_pop_than_queues_have_one_each(query, join, modes, broker):
    broker.topics.update(TopicConfig(topic_name="orders", read_queue_nums=2, write_queue_nums=2))
    members = [f"c{n}" for n in range(5)]
    join(*members)
    modes._decode({"messageRequestModeMap": {"orders": {"g": {"mode": "POP", "popShareQueueNum": 1}}}})
    assert [query(member, mode="POP") for member in members] == [[0], [1], [0], [1], [0]]


@pytest.mark.parametrize("model", ["CLUSTERING", "BROADCASTING"])
def test_many_queues_are_answered_in_turns_of_the_event_loop(
    assignment, broker, join, kit, channel, monkeypatch, model
):
    """Others are served in the meantime, however many queues there are; here each turn has time for ten queues."""
    monkeypatch.setattr(query_assignment, "STEP", 10)
    broker.topics.update(TopicConfig(topic_name="orders", read_queue_nums=95, write_queue_nums=95))
    join("c1")
    body = {"topic": "orders", "consumerGroup": "g", "clientId": "c1", "messageModel": model}
    turns, times = [], itertools.count()

    async def run():
        assert assignment.query(channel, kit.request(400, body=json.dumps(body).encode())) is None
        while not channel.sent:
            turns.append(None)
            await asyncio.sleep(0)

    monkeypatch.setattr(broker.loop, "time", lambda: next(times))
    broker.loop.run_until_complete(run())
    (answer,) = channel.sent
    found = json.loads(answer.body)["messageQueueAssignments"]
    assert [entry["messageQueue"]["queueId"] for entry in found] == list(range(95))
    assert len(turns) >= 18


def test_the_mode_of_groups_without_one_is_set_for_all(store, loop, kit, channel):
    broker = kit.make_broker(store, loop, BrokerConfig(default_message_request_mode="POP"))
    broker.topics.update(TopicConfig(topic_name="orders"))
    assignment = wired(QueryAssignmentProcessor, broker)
    assert assignment._mode("orders", "g") == ("POP", -1)
    assert assignment._mode("%RETRY%g", "g") == ("PULL", 0)


# --- attributes of groups


@pytest.fixture
def update(broker, kit, channel):
    topics = kit.served(admin_of(broker))

    def updated(attributes, many=False):
        group = {"groupName": "g", "attributes": attributes}
        if many:
            answer = topics.update_groups(
                channel, kit.request(225, body=json.dumps({"groupConfigList": [group]}).encode()))
        else:
            answer = topics.update_group(channel, kit.request(200, body=json.dumps(group).encode()))
        return answer.code, answer.remark

    return updated


@pytest.mark.parametrize("many", [False, True])
def test_attributes_are_set_with_plus_and_removed_with_minus(update, broker, store, many):
    assert update({"+priority.factor": "50", "+lite.bind.topic": "a,b"}, many) == (0, None)
    assert broker.groups.select("g").attributes == {"priority.factor": "50", "lite.bind.topic": "a,b"}
    assert update({"-priority.factor": "", "+lite.sub.model": "Shared"}, many) == (0, None)
    assert update({}, many) == (0, None)
    again = SubscriptionGroupManager(OsFileSystem(), store.config_dir, broker.config, store.clock)
    assert again.load()
    assert again.select("g").attributes == {"lite.bind.topic": "a,b", "lite.sub.model": "Shared"}


@pytest.mark.parametrize(("attributes", "remark"), [
    ({"+no.such": "1"}, "unsupported key: no.such; known are "),
    ({"priority.factor": "1"}, "wrong format key: priority.factor; "),
    ({"+": "1"}, "wrong format key: +; "),
    ({"++priority.factor": "1"}, "wrong format key: ++priority.factor; "),
    ({"-lite.bind.topic": ""}, "attempt to delete a nonexistent key: lite.bind.topic"),
    ({"+priority.factor": "101"}, "priority.factor=101 is not a number from 0 to 100"),
    ({"+priority.factor": "\u0665"}, "priority.factor=\u0665 is not a number from 0 to 100"),
    ({"+lite.sub.model": "Other"}, "lite.sub.model=Other is not supported; known are Exclusive, Shared"),
    ({"+lite.sub.reset.offset.exclusive": "1"}, "lite.sub.reset.offset.exclusive=1 is neither true nor"),
    ({"+priority.factor": "1", "-priority.factor": ""}, "alter duplication key. key: priority.factor"),
])
def test_an_attribute_that_cannot_be_is_refused_and_changes_nothing(update, broker, attributes, remark):
    assert update({"+priority.factor": "7"}) == (0, None)
    code, said = update(attributes)
    assert code == 1
    assert said.startswith(f"g: {remark}")
    assert broker.groups.select("g").attributes == {"priority.factor": "7"}


def test_a_new_group_has_nothing_to_remove(update, broker):
    assert update({"-priority.factor": ""}) == (
        1, "g: only add attribute is supported while creating a group. key: priority.factor")
    assert broker.groups.select("g") is None


def test_a_plus_that_an_earlier_release_stored_is_lost_on_loading(broker, store):
    groups = broker.groups
    groups.find_or_create("g").attributes = {"+priority.factor": "50"}
    groups.persist()
    groups.load()
    assert groups.select("g").attributes == {"priority.factor": "50"}
