"""Which topics and groups a user creates: by a request that lacks them, by an administration request, and how many."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from broker_kit import admin_of, clients_of, use_control, wired
from people import People, sent_by

from tailrace.broker import wiring
from tailrace.broker.messages.send_back import SendBackProcessor
from tailrace.config import BrokerConfig
from tailrace.errors import StoreError
from tailrace.formats.remoting import RemotingCommand
from tailrace.node.subscription_group import SubscriptionGroupManager
from tailrace.node.topic_config import TopicConfigManager
from tailrace.requests.durable_answers import DurableAnswers

MALLORY = [("Topic:own*", "Pub,Sub,Get"), ("Topic:exact", "Pub"), ("Group:mine*", "Sub,Get"), ("Group:stock", "Sub")]
MAY_CREATE = [("Topic:own*", "Pub,Create"), ("Group:mine*", "Sub,Create")]
PULL = {"queueId": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "4", "commitOffset": "0",
        "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0"}


class World:
    def __init__(self, kit, path, loop, **settings):
        self.kit = kit
        config = BrokerConfig(**settings)
        self.store = kit.open_store(path, config)
        self.broker = kit.make_broker(self.store, loop, config)
        self.people = People(mallory=MALLORY, creator=MAY_CREATE)
        self.wire(self.people.control)

    def wire(self, control):
        use_control(broker := self.broker, control)
        sends = wiring.sends(
            broker, DurableAnswers(broker.loop, self.store), wait_durable=False)
        clients, admin = clients_of(broker), admin_of(broker)
        self.processors = {
            310: sends.send_v2, 11: wiring.pulls(broker).pull, 34: clients.heartbeat,
            36: wired(SendBackProcessor, broker).send_back, 17: admin.update_topic, 18: admin.update_topics,
            200: admin.update_group, 352: admin.group}

    def settings(self, **changes):
        self.people.control.config = replace(self.people.control.config, **changes)

    def ask(self, user, code, ext, body=b""):
        request = sent_by(user, RemotingCommand(
            code, ext, body if isinstance(body, bytes) else json.dumps(body).encode()))
        try:
            answer = self.kit.served(self).serve(self.kit.FakeChannel(), request)
        except StoreError as error:
            return str(error)
        return self.kit.decoded(answer)

    def serve(self, channel, request):
        return self.processors[request.code](channel, request)

    def send(self, user, topic):
        return self.ask(user, 310, {"a": "p", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0",
                                    "h": "0", "i": ""}, b"x")

    def pull(self, user, group, topic="own"):
        return self.ask(user, 11, {"consumerGroup": group, "topic": topic, **PULL})

    def beat(self, user, *groups):
        return self.ask(user, 34, {}, {"clientID": f"client of {user}", "consumerDataSet": [
            {"groupName": group, "subscriptionDataSet": [{"topic": "own"}]} for group in groups]})

    def topic(self, user, name):
        return self.ask(user, 17, {"topic": name, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1",
                                   "perm": "6", "topicFilterType": "SINGLE_TAG"})

    @property
    def names(self):
        """Topics and groups that are not the broker's own."""
        topics = {t for t in self.broker.topics.table if t.startswith(("own", "exact", "%"))}
        return topics | {g.group_name for g in self.broker.groups.items() if g.group_name.startswith(("mine", "stock"))}


@pytest.fixture
def world(kit, tmp_path, loop):
    return World(kit, tmp_path, loop)


def refused(answer, what):
    assert (answer.code, answer.remark) == (
        16, f"{what} does not exist, and User:mallory may not create it: that needs Create on it")


def test_a_send_creates_a_topic_with_create_only(world, caplog):
    refused(world.send("mallory", "own-new"), "Topic:own-new")
    refused(world.send("mallory", "exact"), "Topic:exact")
    assert world.people.control.denied["permission"] == 2
    assert "user='mallory' address=127.0.0.1 code=310 action=Create resource='Topic:own-new'" in caplog.text
    assert world.names == set()
    assert world.send("creator", "own-new").code == 0
    assert world.send("mallory", "own-new").code == 0, "it exists now"
    assert world.send("root", "exact").code == 0
    assert world.names == {"own-new", "exact"}


def test_a_setting_restores_the_rule_of_the_reference(world):
    world.settings(auto_create_needs_permission=False)
    assert world.send("mallory", "own-new").code == 0
    world.pull("mallory", "mine1", "own-new")
    assert world.names == {"own-new", "mine1"}


def test_a_group_needs_create_or_an_entry_with_its_name(world):
    world.broker.topics.create_if_missing("own", 1)
    refused(world.pull("mallory", "mine1"), "Group:mine1")
    refused(world.ask("mallory", 352, {"group": "mine1"}), "Group:mine1")
    refused(world.ask("mallory", 36, {"group": "mine1", "offset": "0", "delayLevel": "1"}), "Group:mine1")
    assert world.names == {"own"}
    assert world.pull("mallory", "stock").code in {0, 19, 21}
    assert world.pull("creator", "mine1").code in {0, 19, 21}
    assert world.names == {"own", "stock", "mine1"}


def test_a_heartbeat_leaves_out_groups_that_may_not_be_created(world, caplog):
    assert world.beat("mallory", "mine1", "stock").code == 0
    assert world.names == {"stock", "%RETRY%stock"}, "its retry topic needs no further permission"
    assert world.broker.clients.consumers.find("mine1") is None
    assert world.broker.clients.consumers.find("stock") is not None
    assert "mine1" in caplog.text


def test_a_retry_topic_needs_its_group(world):
    for topic in ("%RETRY%mine1", "%RETRY%mine_x", "%DLQ%mine1"):
        world.people.add("mallory", *MALLORY, ("Topic:%DLQ%mine1", "Pub"))
        answer = world.send("mallory", topic)
        assert answer.code == 16, topic
    assert world.names == set()
    world.broker.groups.find_or_create("mine1")
    assert world.send("mallory", "%RETRY%mine1").code == 0
    assert world.names == {"mine1", "%RETRY%mine1"}


def test_the_last_topics_and_groups_are_for_super_users(kit, tmp_path, loop):
    there = len(World(kit, tmp_path / "first", loop).broker.topics.table)
    world = World(kit, tmp_path / "second", loop, max_topics=there + 8, max_subscription_groups=8 + 6)
    world.settings(super_user_reserve_percent=10)
    percent = max(1, (there + 8) // 10)
    for number in range(8 - percent):
        assert world.send("creator", f"own{number}").code == 0
    for answer in (world.send("creator", "own-more"), world.topic("creator", "own-more")):
        assert f"of which {percent} are reserved for super users" in answer
    for number in range(percent):
        assert world.topic("root", f"own-root{number}").code == 0
    assert "over the limit maxTopics" in world.topic("root", "own-too-many")
    assert world.topic("creator", "own0").code == 0, "a change of a topic that exists"
    groups = len(world.broker.groups.items())
    for number in range(8 + 6 - 1 - groups):
        world.pull("creator", f"mine{number}", "own0")
    assert "reserved for super users" in world.pull("creator", "mine-more", "own0")
    assert world.pull("root", "mine-more", "own0").code in {0, 19, 21}


def test_without_a_reserve_or_users_all_are_for_everybody(kit, tmp_path, loop):
    there = len(World(kit, tmp_path / "first", loop).broker.topics.table)
    world = World(kit, tmp_path / "second", loop, max_topics=there + 3)
    world.settings(super_user_reserve_percent=0)
    assert [world.send("creator", f"own{n}").code for n in range(2)] == [0, 0]
    world.wire(None)
    assert world.send("", "own2").code == 0
    assert "over the limit maxTopics" in world.send("", "own3")


def test_a_quota_counts_what_a_user_has_created(world, tmp_path):
    world.settings(max_topics_of_user=2, max_groups_of_user=1)
    world.people.add("other", *MAY_CREATE)
    assert [world.send("creator", "own1").code, world.topic("creator", "own2").code] == [0, 0]
    for answer in (world.send("creator", "own3"), world.topic("creator", "own3")):
        assert answer.code == 1
        assert answer.remark == (
            "User:creator has created 2 topics, 1 more are over the limit maxTopicsOfUser=2")
    assert world.topic("creator", "own2").code == 0
    assert world.topic("root", "own3").code == world.send("other", "own4").code == 0
    world.pull("creator", "mine1", "own1")
    assert "maxGroupsOfUser=1" in world.pull("creator", "mine2", "own1").remark
    world.broker.topics.delete("own1")
    assert world.send("creator", "own5").code == 0
    # It is in the files, so a restart does not forget it.
    files = world.store.file_system, world.store.config_dir, BrokerConfig(), world.store.clock
    topics, groups = TopicConfigManager(*files), SubscriptionGroupManager(*files)
    topics.load()
    groups.load()
    assert {name: topic.extra.get("tailraceCreator") for name, topic in topics.table.items() if name[:3] == "own"} == {
        "own2": "creator", "own3": None, "own4": "other", "own5": "creator"}
    assert groups.select("mine1").extra["tailraceCreator"] == "creator"


def test_nobody_creates_on_account_of_another_user(world):
    world.settings(max_topics_of_user=1)
    body = {"topicConfigList": [{"topicName": "own1", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
                                 "tailraceCreator": "other"}]}
    for _ in range(2):
        assert world.ask("creator", 18, {}, body).code == 0
        assert world.broker.topics.select("own1").extra["tailraceCreator"] == "creator"
    world.people.add("other", *MAY_CREATE)
    assert world.ask("other", 18, {}, body).code == 0
    assert world.broker.topics.select("own1").extra["tailraceCreator"] == "creator"
