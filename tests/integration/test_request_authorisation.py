"""Every request of the table by every kind of user that may not use what it touches.

The victim has a topic, a group, clients and messages of every kind. For each row of the table requests are made with
all combinations of the victim's names and names of the sender, always with the victim's records, clients and queues in
the other fields. No answer has a byte of a message of the victim, and nothing of the victim changes. A new row is
covered by its fields; one whose body names its resources needs a body here, or the test fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from pathlib import Path

import access_matrix
import msgspec
import pytest

from tailrace.auth.signature import Credentials, sign
from tailrace.auth_settings import AuthConfig
from tailrace.broker import BrokerController
from tailrace.config import BrokerConfig, StoreConfig
from tailrace.formats import fastjson
from tailrace.formats.remoting import MQ_VERSION
from tailrace.formats.remoting import RequestCode as Code
from tailrace.formats.requests.table import REQUESTS, Role, Touch
from tailrace.kernels.properties import encode_properties
from tailrace.model import MessageExtBrokerInner
from tailrace.node.message_store import MessageStore
from tailrace.remoting import InProcessConnection

pytestmark = [pytest.mark.slow, pytest.mark.integration]

SECRET = b"SALARY of alice"
CREDENTIALS = {name: Credentials(name, f"the password of {name}") for name in
               ("root", "victim", "mallory", "nobody", "gone")}
STORE = StoreConfig(
    mapped_file_size_commit_log=1 << 22, mapped_file_size_consume_queue=20 * 6_000, max_hash_slot_num=1_000,
    max_index_num=4_000, commit_log_allocate_step=1 << 18, mapped_file_size_timer_log=52 * 1_000, enable_lmq=True,
    enable_multi_dispatch=True)
OWN_CLIENT, CLIENT = "client of {}", "client of victim"
RETRY_FORMS = ("%RETRY%vgroup", "%RETRY%vgroup_secret", "%RETRY%vgroup+secret")
OPEN = {Code.HEART_BEAT, Code.UNREGISTER_CLIENT}
"""Requests of a connection about itself, which a user without permissions may send without effect."""
NOT_ASKED = 2.0
"""Seconds after which a request without an answer has none: it waits, or its processor never answers it."""


class Caller:
    """A connection of a user to a server of the broker; received bytes are kept."""

    def __init__(self, server, user):
        self.user, self.pushed = user, []
        self.connection = InProcessConnection(server, ("127.0.0.1", 5000 + len(user)), self.pushed.append)

    def call(self, code, ext, body=b""):
        ext = {name: str(value) for name, value in ext.items()}
        if self.user in CREDENTIALS:
            ext = sign(ext, body, CREDENTIALS[self.user], MQ_VERSION)
        return self.connection.call(code, ext, body)

    async def ask(self, code, ext, body=b""):
        return await asyncio.wait_for(self.call(code, ext, body), 30)

    async def must(self, code, ext, body=None):
        answer = await self.ask(code, ext, b"" if body is None else body if isinstance(body, bytes) else
                                fastjson.dumps(body))
        assert answer.code == 0, (code, ext, answer.code, answer.remark)
        return answer


class World:
    """A broker with its name server, the victim's things, and what they look like."""

    def __init__(self, controller, store):
        self.controller, self.broker, self.store = controller, controller.broker, store
        self.log = Path(store.path) / "commitlog"
        self.records, self.ids, self.handle, self.receipt = [], [], "", ""

    def caller(self, user, role=Role.BROKER):
        servers = self.controller.servers
        return Caller(servers[0] if role is Role.BROKER else servers[-1], user)

    async def set_up(self):
        root = self.caller("root")
        for user in ("victim", "mallory", "nobody", "gone"):
            await root.must(Code.AUTH_CREATE_USER, {"username": user}, {"password": CREDENTIALS[user].secret_key})
        for user, *names in (("victim", "secret", "vgroup"), ("mallory", "own", "mine"), ("gone", "secret", "vgroup")):
            topics, group = ["Topic:{}*", "Topic:%LMQ%{}*"], f"Group:{names[1]}*"
            await root.must(Code.AUTH_CREATE_ACL, {"subject": f"User:{user}"}, {
                "subject": f"User:{user}", "policies": [{"policyType": "Custom", "entries": [
                    {"resource": resource, "actions": ["All"], "decision": "Allow"}
                    for resource in (*(topic.format(names[0]) for topic in topics), group)]}]})
        await root.must(Code.AUTH_DELETE_USER, {"username": "gone"})
        for topic, attributes in (("own", ""), ("secret", ""), ("secretlite", "+message.type=LITE"),
                                  ("ownlite", "+message.type=LITE")):
            await root.must(Code.UPDATE_AND_CREATE_TOPIC, {
                "topic": topic, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
                "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
                **({"attributes": attributes} if attributes else {})})
        for group, attributes in (("mine", {}), ("vgroup", {}), ("vgrouplite", {"+lite.bind.topic": "secretlite"}),
                                  ("minelite", {"+lite.bind.topic": "secretlite"})):
            await root.must(
                Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, {"groupName": group, "attributes": attributes})
        await self._victim()
        self.store.wait_dispatched()

    async def _victim(self):
        self.victim = victim = self.caller("victim")
        await victim.must(Code.HEART_BEAT, {}, heartbeat(CLIENT, "vgroup", "secret", "vproducers"))
        await victim.must(Code.LOCK_BATCH_MQ, {}, locks(CLIENT, "vgroup", "secret"))
        for properties in ({}, {"INNER_MULTI_DISPATCH": "%LMQ%secretq"}, {"TRAN_MSG": "true", "PGROUP": "vproducers",
                           "UNIQ_KEY": "K"}, {"TIMER_DELAY_SEC": "3000", "UNIQ_KEY": "T"}, {"DELAY": "18"}):
            answer = await victim.must(Code.SEND_MESSAGE_V2, message("secret", properties), SECRET)
            self.records.append(int(answer.ext["msgId"][-16:], 16))
            self.handle = answer.ext.get("recallHandle") or self.handle
        topics = self.store.topics
        for topic, properties in (("%RETRY%vgroup", {"REAL_TOPIC": "%RETRY%vgroup"}), ("%DLQ%vgroup", {}),
                                  ("%RETRY%vgroup_secret", {"ORIGIN_GROUP": "vgroup"}), ("%RETRY%vgroup+secret", {}),
                                  ("TRANS_CHECK_MAX_TIME_TOPIC", {"REAL_TOPIC": "secret", "REAL_QID": "0",
                                                                  "PGROUP": "vproducers", "UNIQ_KEY": "G"})):
            topics.create_if_missing(topic, 1)
            result = self.store.put_inner(MessageExtBrokerInner(topic, 0, SECRET, encode_properties(properties)))
            self.records.append(result.phy_offset)
        self.ids = [f"7F00000100002A9F{at:016X}" for at in self.records]
        self.store.wait_dispatched()
        for group, topic in (("vgroup", "secret"), ("vgroup", "%RETRY%vgroup")):
            await victim.must(Code.UPDATE_CONSUMER_OFFSET, {
                "consumerGroup": group, "topic": topic, "queueId": 0, "commitOffset": 1})
        popped = await victim.must(Code.POP_MESSAGE, {
            "consumerGroup": "vgroup", "topic": "secret", "queueId": 0, "maxMsgNums": 1, "invisibleTime": 600_000,
            "pollTime": 0, "bornTime": self.broker.clock.now_ms(), "initMode": 0})
        begin, _, _ = popped.ext["startOffsetInfo"].partition(";")
        time, revive = popped.ext["popTime"], popped.ext["reviveQid"]
        flag, queue, offset = begin.split(" ")
        self.receipt = f"{offset} {time} 600000 {revive} {flag} {self.broker.config.broker_name} {queue} {offset}"

    def state(self):
        """Everything that belongs to the victim or to the broker, in a form that can be compared."""
        broker, store = self.broker, self.store
        others = {t: c.to_json() for t, c in broker.topics.table.items() if not _of_mallory(t)}
        offsets = {key: value for key, value in broker.offsets.to_json()["offsetTable"].items()
                   if not _of_mallory(key.partition("@")[0])}
        group, queues = broker.clients.consumers.find("vgroup"), {}
        for topic in (*RETRY_FORMS, "secret", "%DLQ%vgroup", "%LMQ%secretq", "%LMQ%$secretlite$a",
                      "TRANS_CHECK_MAX_TIME_TOPIC"):
            queues[topic] = store.queue_of(topic, 0).max
        return {
            "topics": others, "offsets": offsets, "queues": queues,
            "groups": {g.group_name: g.to_json() for g in broker.groups.items() if not _of_mallory(g.group_name)},
            "members": [(m.client_id, m.subscriptions) for m in group.members.values()],
            "producers": [
                m.channel.peer for m in broker.clients.producers.members("vproducers") if m.client_id == CLIENT],
            "owner": broker.clients.ids.user_of(CLIENT), "locked": broker.clients.locks.is_locked("vgroup"),
            "half": broker.transactions.queue.is_pending(0),
            "users": [(u.name, u.password, u.is_super) for u in self.controller.access.users.values()],
            "entries": [repr(a) for a in self.controller.access.acls.values()],
            "route": json.dumps(broker.name_servers.route("secret"), default=repr), "settings": repr(broker.config),
            "copies": sum(file.read_bytes().count(SECRET) for file in self.log.iterdir()),
        }


def _of_mallory(name):
    return name.startswith(("own", "mine", "%RETRY%mine", "%DLQ%mine", "%LMQ%own"))


def message(topic, properties, producers="vproducers"):
    return {"a": producers, "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 4 if "TRAN_MSG" in properties else 0,
            "g": 1, "h": 0, "i": encode_properties(properties).decode(), "j": 0, "k": "false"}


def heartbeat(client, group, topic, producers):
    return {"clientID": client, "producerDataSet": [{"groupName": producers}], "consumerDataSet": [{
        "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": [
            {"topic": name, "subString": "*", "subVersion": 1} for name in (topic, f"%RETRY%{group}")]}]}


def locks(client, group, topic):
    return {"consumerGroup": group, "clientId": client, "mqSet": [
        {"topic": topic, "brokerName": "broker-a", "queueId": 0}]}


# --- the requests of a row


def bodies(topic, group, client, broker):
    """The bodies of the rows whose body names the resources, by code."""
    name = {"topicName": topic, "readQueueNums": 9, "writeQueueNums": 9, "perm": 2}
    config = {"groupName": group, "consumeEnable": False}
    return {
        Code.HEART_BEAT: heartbeat(client, group, topic, "vproducers"),
        Code.LOCK_BATCH_MQ: locks(client, group, topic), Code.UNLOCK_BATCH_MQ: locks(client, group, topic),
        Code.UPDATE_AND_CREATE_TOPIC_LIST: {"topicConfigList": [name]},
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: config,
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: {"groupConfigList": [config]},
        Code.DELETE_TOPIC_IN_BROKER_LIST: {"topicList": [topic]},
        Code.DELETE_SUBSCRIPTION_GROUP_LIST: {"groupNameList": [group]},
        Code.CHECK_CLIENT_CONFIG: {"clientId": client, "group": group, "subscriptionData": {
            "topic": topic, "subString": "*", "expressionType": "TAG"}},
        Code.QUERY_ASSIGNMENT: {"topic": topic, "consumerGroup": group, "clientId": client, "strategyName": "AVG",
                                "messageModel": "CLUSTERING"},
        Code.SET_MESSAGE_REQUEST_MODE: {"topic": topic, "consumerGroup": group, "mode": "POP", "popShareQueueNum": 0},
        Code.BATCH_ACK_MESSAGE: {"brokerName": broker, "acks": [
            {"c": group, "t": topic, "r": "0", "so": 0, "q": 0, "rq": 0, "pt": 1, "it": 600_000, "b": "AQ=="}]},
        Code.LITE_SUBSCRIPTION_CTL: {"subscriptionSet": [
            {"action": "COMPLETE_REMOVE", "clientId": client, "group": group, "topic": topic, "liteTopicSet": ["a"]}]},
    }


FOREIGN_PROPERTIES = (
    {}, {"INNER_MULTI_DISPATCH": "%LMQ%secretq"}, {"INNER_MULTI_DISPATCH": "%LMQ%$secretlite$a"},
    {"REPLY_TO_CLIENT": CLIENT, "CORRELATION_ID": "1", "TTL": "3000"}, {"RETRY_TOPIC": "secret"},
    {"TRAN_MSG": "true", "PGROUP": "vproducers", "UNIQ_KEY": "K"})


def fields(row, world, topic, group, record, properties, user):
    """The fields of a request: names as given, everything else is the victim's if it can be."""
    client = {"clientId", "clientID", "clientAddr"}
    known = {
        "offset": world.records[record], "commitLogOffset": world.records[record], "msgId": world.ids[record],
        "offsetMsgId": world.ids[record], "originMsgId": world.ids[record], "messageId": world.ids[record],
        "extraInfo": world.receipt, "recallHandle": world.handle, "tranStateTableOffset": 0, "transactionId": "K",
        "producerGroup": "vproducers", "a": "vproducers", "originTopic": "secret", "srcGroup": "vgroup",
        "commitOrRollback": 8 if record % 2 else 12, "key": "K", "maxNum": 10, "beginTimestamp": 0,
        "endTimestamp": 1 << 60, "maxMsgNums": 8, "queueOffset": 0, "commitOffset": 7, "invisibleTime": 1_000,
        "properties": encode_properties(properties).decode(), "i": encode_properties(properties).decode(),
        "brokerName": world.broker.config.broker_name, "brokerAddr": "10.9.9.9:1", "subscription": "*",
        "sysFlag": 4 if Touch.PROPERTIES not in row.touches or "TRAN_MSG" in properties else 0,
        "f": 4 if "TRAN_MSG" in properties else 0, "delayLevel": 1, "suspendTimeoutMillis": 0, "pollTime": 0,
        "bornTime": world.broker.clock.now_ms(), "initMode": 0, "readQueueNums": 9, "writeQueueNums": 9, "perm": 2,
        "timestamp": 0, "isForce": "true", "defaultTopicQueueNums": 4, "d": 4, "topicFilterType": "SINGLE_TAG",
        "username": "victim", "subject": "User:victim", "namespace": "ORDER_TOPIC_CONFIG", "value": "x",
        "liteTopic": "", "queueId": 0, "e": 0, "timeoutMillis": 1, "expressionType": "TAG", "jobs": "", "n": 0}
    made = {}
    for field in msgspec.structs.fields(row.header) if row.header is not None else ():
        name = field.encode_name
        if name in client:
            made[name] = CLIENT
        elif name in known:
            made[name] = known[name]
        elif field.required:
            made[name] = "false" if field.type is bool else "text" if field.type is str else 1
    for part in row.named.split():
        kind, _, name = part.partition(":")
        if name:
            named = {"Topic": topic, "Group": group, "Cluster": "DefaultCluster"}[kind]
            name = name.rstrip("~^=?;,")
            if named is None:
                made.pop(name, None)
            else:
                made[name] = named
    return made


def requests(row, world, user):
    """Yield (fields, body) of the requests of a row."""
    topics = ["secret", "own", None, *RETRY_FORMS, "%LMQ%secretq", "%LMQ%$secretlite$a", "secretlite"]
    groups = ["vgroup", "mine", None, "minelite", "%RETRY%vgroup"]
    if not row.named or row.named.startswith("Cluster"):
        topics, groups = [None], [None]
    elif "Topic" not in row.named and row.named != "body":
        topics = [None]
    elif "Group" not in row.named and row.named != "body":
        groups = [None]
    records = range(len(world.records)) if Touch.RECORD in row.touches else [0]
    properties = FOREIGN_PROPERTIES if Touch.PROPERTIES in row.touches else ({},)
    for topic, group, record, one in itertools.product(topics, groups, records, properties):
        ext = fields(row, world, topic, group, record, one, user)
        if row.named == "body":
            for client in (CLIENT, OWN_CLIENT.format(user)):
                found = bodies(topic or "", group or "", client, world.broker.config.broker_name)
                assert row.code in found, f"the body of {row.code.name} names its resources: give it one here"
                yield ext, fastjson.dumps(found[row.code])
        elif row.code in BODIES:
            yield ext, BODIES[row.code]
        elif row.code is Code.SEND_BATCH_MESSAGE:
            yield ext, batch(one)
        else:
            yield ext, b"FORGED" if Touch.PROPERTIES in row.touches else b""


def batch(properties):
    """The body of a batch of one message."""
    stored = encode_properties(properties)
    return b"".join(((23 + len(stored)).to_bytes(4, "big"), bytes(12), (1).to_bytes(4, "big"), b"x",
                     len(stored).to_bytes(2, "big"), stored))


BODIES = {
    Code.AUTH_CREATE_USER: fastjson.dumps({"password": "p", "userType": "Super"}),
    Code.AUTH_UPDATE_USER: fastjson.dumps({"password": "p"}),
    Code.AUTH_CREATE_ACL: access_matrix._BODIES[Code.AUTH_CREATE_ACL],
    Code.AUTH_UPDATE_ACL: access_matrix._BODIES[Code.AUTH_UPDATE_ACL],
    Code.UPDATE_BROKER_CONFIG: b"maxTopics=1\n", Code.UPDATE_NAMESRV_CONFIG: b"orderMessageEnable=true\n",
}


ROWS = [row for row in REQUESTS.values() if row.role is not Role.CLIENT]


@contextlib.asynccontextmanager
async def running(path):
    with MessageStore.open(path, config=STORE, broker_config=BrokerConfig()) as store:
        controller = BrokerController(store, BrokerConfig(), auth_config=AuthConfig(
            authentication_enabled=True, authorization_enabled=True, authentication_failures_max=0,
            init_authentication_user=json.dumps({"username": "root", "password": CREDENTIALS["root"].secret_key})))
        await controller.start(("127.0.0.1", 0), ("127.0.0.1", 0))
        try:
            world = World(controller, store)
            await world.set_up()
            yield world
        finally:
            await controller.stop()


@pytest.mark.parametrize("user", ["stranger", "nobody", "gone", "mallory"])
def test_no_request_reads_or_changes_anything_of_another_user(tmp_path, user):
    async def scenario():
        async with running(tmp_path) as world:
            before, reached = world.state(), {}
            assert all(before[name] for name in ("members", "producers", "half", "locked"))
            for row in ROWS:
                caller = world.caller(user, row.role)
                asked = [(ext, caller.call(row.code, ext, body)) for ext, body in requests(row, world, user)]
                await asyncio.wait([future for _, future in asked], timeout=NOT_ASKED)
                for ext, future in asked:
                    if not future.done():
                        continue
                    answer = future.result()
                    assert SECRET not in answer.body, (row.code.name, ext, answer.body[:200])
                    assert SECRET.decode() not in f"{answer.remark}{answer.ext}", (row.code.name, ext)
                    reached[answer.code] = reached.get(answer.code, 0) + 1
                    assert answer.code == 16 or user == "mallory" or row.code in OPEN, (row.code.name, ext, answer)
                assert not any(SECRET in pushed.body for pushed in caller.pushed), row.code.name
                world.store.wait_dispatched()
                after = world.state()
                changed = {name: (was, after[name]) for name, was in before.items() if after[name] != was}
                assert not changed, (row.code.name, changed)
                caller.connection.close()
            assert reached[16] > 100
            if user == "mallory":  # the names of the sender let requests reach the processors
                assert sum(count for code, count in reached.items() if code != 16) > 100
            await works_for_the_victim(world)

    asyncio.run(scenario())


async def works_for_the_victim(world):
    """What the requests tried to take or to end is still the victim's."""
    victim = world.victim
    for at in world.records:
        answer = await victim.ask(Code.VIEW_MESSAGE_BY_ID, {"offset": at, "topic": ""})
        assert answer.code in {0, 16}, answer  # without a topic it is a question about the cluster
    pulled = await victim.must(Code.PULL_MESSAGE, {
        "consumerGroup": "vgroup", "topic": "secret", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 4,
        "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0, "expressionType": "TAG"})
    assert pulled.body.count(SECRET) == world.store.queue_of("secret", 0).max
    await victim.must(Code.ACK_MESSAGE, {
        "consumerGroup": "vgroup", "topic": "secret", "queueId": 0, "extraInfo": world.receipt,
        "offset": world.receipt.split(" ")[-1]})
    await victim.must(Code.END_TRANSACTION, {
        "producerGroup": "vproducers", "tranStateTableOffset": 0, "commitLogOffset": world.records[2],
        "commitOrRollback": 8, "fromTransactionCheck": "false", "msgId": "K", "transactionId": "K", "topic": "secret"})
    await victim.must(Code.RECALL_MESSAGE, {"topic": "secret", "recallHandle": world.handle, "producerGroup": "p"})
