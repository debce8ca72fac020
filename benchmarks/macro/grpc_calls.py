"""The gRPC endpoint: processor time of the server for a message, with raw calls from another process.

    python benchmarks/macro/grpc_calls.py                            Tailrace
    python benchmarks/macro/grpc_calls.py --peer HOST:PORT NAMESRV PID   a running proxy and broker, as one process PID

One JSON line for each measure: send with 64 calls in flight and bodies of 1 KiB, and receive in batches of 32 with one
acknowledgement a batch. Before them the same calls go to a server whose method of the same kind does nothing: what
Python's gRPC costs alone. Processor time is that of the server alone; rates depend on what else runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import grpc
import uvloop
from rocketmq.grpc_protocol import definition_pb2 as definition
from rocketmq.grpc_protocol import service_pb2 as service
from rocketmq.grpc_protocol import service_pb2_grpc

from tailrace.client import Producer
from tailrace.proxy.server import OPTIONS, SERVICE
from tailrace.pytest_plugin import TailraceBroker

IN_FLIGHT = 64
BODY = b"x" * 1024
TOPIC, GROUP = "bench", "bench-group"
METADATA = (("x-mq-client-id", f"bench-{os.getpid()}"), ("x-mq-language", "PYTHON"), ("x-mq-client-version", "5.1.2"))
TICKS = os.sysconf("SC_CLK_TCK")


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident_mb(pid: int) -> float:
    line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def report(what: str, pid: int, count: int, begun: tuple[float, float]) -> None:
    wall, processor = time.perf_counter() - begun[0], processor_s(pid) - begun[1]
    print(json.dumps({
        "measure": what, "messages": count, "per_s": round(count / wall),
        "server_processor_us": round(processor / count * 1e6, 1), "resident_mb": round(resident_mb(pid))}))
    sys.stdout.flush()


def message() -> object:
    return definition.Message(
        topic=definition.Resource(name=TOPIC), body=BODY,
        system_properties=definition.SystemProperties(message_id=uuid.uuid4().hex.upper()))


async def send(stub: Any, count: int) -> None:
    left = iter(range(count))

    async def worker() -> None:
        for _ in left:
            answer = await stub.SendMessage(service.SendMessageRequest(messages=[message()]), metadata=METADATA)
            assert answer.status.code == definition.Code.OK, answer

    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))


async def consume(stub: Any, count: int, workers: int = 8) -> None:
    done = 0

    async def worker() -> None:
        nonlocal done
        while done < count:
            request = service.ReceiveMessageRequest(
                group=definition.Resource(name=GROUP), batch_size=32,
                message_queue=definition.MessageQueue(topic=definition.Resource(name=TOPIC), id=-1),
                filter_expression=definition.FilterExpression(type=definition.FilterType.TAG, expression="*"))
            request.invisible_duration.seconds, request.long_polling_timeout.seconds = 60, 5
            found = [answer.message.system_properties async for answer in stub.ReceiveMessage(
                request, metadata=METADATA) if answer.WhichOneof("content") == "message"]
            if found:
                answer = await stub.AckMessage(service.AckMessageRequest(
                    group=definition.Resource(name=GROUP), topic=definition.Resource(name=TOPIC), entries=[
                        service.AckMessageEntry(message_id=one.message_id, receipt_handle=one.receipt_handle)
                        for one in found]), metadata=METADATA)
                assert answer.status.code == definition.Code.OK, answer
                done += len(found)

    await asyncio.gather(*(worker() for _ in range(workers)))


async def measure(endpoint: str, pid: int, count: int) -> None:
    async with grpc.aio.insecure_channel(endpoint) as channel:
        stub = service_pb2_grpc.MessagingServiceStub(channel)
        stream = stub.Telemetry(metadata=METADATA)
        settings = definition.Settings(client_type=definition.ClientType.SIMPLE_CONSUMER)
        settings.subscription.group.name = GROUP
        await stream.write(service.TelemetryCommand(settings=settings))
        assert (await stream.read()).status.code == definition.Code.OK
        await send(stub, count // 10)  # to warm up
        begun = time.perf_counter(), processor_s(pid)
        await send(stub, count)
        report("send, 64 in flight, 1 KiB", pid, count, begun)
        begun = time.perf_counter(), processor_s(pid)
        await consume(stub, count * 3 // 4)  # what the warm-up takes above its count is not missed
        report("receive 32 and acknowledge", pid, count * 3 // 4, begun)
        stream.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--empty", action="store_true", help="serve a method that does nothing, for this program")
    parser.add_argument("--peer", nargs=3, metavar=("HOST:PORT", "NAMESRV", "PID"))
    arguments = parser.parse_args()
    if arguments.empty:
        uvloop.run(serve_nothing())
        return
    with subprocess.Popen([sys.executable, __file__, "--empty"], stdout=subprocess.PIPE, text=True) as empty:
        try:
            assert empty.stdout is not None
            asyncio.run(measure_nothing(empty.stdout.readline().strip(), empty.pid, arguments.messages))
        finally:
            empty.kill()
    if arguments.peer:
        endpoint, namesrv, pid = arguments.peer
        prepare(namesrv)
        asyncio.run(measure(endpoint, int(pid), arguments.messages))
        return
    with tempfile.TemporaryDirectory() as scratch:
        broker = TailraceBroker(Path(scratch) / "store", "--grpc", "127.0.0.1:0")
        broker.start()
        assert broker._process is not None
        try:
            prepare(broker.namesrv)
            asyncio.run(measure(broker.grpc_endpoint, broker._process.pid, arguments.messages))
        finally:
            broker.stop()


async def measure_nothing(endpoint: str, pid: int, count: int) -> None:
    async with grpc.aio.insecure_channel(endpoint) as channel:
        stub = service_pb2_grpc.MessagingServiceStub(channel)
        await send(stub, count // 10)
        begun = time.perf_counter(), processor_s(pid)
        await send(stub, count)
        report("a method that does nothing, 64 in flight, 1 KiB", pid, count, begun)


async def serve_nothing() -> None:
    done = definition.Status(code=definition.Code.OK, message="OK")
    answer = service.SendMessageResponse(status=done, entries=[
        service.SendResultEntry(status=done, message_id="m" * 32, transaction_id="m" * 32, offset=1 << 20)])

    async def call(_: Any, context: Any) -> Any:
        await context.read()
        return answer

    server = grpc.aio.server(options=OPTIONS)
    port = server.add_insecure_port("127.0.0.1:0")
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {
        "SendMessage": grpc.stream_unary_rpc_method_handler(
            call, service.SendMessageRequest.FromString, service.SendMessageResponse.SerializeToString)}),))
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


def prepare(namesrv: str) -> None:
    with Producer(namesrv=namesrv, group="bench") as producer:
        producer.create_topic(TOPIC, 4)


if __name__ == "__main__":
    main()
