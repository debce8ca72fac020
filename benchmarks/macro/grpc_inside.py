"""The gRPC endpoint without gRPC: processor time of what the endpoint itself does for a call.

    python benchmarks/macro/grpc_inside.py [MESSAGES]

One process: a broker on a store, and the methods of the endpoint called with requests as bytes, as gRPC calls them. The
processor time is that of the thread of the event loop, the decoding of the request and the encoding of the response
included. An endpoint costs the sum of this, the work of Python's gRPC for an empty method, and the threads of the
store: see `grpc_calls.py`. The median of the rounds counts, and the least is shown.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import statistics
import sys
import tempfile
import time
from typing import Any

from grpc_calls import GROUP, METADATA, TOPIC, message
from rocketmq.grpc_protocol import definition_pb2 as definition
from rocketmq.grpc_protocol import service_pb2 as service

from tailrace.broker import BrokerController
from tailrace.config import BrokerConfig, StoreConfig
from tailrace.node.message_store import MessageStore
from tailrace.node.topic_config import TopicConfig
from tailrace.proxy.server import GrpcServer

ROUNDS = 9
RECEIVE_BATCH = 32


class Context:
    """What a call has beside its request."""

    def __init__(self, request: Any) -> None:
        self._request = request
        self._ends: list[Any] = []
        self.written: list[bytes] = []

    def invocation_metadata(self) -> Any:
        """Return the metadata, with what clients send beside what is read."""
        return (*METADATA, ("x-mq-protocol", "v2"), ("x-mq-request-id", "r" * 36),
                ("x-mq-date-time", "20260101T000000Z"), ("user-agent", "grpc-python-asyncio/1.80.0"))

    def peer(self) -> str:
        """Return the address of the client."""
        return "ipv4:127.0.0.1:51000"

    def time_remaining(self) -> float:
        """Return the time until the deadline."""
        return 30.0

    def add_done_callback(self, callback: Any) -> None:
        """Note what is called at the end of the call."""
        self._ends.append(callback)

    async def read(self) -> Any:
        """Return the request."""
        return self._request

    def end(self) -> None:
        """End the call."""
        for callback in self._ends:
            callback(self)

    async def write(self, answer: Any) -> None:
        """Take a message of a stream."""
        self.written.append(answer.SerializeToString())


class Inside:
    """The methods of an endpoint; each returns the processor time of its calls in seconds."""

    def __init__(self, server: GrpcServer) -> None:
        methods = server._methods()
        self._send, self._ack = methods["SendMessage"], methods["AckMessage"]
        self._receive = methods["ReceiveMessage"]

    async def _call(self, method: Any, data: bytes) -> bytes:
        context = Context(method.request_deserializer(data))
        answer = await method.stream_unary(None, context)
        context.end()
        return method.response_serializer(answer)

    async def send(self, count: int) -> float:
        """Send messages."""
        requests = [service.SendMessageRequest(messages=[message()]).SerializeToString() for _ in range(count)]
        began = time.thread_time()
        answers = [await self._call(self._send, request) for request in requests]
        took = time.thread_time() - began
        assert all(service.SendMessageResponse.FromString(one).status.code == definition.Code.OK for one in answers)
        return took

    async def receive(self) -> tuple[list[Any], float]:
        """Receive some messages, and return them."""
        request = service.ReceiveMessageRequest(
            group=definition.Resource(name=GROUP), batch_size=RECEIVE_BATCH,
            message_queue=definition.MessageQueue(topic=definition.Resource(name=TOPIC), id=-1),
            filter_expression=definition.FilterExpression(type=definition.FilterType.TAG, expression="*"))
        request.invisible_duration.seconds, request.long_polling_timeout.seconds = 60, 5
        data = request.SerializeToString()
        began = time.thread_time()
        context = Context(self._receive.request_deserializer(data))
        await self._receive.stream_stream(None, context)
        context.end()
        took = time.thread_time() - began
        answers = map(service.ReceiveMessageResponse.FromString, context.written)
        found = [one.message.system_properties for one in answers if one.WhichOneof("content") == "message"]
        return found, took

    async def ack(self, found: list[Any]) -> float:
        """Acknowledge messages, in one call."""
        data = service.AckMessageRequest(
            group=definition.Resource(name=GROUP), topic=definition.Resource(name=TOPIC), entries=[
                service.AckMessageEntry(message_id=one.message_id, receipt_handle=one.receipt_handle)
                for one in found]).SerializeToString()
        began = time.thread_time()
        answer = await self._call(self._ack, data)
        took = time.thread_time() - began
        assert service.AckMessageResponse.FromString(answer).status.code == definition.Code.OK
        return took


def report(what: str, took: list[float]) -> None:
    """Print a measure: the processor time of a message in each round, in seconds."""
    print(json.dumps({"measure": what, "median_us": round(statistics.median(took) * 1e6, 1),
                      "least_us": round(min(took) * 1e6, 1)}), flush=True)


async def measure(count: int) -> None:
    """Print a JSON line for each measure."""
    path = tempfile.mkdtemp()
    store = MessageStore.open(path, config=StoreConfig())
    controller = BrokerController(store, BrokerConfig())
    await controller.start(("127.0.0.1", 0), None)
    controller.broker.topics.update(TopicConfig(topic_name=TOPIC, read_queue_nums=4, write_queue_nums=4))
    inside = Inside(GrpcServer(controller))
    await inside.receive()  # a group starts at the end of a topic, and waits there for a few seconds
    sends, receives, acks = [], [], []
    for number in range(ROUNDS + 1):
        took = await inside.send(count)
        received = 0
        in_receive = in_ack = 0.0
        store.wait_dispatched()
        while received < count * 3 // 4:
            found, waited = await inside.receive()
            in_receive += waited
            in_ack += await inside.ack(found) if found else 0.0
            received += len(found)
        if number:  # the first round warms up
            sends.append(took / count)
            receives.append(in_receive / received)
            acks.append(in_ack / received)
    report("send 1 KiB", sends)
    report("receive 32, each", receives)
    report("acknowledge 32, each", acks)
    await controller.stop()
    store.close()
    shutil.rmtree(path)


if __name__ == "__main__":
    asyncio.run(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 3_000))
