"""Every request that touches a client, by a user whose permissions are those of the client's user, or for own groups.

The first user may do what the group allows, but not in the name of the other user's client. The second one reaches no
client outside the groups that it may use.
"""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest

from tailrace.auth_settings import AuthConfig
from tailrace.broker import BrokerController
from tailrace.client import Credentials
from tailrace.config import BrokerConfig, StoreConfig
from tailrace.formats.remoting import RequestCode as Code
from tailrace.formats.requests.table import REQUESTS, Role, Touch
from tailrace.node.message_store import MessageStore
from tailrace.remoting.client import RemotingClient

pytestmark = [pytest.mark.slow, pytest.mark.integration]

FIRST = json.dumps({"username": "root", "password": "password of root"})
STORE = StoreConfig(
    mapped_file_size_commit_log=1 << 22, mapped_file_size_consume_queue=20 * 6_000, max_hash_slot_num=1_000,
    max_index_num=4_000, commit_log_allocate_step=1 << 18, mapped_file_size_timer_log=52 * 1_000, enable_lmq=True,
    enable_multi_dispatch=True)
REPLY = "CORRELATION_ID\x01c\x02REPLY_TO_CLIENT\x01v\x02"


def beat(client, producers, group, topic):
    return {"clientID": client, "producerDataSet": [{"groupName": name} for name in producers], "consumerDataSet": [
        {"groupName": group, "subscriptionDataSet": [{"topic": topic, "subString": "*", "subVersion": 1}]}]}


def lite(client, group, topic, action, *names):
    return {"subscriptionSet": [{
        "action": action, "clientId": client, "group": group, "topic": topic, "liteTopicSet": names, "version": 1}]}


def requests(group, topic):
    """Every request with Touch.CLIENT: fields and body. All name the client ``v``."""
    queue = {"topic": topic, "brokerName": "broker-a", "queueId": 0}
    reply = {
        "a": "p", "b": "DefaultCluster_REPLY_TOPIC", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 0, "h": 0, "i": REPLY}
    long = dict(zip((
        "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp",
        "flag", "properties"), reply.values(), strict=True))
    pop = {
        "clientId": "v", "consumerGroup": f"{group}-lite", "topic": f"{topic}-lite", "pollTime": 0, "bornTime": 1 << 50}
    return {
        Code.HEART_BEAT: [({}, beat("v", ["p"], group, topic))],
        Code.UNREGISTER_CLIENT: [({"clientID": "v", "consumerGroup": group, "producerGroup": "p"}, None)],
        Code.LOCK_BATCH_MQ: [({}, {"consumerGroup": group, "clientId": "v", "mqSet": [queue]})],
        Code.UNLOCK_BATCH_MQ: [({}, {"consumerGroup": group, "clientId": "v", "mqSet": [queue]})],
        Code.CHECK_CLIENT_CONFIG: [({}, {"clientId": "v", "group": group, "subscriptionData": {"topic": topic}})],
        Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: [({"topic": topic, "group": group, "clientAddr": "v"}, None)],
        Code.GET_CONSUMER_RUNNING_INFO: [({"consumerGroup": group, "clientId": "v"}, None)],
        Code.CONSUME_MESSAGE_DIRECTLY: [
            ({"consumerGroup": group, "clientId": "v", "topic": topic, "msgId": "0" * 32}, None)],
        Code.SEND_REPLY_MESSAGE: [(long, "x")],
        Code.SEND_REPLY_MESSAGE_V2: [(reply, "x")],
        Code.QUERY_ASSIGNMENT: [({}, {"consumerGroup": group, "clientId": "v", "topic": topic, "strategyName": "AVG"})],
        Code.NOTIFICATION: [({**pop, "queueId": 0, "isLiteConsumer": "true"}, None)],
        Code.POP_LITE_MESSAGE: [({**pop, "maxMsgNum": 1, "invisibleTime": 60_000}, None)],
        Code.LITE_SUBSCRIPTION_CTL: [
            ({}, lite("v", f"{group}-lite", f"{topic}-lite", action, "room"))
            for action in ("PARTIAL_ADD", "PARTIAL_REMOVE", "COMPLETE_ADD", "COMPLETE_REMOVE")],
        Code.GET_LITE_CLIENT_INFO: [
            ({"parentTopic": f"{topic}-lite", "group": f"{group}-lite", "clientId": "v", "maxCount": 9}, None)],
        Code.TRIGGER_LITE_DISPATCH: [({"group": f"{group}-lite", "clientId": "v"}, None)],
    }


MEMBERS_MAY = {
    Code.UNREGISTER_CLIENT,  # it removes members of its own connection
    Code.CHECK_CLIENT_CONFIG, Code.QUERY_ASSIGNMENT,  # they compute something and change nothing
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, Code.GET_CONSUMER_RUNNING_INFO,  # what Get on the group is for
    Code.GET_LITE_CLIENT_INFO, Code.TRIGGER_LITE_DISPATCH,
}
"""Requests that a user with permissions for a group may send about each member of the group."""


class World:
    def __init__(self, controller, stack):
        self.controller, self.stack, self.clients = controller, stack, {}

    async def ask(self, user, code, body=None, **ext):
        if user not in self.clients:
            self.clients[user] = RemotingClient(credentials=Credentials(user, f"password of {user}"))
            self.stack.push_async_callback(self.clients[user].close)
        return await self.clients[user].invoke(
            self.controller.broker_address, code, {name: str(value) for name, value in ext.items()},
            b"" if body is None else json.dumps(body).encode(), timeout_ms=20_000)

    async def set_up(self):
        async def root(code, body=None, **ext):
            answer = await self.ask("root", code, body, **ext)
            assert answer.code == 0, (code, answer.remark)

        for names in ("secret", "own"):
            for suffix, kind in (("", "NORMAL"), ("-lite", "LITE")):
                await root(17, topic=names + suffix, defaultTopic="TBW102", readQueueNums=1, writeQueueNums=1, perm=6,
                           topicFilterType="SINGLE_TAG", attributes=f"+message.type={kind}")
            await root(200, {"groupName": f"{names}-g"})
            await root(200, {"groupName": f"{names}-g-lite", "attributes": {"+lite.bind.topic": f"{names}-lite"}})
        for user, names in (("victim", "secret"), ("member", "secret"), ("mallory", "own")):
            await root(3001, {"username": user, "password": f"password of {user}"}, username=user)
            await root(3006, {"policies": [{"entries": [
                {"resource": f"{kind}:{names}*", "actions": ["Pub", "Sub", "Get", "Update"], "decision": "Allow"}
                for kind in ("Topic", "Group")]}]}, subject=f"User:{user}")
        for code, body in (
            (34, beat("v", ["p"], "secret-g", "secret")),
            (200_071, lite("v", "secret-g-lite", "secret-lite", "PARTIAL_ADD", "room")),
            (41, {"consumerGroup": "secret-g", "clientId": "v", "mqSet": [
                {"topic": "secret", "brokerName": "broker-a", "queueId": 0}]}),
        ):
            assert (await self.ask("victim", code, body)).code == 0

    def state(self):
        broker, registry = self.controller.broker, self.controller._lite.registry
        return {
            "consumers": {info.group: [(m.client_id, m.channel.peer) for m in info.members.values()]
                          for info in broker.clients.consumers.groups()},
            "producers": {group: [(m.client_id, m.channel.peer) for m in members]
                          for group, members in broker.clients.producers.groups().items()},
            "lite": {client: (one.group, one.topic, sorted(one.queues)) for client, one in registry._clients.items()},
            "ids": {name: owner.user for name, owner in broker.clients.ids._owners.items()},
            "offsets": sorted(broker.offsets.entries()), "log": broker.store.max_phy_offset,
            "locks": {group: {queue: lock[0] for queue, lock in held.items()}
                      for group, held in broker.clients.locks._locks.items()},
        }


async def attack(user, group, topic, path):
    """Return what a user gets, by code; fail if something has changed."""
    async with contextlib.AsyncExitStack() as stack:
        store = stack.enter_context(MessageStore.open(path, config=STORE, broker_config=BrokerConfig()))
        controller = BrokerController(store, BrokerConfig(), auth_config=AuthConfig(
            authentication_enabled=True, authorization_enabled=True, init_authentication_user=FIRST))
        await controller.start(("127.0.0.1", 0), None)
        stack.push_async_callback(controller.stop)
        world = World(controller, stack)
        await world.set_up()
        before, found = world.state(), {}
        for code, all_of_code in requests(group, topic).items():
            for ext, body in all_of_code:
                answer = await world.ask(user, code, body, **ext)
                found.setdefault(code, []).append((answer.code, answer.body))
                assert world.state() == before, (code, ext, body)
        return found


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """The victim of the test answers no request of the broker."""
    monkeypatch.setattr("tailrace.broker.admin.admin.FORWARD_TIMEOUT_MS", 50)
    monkeypatch.setattr("tailrace.broker.consumers.offsets.ASK_TIMEOUT_MS", 50)


def test_another_user_of_the_group_does_nothing_in_the_name_of_the_client(tmp_path):
    found = asyncio.run(attack("member", "secret-g", "secret", tmp_path))
    assert {code for code, answers in found.items() if {answer for answer, _ in answers} != {16}} == MEMBERS_MAY


def test_a_user_reaches_no_client_of_another_group(tmp_path):
    found = asyncio.run(attack("mallory", "secret-g", "secret", tmp_path))
    assert {code for code, answers in found.items() if {answer for answer, _ in answers} != {16}} == set()


def test_the_client_is_one_of_the_group_that_the_request_names(tmp_path):
    found = asyncio.run(attack("mallory", "own-g", "own", tmp_path))
    for code, answers in found.items():
        for answer, body in answers:
            assert answer in {16, 1} or code in MEMBERS_MAY, (code, answer, body)
            assert b"secret" not in body
            assert b"room" not in body


def test_every_request_that_touches_a_client_is_tried():
    touching = {
        code for code, row in REQUESTS.items() if row.role is Role.BROKER and Touch.CLIENT in (row.touches or Touch(0))}
    assert set(requests("g", "t")) == touching
