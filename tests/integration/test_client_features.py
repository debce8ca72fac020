"""What our clients can do beside sending and pulling, against `tailrace serve`: request-reply, mode POP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections import Counter, defaultdict

import pytest
from patience import until

from tailrace import (
    AsyncProducer,
    AsyncPushConsumer,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    RetryLater,
)
from tailrace.errors import MessageIllegalError, RemotingCommandError, RequestTimeoutError
from tailrace.formats.remoting import RequestCode

pytestmark = [pytest.mark.slow, pytest.mark.integration]


@pytest.fixture
def broker(tailrace_session_broker):
    """Each test here has its own topics and groups."""
    return tailrace_session_broker


def test_a_request_gets_its_reply_and_one_without_a_consumer_says_so(broker, caplog):
    kept = []

    def answer(message):
        kept.append(message)
        if message.body == b"late":
            time.sleep(0.5)
        consumer.reply(message, b"re:" + message.body)

    with Producer(namesrv=broker.namesrv, group="askers") as producer, \
            Producer(namesrv=broker.namesrv, group="askers") as other:
        producer.create_topic("questions", queues=2)
        consumer = PushConsumer("answerers", answer, namesrv=broker.namesrv, topics="questions", start="first")
        with consumer:
            reply = producer.request(Message(topic="questions", body=b"1"), timeout_ms=10_000)
            assert (reply.body, reply.topic, reply.queue_id) == (b"re:1", "DefaultCluster_REPLY_TOPIC", 0)
            assert reply.properties["CORRELATION_ID"] == kept[0].properties["CORRELATION_ID"]
            assert other.request(Message(topic="questions", body=b"2"), queue_id=1, timeout_ms=10_000).body == b"re:2"
            other.close()  # the group stays known at the broker
            assert producer.request(Message(topic="questions", body=b"3"), timeout_ms=10_000).body == b"re:3"
            with pytest.raises(RequestTimeoutError, match="the request to questions is stored, and no reply came in"):
                producer.request(Message(topic="questions", body=b"late"), timeout_ms=300)
            until(lambda: "reply came after its request had ended" in caplog.text)
        kept[0].properties.pop("CORRELATION_ID")
        with pytest.raises(MessageIllegalError, match="CORRELATION_ID"):
            producer.reply(kept[0], b"no request")
    kept[1].properties["REPLY_TO_CLIENT"] = "nobody"
    with Producer(namesrv=broker.namesrv, retries=0) as producer, \
            pytest.raises(RemotingCommandError, match="channel of <nobody> not found"):
        producer.reply(kept[1], b"to nobody")


def test_many_requests_of_one_event_loop_are_answered_each(broker):
    async def test():
        async with AsyncProducer(namesrv=broker.namesrv, group="many-askers") as producer:
            await producer.create_topic("sums", queues=4)

            async def answer(message):
                await consumer.reply(message, str(int(message.body) + 1).encode())

            consumer = AsyncPushConsumer("adders", answer, namesrv=broker.namesrv, topics="sums", start="first")
            async with consumer:
                replies = await asyncio.gather(*(
                    producer.request(Message(topic="sums", body=str(n).encode()), timeout_ms=15_000)
                    for n in range(50)))
            assert [int(one.body) for one in replies] == list(range(1, 51))

    asyncio.run(test())


def create_popped(broker, topic, group):
    with Producer(namesrv=broker.namesrv) as producer:
        producer.create_topic(topic, queues=1)
        set_mode(producer, broker, topic, group, "POP")


def set_mode(producer, broker, topic, group, mode):
    """What `mqadmin setConsumeMode` does."""
    body = json.dumps({"topic": topic, "consumerGroup": group, "mode": mode, "popShareQueueNum": 0}).encode()
    remoting = producer._awaited._share.instance.remoting
    answer = producer._loop.run(
        remoting.invoke(broker.broker, RequestCode.SET_MESSAGE_REQUEST_MODE, {}, body, timeout_ms=5000))
    assert answer.code == 0


def test_a_group_in_mode_pop_acknowledges_retries_extends_and_goes_back_to_pulling(broker):
    seen, slow, failures = [], threading.Event(), []
    tries = defaultdict(list)

    def handle(message):
        number = int(message.body)
        seen.append(number)
        tries[number].append(message.reconsume_times)
        if number == 1:
            slow.wait(7)  # longer than it is invisible
        if number == 2 and len(tries[2]) == 1:
            raise RetryLater(after_s=1)
        if number == 3:
            raise RetryLater(-1)

    with Producer(namesrv=broker.namesrv, timeout_ms=10_000) as producer, contextlib.ExitStack() as stack:
        producer.create_topic("popped", queues=4)
        set_mode(producer, broker, "popped", "poppers", "POP")
        member = PushConsumer("poppers", handle, namesrv=broker.namesrv, topics={"popped": "a || b"}, start="first",
                              client_rebalance=False, pop_invisible_s=5, on_error=failures.append)
        stack.enter_context(member)
        assert [queue.queue_id for queue in member.assignment()] == [-1]
        assert member.positions() == {}
        with pytest.raises(ValueError, match="is popped"):
            member.seek(member.assignment()[0], 0)
        for number in range(100):
            producer.send(Message(topic="popped", body=b"%d" % number, tags="ab"[number % 2]))
        producer.send(Message(topic="popped", body=b"999", tags="other"))
        until(lambda: len(set(seen)) == 100)
        until(lambda: len(tries[2]) == 2)
        assert tries[2] == [0, 1]
        with PullConsumer(namesrv=broker.namesrv) as reader:
            until(lambda: any(q for q in reader.queues("%DLQ%poppers")))
            assert [m.body for m in reader.messages("%DLQ%poppers", start="first", follow=False)] == [b"3"]
        assert [(one.tried, one.messages[0].body) for one in failures] == [("dead letter", b"3")]
        time.sleep(5.5)  # nothing is redelivered: it was extended
        slow.set()
        assert Counter(seen) == Counter([*range(100), 2])
        set_mode(producer, broker, "popped", "poppers", "PULL")
        member._loop.run(member._awaited._member.rebalance())
        assert len(member.assignment()) == 4
        producer.send(Message(topic="popped", body=b"100", tags="a"))
        until(lambda: 100 in seen)
    assert Counter(seen) == Counter([*range(101), 2])


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "beside a producer"])
def test_what_a_pop_finds_after_its_consumer_has_closed_is_given_back(broker, shared):
    """It was invisible for a minute."""
    topic, again, started, go_on = f"closing{shared:d}", [], asyncio.Event(), asyncio.Event()

    async def slow(message):
        started.set()
        await go_on.wait()

    async def note(message):
        again.append((message.body, message.reconsume_times))

    async def test():
        await asyncio.to_thread(create_popped, broker, topic, topic)
        async with AsyncProducer(namesrv=broker.namesrv) as producer:

            def consumer(listener):
                return AsyncPushConsumer(
                    topic, listener, namesrv=broker.namesrv, topics=topic, start="first", client_rebalance=False,
                    pop_invisible_s=60, concurrency=1, timeout_ms=3000 if shared else 3001)  # connections as well

            member = consumer(slow)
            await member.start()
            await producer.send(Message(topic=topic, body=b"0"))
            await started.wait()
            await asyncio.sleep(0.5)  # the next pop waits
            closing = asyncio.create_task(member.close())
            await asyncio.sleep(0.1)
            await producer.send(Message(topic=topic, body=b"1"))
            await asyncio.sleep(0.3)
            go_on.set()
            await closing
            await producer.send(Message(topic=topic, body=b"2"))
            async with consumer(note), asyncio.timeout(20):
                while len(again) < 2:
                    await asyncio.sleep(0.05)
        assert sorted(again) == [(b"1", 0), (b"2", 0)]

    asyncio.run(test())


def test_ordering_keys_batches_compression_and_recall(broker):
    async def test():
        async with AsyncProducer(namesrv=broker.namesrv, compression="zlib", compress_over=100) as producer:
            await producer.create_topic("plenty", queues=4)
            long = b"long" * 100
            results = await asyncio.gather(*(
                producer.send(Message(topic="plenty", body=b"%d" % n), ordering_key=f"key{n % 3}") for n in range(60)))
            assert [len({results[n].queue_id for n in range(k, 60, 3)}) for k in range(3)] == [1, 1, 1]
            for k in range(3):  # in the order of the calls
                offsets = [results[n].queue_offset for n in range(k, 60, 3)]
                assert offsets == sorted(offsets)
            await producer.send(Message(topic="plenty", body=long))
            later = await producer.send(Message(topic="plenty", body=b"later", delay=5))
            assert await producer.recall("plenty", later.recall_handle) == later.msg_id
            with pytest.raises(MessageIllegalError, match="recallHandle"):
                await producer.recall("plenty", "no handle")
        async with AsyncProducer(namesrv=broker.namesrv, linger_ms=20, batch_bytes=10_000) as producer:
            results = await asyncio.gather(
                *(producer.send(Message(topic="plenty", body=b"x" * 90)) for _ in range(300)),
                *(producer.send(Message(topic="plenty", body=b"%d" % n), ordering_key="key0") for n in range(60, 300)))
            places = {(one.queue_id, one.queue_offset) for one in results}
            assert len(places) == len({one.msg_id for one in results}) == len(results)
            offsets = [one.queue_offset for one in results[300:]]
            assert offsets == sorted(offsets)
            assert len({one.queue_id for one in results[300:]}) == 1
            with pytest.raises(MessageIllegalError, match="must be bytes, not str"):
                await producer.send(Message(topic="plenty", body="text"))
        with PullConsumer(namesrv=broker.namesrv) as reader:
            bodies = await asyncio.to_thread(
                lambda: [m.body for m in reader.messages("plenty", start="first", follow=False)])
            assert Counter(bodies) == Counter([*(b"%d" % n for n in range(300)), long, *[b"x" * 90] * 300])
            found = await asyncio.to_thread(reader.query, "plenty", results[0].msg_id)
            assert [(m.queue_id, m.queue_offset) for m in found] == [(results[0].queue_id, results[0].queue_offset)]

    asyncio.run(test())


def test_many_threads_batch_by_themselves(broker):
    with Producer(namesrv=broker.namesrv, linger_ms=10, max_pending_bytes=2_000) as producer:
        producer.create_topic("threads", queues=1)
        futures = [producer.send_async(Message(topic="threads", body=b"y" * 100)) for _ in range(200)]
        assert sorted(one.result(20).queue_offset for one in futures) == list(range(200))


def test_a_trace_says_what_became_of_each_message(broker):
    handled = threading.Event()

    def handle(message):
        if message.body == b"bad":
            raise RetryLater(-1)
        handled.set()

    with Producer(namesrv=broker.namesrv, group="tracers", trace=True, check=lambda half: None) as producer:
        producer.create_topic("traced", queues=1)
        with PushConsumer("followers", handle, namesrv=broker.namesrv, topics="traced", start="first", trace=True):
            bad = producer.send(Message(topic="traced", body=b"bad", tags="t", keys=["k1", "k2"]))
            half = producer.send_in_transaction(Message(topic="traced", body=b"half"), lambda message: True)
            batch = producer.send_batch([Message(topic="traced", body=b"one"), Message(topic="traced", body=b"two")])
            timer = producer.send(Message(topic="traced", body=b"later", delay=60))
            producer.recall("traced", timer.recall_handle)
            assert handled.wait(20)
            time.sleep(0.3)
    with PullConsumer(namesrv=broker.namesrv) as reader:
        def entries(key):
            found = []
            for message in reader.query("RMQ_SYS_TRACE_TOPIC", key):
                found += [one.split("\x01") for one in message.body.decode().split("\x02") if key in one]
            return sorted(found)

        until(lambda: len(entries("k2")) == 3)
        pub, after, before = entries(bad.msg_id)
        assert [pub[0], *pub[2:8]] == ["Pub", "DefaultRegion", "tracers", "traced", bad.msg_id, "t", "k1 k2"]
        assert [pub[8], pub[9], *pub[11:]] == [broker.broker, "3", "0", bad.offset_msg_id, "true"]
        assert [before[0], *before[2:4], *before[5:]] == [
            "SubBefore", "DefaultRegion", "followers", bad.msg_id, "0", "k1 k2"]
        assert after[:3] == ["SubAfter", before[4], bad.msg_id]
        assert [*after[4:7], after[8]] == ["false", "k1 k2", "4", "followers"]
        kinds = [[one[0] for one in entries(key)] for key in (half.msg_id, *batch.msg_id.split(","), timer.msg_id)]
        assert kinds == [["EndTransaction", "Pub", "SubAfter", "SubBefore"], *[["Pub", "SubAfter", "SubBefore"]] * 2,
                         ["Pub", "Recall"]]
        end, sent = entries(half.msg_id)[:2]
        assert end[9:] == ["2", half.msg_id, "COMMIT_MESSAGE", "false"]
        assert sent[11] == "1"
