"""Hostile clients of the gRPC port: see hostile_runs.py. Each attack returns what it did, by name."""

import asyncio
import collections
import contextlib
import queue
import socket
import time

import grpc
from hostile_wire import ATTACKER, Forwarder, connect, grpc_metadata
from rocketmq.grpc_protocol import definition_pb2 as definition
from rocketmq.grpc_protocol import service_pb2 as service

SERVICE = "/apache.rocketmq.v2.MessagingService/"
CHANNELS = 12


def idle_connections(target):
    """TCP connections to the port that send nothing, more than the server has descriptors."""
    made = []
    for _ in range(target.count):
        with contextlib.suppress(OSError):
            made.append(connect(target.grpc, 2, ATTACKER))
    target.hold()
    for one in made:
        one.close()
    return {"connections": len(made)}


def silent_streams(target):
    """Telemetry streams without a user on twelve connections that say nothing."""
    return asyncio.run(_streams(target))


async def _streams(target):
    async with _channels(target) as channels:
        calls = []
        for number in range(target.count):
            calls.append(_telemetry(channels[number % CHANNELS])())
            if number % 500 == 499:
                await asyncio.sleep(0.01)
        await asyncio.sleep(target.seconds)
        return {"streams": len(calls), "open at the end": sum(not call.done() for call in calls)}


def many_clients(target):
    """A user has ever new client ids, which name a topic of the user's own."""
    return asyncio.run(_clients(target))


async def _clients(target):
    done, room = collections.Counter(), asyncio.Semaphore(200)
    settings = service.TelemetryCommand(settings=definition.Settings(
        client_type=definition.ClientType.PRODUCER,
        publishing=definition.Publishing(topics=[definition.Resource(name="own")])))
    began, until = time.monotonic(), target.until()

    async def one(channel, number):
        async with room:
            if time.monotonic() > until:
                return
            call = _telemetry(channel)(metadata=grpc_metadata("mallory", f"m{target.seed}-{number}"))
            try:
                await call.write(settings)
                answer = await asyncio.wait_for(call.read(), 10)
                done["no answer" if answer is grpc.aio.EOF else f"code {answer.status.code}"] += 1
            except grpc.RpcError as error:
                done[error.code().name] += 1
            except (TimeoutError, asyncio.InvalidStateError) as error:
                done[type(error).__name__] += 1
            finally:
                call.cancel()

    async with _channels(target) as channels:
        await asyncio.gather(*(one(channels[n % CHANNELS], n) for n in range(target.count)))
        await asyncio.sleep(max(5.0, target.seconds - (time.monotonic() - began)))
    return dict(done)


def calls_without_a_user(target):
    """Calls without a user and calls that are cancelled immediately, without a pause."""
    return asyncio.run(_calls(target, (("x-mq-client-id", "flood"),)))


def cancelled_calls(target):
    """The same calls of a user that may make them."""
    return asyncio.run(_calls(target, grpc_metadata("mallory", "flood")))


async def _calls(target, metadata):
    done, until = collections.Counter(), target.until()
    request = service.QueryRouteRequest(topic=definition.Resource(name="own"))

    async def work(channel, cancels):
        ask = channel.unary_unary(
            SERVICE + "QueryRoute", request_serializer=service.QueryRouteRequest.SerializeToString,
            response_deserializer=service.QueryRouteResponse.FromString)
        while time.monotonic() < until:
            call = ask(request, metadata=metadata, timeout=10)
            try:
                if cancels:
                    await asyncio.sleep(0)
                    call.cancel()
                await call
                done["answers"] += 1
            except asyncio.CancelledError:
                done["cancelled"] += 1
            except grpc.RpcError as error:
                done[error.code().name] += 1

    async with _channels(target) as channels:
        await asyncio.gather(*(
            work(channels[n % CHANNELS], cancels=n % 2 == 1) for n in range(target.count)))
    return dict(done)


def many_sends(target):
    """A user has hundreds of sends under way all the time."""
    return asyncio.run(_sends(target))


async def _sends(target):
    done, until = collections.Counter(), target.until()
    metadata = grpc_metadata("mallory", "greedy")
    message = definition.Message(
        topic=definition.Resource(name="own"), body=b"x" * 100,
        system_properties=definition.SystemProperties(message_id="m"))
    request = service.SendMessageRequest(messages=[message])

    async def work(channel):
        send = channel.unary_unary(
            SERVICE + "SendMessage", request_serializer=service.SendMessageRequest.SerializeToString,
            response_deserializer=service.SendMessageResponse.FromString)
        while time.monotonic() < until:
            try:
                answer = await send(request, metadata=metadata, timeout=10)
                done[f"code {answer.status.code}"] += 1
            except grpc.RpcError as error:
                done[error.code().name] += 1

    async with _channels(target) as channels:
        await asyncio.gather(*(work(channels[n % CHANNELS]) for n in range(target.count)))
    return dict(done)


def long_polls(target):
    """A user has thousands of ReceiveMessage calls that wait for messages."""
    return asyncio.run(_polls(target))


async def _polls(target):
    done, until = collections.Counter(), target.until()
    metadata = grpc_metadata("mallory", "polls")
    request = service.ReceiveMessageRequest(
        group=definition.Resource(name="mine"), batch_size=32,
        message_queue=definition.MessageQueue(topic=definition.Resource(name="own"), id=0),
        filter_expression=definition.FilterExpression(expression="*"))
    request.long_polling_timeout.FromSeconds(20)
    request.invisible_duration.FromSeconds(30)
    settings = service.TelemetryCommand(settings=definition.Settings(
        client_type=definition.ClientType.SIMPLE_CONSUMER,
        subscription=definition.Subscription(
            group=definition.Resource(name="mine"), subscriptions=[definition.SubscriptionEntry(
                topic=definition.Resource(name="own"),
                expression=definition.FilterExpression(expression="*"))])))

    async def work(channel):
        ask = channel.unary_stream(
            SERVICE + "ReceiveMessage", request_serializer=service.ReceiveMessageRequest.SerializeToString,
            response_deserializer=service.ReceiveMessageResponse.FromString)
        while time.monotonic() < until:
            try:
                async for answer in ask(request, metadata=metadata, timeout=25):
                    if answer.HasField("status"):
                        done[f"code {answer.status.code}"] += 1
            except grpc.RpcError as error:
                done[error.code().name] += 1

    async with _channels(target) as channels:
        call = _telemetry(channels[0])(metadata=metadata)
        await call.write(settings)
        await call.read()
        polls = [asyncio.ensure_future(work(channels[n % CHANNELS])) for n in range(target.count)]
        await asyncio.sleep(target.seconds)
        for one in polls:
            one.cancel()
        await asyncio.wait(polls)
        done["under way at the end"] = sum(one.cancelled() for one in polls)
    return dict(done)


@contextlib.asynccontextmanager
async def _channels(target):
    forwarder = Forwarder(target.grpc)
    made = [grpc.aio.insecure_channel(
        f"127.0.0.1:{forwarder.port}", options=[("grpc.use_local_subchannel_pool", 1)]) for _ in range(CHANNELS)]
    try:
        yield made
    finally:
        for one in made:
            await one.close(None)


def _telemetry(channel):
    return channel.stream_stream(
        SERVICE + "Telemetry", request_serializer=service.TelemetryCommand.SerializeToString,
        response_deserializer=service.TelemetryCommand.FromString)


class GrpcVictim:
    """A producer of RocketMQ 5: its settings are sent, and it can send."""

    def __init__(self, address, client_id):
        self._channel = grpc.insecure_channel(
            f"{address[0]}:{address[1]}", [("grpc.use_local_subchannel_pool", 1)])
        self._id, self._calls = client_id, []
        self._send = self._channel.unary_unary(
            SERVICE + "SendMessage", request_serializer=service.SendMessageRequest.SerializeToString,
            response_deserializer=service.SendMessageResponse.FromString)

    def start(self):
        """Send the settings, on a stream that stays open. Return why this was refused, or an empty text."""
        settings = service.TelemetryCommand(settings=definition.Settings(
            client_type=definition.ClientType.PRODUCER,
            publishing=definition.Publishing(topics=[definition.Resource(name="secret")])))
        stays_open = self._calls_of(settings)
        try:
            answer = next(_telemetry(self._channel)(
                stays_open, metadata=grpc_metadata("victim", self._id), timeout=600))
            return "" if answer.status.code in {0, definition.Code.OK} else answer.status.message
        except (grpc.RpcError, StopIteration) as error:
            return _reason(error)

    def _calls_of(self, settings):
        commands = queue.SimpleQueue()
        commands.put(settings)
        self._calls.append(commands)
        return iter(commands.get, None)

    def send(self):
        """Send a message. Return why this was refused, or an empty text."""
        message = definition.Message(
            topic=definition.Resource(name="secret"), body=b"x",
            system_properties=definition.SystemProperties(message_id=f"{self._id}-{time.monotonic_ns()}"))
        try:
            answer = self._send(
                service.SendMessageRequest(messages=[message]), metadata=grpc_metadata("victim", self._id), timeout=10)
        except grpc.RpcError as error:
            return _reason(error)
        return "" if answer.status.code == definition.Code.OK else answer.status.message

    def close(self):
        for commands in self._calls:
            commands.put(None)
        self._channel.close()


def _reason(error):
    return f"{error.code().name} {error.details()}" if isinstance(error, grpc.RpcError) else type(error).__name__


socket.setdefaulttimeout(20)
