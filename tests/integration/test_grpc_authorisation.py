"""Every gRPC method by every kind of user that may not use it: nothing of another user is read or changed.

The victim has a topic and a group of each kind, clients of both protocols, a received message, a half message and a
delayed one. Attackers name all combinations of these with names of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import hashlib
import hmac
import itertools
import json
from typing import NamedTuple

import pytest

pytest.importorskip("rocketmq.grpc_protocol")

import grpc
from grpc_client import Code, definition, message, named, seconds, service
from rocketmq.grpc_protocol.service_pb2_grpc import MessagingServiceStub

from tailrace.auth_settings import AuthConfig
from tailrace.broker import BrokerController
from tailrace.client import Credentials
from tailrace.config import BrokerConfig, StoreConfig
from tailrace.node.message_store import MessageStore
from tailrace.proxy import admission
from tailrace.proxy.entry import _ACCESSES
from tailrace.proxy.server import GrpcListener, GrpcServer
from tailrace.remoting.client import RemotingClient

pytestmark = [pytest.mark.slow, pytest.mark.integration]

SECRET = b"SALARY of alice"
PASSWORDS = {name: f"the password of {name}" for name in ("root", "victim", "mallory", "nobody", "gone")}
FIRST = json.dumps({"username": "root", "password": PASSWORDS["root"]})
TOPICS = {"": "NORMAL", "-half": "TRANSACTION", "-later": "DELAY", "-lite": "LITE"}
GROUPS = {"": {}, "-lite": {"+lite.bind.topic": "{}-lite"}}
Action, Kind = definition.LiteSubscriptionAction, definition.ClientType
STORE = StoreConfig(
    mapped_file_size_commit_log=1 << 22, mapped_file_size_consume_queue=20 * 6_000, max_hash_slot_num=1_000,
    max_index_num=4_000, commit_log_allocate_step=1 << 18, mapped_file_size_timer_log=52 * 1_000, enable_lmq=True,
    enable_multi_dispatch=True)


class Names(NamedTuple):
    """What a request names; what it refers to (handles, ids) is the victim's in any case."""

    topic: str
    group: str
    client: str


class Caller:
    """Calls of a user; without a user they are not signed."""

    def __init__(self, stub, user):
        self.stub, self.user = stub, user

    def metadata(self, client):
        made = [("x-mq-client-id", client), ("x-mq-language", "PYTHON"), ("x-mq-client-version", "5.1.2")]
        if self.user:
            now = f"{dt.datetime.now(dt.UTC):%Y%m%dT%H%M%SZ}"
            signature = hmac.new(PASSWORDS[self.user].encode(), now.encode(), hashlib.sha1).hexdigest().upper()
            header = (f"MQv2-HMAC-SHA1 Credential={self.user}/r/s, SignedHeaders=x-mq-date-time, "
                      f"Signature={signature}")
            made += [("x-mq-date-time", now), ("authorization", header)]
        return made

    async def __call__(self, client, method, request):
        """Return the status code and all bytes of the answer; of entries the first code that is not OK."""
        call = getattr(self.stub, method)
        if method == "Telemetry":
            stream = call(metadata=self.metadata(client))
            try:
                await stream.write(request)
                answer = await asyncio.wait_for(stream.read(), 10 if request.HasField("settings") else 0.2)
                return answer.status.code, answer.SerializeToString()
            except TimeoutError:
                return None, b""
            except grpc.aio.AioRpcError as error:
                return error.code().name, str(error.details()).encode()
            finally:
                stream.cancel()
        if method == "ReceiveMessage":
            found = [answer async for answer in call(request, metadata=self.metadata(client), timeout=20)]
            return found[0].status.code, b"".join(answer.SerializeToString() for answer in found)
        answer = await call(request, metadata=self.metadata(client), timeout=20)
        codes = [answer.status.code, *(entry.status.code for entry in getattr(answer, "entries", ()))]
        return next((code for code in codes if code != Code.OK), Code.OK), answer.SerializeToString()

    async def ok(self, client, method, request):
        code, data = await self(client, method, request)
        assert code == Code.OK, (method, code, data)
        return getattr(service, f"{method}Response").FromString(data) if method not in {
            "Telemetry", "ReceiveMessage"} else data


def producer(*topics):
    return service.TelemetryCommand(settings=definition.Settings(
        client_type=Kind.PRODUCER, publishing=definition.Publishing(topics=map(named, topics))))


def consumer(group, topic, kind=Kind.PUSH_CONSUMER):
    return service.TelemetryCommand(settings=definition.Settings(
        client_type=kind, request_timeout=seconds(3), subscription=definition.Subscription(
            group=named(group), subscriptions=[definition.SubscriptionEntry(
                topic=named(topic), expression=definition.FilterExpression(expression="*"))])))


def receive(group, topic, **more):
    return service.ReceiveMessageRequest(
        group=named(group), batch_size=8, invisible_duration=seconds(300), long_polling_timeout=seconds(1),
        message_queue=definition.MessageQueue(topic=named(topic), id=-1),
        filter_expression=definition.FilterExpression(expression="*"), **more)


def sync(group, topic, action, *lite_topics, **more):
    return service.SyncLiteSubscriptionRequest(
        action=Action.Value(action), topic=named(topic), group=named(group), lite_topic_set=lite_topics, **more)


class World:
    """A broker with the gRPC endpoint, its users, and what the victim has."""

    def __init__(self, controller, server, stub, stack):
        self.controller, self.server, self.stack = controller, server, stack
        self.callers = {name: Caller(stub, name) for name in PASSWORDS} | {"stranger": Caller(stub, "")}

    async def set_up(self):
        root = RemotingClient(credentials=Credentials("root", PASSWORDS["root"]))
        self.stack.push_async_callback(root.close)

        async def ask(code, body=None, **ext):
            answer = await root.invoke(
                self.controller.broker_address, code, {name: str(value) for name, value in ext.items()},
                b"" if body is None else json.dumps(body).encode())
            assert answer.code == 0, (code, answer.remark)

        for name in ("victim", "mallory", "nobody", "gone"):
            await ask(3001, {"username": name, "password": PASSWORDS[name]}, username=name)
        for owner, names in (("victim", "secret"), ("mallory", "own")):
            for suffix, kind in TOPICS.items():
                await ask(17, topic=names + suffix, defaultTopic="TBW102", readQueueNums=1, writeQueueNums=1, perm=6,
                          topicFilterType="SINGLE_TAG", attributes=f"+message.type={kind}")
            for suffix, attributes in GROUPS.items():
                await ask(200, {"groupName": names + "-g" + suffix, "attributes": {
                    key: value.format(names) for key, value in attributes.items()}})
            for subject in (owner, *(["gone"] if owner == "victim" else [])):
                await ask(3006, {"policies": [{"entries": [
                    {"resource": f"Topic:{names}*", "actions": ["Pub", "Sub"], "decision": "Allow"},
                    {"resource": f"Group:{names}-g*", "actions": ["Sub"], "decision": "Allow"}]}]},
                    subject=f"User:{subject}")
        await ask(3003, username="gone")
        await self.set_up_victim()

    async def set_up_victim(self):
        victim = self.callers["victim"]
        remote = RemotingClient(credentials=Credentials("victim", PASSWORDS["victim"]))
        self.stack.push_async_callback(remote.close)
        answer = await remote.invoke(self.controller.broker_address, 34, {}, json.dumps({
            "clientID": "v-remote", "producerDataSet": [{"groupName": "secret-producers"}]}).encode())
        assert answer.code == 0
        self.streams = {}
        for client, command in (
            ("v-push", consumer("secret-g", "secret")), ("v-prod", producer("secret", "secret-half", "secret-later")),
            ("v-lite", consumer("secret-g-lite", "secret-lite", Kind.LITE_PUSH_CONSUMER)),
        ):
            stream = self.streams[client] = victim.stub.Telemetry(metadata=victim.metadata(client))
            self.stack.callback(stream.cancel)
            await stream.write(command)
            assert (await stream.read()).status.code == Code.OK
        await victim.ok("v-prod", "SendMessage", service.SendMessageRequest(messages=[message("secret", SECRET)]))
        self.half = (await victim.ok("v-prod", "SendMessage", service.SendMessageRequest(messages=[
            message("secret-half", SECRET, message_type=definition.MessageType.TRANSACTION)]))).entries[0]
        at = seconds(3600 + dt.datetime.now(dt.UTC).timestamp())
        later = message("secret-later", SECRET)
        later.system_properties.delivery_timestamp.seconds = at.seconds
        self.recall = (await victim.ok(
            "v-prod", "SendMessage", service.SendMessageRequest(messages=[later]))).entries[0].recall_handle
        await victim.ok("v-lite", "SyncLiteSubscription", sync("secret-g-lite", "secret-lite", "PARTIAL_ADD", "room"))
        await victim.ok("v-prod", "SendMessage", service.SendMessageRequest(
            messages=[message("secret-lite", SECRET, lite_topic="room")]))
        self.received = await self.receive(victim, "v-push", "secret-g", "secret")
        self.lite = await self.receive(victim, "v-lite", "secret-g-lite", "secret-lite")

    async def receive(self, caller, client, group, topic):
        async with asyncio.timeout(20):
            while True:
                call = caller.stub.ReceiveMessage(
                    receive(group, topic, auto_renew=True), metadata=caller.metadata(client), timeout=20)
                found = [answer.message async for answer in call if answer.WhichOneof("content") == "message"]
                if found:
                    return found[0]

    def state(self):
        """What the victim and others have: queues, tables, and who is a member of what."""
        broker, registry = self.controller.broker, self.controller._lite.registry
        return {
            "ends": {(topic, queue_id): broker.store.queue_of(topic, queue_id).max
                     for topic, queue_id, *_ in broker.store.queues()
                     if not topic.startswith(("own", "%RETRY%own", "%DLQ%own", "rmq_sys_"))},
            "offsets": sorted(entry for entry in broker.offsets.entries() if "own" not in entry[1]
                              and "REVIVE" not in entry[0] and not entry[1].startswith("CID_RMQ_SYS")),
            "consumers": {info.group: sorted(info.client_ids()) for info in broker.clients.consumers.groups()},
            "producers": {group: sorted(m.client_id for m in members)
                          for group, members in broker.clients.producers.groups().items()},
            "lite": {client: (one.group, one.topic, sorted(one.queues)) for client, one in registry._clients.items()},
            "ids": {name: owner.user for name, owner in broker.clients.ids._owners.items() if name != "m-new"},
            "clients": {client.client_id: (client.caller.user, client.send is not None, sorted(client.renewed))
                        for client in self.server._clients.all() if client.client_id != "m-new"},
            "names": (sorted(broker.topics.table), sorted(group.group_name for group in broker.groups.items())),
        }

    def requests(self, n):
        """Every request with these names, by method."""
        half, tx, lite = self.half, definition.TransactionResolution, self.lite.system_properties
        one = self.received.system_properties
        handles = {"message_id": one.message_id, "receipt_handle": one.receipt_handle}
        lites = {"message_id": lite.message_id, "receipt_handle": lite.receipt_handle, "lite_topic": "room"}
        topic, group = named(n.topic), named(n.group)
        lite_topic, lite_group = named(f"{n.topic}-lite"), named(f"{n.group}-lite")
        both = [(topic, group, handles), (lite_topic, lite_group, lites), *(
            (topic, group, {**handles, "receipt_handle": " ".join([*fields[:4], flag, *fields[5:]])})
            for fields in [one.receipt_handle.split(" ")] for flag in "12")]  # as if it came from a retry topic
        sends = [[message(n.topic)], [message("own"), message(n.topic)],
                 [message(f"{n.topic}-half", message_type=definition.MessageType.TRANSACTION)],
                 [message(f"{n.topic}-lite", lite_topic="room")]]
        yield from (("SendMessage", service.SendMessageRequest(messages=messages)) for messages in sends)
        yield "RecallMessage", service.RecallMessageRequest(topic=named(f"{n.topic}-later"), recall_handle=self.recall)
        for end in (tx.COMMIT, tx.ROLLBACK):
            yield "EndTransaction", service.EndTransactionRequest(
                topic=named(f"{n.topic}-half"), message_id=half.message_id, transaction_id=half.transaction_id,
                resolution=end)
        yield from (("Heartbeat", service.HeartbeatRequest(client_type=kind, group=group))
                    for kind in (Kind.PRODUCER, Kind.PUSH_CONSUMER))
        yield "ReceiveMessage", receive(n.group, n.topic)
        yield "ReceiveMessage", receive(f"{n.group}-lite", f"{n.topic}-lite")
        for topic_, group_, handle in both:
            yield "AckMessage", service.AckMessageRequest(
                topic=topic_, group=group_, entries=[service.AckMessageEntry(**handle)])
            yield "ForwardMessageToDeadLetterQueue", service.ForwardMessageToDeadLetterQueueRequest(
                topic=topic_, group=group_, **handle)
            yield "ChangeInvisibleDuration", service.ChangeInvisibleDurationRequest(
                topic=topic_, group=group_, invisible_duration=seconds(10), **handle)
            yield "QueryAssignment", service.QueryAssignmentRequest(topic=topic_, group=group_)
        yield "NotifyClientTermination", service.NotifyClientTerminationRequest(group=group)
        yield "NotifyClientTermination", service.NotifyClientTerminationRequest()
        yield "QueryRoute", service.QueryRouteRequest(topic=topic)
        for action in Action.keys():  # noqa: SIM118 - an enum of protobuf
            yield "SyncLiteSubscription", sync(
                f"{n.group}-lite", f"{n.topic}-lite", action, "room",
                offset_option=definition.OffsetOption(policy=definition.OffsetOption.MIN))
        yield "Telemetry", producer(n.topic, f"{n.topic}-half")
        yield "Telemetry", consumer(n.group, n.topic)
        yield "Telemetry", consumer(f"{n.group}-lite", f"{n.topic}-lite", Kind.LITE_PUSH_CONSUMER)

    def of_client(self):
        """Requests that name nothing but their client."""
        yield "Telemetry", producer()
        yield "Telemetry", service.TelemetryCommand(
            status=definition.Status(code=Code.OK), verify_message_result=service.VerifyMessageResult(nonce="1"))
        yield "Telemetry", service.TelemetryCommand(thread_stack_trace=service.ThreadStackTrace(nonce="1"))
        yield "SendMessage", service.SendMessageRequest(messages=[message(
            "own", user={"INNER_MULTI_DISPATCH": "%LMQ%secretq,%LMQ%$secret-lite$room"})])

    def of_topics(self):
        """Requests that name a topic of the broker's own that has messages of the victim, and an own group."""
        for name in ("%RETRY%secret-g", "%RETRY%secret-g_secret", "%DLQ%secret-g", "%LMQ%$secret-lite$room",
                     "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer", "secret_REPLY_TOPIC"):
            namespace, _, rest = name[1:].partition("%")
            for topic in [definition.Resource(name=name), *([definition.Resource(
                    resource_namespace=f"%{namespace}", name=rest)] if rest else [])]:
                yield "SendMessage", service.SendMessageRequest(messages=[message("")])
                request = service.SendMessageRequest(messages=[message(name)])
                request.messages[0].topic.CopyFrom(topic)
                yield "SendMessage", request
                request = receive("own-g", name)
                request.message_queue.topic.CopyFrom(topic)
                yield "ReceiveMessage", request
                yield "QueryRoute", service.QueryRouteRequest(topic=topic)
                yield "QueryAssignment", service.QueryAssignmentRequest(topic=topic, group=named("own-g"))
                for settings in (producer(name), consumer("own-g", name)):
                    for entry in (settings.settings.publishing.topics or settings.settings.subscription.subscriptions):
                        (entry if hasattr(entry, "resource_namespace") else entry.topic).CopyFrom(topic)
                    yield "Telemetry", settings

    def attacks(self):
        """Yield names, method and request: something in each is the victim's."""
        theirs, own = ("secret", "secret-g"), ("own", "own-g")
        for topic, group in itertools.product(("secret", "own"), ("secret-g", "own-g")):
            for client in ("m-new", "v-push", "v-lite", "v-prod", "v-remote"):
                n = Names(topic, group, client)
                for method, request in self.requests(n):
                    if (topic, group) == own and client == "m-new" and method not in REFERRING:
                        continue
                    if client == "m-new" and (topic, group) != theirs and names_own(request):
                        continue
                    yield n, method, request
        yield from ((Names("", "", "m-new"), method, request) for method, request in self.of_topics())
        for client in ("m-new", "v-push", "v-lite", "v-prod", "v-remote"):
            yield from ((Names("", "", client), method, request) for method, request in self.of_client())


REFERRING = {
    "RecallMessage", "EndTransaction", "AckMessage", "ForwardMessageToDeadLetterQueue", "ChangeInvisibleDuration"}


def names_own(request):
    """Whether a request names nothing of the victim, and refers to nothing of it."""
    return b"secret" not in request.SerializeToString() and not hasattr(request, "recall_handle") and not hasattr(
        request, "transaction_id") and not hasattr(request, "receipt_handle") and not hasattr(request, "entries")


@contextlib.asynccontextmanager
async def world_at(path):
    async with contextlib.AsyncExitStack() as stack:
        store = stack.enter_context(MessageStore.open(path, config=STORE, broker_config=BrokerConfig()))
        controller = BrokerController(store, BrokerConfig(), auth_config=AuthConfig(
            authentication_enabled=True, authorization_enabled=True, init_authentication_user=FIRST))
        await controller.start(("127.0.0.1", 0), None)
        stack.push_async_callback(controller.stop)
        listener, server = GrpcListener("127.0.0.1", 0), GrpcServer(controller)
        await server.serve_on(listener)
        stack.push_async_callback(server.stop)
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(listener.address))
        world = World(controller, server, MessagingServiceStub(channel), stack)
        await world.set_up()
        yield world


OWN_STATE = {"AckMessage", "ChangeInvisibleDuration"}
"""With names of its own and a handle of the victim a user changes its own progress at most."""


async def attack(world, user):
    """Return what went wrong."""
    wrong, caller = [], world.callers[user]
    allowed = {"stranger": {Code.UNAUTHORIZED}, "gone": {Code.UNAUTHORIZED}}.get(user)
    before = world.state()
    for names, method, request in world.attacks():
        code, data = await caller(names.client, method, request)
        what = user, names, method, str(request)[:300], code, data[:100]
        if SECRET in data:
            wrong.append(("a body of the victim", *what))
        if allowed is not None and code not in allowed:
            wrong.append(("another status", *what))
        own = names.client == "m-new" and (
            (names.topic == "own" and names.group == "own-g" and method in OWN_STATE) or request == producer())
        if code == Code.OK and not (own and user == "mallory"):
            wrong.append(("served", *what))
        await asyncio.to_thread(world.controller.broker.store.wait_dispatched)
        if (after := world.state()) != before:
            wrong.append(("changed", *what, {
                key: (before[key], value) for key, value in after.items() if before[key] != value}))
            before = after
    return wrong


@pytest.mark.parametrize("user", ["stranger", "nobody", "mallory", "gone"])
def test_nothing_of_another_user_is_read_or_changed(tmp_path, monkeypatch, user):
    monkeypatch.setattr(admission, "NO_USER_BURST", 1_000_000)  # all callers share a connection

    async def scenario():
        async with world_at(tmp_path) as world:
            wrong = await attack(world, user)
            assert not wrong, f"{len(wrong)}:\n" + "\n".join(map(str, wrong[:20]))
            await still_served(world)

    asyncio.run(scenario())


async def still_served(world):
    """The victim settles what it has."""
    victim, one, lite = world.callers["victim"], world.received.system_properties, world.lite.system_properties
    await victim.ok("v-push", "AckMessage", service.AckMessageRequest(
        topic=named("secret"), group=named("secret-g"), entries=[service.AckMessageEntry(
            message_id=one.message_id, receipt_handle=one.receipt_handle)]))
    await victim.ok("v-lite", "AckMessage", service.AckMessageRequest(
        topic=named("secret-lite"), group=named("secret-g-lite"), entries=[service.AckMessageEntry(
            message_id=lite.message_id, receipt_handle=lite.receipt_handle, lite_topic="room")]))
    await victim.ok("v-prod", "RecallMessage", service.RecallMessageRequest(
        topic=named("secret-later"), recall_handle=world.recall))
    await victim.ok("v-prod", "EndTransaction", service.EndTransactionRequest(
        topic=named("secret-half"), message_id=world.half.message_id, transaction_id=world.half.transaction_id,
        resolution=definition.TransactionResolution.COMMIT))
    for client, group in (("v-push", "secret-g"), ("v-lite", "secret-g-lite")):
        await victim.ok(client, "Heartbeat", service.HeartbeatRequest(
            client_type=Kind.PUSH_CONSUMER, group=named(group)))


def test_every_method_is_tried(tmp_path):
    """A new method of the service is in the table of permissions and in this test."""
    async def scenario():
        async with world_at(tmp_path) as world:
            return {type(request) for _, _, request in world.attacks()}

    assert asyncio.run(scenario()) == set(_ACCESSES)
