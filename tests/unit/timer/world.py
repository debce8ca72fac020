"""A store with timers and delay levels on a simulated machine: one thread, one clock, files that can crash."""

import contextlib
import errno
import os

from tailrace.config import StoreConfig
from tailrace.env.entropy import SeededEntropy
from tailrace.formats.commitlog import decode_message
from tailrace.kernels.properties import encode_properties
from tailrace.model import MessageExtBrokerInner, PutMessageResult
from tailrace.node.timers import DelayOffsetManager
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.store.dispatch import parse_delay_levels
from tailrace.store.recovery.passes import RecoveryOptions
from tailrace.store.walk.scan import has_unit
from tailrace.testing import CrashFileSystem, SimClock
from tailrace.timer.put_hook import TimerPutHook
from tailrace.timer.schedule_message_service import ScheduleMessageService
from tailrace.timer.timer_message_store import TimerMessageStore

ROOT = "/store"
SLOTS = 512
CONFIG = StoreConfig(
    mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=20 * 2000,
    max_hash_slot_num=64, max_index_num=4096, commit_log_allocate_step=1 << 16,
    mapped_file_size_timer_log=52 * 40 + 30, timer_roll_window_slot=60,
    message_delay_level="1s 5s 10s 1m")
LEVELS_MS = parse_delay_levels(CONFIG.message_delay_level)
START = 1_700_000_000_000


class ReadFaults:
    """Reads of the log, of the timer log, of queues and of the index that fail while a test lets them.

    ``error_of`` gets what is read (log, timerlog, queue, index), a position and a size, and returns an errno or 0.
    """

    def __init__(self):
        self.failed = 0
        self.end()

    @property
    def active(self):
        return self.error_of != self._none

    def check(self, what, position, size):
        number = self.error_of(what, position, size)
        if number:
            self.failed += 1
            raise OSError(number, os.strerror(number))

    def wrap(self, what, owner, name):
        inner = getattr(owner, name)

        def read(position, size, *more, **options):
            self.check(what, position, size)
            return inner(position, size, *more, **options)

        setattr(owner, name, read)

    def at_random(self, entropy, percent, numbers=(errno.EMFILE, errno.EIO), what=("log",)):
        """Let that share of the reads fail."""
        def error_of(kind, _position, _size):
            if kind not in what or entropy.randrange(100) >= percent:
                return 0
            return numbers[entropy.randrange(len(numbers))]

        self.error_of = error_of

    def under(self, position, number=errno.EIO):
        """Let every read fail that covers this position of the log, as a bad sector does."""
        self.error_of = lambda what, at, size: (
            number if what == "log" and at <= position < at + max(size, 1) else 0)

    def end(self):
        self.error_of = self._none

    @contextlib.contextmanager
    def paused(self):
        """No read fails in the context, for what a test looks at."""
        kept, self.error_of = self.error_of, self._none
        try:
            yield
        finally:
            self.error_of = kept

    @staticmethod
    def _none(what, position, size):
        return 0


class World:
    def __init__(
        self, files=None, clock=None, config=CONFIG, *, seed=1, slots=SLOTS, odd=False, targets=None,
    ):
        self.slots, self.odd = slots, odd
        self.reads = ReadFaults()
        self.targets = targets
        self.files = files or CrashFileSystem()
        self.clock = clock or SimClock(START)
        self.config = config
        self.entropy = SeededEntropy(seed)
        self.number = 0
        self.due = {}
        self.open()

    def open(self, *, clean=False):
        for name in ("commitlog", "config"):
            self.files.makedirs(f"{ROOT}/{name}")
        self.store = DefaultMessageStore(self.clock, self.files, self.config, ROOT, lambda _: False)
        self.store.load(RecoveryOptions(last_exit_ok=clean))
        self.reads.wrap("log", self.store.commit_log.queue, "read")
        self._wrap_queues()
        self.reads.wrap("index", self.store.reader, "query")
        more = {"targets": self.targets} if self.targets is not None else {}
        self.timers = TimerMessageStore(
            self.clock, self.files, self.config, self.store, self.slots, **more)
        self.reads.wrap("timerlog", self.timers.timer_log.files, "read")
        self.timers.load()
        self.offsets = DelayOffsetManager(self.files, f"{ROOT}/config", self.clock)
        self.offsets.load()
        self.schedule = ScheduleMessageService(
            self.clock, self.store, parse_delay_levels(self.config.message_delay_level), self.offsets,
            **more)
        self.schedule.load()
        self.hook = TimerPutHook(self.clock, self.entropy, self.config, self.timers.slot_num)
        return self

    def _wrap_queues(self):
        get = self.store.queues.get

        def wrapped(topic, queue_id):
            queue = get(topic, queue_id)
            if queue is not None and not hasattr(queue, "has_faults"):
                queue.has_faults = True
                self.reads.wrap("queue", queue, "units")
            return queue

        self.store.queues.get = wrapped

    def send(self, topic="T", queue_id=0, body=None, **properties):
        """Send with a unique key; notes when it is due if it waits."""
        self.number += 1
        key = f"K{self.number:06d}"
        texts = {"UNIQ_KEY": key, **{k: str(v) for k, v in properties.items()}}
        if self.odd:  # the kernel reads ASCII only
            texts["KEYS"] = "\u00e9"
        now = self.clock.now_ms()
        message = MessageExtBrokerInner(
            topic, queue_id, body or key.encode(), encode_properties(texts), born_timestamp=now)
        refused = self.hook.handle(message)
        result = refused if isinstance(refused, PutMessageResult) else self.store.put(message)
        if result.status.appended and "TIMER_DEL_UNIQKEY" not in texts:
            due = (
                now + LEVELS_MS[int(texts["DELAY"]) - 1] if texts.get("DELAY", "") in ("1", "2", "3", "4")
                else now + int(texts["TIMER_DELAY_SEC"]) * 1000 if "TIMER_DELAY_SEC" in texts
                else now + int(texts["TIMER_DELAY_MS"]) if "TIMER_DELAY_MS" in texts
                else int(texts.get("TIMER_DELIVER_MS", now)))
            self.due[key] = due
        return key, result

    def recall(self, key, topic="T", *, bare=False):
        return self.send(
            topic, body=b"0", TIMER_DELIVER_MS=self.due[key],
            TIMER_DEL_UNIQKEY=key if bare else f"{topic}+{key}")[1]

    def steps(self):
        """One turn of the services; as in a scheduler, a step that raises OSError is tried again in the next turn."""
        for step in (
            self.store.reput.step, self.timers.enqueue_step, self.timers.dequeue_step, self.schedule.step,
            self.store.reput.step,
        ):
            try:
                while step():
                    pass
            except OSError:
                assert self.reads.failed

    def run(self, ms, step=1, flush_every=1000):
        """Let time pass, the services running at every step."""
        done = 0
        while done < ms:
            part = min(step, ms - done)
            self.clock.advance(part)
            done += part
            self.steps()
            if self.clock.now_ms() % flush_every < part:
                self.flush()

    def flush(self):
        self.store.flush_commit_log.flush()
        self.timers.flush_step()
        self.offsets.persist_if_changed()
        if not self.reads.active:
            self.store.flush_consume_queue.flush(0)

    def close(self):
        self.store.flush_commit_log.flush()
        self.offsets.persist()
        self.timers.close()
        assert self.store.close()

    def records(self, topic="T"):
        with self.reads.paused():
            return self._records(topic)

    def _records(self, topic):
        while self.store.reput.step():
            pass
        found = []
        for (name, _), queue in self.store.queues.table.items():
            if name == topic:
                for offset in range(queue.min_offset, queue.max_offset):
                    unit = queue.unit(offset)
                    data = self.store.commit_log.read(unit.phy_offset, unit.size)
                    if has_unit(data, unit.phy_offset):  # else the place of a lost message
                        found.append(decode_message(data))
        return found

    def delivered(self, topic="T"):
        """Store times by unique key, in order."""
        found = {}
        for message in self.records(topic):
            found.setdefault(message.unique_key, []).append(message.store_timestamp)
        return found
