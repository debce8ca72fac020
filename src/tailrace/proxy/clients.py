"""Clients that have sent their settings: a connection to the broker, a stream for its commands, receipts.

A client is known from its first settings until it says goodbye, or until it has sent no heartbeat for
``channelExpiredTimeout``; the broker then closes its connection.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, TypeVar, cast, final

from tailrace import events
from tailrace.broker.clients.client_manager import ClientIds
from tailrace.env.clock import Clock
from tailrace.env.supervision import caught
from tailrace.errors import RefusalError, RemotingConnectError
from tailrace.formats import fastjson
from tailrace.formats.remoting import MQ_VERSION, RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests.custom_header import CustomHeader
from tailrace.logs import get_logger
from tailrace.proxy.caller import Caller, born_host_of
from tailrace.proxy.protocol import Code, GrpcError, definition, name_of, of_refusal
from tailrace.proxy.receipts import ReceiptHandle
from tailrace.remoting import Channel, InProcessConnection, RemotingServer
from tailrace.remoting.in_process import HeaderCommand
from tailrace.remoting.limits import CLIENTS, SETTINGS, CallLimits
from tailrace.remoting.server import failure_of
from tailrace.remoting.shares import Holder
from tailrace.requests.reply import Failure, Reply

__all__ = ["CONSUMERS", "LITE", "Client", "Clients", "Renewed", "ServiceCall"]

_log = get_logger(__name__)
_Result = TypeVar("_Result")
_Types = definition.ClientType
LITE: Final = _Types.LITE_PUSH_CONSUMER
CONSUMERS: Final = {
    _Types.PUSH_CONSUMER: "CONSUME_PASSIVELY", _Types.SIMPLE_CONSUMER: "CONSUME_ACTIVELY", LITE: "CONSUME_PASSIVELY"}
"""Types of consumers that are served, with RocketMQ's name for how they consume."""


@dataclass(slots=True)
class Renewed:
    """A message that a push consumer works on; its receipt is renewed until then."""

    handle: ReceiptHandle
    """The latest one; the client may know an earlier one."""
    topic: str
    reconsume_times: int
    since_ms: int
    """When the message was received."""
    lite_topic: str = ""
    """The Lite topic of the message, if it was received as one of it."""
    times: int = 0
    """How often the receipt was renewed."""
    failures: int = 0
    renewing: asyncio.Future[None] | None = None
    """Done when the renewal ends that is under way."""


@dataclass(slots=True, eq=False)
class Client:
    """A client with settings. ``send`` puts a command on its Telemetry stream, if there is one."""

    caller: Caller
    settings: Any
    connection: InProcessConnection
    holder: Holder = Holder("")
    """Whose share of clients and settings it takes."""
    size: int = 0
    """Bytes of its settings."""
    send: Callable[[Any], None] | None = None
    renewed: dict[tuple[object, ...], Renewed] = field(default_factory=dict)
    """By group, message id and place in its queue."""
    has_stream: bool = True
    """Whether it has sent its settings over a stream; else only its heartbeats say that it lives."""
    has_beaten: bool = False
    """Whether it has sent a heartbeat."""
    subscriptions_at_ms: int = 0
    """When its subscriptions changed last."""
    fingerprint: int = 0
    """Of its subscriptions."""

    @property
    def client_id(self) -> str:
        """The name that it gives itself."""
        return self.caller.client_id

    @property
    def is_lite(self) -> bool:
        """True if it consumes Lite topics."""
        return bool(self.settings.client_type == LITE)


@final
class ServiceCall:
    """A call of a service of the broker by a client. It has a connection only if the service needs one."""

    __slots__ = (
        "_alone", "_body", "_caller", "_clients", "_code", "_header", "_made", "_request", "_result", "born_host",
        "late_result")
    version: ClassVar = MQ_VERSION

    def __init__(
        self, clients: Clients, caller: Caller, code: RequestCode, header: CustomHeader, body: bytes = b"", *,
        alone: bool = False,
    ) -> None:
        """Header and body count as memory while the call waits. With ``alone`` a wait ends with `close`."""
        self.born_host = born_host_of(caller.peer)
        self._clients = clients
        self._caller = caller
        self._code, self._header, self._body, self._alone = code, header, body, alone
        self._made: InProcessConnection | None = None
        self._request: RemotingCommand | None = None
        self._result: asyncio.Future[Any] | None = None
        self.late_result: Any = None
        """A result that came later, maybe in the same turn of the event loop as the end of the call."""

    @property
    def channel(self) -> Channel:
        """The connection of the client; one for this call alone if the client has sent no settings."""
        client = None if self._alone else self._clients.find(self._caller.client_id)
        if client is not None:
            return client.connection.channel
        if self._made is None:
            self._made = self._clients.connect(self._caller)
        return self._made.channel

    @property
    def request(self) -> RemotingCommand:
        """The code and the user of the call."""
        if self._request is None:
            self._request = HeaderCommand(
                self._code, self._header, self._body, opaque=0, language=self._caller.language)
            if self._caller.user:
                self._request.sender = self._caller.user
        return self._request

    def reply(self, failure: Failure = failure_of) -> Reply:
        """Return the reply that gets the result of the service later. An error of its work is raised by `result`."""
        if self._result is None:
            self._result = asyncio.get_running_loop().create_future()
        return _CallReply(self)

    async def result(self, given: _Result | None) -> _Result:
        """Return the result that a service has ``given``; if there was none yet, wait for it.

        Raises what the work of the service raises, and RemotingConnectError if the connection closes before.
        """
        if given is not None:
            return given
        assert self._result is not None, "the service has made a reply"
        return cast("_Result", await self._result)

    def end(self, result: Any) -> None:
        """Give the call a result or an error, unless it has ended."""
        future = self._result
        assert future is not None, "a reply was made"
        if not isinstance(result, Exception):
            self.late_result = result
            if not future.done():
                future.set_result(result)
        elif not future.done():
            future.set_exception(result)
            future.exception()  # retrieved, so that asyncio does not log it if the call has ended

    def close(self) -> None:
        """Close the connection that was made for this call."""
        if self._made is not None:
            self._made.close()


@final
class _CallReply(Reply):
    """The reply to a call of a service, whose result a coroutine awaits."""

    __slots__ = ("_call",)

    def __init__(self, call: ServiceCall) -> None:
        super().__init__(call.channel, call.request)
        self._call = call

    def send(self, answer: Any) -> None:
        super().drop()
        if answer is not None:
            self._call.end(answer)

    def fail(self, error: Exception) -> None:
        super().drop()
        self._call.end(error)

    def drop(self) -> None:
        self.fail(RemotingConnectError(self.channel.peer, "connection closed"))


@final
class Clients:
    """The table of clients. ``on_request`` gets requests of the broker to a client."""

    def __init__(
        self, server: RemotingServer, clock: Clock, on_request: Callable[[Client, RemotingCommand], None],
        client_ids: ClientIds, limits: CallLimits,
    ) -> None:
        self._limits = limits
        self._server = server
        self._clock = clock
        self._on_request = on_request
        self._client_ids = client_ids
        self._table: dict[str, Client] = {}
        self._of_channel: dict[Channel, Client] = {}
        self.on_forget: list[Callable[[Client], None]] = []
        """Functions that are called for each client that is forgotten."""
        broker_on_close = server.on_close

        def closed(channel: Channel) -> None:
            self._forget(channel)
            if broker_on_close is not None:
                broker_on_close(channel)

        server.on_close = closed

    def __len__(self) -> int:
        return len(self._table)

    def all(self) -> list[Client]:
        """Return all clients."""
        return list(self._table.values())

    def find(self, client_id: str) -> Client | None:
        """Return a client, None if it has not sent its settings."""
        return self._table.get(client_id)

    def user_of(self, client_id: str) -> str | None:
        """Return the user to whom a client id belongs, also one of the remoting protocol; None if it is free."""
        return self._client_ids.user_of(client_id)

    def connect(
        self, caller: Caller, on_request: Callable[[RemotingCommand], None] | None = None
    ) -> InProcessConnection:
        """Return a new connection. ``on_request`` gets requests of the broker to the client."""
        return InProcessConnection(
            self._server, caller.peer, on_request, language=caller.language, user=caller.user, proven=caller.proven)

    def call(
        self, caller: Caller, code: RequestCode, header: CustomHeader, body: bytes = b""
    ) -> asyncio.Future[RemotingCommand]:
        """Have the broker serve a request; return the future of its answer, whatever its code.

        A client without settings gets a connection for the call. The future has RemotingConnectError while the server
        stops.
        """
        client = self._table.get(caller.client_id)
        if client is not None:
            return client.connection.call(code, header, body)
        connection = self.connect(caller)
        answer = connection.call(code, header, body)
        answer.add_done_callback(lambda _: connection.close())
        return answer

    async def take(self, caller: Caller, settings: Any, *, has_stream: bool = True) -> Client:
        """Take over the settings of a client and register it in the broker. Raises GrpcError."""
        client = self._table.get(caller.client_id)
        self._check_shares(caller, client, settings)
        if client is None:
            made: list[Client] = []
            connection = self.connect(caller, lambda request: self._on_request(made[0], request))
            client = Client(
                caller, settings, connection, Holder(caller.peer[0], caller.user), settings.ByteSize())
            made.append(client)
            self._table[caller.client_id] = self._of_channel[client.connection.channel] = client
            self._limits.clients.add(client.holder)
            self._limits.settings.add(client.holder, client.size)
        before, client.settings, client.has_stream = client.settings, settings, has_stream
        self._resize(client, settings)
        try:
            if caller.user:
                self._claim(client)
            await self.register(client, with_subscriptions=True)
        except BaseException:
            client.settings = before
            self._resize(client, before)
            if before is settings:
                client.connection.close()
            raise
        return client

    def _claim(self, client: Client) -> None:
        """Give a client its id, also one that joins no group. Raises GrpcError if the id is one of another user."""
        try:
            self._client_ids.claim_as(
                client.caller.user, "TelemetryCommand", client.connection.channel, client.client_id)
        except RefusalError as error:
            raise GrpcError(Code.FORBIDDEN, error.remark) from None

    def _check_shares(self, caller: Caller, client: Client | None, settings: Any) -> None:
        """Raise GrpcError if a new client, or other settings of a known one, are over a share."""
        grpc, size = self._limits, settings.ByteSize()
        if client is None:
            holder, more = Holder(caller.peer[0], caller.user), size
        else:
            holder, more = client.holder, size - client.size
        for what, shares, n in ((CLIENTS, grpc.clients, int(client is None)), (SETTINGS, grpc.settings, more)):
            if n > 0 and (whose := shares.refusal(holder, n)):
                grpc.refuse(f"{what} of {whose}", holder, self._clock.monotonic_ns() / 1e9)
                raise GrpcError(
                    Code.TOO_MANY_REQUESTS, f"too many {what} of {whose} ({shares.most} of all clients)")

    def _resize(self, client: Client, settings: Any) -> None:
        size = settings.ByteSize()
        self._limits.settings.add(client.holder, size - client.size)
        client.size = size

    async def register(self, client: Client, *, with_subscriptions: bool = False) -> None:
        """Send the broker a heartbeat for a client. Raises GrpcError."""
        settings = client.settings
        beat: dict[str, Any] = {"clientID": client.client_id}
        if settings.HasField("publishing"):
            # A check of a transaction goes to a producer of the group, which has the name of its topic.
            groups = {name_of(topic) for topic in settings.publishing.topics} if client.send is not None else set()
            beat["producerDataSet"] = [{"groupName": group} for group in sorted(groups)]
        else:
            beat |= self._consumer_data(client, with_subscriptions=with_subscriptions)
        answer = await self._beat(client, beat)
        if beat.get("withoutSub") and answer.ext.get("IS_SUB_CHANGE") == "true":
            await self._beat(client, {**beat, "withoutSub": False})

    async def _beat(self, client: Client, beat: dict[str, Any]) -> RemotingCommand:
        answer = await client.connection.call(RequestCode.HEART_BEAT, {}, fastjson.dumps(beat))
        if answer.code != ResponseCode.SUCCESS:
            raise of_refusal(answer)
        return answer

    def _consumer_data(self, client: Client, *, with_subscriptions: bool) -> dict[str, Any]:
        subscription = client.settings.subscription
        wanted = [
            (name_of(entry.topic), entry.expression.expression,
             "SQL92" if entry.expression.type == definition.FilterType.SQL else "TAG")
            for entry in subscription.subscriptions]
        fingerprint = zlib.crc32(repr(sorted(wanted)).encode()) or 1
        if fingerprint != client.fingerprint:
            client.fingerprint, client.subscriptions_at_ms = fingerprint, self._clock.now_ms()
        return {
            "heartbeatFingerprint": fingerprint, "withoutSub": not with_subscriptions,
            "consumerDataSet": [{
                "groupName": name_of(subscription.group),
                "consumeType": CONSUMERS.get(client.settings.client_type, "CONSUME_PASSIVELY"),
                "messageModel": "LITE_SELECTIVE" if client.is_lite else "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "subscriptionDataSet": [
                    {"topic": topic, "subString": expression or "*", "expressionType": kind,
                     "subVersion": client.subscriptions_at_ms}
                    for topic, expression, kind in wanted],
            }],
        }

    async def remove(self, client: Client) -> None:
        """Forget a client that says goodbye."""
        await self._end_lite_subscriptions(client)
        if client.settings.HasField("subscription"):
            await self._leave(client, consumerGroup=name_of(client.settings.subscription.group))
        await self._leave_topics(client)
        client.connection.close()

    async def stream_ended(self, client: Client) -> None:
        """Note that a client has no stream for commands any more; checks of transactions go to other producers."""
        client.send = None
        await self._end_lite_subscriptions(client)
        await self._leave_topics(client)

    async def _leave_topics(self, client: Client) -> None:
        for topic in client.settings.publishing.topics:
            await self._leave(client, producerGroup=name_of(topic))

    @staticmethod
    async def _leave(client: Client, **group: str) -> None:
        if not client.connection.closed:
            await client.connection.call(RequestCode.UNREGISTER_CLIENT, {"clientID": client.client_id, **group})

    async def _end_lite_subscriptions(self, client: Client) -> None:
        """Have the messages of a client's Lite topics go to others; it subscribes again once it is back."""
        if client.is_lite and not client.connection.closed:
            subscription = client.settings.subscription
            await client.connection.call(RequestCode.LITE_SUBSCRIPTION_CTL, {}, fastjson.dumps({"subscriptionSet": [{
                "action": "COMPLETE_REMOVE", "clientId": client.client_id, "group": name_of(subscription.group),
                "topic": name_of(subscription.subscriptions[0].topic)}]}))

    def close(self) -> None:
        """Close the connections of all clients."""
        for client in self.all():
            client.connection.close()

    def _forget(self, channel: Channel) -> None:
        client = self._of_channel.pop(channel, None)
        if client is not None:
            del self._table[client.client_id]
            self._limits.clients.add(client.holder, -1)
            self._limits.settings.add(client.holder, -client.size)
            events.GRPC_CLIENT_FORGOTTEN.log(
                _log, client=client.client_id, peer=channel.peer, renewed=len(client.renewed))
            for forget in self.on_forget:
                with caught("forgotten gRPC client"):
                    forget(client)
