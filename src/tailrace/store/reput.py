"""Dispatch new records to queues and index (RocketMQ's ReputMessageService)."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, final

import numpy as np

from tailrace import events
from tailrace.errors import DispatchWaitsError
from tailrace.formats.commitlog import PLAUSIBLE_LENGTH, plausible_size
from tailrace.kernels import record
from tailrace.kernels.shared import constants as C
from tailrace.logs import get_logger
from tailrace.segments import MappedFile
from tailrace.store.commit_log import CommitLog
from tailrace.store.dispatch import Dispatcher
from tailrace.store.hooks import Follower
from tailrace.store.progress import Position
from tailrace.store.running_flags import FOLLOWS, WRITE_LOGICS_QUEUE_ERROR, RunningFlags

__all__ = ["ReputMessageService"]

_log = get_logger(__name__)
_ROWS: Final = 4096
_CHUNK: Final = 8 << 20
"""Records and bytes that are read in one piece: their rows fit the processor's cache."""
_STEP_RECORDS: Final = 32_768
"""Records after which a step writes units and entries.

A step makes a system call for each queue, and each call gives up the interpreter's lock. If another thread puts in a
loop, dispatch gets the lock back after 5 ms (1 ms in a server). To keep up with such a thread, a step must have many
records.
"""
_SHORT_STEP: Final = 256 << 10
"""Bytes up to which the records of a step may be few enough for the quick way."""
_BEFORE: Final = 65


@final
class ReputMessageService:
    """Invariant: the units and entries of every record below ``reput_from_offset`` are written."""

    def __init__(
        self,
        commit_log: CommitLog,
        dispatcher: Dispatcher,
        confirm_offset: Callable[[], int],
        flags: RunningFlags,
        check: int = C.CHECK_PHY_OFFSET,
    ) -> None:
        """``check`` are flags C.CHECK_*: more than the position if others have written the records."""
        self._check = check
        self._log = commit_log
        self._dispatcher = dispatcher
        self._confirm_offset = confirm_offset
        self._flags = flags
        self._seen_until = 0
        self._tail = commit_log.tail
        self._tail.reader_waits = True  # a put must wake the service; else it is running and will see the message
        self._rows = np.empty((_ROWS, C.COLUMNS), dtype=np.int64)
        self._batch = dispatcher.new_batch()
        self._short = dispatcher.new_short_batch(check)
        self._changed = threading.Condition()
        self._lock = threading.Lock()
        self._thread = 0
        """The thread that dispatches, 0 if none does."""
        self.steps = 0
        """Number of steps that have ended."""
        self._turn = threading.Condition()
        self._pauses = 0
        """Number of threads that are in `paused` or wait for it. Dispatch lets them go first.

        A thread that releases a lock and takes it again at the next moment is faster than a thread that waits for it.
        Under writers that never stop, a pause would wait for minutes.
        """
        self._logged_bad = -1
        self._waits_at = self._waits_until = -1
        self.reput_from_offset = 0
        self.position: Position | None = None
        """The last record that was dispatched; see ``store.progress``."""
        self._recent: deque[int] = deque(maxlen=_BEFORE)

    def follow(self, follower: Follower) -> None:
        """Ask ``follower`` before a queue is made or begins again: on a slave."""
        self._dispatcher.follower = follower

    def begin_again(self, topic: str, queue_id: int, phy_offset: int) -> None:
        """Write no unit of a queue for records before a position; called while dispatch is `paused`."""
        self._dispatcher.begin_again(topic, queue_id, phy_offset)

    def step(self) -> bool:
        """Dispatch some records. Return True if there may be more."""
        if self._pauses:
            with self._turn:
                self._turn.wait_for(lambda: not self._pauses)
        with self._lock:
            self._tail.reader_waits, self._thread = False, threading.get_ident()
            waits = False
            try:
                again = self._step()
            except DispatchWaitsError:  # the broker of a slave finds out what is needed
                again, waits = False, True
            finally:
                self._thread = 0
                self.steps += 1
            if not again and not waits:
                # In this order, so that either a put sees the flag, or the end of its record is seen here.
                self._tail.reader_waits = True
                again = self._confirm_offset() > self._seen_until
        with self._changed:
            self._changed.notify_all()
        return again

    def _step(self) -> bool:
        start, until = self.reput_from_offset, self._confirm_offset()
        self._seen_until = until
        low = self._log.min_offset
        if start < low and self._log.queue.find(start) is None:
            events.REPUT_JUMPS_TO_THE_FIRST_FILE.log(_log, from_=start, to=low)
            self.reput_from_offset = low
            return True
        if until - start <= _SHORT_STEP and self._short_step(start, until):
            return False
        self._batch.clear()
        recent, at, stop = self._recent.copy(), start, start
        while stop < until and self._batch.records < _STEP_RECORDS:
            at, stop = stop, self._read(stop, until, recent)
            if stop == at or self._pauses:
                break
        if self._batch.records:
            last = self._batch.rows[-1].tolist()
            self._dispatcher.dispatch_batch(self._batch)
            self._recent = recent
            self.position = Position(
                recent[0], last[C.PHY], last[C.SIZE], last[C.STORE_TIMESTAMP])
        self.reput_from_offset = stop
        return start < stop < until

    def _short_step(self, start: int, until: int) -> bool:
        """Dispatch the records up to ``until``, and return True, if they are few and need no closer look."""
        file = self._log.queue.find(start)
        if file is None or until - file.file_from_offset > file.wrote_position:
            return False
        short, size = self._short, until - start
        lease = file.select(start - file.file_from_offset, size)
        if lease is None:
            return False
        with lease:
            if not self._dispatcher.dispatch_short(short, lease.buffer, size, start):
                return False
        self._recent.extend(short.positions(_BEFORE))
        self.position = Position(self._recent[0], *short.last())
        self.reput_from_offset = until
        return True

    def _read(self, start: int, until: int, recent: deque[int], most: int = _CHUNK) -> int:
        """Add records from ``start`` onwards to the batch, and their positions to ``recent``.

        Return the position after the last one, or after the blank record that ends a file. Up to ``most`` bytes are
        read, or more if the first record is longer.
        """
        file = self._log.queue.find(start)
        if file is None:
            return start
        at = start - file.file_from_offset
        end = min(file.wrote_position, until - file.file_from_offset)
        limit = min(end, at + most)
        lease = file.select(at, limit - at)
        if lease is None:
            return start
        with lease:
            count, stop, reason = record.scan(
                lease.buffer, 0, limit - at, start, self._check, self._rows)
            rows = self._rows[:count]
            if count:
                self._dispatcher.add(self._batch, lease.buffer, rows)
                recent.extend(rows[-_BEFORE:, C.PHY].tolist())
        if reason == C.REASON_BLANK:
            return file.file_from_offset + file.size
        if not count and reason == C.REASON_SHORT and limit < end:
            size = plausible_size(file.read(at, PLAUSIBLE_LENGTH), start)
            return self._read(start, until, recent, size) if size > most else start
        if start == self.reput_from_offset and not count:
            if reason != C.REASON_SHORT:
                self._stop_at_bad_record(start, file.path, record.REASON_NAMES[reason])
            elif self._flags.bits & FOLLOWS:
                self._wait_for_the_rest(start, until, file)
        return start + stop

    def _wait_for_the_rest(self, start: int, until: int, file: MappedFile) -> None:
        """Note that the record at ``start`` reaches past ``until``, where the log of a slave ends for now."""
        at = start - file.file_from_offset
        head = file.read(at, min(PLAUSIBLE_LENGTH, until - start))
        size = plausible_size(head, start)
        if len(head) == PLAUSIBLE_LENGTH and not 0 < size <= file.size - at:
            self._stop_at_bad_record(start, file.path, record.REASON_NAMES[C.REASON_BAD_LENGTH])
            return
        self._waits_at, self._waits_until = start, until

    @property
    def incomplete(self) -> int:
        """Position of a record whose end the log of a slave does not have yet, -1 without one."""
        return self._waits_at if self._waits_at == self.reput_from_offset else -1

    @property
    def bad_record_at(self) -> int:
        """Position of the bytes at which dispatch has stopped because they are not a record, -1 without them."""
        return self._logged_bad

    def has_dispatched(self, until: int) -> bool:
        """Return True if all records that end at or below ``until`` are dispatched."""
        return self.reput_from_offset >= until or (self.incomplete >= 0 and self._waits_until >= until)

    def _stop_at_bad_record(self, start: int, path: str, reason: str) -> None:
        """Refuse puts and bytes of a master, because bytes that this process wrote are not a valid record."""
        if self._logged_bad != start:
            self._logged_bad = start
            self._flags.set(
                WRITE_LOGICS_QUEUE_ERROR,
                f"dispatch stopped at a bad record at phy_offset={start} ({reason}); the next open recovers")
            events.DISPATCH_STOPPED_AT_A_BAD_RECORD.log(_log, file=path, phy_offset=start, reason=reason)

    def start_from(self, phy_offset: int, position: Position | None) -> None:
        """Start at the position where recovery ended."""
        self.reput_from_offset = phy_offset
        self.position = position
        self._recent.clear()
        if position is not None:
            self._recent.append(position.start)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Context in which nothing is dispatched. The thread that dispatches must not enter it."""
        assert self._thread != threading.get_ident(), "dispatch would wait for itself"
        with self._turn:
            self._pauses += 1
        try:
            with self._lock:
                yield
        finally:
            with self._turn:
                self._pauses -= 1
                self._turn.notify_all()

    def behind_bytes(self) -> int:
        """Return the number of bytes of the log that are not dispatched yet."""
        return max(0, self._log.max_offset - self.reput_from_offset)

    def wait(self, until: int, timeout_ms: int) -> bool:
        """Wait until all records that end at or below ``until`` are dispatched.

        Return False after ``timeout_ms``, or immediately if dispatch has stopped at a bad record.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self.has_dispatched(until) or self.bad_record_at == self.reput_from_offset, timeout_ms / 1000)
            return self.has_dispatched(until)
