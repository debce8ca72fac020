"""What clients get from a broker that stops or has too much to do: GO_AWAY and refusals, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from tailrace.broker.controller import BrokerController
from tailrace.client import Producer
from tailrace.config import FlushDiskType, StoreConfig
from tailrace.errors import RemotingError
from tailrace.formats.remoting import RemotingCommand, decode_frame, encode
from tailrace.model import Message, PutMessageStatus
from tailrace.node.message_store import MessageStore
from tailrace.requests.durable_answers import PENDING_LIMIT

pytestmark = pytest.mark.integration

PULL = {
    "consumerGroup": "g", "topic": "orders", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
    "sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": "30000", "subscription": "*",
    "subVersion": "0",
}
SEND = {
    "a": "pg", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0",
}


class Frames:
    """A blocking connection that speaks frames."""

    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=20)
        self.data = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, *commands):
        self.socket.sendall(b"".join(map(encode, commands)))

    def receive(self):
        """The next command, None when the connection has ended."""
        while True:
            command, end = decode_frame(self.data, 0, len(self.data))
            if command is not None:
                self.data = self.data[end:]
                return command
            more = self.socket.recv(1 << 16)
            if not more:
                return None
            self.data += more


def test_a_held_pull_and_later_requests_are_told_to_go_away(tailrace_broker):
    process = tailrace_broker._process
    with Frames(tailrace_broker.broker) as new, Frames(tailrace_broker.broker) as old:
        new.send(RemotingCommand(310, SEND, b"x", opaque=1))
        assert new.receive().code == 0  # the topic exists now
        new.send(RemotingCommand(11, PULL, opaque=6))
        assert new.receive().code == 0  # and the group
        new.send(RemotingCommand(11, {**PULL, "queueId": "1"}, opaque=2, version=479))
        old.send(RemotingCommand(11, {**PULL, "queueId": "2"}, opaque=3, version=401))
        old.send(RemotingCommand(28, opaque=4, version=401))
        assert old.receive().opaque == 4  # so the pull before it is held
        process.send_signal(signal.SIGTERM)
        told = new.receive()
        assert (told.code, told.opaque) == (1500, 2)
        with contextlib.suppress(OSError):  # it may be closed by now
            new.send(RemotingCommand(28, opaque=5, version=479))
            while (later := new.receive()) is not None:
                assert (later.code, later.opaque) == (1500, 5)
        assert old.receive() is None  # it knows no such code: its connection ends, and it asks again
    assert tailrace_broker.stop() == 0


def test_a_producer_sends_on_across_a_restart_and_nothing_acknowledged_is_lost(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"

    def serve():
        process = subprocess.Popen(
            [sys.executable, "-m", "tailrace.cli", "serve", str(tmp_path / "store"), "--listen",
             address, "--namesrv-listen", "127.0.0.1:0"], stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True)
        assert process.stdout.readline().startswith("ready ")
        return process

    acknowledged, refused, done = [], [], threading.Event()

    def send():
        with Producer(broker=address, group="g") as producer:
            number = 0
            while not done.is_set():
                number += 1
                try:
                    producer.send(Message(topic="orders", body=b"%d" % number))
                    acknowledged.append(number)
                except RemotingError as error:
                    refused.append(str(error))

    first = serve()
    thread = threading.Thread(target=send)
    thread.start()
    try:
        while len(acknowledged) < 200:
            time.sleep(0.01)
        first.terminate()
        assert first.wait(20) == 0
        before = len(acknowledged)
        second = serve()
        while len(acknowledged) < before + 200:
            time.sleep(0.01)
    finally:
        done.set()
        thread.join(20)
    second.terminate()
    assert second.wait(20) == 0
    first.stdout.close()
    second.stdout.close()
    with MessageStore.open(tmp_path / "store") as store:
        stored = {int(m.body) for q in store.queues() if q[0] == "orders" for m in store.read(q[0], q[1])}
    assert set(acknowledged) <= stored
    known = ("1500", "connect", "closed", "opening its store")
    assert all(any(part in text for part in known) for text in refused), set(refused)


def test_sends_beyond_what_may_wait_for_the_disk_are_told_to_slow_down(tmp_path, monkeypatch):
    """The disk is made to wait; everything else is real."""
    waiting = []
    config = StoreConfig(flush_disk_type=FlushDiskType.SYNC_FLUSH)

    async def test():
        with MessageStore.open(tmp_path / "store", config=config) as store:
            real = store.inner.when_durable
            monkeypatch.setattr(
                store.inner, "when_durable", lambda *arguments: waiting.append(arguments))
            controller = BrokerController(store)
            await controller.start(("127.0.0.1", 0), None)
            host, port = controller.broker_address.rsplit(":", 1)
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(encode(RemotingCommand(310, SEND, b"x", opaque=-1)))  # creates the topic
            while not waiting:
                await asyncio.sleep(0.001)
            most, extra = PENDING_LIMIT, 50
            waiting.pop()[1](PutMessageStatus.PUT_OK)
            for start in range(0, most + extra, 500):
                writer.write(b"".join(
                    encode(RemotingCommand(310, SEND, b"x", opaque=n, serialize_type=1))
                    for n in range(start, min(start + 500, most + extra))))
                await writer.drain()
            data, codes = b"", {}

            async def answers(count):
                nonlocal data
                while len(codes) < count:
                    data += await asyncio.wait_for(reader.read(1 << 20), 60)
                    at = 0
                    while True:
                        command, at = decode_frame(data, at, len(data))
                        if command is None:
                            break
                        codes[command.opaque] = command.code
                    data = data[at:]

            await answers(1 + extra)
            assert codes.pop(-1) == 0
            assert codes == dict.fromkeys(range(most, most + extra), 2)
            for arguments in waiting:
                real(*arguments)
            await answers(most + extra)
            assert set(codes.values()) == {0, 2}
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            await controller.stop()

    asyncio.run(test())


def test_a_burst_of_sends_to_a_topic_that_does_not_exist_yet_is_stored(tmp_path):
    """They wait for the file of topics, whose write takes as long as the disk needs."""
    count = 5_000

    async def test():
        with MessageStore.open(tmp_path / "store") as store:
            controller = BrokerController(store)
            await controller.start(("127.0.0.1", 0), None)
            host, port = controller.broker_address.rsplit(":", 1)
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"".join(
                encode(RemotingCommand(310, SEND, b"x", opaque=n, serialize_type=1)) for n in range(count)))
            data, codes, at = b"", {}, 0
            while len(codes) < count:
                data = data[at:] + await asyncio.wait_for(reader.read(1 << 20), 60)
                at = 0
                while True:
                    command, at = decode_frame(data, at, len(data))
                    if command is None:
                        break
                    codes[command.opaque] = command.code
            assert codes == dict.fromkeys(range(count), 0)
            assert store.wait_dispatched()
            assert store.queue_of("orders", 0).max == count
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            await controller.stop()

    asyncio.run(test())
