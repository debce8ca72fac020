"""Pairs of Tailrace and RocketMQ: a link that cuts frames, a silent broker port, damage in the middle of a log."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import socket
import threading
import time

import pytest
from java_peer import ask, free_port, log_of
from mixed_pairs import TOPIC, Java, Ours, created, follows, ha_port, mixed_pair, status
from patience import until
from tcp_link import FROM_TARGET, TO_TARGET, Link

from tailrace import Message, Producer, PullConsumer
from tailrace.errors import RemotingError
from tailrace.formats import fastjson
from tailrace.formats.requests.name_server_headers import RegisterBrokerRequestHeader
from tailrace.remoting.client import RemotingClient

pytestmark = [pytest.mark.slow, pytest.mark.interop, pytest.mark.integration, pytest.mark.long]

FILE = 5 << 20


@pytest.fixture
def pair(request, reference, tmp_path):
    with mixed_pair(reference, tmp_path, request.param) as made:
        yield made


ours_java = pytest.mark.parametrize("pair", ["ours/java"], indirect=True)
java_ours = pytest.mark.parametrize("pair", ["java/ours"], indirect=True)
mixed = pytest.mark.parametrize("pair", ["ours/java", "java/ours"], indirect=True)


class CuttingLink(Link):
    """Passes the bytes of the target on in pieces that end at every byte of a short frame; may cut connections."""

    def __init__(self, target, seed):
        self._random = random.Random(seed)
        self.cut_after = None
        self.pieces = self.cuts = 0
        super().__init__(target)

    def _pass_on(self, source, sink, way):
        if way is TO_TARGET:
            super()._pass_on(source, sink, way)
            return
        sink.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 18):
                self._send(sink, data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _send(self, sink, data):
        at = 0
        while at < len(data):
            size = 1 if at < 200 else self._random.choice([7, 4096, 50_000, len(data)])
            piece = data[at : at + size]
            if self.cut_after is not None and self.cut_after < len(piece):
                sink.sendall(piece[: self.cut_after])
                self.cut_after = None
                self.cuts += 1
                raise OSError("cut")
            if self.cut_after is not None:
                self.cut_after -= len(piece)
            sink.sendall(piece)
            self.pieces += 1
            if size == 1:
                time.sleep(0.0001)  # or the system puts the pieces together
            at += size


@ours_java
def test_frames_cut_at_every_byte_and_blanks_of_every_size_reach_a_java_slave(pair):
    """I1: records longer than a frame, the end of files, and connections that end in a header and in a body."""
    namesrv, master, slave = pair
    for one in (master, slave):
        one.set(mappedFileSizeCommitLog=FILE, maxMessageSize=4 << 20)
    master.set(haAllowedHosts="127.0.0.1")
    slave.set(namesrvAddr="127.0.0.1:9")
    master.start()
    until(lambda: created(namesrv))
    with CuttingLink(ha_port(master), 1) as link, Producer(namesrv=namesrv, timeout_ms=20_000) as producer:
        slave.start()
        slave.follow(master.address, link.address)

        def end():
            return status(master.address)["masterCommitLogMaxOffset"]

        def send(size):
            producer.send(Message(topic=TOPIC, body=b"x" * size), queue_id=0)
            return end()

        begin = send(1000)
        fixed = send(1000) - begin - 1000
        until(lambda: follows(master))
        send(4 << 20)  # longer than a frame
        for blank in (8, 9, 11, 12, 13, 20, 31, 88, 100):
            while (left := FILE - end() % FILE) > 5 << 19:
                send(2 << 20)
            at = send(left - fixed - blank)
            assert at % FILE == FILE - blank
            send(1)
            for size in range(1, 20):
                send(size)
        for after in (0, 1, 11, 12, 13, 300, 70_000):
            until(lambda: follows(master), 120)
            link.cut_after = after
            send(100_000)
            until(lambda: link.cut_after is None)
        until(lambda: follows(master), 120)
        assert link.cuts == 7
        assert link.pieces > 10_000
    slave.kill()
    master.kill()
    assert log_of(master.root) == log_of(slave.root)
    assert len(list((slave.root / "commitlog").iterdir())) >= 9


class Registered:
    """A master at a name server, at an address that leads to it over a link; until the block ends."""

    def __init__(self, namesrv, broker, ha):
        self._namesrv, self._header = namesrv, RegisterBrokerRequestHeader(
            "broker-a", broker, "DefaultCluster", ha, 0, enable_acting_master=False)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self):
        self._thread.start()
        self._client = self._run(self._register())
        return self

    async def _register(self):
        client = RemotingClient()
        body = json.dumps({"topicConfigSerializeWrapper": {
            "dataVersion": {"counter": 1}, "topicConfigTable": {}}}).encode()
        answer = await client.invoke(self._namesrv, 103, self._header.to_ext(), body, timeout_ms=20_000)
        assert answer.code == 0, answer.remark

        async def again():  # the name server forgets a broker whose connection ends, or that is silent for 2 minutes
            while True:
                await asyncio.sleep(30)
                await client.invoke(self._namesrv, 103, self._header.to_ext(), body, timeout_ms=20_000)

        self._again = self._loop.create_task(again())
        return client

    def _run(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._again.cancel)
        self._run(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


class Traffic:
    """Sends to a master, commits there, and looks at what its slave has copied."""

    def __init__(self, producer, master, slave):
        self._producer, self._master, self._slave = producer, master, slave

    def send(self, count):
        """Send messages that a slave acknowledges; how long each of them took, in seconds."""
        took = []
        for number in range(count):
            def sent(body=b"%d" % number):
                began = time.monotonic()
                done = self._producer.send(Message(topic=TOPIC, body=body), queue_id=0).status == "SEND_OK"
                took.append(time.monotonic() - began)
                return done

            until(sent)
        return took

    def commit(self, offset):
        with PullConsumer(broker=self._master.address, group="readers") as reader:
            reader.commit(min(reader.queues(TOPIC), key=lambda one: one.queue_id), offset)

    def copied(self):
        """The offset of the group at the slave, -1 without one."""
        with contextlib.suppress(RemotingError):
            table = fastjson.loads(ask(self._slave.address, 43).body)["offsetTable"]
            return table.get(f"{TOPIC}@readers", {}).get("0", -1)
        return -1

    def seen(self, seconds):
        """What the slave has in this time."""
        found, end = [], time.monotonic() + seconds
        while time.monotonic() < end:
            found.append(self.copied())
            time.sleep(2)
        return found


@contextlib.contextmanager
def by_links(namesrv, master, slave, make):
    """A master whose broker port is reached through links that ``make`` makes, and its slave: the traffic."""
    master.set(brokerRole="SYNC_MASTER", inSyncReplicas=2, haAllowedHosts="127.0.0.1")
    master.set(namesrvAddr="127.0.0.1:9")
    master.start()
    port = int(master.address.rpartition(":")[2])
    ha = "{}:{}".format(*ha_port(master))
    shown = free_port()
    with contextlib.ExitStack() as stack:
        # A Java slave asks for topics at the port minus 2.
        links = [stack.enter_context(make(("127.0.0.1", port - less), shown - less)) for less in (0, 2)]
        stack.enter_context(Registered(namesrv, f"127.0.0.1:{shown}", ha))
        slave.start()
        producer = stack.enter_context(Producer(broker=master.address, timeout_ms=10_000))
        until(lambda: follows(master), 60)
        producer.create_topic(TOPIC, queues=1)
        yield links, Traffic(producer, master, slave)


def names_the_fault(slave):
    """Whether our slave says that it cannot copy the tables, and follows all the same."""
    info = status(slave.address)["haClientRuntimeInfo"]
    assert info["state"] == "transfer"
    assert any(line.startswith("metadata: ") for line in info["faults"]), info
    assert slave.metric_sum("tailrace_metadata_copy_failures_total") > 0
    assert "metadata cannot be copied from the master" in slave.said()


@mixed
@pytest.mark.parametrize("silent", [{TO_TARGET, FROM_TARGET}, {FROM_TARGET}], ids=["both ways", "half open"])
def test_a_silent_broker_port_stops_the_copy_of_offsets_and_nothing_else(pair, silent):
    """I1, I2, I4: acknowledgements continue over the HA port, and offsets do not go back after it."""
    namesrv, master, slave = pair
    with by_links(namesrv, master, slave, Link) as (links, traffic):
        traffic.send(20)
        traffic.commit(7)
        until(lambda: traffic.copied() == 7, 150)
        for link in links:
            link.silent |= silent
        traffic.send(20)  # acknowledged by the slave
        traffic.commit(15)
        seen = traffic.seen(100)  # longer than the time between two copies, and the wait for an answer
        assert set(seen) == {7}
        if isinstance(slave, Ours):
            names_the_fault(slave)
        for link in links:
            link.silent.clear()
        until(lambda: seen.append(traffic.copied()) or seen[-1] == 15, 150)
        assert seen == sorted(seen), "they do not go back"
        traffic.send(5)
        until(lambda: follows(master))
        if isinstance(slave, Ours):
            until(lambda: status(slave.address)["haClientRuntimeInfo"]["faults"] == [], 90)
    slave.kill()
    master.kill()
    assert log_of(master.root) == log_of(slave.root)


class SlowLink(Link):
    """Passes what the target answers on after ``delay_s``, in pieces of 64 bytes with a pause between them."""

    def __init__(self, target, port=0):
        self.delay_s = 2.0
        super().__init__(target, port)

    def _pass_on(self, source, sink, way):
        if way is TO_TARGET:
            super()._pass_on(source, sink, way)
            return
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 20):
                self._ended.wait(self.delay_s)
                for at in range(0, len(data), 64):
                    sink.sendall(data[at : at + 64])
                    if self.delay_s:
                        time.sleep(0.002)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("pair", ["ours/java", "java/ours", "ours/ours"], indirect=True)
def test_a_slow_broker_port_makes_the_copy_of_offsets_late_and_nothing_else(pair):
    """I1, I2, I4: what takes longer than the slave waits is not copied, and named; nothing is ever wrong."""
    namesrv, master, slave = pair
    with by_links(namesrv, master, slave, SlowLink) as (links, traffic):
        took = traffic.send(20)
        traffic.commit(7)
        until(lambda: traffic.copied() == 7, 200)
        assert sorted(took)[10] < links[0].delay_s, "acknowledgements do not wait for this port"
        before = memory_of(slave)
        for link in links:
            link.delay_s = 8.0 if isinstance(slave, Java) else 40.0  # longer than a slave waits
        took = traffic.send(20)
        traffic.commit(15)
        seen = traffic.seen(130)
        assert set(seen) == {7}
        assert sorted(took)[10] < 2
        if isinstance(slave, Ours):
            names_the_fault(slave)
            assert memory_of(slave) - before < 8 << 20
        for link in links:
            link.delay_s = 0
        until(lambda: seen.append(traffic.copied()) or seen[-1] == 15, 200)
        assert seen == sorted(seen), "they do not go back"
        traffic.send(5)
        until(lambda: follows(master))
        if isinstance(slave, Ours):
            until(lambda: status(slave.address)["haClientRuntimeInfo"]["faults"] == [], 90)
    slave.kill()
    master.kill()
    assert log_of(master.root) == log_of(slave.root)


def memory_of(broker):
    """The resident memory of a broker of ours, in bytes; 0 of a Java broker."""
    return broker.memory() if isinstance(broker, Ours) else 0


def damage(broker, *, zeros):
    """Damage the record in the middle of the log of a broker that was killed, after everything was synced."""
    path = min((broker.root / "commitlog").iterdir())
    data = bytearray(path.read_bytes())
    at = data.index(b"the one in the middle")
    if zeros:
        data[at - 100 : at - 36] = bytes(64)  # in its head
    else:
        data[at] ^= 1
    path.write_bytes(data)
    (broker.root / "abort").write_text("1")
    (broker.root / "checkpoint").unlink(missing_ok=True)
    if isinstance(broker, Ours):
        for name in (broker.root / "tailrace").glob("progress*"):
            name.unlink()
    return bytes(data)


def fill(namesrv):
    with Producer(namesrv=namesrv, timeout_ms=10_000) as producer:
        for number in range(60):
            body = b"the one in the middle" if number == 30 else b"%d" % number
            producer.send(Message(topic=TOPIC, body=body.ljust(300, b".")), queue_id=0)


@java_ours
@pytest.mark.parametrize("zeros", [False, True], ids=["body", "head"])
def test_damage_in_our_slave_of_a_java_master_is_named_and_healed_by_a_repair(pair, zeros):
    """I1, I6: nothing is truncated unasked."""
    namesrv, master, slave = pair
    slave.set(flushDiskType="SYNC_FLUSH")
    master.start()
    until(lambda: created(namesrv))
    slave.start()
    fill(namesrv)
    until(lambda: follows(master))
    slave.kill()
    flushed = {"pid": 1, "flushed": status(master.address)["masterCommitLogMaxOffset"]}
    (slave.root / "tailrace" / "flushed").write_text(json.dumps(flushed))
    before = damage(slave, zeros=zeros)
    with pytest.raises(RuntimeError, match="damage in the middle of the log"):
        slave.start()
    assert min((slave.root / "commitlog").iterdir()).read_bytes() == before
    slave.command("repair", slave.root, "--follow-master", master.address, "--config", slave.conf)
    slave.start()
    until(lambda: follows(master))
    fill(namesrv)
    until(lambda: follows(master))
    slave.kill()
    master.kill()
    assert log_of(master.root) == log_of(slave.root)


@ours_java
@pytest.mark.parametrize("zeros", [False, True], ids=["body", "head"])
def test_a_java_slave_gets_the_bytes_of_our_damaged_master_and_the_master_names_the_place(pair, zeros):
    """I1, I6: a Java slave has no check, so it copies the damage; what follows it is in the log of both."""
    namesrv, master, slave = pair
    master.set(flushDiskType="SYNC_FLUSH")
    master.start()
    until(lambda: created(namesrv))
    fill(namesrv)
    master.kill()
    damage(master, zeros=zeros)
    master.start()
    slave.start()
    fill(namesrv)
    until(lambda: follows(master))
    assert "stepped over damage" in master.said()
    found = status(master.address)
    assert len(found["gapOffsets"]) == 1
    assert found["faults"][0].startswith(f"gap: slaves stop at {found['gapOffsets'][0]}: stop the master")
    assert master.metric_sum("tailrace_replication_fault", 'kind="gap"') == 1
    assert "the log of this master has gaps, slaves stop there" in master.said()
    slave.kill()
    master.kill()
    size = len(log_of(slave.root))
    ours, theirs = (b"".join(one.read_bytes() for one in sorted((broker.root / "commitlog").iterdir()))
                    for broker in (master, slave))
    assert size
    least = min(len(ours), len(theirs))
    assert ours[:least] == theirs[:least]


@ours_java
def test_a_master_of_a_java_slave_acknowledges_as_its_settings_say(pair):
    """1 to 3 needed, as many as there are, refusals below minInSyncReplicas, and messages that do not wait."""
    namesrv, master, slave = pair
    master.set(brokerRole="SYNC_MASTER", inSyncReplicas=1, slaveTimeout=3000)
    master.start()
    until(lambda: created(namesrv))
    slave.start()
    until(lambda: follows(master))
    none = "SLAVE_NOT_AVAILABLE"
    for settings, alone, together in (
        ({"inSyncReplicas": 1}, "SEND_OK", "SEND_OK"), ({"inSyncReplicas": 2}, none, "SEND_OK"),
        ({"inSyncReplicas": 3}, none, none),
        ({"inSyncReplicas": 3, "enableAutoInSyncReplicas": "true"}, "SEND_OK", "SEND_OK"),
        ({"inSyncReplicas": 2, "enableAutoInSyncReplicas": "false", "minInSyncReplicas": 2}, "refused", "SEND_OK"),
    ):
        with stopped(slave):
            master.kill()
            master.set(**settings)
            master.start()
            assert answers(master) == (alone, "SEND_OK"), settings
        until(lambda: follows(master))
        until(lambda wanted=together: answers(master) == (wanted, "SEND_OK"))
    until(lambda: follows(master))
    slave.kill()
    master.kill()
    assert log_of(master.root) == log_of(slave.root)


@contextlib.contextmanager
def stopped(slave):
    """A Java broker that does nothing, and connects to no broker, until the block ends."""
    slave.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        slave.signal(signal.SIGCONT)


def answers(master):
    """What a send that waits for slaves returns, and one that does not."""
    def send(**options):
        try:
            return producer.send(Message(topic=TOPIC, body=b"x", **options), queue_id=0).status
        except RemotingError as error:
            assert "in-sync replicas not enough" in str(error), error
            return "refused"

    with Producer(broker=master.address, timeout_ms=10_000, retries=0) as producer:
        return send(), send(wait_store_msg_ok=False)
