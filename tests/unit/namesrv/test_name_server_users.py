"""Brokers of other processes belong to users: who registers, changes and removes them, and with which topics."""

from __future__ import annotations

import json
import zlib

import pytest
from people import People, sent_by

from tailrace.config import NameServerConfig
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import StoreError
from tailrace.formats.remoting import RemotingCommand
from tailrace.formats.requests.table import REQUESTS, Role, Touch
from tailrace.namesrv import route_rights
from tailrace.namesrv.name_server import KVConfigManager, NameServer
from tailrace.node.topic_config import TopicConfig

PROD = [("Cluster:prod", "Update,Get,List"), ("Topic:prod*", "Pub,Sub"), ("Group:prod*", "Sub")]


class World:
    """A name server with the broker of its process and ``prodbroker`` of cluster ``prod``, which ops registered."""

    def __init__(self, path, clock, broker, kit, **options):
        self.people = People(
            ops=PROD, other=PROD, mallory=[("Cluster:test", "Update,Get"), ("Topic:own*", "Pub,Sub")],
            admin=[("Cluster:DefaultCluster", "Update,Get,List")], nobody=())
        self.kit, self.clock = kit, clock
        self.server = NameServer(
            clock, KVConfigManager(OsFileSystem(), str(path)), NameServerConfig(), control=self.people.control,
            **options)
        self.served = kit.served(self.server)
        self.server.register_local("DefaultCluster", "broker-a", "127.0.0.1:10911", broker.topics.table)
        self.channel = self.ops = kit.FakeChannel("10.0.0.1:5")
        assert self.register("ops", "prodbroker", "prod", "10.0.0.1:10911", "prod1", "prod2").code == 0
        self.channel = kit.FakeChannel("10.6.6.6:6")

    def ask(self, user, serve, code, body=b"", **ext):
        request = sent_by(user, RemotingCommand(code, {name: str(value) for name, value in ext.items()}, body))
        return getattr(self.served, serve)(self.channel, request)

    def register(self, user, name, cluster, address, *topics, broker_id=0, mappings=(), compressed=False):
        body = json.dumps({"topicConfigSerializeWrapper": {
            "topicConfigTable": {topic: TopicConfig(topic_name=topic).to_json() for topic in topics},
            "topicQueueMappingInfoMap": {
                topic: {"topic": topic, "bname": name, "totalQueues": 1, "epoch": 1, "currIdMap": {"0": 0}}
                for topic in mappings},
            "dataVersion": {"counter": 1, "timestamp": 5, "stateVersion": 0}}}).encode()
        if compressed:
            def part(data):
                return len(data).to_bytes(4, "big") + data

            body = zlib.compress(part(b'{"counter":1}') + len(topics).to_bytes(4, "big") + b"".join(
                part(b"%b 4 2 6 SINGLE_TAG " % topic.encode()) for topic in topics) + part(b"[]"))
        return self.ask(
            user, "register_broker", 103, body, brokerName=name, brokerAddr=address, clusterName=cluster,
            haServerAddr="", brokerId=broker_id, compressed=str(compressed).lower())

    def state(self):
        """What routes say, and how old each member is."""
        return json.dumps({name: [
            broker.to_json(), sorted(broker.topics), sorted(broker.mappings), broker.write_wiped,
            {i: member.last_update_ns for i, member in broker.members.items()}]
            for name, broker in self.server._brokers.items()}, sort_keys=True)


@pytest.fixture
def world(tmp_path, clock, broker, kit):
    return World(tmp_path, clock, broker, kit)


def unregister(world, user, name="prodbroker", cluster="prod", address="10.0.0.1:10911"):
    return world.ask(
        user, "unregister_broker", 104, brokerName=name, brokerAddr=address, clusterName=cluster, brokerId=0)


def queue_data(*names):
    return json.dumps({"queueDatas": [{"brokerName": name, "perm": 6} for name in names]}).encode()


PROD_NAMES = {"brokerName": "prodbroker", "brokerAddr": "10.0.0.1:10911", "brokerId": "0"}
ATTACKS = {
    "a broker with a topic of others": (103, lambda w, u: w.register(u, "evil", "test", "6.6.6.6:1", "own1", "prod1")),
    "the same, compressed": (
        103, lambda w, u: w.register(u, "evil", "test", "6.6.6.6:1", "own1", "prod1", compressed=True)),
    "the same, as a static topic": (
        103, lambda w, u: w.register(u, "evil", "test", "6.6.6.6:1", "own1", "own2", mappings=["prod1"])),
    "a retry topic of others": (
        103, lambda w, u: w.register(u, "evil", "test", "6.6.6.6:1", "own1", "%RETRY%prod")),
    "topics of all": (103, lambda w, u: w.register(u, "evil", "test", "6.6.6.6:1", "own1", "TBW102")),
    "a name that is taken, in the own cluster": (
        103, lambda w, u: w.register(u, "prodbroker", "test", "6.6.6.6:1", "own1", "own2")),
    "a name that is taken, in its cluster": (
        103, lambda w, u: w.register(u, "prodbroker", "prod", "6.6.6.6:1", "prod1", "prod2")),
    "a slave of a name that is taken": (
        103, lambda w, u: w.register(u, "prodbroker", "prod", "6.6.6.6:1", broker_id=7)),
    "the name of this process": (
        103, lambda w, u: w.register(u, "broker-a", "DefaultCluster", "6.6.6.6:1", "own1", "own2")),
    "removal in the own cluster": (104, lambda w, u: unregister(w, u, cluster="test")),
    "removal in its cluster": (104, unregister),
    "removal of the broker of this process": (
        104, lambda w, u: unregister(w, u, "broker-a", "DefaultCluster", "127.0.0.1:10911")),
    "a topic of a broker": (217, lambda w, u: w.ask(u, "register_topic", 217, queue_data("prodbroker"), topic="own1")),
    "a version in the own cluster": (
        322, lambda w, u: w.ask(u, "query_data_version", 322, **PROD_NAMES, clusterName="test")),
    "a version in its cluster": (
        322, lambda w, u: w.ask(u, "query_data_version", 322, **PROD_NAMES, clusterName="prod")),
    "a heartbeat in the own cluster": (
        904, lambda w, u: w.ask(u, "broker_heartbeat", 904, **PROD_NAMES, clusterName="test")),
    "a heartbeat in its cluster": (
        904, lambda w, u: w.ask(u, "broker_heartbeat", 904, **PROD_NAMES, clusterName="prod")),
    "the permission to write": (205, lambda w, u: w.ask(u, "wipe_write_perm", 205, brokerName="prodbroker")),
    "the permission to write again": (327, lambda w, u: w.ask(u, "add_write_perm", 327, brokerName="prodbroker")),
    "a topic in all clusters": (216, lambda w, u: w.ask(u, "delete_topic", 216, topic="prod1")),
    "a topic in no cluster": (216, lambda w, u: w.ask(u, "delete_topic", 216, topic="prod1", clusterName="")),
}


MAY = {205, 327, 216, 217}
"""What another user of cluster prod may also do. It may also register other brokers with topics of prod."""


@pytest.mark.parametrize(("user", "attack"), [
    *((user, attack) for user in ("mallory", "nobody", "gone") for attack in ATTACKS),
    *(("other", attack) for attack, (code, _) in ATTACKS.items() if code not in MAY)])
def test_a_broker_of_others_stays_as_it_is(world, user, attack):
    code, do = ATTACKS[attack]
    world.clock.ms += 1_000
    before = world.state()
    answer = do(world, user)
    assert answer.code == 16, answer.remark
    assert world.state() == before


def test_every_request_that_names_a_broker_is_among_the_attacks():
    naming = {int(row.code) for row in REQUESTS.values() if Touch.BROKER in (row.touches or Touch(0))}
    changing = {int(row.code) for row in REQUESTS.values() if row.role is Role.NAME_SERVER and "routes" in row.changes}
    assert changing <= naming
    assert {code for code, _ in ATTACKS.values()} == naming - {901}, "901 only reads"


def test_the_members_of_a_broker_are_read_with_its_cluster_only(world):
    for cluster, found in (("prod", {"0": "10.0.0.1:10911"}), ("test", {})):
        answer = world.ask(
            "mallory", "broker_members", 901, brokerName="prodbroker", clusterName=cluster)
        assert json.loads(answer.body)["brokerMemberGroup"]["brokerAddrs"] == found


@pytest.mark.parametrize("user", ["ops", "root"])
def test_its_own_user_and_super_users_change_it(world, user):
    topics = "prod1", "prod2", "prod3"
    assert world.register(user, "prodbroker", "prod", "10.0.0.1:10911", *topics).code == 0
    assert world.ask(user, "wipe_write_perm", 205, brokerName="prodbroker").ext == {"wipeTopicCount": "3"}
    assert world.ask(user, "add_write_perm", 327, brokerName="prodbroker").ext == {"addTopicCount": "3"}
    assert world.ask(user, "register_topic", 217, queue_data("prodbroker"), topic="prod4").code == 0
    assert world.ask(user, "query_data_version", 322, **PROD_NAMES, clusterName="prod").ext == {"changed": "true"}
    assert world.ask(user, "broker_heartbeat", 904, **PROD_NAMES, clusterName="prod").code == 0
    assert world.ask(user, "delete_topic", 216, topic="prod4").code == 0
    assert sorted(world.server._brokers["prodbroker"].topics) == ["prod1", "prod2", "prod3"]
    assert unregister(world, user).code == 0
    assert "prodbroker" not in world.server._brokers


def test_a_user_leaves_room_for_the_brokers_of_others(world, monkeypatch):
    monkeypatch.setattr(route_rights, "BROKERS_OF_USER_MAX", 2)
    monkeypatch.setattr(route_rights, "TOPICS_OF_USER_MAX", 5)
    for name in "ab":
        assert world.register("mallory", name, "test", "6.6.6.6:1", "own1", "own2").code == 0
    with pytest.raises(StoreError, match="user mallory has registered 2 brokers, the limit is 2"):
        world.register("mallory", "c", "test", "6.6.6.6:1", "own1", "own2")
    with pytest.raises(StoreError, match="has 6 topics with those of its other brokers, the limit is 5"):
        world.register("mallory", "b", "test", "6.6.6.6:1", "own1", "own2", "own3", "own4")
    assert world.register("mallory", "b", "test", "6.6.6.6:1", "own1", "own2", "own3").code == 0
    for name in "cde":
        assert world.register("root", name, "prod", "10.0.0.2:1", "own1", "own2").code == 0


def test_a_topic_that_needs_more_permissions_names_it(world, caplog):
    answer = world.register("mallory", "evil", "test", "6.6.6.6:1", "own1", "prod1")
    assert answer.remark == "User:mallory has no permission to access Topic:prod1 from 10.6.6.6, no matched policies."
    assert "code=103 action=Pub resource='Topic:prod1'" in caplog.text
    answer = unregister(world, "other")
    assert answer.remark == "User:other may not change broker prodbroker, which another user has registered."


def test_both_permissions_are_needed(world):
    world.people.add("half", ("Cluster:test", "Update"), ("Topic:a", "Pub"), ("Topic:b", "Sub"))
    for topic in "ab":
        assert world.register("half", "new", "test", "10.0.0.9:1", topic, topic + topic).code == 16


def test_a_setting_lets_brokers_register_any_topic(tmp_path, clock, broker, kit):
    world = World(tmp_path, clock, broker, kit, registration_needs_topics=False)
    assert world.register("mallory", "evil", "test", "6.6.6.6:1", "own1", "prod1").code == 0
    assert world.register("mallory", "prodbroker", "test", "6.6.6.6:1", "own1", "own2").code == 16


def test_a_super_user_takes_a_name_that_another_user_has_taken_before(world):
    """As a broker does with its innerClientAuthenticationCredentials; nothing of the other user stays."""
    for broker_id in (0, 7):
        assert world.register("mallory", "late", "test", "6.6.6.6:1", "own1", "own2", broker_id=broker_id).code == 0
    assert world.register("root", "late", "prod", "10.0.0.2:10911", "x", "y").code == 0
    late = world.server._brokers["late"]
    assert (late.cluster, {i: m.address for i, m in late.members.items()}, sorted(late.topics)) == (
        "prod", {0: "10.0.0.2:10911"}, ["x", "y"])
    assert world.register("mallory", "late", "test", "6.6.6.6:1", "own1", "own2").code == 16
    world.people.add("boss")
    world.people.users["boss"] = type(world.people.users["root"])("boss", "b", is_super=True)
    assert world.register("boss", "late", "prod", "10.0.0.3:10911", "x", "y", broker_id=1).code == 0
    assert sorted(late.members) == [0, 1], "super users share their brokers"


def test_a_name_is_free_when_its_broker_has_gone(world):
    world.server.closed(world.ops)
    assert world.register("other", "prodbroker", "prod", "10.0.0.7:1", "prod1", "prod2").code == 0


def test_without_permissions_names_belong_to_nobody(tmp_path, clock, broker, kit, world):
    world.server = NameServer(clock, KVConfigManager(OsFileSystem(), str(tmp_path)), NameServerConfig())
    world.served = kit.served(world.server)
    for user in ("ops", "mallory"):
        assert world.register(user, "prodbroker", "prod", "10.0.0.1:10911", "prod1", "prod2").code == 0
    assert unregister(world, "").code == 0


def test_the_topics_of_a_cluster_are_listed_for_those_who_may_list_it(world):
    request = RemotingCommand(224, {"cluster": "prod"})
    accesses = world.people.control._accesses.of(request)
    assert [(one.kind, one.name) for one in accesses] == [("Cluster", "prod")]
