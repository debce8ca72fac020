"""Kills of a master: what it acknowledged is on its slave, and the slave's log is a part of its own."""

from __future__ import annotations

import os
import random
import socket
import struct
import sys
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from ha_frames import FrameDecoder
from java_peer import free_port

from tailrace import Message, Producer
from tailrace.errors import RemotingError
from tailrace.pytest_plugin import TailraceBroker
from tailrace.testing.sent import ViolationError

sys.path.append(str(Path(__file__).parents[2] / "tools"))

from replication_kills import FILE as SEGMENT
from replication_kills import Pair

pytestmark = [pytest.mark.slow, pytest.mark.integration]

ROUNDS = 40 if os.environ.get("TAILRACE_LONG") else 3
FILE = 1 << 20
SETTINGS = {
    "mappedFileSizeCommitLog": FILE, "mappedFileSizeConsumeQueue": 6000, "maxHashSlotNum": 1000, "maxIndexNum": 4000,
    "brokerRole": "SYNC_MASTER", "haAllowedHosts": "127.0.0.1", "slaveTimeout": 1000}


class Slave:
    """Keeps the log that a master sends, as bytes; it may be cut off at any byte."""

    def __init__(self):
        self.log = bytearray()

    def follow(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.thread = threading.Thread(target=self._follow, daemon=True)
        self.thread.start()

    def _follow(self):
        decoder = FrameDecoder()
        try:
            self.socket.sendall(struct.pack(">q", len(self.log)))
            while data := self.socket.recv(1 << 16):
                for frame in decoder.feed(data):
                    assert frame.phy_offset == len(self.log)
                    self.log += frame.body
                self.socket.sendall(struct.pack(">q", len(self.log)))
        except OSError:
            pass

    def leave(self):
        self.socket.close()
        self.thread.join(10)


def send(producer, number, acknowledged, stop):
    while not stop.is_set():
        try:
            sent = producer.send(Message(topic="kills", body=b"%d" % number * 50), queue_id=0)
        except RemotingError:
            return
        if sent.status == "SEND_OK":
            acknowledged.append(int(sent.offset_msg_id[16:], 16))


@pytest.mark.parametrize("disk", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_what_was_acknowledged_is_on_the_slave_after_kills_of_the_master(tmp_path, disk):
    port = free_port()
    broker = TailraceBroker(tmp_path / "store", settings={**SETTINGS, "flushDiskType": disk, "haListenPort": port})
    slave, acknowledged, dice = Slave(), [], random.Random(7)
    for number in range(ROUNDS):
        broker.start()
        slave.follow(port)
        stop = threading.Event()
        with Producer(namesrv=broker.namesrv, timeout_ms=3000) as producer:
            if not number:
                producer.create_topic("kills", queues=1)
            threads = [threading.Thread(target=send, args=(producer, number, acknowledged, stop)) for _ in range(4)]
            for thread in threads:
                thread.start()
            stop.wait(0.3 + dice.random())
            broker.kill()
            stop.set()
            for thread in threads:
                thread.join(30)
        slave.leave()
        assert acknowledged
        assert max(acknowledged) < len(slave.log)
        log = b"".join(path.read_bytes() for path in sorted((tmp_path / "store" / "commitlog").iterdir()))
        assert log[: len(slave.log)] == bytes(slave.log)
        for at in acknowledged:
            assert struct.unpack_from(">i", slave.log, at)[0] > 0
    print(f"{ROUNDS} kills, {len(acknowledged)} acknowledged, {len(slave.log)} bytes")


RECORD = struct.pack(">iI", 64, 0xDAA320A7) + b"body" + b"p" * 52


@pytest.mark.parametrize(("slave", "acknowledged", "wrong"), [
    (RECORD * 2, 64, ""), (RECORD + RECORD[:30] + bytes(34), 0, ""), (RECORD + RECORD[:30] + bytes(34), 64, "not in"),
    (RECORD + RECORD[:30] + b"q" * 34, 0, "differ"), (RECORD[:30] + bytes(34) + RECORD, 64, "differ"),
    (RECORD * 4, 0, "and its master")], ids=[
    "equal", "cut off", "cut off and acknowledged", "other bytes", "a hole before the end", "longer"])
def test_a_last_record_that_a_kill_of_the_slave_has_cut_off_is_not_in_its_log(tmp_path, slave, acknowledged, wrong):
    """The check of `tools/replication_kills.py`. A JVM was killed at a page boundary within the copy of a record."""
    for name, data in (("m", RECORD * 3), ("s", slave)):
        (tmp_path / name / "commitlog").mkdir(parents=True)
        (tmp_path / name / "commitlog" / f"{0:020d}").write_bytes(data.ljust(SEGMENT, b"\0"))
    pair = SimpleNamespace(
        master=SimpleNamespace(root=tmp_path / "m"), slave=SimpleNamespace(root=tmp_path / "s"), _looked=0,
        _same_until=0, acknowledged={b"body": acknowledged}, _checked=set(), counts=Counter())
    if wrong:
        with pytest.raises(ViolationError, match=wrong):
            Pair.look(pair)
    else:
        Pair.look(pair)
        assert pair._looked == len(slave.rstrip(b"\0")) // 64 * 64
