"""Telemetry: the stream over which a client sends its settings and gets commands of the broker (ClientActivity)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, Final, final

import grpc

from tailrace import events
from tailrace.env.clock import Clock
from tailrace.env.supervision import caught, failed
from tailrace.errors import CorruptionError, RemotingConnectError
from tailrace.formats import fastjson
from tailrace.formats.commitlog import decode_message
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests.message_headers import (
    CheckTransactionStateRequestHeader,
    NotifyUnsubscribeLiteRequestHeader,
)
from tailrace.logs import get_logger
from tailrace.node.subscription_group import SubscriptionGroupManager
from tailrace.proxy.admission import Admission, Admitted
from tailrace.proxy.caller import Caller
from tailrace.proxy.clients import Client, Clients
from tailrace.proxy.conversion import to_message
from tailrace.proxy.entry import Entry
from tailrace.proxy.protocol import OK, Code, GrpcError, definition, name_of, service, status
from tailrace.proxy.renewal import Renewals
from tailrace.proxy.settings import check_settings, merged
from tailrace.proxy.transactions import HalfPlaces
from tailrace.proxy.validation import check_group
from tailrace.remoting.limits import NO_SETTINGS

__all__ = ["TelemetryActivity"]

_log = get_logger(__name__)

COMMANDS_MAX: Final = 1_000
"""Commands that wait for a client that does not read them. The broker sends lost ones again, or has their time out."""
CLOSE_S: Final = 1.0
ASKED_MAX: Final = 100
"""Commands of one client whose answers are awaited."""
_Types = definition.ClientType
_RESULTS: Final = {
    Code.OK: "CR_SUCCESS", Code.FAILED_TO_CONSUME_MESSAGE: "CR_LATER", Code.MESSAGE_CORRUPTED: "CR_RETURN_NULL"}


@final
class TelemetryActivity:
    """Serves Telemetry, Heartbeat and NotifyClientTermination."""

    def __init__(
        self, clock: Clock, groups: SubscriptionGroupManager, entry: Entry, clients: Clients, renewals: Renewals,
        places: HalfPlaces, admission: Admission,
    ) -> None:
        self._admission, self._clock, self._groups, self._entry = admission, clock, groups, entry
        self._clients, self._renewals, self._places = clients, renewals, places
        self._asked: dict[str, dict[str, RemotingCommand]] = {}
        """Requests of the broker by client and nonce, in the order in which they came.

        A client has at most `ASKED_MAX` of them, and none after it is forgotten.
        """
        self._streams: dict[str, _Stream] = {}
        """The latest stream of each client."""
        clients.on_forget.append(self._forgotten)
        self._nonce = 0
        self._endings: set[asyncio.Task[None]] = set()

    # -- calls

    async def heartbeat(self, request: Any, caller: Caller) -> Any:
        """Note that a client is alive."""
        client = self._known(caller)
        if client.settings.HasField("subscription"):
            group = check_group(request.group)
            own = name_of(client.settings.subscription.group)
            if group != own:
                raise GrpcError(
                    Code.ILLEGAL_CONSUMER_GROUP, f"group is {group}, and the client's settings are of {own}")
        await self._clients.register(client)
        client.has_beaten = True
        return service.HeartbeatResponse(status=OK)

    async def terminate(self, request: Any, caller: Caller) -> Any:
        """Forget a client; messages that it has not consumed are delivered again soon."""
        client = self._known(caller)
        if client.settings.HasField("subscription"):
            check_group(request.group)
        self._streams.pop(client.client_id, None)  # the client ends it, or sends settings again
        await self._renewals.give_back(client)
        await self._clients.remove(client)
        return service.NotifyClientTerminationResponse(status=OK)

    def _known(self, caller: Caller) -> Client:
        client = self._clients.find(caller.client_id)
        if client is None:
            raise GrpcError(Code.UNRECOGNIZED_CLIENT_TYPE, "cannot find client settings for this client")
        return client

    # -- the stream

    async def telemetry(self, _: Any, context: Any) -> None:
        """Take settings and results, send commands, until the client ends the stream."""
        begun_ms = self._clock.now_ms()
        try:
            admitted = await self._admission.begin("TelemetryCommand", context)
        except GrpcError as error:
            await self._admission.first_of_refused(context)
            await context.write(service.TelemetryCommand(status=status(error.code, error.message)))
            return
        stream = _Stream(context)
        client: Client | None = None
        user = admitted.user
        try:
            while (command := await stream.next(self._next(admitted, client))) is not grpc.aio.EOF:
                try:
                    caller = self._entry.caller(command, context, begun_ms, user)
                except GrpcError as error:
                    await context.write(service.TelemetryCommand(status=status(error.code, error.message)))
                    return
                user = None  # it may be another one, or none, when the next command arrives
                match command.WhichOneof("command"):
                    case "settings":
                        client = await self._take(caller, command.settings, stream)
                    case "verify_message_result":
                        self._verified(caller.client_id, command)
                    case "thread_stack_trace":
                        self._stack(caller.client_id, command)
        except GrpcError as error:
            await self._refuse(context, error)
        except grpc.aio.AbortError:
            raise
        except grpc.aio.BaseError as error:  # in the middle of a read or a write
            events.GRPC_STREAM_ENDED.log(_log, peer=context.peer(), reason=repr(error))
        finally:
            # A client that closes its connection cancels the call, maybe once more while it ends.
            ending = asyncio.create_task(self._end(stream, client))
            self._endings.add(ending)
            ending.add_done_callback(self._endings.discard)
            await asyncio.shield(ending)

    async def _next(self, admitted: Admitted, client: Client | None) -> Any:
        """Return the next command of a stream; until its settings are there, they must come in time."""
        if client is None:
            return await self._admission.first(admitted, NO_SETTINGS)
        return await admitted.context.read()

    async def _end(self, stream: _Stream, client: Client | None) -> None:
        with caught("Telemetry"), contextlib.suppress(RemotingConnectError):  # the server stops
            await stream.close()
            if client is not None and client.send == stream.send:
                await self._stream_ended(client)

    async def _stream_ended(self, client: Client) -> None:
        """Keep a client that has sent heartbeats, because it will connect again; forget any other."""
        if client.has_beaten:
            await self._clients.stream_ended(client)
        else:
            client.send = None
            await self._renewals.give_back(client)
            await self._clients.remove(client)

    @staticmethod
    async def _refuse(context: Any, error: GrpcError) -> None:
        bad = Code.BAD_REQUEST <= error.code < Code.INTERNAL_ERROR
        try:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT if bad else grpc.StatusCode.INTERNAL,
                f"process client telemetryCommand failed. {error.message}")
        except (grpc.aio.UsageError, grpc.aio.InternalError):  # the client has gone
            return

    async def _take(self, caller: Any, settings: Any, stream: _Stream) -> Client:
        check_settings(self._groups, settings)
        known = self._clients.find(caller.client_id)
        if known is not None:
            known.send = stream.send
        client = await self._clients.take(caller, settings)
        self._streams[client.client_id] = stream
        if client.send is None:
            client.send = stream.send
            if settings.HasField("publishing"):
                await self._clients.register(client)
        stream.send(service.TelemetryCommand(status=OK, settings=merged(self._groups, settings)))
        return client

    # -- requests of the broker

    def request_of_broker(self, client: Client, request: RemotingCommand) -> None:
        """Pass a request on to a client; what the protocol has no command for is answered or dropped."""
        try:
            command = self._command(client, request)
        except CorruptionError as error:
            events.REQUEST_OF_THE_BROKER_NOT_PASSED_ON.log(
                _log, client=client.client_id, code=request.code, reason=error)
            return
        if command is not None and client.send is not None:
            client.send(command)
        elif not request.is_oneway:
            client.connection.reply(request, request.answer(
                ResponseCode.SYSTEM_ERROR,
                f"client {client.client_id} uses gRPC and " + (
                    "has no open stream" if command is not None else f"has no answer to request {request.code}")))

    def _command(self, client: Client, request: RemotingCommand) -> Any:
        match request.code:
            case RequestCode.CHECK_TRANSACTION_STATE:
                header = request.read(CheckTransactionStateRequestHeader)
                half = decode_message(request.body)
                transaction_id = header.transaction_id or half.unique_key or ""
                self._places.put(
                    half.topic, transaction_id, header.tran_state_table_offset, header.commit_log_offset)
                return service.TelemetryCommand(
                    recover_orphaned_transaction_command=service.RecoverOrphanedTransactionCommand(
                        message=to_message(half, half.topic), transaction_id=transaction_id))
            case RequestCode.NOTIFY_UNSUBSCRIBE_LITE:
                return service.TelemetryCommand(notify_unsubscribe_lite_command=service.NotifyUnsubscribeLiteCommand(
                    lite_topic=request.read(NotifyUnsubscribeLiteRequestHeader).lite_topic))
            case RequestCode.CONSUME_MESSAGE_DIRECTLY:
                message = decode_message(request.body)
                return service.TelemetryCommand(verify_message_command=service.VerifyMessageCommand(
                    nonce=self._ask(client, request), message=to_message(message, message.topic)))
            case RequestCode.GET_CONSUMER_RUNNING_INFO if request.ext.get("jstackEnable", "").lower() == "true":
                return service.TelemetryCommand(
                    print_thread_stack_trace_command=service.PrintThreadStackTraceCommand(
                        nonce=self._ask(client, request)))
        return None

    def _ask(self, client: Client, request: RemotingCommand) -> str:
        """Note a request whose answer comes over the stream; return its nonce."""
        mine = self._asked.setdefault(client.client_id, {})
        while len(mine) >= ASKED_MAX:
            del mine[next(iter(mine))]
        self._nonce += 1
        mine[str(self._nonce)] = request
        return str(self._nonce)

    def _forgotten(self, client: Client) -> None:
        self._asked.pop(client.client_id, None)
        if (stream := self._streams.pop(client.client_id, None)) is not None:
            stream.end()

    def _verified(self, client_id: str, command: Any) -> None:
        result = _RESULTS.get(command.status.code, "CR_THROW_EXCEPTION")
        self._reply(client_id, command.verify_message_result.nonce, {
            "autoCommit": True, "consumeResult": result, "order": False, "remark": "from gRPC client",
            "spentTimeMills": 0})

    def _stack(self, client_id: str, command: Any) -> None:
        self._reply(client_id, command.thread_stack_trace.nonce, {
            "jstack": command.thread_stack_trace.thread_stack_trace, "mqTable": {}, "properties": {},
            "statusTable": {}, "subscriptionSet": []})

    def _reply(self, client_id: str, nonce: str, body: dict[str, Any]) -> None:
        request, client = self._asked.get(client_id, {}).pop(nonce, None), self._clients.find(client_id)
        if request is not None and client is not None:
            client.connection.reply(request, request.answer(body=fastjson.dumps(body)))


@final
class _Stream:
    """Commands for one client, written one after the other."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._commands: asyncio.Queue[Any] = asyncio.Queue(COMMANDS_MAX)
        self._writes = self._closed = False
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._write())

    async def next(self, reading: Coroutine[Any, Any, Any]) -> Any:
        """Return what a read of the stream returns, or EOF if `end` ends the stream before that."""
        task = asyncio.ensure_future(reading)
        try:
            await asyncio.wait({task, self._ended}, return_when=asyncio.FIRST_COMPLETED)
            return grpc.aio.EOF if self._ended.done() else await task
        finally:
            task.cancel()

    def end(self) -> None:
        """End the stream of a client that is forgotten, for example because its user has left."""
        self._closed = True
        if not self._ended.done():
            self._ended.set_result(None)

    def send(self, command: Any) -> None:
        """Put a command at the end of those that wait; it is dropped if there are too many."""
        try:
            self._commands.put_nowait(command)
        except asyncio.QueueFull:
            events.GRPC_COMMAND_DROPPED.log(_log, peer=self._context.peer())

    async def close(self) -> None:
        """Write no more; wait a little for a write under way, beside which gRPC cannot end the stream."""
        if not self._writes:
            self._task.cancel()
        self._closed = True
        await asyncio.wait({self._task}, timeout=CLOSE_S)

    async def _write(self) -> None:
        try:
            while not self._closed:
                command = await self._commands.get()
                self._writes = True
                try:
                    await self._context.write(command)
                except (grpc.RpcError, grpc.aio.BaseError, RemotingConnectError):
                    return
                except Exception:  # noqa: BLE001 - the stream would be silent after it
                    failed("Telemetry")
                self._writes = False
        except asyncio.CancelledError:
            return
