"""Lite subscriptions belong to the user and the group of their client: what others name changes nothing."""

from __future__ import annotations

import copy
import json

import pytest
from broker_kit import use_control
from people import People

MEMBER = ("Topic:parent", "Pub,Sub"), ("Group:lite", "Sub"), ("Group:more", "Sub")
ACTIONS = ["PARTIAL_ADD", "PARTIAL_REMOVE", "COMPLETE_ADD", "COMPLETE_REMOVE"]


@pytest.fixture
def owned(world):
    """Ann's client ``c`` of the group ``lite`` has the Lite topics a and b; the group has consumed a message of a."""
    world.group("more", sub_reset_offset_unsubscribe="true")
    world.group(sub_reset_offset_unsubscribe="true")
    use_control(world.broker, People(ann=MEMBER, mallory=MEMBER).control)
    world.connect()
    world.user = "ann"
    assert world.subscribe("a", "b").code == 0
    world.send("a", b"1")
    world.send("a", b"2")
    world.ack(world.pop(maxMsgNum=1)[0])
    assert world.offset("a") == 1
    return world


def state(world):
    registry, ids = world.lite.registry, world.broker.clients.ids
    return copy.deepcopy((
        {client: (one.group, one.topic, one.queues) for client, one in registry._clients.items()},
        {queue: list(members) for queue, members in registry._of_queue.items()}, registry._evicted, registry.count,
        sorted(world.broker.offsets.entries()), {name: ids.user_of(name) for name in ("c", "d")}))


@pytest.mark.parametrize("group", ["lite", "more"])
@pytest.mark.parametrize("action", ACTIONS)
def test_a_subscription_of_another_user_is_not_touched(owned, action, group):
    before, owned.user = state(owned), "mallory"
    answer = owned.subscribe("a", action=action, group=group, offsetOption={"type": "POLICY", "value": 1})
    assert (answer.code, answer.remark) == (16, "client c is one of another user")
    assert state(owned) == before
    owned.user = "ann"
    assert [one.body for one in owned.pop()] == [b"2"]


@pytest.mark.parametrize("action", ACTIONS)
def test_a_subscription_of_another_group_is_not_touched(owned, action):
    before = state(owned)
    assert owned.subscribe("a", action=action, group="more").code == 604
    assert state(owned) == before


def test_nothing_of_a_request_is_done_if_one_of_its_clients_is_another_user_s(owned):
    before, owned.user = state(owned), "mallory"
    entries = [{"action": "COMPLETE_ADD", "clientId": client, "group": "lite", "topic": "parent", "liteTopicSet": ["a"]}
               for client in ("d", "c")]
    body = json.dumps({"subscriptionSet": entries}).encode()
    assert owned.ask(owned.lite.subscriptions.change, {}, body, 200_071, "d").code == 16
    assert state(owned) == before


def test_events_of_another_user_s_client_are_not_popped(owned):
    owned.user = "mallory"
    assert owned.pop_answer("c").code == 16
    notification = {"clientId": "c", "consumerGroup": "lite", "topic": "parent", "queueId": 0, "pollTime": 0,
                    "bornTime": owned.clock.now_ms(), "isLiteConsumer": "true"}
    assert owned.ask(owned.inspect.notification, notification, code=200_054, client="m").code == 16
    owned.user = "ann"
    assert [one.body for one in owned.pop()] == [b"2"]


def test_a_client_id_belongs_to_its_user_while_it_has_lite_topics(owned):
    owned.user = "mallory"
    assert owned.subscribe("a", client="d").code == 0
    owned.subscribe(client="d", action="COMPLETE_REMOVE")
    owned.user = "ann"
    assert owned.subscribe("a", client="d").code == 0
    owned.broker.clients.ids.closed(owned.channel("d"))
    assert owned.broker.clients.ids.user_of("d") == "ann"
    owned.run(1_000_000, 100_000)
    owned.lite.registry.expire()
    assert owned.broker.clients.ids.user_of("d") is None


def test_a_client_without_lite_topics_reserves_no_id(owned):
    owned.user = "mallory"
    for action in ("COMPLETE_ADD", "PARTIAL_ADD", "PARTIAL_REMOVE", "COMPLETE_REMOVE"):
        assert owned.subscribe(client="free", action=action).code == 0
    assert owned.broker.clients.ids.user_of("free") is None


def test_requests_about_a_client_are_about_the_group_that_they_name(owned):
    """The permission was checked for that group."""
    inspect = owned.lite.inspect
    answer = owned.ask(inspect.client_info, {"parentTopic": "parent", "group": "more", "clientId": "c"}, code=200_077)
    found = json.loads(answer.body)
    assert (found["liteTopicCount"], found.get("liteTopicSet"), found["lastAccessTime"]) == (-1, None, -1)
    owned.pop()
    assert owned.ask(inspect.trigger, {"group": "more", "clientId": "c"}, code=200_079).code == 0
    events = owned.lite.dispatcher._events.get("c")
    assert events is None or events.group == "lite"
    owned.subscribe("z", client="other")
    owned.lite.dispatcher._events.pop("other", None)
    owned.send("z")
    owned.lite.dispatcher._events.pop("other", None)
    owned.ask(inspect.trigger, {"group": "more", "clientId": "other"}, code=200_079)
    assert "other" not in owned.lite.dispatcher._events
