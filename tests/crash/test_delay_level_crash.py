"""A crash at every operation of a forced deletion of a file in which delayed messages wait."""

from __future__ import annotations

import collections
import importlib.util
import pathlib

import pytest
from long_runs import some
from read_there import read_there

from tailrace import Message, MessageStore, StoreConfig
from tailrace.env.entropy import SeededEntropy
from tailrace.node.retention.timer_rescue import TimerRescue
from tailrace.node.store_opening import StoreParts
from tailrace.testing import CrashFileSystem, ManualScheduler, SimClock

_spec = importlib.util.spec_from_file_location("lives", pathlib.Path(__file__).with_name("lives.py"))
lives = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(lives)
pytestmark = pytest.mark.crash

DELAY_MS = 600_000
CONFIG = StoreConfig(
    mapped_file_size_commit_log=8192, mapped_file_size_consume_queue=200, max_hash_slot_num=16,
    max_index_num=100, commit_log_allocate_step=4096, delete_rate=0,
    commit_log_roll_time=0.0, mapped_file_size_timer_log=52 * 40 + 30,
    message_delay_level="1s 60s 600s")
SERVICES = ("ReputMessageService", "TimerEnqueueService", "TimerDequeueService",
            "ScheduleMessageService", "ReputMessageService")


class Life:
    """Five messages wait ten minutes in the first file, which is deleted because space is short."""

    def __init__(self):
        self.clock = SimClock()
        self.due = {}
        self.began = 0

    def open(self, files, used):
        files.usage.total = 1 << 40
        files.usage.free = files.usage.usable = (1 << 40) * (100 - used) // 100
        self.scheduler = ManualScheduler()
        return MessageStore.open(
            "/s", config=CONFIG,
            parts=StoreParts(clock=self.clock, file_system=files, scheduler=self.scheduler, entropy=SeededEntropy(7)))

    def run_services(self, *names):
        for name in names:
            while self.scheduler.steps[name]():
                pass

    def run(self, files):
        store = self.open(files, 10)
        try:
            for number in range(5):
                topic = ("later", "%RETRY%orders")[number % 2]
                body = b"%d" % number
                self.due[body] = self.clock.now_ms() + DELAY_MS
                store.put(Message(topic=topic, body=body, delay_level=3,
                                  properties={"UNIQ_KEY": f"key{number}"}))
                self.clock.advance(300)
            for _ in range(12):
                store.put(Message(topic="t", body=bytes(1500)))
            self.run_services(*SERVICES)
            store.flush()
            self.run_services("DelayOffsetPersist")
            self.began = files.operations
            files.usage.free = files.usage.usable = 1 << 30
            self.clock.advance(61_000)
            self.run_services("CleanCommitLogService", *SERVICES, "DelayOffsetPersist",
                              "CleanConsumeQueueService", "EmptyTrashService")
            self.ended = files.operations
        finally:
            files.locked.clear()

    def check(self, files, what):
        """Each comes, in time and once."""
        store = self.open(files, 10)
        while self.clock.now_ms() < max(self.due.values()) + 5000:
            soon = self.clock.now_ms() > min(self.due.values()) - 20_000
            self.clock.advance(1000 if soon else 20_000)
            self.run_services(*SERVICES)
        found = [(m.body, m.store_timestamp) for topic in ("later", "%RETRY%orders")
                 for m in read_there(store, topic)]
        assert collections.Counter(body for body, _ in found) == dict.fromkeys(self.due, 1), what
        for body, at in found:
            assert self.due[body] <= at <= self.due[body] + 2000, (what, body)
        store.close()


def operations():
    life, seen = Life(), []
    files = CrashFileSystem(lambda _number, name, path: seen.append((name, path)))
    life.run(files)
    assert ("remove", "/s/tailrace/trash/" + "0" * 20) in seen
    assert min(n for n in files.list("/s/commitlog") if n.isdigit()) != "0" * 20
    return life.began, life.ended


@pytest.mark.parametrize("keep", [None, 50])
def test_a_crash_between_the_copies_and_the_deletion_loses_nothing_and_repeats_nothing(keep):
    first, last = operations()
    assert last - first > 10
    for place in some(range(first, last), 2, keep is not None):
        lives.crash_at(Life, place, keep)


def test_the_sweep_sees_what_is_not_written_again(monkeypatch):
    """A planted bug: the reference's behaviour."""
    monkeypatch.setattr(TimerRescue, "rewrite", lambda *_: (0, 0))
    first, last = operations()
    with pytest.raises(AssertionError):
        lives.crash_at(Life, last - 1, None)
