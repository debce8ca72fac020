"""Retention against a model: random work on a simulated clock, on a disk of limited size."""

from __future__ import annotations

import errno
import os
import random

import pytest

from tailrace import Message, MessageStore, StoreConfig
from tailrace.env.entropy import SeededEntropy
from tailrace.errors import StoreError
from tailrace.node.store_opening import StoreParts
from tailrace.store.retention.forced_deletions import ForcedDeletions
from tailrace.testing import CrashFileSystem, ManualScheduler, SimClock

SEED = int(os.environ.get("SEED", "1"))
SIZE = 8192
RESERVED_MS = 3_600_000
DISK = 30 * SIZE
SERVICES = ("CleanCommitLogService", "EmptyTrashService", "CleanConsumeQueueService")
GROWING = {"create", "allocate", "truncate", "pwrite", "rename", "mkdir"}


class SmallDisk:
    """A CrashFileSystem that is full at ``DISK`` bytes, some of which others take."""

    def __init__(self):
        self.inner = CrashFileSystem(self.before)
        self.inner.disk_usage = self.disk_usage
        self.others = 0
        self.refused = 0

    def used(self):
        return self.others + sum(len(d.volatile) for d in self.inner._files.values())

    def before(self, _number, name, path):
        if name in GROWING and self.used() >= DISK:
            self.refused += 1
            raise OSError(errno.ENOSPC, "no room", path)

    def disk_usage(self, _path):
        usage = self.inner.usage
        usage.total = DISK
        usage.free = usage.usable = max(DISK - self.used(), 0)
        return usage


class World:
    """A store, and what it should hold."""

    def __init__(self, seed, caplog):
        self.caplog = caplog
        self.random = random.Random(seed)
        self.clock = SimClock()
        self.disk = SmallDisk()
        self.seed = seed
        self.put_at = {}
        self.bodies = {}
        self.leases = []
        self.low = 0
        self.refused = self.resumed = self.deleted = 0
        self.open()
        self.put()

    def open(self):
        self.scheduler = ManualScheduler()
        self.store = MessageStore.open(
            "/s",
            parts=StoreParts(clock=self.clock, file_system=self.disk.inner, scheduler=self.scheduler,
                entropy=SeededEntropy(self.seed)), config=StoreConfig(
                mapped_file_size_commit_log=SIZE, mapped_file_size_consume_queue=400,
                max_hash_slot_num=8, max_index_num=16, commit_log_allocate_step=SIZE,
                file_reserved_time=RESERVED_MS / 3_600_000, delete_when=";".join(map(str, range(24))),
                delete_rate=self.random.choice((0, SIZE)), destroy_maped_file_interval_forcibly=30_000,
                commit_log_roll_time=0.0))
        self.log = self.store.inner.commit_log

    def put(self):
        for _ in range(self.random.randrange(1, 40)):
            body = b"%d" % len(self.bodies) + bytes(self.random.randrange(1500))
            topic = self.random.choice(("a", "b"))
            try:
                result = self.store.put(Message(topic=topic, body=body))
            except StoreError:
                self.refused += 1
                return
            self.bodies[topic, result.queue_offset] = body
            self.put_at[topic, result.queue_offset] = result.phy_offset, self.clock.now_ms()

    def dispatch(self):
        try:
            while self.scheduler.steps["ReputMessageService"]():
                pass
            self.store.flush()
        except OSError as error:
            assert error.errno == errno.ENOSPC
        except StoreError as error:
            assert "space" in str(error)

    def let_time_pass(self):
        for number in range(self.random.randrange(1, 8) * 100):
            self.clock.advance(100)
            if number % 100 == 99:
                self.scheduler.steps["DiskCheckService"]()
            for name in SERVICES:
                self.scheduler.steps[name]()

    def wait_long(self):
        self.clock.advance(self.random.randrange(RESERVED_MS))

    def others_write(self):
        self.disk.others = self.random.randrange(0, DISK * 3 // 4)

    def read_for_long(self):
        file = self.random.choice(self.log.queue.files)
        if (lease := file.select(0, min(100, file.wrote_position))) is not None:
            self.leases.append((lease, bytes(lease.buffer)))

    def end_reading(self):
        for lease, seen in self.leases:
            assert bytes(lease.buffer) == seen, "a reader's bytes changed"
            lease.release()
        self.leases = []

    def reopen(self):
        if self.disk.used() < DISK - 6 * SIZE:
            self.end_reading()
            self.dispatch()
            self.store.close()
            self.open()

    def check(self):
        low = self.store.min_phy_offset
        assert low >= self.low, "the least offset never goes back"
        self.deleted += low > self.low
        self.low = low
        names = [n for n in self.disk.inner.list("/s/commitlog") if n.isdigit()]
        listed = [f.file_from_offset for f in self.log.queue.files]
        assert listed == [low + i * SIZE for i in range(len(listed))]
        assert [int(n) for n in names][: len(listed)] == listed
        forced = {
            str(record.args[0])[-20:] for record in self.caplog.records
            if record.msg.startswith("deleted before its time")}
        assert {e["file"] for e in ForcedDeletions(self.disk.inner, "/s").read()} <= forced
        young = self.clock.now_ms() - RESERVED_MS
        unavailable = {f.file_from_offset for f in self.log.queue.files if not f.available}
        for (topic, offset), (phy_offset, put_ms) in self.put_at.items():
            file = phy_offset - phy_offset % SIZE
            if phy_offset >= low and file not in unavailable:
                found = self.store.look_message_by_offset(phy_offset)
                assert found is not None, (topic, offset, phy_offset, low)
                assert found.body == self.bodies[topic, offset]
            elif phy_offset < low and put_ms > young:
                assert f"{file:020d}" in forced, "a young message went and nobody said so"


@pytest.mark.parametrize("seed", range(SEED, SEED + 6))
def test_random_work_keeps_what_retention_promises(seed, caplog):
    world = World(seed, caplog)
    actions = [world.put] * 6 + [world.dispatch] * 4 + [world.let_time_pass] * 3 + [
        world.wait_long, world.others_write, world.read_for_long, world.end_reading, world.reopen]
    for number in range(150):
        action = world.random.choice(actions)
        try:
            action()
            world.check()
        except AssertionError as error:
            raise AssertionError(f"SEED={seed} step={number} {action.__name__}: {error}") from error
    assert world.deleted
    world.end_reading()
    # Room again: writable within one interval of the check, without a restart.
    world.disk.others = 0
    world.clock.advance(2 * RESERVED_MS)
    world.dispatch()
    for _ in range(2):
        world.clock.advance(10_000)
        world.let_time_pass()
    assert world.store.is_writeable, world.store.not_writeable_reason
    world.put()
    world.check()
    world.store.close()


def test_the_model_sees_full_disks(caplog):
    """The workload reaches what it is for: ENOSPC, refusals, deletions before their time."""
    refused = full = forced = 0
    for seed in range(SEED, SEED + 4):
        world = World(seed, caplog)
        for _ in range(60):
            world.random.choice((world.put, world.put, world.dispatch, world.let_time_pass,
                                 world.others_write))()
        refused += world.refused
        full += world.disk.refused
        forced += world.store.stats()["forcedDeletedFiles"]
        world.disk.others = -DISK
        world.store.close()
    assert refused
    assert full
    assert forced
