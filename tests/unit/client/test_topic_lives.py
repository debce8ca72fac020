"""Consumers whose topic is deleted and made again while they run: beside a broker in memory, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from fake_brokers import LIFE, FakeRemoting, LoopClock, run
from fake_consumers import broker, consumer, now, until

from tailrace.client import AsyncPullConsumer, instance
from tailrace.client.broker_calls import BrokerCalls
from tailrace.client.pop_queues import Popping
from tailrace.client.routes import MessageQueue

SECONDS = 5.0
"""A consumer reads a new topic within this time."""


@pytest.fixture(autouse=True)
def loop_kind(monkeypatch):
    """In virtual time one loop is like another."""
    monkeypatch.setattr(instance, "RemotingClient", FakeRemoting)


def fill(fake, topic, name, count, queues=1):
    for number in range(count):
        fake.put(topic, number % queues, b"%s%d" % (name, number))
    return {b"%s%d" % (name, number) for number in range(count)}


def listening(seen):
    async def listen(message):
        seen.append(message.body)
    return listen


async def made_again(fake, seen, *, pause_s, count, queues=1, before=1):
    """Read 200 messages, then delete the topic and make it again with ``count`` ones; all are read within a time."""
    old = fill(fake, "t", b"old", 200, before)
    await until(lambda: set(seen) == old, 60)
    await asyncio.sleep(2)
    fake.delete_topic("t")
    await asyncio.sleep(pause_s)
    fake.topics["t"] = queues
    new, began = fill(fake, "t", b"new", count, queues), now()
    await until(lambda: set(seen[200:]) == new, 120)
    assert now() - began < SECONDS
    await asyncio.sleep(60)
    assert len(seen) == 200 + count


@pytest.mark.parametrize("count", [50, 700])
@pytest.mark.parametrize("pause_s", [0, 3, 45, 400])
@pytest.mark.parametrize("options", [{}, {"in_order": True}, {"start": "last"}], ids=str)
def test_a_push_consumer_reads_all_of_the_new_topic_once(caplog, options, pause_s, count):
    async def test():
        fake, seen = broker(t=1), []
        async with consumer(listening(seen), **options):
            await made_again(fake, seen, pause_s=pause_s, count=count)
            assert fake.committed["g", "t", 0] == LIFE + count
        corrected = [one for one in caplog.messages if one.startswith("offset of a queue is corrected")]
        assert [one.split(" offset=")[1] for one in corrected] == [
            f"200 to={LIFE} reason=the queue begins later: its topic was made again, or its messages have expired"]
        assert sum("pull failed" in one for one in caplog.messages) == 1  # also without a pause, if it was held

    run(test)


@pytest.mark.parametrize("queues", [2, 6])
@pytest.mark.parametrize("pause_s", [0, 3])
def test_a_push_consumer_reads_a_new_topic_with_another_number_of_queues(queues, pause_s):
    async def test():
        fake, seen = broker(t=4), []
        async with consumer(listening(seen)) as member:
            await made_again(fake, seen, pause_s=pause_s, count=60, queues=queues, before=4)
            await asyncio.sleep(30)
            assert len(await member.assignment()) == queues

    run(test)


def test_queues_that_a_topic_has_lost_and_gets_again_are_read_from_their_first_message():
    async def test():
        fake, seen = broker(t=4), []
        async with consumer(listening(seen), start="last") as member:
            await asyncio.sleep(1)
            fake.delete_topic("t")
            fake.topics["t"] = 2
            await asyncio.sleep(90)
            assert len(await member.assignment()) == 2
            fake.topics["t"] = 4
            new = fill(fake, "t", b"new", 40, 4)
            await until(lambda: set(seen) == new, 90)
        assert len(seen) == 40

    run(test)


@contextlib.asynccontextmanager
async def reading(seen, way, queues):
    """A pull consumer that reads t into ``seen``."""
    reader = AsyncPullConsumer(namesrv="n:1", group="g", clock=LoopClock())

    async def read():
        if way == "messages":
            async for message in reader.messages("t", start="first"):
                seen.append(message.body)
        elif way == "subscribe":
            await reader.subscribe("t")
        else:
            await reader.assign([MessageQueue("t", "b", number) for number in range(queues)])
        while True:
            seen.extend([message.body for message in await reader.poll()])

    task = asyncio.create_task(read())
    try:
        yield task
    finally:
        ended = task.done()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await reader.close()
        assert not ended


@pytest.mark.parametrize("count", [50, 700])
@pytest.mark.parametrize("pause_s", [0, 3, 45, 400])
@pytest.mark.parametrize("way", ["messages", "subscribe", "assign"])
def test_a_pull_consumer_reads_all_of_the_new_topic_once_and_does_not_end_without_it(way, pause_s, count, caplog):
    async def test():
        fake, seen = broker(t=1), []
        async with reading(seen, way, 1):
            await made_again(fake, seen, pause_s=pause_s, count=count)
        corrected = [one for one in caplog.messages if one.startswith("offset of a queue is corrected")]
        assert len(corrected) == 1
        assert sum("pull failed" in one for one in caplog.messages) == 1

    run(test)


@pytest.mark.parametrize("pause_s", [0, 3])
@pytest.mark.parametrize("way", ["messages", "subscribe"])
def test_a_pull_consumer_reads_a_new_topic_with_more_queues(way, pause_s):
    async def test():
        fake, seen = broker(t=2), []
        async with reading(seen, way, 2):
            await made_again(fake, seen, pause_s=pause_s, count=60, queues=6, before=2)

    run(test)


def test_messages_that_were_popped_are_read_soon_when_their_topic_is_pulled(monkeypatch):
    """A topic that is made again has no mode POP; what was popped and given back comes to a retry topic."""
    async def test():
        fake, seen, found = broker(t=1), [], {MessageQueue("t", "b", -1): True}

        async def assignment(self, topic, strategy):
            return found if topic == "t" else dict.fromkeys(await self.queues(topic), False)

        async def pop(self, queue):
            await asyncio.sleep(15)
            return []

        monkeypatch.setattr(BrokerCalls, "assignment", assignment)
        monkeypatch.setattr(Popping, "pop", pop)
        async with consumer(listening(seen), client_rebalance=False):
            await asyncio.sleep(30)
            found.clear()
            found[MessageQueue("t", "b", 0)] = False
            await asyncio.sleep(33)  # the next pass looks for the retry topic, and the following ones
            fake.put("%RETRY%g_t", 0, b"popped")
            fake.topics["%RETRY%g_t"] = 1
            began = now()
            await until(lambda: seen == [b"popped"], 60)
            assert now() - began < SECONDS

    run(test)


def test_an_offset_past_the_end_still_goes_to_the_end(caplog):
    async def test():
        fake, seen = broker(t=1), []
        async with consumer(listening(seen)):
            fill(fake, "t", b"old", 10)
            await until(lambda: len(seen) == 10, 60)
            del fake.stored["t", 0][6:]  # a power loss took the tail
            fake.lose_connections()
            await asyncio.sleep(60)
            fill(fake, "t", b"new", 5)
            await until(lambda: len(seen) == 15, 60)
        assert fake.committed["g", "t", 0] == 11
        assert sum("reason=the queue ends before it" in one for one in caplog.messages) == 1

    run(test)
