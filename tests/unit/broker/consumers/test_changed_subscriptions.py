"""A subscription that changes is taken, and members with different subscriptions are named."""

from __future__ import annotations

import pytest
from broker_kit import clients_of

from tailrace.broker import wiring
from tailrace.broker.consumers.consumer_checks import read_heartbeat
from tailrace.config import BrokerConfig
from tailrace.env import OsFileSystem
from tailrace.filters.consumer_filters import ConsumerFilterManager
from tailrace.filters.message_filters import MessageFilters
from tailrace.formats import fastjson
from tailrace.node.topic_config import TopicConfig

PHRASE = "members of a group have different subscriptions"
CONFIG = BrokerConfig(enable_property_filter=True)


@pytest.fixture
def broker(store, loop, kit):
    made = kit.make_broker(store, loop, CONFIG)
    made.topics.update(TopicConfig(topic_name="orders"))
    made.groups.find_or_create("g")
    return made


@pytest.fixture
def beat(broker, kit):
    served = kit.served(clients_of(broker))

    def beats(channel, client, version, /, **topics):
        data = [{"topic": topic, "subString": text, "subVersion": version,
                 "expressionType": "SQL92" if "=" in text else "TAG"} for topic, text in topics.items()]
        request = kit.request(34, {}, body=fastjson.dumps({
            "clientID": client, "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": data}]}))
        assert read_heartbeat(request).client_id == client
        broker.topics.create_if_missing("%RETRY%g", 1)
        assert served.heartbeat(channel, request).code == 0
    return beats


@pytest.fixture
def counts(broker):
    return lambda: {topic: one.sub_string for topic, one in broker.clients.consumers.find("g").subscriptions.items()}


@pytest.fixture
def lines(caplog):
    return lambda: [one.split(" group=g ")[1] for one in caplog.messages if one.startswith(PHRASE)]


def test_a_member_whose_clock_stepped_back_changes_its_expression(beat, channel, counts, lines, kit, broker):
    beat(channel, "c1", 9_000, orders="a")
    beat(channel, "c1", 5_000, orders="b")
    assert counts() == {"orders": "b"}
    beat(channel, "c1", 5_000, orders="c")
    assert counts() == {"orders": "c"}
    beat(channel, "c1", 4_000, orders="a = 1")
    assert counts() == {"orders": "a = 1"}
    beat(channel, "c1", 3_000, orders="a = 2")
    assert broker.filters._consumer_filters.find("orders", "g").expression == "a = 2"
    pull = kit.served(wiring.pulls(broker)).pull
    answer = pull(channel, kit.request(11, {
        "consumerGroup": "g", "topic": "orders", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "0",
        "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "3000", "expressionType": "SQL92"}))
    assert answer.code == 19  # and not that its filter is unknown or too old
    assert lines() == []


@pytest.mark.parametrize("version", [4_000, 6_000])
def test_two_members_with_different_expressions_are_named_once(beat, kit, counts, lines, version):
    first, second = kit.FakeChannel(), kit.FakeChannel()
    beat(first, "c1", 5_000, orders="a")
    beat(second, "c2", 5_000, orders="a")
    assert lines() == []
    for _ in range(3):
        beat(second, "c3", version, orders="b || c")
        beat(first, "c1", 5_000, orders="a")
    chosen = "a" if version < 5_000 else "b || c"
    assert counts() == {"orders": chosen}
    assert lines() == [
        f"topic=orders client=c3 subscription=b || c other_client=c1 other_subscription=a counts={chosen}"]
    beat(first, "c1", 7_000, orders="b || c")
    beat(second, "c3", 8_000, orders="d")
    assert len(lines()) == 2


def test_two_members_with_different_topics_are_named(beat, kit, lines):
    first, second = kit.FakeChannel(), kit.FakeChannel()
    beat(first, "c1", 5_000, orders="*")
    beat(second, "c2", 5_000, orders="*", others="*")
    assert lines() == ["topic=others client=c2 subscription=* other_client=c1 other_subscription=- counts=*"]
    beat(first, "c1", 5_000, orders="*")
    beat(second, "c2", 5_000, orders="*")
    assert len(lines()) == 1


def test_one_member_that_changes_its_topics_is_alone(beat, channel, counts, lines):
    beat(channel, "c1", 5_000, orders="*")
    beat(channel, "c1", 5_000, others="*")
    assert counts() == {"others": "*"}
    assert lines() == []


def test_an_expression_of_the_file_does_not_outlive_a_change_by_its_group(broker, beat, channel, store):
    beat(channel, "c1", 9_000, orders="a = 1")
    manager = broker.filters._consumer_filters
    manager.persist_if_changed()
    loaded = ConsumerFilterManager(OsFileSystem(), store.config_dir, CONFIG, store.clock)
    loaded.load()
    broker.clients.consumers._listener = loaded
    broker.filters = MessageFilters(CONFIG, loaded)
    broker.clients.consumers.closed(channel)
    assert loaded.find("orders", "g").client_version == 9_000
    beat(channel, "c1", 5_000, orders="a = 2")
    assert loaded.find("orders", "g").expression == "a = 2"
    assert loaded.to_json()["filterDataByTopic"]["orders"]["groupFilterData"]["g"]["clientVersion"] == 5_000
