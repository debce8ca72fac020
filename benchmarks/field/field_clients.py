"""One measure of one client, in a process of its own: field_clients.py CLIENT ADDRESS MEASURE COUNT [PID...].

Every system is used through the Python client that its own project keeps, or the best-kept one where it has none, in
the form that its documents give for throughput. A body is 1,024 random bytes. Every send waits for the acknowledgement
that the system gives by default to a careful producer. Prints one JSON line; the processor time of the server is
that of the processes PID.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import statistics
import struct
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

BODY_SIZE = 1024
IN_FLIGHT = 64
BATCH = 1000
"""Messages that a program hands to the client together."""
RATE = 1000
ONE_AT_A_TIME_S = 4.0
PARTITIONS = 8
READY_S = 120
Seen = Callable[[bytes], None]


class Client(ABC):
    """What the measures need of a client. A topic is used by one measure only."""

    def __init__(self, address: str) -> None:
        self.address = address

    @abstractmethod
    async def open(self) -> None:
        """Connect; raises while the server does not serve."""

    @abstractmethod
    async def create(self, topic: str) -> None:
        """Make a topic with as many partitions as its throughput needs."""

    @abstractmethod
    async def send(self, topic: str, body: bytes) -> None:
        """Send one message and wait for its acknowledgement."""

    @abstractmethod
    async def send_many(self, topic: str, bodies: Sequence[bytes]) -> None:
        """Send messages in the client's fastest form and wait for all acknowledgements."""

    @abstractmethod
    async def receive(self, topic: str, count: int, seen: Seen) -> None:
        """Consume from the first message on until ``count`` were seen, with the system's usual acknowledgement."""

    async def send_due(self, topic: str, body: bytes, due_s: float) -> None:
        """Send a message that is delivered at a time of ``time.time()``."""
        raise NotImplementedError

    @abstractmethod
    async def close(self) -> None:
        """Close the connection."""


class Tailrace(Client):
    """Tailrace's client; it speaks to RocketMQ as well. The address is that of a name server."""

    async def open(self) -> None:
        from tailrace import AsyncProducer
        self._producer = AsyncProducer(namesrv=self.address)
        await self._producer.__aenter__()

    async def create(self, topic: str) -> None:
        await self._producer.create_topic(topic, queues=PARTITIONS)

    async def send(self, topic: str, body: bytes) -> None:
        from tailrace import Message
        await self._producer.send(Message(topic=topic, body=body))

    async def send_many(self, topic: str, bodies: Sequence[bytes]) -> None:
        from tailrace import Message
        messages = [Message(topic=topic, body=body) for body in bodies]
        await asyncio.gather(*(
            self._producer.send_batch(messages[first:first + 250]) for first in range(0, len(messages), 250)))

    async def send_due(self, topic: str, body: bytes, due_s: float) -> None:
        from tailrace import Message
        await self._producer.send(Message(topic=topic, body=body, deliver_at=round(due_s * 1000)))

    async def receive(self, topic: str, count: int, seen: Seen) -> None:
        from tailrace import AsyncPullConsumer
        async with AsyncPullConsumer(group=f"{topic}-group", namesrv=self.address) as consumer:
            await consumer.subscribe(topic, start="first")
            left = count
            while left > 0:
                for message in await consumer.poll(500):
                    seen(message.body)
                    left -= 1

    async def close(self) -> None:
        await self._producer.close()


class RocketmqGrpc(Client):
    """RocketMQ's own client for Python; the address is that of a proxy and of a name server: PROXY,NAMESRV."""

    async def open(self) -> None:
        import rocketmq
        self._proxy, self._namesrv = self.address.split(",")
        self._configuration = rocketmq.ClientConfiguration(self._proxy, rocketmq.Credentials())
        self._producer: Any = None

    async def create(self, topic: str) -> None:
        import rocketmq
        admin = Tailrace(self._namesrv)
        await admin.open()
        await admin.create(topic)
        await admin.close()
        if self._producer is None:
            self._producer = rocketmq.Producer(self._configuration, topics=[topic])
            await asyncio.to_thread(self._producer.startup)

    def _message(self, topic: str, body: bytes) -> Any:
        import rocketmq
        message = rocketmq.Message()
        message.topic, message.body = topic, body
        return message

    async def send(self, topic: str, body: bytes) -> None:
        await asyncio.wrap_future(self._producer.send_async(self._message(topic, body)))

    async def send_many(self, topic: str, bodies: Sequence[bytes]) -> None:
        await in_flight(bodies, lambda body: self.send(topic, body))

    async def receive(self, topic: str, count: int, seen: Seen) -> None:
        import rocketmq

        from tailrace.client.admin import AdminClient
        left, lock, done = count, threading.Lock(), threading.Event()

        class Listener(rocketmq.MessageListener):
            def consume(self, message: Any) -> Any:
                nonlocal left
                with lock:
                    seen(bytes(message.body))
                    left -= 1
                    if left == 0:
                        done.set()
                return rocketmq.ConsumeResult.SUCCESS

        # The proxy has no settings for a member of a group that does not exist.
        async with AdminClient(namesrv=self._namesrv) as admin:
            await admin.save_group({"groupName": f"{topic}-group"})
        consumer = rocketmq.PushConsumer(
            self._configuration, f"{topic}-group", Listener(), {topic: rocketmq.FilterExpression()})
        await asyncio.to_thread(consumer.startup)
        await asyncio.to_thread(done.wait, 600)
        await asyncio.to_thread(consumer.shutdown)

    async def close(self) -> None:
        if self._producer is not None:
            await asyncio.to_thread(self._producer.shutdown)


class Kafka(Client):
    """confluent-kafka with acks=all, as it is by default."""

    async def open(self) -> None:
        from confluent_kafka import Producer
        from confluent_kafka.admin import AdminClient
        self._admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        await asyncio.to_thread(self._admin.list_topics, timeout=2)
        self._producer = Producer({
            "bootstrap.servers": self.address, "log_level": 0, "queue.buffering.max.messages": 1_000_000})
        self._alone = Producer({"bootstrap.servers": self.address, "log_level": 0, "linger.ms": 0})
        self._polling = asyncio.create_task(self._poll())

    async def _poll(self) -> None:
        while True:
            await asyncio.to_thread(self._alone.poll, 0.1)

    async def create(self, topic: str) -> None:
        from confluent_kafka.admin import NewTopic
        for made in self._admin.create_topics([NewTopic(topic, PARTITIONS, 1)]).values():
            await asyncio.to_thread(made.result)

    async def send(self, topic: str, body: bytes) -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def delivered(error: Any, _: Any) -> None:
            if error is None:
                loop.call_soon_threadsafe(done.set_result, None)
            else:
                loop.call_soon_threadsafe(done.set_exception, RuntimeError(str(error)))

        self._alone.produce(topic, body, on_delivery=delivered)
        await done

    async def send_many(self, topic: str, bodies: Sequence[bytes]) -> None:
        failed: list[Any] = []

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                failed.append(error)

        for body in bodies:
            self._producer.produce(topic, body, on_delivery=delivered)
        if self._producer.flush(60) or failed:
            raise RuntimeError(f"not delivered: {failed[:1]}")

    async def receive(self, topic: str, count: int, seen: Seen) -> None:
        from confluent_kafka import Consumer
        consumer = Consumer({
            "bootstrap.servers": self.address, "group.id": f"{topic}-group", "auto.offset.reset": "earliest",
            "log_level": 0})
        consumer.subscribe([topic])
        await asyncio.to_thread(self._consume, consumer, count, seen)
        consumer.close()

    @staticmethod
    def _consume(consumer: Any, count: int, seen: Seen) -> None:
        while count > 0:
            # A call returns only when it has all that were asked for, or at the end of its time.
            for message in consumer.consume(500, 0.001) or consumer.consume(1, 0.1):
                if message.error() is None:
                    seen(message.value())
                    count -= 1

    async def close(self) -> None:
        self._polling.cancel()


class Nats(Client):
    """nats-py with JetStream; a stream has one subject."""

    async def open(self) -> None:
        import nats
        self._connection = await nats.connect(self.address, connect_timeout=1, allow_reconnect=False)
        self._stream = self._connection.jetstream(publish_async_max_pending=1_000_000, timeout=60)

    async def create(self, topic: str) -> None:
        await self._stream.add_stream(name=topic, subjects=[topic])

    async def send(self, topic: str, body: bytes) -> None:
        await self._stream.publish(topic, body)

    async def send_many(self, topic: str, bodies: Sequence[bytes]) -> None:
        await asyncio.gather(*[await self._stream.publish_async(topic, body) for body in bodies])

    async def receive(self, topic: str, count: int, seen: Seen) -> None:
        from nats.errors import TimeoutError as NothingYet
        from nats.js.api import AckPolicy, ConsumerConfig
        consumer = await self._stream.pull_subscribe(
            topic, f"{topic}-group", config=ConsumerConfig(ack_policy=AckPolicy.ALL, max_ack_pending=100_000))
        while count > 0:
            try:
                messages = await consumer.fetch(500, timeout=0.05)
            except NothingYet:
                continue
            for message in messages:
                seen(message.data)
            if messages:
                await messages[-1].ack()
            count -= len(messages)

    async def close(self) -> None:
        await self._connection.close()


class Redis(Client):
    """redis-py with a stream and a consumer group."""

    async def open(self) -> None:
        import redis.asyncio
        host, port = self.address.rsplit(":", 1)
        self._redis = redis.asyncio.Redis(host=host, port=int(port), max_connections=2 * IN_FLIGHT)
        await self._redis.ping()

    async def create(self, topic: str) -> None:
        await self._redis.xgroup_create(topic, "group", "0", mkstream=True)

    async def send(self, topic: str, body: bytes) -> None:
        await self._redis.xadd(topic, {b"body": body})

    async def send_many(self, topic: str, bodies: Sequence[bytes]) -> None:
        pipeline = self._redis.pipeline(transaction=False)
        for body in bodies:
            pipeline.xadd(topic, {b"body": body})
        await pipeline.execute()

    async def receive(self, topic: str, count: int, seen: Seen) -> None:
        while count > 0:
            for _, messages in await self._redis.xreadgroup("group", "one", {topic: ">"}, count=500, block=1000):
                for _, fields in messages:
                    seen(fields[b"body"])
                await self._redis.xack(topic, "group", *[number for number, _ in messages])
                count -= len(messages)

    async def close(self) -> None:
        await self._redis.aclose()


class Rabbitmq(Client):
    """aio-pika with publisher confirms. The address names the kind of queue: HOST:PORT,stream or HOST:PORT,quorum."""

    async def open(self) -> None:
        import aio_pika
        at, self._kind = self.address.split(",")
        self._connection = await aio_pika.connect(f"amqp://guest:guest@{at}/", timeout=5)
        self._channel = await self._connection.channel(publisher_confirms=True)
        await self._channel.set_qos(prefetch_count=1000)

    async def create(self, topic: str) -> None:
        await self._channel.declare_queue(topic, durable=True, arguments={"x-queue-type": self._kind})

    async def send(self, topic: str, body: bytes) -> None:
        import aio_pika
        await self._channel.default_exchange.publish(
            aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT), topic)

    async def send_many(self, topic: str, bodies: Sequence[bytes]) -> None:
        await asyncio.gather(*(self.send(topic, body) for body in bodies))

    async def receive(self, topic: str, count: int, seen: Seen) -> None:
        left, done = count, asyncio.Event()

        async def delivered(message: Any) -> None:
            nonlocal left
            seen(message.body)
            left -= 1
            if left % 100 == 0:
                await message.ack(multiple=True)
            if left == 0:
                done.set()

        queue = await self._channel.get_queue(topic)
        tag = await queue.consume(delivered, arguments={"x-stream-offset": "first"} if self._kind == "stream" else None)
        await done.wait()
        await queue.cancel(tag)

    async def close(self) -> None:
        await self._connection.close()


CLIENTS: dict[str, type[Client]] = {
    "tailrace": Tailrace, "rocketmq-grpc": RocketmqGrpc, "kafka": Kafka, "nats": Nats, "redis": Redis,
    "rabbitmq": Rabbitmq,
}


async def in_flight(bodies: Iterable[bytes], send: Callable[[bytes], Awaitable[None]]) -> None:
    """Send one by one with at most 64 that are not acknowledged."""
    left = iter(bodies)

    async def run() -> None:
        for body in left:
            await send(body)

    await asyncio.gather(*(run() for _ in range(IN_FLIGHT)))


def cpu_of(pids: Sequence[int]) -> float:
    """Processor time of processes, in s."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def own_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Timed:
    """Rate and processor time of a block."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._server, self._client, self._wall = cpu_of(pids), own_cpu(), time.perf_counter()

    def metrics(self, count: int) -> dict[str, float]:
        took = time.perf_counter() - self._wall
        return {
            "per_s": round(count / took), "server_cpu_us": round((cpu_of(self._pids) - self._server) / count * 1e6, 1),
            "client_cpu_us": round((own_cpu() - self._client) / count * 1e6, 1)}


async def ready(client: Client, topic: str, *_: Any) -> dict[str, float]:
    """When a send is acknowledged for the first time, on the clock that all processes share."""
    until = time.monotonic() + READY_S
    while True:
        try:
            await client.open()
            await client.create(topic)
            await client.send(topic, b"first")
            return {"at": time.monotonic()}
        except Exception:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.02)


async def one(client: Client, topic: str, _: int, body: bytes, pids: Sequence[int]) -> dict[str, float]:
    """One message after the other."""
    for _ in range(200):
        await client.send(topic, body)
    timed, until, count = Timed(pids), time.monotonic() + ONE_AT_A_TIME_S, 0
    while time.monotonic() < until:
        await client.send(topic, body)
        count += 1
    return timed.metrics(count)


async def many(client: Client, topic: str, count: int, body: bytes, pids: Sequence[int]) -> dict[str, float]:
    """64 in flight."""
    await in_flight([body] * 2000, lambda each: client.send(topic, each))
    timed = Timed(pids)
    await in_flight([body] * count, lambda each: client.send(topic, each))
    return timed.metrics(count)


async def fill(client: Client, topic: str, count: int, body: bytes, pids: Sequence[int]) -> dict[str, float]:
    """1,000 messages a call of the program, in the fastest form of the client."""
    timed = Timed(pids)
    for _ in range(count // BATCH):
        await client.send_many(topic, [body] * BATCH)
    return timed.metrics(count)


async def drain(client: Client, topic: str, count: int, _: bytes, pids: Sequence[int]) -> dict[str, float]:
    """All messages that ``fill`` has sent."""
    timed, size = Timed(pids), [0]

    def seen(body: bytes) -> None:
        size[0] += len(body)

    await client.receive(topic, count, seen)
    if size[0] != count * BODY_SIZE:
        raise SystemExit(f"{size[0]} bytes came instead of {count * BODY_SIZE}")
    return timed.metrics(count)


async def latency(client: Client, topic: str, count: int, body: bytes, pids: Sequence[int]) -> dict[str, float]:
    """From the call of send to the program that consumes, at 1,000 messages a second."""
    took: list[float] = []
    warm = RATE
    reading = asyncio.create_task(client.receive(
        topic, count + warm, lambda got: took.append(time.perf_counter() - struct.unpack_from(">d", got)[0])))
    await asyncio.sleep(2)
    began, sending = time.perf_counter(), set()
    for number in range(count + warm):
        await asyncio.sleep(max(0.0, began + number / RATE - time.perf_counter()))
        task = asyncio.create_task(client.send(topic, struct.pack(">d", time.perf_counter()) + body[8:]))
        sending.add(task)
        task.add_done_callback(sending.discard)
    await asyncio.wait_for(reading, 60)
    return percentiles(took[warm:])


async def delay(client: Client, topic: str, count: int, body: bytes, pids: Sequence[int]) -> dict[str, float]:
    """Messages of one due time: how late they reach the program."""
    late: list[float] = []
    due = float(round(time.time()) + 15)
    reading = asyncio.create_task(client.receive(topic, count, lambda got: late.append(time.time() - due)))
    await in_flight([body] * count, lambda each: client.send_due(topic, each, due))
    if time.time() > due:
        raise SystemExit("sends were still under way when the messages were due")
    await asyncio.wait_for(reading, 90)
    return percentiles(late)


def percentiles(seconds: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(seconds, n=100)
    return {
        "p50_ms": round(cuts[49] * 1e3, 2), "p99_ms": round(cuts[98] * 1e3, 2),
        "max_ms": round(max(seconds) * 1e3, 2)}


MEASURES = {"one": one, "many": many, "fill": fill, "drain": drain, "latency": latency, "delay": delay}


async def measure(name: str, address: str, act: str, count: int, pids: list[int]) -> dict[str, float]:
    """Run one measure on a topic of its own; ``drain`` reads the topic of ``fill``."""
    client = CLIENTS[name](address)
    topic = {"drain": "field-fill"}.get(act, f"field-{act}")
    if act.startswith("ready"):
        return await ready(client, topic)
    await client.open()
    if act != "drain":
        await client.create(topic)
    result = await MEASURES[act](client, topic, count, random.Random(1).randbytes(BODY_SIZE), pids)
    await client.close()
    return result


def main() -> None:
    name, address, act, count, *pids = sys.argv[1:]
    try:
        import uvloop
    except ModuleNotFoundError:
        result = asyncio.run(measure(name, address, act, int(count), [int(pid) for pid in pids]))
    else:
        result = uvloop.run(measure(name, address, act, int(count), [int(pid) for pid in pids]))
    print(json.dumps(result), flush=True)
    os._exit(0)  # a client may have threads that do not end


if __name__ == "__main__":
    main()
