"""Rule F6 for every file: a failed sync of a promise is final, one of a hint costs nothing.

One life of a store touches every kind of file. For each kind of sync in it, the first and the last one
(in a short run one of them) fail with EIO, and then: nothing is acknowledged any more, the reason is
logged, no later sync is attempted, and an open after a power loss has all that was acknowledged.
"""

from __future__ import annotations

import errno
import re
from pathlib import Path

import pytest
from long_runs import LONG
from read_there import read_there

from tailrace import FlushDiskType, Message, MessageStore, StoreConfig
from tailrace.config import BrokerConfig
from tailrace.env.entropy import SeededEntropy
from tailrace.errors import StoreError
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.store_opening import StoreParts
from tailrace.node.subscription_group import SubscriptionGroupManager
from tailrace.store.default_message_store import HINTS
from tailrace.testing import CrashFileSystem, FaultyFileSystem, ManualScheduler, SimClock

pytestmark = pytest.mark.crash

HOUR_MS = 3_600_000
CONFIG = StoreConfig(
    mapped_file_size_commit_log=8192, mapped_file_size_consume_queue=200, max_hash_slot_num=16,
    max_index_num=32, flush_disk_type=FlushDiskType.SYNC_FLUSH, commit_log_allocate_step=4096,
    mapped_file_size_timer_log=52 * 8 + 30, file_reserved_time=1.0, delete_rate=0,
    delete_when=";".join(map(str, range(24))), commit_log_roll_time=0.0, message_delay_level="1s 5s")
CLOCK_START = 1_700_000_000_000
DOCUMENT = Path(__file__).parents[2] / "docs/contributing/design/crash-consistency.md"


def kind_of(path):
    """The path with its numbers and names left out, as the document's table has it."""
    path = path.removeprefix("/s/").removeprefix("/s")
    path = re.sub(r"consumequeue/[^/]+/\d+", "consumequeue/TOPIC/QUEUE", path)
    path = re.sub(r"consumequeue/[^/]+$", "consumequeue/TOPIC", path)
    path = re.sub(r"\d{17,20}", "NUMBER", path)
    path = re.sub(r"progress\.\d", "progress.N", path)
    return re.sub(r"NUMBER-[0-9a-f]{8}\.bin", "NUMBER.bin", path) or "."


class Life:
    """A store at work; ``fail`` is (operation, kind, the how many-th of them)."""

    def __init__(self, fail=None):
        self.clock = SimClock(CLOCK_START)
        self.crash = CrashFileSystem()
        self.fail, self.seen, self.failed_at, self.after = fail, [], None, []
        self.files = FaultyFileSystem(self.crash, self.error_of)
        self.acked, self.sent, self.timers, self.errors = [], set(), {}, []
        self.number = self.refused = self.hint_failures = 0
        self.store = None

    def error_of(self, _number, name, path):
        if name not in ("sync_data", "sync_dir"):
            return 0
        if self.failed_at is not None:
            self.after.append((name, path))
            return 0
        self.seen.append((name, kind_of(path)))
        if self.fail is not None and self.fail[:2] == self.seen[-1] and (
            self.seen.count(self.seen[-1]) == self.fail[2]
        ):
            self.failed_at = path
            return errno.EIO
        return 0

    # -- steps, each of which may be refused

    def attempt(self, call, *args, **kwargs):
        """Call; False after an error, which must have a cause, or when it went well and must not."""
        failed_before = self.failed_at is not None
        try:
            call(*args, **kwargs)
        except (StoreError, OSError) as error:
            self.errors.append(error)
            assert self.failed_at is not None, f"{call} fails without a reason: {error!r}"
            return True
        return not (failed_before and self.is_promise)

    @property
    def is_promise(self):
        return not (self.failed_at or "").endswith(HINTS)

    def open(self):
        self.store = MessageStore.open(
            "/s", config=CONFIG,
            parts=StoreParts(services=False, clock=self.clock, file_system=self.files,
                entropy=SeededEntropy(self.clock.now_ms())))
        self.steps = ManualScheduler()
        self.store.timer_services.start(self.steps)
        self.store.retention.start(self.steps)
        files, config_dir = self.store.file_system, self.store.config_dir
        self.offsets = ConsumerOffsetManager(files, config_dir, self.clock)
        self.offsets.load()
        self.groups = SubscriptionGroupManager(files, config_dir, BrokerConfig(), self.clock)

    def put(self, topic="orders", size=400, delay=None, level=0):
        self.number += 1
        body = b"%06d" % self.number
        failed_before = self.failed_at is not None
        message = Message(topic=topic, body=body.ljust(size, b"."), keys=[f"k{self.number}"],
                          delay=delay, delay_level=level)
        self.sent.add(body)
        try:
            self.store.put(message)
        except (StoreError, OSError) as error:
            self.errors.append(error)
            self.refused += 1
            assert self.failed_at is not None, f"refused without a reason: {error!r}"
            return
        assert not (failed_before and self.is_promise), f"acknowledged after {self.fail}"
        self.acked.append((topic, body, bool(delay or level)))

    def step(self, *names):
        for name in names:
            self.attempt(self.steps.steps[name])

    def run(self):
        """Open, work, close, open again with a torn end, work; what is refused is refused."""
        try:
            self.open()
            self.work()
            self.store.close()
            self.hint_failures += self.store.inner.syncs.hint_failures
            if self.failed_at is not None and self.is_promise:
                return  # what the page cache of this run still shows may not be on the disk
            self.clock.advance(1000)
            tear(self.crash)
            self.open()
            self.put()
            self.store.close()
            self.hint_failures += self.store.inner.syncs.hint_failures
        except (StoreError, OSError) as error:
            self.errors.append(error)
            assert self.failed_at is not None, repr(error)

    def work(self):
        store = self.store
        for number in range(24):
            self.put(("orders", "other")[number % 2])
            if number % 2:
                self.put("late", 50, delay=2.0 + number)
            if number == 9:
                self.put("level", 50, level=1)
                self.attempt(store.wait_dispatched)
            self.attempt(store.wait_dispatched)
            self.step("TimerEnqueueService", "TimerDequeueService", "ScheduleMessageService")
            if number % 4 == 3:
                self.clock.advance(1500)
                self.step("TimerFlushService", "TimerMetricsPersist", "DelayOffsetPersist",
                          "TimerLogCleanService")
                self.attempt(store.inner.flush_consume_queue.flush, 0)
                self.offsets.commit("G", "orders", 0, number)
                self.attempt(self.offsets.persist_if_changed)
        self.attempt(self.groups.ensure_system_groups)
        self.clock.advance(40_000)
        for _ in range(8):
            self.attempt(store.wait_dispatched)
            self.step("TimerEnqueueService", "TimerDequeueService", "TimerFlushService",
                      "TimerLogCleanService", "ScheduleMessageService")
        self.attempt(store.wait_dispatched)
        self.put("gone")
        self.attempt(store.wait_dispatched)
        assert self.attempt(store.delete_topics, {"gone"}), "a topic is deleted after the failure"
        self.attempt(store.inner.flush_consume_queue.flush, 0)


def tear(files):
    """Break the last record of the log and mark the store as a killed one."""
    names = [n for n in files.list("/s/commitlog") if n.isdigit()]
    for name in reversed(names):
        file = files.open(f"/s/commitlog/{name}", writable=True)
        data = file.pread(8192, 0).rstrip(b"\0")
        if data:
            file.pwrite(b"torn" * 30, len(data))
            file.sync_data()
            break
    files.open("/s/abort", writable=True, create=True).sync_data()
    files.sync_dir("/s")


def whole_life():
    life = Life()
    life.run()
    return life


LIFE = whole_life()
CASES = sorted({
    (*sync, number) for at, sync in enumerate(sorted(set(LIFE.seen)))
    for number in ((1, LIFE.seen.count(sync)) if LONG else (LIFE.seen.count(sync) if at % 2 else 1,))})
PROMISES = [c for c in CASES if not f"/s/{c[1]}".replace(".N", ".0").endswith(HINTS)]
HINT_CASES = [c for c in CASES if c not in PROMISES]


def test_the_life_touches_every_kind_of_file():
    kinds = {kind for _, kind in LIFE.seen}
    assert kinds >= {
        ".", "abort", "commitlog", "commitlog/NUMBER", "consumequeue/TOPIC/QUEUE",
        "consumequeue/TOPIC/QUEUE/NUMBER", "index", "index/NUMBER", "checkpoint", "tailrace",
        "tailrace/progress.N", "timerlog", "timerlog/NUMBER", "timerwheel", "config",
        "config/timercheck", "config/timermetrics.tmp", "config/topics.json.tmp",
        "config/subscriptionGroup.json.tmp", "config/consumerOffset.json.tmp",
        "config/delayOffset.json.tmp", "config/tailrace-min-offsets.json.tmp",
        "tailrace/format.json.tmp", "tailrace/quarantine", "tailrace/quarantine/NUMBER.bin",
        "tailrace/quarantine/manifest.jsonl"}, sorted(kinds)
    assert not LIFE.errors


def test_the_document_says_of_every_file_what_its_sync_is_for():
    text = DOCUMENT.read_text()
    for kind in {kind for _, kind in LIFE.seen}:
        assert f"`{kind.removesuffix('.tmp')}`" in text, f"{kind} is not in {DOCUMENT.name}"


@pytest.mark.parametrize("case", PROMISES, ids=str)
def test_a_failed_sync_of_a_promise_is_final(case, caplog):
    life = Life(case)
    life.run()
    assert life.failed_at is not None, "the sync never happened"
    if life.store is not None and life.store.not_writeable_reason != "the store is closed":
        assert not life.store.is_writeable
    assert any(life.failed_at in str(error) for error in life.errors) or not life.refused
    assert life.failed_at in caplog.text, "the log does not say which file"
    after = [path for _, path in life.after if not path.endswith(HINTS)]
    assert not after, f"synced after the failure: {after[:3]}"
    check(life)


@pytest.mark.parametrize("case", HINT_CASES, ids=str)
def test_a_failed_sync_of_a_hint_is_counted_and_the_file_is_written_again(case):
    life = Life(case)
    life.run()
    assert life.failed_at is not None
    assert len(life.acked) == len(LIFE.acked), "a hint refuses no put"
    assert life.hint_failures == 1
    if case[2] == 1:
        again = [path for name, path in life.after if name == "sync_data"]
        assert life.failed_at in again or "progress" in case[1], "never written again"
    check(life)


def check(life):
    """Everything acknowledged is there after a power loss, and opening again works."""
    down = life.crash.power_lost(SeededEntropy(5), 0)
    life.clock.advance(1000)
    with MessageStore.open(
        "/s", config=CONFIG,
        parts=StoreParts(services=False, clock=life.clock, file_system=down, entropy=SeededEntropy(9)),
    ) as store:
        assert not store.read_only
        steps = ManualScheduler()
        store.timer_services.start(steps)
        life.clock.advance(100_000)
        for _ in range(20):
            store.wait_dispatched()
            for name in ("TimerEnqueueService", "TimerDequeueService", "ScheduleMessageService"):
                steps.steps[name]()
        store.wait_dispatched()
        found = {}
        for topic, queue_id, *_ in store.queues():
            for message in read_there(store, topic, queue_id):
                found.setdefault((topic, message.body[:6]), []).append(message.queue_offset)
        deleted = "gone" not in {topic for topic, *_ in store.queues()}
        for topic, body, _waits in life.acked:
            if topic == "gone" and deleted:
                continue
            assert len(found.get((topic, body), [])) == 1, (life.fail, topic, body, found.get((topic, body)))
        assert {body for topic, body in found if topic in ("orders", "other", "late", "level")} <= life.sent
        store.put(Message(topic="orders", body=b"after"))
