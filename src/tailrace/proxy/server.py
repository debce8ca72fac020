"""The gRPC server: one method for each call of MessagingService, in the event loop of the broker.

    listener = GrpcListener("127.0.0.1", 8081) # the port is taken, calls wait
    server = GrpcServer(controller)
    await server.serve_on(listener)
    ...
    await server.stop()                        # before the controller stops

A call that fails is answered with a status in its response, as clients expect. Errors of gRPC itself are
those of bad streams, unknown methods and exceeded bounds.
"""

from __future__ import annotations

import asyncio
import errno
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, final

import grpc

from tailrace import events
from tailrace.env.linux_calls import trim_heap
from tailrace.env.processes import listener_of
from tailrace.errors import RemotingConnectError
from tailrace.formats.remoting import RemotingCommand, failure_text
from tailrace.logs import get_logger
from tailrace.proxy import limits
from tailrace.proxy.acks import AckActivity
from tailrace.proxy.admission import Admission
from tailrace.proxy.called import CalledBroker
from tailrace.proxy.caller import Caller
from tailrace.proxy.clients import Client, Clients
from tailrace.proxy.connections import GrpcConnections
from tailrace.proxy.entry import Entry
from tailrace.proxy.lite_subscriptions import LiteSubscriptionActivity
from tailrace.proxy.popped import PoppedMessages
from tailrace.proxy.protocol import CODE_NAMES, Code, GrpcError, service, status, timestamp
from tailrace.proxy.receive import ReceiveMessageActivity
from tailrace.proxy.renewal import Renewals
from tailrace.proxy.routes import RouteActivity
from tailrace.proxy.send import SendMessageActivity
from tailrace.proxy.signature_dates import SignatureDates
from tailrace.proxy.telemetry import TelemetryActivity
from tailrace.proxy.transactions import EndTransactionActivity, HalfPlaces
from tailrace.remoting.addresses import address_text
from tailrace.remoting.client import split_address
from tailrace.remoting.limits import CallLimits

__all__ = ["GrpcListener", "GrpcServer"]

_log = get_logger(__name__)

SERVICE: Final = "apache.rocketmq.v2.MessagingService"
GRACE_S: Final = 0.5
"""For how long a stop waits for calls that are under way."""
GIVE_BACK_S: Final = 2.0
OPTIONS: Final = (
    ("grpc.so_reuseport", 0),  # or a second server would take the same port unnoticed
    ("grpc.max_receive_message_length", limits.MAX_REQUEST_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_connection_idle_ms", limits.CLIENT_IDLE_MS),
    # A connection whose client has vanished is noticed, with its Telemetry stream.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.max_metadata_size", 32 << 10),
    ("grpc.server_handshake_timeout_ms", limits.HANDSHAKE_MS),
)
"""Options of the gRPC library that no setting changes."""
_Unary = Callable[[Any, Caller], Awaitable[Any]]
_Method = Callable[[Any, Any], Awaitable[Any]]
_ALL: Final = ("0.0.0.0", "::")
_WORD: Final = re.compile(r"(?<!^)(?=[A-Z])")


@final
class GrpcListener:
    """A port of gRPC, taken before the store is open. Raises OSError if it cannot be taken."""

    def __init__(
        self, host: str, port: int, credentials: Any = None, call_limits: CallLimits | None = None
    ) -> None:
        """Listen, with TLS if there are credentials; port 0 picks one."""
        self.limits = call_limits or CallLimits()
        self.server = grpc.aio.server(options=(*OPTIONS, *_bounds(self.limits)))
        self.host = host
        self.tls = credentials is not None
        place = address_text(host, port)
        try:
            self.port: int = (
                self.server.add_insecure_port(place) if credentials is None
                else self.server.add_secure_port(place, credentials))
        except RuntimeError as error:
            raise OSError(errno.EADDRINUSE, f"cannot listen on --grpc {place}: {_reason(port)}") from error

    @property
    def address(self) -> str:
        """``host:port`` that clients connect to."""
        return address_text(self.host, self.port)

    async def close(self) -> None:
        """Give the port back."""
        await self.server.stop(None)


def _bounds(bounds: CallLimits) -> Iterator[tuple[str, int]]:
    """Yield the options of gRPC for limits that it knows itself."""
    yield "grpc.max_concurrent_streams", bounds.per_connection
    if bounds.connections_max:
        yield "grpc.max_allowed_incoming_connections", bounds.connections_max
    # Calls that wait for their decision. Without these a burst of more than 1,000 has some of them cancelled at random.
    pending = max(limits.PENDING_CALLS, bounds.calls.most)
    yield "grpc.server.max_pending_requests", pending
    yield "grpc.server.max_pending_requests_hard_limit", pending


def _reason(port: int) -> str:
    """Say why a port cannot be taken; gRPC writes the cause to stderr only."""
    holder = listener_of(port) if port else None
    if holder:
        return f"process {holder[0]} ({holder[1]}) listens there"
    return "the address is taken, or not one of this machine"


@final
class GrpcServer:
    """Serves clients of RocketMQ 5 with the processors of a broker."""

    def __init__(self, controller: CalledBroker) -> None:
        broker = self._broker = controller.broker
        self.host, self.port = "", 0
        self._latency = broker.rpc_latency
        self._listener: GrpcListener | None = None
        self._limits = controller.limits
        clients = self._clients = Clients(
            controller.in_process(), broker.clock, self._to_client, broker.clients.ids, self._limits.grpc)
        auth = controller.access.config
        self._entry = Entry(
            controller.access.enforced, clients,
            SignatureDates(broker.clock, auth.grpc_signature_max_age, auth.time_zones()))
        places = HalfPlaces(broker.store, broker.executors)
        popped = PoppedMessages(
            broker.clock, broker.store, broker.config, broker.executors, controller.acks, clients)
        self._renewals = Renewals(broker.loop, broker.clock, broker.groups, clients, popped)
        self._connections = GrpcConnections(
            self._limits, has_users=self._entry.has_users,
            free_memory=lambda: broker.executors.background.run(trim_heap))
        self._admission = Admission(
            self._entry, self._limits.grpc, self._connections,
            controller.access.take if controller.access.quotas.enabled else None)
        self._telemetry = TelemetryActivity(
            broker.clock, broker.groups, self._entry, clients, self._renewals, places, self._admission)
        self._routes = RouteActivity(broker.config, broker.topics, broker.groups, lambda: (self.host, self.port))
        self._sends = SendMessageActivity(
            broker.clock, broker.store, broker.changes, broker.traffic, controller.messages, clients, places)
        self._receives = ReceiveMessageActivity(
            broker.loop, broker.clock, broker.config, broker.topics, broker.groups, *controller.pops, clients, popped,
            self._renewals)
        self._acks = AckActivity(clients, popped, self._renewals)
        self._ends = EndTransactionActivity(controller.ends, clients, places)
        self._lite = LiteSubscriptionActivity(broker.clock, broker.groups, clients)

    async def serve_on(self, listener: GrpcListener) -> None:
        """Serve the calls that come to a port."""
        self.host, self.port = listener.host, listener.port
        if self.host in _ALL and (advertised := split_address(self._broker.addresses.broker)) is not None:
            self.host = advertised[0]  # clients that named no endpoint get the host that the broker advertises
        listener.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, self._methods()),))
        await listener.server.start()
        self._listener = listener
        self._connections.start(listener.port)
        self._renewals.start()
        self._latency.is_served = True
        events.GRPC_ENDPOINT_STARTED.log(_log, address=listener.address, tls=listener.tls)

    async def stop(self) -> None:
        """Take no more calls, end those under way, and have messages delivered again that clients work on."""
        if self._listener is None:
            return
        listener, self._listener = self._listener, None
        await self._connections.stop()
        await listener.server.stop(GRACE_S)
        try:
            await asyncio.wait_for(self._renewals.stop(), GIVE_BACK_S)
        except TimeoutError:
            pass  # the rest comes after its invisible time
        self._clients.close()
        self._latency.is_served = False

    def _to_client(self, client: Client, request: RemotingCommand) -> None:
        self._telemetry.request_of_broker(client, request)

    def _methods(self) -> dict[str, Any]:
        unary: dict[str, _Unary] = {
            "QueryRoute": self._routes.route, "Heartbeat": self._telemetry.heartbeat,
            "SendMessage": self._sends.send, "QueryAssignment": self._routes.assignment,
            "AckMessage": self._acks.ack, "ForwardMessageToDeadLetterQueue": self._acks.forward,
            "EndTransaction": self._ends.end, "NotifyClientTermination": self._telemetry.terminate,
            "ChangeInvisibleDuration": self._acks.change, "RecallMessage": self._sends.recall,
            "SyncLiteSubscription": self._lite.sync,
        }
        # To gRPC all of them are streams of requests, so that a call is seen before its request has arrived.
        methods = {
            name: grpc.stream_unary_rpc_method_handler(
                self._unary(name, serve), *_codecs(name)) for name, serve in unary.items()}
        methods["ReceiveMessage"] = grpc.stream_stream_rpc_method_handler(
            self._receive, *_codecs("ReceiveMessage"))
        methods["Telemetry"] = grpc.stream_stream_rpc_method_handler(
            self._telemetry.telemetry, service.TelemetryCommand.FromString,
            service.TelemetryCommand.SerializeToString)
        # PullMessage, UpdateOffset, GetOffset and QueryOffset have no method: gRPC answers UNIMPLEMENTED, as
        # RocketMQ's proxy does.
        return methods

    def _unary(self, name: str, serve: _Unary) -> _Method:
        response_class, metric = getattr(service, f"{name}Response"), _metric_name(name)

        async def call(_: Any, context: Any) -> Any:
            begun_ns = self._broker.clock.monotonic_ns()
            try:
                response = await serve(*await self._begun(name, context))
            except (asyncio.CancelledError, grpc.aio.AbortError):
                raise
            except Exception as error:  # noqa: BLE001 - the outermost step of a call: log, answer
                response = response_class(status=await self._failed(name, error, context))
            self._observe(metric, response.status.code, begun_ns)
            return response

        return call

    async def _begun(self, name: str, context: Any) -> tuple[Any, Caller]:
        """Return the request of a call that may begin, and its client."""
        admitted = await self._admission.begin(f"{name}Request", context)
        request = await self._admission.first(admitted)
        if request is grpc.aio.EOF:
            await context.abort(grpc.StatusCode.INTERNAL, "the call ended without a request")
        return request, self._entry.caller(request, context, user=admitted.user)

    async def _receive(self, _: Any, context: Any) -> None:
        begun_ns, code = self._broker.clock.monotonic_ns(), Code.OK
        try:
            request, caller = await self._begun("ReceiveMessage", context)
            await self._receives.receive(request, context, caller)
        except (asyncio.CancelledError, grpc.aio.AbortError):
            raise
        except grpc.aio.BaseError:  # the client has gone in the middle of a write
            return
        except Exception as error:  # noqa: BLE001 - the outermost step of a call: log, answer
            found = await self._failed("ReceiveMessage", error, context)
            code = found.code
            await context.write(service.ReceiveMessageResponse(status=found))
            await context.write(service.ReceiveMessageResponse(
                delivery_timestamp=timestamp(self._broker.clock.now_ms())))
        self._observe(_RECEIVE, code, begun_ns)

    async def _failed(self, name: str, error: Exception, context: Any) -> Any:
        if isinstance(error, GrpcError):
            return status(error.code, error.message)
        if isinstance(error, RemotingConnectError):  # the server stops
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the server stops")
        events.GRPC_CALL_FAILED.log(_log, method=name, peer=context.peer(), reason=repr(error), exc_info=True)
        return status(Code.INTERNAL_SERVER_ERROR, failure_text(error))

    def _observe(self, name: str, code: int, begun_ns: int) -> None:
        took_ms = (self._broker.clock.monotonic_ns() - begun_ns) / 1e6
        self._latency.observe(name, _STATUSES[code], took_ms)


_RECEIVE: Final = "receive_message"
_STATUSES: Final = {code: name.lower() for code, name in CODE_NAMES.items()}
"""Names of statuses as metrics have them."""


def _metric_name(method: str) -> str:
    return _WORD.sub("_", method).lower()


def _codecs(name: str) -> tuple[Any, Any]:
    return getattr(service, f"{name}Request").FromString, getattr(service, f"{name}Response").SerializeToString
