"""Clients that use up descriptors or memory, or make other clients wait."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from patience import until

from tailrace.client import Producer, PullConsumer
from tailrace.formats.remoting import RemotingCommand, decode_frame, encode
from tailrace.model import Message

pytestmark = pytest.mark.integration

MIB = 1 << 20
LIMIT = 1024
SERVE = ("-m", "tailrace.cli")
# The same with a page cache that never has a message, and a disk that takes 2 ms for each pull.
SERVE_COLD = ("-c", """
import time
from tailrace.cli import main
from tailrace.model import GetMessageResult, GetMessageStatus
from tailrace.store.reading import MessageReader
real = MessageReader.get_message
def get_message(*arguments, only_cached=False, **more):
    if not only_cached:
        time.sleep(0.002)
    result = real(*arguments, only_cached=only_cached, **more)
    if only_cached and result.message_count:
        return GetMessageResult(GetMessageStatus.NO_MATCHED_MESSAGE, is_cold=True)
    return result
MessageReader.get_message = get_message
main()
""")


class Server:
    """`tailrace serve --http` in a process of its own, with a limit of descriptors."""

    def __init__(self, path, limit=LIMIT, cold=False, options=(), **settings):
        config = path / "broker.conf"
        config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self.log = path / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, *(SERVE_COLD if cold else SERVE), "serve", str(path / "s"),
                 "--listen", "127.0.0.1:0", "--namesrv-listen", "127.0.0.1:0", "--http", "127.0.0.1:0",
                 "--config", str(config), *options],
                stdout=subprocess.PIPE, stderr=log, text=True,
                # The soft limit is a quarter of the hard one: `serve` has to raise it.
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit // 4, limit)))
        ready = self.process.stdout.readline()
        assert ready.startswith("ready "), self.log.read_text()
        fields = dict(part.split("=", 1) for part in ready.split()[1:])
        self.broker, self.namesrv, self.grpc = fields["broker"], fields["namesrv"], fields.get("grpc")
        self.http = self.log.read_text().split("http=")[1].split()[0]
        self.metrics_read_s = -10.0

    def connect(self, address=None, timeout=20.0):
        host, port = (address or self.broker).rsplit(":", 1)
        return socket.create_connection((host, int(port)), timeout=timeout)

    def get(self, path):
        try:
            with urllib.request.urlopen(f"http://{self.http}{path}", timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metric(self, name, **labels):
        wanted = [f'{k}="{v}"' for k, v in labels.items()]
        time.sleep(max(0.0, self.metrics_read_s + 1.2 - time.monotonic()))  # scrapers of one second share a text
        text = self.get("/metrics")[1]
        self.metrics_read_s = time.monotonic()
        for line in text.splitlines():
            if line.startswith((f"{name}{{", f"{name} ")) and all(w in line for w in wanted):
                return float(line.rsplit(" ", 1)[1])
        raise AssertionError(name)

    def anonymous_mib(self):
        """Memory of its own, without pages of the store's files."""
        with open(f"/proc/{self.process.pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) / 1024

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def lines(self, text):
        return [line for line in self.log.read_text().splitlines() if text in line]

    def send(self, count=1, topic="t", body=b"x"):
        with Producer(broker=self.broker) as producer:
            for _ in range(count):
                assert producer.send(Message(topic=topic, body=body)).status == "SEND_OK"

    def stop(self):
        self.process.terminate()
        return self.process.wait(60)


@pytest.fixture
def serve(tmp_path):
    made = []

    def start(**options):
        made.append(Server(tmp_path, **options))
        return made[-1]

    yield start
    for server in made:
        if server.process.poll() is None:
            server.process.kill()
        server.process.wait()
        server.process.stdout.close()


def is_open(connection):
    """Whether the server has not closed it; nothing is ever sent to it."""
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def pull(topic, opaque, count=32, suspend=0, offset=0):
    return encode(RemotingCommand(11, {
        "consumerGroup": "g", "topic": topic, "queueId": "0", "queueOffset": str(offset),
        "maxMsgNums": str(count), "sysFlag": str(4 | (2 if suspend else 0)), "commitOffset": "0",
        "suspendTimeoutMillis": str(suspend), "subscription": "*", "subVersion": "0",
        "expressionType": "TAG", "maxMsgBytes": str(64 * MIB)}, opaque=opaque))


@pytest.mark.parametrize(
    "tls", [pytest.param((), marks=pytest.mark.long), ("--grpc-tls", "self-signed")], ids=["plain", "tls"])
def test_idle_connections_of_grpc_do_not_exhaust_descriptors(serve, tls):
    """1,100 idle connections at a limit of 1,024 stopped the store, all ports and /ready."""
    pytest.importorskip("rocketmq.grpc_protocol")
    server = serve(options=("--grpc", "127.0.0.1:0", *tls), mappedFileSizeCommitLog=MIB)
    server.send()
    with contextlib.ExitStack() as stack:
        for _ in range(1100):
            with contextlib.suppress(OSError):
                stack.enter_context(server.connect(server.grpc))
        assert server.descriptors() < LIMIT // 2
        server.send(200, body=bytes(20_000))
        server.send(topic="another")
        assert server.get("/ready")[0] == 200
        assert server.metric("tailrace_connections") < LIMIT // 2
        until(lambda: server.descriptors() < 100)  # gRPC ends handshakes after 10 s
    assert server.stop() == 0


def test_idle_connections_do_not_exhaust_descriptors(serve):
    """1,100 idle connections at a limit of 1,024 stopped the store for good."""
    server = serve()
    assert server.metric("tailrace_connections_max") == LIMIT // 2
    with contextlib.ExitStack() as stack, Producer(broker=server.broker) as producer:
        producer.send(Message(topic="t", body=b"first"))
        idle = []
        for number in range(1100):
            address = (server.broker, server.namesrv, server.http)[number % 8 % 3]
            idle.append(stack.enter_context(server.connect(address)))
            if number % 100 == 0:  # the client that works is not the one that is closed
                assert producer.send(Message(topic=f"t{number}", body=b"x")).status == "SEND_OK"
        assert server.get("/ready") == (200, "ready\n")
        server.send(3, topic="new")
        with PullConsumer(namesrv=server.namesrv, group="c") as consumer:
            assert [m.body for m in consumer.messages("t", follow=False)] == [b"first"]
        assert server.metric("tailrace_connections") <= LIMIT // 2
        assert server.descriptors() < LIMIT * 3 // 4
        assert server.metric("tailrace_connections_closed_total", reason="connections") > 300
        open_ones = [is_open(connection) for connection in idle]
        assert not any(open_ones[:200]), "the oldest go first"
        assert sum(open_ones[-100:]) > 70
    assert 1 <= len(server.lines("connection closed for a limit")) <= 4
    assert not server.lines("Too many open files")
    until(lambda: server.metric("tailrace_connections") < 20)
    server.send()
    assert server.stop() == 0


def test_a_shortage_of_descriptors_ends_without_a_restart(serve, tmp_path):
    """Somebody takes every descriptor that the cap leaves: the limit is lowered under the server."""
    server = serve(flushConsumeQueueThoroughInterval=1000, flushIntervalConsumeQueue=100)
    with Producer(broker=server.broker, retries=0) as producer:
        producer.send(Message(topic="t", body=b"1"), queue_id=0)
        most = server.descriptors()
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (most - 2, LIMIT))
        refused = 0
        for number in range(30):
            try:
                producer.send(Message(topic=f"new{number}", body=b"2"))
            except Exception:
                refused += 1
        with contextlib.ExitStack() as stack:
            for _ in range(150):  # none of them can be accepted; asyncio leaves them in the backlog
                with contextlib.suppress(OSError):
                    stack.enter_context(server.connect(timeout=0.05))
            producer.send(Message(topic="t", body=b"2"), queue_id=1)  # the new queue needs a file
            until(lambda: server.lines("descriptors or memory"))
        assert server.process.poll() is None
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
        until(lambda: server.get("/ready") == (200, "ready\n"))
        assert producer.send(Message(topic="t", body=b"3")).status == "SEND_OK"
    server.send(topic="afterwards")
    with PullConsumer(broker=server.broker, group="c") as consumer:
        assert sorted(m.body for m in consumer.messages("t", follow=False)) == [b"1", b"2", b"3"]
    assert len(server.log.read_text().splitlines()) < 400, "a flood does not fill the log"
    assert "Traceback" not in server.log.read_text()
    assert server.stop() == 0
    assert not (tmp_path / "s" / "abort").exists()


@pytest.mark.parametrize("cold", [pytest.param(False, marks=pytest.mark.long), True], ids=["warm", "cold"])
def test_answers_that_are_not_read_take_bounded_memory(serve, cold):
    """1,000 pipelined requests of 44 bytes took 1.9 GB: every answer was made at once."""
    server = serve(cold=cold, serverChannelStallTimeoutSeconds=4)
    with Producer(broker=server.broker) as producer:
        for _ in range(32):
            producer.send(Message(topic="big", body=bytes(60_000)), queue_id=0)
    until(lambda: server.metric("rocketmq_storage_dispatch_behind_bytes") == 0)
    before = server.anonymous_mib()
    with contextlib.ExitStack() as stack:
        lazy = []
        for _ in range(4):
            connection = stack.enter_context(server.connect())
            connection.sendall(b"".join(pull("big", n) for n in range(1000)))
            lazy.append(connection)
        server.send(20)
        until(lambda: server.metric("tailrace_connection_bytes") > MIB)
        assert server.anonymous_mib() - before < 100
        until(lambda: server.metric(
            "tailrace_connections_closed_total", reason="answers are not read") == 4)
        assert server.metric("tailrace_connection_bytes") < MIB
        assert server.metric("tailrace_cold_pulls_waiting") == 0, "they went with their connections"
        assert server.anonymous_mib() - before < 100
    if cold:
        assert 4 <= server.metric("tailrace_cold_reads_total") < 400, "nothing is read for those that do not"
    server.send(20)
    assert len(server.lines("connection closed for a limit")) == 1
    assert server.stop() == 0


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_a_client_that_reads_late_gets_every_answer(serve, cold):
    server = serve(cold=cold)
    with Producer(broker=server.broker) as producer:
        for _ in range(32):
            producer.send(Message(topic="big", body=bytes(60_000)), queue_id=0)
    until(lambda: server.metric("rocketmq_storage_dispatch_behind_bytes") == 0)
    with server.connect() as connection:
        connection.sendall(b"".join(pull("big", n) for n in range(40)))
        server.send(20)  # meanwhile others are served
        data, seen = b"", []
        while len(seen) < 40:
            data += connection.recv(1 << 20)
            while True:
                command, end = decode_frame(data, 0, len(data))
                if command is None:
                    break
                seen.append((command.opaque, len(command.body)))
                data = data[end:]
    assert sorted(opaque for opaque, _ in seen) == list(range(40))
    assert {size for _, size in seen} == {seen[0][1]}
    assert seen[0][1] > 200_000
    assert server.stop() == 0


@pytest.mark.parametrize("cold", [pytest.param(False, marks=pytest.mark.long), True], ids=["warm", "cold"])
def test_held_pulls_are_not_all_answered_at_once(serve, cold):
    """One message of 1 MB for 1,000 held pulls of a client that does not read: 1 GB of answers."""
    server = serve(cold=cold, serverChannelStallTimeoutSeconds=60)
    server.send(topic="held")
    before = server.anonymous_mib()
    with server.connect() as connection, Producer(broker=server.broker) as producer:
        end = producer.send(Message(topic="held", body=b"1"), queue_id=0).queue_offset + 1
        until(lambda: server.metric("rocketmq_storage_dispatch_behind_bytes") == 0)  # else `end` is too far
        connection.sendall(b"".join(pull("held", n, suspend=60_000, offset=end) for n in range(1000)))
        until(lambda: server.metric("rocketmq_processor_watermark", processor="pull") == 1000)
        producer.send(Message(topic="held", body=bytes(MIB)), queue_id=0)
        until(lambda: server.metric("rocketmq_processor_watermark", processor="pull") == 0)
        server.send(20)
        assert server.anonymous_mib() - before < 60
        data, seen = bytearray(), []
        while len(seen) < 1000:
            data += connection.recv(1 << 20)
            while len(data) >= 4 and len(data) >= 4 + struct.unpack_from(">i", data)[0]:
                length = 4 + struct.unpack_from(">i", data)[0]
                command, _ = decode_frame(bytes(data[:length]), 0, length)
                seen.append(command.opaque)
                del data[:length]
    assert sorted(seen) == list(range(1000))
    assert server.stop() == 0


def test_the_bodies_of_held_pulls_count(serve):
    """A pull needs no body; 200 of 1 MB each were held as 2 KB each."""
    server = serve(serverBufferMaxBytes=64 * MIB)
    with Producer(broker=server.broker) as producer:
        producer.send(Message(topic="held", body=b"1"), queue_id=0)
    until(lambda: server.metric("rocketmq_storage_dispatch_behind_bytes") == 0)
    large = pull("held", 1, suspend=60_000, offset=1)
    large = struct.pack(">i", struct.unpack_from(">i", large)[0] + MIB) + large[4:] + bytes(MIB)
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            with contextlib.suppress(OSError):  # it may be closed in the middle of it
                stack.enter_context(server.connect()).sendall(large * 10)
        until(lambda: server.metric("tailrace_connections_closed_total", reason="bytes") >= 13)
        assert 32 * MIB < server.metric("tailrace_connection_bytes") < 96 * MIB
        until(lambda: server.metric("rocketmq_processor_watermark", processor="pull") < 96)
    server.send()
    assert server.stop() == 0


def test_frames_that_never_end_take_bounded_memory_and_time(serve):
    """100 connections announced 16 MB each and sent 10 MB: 1 GB for as long as they liked. Here they are 40."""
    server = serve(serverBufferMaxBytes=64 * MIB, serverChannelStallTimeoutSeconds=2)
    before = server.anonymous_mib()
    half = struct.pack(">iI", 16_000_000, 100) + bytes(10 * MIB)
    most = 0.0
    with contextlib.ExitStack() as stack, Producer(broker=server.broker) as producer:
        for number in range(40):
            connection = stack.enter_context(server.connect())
            with contextlib.suppress(OSError):  # it may be closed in the middle of it
                connection.sendall(half)
            if number % 10 == 0:
                most = max(most, server.anonymous_mib() - before)
                assert producer.send(Message(topic="t", body=b"x")).status == "SEND_OK"
        assert most < 64 + 64, most
        until(lambda: server.metric("tailrace_connection_bytes") == 0)
    closed = {
        reason: server.metric("tailrace_connections_closed_total", reason=reason)
        for reason in ("bytes", "incomplete request")}
    assert closed["bytes"] >= 30 - 6
    assert sum(closed.values()) == 40
    assert server.lines("requests wait for memory")
    server.send()
    assert server.stop() == 0


def test_a_request_that_comes_slowly_is_served(serve):
    server = serve(serverChannelStallTimeoutSeconds=1)
    frame = encode(RemotingCommand(105, {"topic": "TBW102"}, opaque=7))
    with server.connect(server.namesrv) as connection:
        for at in range(0, len(frame), 16):
            connection.sendall(frame[at : at + 16])
            time.sleep(0.3)  # slower than the timeout in total, never as slow between two pieces
        answer = connection.recv(1 << 20)
        assert decode_frame(answer, 0, len(answer))[0].opaque == 7
    assert server.metric("tailrace_connections_closed_total", reason="incomplete request") == 0
    assert server.stop() == 0


def test_half_open_http_requests_do_not_shut_out_others(serve):
    """With more than 64 of them `/ready` answered 503."""
    server = serve()
    with contextlib.ExitStack() as stack:
        for number in range(300):
            connection = stack.enter_context(server.connect(server.http))
            with contextlib.suppress(OSError):
                connection.sendall(b"GET /ready HTTP/1.1\r\nHost: " if number % 2 else b"")
            if number % 50 == 49:
                assert server.get("/ready") == (200, "ready\n")
        assert server.metric("tailrace_connections_closed_total", reason="slow http") > 200
    assert server.stop() == 0


def test_a_lock_file_that_is_deleted_is_made_again_and_nobody_else_gets_the_directory(serve, tmp_path):
    server = serve()
    (tmp_path / "s" / "lock").unlink()
    until(lambda: server.lines("the lock file was deleted"))
    assert (tmp_path / "s" / "lock").read_bytes() == b"lock"
    assert server.metric("tailrace_store_lock_made_again_total") == 1
    refused = subprocess.run(
        [sys.executable, "-m", "tailrace.cli", "recover", str(tmp_path / "s")], capture_output=True,
        text=True, timeout=60, check=False)
    assert refused.returncode == 1
    assert "locked" in refused.stderr
    server.send()
    assert server.stop() == 0
    assert not (tmp_path / "s" / "abort").exists()


def test_a_server_whose_lock_was_replaced_writes_nothing_more_and_ends(serve, tmp_path):
    """Another process opens the directory as soon as the lock file is gone."""
    server = serve()
    server.send()
    held = subprocess.Popen(
        [sys.executable, "-c", TAKE_OVER, str(tmp_path / "s")], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True)
    try:
        assert held.stdout.readline() == "open\n"
        assert server.process.wait(30) == 1
        assert server.lines("CRITICAL tailrace.node.lock the lock file was replaced")
        assert "was replaced while the store was open" in server.log.read_text().splitlines()[-1]
        before = {p: p.stat().st_mtime_ns for p in (tmp_path / "s").rglob("*") if p.is_file()}
        assert tmp_path / "s" / "abort" in before, "it is the other's, and stays"
        held.stdin.write("\n")
        held.stdin.flush()
        assert held.wait(30) == 0
    finally:
        held.kill()
        held.wait()
        held.stdin.close()
        held.stdout.close()


# Deletes the lock file and opens the store; it does so again if the server was faster.
TAKE_OVER = """
import os, sys
from tailrace import Message, MessageStore
from tailrace.errors import StoreLockedError
while True:
    os.unlink(sys.argv[1] + "/lock")
    try:
        store = MessageStore.open(sys.argv[1])
        break
    except StoreLockedError:
        pass
store.put(Message(topic="t", body=b"mine"))
print("open", flush=True)
sys.stdin.readline()
assert [m.body for m in store.read("t", 0, 0)][-1] == b"mine"
store.close()
assert not os.path.exists(sys.argv[1] + "/abort")
"""
