"""A crash at every operation of a pass that deletes, and every operation failing once."""

from __future__ import annotations

import errno
import importlib.util
import pathlib

import pytest
from long_runs import some
from read_there import read_there

from tailrace import FlushDiskType, Message, MessageStore, StoreConfig
from tailrace.env.entropy import SeededEntropy
from tailrace.errors import StoreError
from tailrace.node.store_opening import StoreParts
from tailrace.store.retention.trash import Trash
from tailrace.testing import CrashFileSystem, SimClock, SimulatedCrash

_spec = importlib.util.spec_from_file_location("lives", pathlib.Path(__file__).with_name("lives.py"))
lives = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(lives)
pytestmark = pytest.mark.crash

SIZE = 8192
HOUR = 3_600_000
QUEUES = [("orders", 0), ("orders", 1), ("other", 0)]
CONFIG = StoreConfig(
    mapped_file_size_commit_log=SIZE, mapped_file_size_consume_queue=100, max_hash_slot_num=8,
    max_index_num=12, commit_log_allocate_step=4096, flush_disk_type=FlushDiskType.SYNC_FLUSH,
    file_reserved_time=1.0, delete_rate=0, commit_log_roll_time=0.1)


def open_store(files, clock):
    return MessageStore.open(
        "/s", config=CONFIG, parts=StoreParts(services=False, clock=clock, file_system=files, entropy=SeededEntropy(7)))


class Life:
    """Messages by queue as they were put; ``expired`` of them may be gone."""

    def __init__(self):
        self.clock = SimClock()
        self.sent = {key: [] for key in QUEUES}
        self.acknowledged = dict.fromkeys(QUEUES, 0)
        self.times = {}
        self.deleting_from = None

    def put(self, store, count):
        for number in range(count):
            key = QUEUES[number % 3]
            body = b"%s-%d-%d" % (key[0].encode(), key[1], len(self.sent[key])) + bytes(1000)
            self.clock.advance(10)
            self.sent[key].append(body)
            self.times[body] = self.clock.now_ms()
            store.put(Message(topic=key[0], body=body, keys=[f"k{number}"]), queue_id=key[1])
            self.acknowledged[key] = len(self.sent[key])

    def run(self, files):
        """Fill, let it age, fill, delete with queues, put, end a file by age, put, delete, close."""
        store = open_store(files, self.clock)
        try:
            self.put(store, 30)
            store.inner.flush()
            self.clock.advance(2 * HOUR)
            self.put(store, 12)
            store.inner.flush()
            self.deleting_from = files.operations
            self.delete(store)
            self.put(store, 3)
            self.clock.advance(HOUR // 6)
            store.retention.clean_commit_log.step()
            self.put(store, 3)
            self.clock.advance(2 * HOUR)
            self.put(store, 12)
            self.delete(store)
            store.close()
        finally:
            if files.locked:
                files.locked.clear()

    def delete(self, store):
        store.wait_dispatched()
        store.inner.flush()
        return store.retention.delete_now()

    def check(self, files, what):
        """Nothing young is lost, nothing comes twice, and a suffix of each queue remains."""
        store = open_store(files, self.clock)
        assert not store.recovery_report["cut"] or not store.recovery_report["steppedOver"], what
        young = self.clock.now_ms() - HOUR
        for key in QUEUES:
            topic, queue_id = key
            found = [(m.queue_offset, m.body) for m in read_there(store, topic, queue_id)]
            offsets = [offset for offset, _ in found]
            assert offsets == list(range(offsets[0], offsets[0] + len(offsets))) if found else True, what
            for offset, body in found:
                assert self.sent[key][offset] == body, (what, key, offset)
            must = [
                number for number, body in enumerate(self.sent[key][: self.acknowledged[key]])
                if self.times[body] > young]
            assert set(must) <= set(offsets), (what, key, must, offsets)
            low = store.queue_of(topic, queue_id).min
            assert not found or low == offsets[0], (what, key, low, offsets[:1])
        low = store.min_phy_offset
        names = [n for n in files.list("/s/commitlog") if n.isdigit()]
        assert [int(n) for n in names] == [low + i * SIZE for i in range(len(names))], (what, names)
        # The next message takes the next place, and deleting continues.
        for key in QUEUES:
            high = store.queue_of(*key).max
            assert store.put(Message(topic=key[0], body=b"after"), queue_id=key[1]).queue_offset == high
        self.clock.advance(2 * HOUR)
        for key in QUEUES:
            store.put(Message(topic=key[0], body=bytes(3000)), queue_id=key[1])
            store.put(Message(topic=key[0], body=bytes(3000)), queue_id=key[1])
        self.delete(store)
        assert store.min_phy_offset > low, what
        assert files.list("/s/tailrace/trash") == [], (what, "a ghost")
        store.close()
        again = open_store(files, self.clock)
        assert again.recovery_report["mode"] == "normal", what
        again.close()


def operations():
    life = Life()
    seen = set()
    files = CrashFileSystem(lambda _number, name, _path: seen.add(name))
    life.run(files)
    assert {"rename", "remove", "punch_hole"} <= seen
    assert next(n for n in files.list("/s/commitlog") if n.isdigit()) != "0" * 20
    return life.deleting_from, files.operations


KEEP = [None, 0, 50, 100]


@pytest.mark.parametrize("keep", KEEP)
def test_a_crash_while_deleting_leaves_no_hole_no_ghost_and_loses_nothing_young(keep):
    first, last = operations()
    assert last - first > 100
    for place in some(range(first, last), 2 * len(KEEP), 2 * KEEP.index(keep)):
        lives.crash_at(Life, place, keep)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_any_operation_of_a_pass_may_fail_once(number):
    first, last = operations()
    for place in some(range(first, last), 6, number % 6):
        lives.fail_once_at(
            Life, place, number,
            lambda files, place=place: files.power_lost(SeededEntropy(place), 50))


def test_the_sweep_catches_names_that_are_not_durably_gone(monkeypatch):
    """A planted bug: later files go while the name of an earlier one may reappear."""
    def careless(self, file):
        directory, _, name = file.path.rpartition("/")
        self._rename(file, directory, name)

    first, last = operations()
    monkeypatch.setattr(Trash, "take", careless)
    caught = ""
    for place in range(first, last):
        life = Life()

        def before(number, _name, _path, place=place):
            if number == place:
                raise SimulatedCrash

        files = CrashFileSystem(before)
        try:
            life.run(files)
        except SimulatedCrash:
            pass
        try:
            life.check(files.power_lost(SeededEntropy(place), 50), f"place={place}")
        except (AssertionError, StoreError, IndexError) as error:
            caught = str(error)
            break
    assert caught
