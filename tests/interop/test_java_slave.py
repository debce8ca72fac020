"""A slave of the reference at our master: the same bytes, acknowledgements, and what both say about it."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
from java_peer import SIZES, free_port, start_java_broker
from patience import until

from tailrace import Message, Producer, PullConsumer
from tailrace.errors import RemotingError
from tailrace.formats import fastjson
from tailrace.pytest_plugin import TailraceBroker
from tailrace.remoting.client import RemotingClient

pytestmark = [pytest.mark.slow, pytest.mark.interop, pytest.mark.integration, pytest.mark.long]

TOPIC = "replicated"
SLAVE = {"brokerIP2": "127.0.0.1", "brokerRole": "SLAVE", "brokerId": 1, "slaveReadEnable": "true"}


class Pair:
    """Our master and a slave of the reference."""

    def __init__(self, reference, home, **settings):
        self.reference, self.home = reference, home
        (home / "master").mkdir()
        self.master = TailraceBroker(  # a Java slave asks for topics at the port of the broker - 2
            home / "master" / "store", "--listen", f"127.0.0.1:{free_port()}", settings={**SIZES, **settings})
        self.slave = None

    def __enter__(self):
        self.master.start()
        return self

    def __exit__(self, *_):
        print(self.master.log_path.read_text()[-3000:])
        if self.slave is not None:
            self.slave.end(signal.SIGKILL)
        self.master.stop()

    def producer(self):
        return Producer(namesrv=self.master.namesrv, timeout_ms=10_000)

    def start_slave(self, **settings):
        root = self.home / "slave" / "store"
        root.parent.mkdir(exist_ok=True)
        self.slave = start_java_broker(
            self.reference, root, {**SLAVE, "namesrvAddr": self.master.namesrv, **settings})

    def kill_slave(self):
        self.slave.end(signal.SIGKILL)
        self.slave = None

    def status(self, address=None):
        return json.loads(invoke(address or self.master.broker, 907).body)

    @property
    def end(self):
        return self.status()["masterCommitLogMaxOffset"]

    def follows(self):
        """Whether the slave has everything that the master has, and has said so."""
        found = self.status()
        return [one["slaveAckOffset"] for one in found["haConnectionInfo"]] == [found["masterCommitLogMaxOffset"]]

    def logs(self):
        """The logs of both, up to the end of the slave's."""
        return log_of(self.home / "master" / "store"), log_of(self.home / "slave" / "store")


def log_of(root: Path) -> bytes:
    files = sorted((root / "commitlog").iterdir())
    assert [int(file.name) for file in files] == [number * (1 << 20) for number in range(len(files))]
    return b"".join(file.read_bytes() for file in files)


def invoke(address, code, **ext):
    import asyncio

    async def call():
        client = RemotingClient()
        try:
            return await client.invoke(address, code, ext, timeout_ms=10_000)
        finally:
            await client.close()

    return asyncio.run(call())


def same_log(pair):
    """The slave's log is the master's, byte by byte, up to the end."""
    until(pair.follows, seconds=120)
    end = pair.end
    ours, theirs = pair.logs()
    assert ours[:end] == theirs[:end]
    return end


def test_a_slave_gets_the_whole_log_and_what_is_put_later(reference, tmp_path):
    with Pair(reference, tmp_path, brokerRole="ASYNC_MASTER") as pair, pair.producer() as producer:
        producer.create_topic(TOPIC, queues=2)
        for number in range(600):
            producer.send(Message(topic=TOPIC, body=b"%06d" % number * 600), queue_id=number % 2)
        pair.start_slave()
        end = same_log(pair)
        assert end > 2 << 20
        for number in range(300):
            producer.send(Message(topic=TOPIC, body=b"%06d" % number * 600), queue_id=number % 2)
        assert same_log(pair) > end
        until(lambda: counts(pair.slave.address) == [450, 450], seconds=120)
        slave = pair.status(pair.slave.address)
        assert slave["master"] is False
        assert slave["haClientRuntimeInfo"]["maxOffset"] == pair.end
        pair.kill_slave()
        for _ in range(100):
            producer.send(Message(topic=TOPIC, body=b"later" * 600), queue_id=0)
        assert pair.status()["inSyncSlaveNums"] == 0
        pair.start_slave()
        same_log(pair)


def counts(address):
    try:
        with PullConsumer(broker=address) as reader:
            return [reader.max_offset(queue) for queue in sorted(reader.queues(TOPIC), key=lambda q: q.queue_id)]
    except RemotingError:
        return []


def test_a_sync_master_acknowledges_what_the_slave_has(reference, tmp_path):
    with (
        Pair(reference, tmp_path, brokerRole="SYNC_MASTER", slaveTimeout=2000) as pair, pair.producer() as producer
    ):
        producer.create_topic(TOPIC, queues=1)
        began = time.monotonic()
        assert producer.send(Message(topic=TOPIC, body=b"alone")).status == "SLAVE_NOT_AVAILABLE"
        assert time.monotonic() - began < 1.5
        pair.start_slave()
        until(pair.follows, seconds=120)
        took = []
        for number in range(200):
            began = time.monotonic()
            assert producer.send(Message(topic=TOPIC, body=b"%d" % number)).status == "SEND_OK"
            took.append(time.monotonic() - began)
        print("median ms", sorted(took)[100] * 1000)
        pair.slave.process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        assert producer.send(Message(topic=TOPIC, body=b"late")).status == "FLUSH_SLAVE_TIMEOUT"
        assert 1.9 < time.monotonic() - began < 4
        pair.slave.process.send_signal(signal.SIGCONT)
        same_log(pair)
        sent = [producer.send(Message(topic=TOPIC, body=b"%d" % number)) for number in range(50)]
        assert {one.status for one in sent} == {"SEND_OK"}
        pair.kill_slave()
        theirs = log_of(tmp_path / "slave" / "store")
        for one in sent:  # acknowledged is in the log of the slave
            at = int(one.offset_msg_id[16:], 16)
            assert theirs[at : at + 4] == log_of(tmp_path / "master" / "store")[at : at + 4] != bytes(4)


def test_a_slave_with_another_log_is_disconnected_and_named(reference, tmp_path):
    with Pair(reference, tmp_path, brokerRole="ASYNC_MASTER") as pair, pair.producer() as producer:
        producer.create_topic(TOPIC, queues=1)
        for number in range(20):
            producer.send(Message(topic=TOPIC, body=b"%d" % number))
        pair.start_slave()
        end = same_log(pair)
        pair.kill_slave()
        pair.start_slave()
        same_log(pair)
        assert [one["compared"] for one in pair.status()["haConnectionInfo"]] == ["same"]
        pair.kill_slave()
        pair.master.stop()
        (tmp_path / "master" / "store").rename(tmp_path / "master" / "lost")
        pair.master.start()
        pair.start_slave()
        text = pair.master.log_path.read_text
        until(lambda: "slave does not follow this log" in text(), seconds=120)
        assert "it has more than this broker" in text()
        with Producer(namesrv=pair.master.namesrv) as other:
            other.create_topic(TOPIC, queues=1)
            while pair.end <= end:
                other.send(Message(topic=TOPIC, body=b"other"))
            assert log_of(tmp_path / "slave" / "store")[:end] == log_of(tmp_path / "master" / "lost")[:end]
            until(lambda: "is another one" in text() or "it has no record at" in text(), seconds=120)
            assert pair.status()["inSyncSlaveNums"] == 0


def test_a_slave_copies_topics_groups_offsets_and_timers(reference, tmp_path):
    with Pair(reference, tmp_path, brokerRole="ASYNC_MASTER") as pair, pair.producer() as producer:
        def table(address, code, member):
            return fastjson.loads(invoke(address, code).body)[member]

        def topics(address):
            return {name: (one["readQueueNums"], one["perm"]) for name, one in table(
                address, 21, "topicConfigTable").items()}

        master = pair.master.broker
        producer.create_topic(TOPIC, queues=2)
        for number in range(2001 - len(topics(master))):  # a Java client never asks for the last one of 2,001
            producer.create_topic(f"topic{number:04}", queues=1)
        assert len(topics(master)) == 2001
        for number in range(10):
            producer.send(Message(topic=TOPIC, body=b"%d" % number), queue_id=0)
        with PullConsumer(broker=master, group="readers") as reader:
            queue = min(reader.queues(TOPIC), key=lambda one: one.queue_id)
            reader.commit(queue, 7)
        due = producer.send(Message(topic=TOPIC, body=b"timer", delay="2s"), queue_id=1)
        assert due.status == "SEND_OK"
        pair.start_slave(timerWheelEnable="true")
        until(pair.follows, seconds=120)
        slave = pair.slave.address
        until(lambda: topics(slave).keys() >= topics(master).keys(), seconds=150)
        assert {name: one for name, one in topics(slave).items() if name in topics(master)} == topics(master)
        until(lambda: table(slave, 43, "offsetTable").get(f"{TOPIC}@readers") == {"0": 7}, seconds=100)
        groups = table(master, 201, "subscriptionGroupTable").keys()
        until(lambda: table(slave, 201, "subscriptionGroupTable").keys() >= groups, seconds=100)

        def read_time(address):
            answer = invoke(address, 60)
            assert answer.code == 0, answer.remark
            return int.from_bytes(answer.body[:8], "big")

        stored = read_time(master)
        until(lambda: read_time(slave) >= stored > 0, seconds=60)
