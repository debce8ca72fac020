"""Figures of the Python client against `tailrace serve` in a process of its own, as JSON lines.

    client.py [send] [push] [latency] [batches] [--count N]

``send``: asyncio producer, 64 sends in flight, 1 KiB. ``push``: a push consumer on a backlog. ``latency``: from send to
listener over 8 queues at 1,000 messages a second. ``batches``: automatic batches. Processor time is that of this
process, which is the client's. Without names all of them run.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self

import uvloop
from results import note, report

from tailrace import AsyncProducer, AsyncPushConsumer, Message
from tailrace.pytest_plugin import TailraceBroker

BODY = b"x" * 1024
IN_FLIGHT = 64
RATE = 1_000


class Timed:
    """Wall time and processor time of a block."""

    def __enter__(self) -> Self:
        self._wall, self._cpu = time.perf_counter(), _cpu()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall_s, self.cpu_s = time.perf_counter() - self._wall, _cpu() - self._cpu

    def metrics(self, count: int) -> dict[str, Any]:
        return {
            "per_second": round(count / self.wall_s), "per_cpu_second": round(count / self.cpu_s),
            "wall_s": round(self.wall_s, 3), "client_cpu_s": round(self.cpu_s, 3),
            "max_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10}


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def _send_all(producer: AsyncProducer, topic: str, count: int, tasks: int, body: bytes) -> None:
    share = count // tasks

    async def run() -> None:
        for _ in range(share):
            await producer.send(Message(topic=topic, body=body))

    await asyncio.gather(*(run() for _ in range(tasks)))


async def send(namesrv: str, count: int) -> None:
    async with AsyncProducer(namesrv=namesrv) as producer:
        await producer.create_topic("send", queues=4)
        await _send_all(producer, "send", 1_000, IN_FLIGHT, BODY)
        with Timed() as timed:
            await _send_all(producer, "send", count, IN_FLIGHT, BODY)
    report("client", {"what": "send", "count": count, "in_flight": IN_FLIGHT, "body": len(BODY)}, timed.metrics(count))


async def batches(namesrv: str, count: int) -> None:
    for body, tasks in ((b"x" * 100, 2_000), (BODY, 2_000)):
        async with AsyncProducer(namesrv=namesrv, linger_ms=2, batch_bytes=128 << 10) as producer:
            await producer.create_topic("batches", queues=4)
            await _send_all(producer, "batches", tasks, tasks, body)
            with Timed() as timed:
                await _send_all(producer, "batches", count, tasks, body)
        report("client", {"what": "batches", "count": count, "tasks": tasks, "body": len(body), "linger_ms": 2},
               timed.metrics(count))


async def push(namesrv: str, count: int) -> None:
    async with AsyncProducer(namesrv=namesrv) as producer:
        await producer.create_topic("backlog", queues=8)
        batch = [Message(topic="backlog", body=BODY)] * 100
        for first in range(0, count, 100):
            await producer.send_batch(batch, queue_id=first // 100 % 8)
    seen, done = 0, asyncio.Event()

    async def listen(message: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == count:
            done.set()

    with Timed() as timed:
        async with AsyncPushConsumer("backlog", listen, namesrv=namesrv, topics="backlog", start="first"):
            await asyncio.wait_for(done.wait(), 300)
    report("client", {"what": "push", "count": count, "queues": 8, "body": len(BODY)}, timed.metrics(count))


async def latency(namesrv: str, count: int) -> None:
    count = min(count, 5 * RATE)
    took: list[float] = []
    done = asyncio.Event()

    async def listen(message: Any) -> None:
        took.append((time.perf_counter() - float(message.body)) * 1000)
        if len(took) == count:
            done.set()

    async with AsyncProducer(namesrv=namesrv) as producer:
        await producer.create_topic("latency", queues=8)
        async with AsyncPushConsumer("latency", listen, namesrv=namesrv, topics="latency", start="first"):
            with Timed() as timed:
                began = time.perf_counter()
                tasks = set()
                for number in range(count):
                    await asyncio.sleep(max(0.0, began + number / RATE - time.perf_counter()))
                    task = asyncio.create_task(producer.send(
                        Message(topic="latency", body=b"%.6f" % time.perf_counter())))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                await asyncio.wait_for(done.wait(), 30)
    took.sort()
    report("client", {"what": "latency", "count": count, "queues": 8, "per_second": RATE}, {
        "p50_ms": round(took[count // 2], 2), "p99_ms": round(took[count * 99 // 100], 2),
        "max_ms": round(took[-1], 2), **timed.metrics(count)})


WHAT: dict[str, Callable[[str, int], Awaitable[None]]] = {
    "send": send, "push": push, "latency": latency, "batches": batches}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", choices=[[], *WHAT])
    parser.add_argument("--count", type=int, default=100_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        broker = TailraceBroker(Path(directory) / "store")
        broker.start()
        try:
            for name in options.what or WHAT:
                note(f"client {name}")
                uvloop.run(WHAT[name](broker.namesrv, options.count))
        finally:
            broker.stop()


if __name__ == "__main__":
    main()
