"""Messages that are popped and not acknowledged come back with whichever broker has the directory next."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import time
from contextlib import contextmanager, suppress

import pytest

from tailrace import Message
from tailrace.client import Producer
from tailrace.errors import RemotingError
from tailrace.formats import fastjson
from tailrace.formats.commitlog import decode_message
from tailrace.formats.pop import ExtraInfo
from tailrace.pytest_plugin import TailraceBroker
from tailrace.remoting.client import RemotingClient

pytestmark = [pytest.mark.slow, pytest.mark.interop]
POP, ACK, BATCH_ACK, POP_TOPIC = 200050, 200051, 200151, "PT"
SENT, POPPED = 12, 8
SIZES = {
    "mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 6000, "maxHashSlotNum": 1000,
    "maxIndexNum": 4000, "mappedFileSizeTimerLog": 65536,
}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class JavaBroker:
    def __init__(self, reference, root):
        self.reference, self.root = reference, root
        self.process = None

    def start(self):
        port = free_port()
        self.broker = f"127.0.0.1:{port}"
        conf = self.root.with_name("broker.conf")
        conf.write_text("".join(f"{name}={value}\n" for name, value in {
            **SIZES, "brokerClusterName": "DefaultCluster", "brokerName": "broker-a", "brokerId": 0,
            "brokerIP1": "127.0.0.1", "namesrvAddr": "127.0.0.1:9", "listenPort": port,
            "storePathRootDir": self.root, "storePathCommitLog": f"{self.root}/commitlog"}.items()))
        with open(self.root.with_name("java.log"), "a") as log:
            self.process = subprocess.Popen([self.reference, "broker", conf], stdout=log, stderr=log)

    def stop(self):
        if self.process is not None:
            self.process.terminate()
            self.process.wait(60)
            self.process = None

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait(60)
            self.process = None


def tailrace(root):
    conf = root.with_name("tailrace.conf")
    conf.write_text("".join(f"{name}={value}\n" for name, value in SIZES.items()))
    return TailraceBroker(root, "--config", str(conf))


@contextmanager
def running(broker, *, kill=False):
    broker.start()
    try:
        yield broker.broker
    finally:
        if kill:
            broker.kill()
        else:
            broker.stop()


def patiently(step, seconds=90):
    until = time.monotonic() + seconds
    while True:
        try:
            return step()
        except (RemotingError, OSError):
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


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


def pop(address, invisible_ms, most=32):
    """(body, receipt, number of deliveries) of each popped message."""
    answer = ask(address, POP, {
        "consumerGroup": "PG", "topic": POP_TOPIC, "queueId": "-1", "maxMsgNums": str(most),
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
        found.append((int(m.body), receipt, m.reconsume_times))
    return found


def ack(address, one):
    info = ExtraInfo.decode(one[1])
    topic = POP_TOPIC if info.flag == "0" else f"%RETRY%PG_{POP_TOPIC}"
    answer = ask(address, ACK, {
        "consumerGroup": "PG", "topic": topic, "queueId": str(info.queue_id), "extraInfo": one[1],
        "offset": str(info.queue_offset)})
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


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("first", ["java", "tailrace"])
def test_what_one_broker_popped_comes_back_with_the_other(reference, tmp_path, first, kill):
    root = tmp_path / "store"
    brokers = {"java": JavaBroker(reference, root), "tailrace": tailrace(root)}
    second = "tailrace" if first == "java" else "java"
    invisible_ms = 20_000
    with running(brokers[first], kill=kill) as address:
        patiently(lambda: send(address))
        popped = []
        while len(popped) < POPPED:
            popped += pop(address, invisible_ms, POPPED - len(popped))
        popped_at = time.monotonic()
        for one in popped[::2]:
            ack(address, one)
        wait_for_offset(root)
    with running(brokers[second]) as address:
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
