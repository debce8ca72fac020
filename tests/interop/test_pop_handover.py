"""Messages that are popped and not acknowledged are redelivered by whichever broker has the directory next."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import pytest
from java_peer import java_broker, patiently, tailrace

from tailrace import Message
from tailrace.client import Producer
from tailrace.formats import fastjson
from tailrace.formats.commitlog import decode_message
from tailrace.formats.pop import ExtraInfo, pop_retry_topic, real_topic
from tailrace.remoting.client import RemotingClient

pytestmark = [pytest.mark.slow, pytest.mark.interop]
POP, ACK, BATCH_ACK, POP_TOPIC = 200050, 200051, 200151, "PT"
SENT, POPPED = 12, 8


PAIRS = (("g_a", "x"), ("g", "a_x"))
"""Their retry topics have the same name in the form with ``_``."""


def running(name, reference, root, *, kill=False, settings=None):
    """The broker ``name`` on the directory until the block ends; its address. ``settings`` are of a Java broker."""
    return java_broker(reference, root, settings, kill=kill) if name == "java" else tailrace(root, kill=kill)


def send(address):
    with Producer(broker=address) as producer:
        producer.create_topic(POP_TOPIC, 1)
        for n in range(SENT):
            producer.send(Message(topic=POP_TOPIC, body=b"%d" % n))


def _popped_until(file):
    table = fastjson.loads(file.read_bytes())["offsetTable"]
    return int({str(k): v for k, v in table.get(f"{POP_TOPIC}@PG", {}).items()}.get("0", 0))


def wait_for_offset(root):
    """Wait until the broker has written how far the group has popped."""
    file, until = root / "config" / "consumerOffset.json", time.monotonic() + 60
    while True:
        with suppress(OSError, ValueError):
            if _popped_until(file) >= POPPED:
                break
        assert time.monotonic() < until, "the offset is not written"
        time.sleep(0.2)
    time.sleep(1)  # a Java broker puts its checkpoints


def ask(address, code, ext, body=b""):
    async def once():
        client = RemotingClient()
        try:
            return await client.invoke(address, code, ext, body, timeout_ms=20_000)
        finally:
            await client.close()

    return asyncio.run(once())


def pop(address, invisible_ms, most=32, *, topic=POP_TOPIC, group="PG"):
    """(body, receipt, number of deliveries) of each popped message."""
    answer = ask(address, POP, {
        "consumerGroup": group, "topic": topic, "queueId": "-1", "maxMsgNums": str(most),
        "invisibleTime": str(invisible_ms), "pollTime": "0", "bornTime": str(time.time_ns() // 1_000_000),
        "initMode": "0", "exp": "*", "expType": "TAG", "order": "false"})
    assert answer.code in {0, 210}, (answer.code, answer.remark)
    starts = {(f, q): s for f, q, s in (
        part.split(" ") for part in answer.ext.get("startOffsetInfo", "").split(";") if part)}
    found, at = [], 0
    while at < len(answer.body):
        size = int.from_bytes(answer.body[at : at + 4], "big")
        m = decode_message(answer.body[at : at + size])
        at += size
        receipt = m.properties.get("POP_CK") or ExtraInfo(
            int(starts["0", str(m.queue_id)]), int(answer.ext["popTime"]), invisible_ms, int(answer.ext["reviveQid"]),
            "0", "broker-a", m.queue_id, m.queue_offset).encode()
        found.append((int(m.body) if topic == POP_TOPIC else m.body, receipt, m.reconsume_times))
    return found


def ack(address, one, *, topic=POP_TOPIC, group="PG"):
    info = ExtraInfo.decode(one[1])
    answer = ask(address, ACK, {
        "consumerGroup": group, "topic": real_topic(topic, group, info.flag), "queueId": str(info.queue_id),
        "extraInfo": one[1], "offset": str(info.queue_offset)})
    assert answer.code == 0, answer.remark


def all_of(address, wanted, seconds):
    """Pop and acknowledge until ``wanted`` messages are there or the time is over, and then some."""
    found, until = [], time.monotonic() + seconds
    while time.monotonic() < until and len(found) < wanted:
        for one in pop(address, 60_000):
            ack(address, one)
            found.append(one)
        time.sleep(0.3)
    time.sleep(4)
    return found + pop(address, 60_000)


@pytest.mark.long
@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("first", ["java", "tailrace"])
def test_what_one_broker_popped_comes_back_with_the_other(reference, tmp_path, first, kill):
    root = tmp_path / "store"
    second = "tailrace" if first == "java" else "java"
    invisible_ms = 20_000
    with running(first, reference, root, kill=kill) as address:
        patiently(lambda: send(address))
        popped = []
        while len(popped) < POPPED:
            popped += pop(address, invisible_ms, POPPED - len(popped))
        popped_at = time.monotonic()
        for one in popped[::2]:
            ack(address, one)
        wait_for_offset(root)
    with running(second, reference, root) as address:
        patiently(lambda: ask(address, 30, {"topic": POP_TOPIC, "queueId": "0"}))
        early = patiently(lambda: pop(address, 60_000))
        for one in early:
            ack(address, one)
        if time.monotonic() - popped_at < invisible_ms / 1000:
            assert {body for body, _, _ in early}.isdisjoint({body for body, _, _ in popped})
        found = early + all_of(address, SENT - POPPED // 2 - len(early), 60)
    unacknowledged = [body for body, _, _ in popped[1::2]]
    assert sorted(body for body, _, _ in found) == sorted(
        [*unacknowledged, *(n for n in range(SENT) if n not in {body for body, _, _ in popped})])
    assert {times for body, _, times in found if body in unacknowledged} == {1}


@pytest.mark.parametrize(("first", "v2"), [
    ("java", True), pytest.param("java", False, marks=pytest.mark.long),
    pytest.param("tailrace", False, marks=pytest.mark.long)])
def test_retries_that_wait_are_delivered_by_the_other_broker(reference, tmp_path, first, v2):
    """By Tailrace to their own group, whichever form of the retry topic a Java broker was set to use.

    A Java broker that takes over has its default settings, and hands both groups the messages of the shared name.
    """
    root = tmp_path / "store"
    second = "tailrace" if first == "java" else "java"
    settings = {"enableRetryTopicV2": "true"} if v2 else None
    own = {topic: {b"%s:%d" % (topic.encode(), n) for n in range(4)} for _, topic in PAIRS}

    def send_to(address):
        with Producer(broker=address) as producer:
            for _, topic in PAIRS:
                producer.create_topic(topic, 1)
            for topic, bodies in own.items():
                for body in sorted(bodies):
                    producer.send(Message(topic=topic, body=body))

    with running(first, reference, root, kill=True, settings=settings) as address:
        patiently(lambda: send_to(address))
        for group, topic in PAIRS:
            popped = []
            while len(popped) < 4:
                popped += pop(address, 3_000, topic=topic, group=group)
        until = time.monotonic() + 60
        ends = {pop_retry_topic(topic, group, v2=v2): 4 if v2 else 8 for group, topic in PAIRS}
        while any(_end(address, name) < end for name, end in ends.items()):
            assert time.monotonic() < until, "the messages have not come back"
            time.sleep(0.5)
        time.sleep(6)  # offsets are written every 5 s
    with running(second, reference, root) as address:
        patiently(lambda: ask(address, 30, {"topic": "x", "queueId": "0"}))
        for group, topic in PAIRS:
            found, until = [], time.monotonic() + 60
            while not own[topic] <= {body for body, _, _ in found} and time.monotonic() < until:
                some = patiently(lambda topic=topic, group=group: pop(address, 60_000, topic=topic, group=group))
                for one in some:
                    ack(address, one, topic=topic, group=group)
                found += some
                time.sleep(0.3)
            assert {body for body, _, _ in found} >= own[topic]
            assert {times for _, _, times in found} == {1}
            if second == "tailrace":
                assert sorted(body for body, _, _ in found) == sorted(own[topic])


def _end(address, topic):
    answer = ask(address, 30, {"topic": topic, "queueId": "0"})
    return int(answer.ext["offset"]) if answer.code == 0 else 0
