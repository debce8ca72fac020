"""Admin requests, and look-ups in the store."""

from __future__ import annotations

import asyncio
import json

import pytest
from broker_kit import admin_of, clients_of, wired

from tailrace import __version__
from tailrace.broker import wiring
from tailrace.broker.admin.group_offsets import GroupOffsetsProcessor
from tailrace.broker.messages.query import QueryProcessor
from tailrace.env import OsFileSystem
from tailrace.errors import MessageIllegalError, RemotingConnectError, RemotingTimeoutError
from tailrace.formats import fastjson
from tailrace.formats.commitlog import decode_message
from tailrace.model import MessageExtBrokerInner
from tailrace.node.subscription_group import SubscriptionGroupConfig
from tailrace.node.topic_config import TopicConfig


@pytest.fixture
def topics(broker, kit):
    return kit.served(admin_of(broker))


@pytest.fixture
def admin(broker, kit):
    return kit.served(wiring.admin(broker))


def put(store, body=b"x", topic="orders", properties=b"KEYS\x01k1 k2\x02UNIQ_KEY\x01U\x02TAGS\x01t\x02"):
    store.put_inner(MessageExtBrokerInner(topic, 0, body, properties))


def topic_ext(topic="orders", **more):
    return {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "3",
        "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false", **more,
    }


def test_a_topic_is_created_changed_shown_and_deleted(topics, kit, channel, broker, store):
    assert topics.update_topic(channel, kit.request(17, topic_ext())).code == 0
    changed = topic_ext(order="true", attributes="+message.type=FIFO")
    assert topics.update_topic(channel, kit.request(17, changed)).code == 0
    shown = json.loads(topics.topic(channel, kit.request(351, {"topic": "orders"})).body)
    assert (shown["writeQueueNums"], shown["order"]) == (3, True)
    assert shown["attributes"] == {"message.type": "FIFO"}
    put(store)
    broker.offsets.commit("g", "orders", 0, 1)
    assert topics.delete_topic(channel, kit.request(215, {"topic": "orders"})).code == 0
    assert topics.topic(channel, kit.request(351, {"topic": "orders"})).code == 17
    assert store.queues() == []
    assert broker.offsets.query("g", "orders", 0) == -1


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"topic": "TBW102"}, 29, "system topic"),
        ({"topic": "DefaultCluster"}, 29, "system topic"),
        ({"topic": "a b"}, 29, "illegal characters"),
        ({"readQueueNums": "-1"}, 29, "readQueueNums=-1"),
        ({"writeQueueNums": "99999"}, 29, "writeQueueNums=99999"),
        ({"perm": "77"}, 29, "perm=77"),
        ({"attributes": "k=v"}, 1, "add/alter attribute format is wrong: k"),
    ],
)
def test_topics_that_cannot_be_are_refused(topics, kit, channel, broker, changes, code, remark):
    answer = topics.update_topic(channel, kit.request(17, topic_ext(**changes)))
    assert answer.code == code
    assert remark in answer.remark
    assert broker.topics.select("orders") is None


def test_a_list_of_topics_is_created_as_a_whole_or_not_at_all(topics, kit, channel, broker):
    def update(*names):
        body = {"topicConfigList": [TopicConfig(topic_name=n).to_json() for n in names]}
        return topics.update_topics(channel, kit.request(18, body=json.dumps(body).encode())).code

    assert update("a", "bad name") == 29
    assert broker.topics.select("a") is None
    assert update("a", "b") == 0
    assert broker.topics.select("b") is not None


def test_attributes_of_a_list_of_topics_change_by_plus_and_minus(topics, kit, channel, broker):
    def update(**attributes):
        body = {"topicConfigList": [{"topicName": "a", "attributes": {
            k.replace("_", "."): v for k, v in attributes.items()}}]}
        answer = topics.update_topics(channel, kit.request(18, body=json.dumps(body).encode()))
        return answer.remark

    assert update(**{"+reserve_time": "5", "+message_type": "FIFO"}) is None
    assert update(**{"+reserve_time": "6"}) is None
    assert broker.topics.select("a").attributes == {"reserve.time": "6", "message.type": "FIFO"}
    assert update(**{"-message_type": ""}) is None
    assert update(reserve_time="7") == "a: add/alter attribute format is wrong: reserve.time"
    assert update(**{"+cleanup_policy": "COMPACTION"}).startswith("a: attempt to update an unchangeable attribute")
    assert broker.topics.select("a").attributes == {"reserve.time": "6"}
    body = {"topicConfigList": [{"topicName": "kept", "attributes": {"+cleanup.policy": "COMPACTION"}}]}
    assert topics.update_topics(channel, kit.request(18, body=json.dumps(body).encode())).code == 0
    assert broker.topics.compacted() == {"kept": broker.topics.select("kept").write_queue_nums}


def test_all_topics_and_groups_are_listed_with_their_version(topics, kit, channel):
    found = json.loads(topics.all_topics(channel, kit.request(21)).body)
    assert "TBW102" in found["topicConfigTable"]
    assert found["dataVersion"]["counter"] == 1
    found = json.loads(topics.all_groups(channel, kit.request(201)).body)
    assert "TOOLS_CONSUMER" in found["subscriptionGroupTable"]
    system = json.loads(topics.system_topics(channel, kit.request(305)).body)["topicList"]
    assert "TRANS_CHECK_MAX_TIME_TOPIC" in system


def test_topic_stats_have_objects_as_keys(topics, kit, channel, broker, store, clock):
    broker.topics.update(TopicConfig(topic_name="orders", read_queue_nums=2, write_queue_nums=1))
    put(store)
    body = topics.topic_stats(channel, kit.request(202, {"topic": "orders"})).body
    assert b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:' in body
    values = list(fastjson.loads(body)["offsetTable"].values())
    assert values == [
        {"lastUpdateTimestamp": clock.ms, "maxOffset": 1, "minOffset": 0},
        {"lastUpdateTimestamp": 0, "maxOffset": 0, "minOffset": 0},
    ]
    assert (fastjson.loads(body)["sizeBytes"], fastjson.loads(body)["sizeIsExact"]) == (len(store.log[0]), True)
    assert topics.topic_stats(channel, kit.request(202, {"topic": "x"})).code == 17


def test_topics_of_a_list_are_deleted_together_or_none_is(topics, kit, channel, broker):
    def delete(names, **more):
        return topics.delete_topics(channel, kit.request(5002, body=json.dumps({"topicList": names, **more}).encode()))

    for name in ("a", "b", "c"):
        topics.update_topic(channel, kit.request(17, topic_ext(name)))
        broker.offsets.commit("g", name, 0, 1)
    for names, remark in (
        ([], "The specified topic list is blank."), (None, "The specified topic list is blank."),
        (["a", " "], "The specified topic is blank."),
        (["a", "TBW102"], "The topic[TBW102] is conflict with system topic."),
    ):
        answer = delete(names)
        assert (answer.code, answer.remark) == (29, remark)
    with pytest.raises(MessageIllegalError, match=r"topicList\[1\] is a number, not text"):
        delete(["a", 5])
    assert topics.delete_topics(channel, kit.request(5002)).code == 29
    assert {"a", "b", "c"} <= set(broker.topics.table)
    answer = delete(["b", "a", "b"])
    assert answer.code == 0
    assert json.loads(answer.body)["deletedTopics"] == ["a", "b"]
    assert {"a", "b", "c"} & set(broker.topics.table) == {"c"}
    assert [broker.offsets.query("g", name, 0) for name in "abc"] == [-1, -1, 1]


@pytest.mark.parametrize("clean", [True, False])
def test_groups_of_a_list_are_deleted(topics, kit, channel, broker, clean):
    def delete(names):
        body = json.dumps({"groupNameList": names, "cleanOffset": clean}).encode()
        return topics.delete_groups(channel, kit.request(5003, body=body))

    body = json.dumps({"groupConfigList": [{"groupName": name} for name in "ghi"]}).encode()
    assert topics.update_groups(channel, kit.request(225, body=body)).code == 0
    topics.update_topic(channel, kit.request(17, topic_ext("orders")))
    for name in "ghi":
        broker.offsets.commit(name, "orders", 0, 1)
    assert (delete([]).code, delete(["g", ""]).remark) == (29, "The specified group name is blank.")
    assert broker.groups.select("g") is not None
    answer = delete(["h", "g", "h", "unknown"])
    assert answer.code == 0
    kept = json.loads(answer.body)["kept"]
    assert kept == ([] if clean else ["the offsets of h, g, unknown, because cleanOffset is false"])
    assert [broker.groups.select(name) is None for name in "ghi"] == [True, True, False]
    assert [broker.offsets.query(name, "orders", 0) for name in "ghi"] == ([-1, -1, 1] if clean else [1, 1, 1])


class Walked(dict):
    """A table that counts how often it is walked."""

    walks = 0

    def __iter__(self):
        Walked.walks += 1
        return super().__iter__()

    def items(self):
        Walked.walks += 1
        return super().items()


@pytest.mark.parametrize(("code", "member"), [(5002, "topicList"), (5003, "groupNameList")])
def test_a_deletion_of_many_walks_each_table_and_writes_each_file_as_often_as_that_of_one(
    topics, kit, channel, broker, code, member
):
    managers = [broker.groups, broker.offsets, broker.topics, broker.state.modes]
    for manager in managers:
        manager._table = Walked(manager._table)
    broker.groups.update_all([SubscriptionGroupConfig(group_name="stays")])

    def work(count):
        made = [f"of{count}x{number}" for number in range(count)]
        groups, names = (["stays"], made) if code == 5002 else (made, ["orders"])
        broker.groups.update_all([SubscriptionGroupConfig(group_name=name) for name in groups])
        broker.topics.update_all([
            TopicConfig(topic_name=topic)
            for name in names for topic in (name, *(f"%RETRY%{group}_{name}" for group in groups))])
        for name in names:
            for group in groups:
                broker.offsets.commit(group, name, 0, 1)
                broker.state.modes.change(broker.state.modes.setting(name, group, "POP", 0))
        walks, writes = Walked.walks, [manager.writes for manager in managers]
        body = json.dumps({member: made, "cleanOffset": True}).encode()
        answer = topics.delete_topics(channel, kit.request(code, body=body)) if code == 5002 else (
            topics.delete_groups(channel, kit.request(code, body=body)))
        assert answer.code == 0
        assert len(json.loads(answer.body)["deletedTopics"]) == count * (2 if code == 5002 else 1)
        assert [broker.offsets.query(group, name, 0) for group in groups for name in names] == [-1] * count
        assert not any(name in broker.topics.table or name in broker.groups.table for name in made)
        return Walked.walks - walks, [
            manager.writes - before for manager, before in zip(managers, writes, strict=True)]

    assert work(1) == work(20)


def test_groups_are_created_changed_and_deleted(topics, kit, channel, broker):
    body = json.dumps({"groupName": "g", "retryMaxTimes": 3, "newMember": 1}).encode()
    assert topics.update_group(channel, kit.request(200, body=body)).code == 0
    shown = json.loads(topics.group(channel, kit.request(352, {"group": "g"})).body)
    assert (shown["retryMaxTimes"], shown["newMember"]) == (3, 1)
    body = json.dumps({"groupConfigList": [{"groupName": "h"}, {"groupName": "i"}]}).encode()
    assert topics.update_groups(channel, kit.request(225, body=body)).code == 0
    broker.offsets.commit("h", "orders", 0, 1)
    gone = kit.request(207, {"groupName": "h", "cleanOffset": "true"})
    assert topics.delete_group(channel, gone).code == 0
    assert broker.groups.select("h") is None
    assert broker.offsets.topics_of("h") == []
    assert topics.group(channel, kit.request(352, {"group": "no group"})).code == 26
    assert topics.update_group(channel, kit.request(200, body=b"{}")).code == 29


def test_consume_stats_say_how_far_behind_a_group_is(topics, kit, channel, broker, store):
    broker.topics.update(TopicConfig(topic_name="orders", read_queue_nums=1, write_queue_nums=1))
    put(store)
    put(store)
    broker.groups.find_or_create("g")
    broker.offsets.commit("g", "orders", 0, 1)
    body = topics.consume_stats(channel, kit.request(208, {"consumerGroup": "g"})).body
    (value,) = fastjson.loads(body)["offsetTable"].values()
    assert (value["brokerOffset"], value["consumerOffset"], value["pullOffset"]) == (2, 1, 1)
    assert value["lastTimestamp"] > 0
    body = topics.broker_consume_stats(channel, kit.request(317, {"isOrder": "false"})).body
    assert fastjson.loads(body)["totalDiff"] == 1
    who = json.loads(topics.groups_of_topic(channel, kit.request(300, {"topic": "orders"})).body)
    assert who == {"groupList": ["g"]}
    what = json.loads(topics.topics_of_group(channel, kit.request(343, {"group": "g"})).body)
    assert what == {"topicList": ["orders"]}


def test_connections_and_subscriptions_are_shown(topics, admin, kit, channel, broker):
    assert admin.consumer_connections(channel, kit.request(203, {"consumerGroup": "g"})).code == 206
    assert admin.producer_connections(channel, kit.request(204, {"producerGroup": "pg"})).code == 1
    beat = kit.request(34, version=479, language=3)
    data = {
        "groupName": "g",
        "subscriptionDataSet": [{"topic": "orders", "subString": "a", "subVersion": 1}],
    }
    broker.clients.consumers.register(channel, beat, "c1", data)
    broker.clients.producers.register(channel, beat, "c1", "pg")
    found = json.loads(
        admin.consumer_connections(channel, kit.request(203, {"consumerGroup": "g"})).body
    )
    assert found["connectionSet"] == [
        {"clientAddr": channel.peer, "clientId": "c1", "language": "PYTHON", "version": 479}
    ]
    assert found["subscriptionTable"]["orders"]["codeSet"] == [97]
    found = json.loads(
        admin.producer_connections(channel, kit.request(204, {"producerGroup": "pg"})).body
    )
    assert found["connectionSet"][0]["clientId"] == "c1"
    found = json.loads(admin.all_producers(channel, kit.request(328)).body)
    assert found["data"]["pg"][0]["remoteIP"] == f"/{channel.peer}"
    request = kit.request(345, {"group": "g", "topic": "orders"})
    found = json.loads(topics.subscription_of_group(channel, request).body)
    assert found["subscriptionData"]["subString"] == "a"


def test_every_runtime_figure_is_text(admin, kit, channel, store, monkeypatch):
    monkeypatch.setattr(store.timer_services.schedule, "progress", lambda: [(3, 5, 7)])
    table = json.loads(admin.runtime_info(channel, kit.request(28)).body)["table"]
    assert table["putTps"] == "0.0 "
    assert table["brokerVersionDesc"] == "V5_3_3"
    assert table["tailraceVersion"] == __version__
    assert "readOnly" not in table
    assert table["scheduleMessageOffset_3"] == "5,7"
    assert all(isinstance(value, str) for value in table.values())
    monkeypatch.setattr(store, "stats", lambda: {
        "putTps": [1.0, 2.5], "getFoundTps": [1.0], "getMissTps": [2.0, 3.0],
        "putMessageTimesTotal": 9, "putMessageDistributeTime": {"<=0ms": 4},
    })
    table = json.loads(admin.runtime_info(channel, kit.request(28)).body)["table"]
    assert "brokerVersion" not in table  # RocketMQ has the description only
    assert (table["putTps"], table["getTotalTps"]) == ("1.0000 2.5000 ", "3.0000 3.0000 ")
    assert (table["putMessageTimesTotal"], table["putMessageDistributeTime"]) == ("9", "[<=0ms]:4 ")


def test_put_times_and_disks_are_shown_as_rocketmq_shows_them(admin, kit, channel, store, broker, monkeypatch):
    broker.traffic.hand_out("orders", "g", 1, 100, 0, 30_900_000)
    monkeypatch.setattr(store, "stats", lambda: {
        "putMessageDistributeTime": {"<=0ms": 90, "0~10ms": 10, "10~50ms": 0}})
    OsFileSystem().makedirs(f"{store.path}/commitlog")
    table = json.loads(admin.runtime_info(channel, kit.request(28)).body)["table"]
    assert (table["putLatency99"], table["putLatency999"]) == ("9.00", "9.90")
    assert table["getMessageEntireTimeMax"] == "30"
    assert table[f"commitLogDiskRatio_{store.path}/commitlog"] == table["commitLogDiskRatio"]
    monkeypatch.setattr(store, "stats", dict)
    table = json.loads(admin.runtime_info(channel, kit.request(28)).body)["table"]
    assert (table["putLatency99"], table["putMessageDistributeTime"]) == ("0.00", "")


def test_offset_tables_are_handed_out(admin, kit, channel, broker):
    broker.offsets.commit("g", "orders", 0, 5)
    found = json.loads(admin.all_consumer_offsets(channel, kit.request(43)).body)
    assert found["offsetTable"] == {"orders@g": {"0": 5}}
    broker.store.timer_services.delay_offsets.update(3, 5)
    assert admin.all_delay_offsets(channel, kit.request(45)).body == (
        b'{"dataVersion":{"counter":0,"stateVersion":0,"timestamp":0},"offsetTable":{3:5}}')


def test_units_of_a_queue_that_is_not_there(admin, broker, kit, channel):
    broker.topics.update(TopicConfig(topic_name="orders"))
    for topic, queue_id in (("nobody", "0"), ("orders", "99"), ("orders", "-1")):
        answer = admin.query_consume_queue(channel, kit.request(321, {
            "topic": topic, "queueId": queue_id, "index": "0", "count": "1"}))
        assert (answer.code, answer.remark) == (1, f"{queue_id}@{topic} is not exist!")


def test_a_query_by_key_finds_no_more_than_its_settings_allow(broker, kit, channel, store, monkeypatch):
    asked = []
    monkeypatch.setattr(store, "query_records", lambda t, k, most, *_: asked.append(most) or [])
    for most, unique in ((10**9, "false"), (-1, "false"), (7, "false"), (7, "true")):
        kit.served(wired(QueryProcessor, broker)).query_message(channel, kit.request(12, {
            "topic": "orders", "key": "k", "maxNum": str(most), "beginTimestamp": "0",
            "endTimestamp": "-1", "_UNIQUE_KEY_QUERY": unique}))
    assert asked == [64, 0, 7, 32]


def test_units_of_a_queue_are_shown(admin, broker, kit, channel, store):
    broker.topics.update(TopicConfig(topic_name="orders"))
    put(store)
    put(store)
    request = kit.request(321, {"topic": "orders", "queueId": "0", "index": "1", "count": "9"})
    found = json.loads(admin.query_consume_queue(channel, request).body)
    assert (found["minQueueIndex"], found["maxQueueIndex"]) == (0, 2)
    (unit,) = found["queueData"]
    assert unit["physicOffset"] == decode_message(store.log[1]).phy_offset
    assert unit["tagsCode"] == ord("t")


@pytest.mark.parametrize(
    ("outcome", "code"),
    [(None, 0), (RemotingTimeoutError("x", 1), 207), (RemotingConnectError("x", "y"), 1)],
)
def test_requests_are_forwarded_to_the_consumer_that_is_named(store, kit, channel, outcome, code):
    async def test():
        broker = kit.make_broker(store, asyncio.get_running_loop())
        admin = kit.served(wiring.admin(broker))
        consumer = kit.FakeChannel("127.0.0.1:50001")
        forwarded = []

        async def request(command, timeout_ms):
            forwarded.append(command)
            if outcome is not None:
                raise outcome
            return command.answer(body=b"running")

        consumer.request = request
        broker.clients.consumers.register(consumer, kit.request(34), "c1", {"groupName": "g"})
        ext = {"consumerGroup": "g", "clientId": "c1", "jstackEnable": "false"}
        proof = {"AccessKey": "root", "Signature": "of root", "SecurityToken": "t", "TailraceBinding": "b"}
        asked = kit.request(307, {**ext, **proof}, opaque=77)
        assert admin.consumer_running_info(channel, asked) is None
        for _ in range(5):
            await asyncio.sleep(0)
        answer = channel.sent.pop()
        assert (answer.code, answer.opaque) == (code, 77)
        assert answer.body == (b"running" if code == 0 else b"")
        assert forwarded[-1].ext == ext, "without what proves the user of the request, which could be sent again"
        ext["clientId"] = "c2"
        missing = admin.consumer_running_info(channel, kit.request(307, ext))
        assert (missing.code, missing.remark) == (1, "The Consumer <g> <c2> not online")
        put(store)
        ext = {"consumerGroup": "g", "clientId": "c1", "msgId": "7F00000100002A9F" + "0" * 16}
        assert admin.consume_directly(channel, kit.request(309, {**ext, **proof})) is None
        for _ in range(5):
            await asyncio.sleep(0)
        assert not proof.keys() & forwarded[-1].ext.keys()
        assert forwarded[-1].body == store.log[0]
        assert forwarded[-1].ext["brokerName"] == "broker-a"
        ext["msgId"] = "nonsense"
        assert admin.consume_directly(channel, kit.request(309, ext)).code == 1

    asyncio.run(test())


# --- look-ups


@pytest.fixture
def query(broker, kit):
    return kit.served(wired(QueryProcessor, broker))


def test_messages_are_found_by_key_and_by_place(query, kit, channel, store):
    put(store)
    ext = {"topic": "orders", "key": "k2", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": "-1"}
    assert query.query_message(channel, kit.request(12, ext)).body == store.log[0]
    ext.update(key="U", _UNIQUE_KEY_QUERY="true")
    assert query.query_message(channel, kit.request(12, ext)).body == store.log[0]
    ext.update(key="other")
    answer = query.query_message(channel, kit.request(12, ext))
    assert (answer.code, "indexLastUpdateTimestamp" in answer.ext) == (22, True)
    assert query.view_message(channel, kit.request(33, {"offset": "0"})).body == store.log[0]
    answer = query.view_message(channel, kit.request(33, {"offset": "1"}))
    assert (answer.code, answer.remark) == (1, "can not find message by the offset, 1")


def test_a_record_of_a_deleted_topic_is_for_brokers_that_compare_their_logs_only(query, kit, channel, store):
    put(store)
    record = store.log[0]
    store.real.delete_topics(["orders"])
    assert query.view_message(channel, kit.request(33, {"offset": "0"})).code == 1
    assert query.view_message(channel, kit.request(33, {"offset": "0", "alsoReleased": "true"})).body == record
    for at in ("1", str(len(record) - 1), "1000000"):
        assert query.view_message(channel, kit.request(33, {"offset": at, "alsoReleased": "true"})).code == 1, at


@pytest.mark.parametrize(("stored", "properties", "named", "found"), [
    ("orders", "", "orders", True), ("orders", "", "", True), ("orders", "", "  ", True),
    ("orders", "", "other", False),
    ("SCHEDULE_TOPIC_XXXX", "REAL_TOPIC\x01orders\x02", "orders", True),
    ("SCHEDULE_TOPIC_XXXX", "REAL_TOPIC\x01orders\x02", "SCHEDULE_TOPIC_XXXX", False),
    ("rmq_sys_wheel_timer", "REAL_TOPIC\x01orders\x02", "orders", True),
    ("RMQ_SYS_TRANS_HALF_TOPIC", "REAL_TOPIC\x01orders\x02", "orders", True),
    ("TRANS_CHECK_MAX_TIME_TOPIC", "REAL_TOPIC\x01orders\x02", "orders", True),
    ("orders", "REAL_TOPIC\x01other\x02", "other", False),
    ("orders", "INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b\x02", "%LMQ%b", True),
    ("orders", "INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b\x02", "%LMQ%c", False),
])
def test_a_message_is_looked_at_by_its_place_as_one_of_its_topic_only(
    query, kit, channel, store, stored, properties, named, found
):
    """Access control checks the topic that the request names."""
    store.put_inner(MessageExtBrokerInner(
        stored, 0, b"secret", properties.encode(), 0, 0, 0, b"\x7f\0\0\1\0\0\0\1", 0, 0, True))
    answer = query.view_message(channel, kit.request(33, {"offset": "0", "topic": named}))
    if found:
        assert (answer.code, answer.body) == (0, store.log[0])
    else:
        assert (answer.code, answer.body, answer.remark) == (16, b"", "The topic does not match the message")


def test_offsets_of_a_queue(query, kit, channel, store, clock):
    where = {"topic": "orders", "queueId": "0"}

    def ask(method, **more):
        return method(channel, kit.request(30, {**where, **more})).ext

    assert ask(query.max_offset) == ask(query.min_offset) == {"offset": "0"}
    assert ask(query.earliest_store_time) == {"timestamp": "-1"}
    put(store)
    assert ask(query.max_offset) == {"offset": "1"}
    assert ask(query.earliest_store_time) == {"timestamp": str(clock.ms)}
    assert ask(query.search_offset, timestamp="5", boundaryType="UPPER") == {"offset": "0"}


def test_time_spans_of_what_a_group_has_consumed(topics, kit, channel, broker, store, clock):
    broker.topics.update(TopicConfig(topic_name="orders", read_queue_nums=2, write_queue_nums=2))
    start = clock.ms
    for _ in range(3):
        put(store)
        clock.ms += 1000

    def spans(topic="orders"):
        answer = topics.consume_time_span(channel, kit.request(303, {"topic": topic, "group": "g"}))
        return answer if answer.code else [
            [s[n] for n in ("minTimeStamp", "maxTimeStamp", "consumeTimeStamp", "delayTime")]
            for s in json.loads(answer.body)["consumeTimeSpanSet"]]

    assert spans() == [[start, start + 2000, start, 3000], [-1, -1, -1, 0]]
    broker.offsets.commit("g", "orders", 0, 2)
    assert spans()[0] == [start, start + 2000, start + 1000, 1000]
    broker.offsets.commit("g", "orders", 0, 3)
    assert spans()[0] == [start, start + 2000, start + 2000, 0]
    assert spans("nobody").code == 17


@pytest.fixture
def reset(broker, kit, channel, store):
    broker.topics.update(TopicConfig(topic_name="orders", read_queue_nums=2, write_queue_nums=2))
    broker.groups.find_or_create("g")
    for _ in range(3):
        put(store)

    def ask(**more):
        ext = {"topic": "orders", "group": "g", "timestamp": "-1", "isForce": "true", **more}
        return kit.served(broker.make(GroupOffsetsProcessor)).reset_offset(channel, kit.request(222, ext))

    return ask


def test_offsets_are_reset_by_time_to_the_end_and_by_hand(reset, broker):
    queue = b'{"brokerName":"broker-a","queueId":%d,"topic":"orders"}:%d'
    assert reset().body == b'{"offsetTable":{%b,%b}}' % (queue % (0, 3), queue % (1, 0))
    assert [broker.offsets.query("g", "orders", q) for q in (0, 1)] == [3, 0]
    assert reset(timestamp="0", queueId="0").body == b'{"offsetTable":{%b}}' % (queue % (0, 0))
    assert reset(queueId="0", offset="2").body == b'{"offsetTable":{%b}}' % (queue % (0, 2))
    assert broker.offsets.query("g", "orders", 0) == 2
    assert reset(queueId="-1", offset="-1").code == 0


@pytest.mark.parametrize(("more", "code", "remark"), [
    ({"topic": "nobody"}, 17, "Topic nobody does not exist"),
    ({"group": "nobody"}, 26, "Group nobody does not exist"),
    ({"queueId": "2"}, 29, "queueId 2 is not below readQueueNums 2"),
    ({"queueId": "0", "offset": "4"}, 1, "Target offset 4 not in consume queue range [0-3]"),
    ({"queueId": "0", "offset": "-2"}, 1, "Target offset -2 not in consume queue range [0-3]"),
])
def test_a_reset_that_cannot_be_is_refused_and_changes_nothing(reset, broker, more, code, remark):
    answer = reset(**more)
    assert (answer.code, answer.remark) == (code, remark)
    assert not broker.offsets.entries()


def test_a_running_consumer_hears_of_a_reset_with_its_next_pull_and_cannot_undo_it(
    reset, broker, kit, channel
):
    clients = kit.served(clients_of(broker))
    pulls = kit.served(wiring.pulls(broker))
    reset(queueId="0", offset="1")
    commit = {"consumerGroup": "g", "topic": "orders", "queueId": "0", "commitOffset": "3"}
    late = clients.update_offset(channel, kit.request(15, commit))
    assert (late.code, late.remark) == (0, "Offset has been previously reset")
    pull = {
        "consumerGroup": "g", "topic": "orders", "queueId": "0", "queueOffset": "3", "maxMsgNums": "32",
        "sysFlag": "5", "commitOffset": "3", "suspendTimeoutMillis": "0", "subscription": "*",
        "subVersion": "0",
    }
    told = kit.decoded(pulls.pull(channel, kit.request(11, pull)))
    assert (told.code, told.remark) == (21, "OFFSET_RESET")
    assert (told.ext["nextBeginOffset"], told.ext["maxOffset"]) == ("1", "3")
    assert broker.offsets.query("g", "orders", 0) == 1
    found = kit.decoded(pulls.pull(channel, kit.request(11, {**pull, "queueOffset": "1", "sysFlag": "4"})))
    assert found.code == 0  # answered once
    assert clients.update_offset(channel, kit.request(15, commit)).remark is None
    assert broker.offsets.query("g", "orders", 0) == 3


def test_what_is_forgotten_takes_its_reset_along(reset, broker):
    reset()
    broker.offsets.remove_groups({"g"})
    assert not broker.offsets.is_reset("g", "orders", 0)
    assert broker.offsets.take_reset("g", "orders", 0) is None
