"""The timer services (RocketMQ's TimerMessageStore) as steps.

    put hook ─▶ timer topic ─▶ enqueue_get, enqueue_put ─▶ timer log, wheel
                                                               │ when a slot's second begins
    real topic ◀─ dequeue_put ◀─ when due ◀─ dequeue_get_message ◀─ dequeue_get

Invariants:
  T1  A message of the timer queue below ``queue_offset`` has a unit in the timer log, was parked, or was left out
      because it cannot be read.
  T2  Slots before ``commit_read_time_ms`` are delivered. A message that comes late for such a slot is put into
      the slot of ``commit_read_time_ms``, so that it is also in the wheel until it is delivered.
  T3  A timer is delivered at or after its due millisecond by the store's clock, never before.
  T4  The checkpoint never claims more than was durable before it was written: CommitLog, timer log and wheel
      are synced, in this order, after its values are taken and before they are written.
  T5  A slot that still holds undelivered timers is not overwritten. Enqueue waits until they are delivered, or
      until they are moved to another slot because they are due after the roll window.
  T6  After an open no timer is delivered before all messages that were in the timer queue are in the wheel:
      among them may be a request to delete an overdue timer. A message that cannot be read is waited for a minute.
Every step takes the one lock, so steps may run in any thread and in any order.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any, Final, final

from tailrace import events
from tailrace.config import StoreConfig
from tailrace.env.clock import Clock
from tailrace.env.filesystem import FileSystem
from tailrace.errors import CorruptionError
from tailrace.formats import filenames
from tailrace.formats.names import REAL_TOPIC
from tailrace.formats.timercheckpoint import TimerCheckpointFields
from tailrace.formats.timerlog import (
    MAGIC_DELETE,
    TIMER_UNIT,
    TimerUnit,
)
from tailrace.formats.timerwheel import SLOTS_TOTAL
from tailrace.logs import get_logger
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.store.directory_format import TimerFormat, read_format, write_timers
from tailrace.timer.arrays import Units, joined
from tailrace.timer.dequeue import Dequeue
from tailrace.timer.due_table import DueTable
from tailrace.timer.enqueue import Enqueue, append_to_slot
from tailrace.timer.parking import ANY_TARGET, Targets
from tailrace.timer.properties import (
    Identity,
    identity_of,
    named_by,
    out_ms,
)
from tailrace.timer.put_back import PutBack
from tailrace.timer.recovery import RecoveredTimers, TimerRecovery
from tailrace.timer.state import TimerState
from tailrace.timer.timer_checkpoint import TimerCheckpoint
from tailrace.timer.timer_log import TimerLog, pending_of, recognise_file_size
from tailrace.timer.timer_metrics import TimerMetrics
from tailrace.timer.timer_wheel import NO_SLOT, TimerWheel

__all__ = ["TimerMessageStore"]

_log = get_logger(__name__)
_BATCH: Final = 512
_SLOT_MARGIN: Final = 60
_INT_MAX: Final = 0x7FFFFFFF
_ENQUEUE_MS: Final = 20
_ENQUEUE_IDLE_MS: Final = 50
_IDLE_NS: Final = 10_000_000_000
_DEQUEUE_MS: Final = 5
_DEQUEUE_IDLE_MS: Final = 100
PENDING_BOUNDS_S: Final = (5, 60, 300, 900, 3600, 14_400, 28_800, 86_400)
"""Upper bounds, s, of the classes in which pending timers are counted (RocketMQ's timerDist)."""
_NO_TIME: Final = (1 << 63) - 1


@final
class TimerMessageStore:
    """Wheel, log and services of one store directory."""

    def __init__(
        self, clock: Clock, file_system: FileSystem, config: StoreConfig, store: DefaultMessageStore,
        slots_total: int = SLOTS_TOTAL, ensure_topic: Callable[[str], object] = lambda _: None,
        targets: Targets = ANY_TARGET,
    ) -> None:
        root = store.root
        self.config = config
        self.precision_ms = config.timer_precision_ms
        self.wheel = TimerWheel(
            file_system, f"{root}/{filenames.TIMERWHEEL}", self.precision_ms, slots_total)
        directory = f"{root}/{filenames.TIMERLOG}"
        self.timer_log = TimerLog(file_system, directory, recognise_file_size(
            file_system, directory, config.mapped_file_size_timer_log), store.open_files)
        self.checkpoint = TimerCheckpoint(
            file_system, f"{root}/{filenames.CONFIG}/{filenames.TIMERCHECK}")
        window = config.timer_roll_window_slot
        if not 2 <= window <= slots_total - _SLOT_MARGIN:
            window = slots_total - _SLOT_MARGIN
        # A unit's delay is a number of 32 bits.
        self.roll_window_ms = min(window, _INT_MAX // self.precision_ms - 1) * self.precision_ms
        self.should_running_dequeue = True
        self.recovered = RecoveredTimers("none", "", 0, 0, 0)
        self._clock = clock
        self._file_system = file_system
        self._store = store
        self._lock = threading.RLock()
        self._format_written = False
        self._revise_metrics = False
        self._version = 0
        self._version_ms = 0
        self._last_progress_ns = clock.monotonic_ns()
        self._enqueued_ns = self._last_progress_ns - _IDLE_NS
        self.state = TimerState(self.precision_ms, self.precision_ms, follows=store.follows)
        self._last_figures = (0, 0, 0, 0, 0)
        self.metrics = TimerMetrics(clock, self._topic_at)
        self.due = DueTable(self.precision_ms, self.metrics.left)
        self.put_back = PutBack(clock, store, self.due, self.state, ensure_topic, targets)
        self.dequeue = Dequeue(
            clock, self.wheel, self.timer_log, self.due, self.put_back, self.state, self._step_back)
        self.enqueue = Enqueue(
            clock, store, self.wheel, self.timer_log, self.due, self.dequeue, self.put_back, self.metrics,
            self.state, self.roll_window_ms)

    # -- life

    def load(self, rebuild_because: str = "") -> None:
        """Recover the timers. With a reason, rebuild them from the CommitLog. Raises OSError or FatalStorageError."""
        rounds = self.config.timer_max_delay_sec * 1000 // self.roll_window_ms
        if rounds > 1:
            events.FAR_TIMERS_COST_A_RECORD_IN_EACH_ROUND.log(
                _log, max_delay_s=self.config.timer_max_delay_sec, rounds=rounds, window_s=self.roll_window_ms // 1000)
        with self._lock:
            found = self.recovered = TimerRecovery(
                self._clock, self._file_system, self._store, self.wheel, self.timer_log,
                self.checkpoint).run(rebuild_because)
            state = self.state
            kept = read_format(self._file_system, self._store.root).timer
            state.grain_ms = kept.coarsest(self.precision_ms)
            state.suspicious_until_ms = kept.suspicious_until_ms
            self._format_written = self._format() == kept
            if (fields := self.checkpoint.fields) is not None:
                self._version, self._version_ms = fields.counter, fields.timestamp
            state.queue_offset = found.queue_offset
            state.late = {state.floor(self._clock.now_ms()): 0}  # timers of an earlier run, due at any time
            state.frontier_ms = state.last_floor_ms = found.read_time_ms
            state.suspicious_until_ms = max(found.suspicious_until_ms, kept.suspicious_until_ms)
            state.known = found.known
            state.hold_until = state.queue_offset + self.enqueue.behind()
            for unit in found.orphans:
                self._enqueue_again(unit)
            if found.mode == "rebuild":
                # The wheel is empty, so the present slot counts as begun, and overdue timers are handled as
                # they are enqueued. All messages are enqueued now: a Java broker that opened the directory
                # next would deliver again timers that are in the timer queue and not in the wheel. The present
                # slot stays the same until then: timers in a later one would not be searched for in the log.
                state.frontier_ms += self.precision_ms
                while not self.config.timer_stop_enqueue and self.enqueue.step():
                    pass
                self.dequeue.look()
            else:
                self.metrics.revise(self.live_units(found.read_time_ms))

    def close(self) -> None:
        """Flush, so that no timer is delivered twice after a clean stop.

        Raises OSError or FatalStorageError; the files are then closed as well.
        """
        try:
            with self._lock:
                for time_ms, left in self.due.by_slot().items():
                    # A list that could not be read stays as it is.
                    if time_ms not in self.due.lists and pending_of(left) != self.wheel.get_slot(time_ms).num:
                        append_to_slot(self.wheel, self.timer_log, time_ms, left, replace=True)
                read_time = min(self.state.frontier_ms, *self.due.slots, _NO_TIME)
                self._flush(read_time)
        finally:
            self.release()

    def release(self) -> None:
        """Close the files in any state."""
        self.timer_log.files.close()

    def _enqueue_again(self, unit: TimerUnit) -> None:
        """Append a unit that no list leads to, unless its timer was delivered."""
        with contextlib.suppress(OSError):  # without the answer it is appended, and looked at when its slot is read
            message = self.put_back.reads.message(unit.phy_offset, unit.msg_size)
            out = out_ms(message.properties) if message is not None else None
            if message is None or out is None:
                return
            identity = identity_of(message.properties, out)
            if identity is not None and (
                self.put_back.was_rolled(identity, unit.phy_offset)
                or self.put_back.was_delivered(identity, sure=True)
            ):
                return
        append_to_slot(
            self.wheel, self.timer_log, self.state.floor(unit.write_time_ms + unit.delay_ms),
            TIMER_UNIT.view(TIMER_UNIT.pack(*unit)))

    def _step_back(self, floor_ms: int) -> None:
        """Write to disk that the clock was set back, before a unit is put into a slot that was read already.

        Units that have left such a slot leave it a second time, so the metrics must be counted again.
        """
        self._revise_metrics = True
        fields = self.checkpoint.fields
        if fields is not None:
            self._write_format()
            self.checkpoint.write(fields._replace(
                last_read_time_ms=min(fields.last_read_time_ms, floor_ms)))

    def _write_format(self) -> None:
        self._format_written = True
        write_timers(self._file_system, self._store.root, self._format())

    def _format(self) -> TimerFormat:
        return TimerFormat(
            precision_ms=self.precision_ms, slots_total=self.wheel.slots_total, grain_ms=self.state.grain_ms,
            suspicious_until_ms=self.state.suspicious_until_ms)

    # -- positions

    @property
    def queue_offset(self) -> int:
        """Messages of the timer queue below this offset are in the wheel."""
        return self.state.all_below

    @property
    def commit_read_time_ms(self) -> int:
        """Slots before this time are delivered."""
        return self.dequeue.commit_read_time_ms

    def progress(self) -> tuple[int, int]:
        """Return how many messages of the timer queue are in the wheel, and the time, ms, before which those of
        them that are due are delivered. A timer that came late waits in a later slot (T2), so that may be
        earlier than ``commit_read_time_ms``."""
        with self._lock:
            read_ms = self.commit_read_time_ms
            late = [due for slot, due in self.state.late.items() if slot >= read_ms]
            return self.queue_offset, min(read_ms, *late) if late else read_ms

    def checkpoint_for_slaves(self) -> TimerCheckpointFields | None:
        """Return the checkpoint on the disk, with a read time before which everything that was due is delivered.

        A timer that came late waits in a later slot here (T2). A slave has it in its own slot, which it does not read
        again if the read time is later. Return None without a checkpoint, while that time is not known after a start,
        and while a step runs, because the caller must not wait.
        """
        if not self._lock.acquire(blocking=False):
            return None
        try:
            fields, delivered_until = self.checkpoint.fields, self.progress()[1]
        finally:
            self._lock.release()
        if fields is None or not delivered_until:
            return None
        return fields._replace(last_read_time_ms=min(fields.last_read_time_ms, delivered_until))

    def live_units(self, begin_ms: int) -> Iterator[Units]:
        """Yield the units of the timer log that are in the list of a slot at ``begin_ms`` or later, in order."""
        for pos, units in self.timer_log.scan():
            listed = self.wheel.listed(units, pos, begin_ms)
            yield units if bool(listed.all()) else units[listed]

    def _topic_at(self, phy_offset: int, size: int) -> str | None:
        """Return the real topic of the timer message at a position, or None if it is damaged or cannot be read."""
        try:
            message = self._store.message(phy_offset, size)
        except CorruptionError:
            return None
        except OSError:
            self._revise_metrics = True
            return None
        return message.properties.get(REAL_TOPIC)

    def check_metrics_step(self) -> None:
        """Count the pending timers of each topic again in the hour of ``timerCheckMetricsWhen``.

        If the wall clock was set back since the last step, count all topics at any hour.
        """
        config = self.config
        if not config.timer_enable_check_metrics:
            return
        is_time = self.metrics.is_time_to_check(config.timer_check_metrics_when)
        with self._lock:
            if self._revise_metrics:
                self._revise_metrics = False  # before the count, which sets it again if a read fails
                try:
                    self.metrics.revise(self._pending_units())
                except BaseException:
                    self._revise_metrics = True
                    raise
            elif is_time:
                self.metrics.revise(self._pending_units(), config.timer_metric_small_threshold)

    def _pending_units(self) -> Iterator[Units]:
        """Yield the units whose timers have not left: of later slots, and of slots that were begun."""
        yield from self.live_units(self.state.frontier_ms)
        yield joined([units for time_ms, units in self._begun() if time_ms < self.state.frontier_ms])

    def _begun(self) -> list[tuple[int, Units]]:
        """Return begun slots, in order, with the units whose timers have not left. Raises OSError."""
        found = self.due.by_slot()
        for time_ms, unread in self.due.lists.items():
            listed = self.dequeue.walk(time_ms, unread.pos)
            found[time_ms] = joined([found.get(time_ms, listed[:0]), listed])
        return sorted(found.items(), key=itemgetter(0))

    def forget_topics(self, topics: set[str]) -> None:
        """Drop the numbers of pending timers of deleted topics."""
        with self._lock:
            self.metrics.remove(topics)

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[None]:
        """Deliver nothing while the context is open, so that a topic can be deleted."""
        with self._lock:
            yield

    def slot_num(self, time_ms: int) -> int:
        """Return the number of timers in the slot of a time, for congestion control."""
        return self.wheel.get_slot(time_ms).num

    def stats(self) -> dict[str, Any]:
        """Return positions and counters of one moment. During a step some timers are not where they are counted."""
        with self._lock:
            return self._stats()

    def _stats(self) -> dict[str, Any]:
        now = self._clock.now_ms()
        within, overdue = self._pending_within(now)
        return {
            "timerReadBehindMs": max(now - self.state.frontier_ms, 0),
            "timerOffsetBehind": self.enqueue.behind(),
            "timerWaiting": len(self.due),
            "timerPending": self.wheel.pending(self.state.frontier_ms) + len(self.due),
            "timerOverdue": overdue,
            "timerPendingByTopic": self.metrics.counts(),
            "timerPendingWithin": within,
            "timerLateness": self.put_back.lateness.as_dict(),
            "timerUnread": self.due.unread + len(self.state.skipped),
            "timerReadFailed": self.put_back.reads.failed,
            **self.put_back.counters,
        }

    def deleted(self) -> set[Identity]:
        """Return the timers that are named by requests to delete in the wheel, as far as these can be read."""
        with self._lock:
            found = self.due.deletes
            requests = [
                unit for units in self._pending_units()
                for unit in units[(units["magic"] & MAGIC_DELETE) != 0][["phy_offset", "msg_size"]].tolist()]
        for unit in requests:
            try:
                message = self.put_back.reads.message(*unit)
            except OSError:  # it is read again when its slot begins
                continue
            out = out_ms(message.properties) if message is not None else None
            if message is not None and out is not None:
                found.update(named_by(message.properties, out))
        return found

    def pending_slots(self) -> Iterator[tuple[int, Units]]:
        """Yield slot times in order with their units. Timers that leave or come during the iteration may be missed."""
        with self._lock:
            begun = self._begun()
            times = self.wheel.live_slots(self.state.frontier_ms)
        yield from begun
        for time_ms in times:
            with self._lock:
                slot = self.wheel.get_slot(time_ms)
                listed = time_ms >= self.state.frontier_ms and slot is not NO_SLOT
                units = self.dequeue.walk(time_ms, slot.last_pos) if listed else TIMER_UNIT.view(b"")
            yield time_ms, units

    def _pending_within(self, now: int) -> tuple[dict[int, int], int]:
        """Return {bound, s: timers}, and how many of the timers are overdue.

        A timer counts for the smallest bound that its remaining time does not exceed.
        """
        waiting = self.due.due_times() - now
        late = now - self.precision_ms + 1  # a slot is due at its end
        overdue, *totals = self.wheel.pending_until(
            self.state.frontier_ms, [late, *(now + bound * 1000 for bound in PENDING_BOUNDS_S)])
        found = {}
        below, before = -_NO_TIME, 0
        for bound, total in zip(PENDING_BOUNDS_S, totals, strict=True):
            begun = int(((below < waiting) & (waiting <= bound * 1000)).sum())
            found[bound] = total - before + begun
            below, before = bound * 1000, total
        return found, overdue + int((waiting <= 0).sum())

    # -- enqueue

    def enqueue_step(self) -> bool:
        """Move messages from the timer queue into the wheel. Return True if there are more."""
        if self.config.timer_stop_enqueue:
            return False
        with self._lock:
            self.dequeue.watch_clock(self._clock.now_ms())
            before = self.state.queue_offset
            try:
                more = self.enqueue.step()
            finally:
                self.put_back.parking.step.log()
            if self.state.queue_offset != before:
                self._enqueued_ns = self._clock.monotonic_ns()
            return more

    def enqueue_wait_ms(self) -> int:
        """Return the ms until the next ``enqueue_step``: 20, and 50 if there was no message for 10 s."""
        idle = self._clock.monotonic_ns() - self._enqueued_ns >= _IDLE_NS
        return _ENQUEUE_IDLE_MS if idle else _ENQUEUE_MS

    # -- dequeue

    def dequeue_wait_ms(self) -> int:
        """Return the ms until the next ``dequeue_step``: 5 while there are timers to deliver, else until the next slot.

        At most 100, because the wall clock may be set. A timer that comes into a slot whose time has come must wake
        the service.
        """
        left = self.state.frontier_ms - self._clock.now_ms()
        return _DEQUEUE_MS if self.due.slots or left <= 0 else min(left, _DEQUEUE_IDLE_MS)

    def dequeue_step(self) -> bool:
        """Read slots whose time has come and deliver due timers. Return True if there is more to do."""
        with self._lock:
            if not self.should_running_dequeue:
                if self.checkpoint.fields is not None:
                    self.state.frontier_ms = self.checkpoint.fields.last_read_time_ms
                return False
            if self.config.timer_stop_dequeue or self._store.syncs.failed:
                return False
            if not self.enqueue.has_all(self.state.hold_until) and not self.config.timer_stop_enqueue:
                return False
            try:
                return self.dequeue.step()
            finally:
                self.put_back.parking.step.log()

    # -- flush

    def flush_step(self) -> None:
        """Make the state durable and write the checkpoint. Raises OSError, FatalStorageError."""
        self._flush(None)
        self._log_progress()

    def clean_step(self) -> None:
        """Remove timer log files whose timers are all delivered by the checkpoint on disk. Raises OSError."""
        with self._lock:
            fields = self.checkpoint.fields
            if fields is not None:
                self.timer_log.delete_read_files(
                    min(fields.last_read_time_ms, self.commit_read_time_ms) - self.precision_ms)

    def _flush(self, read_time: int | None) -> None:
        with self._lock:
            if self.checkpoint.fields is None and not self.queue_offset and (
                self.recovered.mode == "fresh"
            ):
                return  # a store that never had a timer gets no timer files
            if read_time is None:
                read_time = self.commit_read_time_ms
            queue_offset = self.queue_offset
            pages = self.wheel.take_dirty()
            master = (
                queue_offset if self.should_running_dequeue or self.checkpoint.fields is None
                else self.checkpoint.fields.master_timer_queue_offset)
        try:
            if pages or self._moved(read_time, queue_offset):
                self._store.sync_log()
            flushed = self.timer_log.flush()
        except BaseException:
            self.wheel.give_back(pages)
            raise
        self.wheel.write(pages)
        if self.checkpoint.fields is None or not self._format_written:
            self._write_format()
        if self._moved(read_time, queue_offset) and self.should_running_dequeue:
            self._version += 1
            self._version_ms = self._clock.now_ms()
        self.checkpoint.write(TimerCheckpointFields(
            read_time, flushed, min(queue_offset, master), master, 0, self._version_ms,
            self._version))

    def _moved(self, read_time: int, queue_offset: int) -> bool:
        fields = self.checkpoint.fields
        return fields is None or (
            (read_time, queue_offset)
            != (fields.last_read_time_ms, fields.master_timer_queue_offset))

    def _log_progress(self) -> None:
        now_ns = self._clock.monotonic_ns()
        interval_ns = self.config.timer_progress_log_interval_ms * 1_000_000
        if self.checkpoint.fields is None or now_ns - self._last_progress_ns < interval_ns:
            return
        self._last_progress_ns = now_ns
        behind_ms = max(self._clock.now_ms() - self.state.frontier_ms, 0)
        figures = (
            self.enqueue.behind(), len(self.due) - self.due.waiting, self.due.waiting,
            self.put_back.counters["timerPutBack"], self.wheel.pending(self.state.frontier_ms))
        if figures == self._last_figures and behind_ms < interval_ns // 1_000_000:
            return  # nothing has happened since the last line
        self._last_figures = figures
        offset_behind, to_look_at, waiting, put_back, congestion = figures
        events.TIMER_PROGRESS.log(
            _log, read_behind_ms=behind_ms, offset_behind=offset_behind, to_look_at=to_look_at, waiting=waiting,
            put_back=put_back, congestion=congestion)
