"""Subscriptions to Lite topics: partial and complete ones, quotas, exclusive groups, and who gets an event."""

from __future__ import annotations

import itertools
import json

import pytest

from tailrace.broker.lite import registry
from tailrace.formats.commitlog import java_string_hash
from tailrace.formats.lite import consistent_hash

OPTIONS = [
    ({"type": "POLICY", "value": 0}, [b"4"]), ({"type": "POLICY", "value": 1}, [b"0", b"1", b"2", b"3", b"4"]),
    ({"type": "POLICY", "value": 2}, []), ({"type": "OFFSET", "value": 2}, [b"2", b"3", b"4"]),
    ({"type": "TAIL_N", "value": 1}, [b"3", b"4"]), ({"type": "TIMESTAMP", "value": 3}, [b"3", b"4"]), (None, [b"4"]),
]


def bodies(ones):
    return [one.body for one in ones]


def mine(world, client="c"):
    found = world.lite.registry.of_client(client)
    return None if found is None else sorted(queue.removeprefix("%LMQ%$parent$") for queue in found.queues)


def test_they_are_added_removed_and_replaced(world):
    registry = world.lite.registry
    world.subscribe("a", "b")
    world.subscribe("b", "c")
    assert (mine(world), registry.count) == (["a", "b", "c"], 3)
    world.subscribe("b", action="PARTIAL_REMOVE")
    assert (mine(world), registry.count) == (["a", "c"], 2)
    world.subscribe("c", "d", action="COMPLETE_ADD")
    assert (mine(world), registry.count) == (["c", "d"], 2)
    world.subscribe(action="COMPLETE_REMOVE")
    assert (mine(world), registry.count) == (None, 0)
    world.send("c")
    assert world.pop() == []


@pytest.mark.parametrize(("changes", "code"), [
    ({"group": "none"}, 604), ({"topic": "other"}, 604), ({"clientId": " "}, 29), ({"action": "ADD"}, 29),
    ({"liteTopicSet": ["a$b"]}, 29), ({"liteTopicSet": "a"}, 29), ({"liteTopicSet": [1]}, 29),
    ({"liteTopicSet": ["a"] * 3_001}, 29),
    ({"offsetOption": {"type": "OFFSET", "value": -1}}, 29),
    ({"offsetOption": {"type": "POLICY", "value": 3}}, 29)])
def test_a_wrong_subscription_is_refused(world, changes, code):
    assert world.subscribe("a", **{"client": "c", **changes}).code == code
    assert world.lite.registry.count == 0


def test_clients_with_many_subscriptions_are_removed_in_turns_of_the_event_loop(world, kit, monkeypatch):
    for client in "cde":
        world.subscribe("a", "b", client=client)
    entries = [
        {"action": "COMPLETE_REMOVE", "clientId": client, "group": "lite", "topic": "parent"} for client in "cde"]
    request = kit.request(200_071, {}, json.dumps({"subscriptionSet": entries}).encode())
    channel, times = kit.FakeChannel(), itertools.count()
    with monkeypatch.context() as busy:
        busy.setattr(world.loop, "is_running", lambda: True)
        busy.setattr(world.loop, "time", lambda: next(times))
        assert world.lite.subscriptions.change(channel, request) is None
        assert (world.lite.registry.count, channel.sent) == (4, [])
        world.loop.run()
    assert (world.lite.registry.count, [answer.code for answer in channel.sent]) == (0, [0])


class Busy:
    """Serves a change on an event loop of which each turn has time for one step."""

    def __init__(self, world, kit, monkeypatch):
        self.world, self.kit, self.channel, self.turns = world, kit, kit.FakeChannel(), 0
        times = itertools.count()
        monkeypatch.setattr(world.loop, "is_running", lambda: True)
        monkeypatch.setattr(world.loop, "time", lambda: next(times))
        soon = world.loop.call_soon

        def counted(*call):
            self.turns += 1
            soon(*call)

        monkeypatch.setattr(world.loop, "call_soon", counted)

    def begin(self, *names, action, client="c"):
        entry = {"action": action, "clientId": client, "group": "lite", "topic": "parent", "liteTopicSet": names}
        body = json.dumps({"subscriptionSet": [entry]}).encode()
        return self.world.lite.subscriptions.change(self.channel, self.kit.request(200_071, {}, body))

    def end(self):
        self.world.loop.run()
        return [answer.code for answer in self.channel.sent]


@pytest.fixture
def busy(world, kit, monkeypatch):
    return Busy(world, kit, monkeypatch)


@pytest.mark.parametrize("action", ["PARTIAL_ADD", "PARTIAL_REMOVE", "COMPLETE_ADD"])
def test_the_lite_topics_of_an_entry_are_changed_in_turns_of_the_event_loop(world, busy, action):
    names = [f"n{number}" for number in range(20)]
    if action != "PARTIAL_ADD":
        list(world.lite.registry.add_all(
            busy.channel, "c", "lite", "parent", [f"%LMQ%$parent${name}" for name in names], lambda: None))
    assert busy.begin(*names if action != "COMPLETE_ADD" else ["other"], action=action) is None
    assert busy.end() == [0]
    assert busy.turns >= 20
    assert mine(world) == {"PARTIAL_ADD": sorted(names), "PARTIAL_REMOVE": [], "COMPLETE_ADD": ["other"]}[action]


@pytest.mark.parametrize("action", ["PARTIAL_ADD", "COMPLETE_ADD"])
def test_a_client_that_leaves_between_two_turns_gets_no_further_lite_topics(world, busy, action):
    assert busy.begin("a", "b", "c", action=action) is None
    assert mine(world) is not None
    world.lite.registry.remove_all("c")
    assert busy.end() == [0]
    assert (mine(world), world.lite.registry.count) == (None, 0)
    assert not any(world.lite.registry.members(f"%LMQ%$parent${name}") for name in "abc")


def test_the_quota_holds_for_two_changes_that_take_turns(open_world, kit, monkeypatch):
    world = open_world(max_lite_subscription_count=3)
    world.topic()
    world.group()
    one, other = Busy(world, kit, monkeypatch), Busy(world, kit, monkeypatch)
    assert one.begin("a", "b", action="PARTIAL_ADD") is None
    assert other.begin("c", "d", action="PARTIAL_ADD", client="d") is None
    assert (one.end(), other.end()) == ([0], [2018])
    assert world.lite.registry.count == 3


def test_an_empty_body_is_refused(world):
    assert world.ask(world.lite.subscriptions.change, {}, b"", 200_071).code == 604


def test_a_client_has_a_bounded_number_of_lite_topics(world, monkeypatch):
    monkeypatch.setattr(registry, "OF_CLIENT_MAX", 2)
    assert world.subscribe("a", "b").code == 0
    refused = world.subscribe("b", "c")
    assert (refused.code, refused.remark) == (2018, "a client may subscribe to at most 2 Lite topics")
    assert mine(world) == ["a", "b"]
    assert world.subscribe("c", client="d").code == 0


def test_more_than_the_quota_are_refused(open_world):
    world = open_world(max_lite_subscription_count=2)
    world.topic()
    world.group()
    assert world.subscribe("a", "b").code == 0
    assert world.subscribe("c").code == 2018
    assert world.subscribe("a", action="COMPLETE_ADD").code == 0
    assert world.subscribe("c").code == 0
    assert world.subscribe("a", "b", "c", action="COMPLETE_ADD", client="d").code == 2018


def test_a_client_that_does_not_come_back_loses_them(world):
    world.subscribe("a", client="c")
    world.run(100_000)
    world.subscribe("a", client="d", action="COMPLETE_ADD")
    world.run(90_000)
    world.lite.registry.expire()
    assert (mine(world, "c"), mine(world, "d")) == (None, ["a"])


@pytest.mark.parametrize(("option", "got"), OPTIONS)
def test_a_subscription_says_where_the_group_begins(world, option, got):
    times = []
    for n in range(5):
        times.append(world.clock.now_ms())
        world.send("a", b"%d" % n)
        world.clock.advance(1_000)
    world.broker.offsets.commit("lite", "%LMQ%$parent$a", 0, 4)
    if option and option["type"] == "TIMESTAMP":
        option = {**option, "value": times[option["value"]]}
    world.subscribe("a", offsetOption=option)
    assert bodies(world.pop()) == got


def test_a_subscriber_may_go_back(world):
    world.subscribe("a")
    world.send("a", b"1")
    world.ack(world.pop()[0])
    world.subscribe("a", offsetOption={"type": "POLICY", "value": 1})
    assert bodies(world.pop()) == [b"1"]


def test_a_client_without_lite_topics_takes_no_memory(world):
    world.subscribe(action="COMPLETE_ADD")
    world.subscribe()
    assert mine(world) is None


def test_an_exclusive_group_has_one_subscriber(open_world):
    world = open_world()
    world.topic()
    world.group(sub_model="Exclusive", sub_reset_offset_exclusive="true")
    world.subscribe("a", "b", client="c")
    world.send("a", b"1")
    one, = world.pop("c")
    world.ack(one)
    world.subscribe("a", client="d")
    assert (mine(world, "c"), mine(world, "d")) == (["b"], ["a"])
    said, = world.channel("c").sent
    assert (said.code, said.ext, said.is_oneway) == (
        200_073, {"liteTopic": "a", "consumerGroup": "lite", "clientId": "c"}, True)
    assert bodies(world.pop("d")) == [b"1"]  # from the start, as the group says
    world.subscribe("a", client="d")
    assert (mine(world, "d"), len(world.channel("d").sent)) == (["a"], 0)


def test_a_client_that_lost_a_lite_topic_does_not_get_it_back_with_its_full_subscription(open_world):
    """The notification may be lost, and a client repeats its full subscription every 30 s."""
    world = open_world()
    world.topic()
    world.group(sub_model="Exclusive")
    world.subscribe("a", "b", client="c", action="COMPLETE_ADD")
    world.send("a", b"1")  # an event for c, which it does not take in time
    world.subscribe("a", client="d")
    world.channel("c").sent.clear()
    world.subscribe("a", "b", client="c", action="COMPLETE_ADD")
    assert (mine(world, "c"), mine(world, "d")) == (["b"], ["a"])
    said, = world.channel("c").sent
    assert (said.code, said.ext["liteTopic"], said.ext["clientId"]) == (200_073, "a", "c")
    assert world.pop("c") == []
    assert bodies(world.pop("d")) == [b"1"]
    world.subscribe("b", client="c", action="COMPLETE_ADD")  # it knows now
    world.channel("c").sent.clear()
    world.subscribe("a", "b", client="c", action="COMPLETE_ADD")  # and subscribes again
    assert (mine(world, "c"), len(world.channel("c").sent)) == (["a", "b"], 0)


@pytest.mark.parametrize("how", ["takes it back", "gives it up", "goes", "the Lite topic is deleted"])
def test_what_a_client_lost_is_forgotten(open_world, how):
    world = open_world()
    world.topic()
    world.group(sub_model="Exclusive")
    world.subscribe("a", client="c")
    world.subscribe("a", client="d")
    registry, queue = world.lite.registry, "%LMQ%$parent$a"
    assert registry.is_evicted("c", queue)
    assert not registry.is_evicted("d", queue)
    if how == "takes it back":
        world.subscribe("a", client="c")
        assert registry.is_evicted("d", queue)
    elif how == "gives it up":
        world.subscribe("a", client="c", action="PARTIAL_REMOVE")
    elif how == "goes":
        world.subscribe(client="c", action="COMPLETE_REMOVE")
    else:
        registry.forget_queues({queue})
    assert not registry.is_evicted("c", queue)


def notify(world, client="c", **changes):
    return world.ask(world.inspect.notification, {
        "consumerGroup": "lite", "topic": "parent", "queueId": -1, "pollTime": 15_000, "bornTime": world.clock.now_ms(),
        "isLiteConsumer": "true", "clientId": client, **changes}, code=200_054, client=client)


def test_a_notification_says_whether_a_client_has_messages(world):
    world.subscribe("a", client="c")
    world.subscribe("b", client="d")
    world.send("a", b"1")
    answer = notify(world, pollTime=0)
    assert (answer.code, answer.ext["hasMsg"]) == (0, "true")
    assert bodies(world.pop("c")) == [b"1"]  # a notification takes nothing
    assert notify(world, pollTime=0).ext["hasMsg"] == "false"
    assert notify(world, "d", pollTime=0).ext["hasMsg"] == "false"
    assert notify(world, consumerGroup="none").code == 26
    assert notify(world, topic="none").code == 17


def test_a_notification_waits_for_a_message(world):
    world.subscribe("a", client="c")
    assert notify(world) is None
    assert len(world.lite.service.notifications) == 1
    world.send("a", b"1")
    answer, = world.channel("c").sent
    assert answer.ext["hasMsg"] == "true"
    assert len(world.lite.service.notifications) == 0
    assert bodies(world.pop("c")) == [b"1"]
    world.channel("c").sent.clear()
    assert notify(world, pollTime=2_000) is None
    world.run(2_000)
    assert world.channel("c").sent[0].ext["hasMsg"] == "false"
    assert notify(world) is None
    assert len(world.lite.release_all()) == 1


def test_an_unsubscription_may_reset_the_offset(open_world):
    world = open_world()
    world.topic()
    world.group(sub_reset_offset_unsubscribe="true")
    world.send("a", b"1")
    world.subscribe("a")
    world.ack(world.pop()[0])
    world.subscribe("a", action="PARTIAL_REMOVE")
    world.subscribe("a")
    assert bodies(world.pop()) == [b"1"]


def test_a_wildcard_group_gets_all_lite_topics(open_world):
    world = open_world()
    world.topic()
    world.group(sub_wildcard="true")
    world.send("before", b"1")
    assert world.subscribe("a").code == 604
    assert world.subscribe(action="COMPLETE_ADD").code == 0
    assert mine(world) == ["parent@lite"]
    world.send("after", b"2")
    assert bodies(world.pop()) == [b"2"]
    world.run(5_500)
    world.lite.dispatcher.scan()
    world.turn()
    assert bodies(world.pop()) == [b"1"]
    world.subscribe(action="COMPLETE_REMOVE")
    world.send("after", b"3")
    assert (world.pop(), world.lite.registry.members("%LMQ%$parent$after")) == ([], {})


def test_events_of_a_client_that_does_not_pop_go_to_another(world):
    world.subscribe("a", client="c")
    world.send("a", b"1")
    world.subscribe("a", client="d")
    world.lite.dispatcher.next_event("d")
    world.run(10_500)
    world.lite.dispatcher.scan()
    assert bodies(world.pop("d")) == [b"1"]
    assert world.pop("c") == []


def test_events_of_a_client_that_leaves_go_to_another(world):
    world.subscribe("a", client="c")
    world.send("a", b"1")
    world.subscribe("a", client="d")
    world.lite.dispatcher.next_event("d")
    world.subscribe(action="COMPLETE_REMOVE", client="c")
    assert bodies(world.pop("d")) == [b"1"]


def test_a_client_with_too_many_events_is_looked_at_later(open_world):
    world = open_world(max_client_event_count=10)
    world.topic()
    world.group()
    names = [f"t{n:02}" for n in range(14)]
    world.subscribe(*names)
    for name in names:
        world.send(name, name.encode())
    got = world.pop()
    assert len(got) == 10
    for one in got:
        world.ack(one)
    world.run(9_500)
    world.pop()
    world.run(1_000)
    world.lite.dispatcher.scan()
    got += world.pop()
    assert set(bodies(got)) == {name.encode() for name in names}


def test_a_lite_topic_belongs_to_the_broker_that_its_name_is_for(world):
    world.broker.name_servers.route = lambda topic: {"queueDatas": [
        {"brokerName": name, "perm": 6, "readQueueNums": 4, "writeQueueNums": 4} for name in ("broker-b", "broker-a")]}
    names = [f"n{n}" for n in range(40)]
    ours = [name for name in names if consistent_hash(java_string_hash(name), 8) < 4]
    assert 0 < len(ours) < len(names)
    world.subscribe(*names)
    assert mine(world) == sorted(ours)
    other = next(name for name in names if name not in ours)
    world.send(other)
    world.subscribe(other)
    assert other in mine(world)
