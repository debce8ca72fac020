"""A producer with slow brokers, and with more messages than the network can take."""

from __future__ import annotations

import asyncio

import pytest
from fake_brokers import FakeBroker, FakeRemoting, LoopClock, run

from tailrace import Message
from tailrace.client import AsyncProducer, instance
from tailrace.client.broker_faults import BrokerFaults
from tailrace.client.pending import Pending, Turns
from tailrace.client.routes import MessageQueue
from tailrace.errors import ConfigError, MessageIllegalError, RemotingCommandError, RemotingError
from tailrace.formats.commitlog import decode_batch
from tailrace.formats.remoting import RemotingCommand, ResponseCode
from tailrace.formats.remoting import RequestCode as Code

QUEUES = [MessageQueue("t", name, n) for name in "ab" for n in range(2)]


@pytest.fixture(autouse=True)
def loop_kind(monkeypatch):
    """In virtual time one loop is like another."""
    monkeypatch.setattr(instance, "RemotingClient", FakeRemoting)


def names(queues):
    return sorted({queue.broker_name for queue in queues})


def test_a_slow_or_lost_broker_is_avoided_for_the_time_of_the_reference():
    async def test():
        faults = BrokerFaults(LoopClock())
        faults.note("a", 549)
        assert names(faults.usable(QUEUES)) == ["a", "b"]
        for took_ms, seconds in ((550, 2), (1800, 5), (3000, 6), (5000, 10), (15_000, 30)):
            faults.note("a", took_ms)
            await asyncio.sleep(seconds - 0.01)
            assert names(faults.usable(QUEUES)) == ["b"]
            await asyncio.sleep(0.02)
            assert names(faults.usable(QUEUES)) == ["a", "b"]
        faults.note("b", 1, reached=False)
        assert names(faults.usable(QUEUES)) == ["a"]
        faults.note("a", 1, reached=False)
        assert names(faults.usable(QUEUES)) == ["a", "b"]  # better a slow one than none
        faults.note("b", 1)
        assert names(faults.usable(QUEUES)) == ["b"]

    run(test)


def test_room_is_given_in_order_and_given_back_by_calls_that_are_cancelled():
    async def test():
        room, done = Pending(100), []

        async def use(name, size):
            await room.enter(size)
            done.append(name)

        await use("first", 60)
        tasks = [asyncio.create_task(use(name, size)) for name, size in (("big", 500), ("small", 10), ("last", 20))]
        await asyncio.sleep(0.1)
        assert done == ["first"]  # a large one is not passed by small ones
        tasks[1].cancel()
        room.leave(60)
        await asyncio.sleep(0.1)
        assert done == ["first", "big"]
        room.leave(500)
        await asyncio.sleep(0.1)
        assert done == ["first", "big", "last"]
        room.leave(20)
        assert room.bytes == 0

    run(test)


def test_turns_of_a_key_are_in_order_and_forgotten():
    async def test():
        turns, seen = Turns(), []

        async def take(key, number):
            async with turns.of(key):
                await asyncio.sleep(1)
                seen.append((asyncio.get_running_loop().time() // 1, key, number))

        await asyncio.gather(*(take("ab"[n % 2], n) for n in range(6)))
        assert [(key, number) for _, key, number in seen] == [
            ("a", 0), ("b", 1), ("a", 2), ("b", 3), ("a", 4), ("b", 5)]
        assert turns._locks == {}

    run(test)


def test_a_network_that_is_slow_bounds_what_is_sent():
    async def test():
        broker = FakeRemoting.broker = FakeBroker(t=1)
        under_way = []

        async def slow(remoting, ext, body):
            under_way.append(len(body))
            await asyncio.sleep(1)
            under_way.pop()
            return RemotingCommand(0, {"msgId": "0" * 32, "queueId": "0", "queueOffset": "0"})

        broker._send_message_v2 = slow
        async with AsyncProducer(namesrv="n:1", clock=LoopClock(), max_pending_bytes=300) as producer:
            tasks = [asyncio.create_task(producer.send(Message(topic="t", body=bytes(100)))) for _ in range(10)]
            await asyncio.sleep(0.5)
            assert sum(under_way) == 300
            await asyncio.gather(*tasks)

    run(test)


def test_a_message_that_is_refused_does_not_fail_the_others_of_its_batch():
    async def test():
        broker = FakeRemoting.broker = FakeBroker(t=1)

        async def refuse(remoting, ext, body):
            return RemotingCommand(ResponseCode.MESSAGE_ILLEGAL, remark="one is too large")

        async def single(remoting, ext, body):
            if len(body) > 50:
                return RemotingCommand(ResponseCode.MESSAGE_ILLEGAL, remark="too large")
            return RemotingCommand(0, {"msgId": "0" * 32, "queueId": "0", "queueOffset": "7"})

        broker._send_batch_message, broker._send_message_v2 = refuse, single
        async with AsyncProducer(namesrv="n:1", clock=LoopClock(), linger_ms=5) as producer:
            found = await asyncio.gather(
                *(producer.send(Message(topic="t", body=bytes(size))) for size in (10, 60, 20)), return_exceptions=True)
        assert [getattr(one, "queue_offset", None) for one in found] == [7, None, 7]
        assert isinstance(found[1], RemotingCommandError)
        assert broker.count(Code.SEND_BATCH_MESSAGE) == 1

    run(test)


def test_messages_of_a_key_keep_their_order_when_one_of_a_batch_is_refused():
    async def test():
        broker = FakeRemoting.broker = FakeBroker(t=1)
        stored = []

        async def refuse(remoting, ext, body):
            await asyncio.sleep(1)
            return RemotingCommand(ResponseCode.MESSAGE_ILLEGAL, remark="one is too large")

        async def single(remoting, ext, body):
            await asyncio.sleep(1)
            stored.append(int(body))
            return RemotingCommand(0, {"msgId": "0" * 32, "queueId": "0", "queueOffset": "7"})

        broker._send_batch_message, broker._send_message_v2 = refuse, single
        async with AsyncProducer(namesrv="n:1", clock=LoopClock(), linger_ms=5, batch_bytes=400) as producer:
            await asyncio.gather(*(
                producer.send(Message(topic="t", body=b"%d" % n), ordering_key="a") for n in range(20)))
        assert broker.count(Code.SEND_BATCH_MESSAGE) > 1
        assert stored == list(range(20))

    run(test)


@pytest.mark.parametrize("linger_ms", [0, 1000])
def test_close_waits_for_the_sends_that_are_under_way(linger_ms):
    async def test():
        broker = FakeRemoting.broker = FakeBroker(t=1)
        send = broker._send_message_v2

        async def slow(remoting, ext, body):
            await asyncio.sleep(1)
            return await send(remoting, ext, body)

        broker._send_message_v2 = slow
        producer = AsyncProducer(
            namesrv="n:1", clock=LoopClock(), linger_ms=linger_ms, batch_bytes=100, max_pending_bytes=100)
        tasks = [asyncio.create_task(producer.send(Message(topic="t", body=bytes(60)))) for _ in range(5)]
        await asyncio.sleep(0.5)
        await producer.close()
        assert all(task.done() for task in tasks)
        assert [task.result().status for task in tasks] == ["SEND_OK"] * 5
        with pytest.raises(RemotingError, match="closed"):
            await producer.send(Message(topic="t", body=b""))

    run(test)


def test_a_message_that_is_stored_is_no_error_although_its_trace_or_its_end_cannot_be_sent(caplog):
    async def test():
        broker = FakeRemoting.broker = FakeBroker(t=1)
        send = broker._send_message_v2

        async def then_lost(remoting, ext, body):
            answer = await send(remoting, ext, body)
            answer.ext["offsetMsgId"] = "0" * 32
            if ext["b"] == "t":
                producer._routes.forget("t")
                broker.refuse[Code.GET_ROUTEINFO_BY_TOPIC] = None
            return answer

        broker._send_message_v2 = then_lost
        async with AsyncProducer(namesrv="n:1", clock=LoopClock(), trace=True, check=lambda _: None) as producer:
            assert (await producer.send(Message(topic="t", body=b""))).status == "SEND_OK"
            broker.refuse.clear()
            sent = await producer.send_in_transaction(Message(topic="t", body=b""), lambda _: True)
            assert sent.decision is True
        assert "the broker will ask" in caplog.text

    run(test)


@pytest.mark.parametrize("linger_ms", [0, 5])
def test_messages_of_a_key_keep_their_order_whatever_the_network_does(linger_ms):
    async def test():
        broker = FakeRemoting.broker = FakeBroker(t=4)
        stored, waits = [], iter(range(1000, 0, -1))
        route = broker._get_routeinfo_by_topic

        async def slow_route(remoting, ext, body):
            await asyncio.sleep(next(waits) / 1000)
            return await route(remoting, ext, body)

        async def send(remoting, ext, body):
            await asyncio.sleep(next(waits) % 7)
            bodies = [body] if "m" not in ext or ext["m"] == "false" else [item[1] for item in decode_batch(body)]
            stored.extend((int(ext["e"]), int(one)) for one in bodies)
            ids = ",".join(["0" * 32] * len(bodies))
            return RemotingCommand(0, {"msgId": ids, "queueId": ext["e"], "queueOffset": str(len(stored))})

        broker._get_routeinfo_by_topic, broker._send_message_v2, broker._send_batch_message = slow_route, send, send
        async with AsyncProducer(namesrv="n:1", clock=LoopClock(), linger_ms=linger_ms, batch_bytes=300,
                                 timeout_ms=2_000_000) as producer:
            await asyncio.gather(*(
                producer.send(Message(topic="t", body=b"%d" % n), ordering_key="ab"[n % 2]) for n in range(20)))
        by_queue = [[number for queue, number in stored if queue == one] for one in range(4)]
        assert [found for found in by_queue if found] == [list(range(1, 20, 2)), list(range(0, 20, 2))] or (
            [found for found in by_queue if found] == [list(range(0, 20, 2)), list(range(1, 20, 2))])
        if linger_ms:
            assert broker.count(Code.SEND_BATCH_MESSAGE) > 1

    run(test)


@pytest.mark.parametrize(("message", "text"), [
    ({"body": "text"}, "must be bytes, not str; encode"),
    ({"properties": {"n": 1}}, "'n': 1: names and values are texts"),
    ({"properties": {"KEYS": "a"}, "keys": ["b"]}, "KEYS is the stored form of the field keys"),
    ({"delay": 1, "delay_level": 2}, "delay and delay_level are given"),
    ({"delay": 0, "deliver_at": 5}, "give one of them"),
    ({"keys": "word"}, "keys"),
])
def test_a_message_that_contradicts_itself_is_refused(message, text):
    async def test():
        FakeRemoting.broker = FakeBroker(t=1)
        async with AsyncProducer(namesrv="n:1", clock=LoopClock()) as producer:
            with pytest.raises(MessageIllegalError, match=text):
                await producer.send(Message(**{"topic": "t", "body": b"", **message}))

    run(test)


def test_settings_that_cannot_work_are_named():
    with pytest.raises(ConfigError, match="compression='gzip' is not one of zlib, lz4, zstd"):
        AsyncProducer(namesrv="n:1", compression="gzip")
    with pytest.raises(ConfigError) as caught:
        AsyncProducer(namesrv="n:1", batch_bytes=0, max_pending_bytes=-1)
    assert len(caught.value.problems) == 2
