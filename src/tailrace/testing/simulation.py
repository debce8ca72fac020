"""A whole store in one thread, from a seed: puts, reads, time, faults, crashes, and opens.

The whole environment of the store is simulated: files, clock, random numbers and the order in which its services
run their steps. The same seed gives the same run. A model keeps what was sent and how the store answered. After
each open the store must hold

    acknowledged ⊆ recovered ⊆ sent,   each queue in order, byte-equal, nothing twice,

and no message that an earlier open had lost. After a kill, every message that was put counts as acknowledged;
after a power loss, every message that was durable. ``ViolationError`` has the violation, ``Simulation.trace`` the
steps that led to it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import Any, Final, final

from tailrace.config import FlushDiskType, StoreConfig
from tailrace.env.entropy import SeededEntropy
from tailrace.errors import StoreError
from tailrace.formats.commitlog import decode_message, encode_batch
from tailrace.formats.names import KEYS, TAGS, TIMER_DELIVER_MS, UNIQ_KEY
from tailrace.kernels.properties import encode_properties
from tailrace.logs import get_logger
from tailrace.model import (
    Message,
    MessageExt,
    MessageExtBrokerInner,
    PutMessageResult,
    PutMessageStatus,
)
from tailrace.node.message_store import MessageStore
from tailrace.node.store_opening import StoreParts
from tailrace.testing.crash_filesystem import CrashFileSystem, SimulatedCrash
from tailrace.testing.sent import MAY_BE_THERE, Sent, State, ViolationError
from tailrace.testing.sim_clock import SimClock
from tailrace.testing.sim_scheduler import SimScheduler
from tailrace.testing.sim_sends import SimSends

__all__ = ["Simulation", "ViolationError"]

_log = get_logger(__name__)
ROOT: Final = "/store"
_HOUR_MS: Final = 3_600_000
_SETTLE_STEPS: Final = 20_000
_DERIVED: Final = ("consumequeue/", "index/", "checkpoint", "tailrace/progress", "timerwheel")


@final
class Simulation:
    """One run."""

    def __init__(
        self, seed: int, steps: int = 300,
        open_store: Callable[..., MessageStore] = MessageStore.open,
    ) -> None:
        """``open_store`` may plant a fault that the run has to find."""
        self.seed = seed
        self.trace: list[str] = []
        self.counts: dict[str, int] = {"sends in the lane": 0, "batches in the lane": 0}
        self._steps = steps
        self._open_store = open_store
        self._entropy = SeededEntropy(seed)
        self._clock = SimClock()
        self._files = CrashFileSystem(clock=self._clock)
        self._sent: list[Sent] = []
        self._by_body: dict[bytes, Sent] = {}
        self._crash_at = -1
        self._image: CrashFileSystem | None = None
        self._fault: tuple[int, int, bool] | None = None
        self._read_fault: tuple[int, int] | None = None
        self._faulted = self._ever_faulted = False
        self._pressed = False
        self._partial = False
        self._ending: list[Sent] = []
        """Messages of a topic whose deletion was interrupted: all of them are there, or none."""
        self._deleted_until = 0
        """Largest position at which an open store began."""
        self._quiet = False
        self._latest_ms = self._clock.now_ms()
        self._config = self._make_config()
        self._timers = self._config.timer_wheel_enable
        self._sync = self._config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._weights = self._make_weights()
        self._scheduler: SimScheduler
        self._store: MessageStore

    # -- what differs from seed to seed

    def _chance(self, percent: int) -> bool:
        return self._entropy.randrange(100) < percent

    def _pick(self, *choices: Any) -> Any:
        return choices[self._entropy.randrange(len(choices))]

    def _make_config(self) -> StoreConfig:
        timers = self._chance(8)  # their wheel is 77 MB, which every crash copies
        return StoreConfig(
            mapped_file_size_commit_log=self._pick(8192, 16384, 65536),
            mapped_file_size_consume_queue=self._pick(200, 400, 2000),
            max_hash_slot_num=16, max_index_num=self._pick(32, 64, 200), commit_log_allocate_step=4096,
            flush_disk_type=self._pick(FlushDiskType.SYNC_FLUSH, FlushDiskType.ASYNC_FLUSH),
            enabled_append_prop_crc=self._chance(30),
            # Without an index the store cannot find which timers were delivered before a crash.
            message_index_enable=timers or self._chance(75), timer_wheel_enable=timers,
            mapped_file_size_timer_log=52 * 20 + 30,
            flush_consume_queue_thorough_interval=self._pick(1000, 10_000, 60_000),
            file_reserved_time=1.0, commit_log_roll_time=self._pick(0.0, 0.5),
            delete_when=";".join(map(str, range(24))), delete_rate=0,
            max_open_files=self._pick(0, 4, 12))

    def _make_weights(self) -> list[Callable[[], None]]:
        """Actions, each as often as this seed likes it; some seeds do without some."""
        found = [self._put] * (4 + self._entropy.randrange(8))
        for action, most in (
            (self._put_batch, 3), (self._put_many, 2), (self._put_table, 2), (self._put_frames, 3),
            (self._let_time_pass, 8),
            (self._step_one, 12), (self._get, 6), (self._query, 2), (self._flush, 2), (self._restart, 2),
            (self._plan_crash, 2), (self._plan_fault, 2), (self._plan_read_fault, 3), (self._hours_pass, 1),
            (self._set_wall, 1), (self._press_disk, 1),
        ):
            found += [action] * self._entropy.randrange(most + 1)
        if self._timers:
            found += [self._put_timer] * 4
        else:
            found += [self._delete_topic] * self._entropy.randrange(2)
        return found

    # -- the run

    def run(self) -> None:
        """Do it all; raises ViolationError."""
        self._note(f"config={self._config}")
        self._guarded(lambda: self._open_again(None))
        for _ in range(self._steps):
            self._guarded(self._pick(*self._weights))
        self._note("the end")
        self._guarded(lambda: self._stop("close"))
        for _ in range(2):
            self._guarded(lambda: self._stop(self._pick("close", "kill", "power")))
        self._quiet = True
        self._stop("kill")
        self._drain_timers()
        self._store.close()

    def _guarded(self, action: Callable[[], None]) -> None:
        """An action, and an open after it when the machine stopped in its midst."""
        failed = self.counts.get("reads that failed", 0)
        try:
            action()
        except SimulatedCrash:
            self._after_crash()
        except OSError:
            if self.counts.get("reads that failed", 0) == failed:
                raise
        self._latest_ms = max(self._latest_ms, self._clock.now_ms())

    def _note(self, text: str) -> None:
        self.trace.append(f"{self._files.operations:6d} {self._clock.now_ms() % 10**9:9d} {text}")

    def _count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    def _before(self, number: int, name: str, path: str) -> None:
        """Called by the file system before each operation."""
        if self._image is not None:
            raise SimulatedCrash  # the machine has stopped: cleaning up must change nothing
        if 0 <= self._crash_at <= number:
            self._note(f"crash before {name} {path}")
            self._image = self._files.killed()
            raise SimulatedCrash
        if self._fault is not None:
            at, error_number, for_good = self._fault
            if number == at or (for_good and number > at):
                if not self._faulted or number == at:
                    self._note(f"{errno.errorcode[error_number]} at {name} {path}")
                self._faulted = self._ever_faulted = True
                raise OSError(error_number, "injected", path)

    def _before_read(self, number: int, name: str, path: str, _pos: int, _n: int) -> None:
        """Called by the file system before each read."""
        if self._read_fault is not None and number >= self._read_fault[0]:
            error_number, self._read_fault = self._read_fault[1], None
            self._note(f"{errno.errorcode[error_number]} at {name} {path}")
            self._count("reads that failed")
            self._faulted = self._ever_faulted = True
            raise OSError(error_number, "injected", path)

    # -- stopping and opening

    def _restart(self) -> None:
        self._stop(self._pick("close", "kill", "power", "power"))

    def _stop(self, how: str) -> None:
        self._count(how)
        self._note(how)
        if how == "close":
            self._store.close()
            self._read_fault = None  # the look of this program at the directory must not fail
            clean = not self._files.exists(f"{ROOT}/abort")
            if not self._faulted and not self._pressed and not clean:
                raise ViolationError("a close without a fault left the abort file")
            if clean:
                for sent in self._sent:
                    if sent.state is State.APPENDED:
                        sent.state = State.DURABLE
        self._open_again(self._files.killed(), power=how == "power")

    def _after_crash(self) -> None:
        image = self._image
        assert image is not None
        self._open_again(image, power=self._chance(50))

    def _open_again(self, image: CrashFileSystem | None, *, power: bool = False) -> None:
        """Open what a crash left, which may crash or fail again; then compare."""
        depth = 0
        while True:
            if image is not None:
                self._be_without_power(image, power=power)
            self._files.before, self._files.before_read = self._before, self._before_read
            self._read_fault = None
            self._image, self._crash_at, self._fault, self._faulted = None, -1, None, False
            self._files.usage.free = self._files.usage.usable = 1 << 39
            self._pressed = False
            if depth == 3 or self._quiet:
                pass
            elif self._chance(20):
                self._plan_crash()
            elif self._chance(10):
                self._plan_fault()
            elif self._chance(10):
                self._plan_read_fault()
            depth = min(depth + 1, 3)
            self._scheduler = SimScheduler(self._clock, self._entropy)
            try:
                self._store = self._open_store(
                    ROOT, config=self._config, parts=StoreParts(
                        clock=self._clock, file_system=self._files, scheduler=self._scheduler, entropy=self._entropy))
            except SimulatedCrash:
                image, power = self._image, self._chance(50)
                self._count("crash while opening")
            except (StoreError, OSError) as error:
                self._note(f"open failed: {error!r}")
                self._count("open failed")
                if not self._faulted:
                    raise ViolationError(f"the store does not open: {error!r}") from error
                if self._files.locked:
                    raise ViolationError("an open that failed holds the lock") from error
                image, power = self._files.killed(), False
            else:
                break
        self._crash_at, self._read_fault = -1, None
        self._note(f"opened {self._store.recovery_report}")
        self._compare()

    def _be_without_power(self, image: CrashFileSystem, *, power: bool) -> None:
        if power:
            keep = self._pick(0, 0, 25, 50, 75, 100)
            self._note(f"power lost, {keep} % of what was not synced is kept")
            image = image.power_lost(self._entropy, keep)
            for sent in self._sent:
                # A file whose directory could not be synced when it was deleted may be back.
                if sent.state is State.APPENDED or (sent.state is State.EXPIRED and self._ever_faulted):
                    sent.state = State.UNKNOWN
        self._files = image
        self._files.operations = 0
        if self._chance(15):
            self._lose_derived()

    def _lose_derived(self) -> None:
        """Remove, cut or overwrite files that can be rebuilt from the log."""
        kind = self._pick(*_DERIVED)
        paths = [path for path in self._files.paths() if path.startswith(f"{ROOT}/{kind}")]
        if kind == "index/" and paths:
            # An open reads older files only if the progress file shows that they were changed, and it cannot
            # notice that a later file between others is missing.
            paths = [self._pick(*paths[-3:])]
        for path in paths:
            if len(paths) == 1 or self._chance(60):
                how = self._pick("cut", "zero", "noise", *["remove"] * (kind != "index/"))
                self._note(f"{how} {path}")
                if how == "remove":
                    self._files.remove(path)
                    continue
                file = self._files.open(path, writable=True)
                at = self._entropy.randrange(file.size() + 1)
                n = min(64, file.size() - at)
                if how == "cut":
                    file.truncate(at)
                else:
                    file.pwrite(bytes(n) if how == "zero" else self._entropy.bytes(n), at)
                file.sync_data()

    # -- actions

    def _new(self, *, due_ms: int = 0) -> Sent:
        number = len(self._sent)
        size = self._entropy.randrange(self._pick(20, 200, 2000))
        body = f"{number:07d}{'t' if due_ms else 'm'}".encode() + self._entropy.bytes(size)
        sent = Sent(number, f"T{self._entropy.randrange(3)}", self._entropy.randrange(2), body, due_ms)
        self._sent.append(sent)
        self._by_body[body] = sent
        return sent

    def _properties(self, sent: Sent) -> bytes:
        values = {KEYS: f"k{sent.number} all", TAGS: f"t{sent.number % 3}", UNIQ_KEY: f"U{sent.number:08d}"}
        if sent.due_ms:
            values[TIMER_DELIVER_MS] = str(sent.due_ms)
        return encode_properties(values)

    def _inner(self, sent: Sent, body: bytes | None = None) -> MessageExtBrokerInner:
        return MessageExtBrokerInner(
            sent.topic, sent.queue_id, sent.body if body is None else body, self._properties(sent),
            born_timestamp=self._clock.now_ms())

    def _put(self) -> None:
        sent = self._new()
        self._was_put([sent], self._store.put_inner(self._inner(sent)))

    def _put_timer(self) -> None:
        sent = self._new(due_ms=self._clock.now_ms() + 1 + self._entropy.randrange(60_000))
        result = self._store.put_inner(self._inner(sent))
        self._was_put([sent], result)

    def _run_of(self, count: int) -> list[Sent]:
        first = self._new()
        found = [first]
        for _ in range(count - 1):
            sent = self._new()
            sent.topic, sent.queue_id = first.topic, first.queue_id
            found.append(sent)
        return found

    def _put_batch(self) -> None:
        batch = self._run_of(1 + self._entropy.randrange(6))
        encoded = encode_batch([(0, sent.body, self._properties(sent)) for sent in batch])
        lane, result = SimSends(self._store, {batch[0].topic: 2}), None
        if batch[0].number % 2:
            result = lane.put_batch(self._inner(batch[0], encoded))
            self.counts["batches in the lane"] += lane.in_lane
        self._was_put(batch, result or self._store.inner.put_batch(self._inner(batch[0], b""), encoded))

    def _put_many(self) -> None:
        if self._sync:
            return  # it would wait for a sync that only this thread can make
        batch = self._run_of(1 + self._entropy.randrange(20))
        try:
            results = self._store.put_many(
                [Message(topic=s.topic, body=s.body, keys=[f"k{s.number}", "all"]) for s in batch],
                queue_id=batch[0].queue_id)
        except (StoreError, OSError):
            return  # some of them may be there, as the error says
        for sent, result in zip(batch, results, strict=True):
            self._was_put([sent], result)

    def _put_table(self) -> None:
        if self._sync:
            return  # as put_many
        batch = [self._new() for _ in range(1 + self._entropy.randrange(20))]
        try:
            result = self._store.put_table({
                "topic": [s.topic for s in batch], "queue_id": [s.queue_id for s in batch],
                "body": [s.body for s in batch], "keys": [[f"k{s.number}", "all"] for s in batch]})
        except (StoreError, OSError):
            return
        for n, sent in enumerate(batch):
            self._was_put([sent], PutMessageResult(
                PutMessageStatus.PUT_OK, int(result.phy_offsets[n]), result.until, sent.queue_id,
                int(result.queue_offsets[n])))

    def _put_frames(self) -> None:
        batch, done = self._run_of(1 + self._entropy.randrange(20)), 0
        for sent in batch:
            sent.queue_id = self._entropy.randrange(2)
        lane = SimSends(self._store, {batch[0].topic: 2})
        for results in lane.put([self._inner(sent) for sent in batch]):
            for sent, result in zip(batch[done:], results, strict=False):
                self._was_put([sent], result)
            done += len(results)
        self.counts["sends in the lane"] += lane.in_lane

    def _was_put(self, batch: list[Sent], result: PutMessageResult) -> None:
        self._count("put" if result.status.appended else "put refused")
        if not result.status.appended:
            self._note(f"refused {batch[0].number}-{batch[-1].number} {result.status.name} {result.remark}")
            for n, sent in enumerate(batch):
                sent.state = State.REFUSED if n >= result.msg_num else State.UNKNOWN
            return
        self._note(f"put {batch[0].number}-{batch[-1].number} at {result.phy_offset}")
        for n, sent in enumerate(batch):
            sent.state = State.APPENDED
            if not sent.due_ms:
                sent.queue_offset = result.queue_offset + n
                sent.phy_offset = result.phy_offsets[n] if result.phy_offsets else result.phy_offset
        if self._sync:
            self._store.inner.when_durable(result.until, lambda status: self._told(batch, status))

    def _told(self, batch: list[Sent], status: PutMessageStatus) -> None:
        if status is PutMessageStatus.PUT_OK:
            for sent in batch:
                if sent.state in MAY_BE_THERE:
                    sent.state = State.DURABLE

    def _delete_topic(self) -> None:
        if self._partial:
            return
        topic = f"T{self._entropy.randrange(3)}"
        self._ending = [sent for sent in self._sent if sent.topic == topic and sent.state in MAY_BE_THERE]
        self._note(f"delete {topic}")
        try:
            self._store.delete_topics([topic], missing_ok=True)
        except (StoreError, OSError) as error:
            if not self._faulted and self._store.is_writeable:
                raise ViolationError(f"deletion failed: {error!r}") from error
            return  # nothing is deleted; with a disk that fails the deletion may return with the next open
        self._deleted()

    def _deleted(self) -> None:
        for sent in self._ending:
            sent.state = State.DELETED
        self._count("deleted")
        self._ending = []

    def _flush(self) -> None:
        if self._partial:
            return
        before = [sent for sent in self._sent if sent.state is State.APPENDED]
        try:
            self._store.flush()
        except (StoreError, OSError) as error:
            if not self._faulted:
                raise ViolationError(f"flush failed: {error!r}") from error
            return
        self._note("flush")
        for sent in before:
            sent.state = State.DURABLE

    def _let_time_pass(self) -> None:
        self._scheduler.run(self._entropy.randrange(self._pick(20, 2000, 20_000)), 400)

    def _step_one(self) -> None:
        self._scheduler.run_one()

    def _hours_pass(self) -> None:
        self._note("two hours pass")
        self._clock.advance(2 * _HOUR_MS)
        self._latest_ms = max(self._latest_ms, self._clock.now_ms())
        self._scheduler.run(20_000, 2000)

    def _set_wall(self) -> None:
        by_ms = self._entropy.randrange(1_200_000) - 600_000
        self._note(f"wall clock steps by {by_ms} ms")
        self._clock.step_wall(by_ms)

    def _press_disk(self) -> None:
        self._pressed = True
        usage = self._files.usage
        usage.free = usage.usable = usage.total * self._pick(5, 12, 20) // 100
        self._note("the disk fills up")
        self._scheduler.run(20_000, 2000)
        usage.free = usage.usable = 1 << 39

    def _plan_crash(self) -> None:
        self._crash_at = self._files.operations + self._entropy.randrange(self._pick(5, 40, 200))

    def _plan_fault(self) -> None:
        at = self._files.operations + self._entropy.randrange(self._pick(5, 40, 200))
        self._fault = (at, self._pick(errno.EIO, errno.ENOSPC), self._chance(30))

    def _plan_read_fault(self) -> None:
        """Let one of the next reads fail. The store must continue after it."""
        at = self._files.reads + self._entropy.randrange(self._pick(5, 40, 200))
        self._read_fault = at, self._pick(errno.EMFILE, errno.ENOMEM, errno.EIO)

    def _get(self) -> None:
        """A pull from anywhere shows what was sent, where it is; under SYNC_FLUSH it is durable."""
        topic, queue_id = f"T{self._entropy.randrange(3)}", self._entropy.randrange(2)
        low, high = self._store.queue_of(topic, queue_id).bounds
        offset = low + self._entropy.randrange(max(high - low, 0) + 2)
        result = self._store.get_message(topic, queue_id, offset, 1 + self._entropy.randrange(40))
        for data in result.records:
            message = decode_message(data)
            sent = self._check_shown(message)
            if self._sync and not self._partial and not sent.due_ms:
                sent.state = State.DURABLE  # a consumer has it, so nothing may take it any more

    def _query(self) -> None:
        number = self._entropy.randrange(len(self._sent) + 1)
        for topic in ("T0", "T1", "T2"):
            for data in self._store.query_records(topic, f"k{number}"):
                if self._check_shown(decode_message(data)).number != number:
                    raise ViolationError(f"key k{number} leads to another message")

    # -- what must hold

    def _check_shown(self, message: MessageExt) -> Sent:
        """Check that a message which the store shows was sent, and that it is at the place that the put returned."""
        sent = self._by_body.get(message.body)
        if sent is None:
            raise ViolationError(f"never sent: {message}")
        if sent.state not in MAY_BE_THERE:
            raise ViolationError(f"{sent.number} is shown, {sent.state.value}")
        if (sent.topic, sent.queue_id) != (message.topic, message.queue_id):
            raise ViolationError(f"{sent.number} is in {message.topic}/{message.queue_id}")
        if sent.due_ms:
            if message.store_timestamp < sent.due_ms:
                raise ViolationError(f"timer {sent.number} is early: {message}")
        elif sent.queue_offset not in {-1, message.queue_offset} or sent.phy_offset not in {
            -1, message.phy_offset
        }:
            raise ViolationError(f"{sent.number} has moved: {sent} is {message}")
        return sent

    def _everything(self) -> Iterator[MessageExt]:
        """Return the messages that can be pulled, queue by queue."""
        for topic, queue_id, low, high in self._store.queues():
            at = low
            while at < high and topic[0] == "T":
                result = self._store.get_message(topic, queue_id, at, 32)
                for data in result.records:
                    yield decode_message(data)
                if result.next_begin_offset <= at:
                    raise ViolationError(f"a pull of {topic}/{queue_id} at {at} stands still: {result}")
                at = result.next_begin_offset

    def _settle(self) -> None:
        """Run services until everything can be read."""
        for _ in range(_SETTLE_STEPS):
            if not self._store.dispatch_behind_bytes:
                return
            self._scheduler.run(10, 1)
        raise ViolationError(f"dispatch does not reach the end of the log: {self._store.stats()}")

    def _compare(self) -> None:
        """The open store against the model, which learns what is lost."""
        if self._store.is_writeable and not self._faulted:
            self._settle()
        found: dict[int, MessageExt] = {}
        last: dict[tuple[str, int], int] = {}
        for message in self._everything():
            sent = self._check_shown(message)
            if sent.number in found:
                raise ViolationError(f"{sent.number} is there twice")
            found[sent.number] = message
            key = (message.topic, message.queue_id)
            if not sent.due_ms:
                if last.get(key, -1) > sent.number:
                    raise ViolationError(f"{sent.number} comes after {last[key]} in {key}")
                last[key] = sent.number
        low = self._store.min_phy_offset
        self._deleted_until = max(self._deleted_until, low)
        # One that could not write shows what its queues have on disk; nothing is lost by that.
        self._partial = bool(self._store.recovery_report["readOnly"])
        if self._ending and not self._partial:
            if not any(sent.number in found for sent in self._ending):
                self._deleted()
            self._ending = []
        for sent in self._sent:
            there = found.get(sent.number)
            if not sent.due_ms and sent.state in MAY_BE_THERE and (there is not None or not self._partial):
                self._judge(sent, there, low)
        self._check_keys(found)
        self._count("compared")

    def _judge(self, sent: Sent, message: MessageExt | None, low: int) -> None:
        if message is not None:
            sent.phy_offset, sent.queue_offset = message.phy_offset, message.queue_offset
            # Under SYNC_FLUSH consumers see it from now on, so it must be durable.
            if sent.state is State.UNKNOWN or self._sync:
                sent.state = State.DURABLE if self._sync and not self._faulted else State.APPENDED
            return
        expired = 0 <= sent.phy_offset < low or (low < 0 <= sent.phy_offset)
        if expired and sent.state is not State.UNKNOWN:
            sent.state = State.EXPIRED
            self._count("expired")
            return
        if sent.state is State.UNKNOWN:
            sent.state = State.LOST
            self._count("lost")
            return
        raise ViolationError(f"{sent.number} is lost though {sent.state.value}: {sent}, log from {low}")

    def _check_keys(self, found: dict[int, MessageExt]) -> None:
        if not self._config.message_index_enable or not self._store.is_writeable or self._faulted:
            return
        for number in sorted(found):
            topic = self._sent[number].topic
            if 0 <= self._sent[number].phy_offset < self._deleted_until:
                # Its file was deleted, the sync of the directory failed, and a power loss has brought the file back. An
                # open in between that made the index again saw a log without the file.
                continue
            if not self._store.query_records(topic, f"k{number}"):
                raise ViolationError(f"{number} is not found by its key")

    def _drain_timers(self) -> None:
        """Every timer that the store kept is delivered in the end, once."""
        due = [sent.due_ms for sent in self._sent if sent.due_ms]
        if not due:
            return
        self._image, self._crash_at, self._fault = None, -1, None
        until = max(*due, self._clock.now_ms()) + 5000
        while (now_ms := self._clock.now_ms()) < until:
            if self._scheduler.run(min(5000, until - now_ms), _SETTLE_STEPS) == _SETTLE_STEPS:
                raise ViolationError("services run and run, and time stands still")
        self._settle()
        times: dict[int, int] = {}
        for message in self._everything():
            number = self._check_shown(message).number
            times[number] = times.get(number, 0) + 1
        for sent in self._sent:
            if sent.due_ms:
                must = sent.state in {State.APPENDED, State.DURABLE} and not self._store.min_phy_offset
                if times.get(sent.number, 0) > 1 or (must and sent.number not in times):
                    raise ViolationError(f"timer {sent} is delivered {times.get(sent.number, 0)} times")
