"""Delayed messages and timers against a model, on a disk that fills up and gets room again, with kills."""

from __future__ import annotations

import os
import random

import pytest

from tailrace import Message, MessageStore, StoreConfig
from tailrace.env.entropy import SeededEntropy
from tailrace.errors import StoreError
from tailrace.formats.commitlog import decode_message
from tailrace.node.store_opening import StoreParts
from tailrace.testing import CrashFileSystem, ManualScheduler, SimClock

SEED = int(os.environ.get("SEED", "1"))
SIZE = 8192
LEVELS = {1: 2_000, 2: 40_000, 3: 300_000}
SERVICES = (
    "ReputMessageService", "TimerEnqueueService", "TimerDequeueService", "ScheduleMessageService",
    "ReputMessageService", "CleanCommitLogService", "EmptyTrashService", "CleanConsumeQueueService")


class World:
    """A store that delivers, and what it was asked to deliver when."""

    def __init__(self, seed, *, wheel):
        self.random = random.Random(seed)
        self.seed, self.wheel = seed, wheel
        self.clock = SimClock()
        self.files = CrashFileSystem()
        self.due, self.delivered = {}, {}
        self.lost = self.handed_over = self.kills = 0
        self.used = 10
        self.open()

    def open(self):
        self.scheduler = ManualScheduler()
        self.set_used(self.used)
        self.store = MessageStore.open(
            "/s",
            parts=StoreParts(clock=self.clock, file_system=self.files, scheduler=self.scheduler,
                entropy=SeededEntropy(self.seed)), config=StoreConfig(
                mapped_file_size_commit_log=SIZE, mapped_file_size_consume_queue=400,
                max_hash_slot_num=64, max_index_num=1000, commit_log_allocate_step=SIZE,
                delete_when="3", delete_rate=0, commit_log_roll_time=0.0,
                mapped_file_size_timer_log=52 * 40 + 30, timer_wheel_enable=self.wheel,
                message_delay_level="2s 40s 300s"))
        inside, put, put_records = self.store.inner, self.store.inner.put, self.store.inner.put_records

        def watched(message, **kind):
            result = put(message, **kind)
            if result.status.appended:
                self.note(message)
            return result

        def watched_records(keys, count, bound, write):
            def writing(done, buffer, at, *more):
                count, size = write(done, buffer, at, *more)
                for _ in range(count):
                    end = at + int.from_bytes(buffer[at : at + 4], "big")
                    self.note(decode_message(bytes(buffer[at:end])))
                    at = end
                return count, size

            return put_records(keys, count, bound, writing)

        inside.put, inside.put_records = watched, watched_records

    def note(self, message):
        if message.topic in ("later", "%RETRY%g"):
            self.delivered.setdefault(message.body, []).append(self.clock.now_ms())

    def set_used(self, percent):
        self.used = percent
        self.files.usage.total = 1 << 40
        self.files.usage.free = self.files.usage.usable = (1 << 40) * (100 - percent) // 100

    def put(self):
        for _ in range(self.random.randrange(1, 12)):
            body = b"%d" % len(self.due)
            level = self.random.choice((0, 0, 1, 2, 3, 9 if self.wheel else 0))
            topic = self.random.choice(("later", "%RETRY%g")) if level else "t"
            how = {} if not level else {"delay": 30.0} if level == 9 else {"delay_level": level}
            try:
                self.store.put(Message(
                    topic=topic, body=body if level else bytes(self.random.randrange(3000)),
                    properties={"UNIQ_KEY": f"k{len(self.due)}"}, **how))
            except StoreError:
                return
            if level:
                self.due[body] = self.clock.now_ms() + (30_000 if level == 9 else LEVELS[level])

    def pass_time(self):
        for number in range(self.random.randrange(5, 60)):
            self.clock.advance(1000)
            if number % 10 == 9:
                self.store.flush()
                for name in ("DiskCheckService", "DelayOffsetPersist"):
                    self.scheduler.steps[name]()
            for name in SERVICES:
                while name in self.scheduler.steps and self.scheduler.steps[name]():
                    pass

    def fill_or_free(self):
        self.set_used(self.random.choice((10, 10, 87, 95)))

    def count(self):
        stats = self.store.stats()
        self.lost += stats["forcedDeletedTimers"]
        self.handed_over += stats["scheduleHandedOver"]

    def stop(self):
        self.count()
        if self.random.randrange(2):
            self.store.close()
        else:
            self.kills += 1
            self.files = self.files.killed()
        self.open()


@pytest.mark.parametrize("wheel", [True, False])
@pytest.mark.parametrize("seed", range(SEED, SEED + 3))
def test_a_waiting_message_is_delivered_or_reported_lost_and_never_early(seed, wheel):
    world = World(seed, wheel=wheel)
    actions = [world.put] * 8 + [world.pass_time] * 6 + [world.fill_or_free] * 2 + [world.stop]
    for _ in range(120):
        world.random.choice(actions)()
    world.set_used(10)
    for _ in range(30):
        world.pass_time()
    world.count()
    case = f"SEED={seed} wheel={wheel}"
    missing = world.due.keys() - world.delivered.keys()
    assert len(missing) <= world.lost, (case, sorted(missing), world.lost)
    early = {body for body, times in world.delivered.items() if min(times) < world.due[body]}
    assert early == set(), case
    twice = {body for body, times in world.delivered.items() if len(times) > 1}
    assert not twice or world.kills, (case, twice)
    assert len(world.delivered) > 20, case
    world.store.close()
