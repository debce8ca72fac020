"""The FastStream broker, against `tailrace serve`."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from faststream import AckPolicy, FastStream, TestApp
from faststream.exceptions import NackMessage, RejectMessage
from patience import PATIENCE_S, until_async

from tailrace.errors import RequestTimeoutError
from tailrace_faststream import (
    RocketmqBroker,
    RocketmqMessage,
    RocketmqRouter,
    TestRocketmqBroker,
)

pytestmark = [pytest.mark.slow, pytest.mark.integration]


@pytest.fixture
def broker(tailrace_session_broker):
    return RocketmqBroker(namesrv=tailrace_session_broker.namesrv, timeout_ms=10_000)


@pytest.fixture
def name():
    """A topic and a group that no other test has."""
    return f"f{uuid.uuid4().hex[:8]}"


def dead_letters(served, group):
    client = served.client()
    try:
        return [one.body for one in client.messages(f"%DLQ%{group}")]
    finally:
        client.close()


def test_messages_are_consumed_delayed_retried_and_end_as_dead_letters(broker, name, tailrace_session_broker):
    seen, times = [], {}

    @broker.subscriber(name, group=name, tags="number || word", max_workers=4)
    async def handle(body: int | str, message: RocketmqMessage):
        seen.append(body)
        times[body, seen.count(body)] = time.time()
        if body == "raise" and seen.count(body) < 2:
            raise NackMessage(delay=1)
        if body == "reject":
            raise RejectMessage
        if body == "error":
            raise ValueError(body)

    dying = f"{name}d"

    @broker.subscriber(dying, group=dying, max_reconsume_times=0)
    async def fail(body: str):
        raise ValueError(body)

    async def test():
        async with broker:
            await broker.start()
            assert await broker.ping()
            for number in range(30):
                sent = await broker.publish(number, name, tags="number", keys=[str(number)])
                assert sent.status == "SEND_OK"
            await broker.publish("not wanted", name, tags="other")
            began = time.time()
            await broker.publish("delayed", name, tags="word", delay=1.5)
            await broker.publish("raise", name, tags="word")
            await broker.publish("reject", name, tags="word")
            await broker.publish("fails", dying)
            await until_async(lambda: {*range(30), "delayed", "reject"} <= set(seen) and seen.count("raise") == 2)
            assert times["delayed", 1] - began >= 1.4
            assert times["raise", 2] - times["raise", 1] >= 0.9
            assert "not wanted" not in seen
            for group, body in ((name, b"reject"), (dying, b"fails")):
                async with asyncio.timeout(PATIENCE_S):
                    while await asyncio.to_thread(dead_letters, tailrace_session_broker, group) != [body]:
                        await asyncio.sleep(0.1)
        assert len(seen) == 30 + 4

    asyncio.run(test())


def test_order_routers_publishers_replies_and_requests(broker, name):
    router = RocketmqRouter(f"{name}_")
    seen, answers = [], []
    failed = []

    @router.subscriber("steps", group=f"{name}s", in_order=True, max_workers=4)
    @router.publisher("done", tags="t")
    async def step(body: dict):
        if body["n"] == 5 and not failed:
            failed.append(True)
            raise NackMessage(delay=0.2)
        seen.append(body["n"])
        return body["n"]

    @router.subscriber("done", group=f"{name}d", tags="t")
    async def done(number: int, message: RocketmqMessage):
        answers.append((number, message.correlation_id))

    @router.subscriber("questions", group=f"{name}q")
    async def answer(body: str):
        return f"{body}!"

    broker.include_router(router)

    async def test():
        async with TestApp(FastStream(broker)):
            for n in range(20):
                await broker.publish({"n": n}, f"{name}_steps", ordering_key="one", correlation_id=str(n))
            reply = await broker.request("how", f"{name}_questions", timeout=PATIENCE_S)
            assert await reply.decode() == "how!"
            await broker.publish("to a topic", f"{name}_questions", reply_to=f"{name}_replies")
            with pytest.raises(RequestTimeoutError):
                await broker.request("x", f"{name}_steps_of_none", timeout=0.5)
            await until_async(lambda: len(answers) == 20)
        assert seen == list(range(20))
        assert sorted(answers) == sorted((n, str(n)) for n in range(20))

    asyncio.run(test())


def test_the_policies_of_acknowledgement(broker, name):
    seen, ended = [], []
    go = asyncio.Event()

    @broker.subscriber(f"{name}1", group=f"{name}1", ack_policy=AckPolicy.ACK)
    async def ack(body: str):
        seen.append(body)
        raise ValueError(body)

    @broker.subscriber(f"{name}2", group=f"{name}2", ack_policy=AckPolicy.MANUAL, invisible_s=5)
    async def manual(body: str, message: RocketmqMessage):
        seen.append(body)
        await message.ack()
        await go.wait()
        ended.append(body)

    @broker.subscriber(f"{name}3", group=f"{name}3", ack_policy=AckPolicy.ACK_FIRST)
    async def first(body: str):
        seen.append(body)
        await go.wait()
        ended.append(body)

    async def test():
        async with broker:
            await broker.start()
            for number in (1, 2, 3):
                await broker.publish(f"body {number}", f"{name}{number}")
                await broker.publish(f"more {number}", f"{name}{number}")
            await until_async(lambda: len(seen) == 4)  # the handlers that wait have one message each
            await asyncio.sleep(0.3)
            assert len(seen) == 4
            go.set()
            await until_async(lambda: len(ended) == 4)
        assert sorted(seen) == sorted(f"{text} {n}" for text in ("body", "more") for n in (1, 2, 3))

    asyncio.run(test())


def test_the_test_broker_with_a_real_broker_and_a_stop_that_waits_for_handlers(broker, name):
    ended = []

    @broker.subscriber(name, group=name, ack_policy=AckPolicy.ACK_FIRST)
    async def handle(body: str):
        await asyncio.sleep(0.5)
        ended.append(body)

    async def test():
        async with TestRocketmqBroker(broker, with_real=True) as tested:
            publisher = tested.publisher(name)
            await publisher.publish("one")
            await handle.wait_call(timeout=PATIENCE_S)
            handle.mock.assert_called_once_with("one")
            handle.mock.reset_mock()
        assert ended == ["one"]
        async with broker:
            await broker.start()
            await broker.publish("two", name)
            subscriber = broker.subscribers[0]
            await until_async(lambda: subscriber._running)
        assert ended == ["one", "two"]

    asyncio.run(test())


WORKER = """
import asyncio, sys
from tailrace_faststream import RocketmqBroker
broker = RocketmqBroker(namesrv=sys.argv[1], logger=None)  # which writes to stdout
@broker.subscriber(sys.argv[2], group=sys.argv[2], max_workers=2, invisible_s=5)
async def hang(number: int):
    sys.stdout.write(f"{number}\\n")
    sys.stdout.flush()
    await asyncio.sleep(1000)
async def main():
    async with broker:
        await broker.start()
        await asyncio.sleep(1000)
asyncio.run(main())
"""


def run_and_kill(namesrv, topic):
    with subprocess.Popen([sys.executable, "-c", WORKER, namesrv, topic], stdout=subprocess.PIPE, text=True) as other:
        try:
            began = {other.stdout.readline() for _ in range(2)}
        finally:
            other.send_signal(signal.SIGKILL)
    assert len({int(line) for line in began}) == 2


def test_what_a_killed_program_had_comes_to_another_one(broker, name):
    seen = []

    @broker.subscriber(name, group=name, max_workers=2, invisible_s=5)
    async def handle(number: int):
        seen.append(number)

    async def test():
        async with broker:
            for number in range(6):
                await broker.publish(number, name)
            namesrv = broker.config.broker_config.servers.namesrv
            await asyncio.to_thread(run_and_kill, namesrv, name)
            await broker.start()
            await until_async(lambda: set(seen) == set(range(6)))

    asyncio.run(test())


def test_the_example_runs_with_the_command_of_faststream(tailrace_session_broker):
    folder = Path(__file__).parents[3] / "examples" / "faststream_orders"
    environment = dict(os.environ, NAMESRV_ADDR=tailrace_session_broker.namesrv, PYTHONUNBUFFERED="1")
    with subprocess.Popen(
        [sys.executable, "-m", "faststream", "run", "orders:app", "--app-dir", str(folder)], env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as app:
        try:
            wanted = {"packed 42\n", "sent 42\n"}
            while wanted and (line := app.stdout.readline()):
                wanted.discard(line)
            assert not wanted
        finally:
            app.terminate()
            app.communicate(timeout=PATIENCE_S)
    assert app.returncode == 0


@pytest.mark.parametrize("in_order", [False, True])
def test_batches_are_settled_together_and_have_what_belongs_to_each_message(broker, name, in_order):
    seen, failed = [], []

    @broker.subscriber(name, group=name, batch=True, max_records=8, in_order=in_order, topic_queues=1)
    async def handle(numbers: list[int], message: RocketmqMessage):
        assert [int(one.body) for one in message.messages] == numbers
        assert [headers["number"] for headers in message.batch_headers] == [str(number) for number in numbers]
        if not failed:
            failed.extend(numbers)
            raise NackMessage(delay=1)
        seen.append(numbers)

    async def test():
        await (await broker.connect()).create_topic(name, queues=1)
        for number in range(18):
            await broker.publish(number, name, headers={"number": str(number)}, ordering_key="one")
        sent = await broker.publish_batch(18, 18, topic=name, headers={"number": "18"})
        assert sent.queue_offset == 18
        async with broker:
            await broker.start()
            await until_async(lambda: sum(map(len, seen)) >= 20)

    asyncio.run(test())
    assert sorted(number for numbers in seen for number in numbers) == [*range(19), 18]
    assert failed
    assert 1 < max(map(len, seen)) <= 8
    if in_order:
        assert [number for numbers in seen for number in numbers] == [*range(19), 18]
