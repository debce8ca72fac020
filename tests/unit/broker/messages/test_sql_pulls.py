"""Pulls with SQL92 expressions: of the request, of a group's heartbeat, held, and what is refused."""

from __future__ import annotations

import asyncio
import json

import pytest
from broker_kit import clients_of

from tailrace import Message, MessageStore
from tailrace.broker import wiring
from tailrace.config import BrokerConfig
from tailrace.env.clock import SystemClock
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import RefusalError
from tailrace.filters import compilation, consumer_filters
from tailrace.filters.consumer_filters import ConsumerFilterManager
from tailrace.filters.message_filters import MessageFilter, MessageFilters
from tailrace.filters.subscriptions import SubscriptionData
from tailrace.formats.commitlog import decode_message
from tailrace.formats.remoting import ResponseCode
from tailrace.formats.requests.message_headers import PullSysFlag
from tailrace.node.store_opening import StoreParts
from tailrace.node.topic_config import TopicConfig

CONFIG = BrokerConfig(enable_property_filter=True, filter_support_retry=True)
RETRY = "%RETRY%g"


@pytest.fixture
def real_store(tmp_path):
    with MessageStore.open(tmp_path / "real", parts=StoreParts(services=False)) as made:
        made.put_many([
            Message(topic="orders", body=b"%d" % n, properties={"price": str(n)}) for n in range(100)])
        made.wait_dispatched()
        yield made


@pytest.fixture
def made_broker(real_store, loop, kit):
    return enabled(real_store, loop, kit)


def enabled(store, loop, kit, config=CONFIG):
    """A broker with expressions, its pulls and its clients."""
    made = kit.make_broker(store, loop, config, SystemClock())
    made.topics.update(TopicConfig(topic_name="orders"))
    made.topics.update(TopicConfig(topic_name=RETRY, read_queue_nums=1, write_queue_nums=1))
    made.groups.find_or_create("g")
    return made, kit.served(wiring.pulls(made)), kit.served(clients_of(made))


def ext(**changes):
    return {
        "consumerGroup": "g", "topic": "orders", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
        "sysFlag": str(PullSysFlag.SUBSCRIPTION), "commitOffset": "0", "suspendTimeoutMillis": "15000",
        "subscription": "price > 95", "subVersion": "0", "expressionType": "SQL92", **changes,
    }


def bodies(answer):
    found, at, body = [], 0, bytes(answer.body)
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        found.append(bytes(decode_message(body[at : at + size]).body))
        at += size
    return found


def beat(clients, kit, channel, subscription, version, kind="SQL92", topic="orders"):
    """A heartbeat of group g with one subscription, or with those of a list."""
    found = subscription if isinstance(subscription, list) else [
        {"topic": topic, "subString": subscription, "subVersion": version, "expressionType": kind}]
    body = json.dumps({
        "clientID": "c1", "producerDataSet": [], "heartbeatFingerprint": 0, "consumerDataSet": [
            {"groupName": "g", "messageModel": "CLUSTERING", "subscriptionDataSet": found}]}).encode()
    return clients.heartbeat(channel, kit.request(34, body=body))


def test_a_pull_gets_what_its_own_expression_keeps(made_broker, channel, kit):
    _, pulls, _ = made_broker
    answer = kit.decoded(pulls.pull(channel, kit.request(11, ext())))
    assert answer.code == ResponseCode.SUCCESS
    assert bodies(answer) == [b"96", b"97", b"98", b"99"]
    assert answer.ext["nextBeginOffset"] == "100"
    answer = kit.decoded(pulls.pull(channel, kit.request(11, ext(subscription="price = 'x'"))))
    assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "100")


@pytest.mark.parametrize(("changes", "reason"), [
    ({"subscription": "price >"}, "parse the consumer's subscription failed: the expression is not complete"),
    ({"subscription": ""}, "parse the consumer's subscription failed: the expression is empty"),
    ({"subscription": "a" * (1 << 20)}, "the subscription has 1048576 characters, over the limit of 8192"),
    ({"expressionType": "SQL99"}, (
        "parse the consumer's subscription failed: the expression type SQL99 is not known; known are TAG "
        "and SQL92")),
])
def test_an_expression_that_cannot_be_compiled_is_refused(made_broker, channel, kit, changes, reason):
    _, pulls, _ = made_broker
    answer = pulls.pull(channel, kit.request(11, ext(**changes)))
    assert (answer.code, answer.remark) == (ResponseCode.SUBSCRIPTION_PARSE_FAILED, reason)


def test_without_the_setting_every_way_is_refused(real_store, loop, channel, kit):
    made, pulls, clients = enabled(real_store, loop, kit, BrokerConfig())
    refused = (ResponseCode.SYSTEM_ERROR, (
        "The broker does not support consumer to filter message by SQL92; set enablePropertyFilter=true in its "
        "settings"))
    answer = pulls.pull(channel, kit.request(11, ext()))
    assert (answer.code, answer.remark) == refused
    beat(clients, kit, channel, "price > 95", 5)
    answer = pulls.pull(channel, kit.request(11, ext(sysFlag="0", subVersion="5")))
    assert (answer.code, answer.remark) == refused
    body = json.dumps({"subscriptionData": {"expressionType": "SQL92", "subString": "a > 1"}}).encode()
    answer = clients.check_client_config(channel, kit.request(46, body=body))
    assert (answer.code, answer.remark) == refused


def test_a_subscription_can_be_checked_beforehand(made_broker, channel, kit):
    _, _, clients = made_broker

    def check(**subscription):
        body = json.dumps({"clientId": "c", "group": "g", "subscriptionData": subscription}).encode()
        answer = clients.check_client_config(channel, kit.request(46, body=body))
        return answer.code, answer.remark

    assert check(expressionType="SQL92", subString="a > 1") == (0, None)
    assert check(subString="a > ") == (0, None)  # by tags
    for text in ("a > ", "", "a > 'x'", "a" * 100_000, None):
        code, remark = check(expressionType="SQL92", subString=text)
        assert code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert remark.startswith("parse the consumer's subscription failed: ")


def test_a_pull_relies_on_the_heartbeat_of_its_group(made_broker, channel, kit):
    _, pulls, clients = made_broker

    def pull(version):
        answer = kit.decoded(pulls.pull(
            channel, kit.request(11, ext(sysFlag="0", subVersion=str(version), subscription=""))))
        return answer.code, bodies(answer) if answer.code == 0 else answer.remark

    beat(clients, kit, channel, "price > 98", 5)
    assert pull(5) == pull(0) == (0, [b"99"])
    beat(clients, kit, channel, "price > ", 6)
    assert pull(6) == (
        ResponseCode.FILTER_DATA_NOT_EXIST,
        "The broker's consumer filter data is not exist!Your expression may be wrong!")
    beat(clients, kit, channel, "price < 2", 7)
    assert pull(7) == (0, [b"0", b"1"])
    assert pull(8)[0] == ResponseCode.SUBSCRIPTION_NOT_LATEST


def test_filter_data_that_is_older_than_the_pull_is_named(made_broker, channel, kit, monkeypatch):
    made, pulls, clients = made_broker
    beat(clients, kit, channel, "price > 98", 5)
    made.clients.consumers.find("g").subscriptions["orders"].sub_version = 9
    answer = pulls.pull(channel, kit.request(11, ext(sysFlag="0", subVersion="9")))
    assert (answer.code, answer.remark) == (
        ResponseCode.FILTER_DATA_NOT_LATEST, "the consumer's consumer filter data not latest")


def test_a_retry_topic_is_filtered_as_the_topic_of_the_message(made_broker, real_store, channel, kit):
    made, pulls, clients = made_broker
    for topic, price in (("orders", 5), ("orders", 50), ("others", 5), (None, 5)):
        origin = {"RETRY_TOPIC": topic} if topic else {}
        real_store.put(Message(topic=RETRY, body=b"%s %d" % (str(topic).encode(), price),
                               properties={"price": str(price), **origin}), queue_id=0)
    real_store.wait_dispatched()

    def pull():
        return bodies(kit.decoded(pulls.pull(
            channel, kit.request(11, ext(sysFlag="0", topic=RETRY, subVersion="0")))))

    retry = {"topic": RETRY, "subString": "FALSE", "subVersion": 1, "expressionType": "SQL92"}
    beat(clients, kit, channel, [
        {"topic": "orders", "subString": "price > 10", "subVersion": 1, "expressionType": "SQL92"}, retry], 1)
    assert pull() == [b"orders 50", b"others 5", b"None 5"]
    made.filters = MessageFilters(BrokerConfig(enable_property_filter=True), made.consumer_filters)
    pulls = kit.served(wiring.pulls(made))
    assert pull() == []


def test_a_filter_matches_codes():
    assert MessageFilter().matches_codes([5])
    tags = MessageFilter(frozenset({5}))
    assert (tags.matches_codes([4, 5]), tags.matches_codes([4])) == (True, False)


# -- held pulls


async def settle():
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_held_pull_is_answered_when_a_message_that_it_wants_arrives(tmp_path, channel, kit):
    async def test():
        with MessageStore.open(tmp_path / "held", parts=StoreParts(services=False)) as store:
            _, pulls, _ = enabled(store, asyncio.get_running_loop(), kit)
            store.set_message_arriving_listener(pulls.service.hold)

            def put(*prices):
                store.put_many([Message(topic="orders", body=b"%d" % p, properties={"price": str(p)})
                                for p in prices])
                store.wait_dispatched()

            put(1)
            flags = PullSysFlag.SUBSCRIPTION | PullSysFlag.SUSPEND
            fields = ext(sysFlag=str(flags), queueOffset="1", subscription="price = 7")
            assert pulls.pull(channel, kit.request(11, fields, opaque=6)) is None
            held, = pulls.service.hold
            for prices in ((2, 3), (4,), range(100, 500)):
                put(*prices)
                await settle()
                assert len(pulls.service.hold) == 1
                assert not channel.sent
            assert held.looked == 404
            put(5, 7, 8)
            await settle()
            assert len(pulls.service.hold) == 0
            answer = kit.decoded(channel.sent.pop())
            assert bodies(answer) == [b"7"]
            assert answer.ext["nextBeginOffset"] == "407"
            # More than a read looks at: the client gets on.
            fields["queueOffset"] = "407"
            assert pulls.pull(channel, kit.request(11, fields, opaque=7)) is None
            put(*range(1000, 2000))
            await settle()
            answer = kit.decoded(channel.sent.pop())
            assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
            assert int(answer.ext["nextBeginOffset"]) > 407 + 800 - 1
            store.set_message_arriving_listener(None)

    asyncio.run(test())


# -- the expressions of groups


@pytest.fixture
def manager(tmp_path, clock):
    return ConsumerFilterManager(OsFileSystem(), str(tmp_path / "config"), CONFIG, clock)


def subscribed(text, version, topic="orders", kind="SQL92"):
    return SubscriptionData(topic, text, (), version, kind)


def test_the_expression_that_counts_for_the_group_is_used_whatever_its_version(manager):
    manager.registered("g", [subscribed("a = 1", 5)])
    manager.registered("g", [subscribed("a = 2", 4)])
    assert (manager.find("orders", "g").expression, manager.find("orders", "g").client_version) == ("a = 2", 4)
    manager.registered("g", [subscribed("a = 3", 4)])
    assert manager.find("orders", "g").expression == "a = 3"
    manager.registered("g", [subscribed("a = 4", 6)])
    assert manager.find("orders", "g").expression == "a = 4"
    manager.registered("g", [subscribed("a = 4", 9)])
    assert manager.find("orders", "g").client_version == 9
    manager.registered("g", [subscribed("a = ", 10)])
    assert manager.find("orders", "g") is None


def test_what_a_group_gave_up_is_dead_and_forgotten_after_a_day(manager, clock):
    manager.registered("g", [subscribed("a = 1", 5), subscribed("a = 1", 5, "others")])
    clock.ms += 1000
    manager.registered("g", [subscribed("a = 1", 5)])
    assert [manager.find(topic, "g").is_dead for topic in ("orders", "others")] == [False, True]
    manager.gone("g")
    assert manager.find("orders", "g").is_dead
    clock.ms += CONFIG.filter_data_clean_time_span - 1
    manager.expire()
    assert manager.find("orders", "g") is not None
    manager.registered("g", [subscribed("a = 1", 5)])  # it returns
    clock.ms += 1
    manager.expire()
    assert manager.find("orders", "g").dead_time == 0
    assert manager.find("others", "g") is None


def test_the_file_is_read_back_with_every_group_dead(manager, tmp_path, clock):
    manager.registered("g", [subscribed("a = 1", 5), subscribed("b = 'x'", 5, "others")])
    manager.persist_if_changed()
    manager.persist_if_changed()
    assert manager.writes == 1
    clock.ms += 3_600_000
    again = ConsumerFilterManager(OsFileSystem(), str(tmp_path / "config"), CONFIG, clock)
    assert again.load()
    found = again.find("others", "g")
    assert (found.expression, found.client_version, found.dead_time) == ("b = 'x'", 5, clock.ms - 30_000)
    assert found.compiled.matches(["x"])
    again.registered("g", [subscribed("a = 1", 5)])
    assert not again.find("orders", "g").is_dead
    disabled = ConsumerFilterManager(OsFileSystem(), str(tmp_path / "config"), BrokerConfig(), clock)
    assert not disabled.load()
    disabled.registered("g", [subscribed("a = 1", 5)])
    assert disabled.find("orders", "g") is None


@pytest.mark.parametrize("entry", [
    7, {}, {"expression": 7, "expressionType": "SQL92"}, {"expression": "a = 1"},
    {"expression": "a = 1", "expressionType": "SQL92", "bornTime": "x"},
])
def test_an_odd_entry_of_the_file_is_ignored(manager, entry):
    good = {"expression": "a = 1", "expressionType": "SQL92", "bornTime": 3, "clientVersion": 4}
    manager._decode({"filterDataByTopic": {
        "t": {"groupFilterData": {"odd": entry, "good": good}}, "u": 7, "v": {"groupFilterData": 7}}})
    assert manager.find("t", "odd") is None
    assert manager.find("t", "good").client_version == 4


def test_expressions_are_bounded_and_dead_ones_make_way(manager, clock, monkeypatch):
    monkeypatch.setattr(consumer_filters, "ENTRIES_MAX", 3)
    for number in range(3):
        manager.registered(f"g{number}", [subscribed("a = 1", 1)])
        clock.ms += 1
    manager.registered("more", [subscribed("a = 1", 1)])
    assert manager.find("orders", "more") is None
    for group in ("g2", "g1"):
        manager.gone(group)
        clock.ms += 1
    manager.registered("more", [subscribed("a = 1", 1)])
    assert [manager.find("orders", g) is not None for g in ("g0", "g1", "g2", "more")] == [
        True, True, False, True]
    monkeypatch.setattr(consumer_filters, "CHARACTERS_MAX", 16)
    manager.registered("g3", [subscribed("a = 1", 1)])
    assert manager.find("orders", "g1") is None
    manager.registered("g4", [subscribed("a = 1", 1)])
    assert manager.find("orders", "g4") is None


def test_long_expressions_of_a_heartbeat_and_of_a_check_are_compiled_beside_the_event_loop(
    made_broker, channel, kit, loop, monkeypatch
):
    broker, _, clients = made_broker
    text = " or ".join(f"price = {n}" for n in range(2000, 2300))
    where, real = [], compilation._compile

    def compiled(one, *more):
        where.append((one, asyncio._get_running_loop() is not None))
        return real(one, *more)

    monkeypatch.setattr(compilation, "_compile", compiled)

    async def ask(serve, request):
        sent = len(channel.sent)
        assert serve(channel, request) is None
        while len(channel.sent) == sent:
            await asyncio.sleep(0.001)
        return channel.sent[-1].code

    check = {"subscriptionData": {"topic": "orders", "expressionType": "SQL92", "subString": f"{text} or a = 1"}}
    beat = {"clientID": "c", "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [
        {"topic": "orders", "expressionType": "SQL92", "subString": text, "subVersion": 1}]}]}
    for serve, code, value in ((clients.check_client_config, 46, check), (clients.heartbeat, 34, beat)):
        where.clear()
        request = kit.request(code, body=json.dumps(value).encode())
        assert loop.run_until_complete(asyncio.wait_for(ask(serve, request), 60)) == 0
        assert where[0][1] is False
    assert broker.filters._consumer_filters.find("orders", "g").compiled is not None


def test_more_expressions_than_are_remembered_are_refused(loop):
    texts = [f"a = {n} or " + "a = 1 or " * 800 + "a = 2" for n in range(40)]

    async def prepare():
        with pytest.raises(RefusalError, match="characters, over the limit of 65536 for one request") as refused:
            compilation.prepare_sql(texts)
        assert refused.value.code == 23

    loop.run_until_complete(prepare())


def test_a_broker_that_filters_loads_the_parser_as_it_starts_and_others_when_it_is_needed(loop, tmp_path, monkeypatch):
    loaded = []
    monkeypatch.setattr(compilation, "_parser_is_loaded", lambda: bool(loaded))
    monkeypatch.setattr(compilation, "_remembered", compilation._Remembered())
    filters = ConsumerFilterManager(OsFileSystem(), str(tmp_path), CONFIG, SystemClock())

    async def start():
        MessageFilters(CONFIG, filters)
        with pytest.raises(RefusalError, match="wait to be compiled"):
            compilation.compile_sql("never_seen = 1")
        loaded.append(1)
        compilation.compile_sql("never_seen = 1")

    loop.run_until_complete(start())
