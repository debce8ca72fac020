"""A store on a simulated disk and clock, whose services the test runs."""

from __future__ import annotations

from datetime import datetime

from tailrace import Message, MessageStore, StoreConfig
from tailrace.node.store_opening import StoreParts
from tailrace.testing import CrashFileSystem, ManualScheduler, SimClock

HOUR = 3_600_000
SIZE = 8192
MINUTE = 60_000


def at_hour(hour):
    """A time at which the local clock shows a full hour."""
    return round(datetime(2026, 3, 10, hour).timestamp() * 1000)  # noqa: DTZ001 - local hours


class Place:
    """A store on a simulated disk and clock, with messages of about a kilobyte."""

    def __init__(self, *, hour=12, files=None, **config):
        self.clock = SimClock(at_hour(hour))
        self.files = files or CrashFileSystem()
        self.scheduler = ManualScheduler()
        self.config = StoreConfig(**{
            "mapped_file_size_commit_log": SIZE, "mapped_file_size_consume_queue": 100,
            "max_hash_slot_num": 16, "max_index_num": 20, "commit_log_allocate_step": 4096,
            "mapped_file_size_timer_log": 52 * 40 + 30, "delete_rate": 0, "commit_log_roll_time": 0.0,
            **config})
        self.open()

    def open(self):
        self.store = MessageStore.open(
            "/s", config=self.config,
            parts=StoreParts(clock=self.clock, file_system=self.files, scheduler=self.scheduler))
        self.log = self.store.inner.commit_log
        self.clean = self.store.retention.clean_commit_log

    def fill(self, segments, topic="t", step_ms=1000):
        """Put until the log has that many files more."""
        want = max(len(self.log.queue.files), 1) + segments
        while len(self.log.queue.files) < want:
            self.store.put(Message(topic=topic, body=bytes(900), keys=["k"]))
            self.clock.advance(step_ms)
        self.dispatch()
        self.store.flush()

    def dispatch(self):
        """Have everything in its queue."""
        while self.scheduler.steps["ReputMessageService"]():
            pass

    def run(self, ms, step_ms=100, only=None):
        """Let services run for a time."""
        for number in range(ms // step_ms):
            self.clock.advance(step_ms)
            for name in only or (
                "DiskCheckService", "CleanCommitLogService", "CleanConsumeQueueService",
                "EmptyTrashService"
            ):
                if name == "DiskCheckService" and (number + 1) * step_ms % 10_000:
                    continue
                while self.scheduler.steps[name]():
                    pass

    def run_timers(self, ms=0):
        """Let the timer services work, for a time."""
        for _ in range(max(ms // 1000, 1)):
            self.clock.advance(1000 if ms else 0)
            for name in ("ReputMessageService", "TimerEnqueueService", "TimerDequeueService",
                         "ScheduleMessageService", "ReputMessageService"):
                while name in self.scheduler.steps and self.scheduler.steps[name]():
                    pass

    def names(self):
        return [f.path for f in self.log.queue.files]

    def on_disk(self):
        return ["/s/commitlog/" + n for n in self.files.list("/s/commitlog")
                if len(n) == 20 and f"/s/commitlog/{n}" in self.names()]

    def use(self, percent):
        total = 1 << 40
        self.files.usage.total = total
        self.files.usage.free = self.files.usage.usable = total - total * percent // 100

    def read(self, path):
        """The bytes of a file."""
        file = self.files.open(path)
        try:
            return file.pread(file.size(), 0)
        finally:
            file.close()

    def write(self, path, data):
        """Write a file; its directory is made first."""
        self.files.makedirs(path.rpartition("/")[0])
        file = self.files.open(path, writable=True, create=True)
        try:
            file.truncate(0)
            file.pwrite(data, 0)
        finally:
            file.close()
