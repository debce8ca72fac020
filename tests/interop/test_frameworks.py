"""The brokers for Dramatiq and FastStream against the reference's broker."""

from __future__ import annotations

import asyncio

import dramatiq
import pytest
from faststream.exceptions import NackMessage
from java_peer import java_broker, java_name_server
from patience import PATIENCE_S, until

from tailrace import Producer
from tailrace.errors import RemotingError
from tailrace_dramatiq import DramatiqBroker
from tailrace_faststream import RocketmqBroker

pytestmark = [pytest.mark.slow, pytest.mark.interop, pytest.mark.integration]


def created(namesrv):
    with Producer(namesrv=namesrv, timeout_ms=10_000) as producer:
        try:
            producer.create_topic("ready", queues=1)
        except RemotingError:
            return False
        return True


@pytest.mark.long
def test_frameworks_work_against_a_java_broker(reference, tmp_path):
    with java_name_server(reference, tmp_path) as namesrv, java_broker(reference, tmp_path / "store", {
        "namesrvAddr": namesrv, "autoCreateTopicEnable": "true", "brokerIP1": "127.0.0.1",
    }):
        until(lambda: created(namesrv))
        tasks(namesrv)
        asyncio.run(handlers(namesrv))


def tasks(namesrv):
    ran = []
    broker = DramatiqBroker(namesrv=namesrv, invisible_s=10, timeout_ms=10_000)

    @dramatiq.actor(broker=broker, min_backoff=100, max_backoff=200, max_retries=3)
    def run(number):
        ran.append(number)
        if ran.count(7) == 1 and number == 7:
            raise ValueError

    worker = dramatiq.Worker(broker, worker_timeout=50, worker_threads=4)
    worker.start()
    try:
        for number in range(20):
            run.send(number)
        run.send_with_options(args=(20,), delay=1_500)
        until(lambda: len(ran) == 22)
        broker.join("default", timeout=PATIENCE_S * 1000)
    finally:
        worker.stop(timeout=10_000)
        broker.close()
    assert sorted(ran) == sorted([*range(21), 7])


async def handlers(namesrv):
    broker = RocketmqBroker(namesrv=namesrv, timeout_ms=10_000, logger=None)
    seen = []

    @broker.subscriber("java_orders", group="java_stock", tags="a || b", max_workers=4)
    async def handle(number: int):
        seen.append(number)
        if number == 3 and seen.count(3) == 1:
            raise NackMessage(delay=1)
        return number + 1

    async with broker:
        await broker.start()
        for number in range(10):
            await broker.publish(number, "java_orders", tags="ab"[number % 2])
        await broker.publish(10, "java_orders", tags="a", delay=1.5)
        async with asyncio.timeout(PATIENCE_S):
            while len(seen) < 12:
                await asyncio.sleep(0.05)
        reply = await broker.request(41, "java_orders", tags="a", timeout=PATIENCE_S)
        assert await reply.decode() == 42
    assert sorted(seen) == sorted([*range(11), 3, 41])
