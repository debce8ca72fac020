"""Messages whose listener fails, and listeners of batches, beside a broker in memory, in virtual time."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from fake_brokers import FakeRemoting, run
from fake_consumers import broker, consumer, now

from tailrace.client import RetryLater, instance
from tailrace.client.routes import MessageQueue
from tailrace.formats.remoting import RequestCode as Code
from tailrace.formats.remoting import ResponseCode

QUEUE = MessageQueue("t", "b", 0)


@pytest.fixture(autouse=True)
def loop_kind(monkeypatch):
    """In virtual time one loop is like another."""
    monkeypatch.setattr(instance, "RemotingClient", FakeRemoting)


def test_a_failure_sends_the_message_back_and_a_refused_send_back_keeps_it(caplog):
    async def test():
        fake = broker(t=1)
        tries = []

        async def listen(message):
            tries.append((round(now(), 1), message.reconsume_times))
            if len(tries) == 1:
                raise ValueError("no")
            return len(tries) != 2

        async with consumer(listen):
            fake.refuse[Code.CONSUMER_SEND_MSG_BACK] = fake.refuse[Code.SEND_MESSAGE_V2] = ResponseCode.SYSTEM_ERROR
            fake.put("t", 0, b"x", KEYS="k1")
            await asyncio.sleep(3)
            assert fake.committed["g", "t", 0] == 0
            fake.refuse.clear()
            await asyncio.sleep(10)
            assert fake.committed["g", "t", 0] == 1
        assert [(round(at - tries[0][0]), again) for at, again in tries] == [(0, 0), (5, 1)]
        backs = [ext for code, ext in fake.asked if code == Code.CONSUMER_SEND_MSG_BACK]
        assert backs[1] == {
            "offset": "1000", "group": "g", "delayLevel": "0", "originTopic": "t", "unitMode": "false",
            "maxReconsumeTimes": "16", "originMsgId": backs[1]["originMsgId"]}
        lines = [r.getMessage() for r in caplog.records if r.levelname in {"ERROR", "WARNING"}]
        assert [line.split(" group=")[0] for line in lines] == [
            "listener failed, the message is delivered again", "message not sent back, consumed again here"]
        assert "group=g topic=t queue=0 offset=0 key=k1 reason=ValueError('no')" in lines[0]

    run(test)


def test_a_message_that_its_broker_does_not_take_back_is_sent_as_a_new_one():
    async def test():
        fake = broker(t=1)

        async def listen(message):
            if message.reconsume_times == 0:
                raise RetryLater(-1 if message.body == b"dead" else 0)

        async with consumer(listen):
            fake.refuse[Code.CONSUMER_SEND_MSG_BACK] = ResponseCode.SYSTEM_ERROR
            fake.put("t", 0, b"x", KEYS="k1", WAIT="true", own="1")
            fake.put("t", 0, b"dead")
            await asyncio.sleep(2)
            assert fake.committed["g", "t", 0] == 2
        again, dead = sorted(
            (ext for code, ext in fake.asked if code == Code.SEND_MESSAGE_V2), key=lambda ext: int(ext["j"]))
        assert (again["b"], again["j"], again["l"]) == ("%RETRY%g", "1", "16")
        assert {"KEYS\x01k1", "own\x011", "RETRY_TOPIC\x01t", "DELAY\x013"} < set(again["i"].split("\x02"))
        assert (dead["j"], dead["l"]) == ("17", "16")  # the broker makes it a dead letter

    run(test)


def test_a_message_that_nobody_takes_back_stops_its_queue_and_not_the_listener_for_ever(caplog):
    async def test():
        fake = broker(t=1)
        tries = []

        async def listen(message):
            tries.append(now())
            return False

        async with consumer(listen, max_reconsume_times=4):
            fake.refuse[Code.CONSUMER_SEND_MSG_BACK] = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            fake.refuse[Code.SEND_MESSAGE_V2] = ResponseCode.NO_PERMISSION
            fake.put("t", 0, b"x", KEYS="k1")
            await asyncio.sleep(3000)
            assert [round(b - a) for a, b in itertools.pairwise(tries)] == [5, 10, 20, 40]
            assert fake.committed["g", "t", 0] == 0
            assert fake.count(Code.CONSUMER_SEND_MSG_BACK) == pytest.approx(16, abs=2)
            fake.refuse.clear()
            await asyncio.sleep(301)
            assert (len(tries), fake.committed["g", "t", 0]) == (5, 1)
        stopped = [r.getMessage() for r in caplog.records if "neither consumed nor sent back" in r.getMessage()]
        assert [line.partition(" group=g ")[2] for line in stopped] == [
            "topic=t broker=b queue=0 offset=0 key=k1 tries=5"]

    run(test)


def test_a_listener_of_batches_gets_lists_and_says_how_many_it_has_consumed():
    async def test():
        fake = broker(t=1)
        calls = []

        async def listen(messages):
            calls.append([int(message.body) for message in messages])
            await asyncio.sleep(1)
            if calls[-1][0] == 10:
                raise RetryLater(2, consumed=len(messages) - 2)

        for number in range(45):
            fake.put("t", 0, b"%d" % number)
        async with consumer(listen, concurrency=1, batch_size=10) as member:
            await asyncio.sleep(20)
            assert [sorted(found) for found in calls[:5]] == [
                [*range(10)], [*range(10, 20)], [*range(20, 30)], [*range(30, 40)], [*range(40, 45)]]
            backs = [ext["offset"] for code, ext in fake.asked if code == Code.CONSUMER_SEND_MSG_BACK]
            assert backs == ["19000", "20000"]  # messages 18 and 19
            assert (await member.positions())[QUEUE] == 45

    run(test)


def test_in_order_a_batch_is_tried_again_in_its_order():
    async def test():
        fake = broker(t=1)
        calls = []

        async def listen(messages):
            calls.append([(int(message.body), message.reconsume_times) for message in messages])
            if len(calls) == 1:
                raise RetryLater(consumed=1)

        for number in range(4):
            fake.put("t", 0, b"%d" % number)
        async with consumer(listen, batch_size=3, in_order=True):
            await asyncio.sleep(20)
        assert calls == [[(0, 0), (1, 0), (2, 0)], [(1, 1), (2, 1), (3, 0)]]
        assert fake.committed["g", "t", 0] == 4

    run(test)


@pytest.mark.parametrize("result", [0, "done", SystemExit(1), asyncio.CancelledError()])
def test_whatever_a_listener_does_it_is_a_retry_and_the_consumer_goes_on(result):
    async def test():
        fake = broker(t=1)
        seen = []

        async def listen(message):
            seen.append(message.body)
            if message.body == b"odd":
                if isinstance(result, BaseException):
                    raise result
                return result
            return None

        async with consumer(listen, concurrency=1):
            fake.put("t", 0, b"odd")
            fake.put("t", 0, b"next")
            await asyncio.sleep(2)
            assert fake.count(Code.CONSUMER_SEND_MSG_BACK) == 1
            assert fake.committed["g", "t", 0] == 2
        assert seen == [b"odd", b"next"]

    run(test)
