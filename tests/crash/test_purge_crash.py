"""A crash at every operation of purges: an acknowledged purge holds, and no other message is purged."""

from __future__ import annotations

import errno
import importlib.util
import pathlib

import pytest
from read_there import read_there

from tailrace import Message, MessageStore, StoreConfig
from tailrace.env.entropy import SeededEntropy
from tailrace.node.store_opening import StoreParts
from tailrace.testing import CrashFileSystem, SimClock

_spec = importlib.util.spec_from_file_location("lives", pathlib.Path(__file__).with_name("lives.py"))
lives = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(lives)
pytestmark = pytest.mark.crash

CONFIG = StoreConfig(
    mapped_file_size_commit_log=8192, mapped_file_size_consume_queue=100, max_hash_slot_num=8,
    max_index_num=12, commit_log_allocate_step=4096, delete_rate=0)


class Life:
    """Puts, purges half, puts, purges all, puts; remembers the answers."""

    def __init__(self):
        self.clock = SimClock()
        self.flushed = {"t": 0, "other": 0}
        self.put_count = {"t": 0, "other": 0}
        self.told = self.asked = 0
        self.began = 0

    def put(self, store, count):
        for number in range(count):
            topic = "other" if number % 3 == 2 else "t"
            self.put_count[topic] += 1
            store.put(Message(topic=topic, body=b"%d" % (self.put_count[topic] - 1) + bytes(300)))
            self.clock.advance(10)

    def purge(self, store, before_ms=None):
        self.asked = self.put_count["t"] if before_ms is None else 4
        done = store.purge_topic("t", before_ms=before_ms)
        self.flushed = dict(self.put_count)  # a purge makes the log durable first
        self.told = done[0][1]
        assert self.told == self.asked

    def run(self, files):
        store = MessageStore.open(
            "/s", config=CONFIG,
            parts=StoreParts(services=False, clock=self.clock, file_system=files, entropy=SeededEntropy(7)))
        try:
            self.put(store, 12)
            store.wait_dispatched()
            self.began = files.operations
            self.purge(store, store.queue_of("t", 0).store_timestamp(4))
            self.put(store, 6)
            self.purge(store)
            self.put(store, 6)
            store.close()
        finally:
            if files.locked:
                files.locked.clear()

    def check(self, files, what):
        store = MessageStore.open(
            "/s", config=CONFIG, parts=StoreParts(services=False, clock=self.clock, file_system=files))
        low, high = store.queue_of("t", 0).min, store.queue_of("t", 0).max
        assert low in {self.told, min(self.asked, high)} | ({0} if not self.told else set()), (
            what, low, high, self.told, self.asked)
        assert high >= self.flushed["t"], what
        assert [m.body.rstrip(b"\0") for m in read_there(store, "t")] == [
            b"%d" % number for number in range(low, high)], what
        assert [m.queue_offset for m in read_there(store, "other")] == list(
            range(store.queue_of("other", 0).max)), what
        for _ in range(3):  # what is put now is shown, whatever the state file says
            offset = store.put(Message(topic="t", body=b"new")).queue_offset
            store.wait_dispatched()
            assert [m.body for m in read_there(store, "t", 0, offset)] == [b"new"], what
        store.close()


def span():
    life, files = Life(), CrashFileSystem()
    life.run(files)
    return life.began, files.operations


@pytest.mark.parametrize("keep", [None, 0, 50, 100])
def test_a_crash_at_every_operation_of_purges(keep):
    first, last = span()
    for place in range(first, last):
        lives.crash_at(Life, place, keep)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_every_operation_of_purges_may_fail_once(number):
    first, last = span()
    for place in range(first, last):
        lives.fail_once_at(Life, place, number, lambda files: files.killed())
