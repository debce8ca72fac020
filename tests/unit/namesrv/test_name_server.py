"""The name server's table and its answers."""

from __future__ import annotations

import json
import zlib

import pytest

from tailrace.config import NameServerConfig
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import RefusalError, StoreError
from tailrace.formats import fastjson
from tailrace.namesrv.name_server import KVConfigManager, NameServer
from tailrace.node.topic_config import TopicConfig


@pytest.fixture
def ns(tmp_path, clock, broker, kit):
    kv = KVConfigManager(OsFileSystem(), str(tmp_path / "config"))
    made = kit.served(NameServer(clock, kv, NameServerConfig()))
    made.register_local("DefaultCluster", "broker-a", "127.0.0.1:10911", broker.topics.table)
    return made


def registration(kit, *topics, name="far", address="10.0.0.1:10911", broker_id=0, **more):
    table = {t: TopicConfig(topic_name=t).to_json() for t in topics}
    body = json.dumps({
        "topicConfigSerializeWrapper": {
            "topicConfigTable": table, "dataVersion": {"counter": 1, "timestamp": 5, "stateVersion": 0},
        },
        "filterServerList": [],
    }).encode()
    ext = {
        "brokerName": name, "brokerAddr": address, "clusterName": "C2", "haServerAddr": "10.0.0.1:10912",
        "brokerId": str(broker_id), "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF), **more,
    }
    return kit.request(103, ext, body)


def route(ns, kit, channel, topic):
    return ns.get_route(channel, kit.request(105, {"topic": topic}))


def test_a_topic_has_its_route_in_the_moment_it_is_created(ns, kit, channel, broker):
    answer = route(ns, kit, channel, "orders")
    assert answer.code == 17
    assert answer.remark.startswith("No topic route info in name server for the topic: orders")
    broker.topics.update(TopicConfig(topic_name="orders", read_queue_nums=3, write_queue_nums=2))
    assert json.loads(route(ns, kit, channel, "orders").body) == {
        "brokerDatas": [{
            "brokerAddrs": {"0": "127.0.0.1:10911"}, "brokerName": "broker-a",
            "cluster": "DefaultCluster", "enableActingMaster": False,
        }],
        "filterServerTable": {},
        "queueDatas": [{
            "brokerName": "broker-a", "perm": 6, "readQueueNums": 3, "topicSysFlag": 0,
            "writeQueueNums": 2,
        }],
    }


def test_another_broker_registers_and_goes_with_its_connection(ns, kit, channel):
    assert ns.register_broker(channel, registration(kit, "T", "U")).code == 0
    assert json.loads(route(ns, kit, channel, "T").body)["queueDatas"][0]["brokerName"] == "far"
    cluster = json.loads(ns.cluster_info(channel, kit.request(106)).body)
    assert cluster["clusterAddrTable"] == {"DefaultCluster": ["broker-a"], "C2": ["far"]}
    assert cluster["brokerAddrTable"]["far"]["brokerAddrs"] == {"0": "10.0.0.1:10911"}
    slave = ns.register_broker(
        kit.FakeChannel(), registration(kit, "T", "U", address="10.0.0.2:10911", broker_id=1)
    )
    assert slave.ext == {"masterAddr": "10.0.0.1:10911", "haServerAddr": "10.0.0.1:10912"}
    ns.closed(channel)
    assert list(json.loads(route(ns, kit, channel, "T").body)["brokerDatas"][0]["brokerAddrs"]) == ["1"]


def test_a_connection_that_closed_while_the_body_was_read_leaves_no_entry(ns, kit, channel):
    channel.closed = True
    answer = ns.register_broker(channel, registration(kit, "T1", "T2"))
    assert (answer.code, answer.remark) == (1, "the connection of broker far has closed")
    assert route(ns, kit, channel, "T1").code == 17


def test_a_broker_is_changed_in_its_own_cluster_only(ns, kit, channel):
    """Permissions are those of the cluster that a request names."""
    assert ns.register_broker(channel, registration(kit, "T1", "T2")).code == 0
    other = {"clusterName": "A"}
    answer = ns.register_broker(channel, registration(kit, "T1", "T2", address="6.6.6.6:1", **other))
    assert (answer.code, answer.remark) == (
        1, "broker far is registered in cluster C2, so it cannot register in cluster A")
    named = {"brokerName": "far", "brokerAddr": "10.0.0.1:10911", "brokerId": "0"}
    ns.unregister_broker(channel, kit.request(104, {**named, **other}))
    assert json.loads(route(ns, kit, channel, "T1").body)["brokerDatas"][0]["brokerAddrs"] == {"0": "10.0.0.1:10911"}
    answer = ns.query_data_version(channel, kit.request(322, {**named, **other}))
    assert (answer.ext["changed"], answer.body) == ("true", b"")
    assert ns.query_data_version(channel, kit.request(322, {**named, "clusterName": "C2"})).body
    ns.unregister_broker(channel, kit.request(104, {**named, "clusterName": "C2"}))
    assert route(ns, kit, channel, "T1").code == 17


def test_a_broker_that_unregisters_leaves_another_one_at_its_address(ns, kit, channel):
    for name in ("far", "near"):
        assert ns.register_broker(channel, registration(kit, "T1", "T2", name=name)).code == 0
    ns.unregister_broker(channel, kit.request(104, {
        "brokerName": "near", "brokerAddr": "10.0.0.1:10911", "brokerId": "0", "clusterName": "C2"}))
    assert [one["brokerName"] for one in json.loads(route(ns, kit, channel, "T1").body)["brokerDatas"]] == ["far"]


def test_a_first_registration_of_one_topic_and_a_wrong_checksum_are_refused(ns, kit, channel):
    assert ns.register_broker(channel, registration(kit, "T")).remark == "register broker failed"
    assert route(ns, kit, channel, "T").code == 17
    wrong = ns.register_broker(channel, registration(kit, "T", "U", bodyCrc32="1"))
    assert wrong.remark == "crc32 not match"
    assert ns.register_broker(channel, registration(kit, "T", "U")).code == 0
    assert ns.register_broker(channel, registration(kit, "V")).code == 0  # one more later
    assert route(ns, kit, channel, "T").code == route(ns, kit, channel, "V").code == 0


def test_a_registration_may_come_in_parts_and_topics_go_by_request_alone(ns, kit, channel):
    def topics():
        listed = json.loads(ns.topics_by_cluster(channel, kit.request(224, {"cluster": "C2"})).body)
        return listed["topicList"]

    ns.register_broker(channel, registration(kit, "T", "U"))
    ns.register_broker(channel, registration(kit, "V", "W"))
    assert topics() == ["T", "U", "V", "W"]
    ns.delete_topic(channel, kit.request(216, {"topic": "T", "clusterName": "other"}))
    assert "T" in topics()
    ns.delete_topic(channel, kit.request(216, {"topic": "T", "clusterName": "C2"}))
    ns.delete_topic(channel, kit.request(216, {"topic": "U"}))
    assert topics() == ["V", "W"]


def test_what_is_wrong_with_a_registration_enters_nothing(ns, kit, channel):
    for name, value in (("heartbeatTimeoutMillis", "soon"), ("brokerId", "x")):
        answer = ns.register_broker(channel, registration(kit, "T", "U", **{name: value}))
        assert (answer.code, answer.remark) == (
            1, f"the custom field <{name}> is not a whole number in its range: {value!r}")
    cluster = json.loads(ns.cluster_info(channel, kit.request(106)).body)
    assert list(cluster["brokerAddrTable"]) == ["broker-a"]


def test_a_single_topic_is_registered_of_brokers_that_are_known(ns, kit, channel):
    def register(*names):
        body = json.dumps({"queueDatas": [
            {"brokerName": n, "readQueueNums": 2, "writeQueueNums": 3, "perm": 4} for n in names]})
        return ns.register_topic(channel, kit.request(217, {"topic": "S"}, body.encode())).code

    ns.register_broker(channel, registration(kit, "T", "U"))
    assert register("far", "nobody") == 0
    assert route(ns, kit, channel, "S").code == 17
    assert register("far", "broker-a") == 0  # our own knows its topics better
    (queue,) = json.loads(route(ns, kit, channel, "S").body)["queueDatas"]
    assert queue == {"brokerName": "far", "perm": 4, "readQueueNums": 2, "topicSysFlag": 0,
                     "writeQueueNums": 3}


def test_an_older_state_of_a_broker_is_passed_over(ns, kit, channel):
    new = registration(kit, "T", "U", bodyCrc32="0")
    new.body = new.body.replace(b'"stateVersion": 0', b'"stateVersion": 2')
    ns.register_broker(channel, new)
    late = registration(kit, "V", "W", address="10.0.0.9:10911")
    assert ns.register_broker(kit.FakeChannel(), late).code == 0
    assert route(ns, kit, channel, "V").code == 17
    (broker,) = json.loads(route(ns, kit, channel, "T").body)["brokerDatas"]
    assert broker["brokerAddrs"] == {"0": "10.0.0.1:10911"}


def test_a_slave_without_master_shows_its_topics_and_takes_no_writes(ns, kit, channel):
    slave = {"address": "10.0.0.2:10911", "broker_id": 1, "enableActingMaster": "true"}
    ns.register_broker(channel, registration(kit, "T", "U", **slave))
    assert json.loads(route(ns, kit, channel, "T").body)["queueDatas"][0]["perm"] == 4
    ns.register_broker(kit.FakeChannel(), registration(kit, "T", "U", enableActingMaster="true"))
    assert json.loads(route(ns, kit, channel, "T").body)["queueDatas"][0]["perm"] == 6


def test_nobody_takes_the_name_of_the_broker_in_this_process(ns, kit, channel):
    answer = ns.register_broker(channel, registration(kit, "T", "U", name="broker-a"))
    assert answer.code == 1
    gone = kit.request(104, {"brokerName": "broker-a", "brokerAddr": "127.0.0.1:10911"})
    ns.unregister_broker(channel, gone)
    ns.expire()
    assert route(ns, kit, channel, "TBW102").code == 0


def test_a_silent_broker_is_forgotten_and_a_heartbeat_keeps_it(ns, kit, channel, clock):
    ns.register_broker(channel, registration(kit, "T", "U"))
    clock.ms += 119_000
    who = {"brokerName": "far", "brokerAddr": "10.0.0.1:10911", "clusterName": "C2", "brokerId": "0"}
    assert ns.broker_heartbeat(channel, kit.request(904, who)).code == 0
    clock.ms += 119_000
    ns.expire()
    assert route(ns, kit, channel, "T").code == 0
    clock.ms += 2_000
    ns.expire()
    assert route(ns, kit, channel, "T").code == 17


def test_a_registration_may_be_compressed(ns, kit, channel):
    def part(data):
        return len(data).to_bytes(4, "big") + data

    body = zlib.compress(
        part(b'{"counter":1}') + (2).to_bytes(4, "big") + part(b"T 4 2 6 SINGLE_TAG ")
        + part(b"U 1 1 6 SINGLE_TAG {}") + part(b"[]")
    )
    request = registration(kit, compressed="true", bodyCrc32="0")
    request.body = body
    assert ns.register_broker(channel, request).code == 0
    assert json.loads(route(ns, kit, channel, "T").body)["queueDatas"][0]["writeQueueNums"] == 2


def test_a_data_version_that_is_stored_has_not_changed(ns, kit, channel):
    ns.register_broker(channel, registration(kit, "T", "U"))
    who = {"brokerName": "far", "brokerAddr": "10.0.0.1:10911", "clusterName": "C2", "brokerId": "0"}
    same = b'{"counter":1,"timestamp":5,"stateVersion":0}'
    assert ns.query_data_version(channel, kit.request(322, who, same)).ext == {"changed": "false"}
    assert ns.query_data_version(channel, kit.request(322, who, b"{}")).ext == {"changed": "true"}


def test_lists_of_topics(ns, kit, channel, broker):
    broker.topics.update(TopicConfig(topic_name="u", topic_sys_flag=1))
    broker.topics.update(TopicConfig(topic_name="v", topic_sys_flag=2))
    ns.register_broker(channel, registration(kit, "T", "U"))

    def topics(method, code, **ext):
        return json.loads(method(channel, kit.request(code, ext)).body)["topicList"]

    assert {"T", "U", "u", "TBW102"} <= set(topics(ns.all_topics, 206))
    assert topics(ns.topics_by_cluster, 224, cluster="C2") == ["T", "U"]
    assert topics(ns.system_topics, 304) == ["C2", "DefaultCluster", "broker-a", "far"]
    assert topics(ns.unit_topics, 311) == ["u"]
    assert topics(ns.unit_sub_topics, 312) == ["v"]
    assert topics(ns.unit_sub_only_topics, 313) == ["v"]
    ns.delete_topic(channel, kit.request(216, {"topic": "T"}))
    assert topics(ns.topics_by_cluster, 224, cluster="C2") == ["U"]


def test_write_permission_can_be_hidden_and_shown(ns, kit, channel):
    def perm():
        return json.loads(route(ns, kit, channel, "BenchmarkTest").body)["queueDatas"][0]["perm"]

    wiped = ns.wipe_write_perm(channel, kit.request(205, {"brokerName": "broker-a"}))
    assert int(wiped.ext["wipeTopicCount"]) > 5
    assert perm() == 4
    ns.add_write_perm(channel, kit.request(327, {"brokerName": "broker-a"}))
    assert perm() == 6


def test_hidden_writes_stay_hidden_until_the_topics_of_the_broker_change(ns, kit, channel):
    def perm():
        return json.loads(route(ns, kit, channel, "T").body)["queueDatas"][0]["perm"]

    ns.register_broker(channel, registration(kit, "T", "U"))
    ns.wipe_write_perm(channel, kit.request(205, {"brokerName": "far"}))
    ns.register_broker(channel, registration(kit, "T", "U"))  # as brokers do every 30 s
    assert perm() == 4
    changed = registration(kit, "T", "U", bodyCrc32="0")
    changed.body = changed.body.replace(b'"counter": 1', b'"counter": 2')
    ns.register_broker(channel, changed)
    assert perm() == 6


def test_the_key_value_table_has_a_limit(ns, kit, channel):
    def put(key, value):
        ns.put_kv(channel, kit.request(100, {"namespace": "n", "key": key, "value": value}))

    put("a", "x" * (3 << 20))
    put("a", "y" * (3 << 20))  # in its place
    with pytest.raises(StoreError, match="more than 4194304 characters"):
        put("b", "x" * (1 << 20))
    assert ns.get_kv(channel, kit.request(101, {"namespace": "n", "key": "b"})).code == 22


def test_values_survive_a_restart(ns, kit, channel, tmp_path):
    where = {"namespace": "n", "key": "k"}
    assert ns.get_kv(channel, kit.request(101, where)).code == 22
    assert ns.put_kv(channel, kit.request(100, {**where, "value": "v"})).code == 0
    again = KVConfigManager(OsFileSystem(), str(tmp_path / "config"))
    again.load()
    assert again.get("n", "k") == "v"
    assert ns.get_kv(channel, kit.request(101, where)).ext == {"value": "v"}
    listed = ns.list_kv(channel, kit.request(219, {"namespace": "n"}))
    assert json.loads(listed.body) == {"table": {"k": "v"}}
    ns.delete_kv(channel, kit.request(102, where))
    assert ns.get_kv(channel, kit.request(101, where)).code == 22
    assert ns.list_kv(channel, kit.request(219, {"namespace": "x"})).code == 22


def test_topic_lists_can_be_switched_off(kit, channel, clock, tmp_path):
    config = NameServerConfig(enable_topic_list=False, enable_all_topic_list=False)
    ns = NameServer(clock, KVConfigManager(OsFileSystem(), str(tmp_path / "off")), config)
    for ask, code, setting in (
        (ns.all_topics, 206, "enableAllTopicList"), (ns.topics_by_cluster, 224, "enableTopicList"),
        (ns.unit_topics, 311, "enableTopicList"),
    ):
        with pytest.raises(RefusalError, match=f"disable: {setting} is false") as refused:
            ask(channel, kit.request(code, {"cluster": "DefaultCluster"}))
        assert refused.value.code == 1


def test_a_route_has_its_order_config_if_that_is_switched_on(kit, channel, clock, tmp_path):
    config = NameServerConfig(order_message_enable=True)
    kv = KVConfigManager(OsFileSystem(), str(tmp_path / "order"))
    ns = NameServer(clock, kv, config)
    ns.register_local("C", "b", "1.1.1.1:1", {"orders": TopicConfig(topic_name="orders")})
    asked = kit.request(105, {"topic": "orders"})
    assert "orderTopicConf" not in json.loads(ns.get_route(channel, asked).body)
    kv.change(kv.setting("ORDER_TOPIC_CONFIG", "orders", "b:4"))
    assert json.loads(ns.get_route(channel, asked).body)["orderTopicConf"] == "b:4"
    config.take({"order_message_enable": False})
    assert "orderTopicConf" not in json.loads(ns.get_route(channel, asked).body)


def test_members_of_a_broker(ns, kit, channel):
    who = {"brokerName": "broker-a", "clusterName": "DefaultCluster"}
    group = fastjson.loads(ns.broker_members(channel, kit.request(901, who)).body)
    assert group["brokerMemberGroup"]["brokerAddrs"] == {"0": "127.0.0.1:10911"}
