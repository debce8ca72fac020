"""A disk that is full from some write on, for a while: what a store does then, and afterwards."""

import collections
import errno

from read_there import read_there

from tailrace import Message, MessageStore, StoreConfig
from tailrace.env.entropy import SeededEntropy
from tailrace.errors import StoreError
from tailrace.node.store_opening import StoreParts
from tailrace.testing import CrashFileSystem, ManualScheduler, SimClock

SIZE = 8192
INTERVAL_MS = 10_000
FULL_MS = 25_000
ROUNDS = 110
GROWING = {"create", "allocate", "truncate", "pwrite", "rename", "mkdir"}
CONFIG = StoreConfig(
    mapped_file_size_commit_log=SIZE, mapped_file_size_consume_queue=200, max_hash_slot_num=8,
    max_index_num=64, commit_log_allocate_step=4096, file_reserved_time=30 / 3600,
    delete_when=";".join(map(str, range(24))), delete_rate=0, commit_log_roll_time=0.0,
    clean_resource_interval=INTERVAL_MS, clean_file_forcibly_enable=False,
    mapped_file_size_timer_log=52 * 40 + 30)
SERVICES = (
    ("AllocateMappedFileService", 20), ("ReputMessageService", 50), ("FlushRealTimeService", 500),
    ("FlushConsumeQueueService", 1000), ("TimerEnqueueService", 1000), ("TimerDequeueService", 1000),
    ("ScheduleMessageService", 1000), ("DelayOffsetPersist", INTERVAL_MS),
    ("TimerFlushService", INTERVAL_MS), ("DiskCheckService", INTERVAL_MS), ("TopicRetentionService", INTERVAL_MS),
    ("CleanCommitLogService", 1000), ("EmptyTrashService", 1000), ("CleanConsumeQueueService", 1000))


class Violation(AssertionError):
    """What should not be."""


class Life:
    """A store at work: puts, keys, timers, levels, deletion by time, a purge, two opens. One case."""

    def __init__(self, full_from=1 << 60):
        self.clock = SimClock()
        self.files = CrashFileSystem(self.before)
        self.files.disk_usage = self.disk_usage
        self.full_from = full_from
        self.full_since = None
        self.growing = 0
        self.acknowledged = {}
        self.counts = collections.Counter()
        self.purged_until = {}

    # -- the disk

    @property
    def is_full(self):
        return self.full_since is not None and self.clock.now_ms() < self.full_since + FULL_MS

    def before(self, _number, name, path):
        if name not in GROWING:
            return
        self.growing += 1
        if self.growing > self.full_from and self.full_since is None:
            self.full_since = self.clock.now_ms()
        if self.is_full:
            self.counts["operations refused"] += 1
            raise OSError(errno.ENOSPC, "No space left on device", path)

    def disk_usage(self, _path):
        usage = self.files.usage
        usage.total = 1 << 30
        usage.free = usage.usable = 0 if self.is_full else 1 << 29
        return usage

    # -- the work

    def open(self):
        self.scheduler = ManualScheduler()
        try:
            self.store = MessageStore.open(
                "/s", config=CONFIG,
                parts=StoreParts(clock=self.clock, file_system=self.files, scheduler=self.scheduler,
                    entropy=SeededEntropy(3)))
        except (StoreError, OSError) as error:
            self.told(error, "open")
            return False
        return True

    @property
    def read_only(self):
        """Whether the store was opened on a full disk: then it takes nothing until it is reopened."""
        return bool(self.store.recovery_report.get("readOnly"))

    def open_at_last(self):
        """Open; on a full disk again when there is room."""
        while not self.open():
            if not self.is_full:
                raise Violation("an open fails though there is room")
            self.clock.advance(FULL_MS)
        if self.read_only and not self.is_full:
            raise Violation("read-only though there is room")

    def told(self, error, what):
        """Every error is one that says what is the matter."""
        text = str(error)
        since = self.clock.now_ms() - (self.full_since or 0) - FULL_MS
        expected = what == "step" or (what == "put" and (since <= INTERVAL_MS or self.read_only))
        if not self.is_full and not expected:
            raise Violation(f"{what} fails though there is room: {error!r}")
        if not any(word in text for word in ("No space left", "disk full", "no room")):
            raise Violation(f"{what}: {error!r} does not say that the disk is full")
        self.counts[f"{what}: {type(error).__name__}"] += 1

    def put(self, number):
        topic = ("a", "b")[number % 2]
        delay = 5.0 if number % 60 == 59 else None
        level = 2 if number % 60 == 29 else 0
        body = b"%d" % number + bytes(200 + number * 37 % 700)
        try:
            result = self.store.put(Message(
                topic=topic, body=body, keys=[f"k{number}"], delay=delay, delay_level=level))
        except (StoreError, OSError) as error:
            self.told(error, "put")
            self.counts["puts refused"] += 1
            return
        self.counts["puts acknowledged"] += 1
        if delay is None and not level:
            self.acknowledged[topic, result.queue_offset] = body, result.phy_offset, self.clock.now_ms()

    def run_services(self, ms):
        for passed in range(500, ms + 1, 500):
            self.clock.advance(500)
            for name, period in SERVICES:
                if passed % max(period, 500) and period < INTERVAL_MS:
                    continue
                if period >= INTERVAL_MS and self.clock.now_ms() // 500 * 500 % period:
                    continue
                step = self.scheduler.steps.get(name)
                try:
                    for _ in range(50):
                        if step is None or not step():
                            break
                except (StoreError, OSError) as error:
                    self.told(error, "step")

    def run(self):
        """All of it; leaves the store closed."""
        self.open_at_last()
        for number in range(ROUNDS):
            for part in range(3):
                self.put(3 * number + part)
            if number == 70:
                self.purge()
            if number in {40, 90}:
                self.reopen()
            self.run_services(1000)
            if number % 10 == 9:
                self.check(f"round {number}")
        self.end()

    def dispatch(self):
        while self.scheduler.steps["ReputMessageService"]():
            pass

    def purge(self):
        try:
            self.dispatch()
            [(_, high)] = self.store.retention.topics.purge("b").values()
            self.purged_until = {"b": high}
            self.counts["purges"] += 1
        except (StoreError, OSError) as error:
            self.told(error, "purge")

    def reopen(self):
        self.store.close()
        self.open_at_last()
        self.check("after an open")

    def end(self):
        """Room is back: one interval later puts are taken, and nothing is missing, ever."""
        if self.is_full:
            self.clock.advance(FULL_MS)
        opened_full = self.read_only
        self.run_services(INTERVAL_MS)
        if self.full_since is not None and self.clock.now_ms() < self.full_since + FULL_MS + INTERVAL_MS:
            self.run_services(FULL_MS + INTERVAL_MS)  # it became full just now
        if not self.store.is_writeable:
            if not opened_full:
                raise Violation(f"not writable one interval later: {self.store.not_writeable_reason}")
            self.counts["opened read-only on the full disk"] += 1
            self.reopen()
        self.put(1)
        self.run_services(2000)
        self.check("at the end")
        self.store.close()
        self.full_since = None
        self.full_from = 1 << 60
        self.open_at_last()
        self.check("after the last open")
        self.put(2)
        self.store.close()

    def check(self, when):
        """Nothing that was acknowledged and is young is missing, and nothing is wrong."""
        if self.is_full:
            return
        low, now = self.store.min_phy_offset, self.clock.now_ms()
        for (topic, offset), (body, phy_offset, put_ms) in self.acknowledged.items():
            if offset < self.purged_until.get(topic, 0):
                continue
            if phy_offset < low:
                if put_ms > now - 30_000:
                    raise Violation(f"{when}: a young message is gone: {topic} {offset}")
                continue
            found = self.store.look_message_by_offset(phy_offset)
            if found is None or (found.body, found.queue_offset, found.topic) != (body, offset, topic):
                raise Violation(f"{when}: acknowledged and not there: {topic} {offset} at {phy_offset}")
        try:
            self.dispatch()
        except (StoreError, OSError) as error:
            self.told(error, "step")
            return
        for topic in ("a", "b"):
            for message in read_there(self.store, topic):
                known = self.acknowledged.get((topic, message.queue_offset))
                if known is not None and known[0] != message.body:
                    raise Violation(f"{when}: a wrong message at {topic} {message.queue_offset}")


def growing_operations():
    """How many operations of a life that meets no full disk take room."""
    life = Life()
    life.run()
    if not life.counts["puts acknowledged"] > 300 or life.counts["puts refused"]:
        raise Violation("the life itself does not work")
    return life.growing
