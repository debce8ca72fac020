"""Push consumers on a broker in memory."""

from __future__ import annotations

import asyncio

from fake_brokers import FakeBroker, FakeRemoting, LoopClock
from patience import until_async

from tailrace.client import AsyncPushConsumer


def broker(**topics):
    FakeRemoting.broker = FakeBroker(**topics)
    return FakeRemoting.broker


def consumer(listener, **options):
    return AsyncPushConsumer("g", listener, **{
        "namesrv": "n:1", "topics": "t", "start": "first", "clock": LoopClock(), **options})


async def until(condition, seconds=3600):
    """Wait by the fake clock, on which an hour takes no time."""
    await until_async(condition, seconds)


def now():
    return asyncio.get_running_loop().time()


def listening(seen):
    async def listen(message):
        seen.append(int(message.body))
    return listen
