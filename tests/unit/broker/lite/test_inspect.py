"""What admin tools see of Lite topics: requests 200074 to 200079."""

from __future__ import annotations

import json

import pytest
from people import People

from tailrace.observe.exposition import Exposition


@pytest.fixture
def used(world):
    """Two Lite topics; the group has consumed one of two messages of ``a``, and has popped ``b``."""
    world.subscribe("a", "b")
    for name in "aba":
        world.send(name)
        world.clock.advance(1_000)
    for one in world.pop():
        if one.message.properties["INNER_MULTI_QUEUE_OFFSET"] == "0" and one.message.properties["__LITE_TOPIC"] == "a":
            world.ack(one)
    return world


def told(world, code, **fields):
    inspect = world.lite.inspect
    serve = {200_074: inspect.broker_info, 200_075: inspect.parent_info, 200_076: inspect.topic_info,
             200_077: inspect.client_info, 200_078: inspect.group_info, 200_079: inspect.trigger}[code]
    answer = world.ask(serve, fields, code=code)
    return (json.loads(answer.body) if answer.body else None) if not answer.code else (answer.code, answer.remark)


def test_the_broker(used):
    assert told(used, 200_074) == {
        "cqTableSize": 3, "currentLmqNum": 2, "eventMapSize": 1, "groupMeta": {"parent": ["lite"]},
        "liteSubscriptionCount": 2, "maxLmqNum": 20_000, "offsetTableSize": 2, "orderInfoCount": 2,
        "storeType": "default", "topicMeta": {"parent": -1}}


def test_a_parent_topic(used):
    assert told(used, 200_075, topic="parent") == {
        "groups": ["lite"], "liteTopicCount": 2, "lmqNum": 2, "topic": "parent", "ttl": -1}
    used.topic("plain", "")
    assert told(used, 200_075, topic="plain") == (29, "Topic [plain] type not match.")
    assert told(used, 200_075, topic="none") == (17, "Topic [none] not exist.")


def test_a_lite_topic(used):
    found = told(used, 200_076, parentTopic="parent", liteTopic="a")
    assert found.pop("topicOffset") == {
        "lastUpdateTimestamp": used.clock.now_ms() - 1_000, "maxOffset": 2, "minOffset": 0}
    assert found == {
        "liteTopic": "a", "parentTopic": "parent", "shardingToBroker": True,
        "subscriber": [{"clientId": "c", "group": "lite"}]}
    assert told(used, 200_076, parentTopic="parent", liteTopic="z")["topicOffset"] == {
        "lastUpdateTimestamp": 0, "maxOffset": 0, "minOffset": 0}


def test_subscribers_of_a_wildcard_group_have_no_names(used):
    used.group("all", sub_wildcard="true")
    used.subscribe(client="d", group="all", action="COMPLETE_ADD")
    assert told(used, 200_076, parentTopic="parent", liteTopic="a")["subscriber"] == [
        {"clientId": "c", "group": "lite"}, {"clientId": "*", "group": "all"}]


def test_a_client(used):
    assert told(used, 200_077, parentTopic="parent", group="lite", clientId="c") == {
        "clientId": "c", "group": "lite", "lastAccessTime": used.clock.now_ms(), "lastConsumeTime": 0,
        "liteTopicCount": 2, "liteTopicSet": ["%LMQ%$parent$a", "%LMQ%$parent$b"], "parentTopic": "parent"}
    assert len(told(used, 200_077, parentTopic="parent", group="lite", clientId="c", maxCount=1)["liteTopicSet"]) == 1
    assert told(used, 200_077, parentTopic="parent", group="lite", clientId="z")["liteTopicCount"] == -1
    used.group("other", "other")
    assert told(used, 200_077, parentTopic="parent", group="other", clientId="c") == (
        29, "Subscription [other]-[parent] not match.")


def test_a_group(used):
    now = used.clock.now_ms()
    a, b = ({"earliestUnconsumedTimestamp": now - ms, "lagCount": 1, "liteTopic": name}
            for name, ms in (("a", 1_000), ("b", 2_000)))
    assert told(used, 200_078, group="lite", topK=5) == {
        "earliestUnconsumedTimestamp": now - 2_000, "group": "lite", "lagCountTopK": [a, b],
        "lagTimestampTopK": [b, a], "parentTopic": "parent", "totalLagCount": 2}
    assert told(used, 200_078, group="lite", liteTopic="a") == {
        "earliestUnconsumedTimestamp": now - 1_000, "group": "lite", "liteTopic": "a", "liteTopicOffsetWrapper": {
            "brokerOffset": 2, "consumerOffset": 1, "lastTimestamp": now - 3_000, "pullOffset": 0},
        "parentTopic": "parent", "totalLagCount": 1}
    assert told(used, 200_078, group="lite", liteTopic="z")["totalLagCount"] == -1
    assert told(used, 200_078, group="TOOLS_CONSUMER") == (29, "Group [TOOLS_CONSUMER] is not a LITE group.")


def test_a_group_that_is_bound_to_a_topic_of_others_does_not_show_it(used):
    """Whoever may create a group chooses the parent topic of the group."""
    used.broker.records._control = People(
        mallory=[("Group:lite", "Get")], reader=[("Group:lite", "Get"), ("Topic:parent", "Sub")]).control
    for used.user, fields in (("mallory", {"topK": 5}), ("mallory", {"liteTopic": "a"})):
        code, remark = told(used, 200_078, group="lite", **fields)
        assert (code, "no permission to access Topic:parent" in remark) == (16, True)
    used.user = "reader"
    assert told(used, 200_078, group="lite", topK=5)["totalLagCount"] == 2


def test_a_dispatch_by_hand_finds_messages_again(world):
    world.subscribe("a", "b")
    for name in "ab":
        world.send(name)
    while world.lite.dispatcher.next_event("c") is not None:
        pass
    assert world.pop() == []
    assert told(world, 200_079, group="lite", clientId="c") is None
    assert len(world.pop()) == 2
    assert told(world, 200_079, group="none") == (26, "Group [none] not exist.")


def test_metrics_have_the_lag_by_the_parent_topic(used):
    exposition = Exposition("c", "b")
    exposition.broker = used.broker
    lines = [line for line in exposition.text().decode().splitlines() if "%LMQ%$" in line or "lag_messages{" in line]
    assert len(lines) == 1
    assert 'topic="parent"' in lines[0]
    assert lines[0].endswith(" 2.0")
