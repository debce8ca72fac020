"""A producer that tries a send again for a time, on a broker in memory and in virtual time."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from fake_brokers import FakeBroker, FakeRemoting, LoopClock, run

from tailrace import Message
from tailrace.client import AsyncProducer, Producer, instance, sender
from tailrace.errors import (
    ConfigError,
    DeliveryTimeoutError,
    MessageIllegalError,
    RemotingCommandError,
    RemotingConnectError,
    RemotingError,
    RemotingTimeoutError,
)
from tailrace.formats.remoting import RequestCode as Code
from tailrace.formats.remoting import ResponseCode

ONE = Message(topic="t", body=b"7")


@pytest.fixture(autouse=True)
def loop_kind(monkeypatch):
    """In virtual time one loop is like another."""
    monkeypatch.setattr(instance, "RemotingClient", FakeRemoting)


def broker(**topics):
    FakeRemoting.broker = FakeBroker(**topics)
    return FakeRemoting.broker


def producer(**options):
    return AsyncProducer(namesrv="n:1", clock=LoopClock(), **options)


def now():
    return asyncio.get_running_loop().time()


def later(seconds, call):
    asyncio.get_running_loop().call_later(seconds, call)


@pytest.mark.parametrize("given", ["30s", 30, timedelta(seconds=30)])
def test_a_send_waits_for_a_broker_that_is_back_in_time(given):
    async def test():
        fake = broker(t=1)
        fake.down = True
        later(10, lambda: setattr(fake, "down", False))
        async with producer(delivery_timeout=given) as made:
            sent = await made.send(ONE)
            assert sent.status == "SEND_OK"
            assert 10 <= now() <= 10 + sender.PAUSE_MAX_S + 0.1
        assert len(fake.stored["t", 0]) == 1

    run(test)


def test_pauses_grow_and_are_random():
    async def test():
        fake = broker(t=1)
        fake.down = True
        gaps = []
        async with producer(delivery_timeout="60s") as made:
            for _ in range(2):
                fake.times.clear()
                with pytest.raises(DeliveryTimeoutError):
                    await made.send(ONE)
                gaps.append([after - before for before, after in zip(fake.times, fake.times[1:], strict=False)])
        for these in gaps:
            for number, gap in enumerate(these[:-1]):  # the last one is shorter: the time ends
                longest = min(sender.PAUSE_S * 2.0 ** number, sender.PAUSE_MAX_S)
                assert longest / 2 <= gap <= longest + 0.01
            assert 14 <= len(these) <= 32
        assert gaps[0] != gaps[1]

    run(test)


def test_the_error_names_the_last_cause_and_the_time_and_whether_the_message_may_be_stored():
    async def test():
        fake = broker(t=1)
        fake.down = True
        async with producer(delivery_timeout="5s") as made:
            with pytest.raises(DeliveryTimeoutError) as raised:
                await made.send(ONE)
            error = raised.value
            assert isinstance(error, RemotingError)
            assert isinstance(error.last, RemotingConnectError)
            assert error.__cause__ is error.last
            assert (error.topic, error.may_be_stored) == ("t", False)
            assert 4_700 <= error.tried_ms <= 5_010
            assert str(error) == (
                f"a message to t is not stored after {error.tried_ms / 1000:.1f} s and {error.tries} tries; "
                "the last failed because: cannot connect to 10.0.0.1:10911: it is down")
            fake.down = False
            fake.refuse[Code.SEND_MESSAGE_V2] = None  # no answer: it may be stored
            with pytest.raises(DeliveryTimeoutError, match=r"may not be stored after .* did not answer") as raised:
                await made.send(ONE)
            assert raised.value.may_be_stored
            assert isinstance(raised.value.last, RemotingTimeoutError)
            fake.refuse[Code.SEND_MESSAGE_V2] = ResponseCode.SYSTEM_BUSY
            with pytest.raises(DeliveryTimeoutError, match="too many requests wait") as raised:
                await made.send(ONE)
            assert not raised.value.may_be_stored

    run(test)


def test_a_refusal_is_raised_at_once():
    async def test():
        fake = broker(t=1)
        fake.refuse[Code.SEND_MESSAGE_V2] = ResponseCode.NO_PERMISSION
        async with producer(delivery_timeout="30s") as made:
            with pytest.raises(RemotingCommandError, match="does not permit this"):
                await made.send(ONE)
            with pytest.raises(MessageIllegalError, match="queueId"):
                await made.send(ONE, queue_id=7)
        assert now() < 1
        assert fake.count(Code.SEND_MESSAGE_V2) == 1

    run(test)


def test_without_it_a_send_is_tried_as_often_as_retries_say_without_a_pause():
    async def test():
        fake = broker(t=1)
        fake.down = True
        async with producer() as made:
            with pytest.raises(RemotingConnectError):
                await made.send(ONE)
        assert len(fake.asked) == 3
        assert now() < 0.1

    run(test)


def test_a_request_and_a_route_take_no_longer_than_what_is_left(monkeypatch):
    async def test():
        fake = broker(t=1)
        timeouts = []

        async def serve(remoting, code, ext, body, timeout_ms):
            if code == Code.GET_ROUTEINFO_BY_TOPIC and route_hangs:
                await asyncio.sleep(1000)
            if code == Code.SEND_MESSAGE_V2:
                timeouts.append(timeout_ms)
                await asyncio.sleep(timeout_ms / 1000)
                raise RemotingTimeoutError("b", timeout_ms)
            return await FakeBroker.serve(fake, remoting, code, ext, body, timeout_ms)

        fake.serve = serve
        route_hangs = False
        async with producer(delivery_timeout="4s") as made:
            with pytest.raises(DeliveryTimeoutError):
                await made.send(ONE)
            assert now() <= 4.01
            assert timeouts[0] > 2_990
            assert timeouts[1] < 1_000
            route_hangs, began = True, now()
            with pytest.raises(DeliveryTimeoutError, match="the name server did not answer") as raised:
                await made.send(Message(topic="u", body=b"7"))
            assert now() - began <= 4.01
            assert not raised.value.may_be_stored

    run(test)


def test_messages_of_a_key_keep_their_order_and_other_sends_wait_no_longer():
    async def test():
        fake = broker(t=4)
        fake.down = True
        later(8, lambda: setattr(fake, "down", False))
        async with producer(delivery_timeout="30s", linger_ms=0) as made:
            await asyncio.gather(*(made.send(Message(topic="t", body=b"%d" % number), ordering_key="42")
                                   for number in range(5)))
        [queue] = [queue for queue in fake.stored.values() if queue]
        assert len(queue) == 5
        assert all(b"%d" % number in record for number, record in enumerate(queue))

    run(test)


@pytest.mark.parametrize("options", [{"linger_ms": 5}, {"linger_ms": 5, "ordering_key": "42"}])
def test_batches_are_tried_again_too(options):
    async def test():
        fake = broker(t=1)
        fake.down = True
        later(8, lambda: setattr(fake, "down", False))
        key = options.pop("ordering_key", None)
        async with producer(delivery_timeout="30s", **options) as made:
            assert (await made.send(ONE, ordering_key=key)).status == "SEND_OK"

    run(test)


def test_a_transaction_waits_for_the_broker_before_the_program_does_its_part():
    async def test():
        fake = broker(t=1)
        fake.down = True
        later(8, lambda: setattr(fake, "down", False))
        decided = []
        async with producer(delivery_timeout="30s", check=lambda message: None) as made:
            await made.send_in_transaction(ONE, lambda message: decided.append(now()))
            assert decided[0] >= 8
            fake.down = True
            began = now()
            with pytest.raises(DeliveryTimeoutError):
                await made.send_in_transaction(ONE, decided.append)
            assert now() - began <= 30.1
        assert len(decided) == 1

    run(test)


def test_a_producer_that_closes_waits_for_its_sends():
    async def test():
        fake = broker(t=1)
        fake.down = True
        later(8, lambda: setattr(fake, "down", False))
        made = producer(delivery_timeout="30s")
        sending = asyncio.create_task(made.send(ONE))
        await asyncio.sleep(1)
        await made.close()
        assert (await sending).status == "SEND_OK"

    run(test)


def test_a_topic_that_does_not_exist_is_named_with_the_nearest_name():
    async def test():
        fake = broker(orders=1)
        async with producer() as made:
            for _ in range(20):
                with pytest.raises(RemotingCommandError, match=r"n:1 has no topic ordres; is orders meant\?") as raised:
                    await made.send(Message(topic="ordres", body=b"7"))
            assert raised.value.code == ResponseCode.TOPIC_NOT_EXIST
        assert fake.count(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == 1

    run(test)


@pytest.mark.parametrize(("given", "why"), [
    ("5", "write 5s or 5ms"), (0, "is not above 0"), (-1, "is not a duration: give s"), (True, "is not a duration")])
@pytest.mark.parametrize("kind", [Producer, AsyncProducer])
def test_a_delivery_timeout_that_is_no_time_is_refused(kind, given, why):
    with pytest.raises(ConfigError, match=f"delivery_timeout.*{why}"):
        kind(namesrv="n:1", delivery_timeout=given)
