"""Our push consumer in one group with the reference's, and against the reference's broker."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
import time
from collections import Counter, defaultdict

import pytest
from heartbeats import without_subscriptions
from java_peer import java_broker, java_member, java_name_server
from patience import until

from tailrace import Message, Producer, PullConsumer, PushConsumer, RetryLater
from tailrace.client.admin import AdminClient
from tailrace.errors import RemotingError
from tailrace.formats.remoting import RequestCode

pytestmark = [pytest.mark.slow, pytest.mark.interop, pytest.mark.integration]


@pytest.mark.parametrize("in_order", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_java_member_and_ours_share_queues_and_all_is_consumed_once(reference, tailrace_broker, in_order):
    topic, ours = "mixed", []
    order = defaultdict(list)

    def all_is_committed(count):
        """A Java member reads the committed offsets immediately: what is not committed by then is delivered twice."""
        async def committed():
            async with AdminClient(namesrv=tailrace_broker.namesrv, timeout_ms=10_000) as admin:
                return sum(queue.consumer_offset for queue in (await admin.groups())["mixed"])

        return lambda: asyncio.run(committed()) == count

    def listen(message):
        ours.append(int(message.body))
        order[message.queue_id].append(int(message.body))

    with Producer(namesrv=tailrace_broker.namesrv, timeout_ms=10_000) as producer:
        producer.create_topic(topic, queues=4)

        def send(numbers):
            for number in numbers:
                producer.send(Message(topic=topic, body=str(number).encode()), queue_id=number % 4)

        with PushConsumer("mixed", listen, namesrv=tailrace_broker.namesrv, topics=topic, start="first",
                          in_order=in_order) as member:
            send(range(40))
            until(lambda: len(ours) == 40)
            until(all_is_committed(40))
            with java_member(reference, tailrace_broker.namesrv, "mixed", topic, *(["orderly"] * in_order)) as theirs:
                until(lambda: len(member.assignment()) == 2)
                send(range(40, 120))
                until(lambda: len(ours) + len(theirs) >= 120)
                assert len(theirs) == 40
                until(lambda: sum(member.positions().values()) == 60)
            until(lambda: len(member.assignment()) == 4)
            until(all_is_committed(120))
            send(range(120, 160))
            until(lambda: len(ours) + len(theirs) >= 160)
            time.sleep(0.3)
    counted = Counter([*ours, *(number for _, number in theirs)])
    assert sorted(counted) == list(range(160))
    assert max(counted.values()) == 1
    if in_order:
        for queue, number in theirs:
            order[-1 - queue].append(number)
        assert all(numbers == sorted(numbers) for numbers in order.values())


@pytest.mark.long
def test_ours_work_against_a_java_broker(reference, tmp_path):
    with java_name_server(reference, tmp_path) as namesrv, java_broker(reference, tmp_path / "store", {
        "namesrvAddr": namesrv, "autoCreateTopicEnable": "true", "traceTopicEnable": "true", "brokerIP1": "127.0.0.1",
        "messageDelayLevel": "1s 1s 1s 1s",
    }), Producer(namesrv=namesrv, timeout_ms=10_000) as producer:
        until(lambda: created(producer))
        seen, again = [], []

        def listen(message):
            if int(message.body) == 7:
                again.append((message.topic, message.reconsume_times))
                raise RetryLater
            seen.append(int(message.body))

        def made(**more):
            return PushConsumer("ours", listen, namesrv=namesrv, topics="java", start="first",
                                max_reconsume_times=1, timeout_ms=10_000, **more)

        with made() as one, made() as two:
            until(lambda: len(one.assignment()) == len(two.assignment()) == 2)
            for number in range(20):
                producer.send(Message(topic="java", body=str(number).encode()))
            until(lambda: len(seen) == 19 and len(again) == 2)
            assert again == [("java", 0), ("java", 1)]
            until(lambda: sum(one.positions().values()) + sum(two.positions().values()) == 20)
        assert sorted(seen) == [n for n in range(20) if n != 7]
        with PullConsumer(namesrv=namesrv, group="undertaker", timeout_ms=10_000) as reader:
            dead = []
            until(lambda: dead or dead.extend(dead_letters(reader)))
            assert [m.body for m in dead] == [b"7"]
        ordered = []
        with PushConsumer("in-order", lambda m: ordered.append((m.queue_id, int(m.body))), namesrv=namesrv,
                          topics="java", start="first", in_order=True, timeout_ms=10_000) as member:
            until(lambda: len(ordered) == 20)
            assert len(member.assignment()) == 4
        assert sorted(n for _, n in ordered) == list(range(20))
        for queue in range(4):
            numbers = [n for q, n in ordered if q == queue]
            assert numbers == sorted(numbers)
        with PullConsumer(namesrv=namesrv, group="ours", timeout_ms=10_000) as reader:
            assert list(reader.messages("java", follow=False)) == []  # all was committed
            reader.subscribe("java")
            producer.send(Message(topic="java", body=b"20"))
            assert [m.body for m in reader.poll(timeout_ms=10_000)] == [b"20"]
        pops_and_replies(producer, namesrv)
        without_subscriptions(producer, namesrv)
        traced(reference, namesrv)


def traced(reference, namesrv):
    """`mqadmin queryMsgTraceById` shows our traces."""
    handled = threading.Event()
    with Producer(namesrv=namesrv, group="tracers", trace=True, timeout_ms=10_000) as producer, \
            PushConsumer("followers", lambda message: handled.set(), namesrv=namesrv, topics="java", start="last",
                         trace=True, timeout_ms=10_000):
        sent = producer.send(Message(topic="java", body=b"1", keys=["traced"]))
        assert handled.wait(20)
        time.sleep(0.1)

    def shows():
        shown = subprocess.run(
            [reference, "admin", "queryMsgTraceById", "-i", sent.msg_id, "-n", namesrv], capture_output=True, text=True,
            timeout=60, check=False).stdout
        lines = [line.split() for line in shown.splitlines()]
        return "success" in shown and any("followers" in line for line in lines) and [
            line[:2] for line in lines if line[:1] == ["Pub"]] == [["Pub", "tracers"]]

    until(shows)  # on a busy machine a query of mqadmin ends without an answer, with nothing on its output


def pops_and_replies(producer, namesrv):
    """Mode POP, and request-reply."""
    asked, tries = [], []

    def listen(message):
        asked.append(message.body)
        if message.body == b"2":
            tries.append(message.reconsume_times)
            if len(tries) == 1:
                raise RetryLater(after_s=1)
        if "REPLY_TO_CLIENT" in message.properties:
            consumer.reply(message, b"re:" + message.body)

    producer.create_topic("asked", queues=2)
    body = {"topic": "asked", "consumerGroup": "poppers", "mode": "POP", "popShareQueueNum": 0}
    remoting = producer._awaited._share.instance.remoting
    address = next(iter(producer._loop.run(producer._awaited._routes.of("asked")).addresses.values()))
    assert producer._loop.run(remoting.invoke(
        address, RequestCode.SET_MESSAGE_REQUEST_MODE, {}, json.dumps(body).encode(), timeout_ms=10_000)).code == 0
    consumer = PushConsumer("poppers", listen, namesrv=namesrv, topics="asked", start="first",
                            client_rebalance=False, pop_invisible_s=10, timeout_ms=10_000)
    with consumer:
        until(lambda: [queue.queue_id for queue in consumer.assignment()] == [-1])
        for number in range(20):
            producer.send(Message(topic="asked", body=str(number).encode()))
        assert producer.request(Message(topic="asked", body=b"how"), timeout_ms=20_000).body == b"re:how"
        until(lambda: len(set(asked)) == 21 and len(tries) == 2)
        assert tries == [0, 1]
        time.sleep(11)  # unacknowledged messages would be redelivered
    assert len(asked) == 22


def created(producer):
    try:
        producer.create_topic("java", queues=4)
        return len(producer.queues("java")) == 4
    except RemotingError:  # the broker has not registered yet
        return False


def dead_letters(reader):
    try:
        return list(reader.messages("%DLQ%ours", start="first", follow=False))
    except RemotingError:
        return []
