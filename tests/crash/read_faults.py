"""Reads that fail: a store at work with every service, in which one read fails once, or one record for good.

A read is a call that changes nothing: ``open`` of a file that exists, ``pread``, ``map``, ``size``, ``stat``,
``exists``, ``list``. After the fault nothing is missing, nothing is there twice, nothing waits, and the store takes
messages. Used by the tests beside this file, which run a part of the places of the code that read, and by
tools/crash_sweep.py, which runs all of them.
"""

from __future__ import annotations

import collections
import dataclasses
import errno
import sys
from functools import partial
from unittest import mock

from read_there import query_there, read_there

from tailrace import Message, MessageStore, StoreConfig
from tailrace.doctor.verify import verify
from tailrace.env.entropy import SeededEntropy
from tailrace.errors import StoreError
from tailrace.formats.commitlog import encode_batch
from tailrace.kernels.properties import encode_properties
from tailrace.model import MessageExtBrokerInner
from tailrace.node.store_opening import StoreParts
from tailrace.node.topic_config import TopicConfig
from tailrace.testing import CrashFileSystem, ManualScheduler, SimClock
from tailrace.timer.timer_message_store import TimerMessageStore

ROOT = "/store"
ERRORS = (errno.EMFILE, errno.ENOMEM, errno.EIO)
KEPT_MS = 12_000
ROUNDS = 26
CONFIG = StoreConfig(
    mapped_file_size_commit_log=8192, mapped_file_size_consume_queue=200, max_hash_slot_num=8, max_index_num=64,
    commit_log_allocate_step=4096, file_reserved_time=KEPT_MS / 3_600_000, commit_log_roll_time=0.0,
    delete_when=";".join(map(str, range(24))), delete_rate=0, clean_resource_interval=2000,
    clean_file_forcibly_enable=False, mapped_file_size_timer_log=52 * 10 + 30, timer_roll_window_slot=20,
    timer_max_delay_sec=120, message_delay_level="1s 3s", enable_lmq=True, enable_multi_dispatch=True,
    mapper_file_size_batch_consume_queue=46 * 5, compaction_cq_mapped_file_size=46 * 5,
    compaction_mapped_file_size=1150, max_message_size=1000, flush_consume_queue_thorough_interval=2000,
    max_open_files=4)  # fewer than there are: files are closed and opened again all the time
PLAIN = ("a", "b")
FOLLOWED = (*((topic, queue_id) for topic in PLAIN for queue_id in (0, 1)), ("B", 0), ("%LMQ%l", 0))
KEYS = 4


def small_wheel():
    """Let a timer wheel have 64 slots; the one of the format has 77 MB."""
    return mock.patch("tailrace.node.timers.TimerMessageStore", partial(TimerMessageStore, slots_total=64))


class ViolationError(AssertionError):
    """Something that a read that failed must not cause."""


class Life:
    """A store at work: puts, timers, levels, batches, keys, compaction, deletion by time, a purge, stops, a kill.

    ``fails(number, name, path, pos, n)`` returns the errno with which a read fails, 0 for success. ``delays`` is for
    timers and delay levels. ``bad`` is the number of a put whose record cannot be read for good, starting with the put.
    """

    def __init__(self, fails=lambda *_: 0, *, delays=True, bad=0):
        self.fails, self.delays, self.bad = fails, delays, bad
        self.bad_range = range(0)
        self.bad_body = b""
        self.config = dataclasses.replace(CONFIG, file_reserved_time=1.0) if bad else CONFIG
        self.clock = SimClock()
        self.files = CrashFileSystem(clock=self.clock)
        self.files.before_read, self.files.cold = self.read, True
        self.hits = self.number = self.reads = 0
        self.where = []
        """Name and path of the reads that failed."""
        self.sent, self.acknowledged, self.put_ms = set(), {}, {}
        self.followed = dict.fromkeys(FOLLOWED, 0)
        self.got = collections.defaultdict(collections.Counter)
        self.written, self.values, self.unsure_keys = 0, {}, set()
        self.is_new = True
        self.purged = 0
        self.failed_steps = set()
        """Services whose last step raised."""

    def read(self, _number, name, path, pos, n):
        number, self.reads = self.reads, self.reads + 1
        if self.bad and name == "map to read":
            raise OSError(errno.EACCES, "no mapping", path)  # so that full segments are read by calls
        error_number = self.fails(number, name, path, pos, n)
        if self.bad_body and name == "pread" and "/commitlog/" in path:
            at = int(path.rpartition("/")[2]) + pos
            if at < self.bad_range.stop and at + n > self.bad_range.start:
                error_number = errno.EIO
        if error_number:
            self.hits += 1
            self.where.append((name, path))
            raise OSError(error_number, "injected", path)

    def tried(self, what, action):
        """Return the result of an action, None if the fault came in it. Any other error is a violation."""
        hits = self.hits
        try:
            return action()
        except (StoreError, OSError) as error:
            if self.hits == hits:
                raise ViolationError(f"{what} fails although no read fails: {error!r}") from error
            if "/" not in str(error):
                raise ViolationError(f"{what}: {error!r} names no file") from error
            return None

    def again(self, what, action):
        """Do the same until no fault comes in it, with a record that cannot be read for good only once."""
        while True:
            hits = self.hits
            result = self.tried(what, action)
            if self.hits == hits or result is not None or self.bad_body:
                return result

    # -- the store

    def open(self):
        self.scheduler = ManualScheduler()
        with small_wheel():
            while True:
                hits = self.hits
                self.store = self.again("open", lambda: MessageStore.open(
                    ROOT, config=self.config,
                    parts=StoreParts(clock=self.clock, file_system=self.files, scheduler=self.scheduler,
                        entropy=SeededEntropy(3))))
                if not self.store.read_only:
                    break
                if self.hits == hits:
                    raise ViolationError(f"opened read-only although no read fails: {self.store.read_only}")
                self.store.close()  # an open that cannot read everything may be read-only; it says why
        self.failed_steps.clear()

    def close(self):
        hits = self.hits
        clean = self.tried("close", self.store.close)
        if not clean and self.hits == hits:
            raise ViolationError("a close is not clean although no read fails")

    def kill(self):
        reads = self.files.before_read
        self.files = self.files.killed()
        self.files.before_read = reads

    def step(self):
        """One step of each service, and more while it has work."""
        for name, step in list(self.scheduler.steps.items()):
            hits = self.hits
            try:
                for _ in range(50):
                    if not step():
                        break
            except (StoreError, OSError) as error:
                if self.hits == hits:
                    raise ViolationError(f"{name} fails although no read fails: {error!r}") from error
        if not self.store.is_writeable:
            raise ViolationError(f"not writable: {self.store.not_writeable_reason}")

    def dispatch(self):
        """Dispatch everything, as reads wait for it."""
        for _ in range(1000):
            if not self.store.dispatch_behind_bytes:
                return
            self.tried("dispatch", self.scheduler.steps["ReputMessageService"])
        raise ViolationError("dispatch waits")

    def run(self, ms):
        for _ in range(0, ms, 500):
            self.clock.advance(500)
            self.step()
        self.follow()

    # -- producers

    def put(self, topic, queue_id, *, lmq=False, **given):
        self.number += 1
        body = b"%06d" % self.number + bytes(150 + self.number * 37 % 400)
        self.sent.add(body)
        properties = {"INNER_MULTI_DISPATCH": "%LMQ%l"} if lmq else {}
        result = self.tried("put", lambda: self.store.put(
            Message(topic=topic, body=body, keys=[f"k{self.number}"], properties=properties, **given),
            queue_id=queue_id))
        if result is not None:
            self.acknowledged[body] = (topic, queue_id, f"k{self.number}", lmq, bool(given))
            self.put_ms[body] = self.clock.now_ms()
            self.spoil(body, result)

    def spoil(self, body, result):
        """Let the record of the put that ``bad`` names be one that cannot be read."""
        if self.bad and len(self.acknowledged) >= self.bad and not self.bad_body:
            self.dispatch()  # what cannot be dispatched is another matter
            self.bad_range = range(result.phy_offset, result.until)
            self.bad_body = body

    def put_inner(self):
        self.number += 1
        parts = [b"%06d-%d" % (self.number, at) + bytes(60) for at in range(3)]
        self.sent.update(parts)
        result = self.tried("put", lambda: self.store.put_inner(MessageExtBrokerInner(
            "B", 0, encode_batch([(0, part, b"") for part in parts]),
            encode_properties({"UNIQ_KEY": f"u{self.number}", "INNER_NUM": "3"}), 0, 0xC0, self.clock.now_ms())))
        if result is not None and result.ok:
            for part in parts:
                self.acknowledged[part] = ("B", 0, "", False, False)
                self.put_ms[part] = self.clock.now_ms()

    def put_value(self):
        self.number += 1
        self.written += 1
        key = f"c{self.written % KEYS}" if self.written % 2 == 0 else f"once{self.written}"
        body = b"%06d" % self.number + bytes(60)
        if self.tried("put", lambda: self.store.put(Message(topic="C", body=body, keys=[key]))) is not None:
            self.values[key] = body
            self.unsure_keys.discard(key)
        else:
            self.unsure_keys.add(key)

    def topics(self):
        self.again("topic", lambda: self.store.topics.update(
            TopicConfig(topic_name="B", attributes={"queue.type": "BatchCQ"})) or True)
        self.again("topic", lambda: self.store.create_topic("C", 1, {"cleanup.policy": "COMPACTION"}))

    # -- consumers

    def follow(self):
        """Consume what is new: each message once, in order, none left out."""
        self.dispatch()
        if self.bad and self.is_new:
            return  # consume at the end, when the segment of the record is full
        for (topic, queue_id), offset in self.followed.items():
            until = self.store.queue_of(topic, queue_id).max
            found = self.tried("read", lambda t=topic, q=queue_id, o=offset: list(read_there(self.store, t, q, o)))
            for message in found or ():
                is_lmq = topic.startswith("%")  # its messages have the offsets of their own queues
                if not is_lmq and message.queue_offset != offset and topic not in {"B", "b"} and not self.bad:
                    raise ViolationError(f"{topic} {queue_id}: {message.queue_offset} after {offset}")
                offset = until if is_lmq else message.queue_offset + 1
                if message.body not in self.sent:
                    raise ViolationError(f"{topic}: a message that was not sent")
                self.got[topic][message.body] += 1
            self.followed[topic, queue_id] = offset

    def look(self):
        """Read in the other ways."""
        self.dispatch()
        young = [b for b in self.acknowledged if self.is_young(b) and self.acknowledged[b][2]]
        for body in young[-3:]:
            topic, _, key, _, delayed = self.acknowledged[body]
            if delayed or topic not in PLAIN or body == self.bad_body:
                continue
            found = self.again("query", lambda t=topic, k=key: [m.body for m in query_there(self.store, t, k)])
            if found not in ([body], None) and not self.is_purged(body):
                raise ViolationError(f"the key {key} finds {len(found)} messages")
        now = self.clock.now_ms()
        self.again("time", lambda: self.store.queue_of("a", 0).by_time(now - 2000))
        self.again("time", lambda: self.store.earliest_message_time())
        self.again("arrow", lambda: self.store.to_arrow("a", 0, self.store.queue_of("a", 0).min).num_rows)
        self.again("timers", lambda: len(list(self.store.timers())))
        self.again("plan", lambda: self.store.retention.clean_commit_log.verdicts())

    def is_young(self, body):
        return self.put_ms[body] > self.clock.now_ms() - KEPT_MS + 3000

    def is_purged(self, body):
        return self.acknowledged[body][0] == "b" and self.put_ms[body] <= self.purged

    def purge(self):
        self.follow()
        if self.again("purge", lambda: self.store.retention.topics.purge("b")) is not None:
            self.purged = self.clock.now_ms()

    # -- the life

    def live(self):
        self.open()
        self.topics()
        for number in range(ROUNDS):
            for part in range(3):
                at = number * 3 + part
                self.put("ab"[part % 2], at % 4 // 2, lmq=at % 5 == 0)
            if number % 4 == 1 and self.delays:
                self.put("a", 0, delay_level=1 + number % 2)
                self.put("b", 1, delay=4.0)
            if number % 4 == 3 and self.delays:
                self.put("a", 1, delay=35.0)  # longer than a turn of the wheel
            if number % 3 == 0:
                self.put_inner()
                self.put_value()
                self.put_value()
            self.run(1000)
            if number % 5 == 4:
                self.look()
            if number == 12:
                self.purge()
            if number == 9 and not self.bad:  # an open has to read what it recovers
                self.close()
                self.open()
            if number == 17 and not self.bad:
                self.kill()
                self.open()
        self.end()
        return self

    def end(self):
        """The fault is over: nothing waits, in this life and in the next ones."""
        self.is_new = False
        for kind in ("first", "clean", "killed"):
            if kind != "first":
                self.open()
            self.put("a", 0)
            self.run(40_000 if self.bad else 2000)
            for _ in range(20 * bool(self.bad)):
                self.run(1000)
            self.check(kind, all_due=False)
            if kind == "first":
                for _ in range(40):
                    self.run(1000)
                self.check(kind, all_due=True)
            if kind == "killed" or self.bad:
                break
            if kind == "first":
                self.close()
            else:
                self.kill()
        self.close()
        if self.bad:
            return
        findings = self.again(
            "verify", lambda: [line for line in verify(ROOT, self.config, self.files) if "finding" in line])
        if findings:
            raise ViolationError(f"verify finds {findings[:2]}")

    def check(self, when, *, all_due):
        hits = -1
        while hits != self.hits:
            hits = self.hits
            self.follow()
        for body, (topic, queue_id, key, lmq, delayed) in self.acknowledged.items():
            if body == self.bad_body:
                continue
            count = self.got[topic][body]
            if count > 1 or (not count and (all_due or not delayed) and not self.is_purged(body)):
                raise ViolationError(f"{when}: {body[:8]} of {topic} {queue_id} delayed={delayed} came {count} times")
            if lmq and self.got["%LMQ%l"][body] != 1:
                raise ViolationError(f"{when}: {body[:8]} came {self.got['%LMQ%l'][body]} times in the LMQ queue")
            if topic in PLAIN and not delayed and self.is_young(body) and not self.is_purged(body):
                found = self.again(
                    "query", lambda t=topic, k=key: [m.body for m in query_there(self.store, t, k)])
                if found != [body]:
                    raise ViolationError(f"{when}: the key {key} finds {len(found)} messages")
        for counts in self.got.values():
            if twice := [body[:8] for body, count in counts.items() if count > 1]:
                raise ViolationError(f"{when}: {twice} came twice")
        self.dispatch()
        shown = self.again("read", lambda: {m.keys[0]: m.body for m in read_there(self.store, "C")})
        for key, body in self.values.items():
            if key not in self.unsure_keys and shown.get(key) != body:
                raise ViolationError(f"{when}: the last value of {key} is lost")
        if self.store.dispatch_behind_bytes:
            raise ViolationError(f"{when}: dispatch is {self.store.dispatch_behind_bytes} bytes behind")
        files = len(self.store.inner.commit_log.queue.files)
        if all_due and files > 3 and not self.bad:
            raise ViolationError(f"{when}: {files} files of the log, retention waits")


def caller():
    """The places of the code that led to a read."""
    frame, found = sys._getframe(2), []
    while frame is not None:
        if "/tailrace/" in frame.f_code.co_filename and "/testing/" not in frame.f_code.co_filename:
            found.append((frame.f_code.co_filename.rpartition("/tailrace/")[2], frame.f_lineno))
        frame = frame.f_back
    return tuple(found)


def reads(*, delays=True):
    """The place of the code of each read of a life without faults."""
    found = []

    def fails(*_):
        found.append(caller())
        return 0

    Life(fails, delays=delays).live()
    return found


def places(most=1, *, delays=True, only=()):
    """Numbers of reads: of each place of the code at most this many, spread over the life.

    ``only`` has starts of names of modules, from each of which the read is made.
    """
    by_caller = collections.defaultdict(list)
    for number, one in enumerate(reads(delays=delays)):
        if all(any(module.startswith(start) for module, _ in one) for start in only):
            by_caller[one].append(number)
    chosen = []
    for numbers in by_caller.values():
        count = min(most, len(numbers))
        chosen += [numbers[(2 * at + 1) * len(numbers) // (2 * count)] for at in range(count)]
    return sorted(chosen)


def lived(life, case):
    """Live a life. Return it; raises ViolationError."""
    try:
        return life.live()
    except Exception as error:
        raise ViolationError(f"{case} {life.where[:3]}: {type(error).__name__}: {error}") from error


def fail_at(place, error_number, *, delays=True):
    """Let the read with a number fail once."""
    return lived(
        Life(lambda number, *_: error_number if number == place else 0, delays=delays),
        f"read {place} errno={errno.errorcode[error_number]}")


def storm(seed, count, *, delays=True):
    """Let many reads of a part of a life fail; a life without faults has ``count`` reads.

    The part is over before it is time for everything to have come.
    """
    entropy = SeededEntropy(seed)
    first, percent = entropy.randrange(count * 3 // 5), (5, 30, 60)[entropy.randrange(3)]
    until = first + 50 + entropy.randrange(600)

    def fails(number, *_):
        if not first <= number < until or entropy.randrange(100) >= percent:
            return 0
        return ERRORS[entropy.randrange(len(ERRORS))]

    return lived(Life(fails, delays=delays), f"storm seed={seed} reads {first} to {until}, {percent} %")


def bad_record(number, *, delays=True):
    """Let the record of a put be one that cannot be read for good."""
    life = lived(Life(delays=delays, bad=number), f"record of put {number}")
    if not life.hits or life.store.stats()["unreadableRecords"] > 1:
        raise ViolationError(f"record of put {number}: {life.hits} reads failed")
    return life
