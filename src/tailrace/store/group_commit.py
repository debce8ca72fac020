"""Making the CommitLog durable under both disk types, and answering the puts that wait for its disk and its copies.

Under SYNC_FLUSH a put waits for a sync, with a SYNC_MASTER for copies on slaves, with both for both.

Invariants:
  FL1  A waiting put gets PUT_OK only after a sync that covers its bytes has returned, if it waits for one, and after
       enough copies have its bytes, if it waits for them.
  FL2  After a failed sync no waiting put gets PUT_OK, and the store takes no more writes.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable
from typing import Final, NamedTuple, final

from tailrace import events
from tailrace.config import FlushDiskType, StoreConfig
from tailrace.env.clock import Clock
from tailrace.errors import FatalStorageError
from tailrace.logs import get_logger
from tailrace.metrics import LOG_SYNC, Histogram
from tailrace.model import PutMessageStatus
from tailrace.store.commit_log import CommitLog
from tailrace.store.replication import ALL, Replication
from tailrace.store.running_flags import NOT_WRITEABLE, RunningFlags
from tailrace.store.store_checkpoint import StoreCheckpoint

__all__ = ["DurableCallback", "FlushCommitLogService"]

_log = get_logger(__name__)
DurableCallback = Callable[[PutMessageStatus], None]
_PUT_OK: Final = PutMessageStatus.PUT_OK
_NO_COPY: Final = -1
"""Instead of a time: the put does not wait for copies."""


class _Put(NamedTuple):
    """A put that waits, or several that were put together."""

    until: int
    number: int
    """Makes entries comparable."""
    disk_ns: int
    """Time after which it is FLUSH_DISK_TIMEOUT."""
    slave_ns: int
    """Time after which it is FLUSH_SLAVE_TIMEOUT; 0 if too few slaves were in sync when it was put, `_NO_COPY`."""
    callback: DurableCallback


@final
class FlushCommitLogService:
    """GroupCommitService under SYNC_FLUSH, FlushRealTimeService under ASYNC_FLUSH."""

    def __init__(
        self,
        clock: Clock,
        config: StoreConfig,
        commit_log: CommitLog,
        flags: RunningFlags,
        checkpoint: StoreCheckpoint,
        replication: Replication,
        wake: Callable[[], bool],
    ) -> None:
        """``wake`` has the service run its step soon; it returns False if no service runs or nothing waits for it."""
        self._clock = clock
        self._config = config
        self._commit_log = commit_log
        self._flags = flags
        self._checkpoint = checkpoint
        self._replication = replication
        self._wake = wake
        self._lock = threading.Lock()
        self._waiting: list[_Put] = []
        self._number = itertools.count()
        self._last_thorough_ns = clock.monotonic_ns()
        self.sync = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self.failed = False
        self._short = False
        self.sync_times = Histogram(LOG_SYNC)
        """Times of the syncs that returned."""

    def when_durable(self, until: int, callback: DurableCallback) -> None:
        """Call ``callback`` with the result when everything below ``until`` is safe, or cannot become so.

        Under ASYNC_FLUSH without copies to wait for the call is immediate, with PUT_OK. Under SYNC_FLUSH the result is
        PUT_OK after a sync, FLUSH_DISK_TIMEOUT after ``sync_flush_timeout``, SERVICE_NOT_AVAILABLE after a failed sync.
        With a SYNC_MASTER it is PUT_OK when enough copies have it as well, SLAVE_NOT_AVAILABLE if too few slaves are
        in sync at the time of the call, and FLUSH_SLAVE_TIMEOUT after ``slave_timeout``. Both mean that the bytes are
        as safe on this store as the disk type says.
        """
        now, limit = self._clock.monotonic_ns(), self._config.slave_timeout * 1_000_000
        self._enter(until, now, 0 if self._replication.is_hopeless else now + limit, callback)

    def when_synced(self, until: int, callback: DurableCallback) -> None:
        """Do the same without waiting for copies on slaves."""
        self._enter(until, self._clock.monotonic_ns(), _NO_COPY, callback)

    def _enter(self, until: int, now: int, slave_ns: int, callback: DurableCallback) -> None:
        put = _Put(
            until, next(self._number), now + self._config.sync_flush_timeout * 1_000_000, slave_ns, callback)
        verdict = self._verdict(put, now)
        if verdict is not None:
            if verdict is not _PUT_OK:
                self._count(verdict)
            callback(verdict)
            return
        with self._lock:  # without it the callback would wait forever if a sync fails between these two lines
            failed = self.failed
            if not failed:
                heapq.heappush(self._waiting, put)
        if failed:
            callback(PutMessageStatus.SERVICE_NOT_AVAILABLE)
        elif not self.sync:
            self._replication.wake()
            self.answer()  # a copy may have come between the first look and the entry into the list
        elif not self._wake():
            self.step()

    def _verdict(self, put: _Put, now: int) -> PutMessageStatus | None:
        """Return the result of a put, None if it waits."""
        if self.sync and self._commit_log.queue.flushed_where < put.until:
            return PutMessageStatus.FLUSH_DISK_TIMEOUT if put.disk_ns <= now else None
        if put.slave_ns == _NO_COPY or self._replication.replicated_where >= put.until:
            return _PUT_OK
        if not put.slave_ns:
            return PutMessageStatus.SLAVE_NOT_AVAILABLE
        return PutMessageStatus.FLUSH_SLAVE_TIMEOUT if put.slave_ns <= now else None

    def _count(self, verdict: PutMessageStatus) -> None:
        """Count a put that was answered before enough slaves had it."""
        if verdict.name in self._replication.unreplicated:
            with self._lock:
                self._replication.unreplicated[verdict.name] += 1

    def step(self) -> bool:
        """Flush as the interval asks and answer the puts that wait. Return True if puts still wait."""
        thorough_ns = self._config.flush_commit_log_thorough_interval * 1_000_000
        now = self._clock.monotonic_ns()
        thorough = self.sync or now - self._last_thorough_ns >= thorough_ns
        try:
            self._flush(0 if thorough else self._config.flush_commit_log_least_pages)
            self._short = False
            if thorough:
                self._last_thorough_ns = now
        except OSError as error:  # no sync was tried, so puts wait for the next step or time out
            if not self._short:
                events.FLUSH_WAITS_FOR_DESCRIPTORS_OR_MEMORY.log(_log, cause=error)
            self._short = True
        return self.answer()

    def flush(self) -> None:
        """Make the whole log durable. Raises FatalStorageError; OSError while descriptors are short."""
        self._flush(0)
        self.answer()

    def _flush(self, least_pages: int) -> None:
        timestamp = self._commit_log.last_store_timestamp
        covered, begun_ns = self._commit_log.max_offset, self._clock.monotonic_ns()
        try:
            flushed = self._commit_log.queue.flush(least_pages)
        except FatalStorageError as error:
            self._fail(error)
            raise
        if flushed:
            self.sync_times.add((self._clock.monotonic_ns() - begun_ns) / 1_000_000)
            if self._replication.sends_synced_only:
                self._replication.wake()
        if flushed and timestamp and self._commit_log.queue.flushed_where >= covered:
            self._checkpoint.update(physic_msg_timestamp=timestamp)

    def _fail(self, error: FatalStorageError) -> None:
        if not self.failed:
            events.FLUSH_FAILED.log(_log, cause=error)
        self.give_up(str(error))

    def give_up(self, reason: str) -> None:
        """Take no more writes, and answer each waiting put that its message may not be durable."""
        self._flags.set(NOT_WRITEABLE, reason)
        with self._lock:
            self.failed = True
            waiting, self._waiting = self._waiting, []
        _call_all([put.callback for put in waiting], PutMessageStatus.SERVICE_NOT_AVAILABLE)

    def answer(self) -> bool:
        """Answer the puts that are safe or late; any thread may call this. Return True if others still wait."""
        if not self._waiting:
            return False
        now = self._clock.monotonic_ns()
        safe = min(
            self._commit_log.queue.flushed_where if self.sync else ALL, self._replication.replicated_where)
        done: list[DurableCallback] = []
        late: list[tuple[DurableCallback, PutMessageStatus]] = []
        with self._lock:
            while self._waiting and self._waiting[0].until <= safe:
                done.append(heapq.heappop(self._waiting).callback)
            verdicts = [self._verdict(put, now) for put in self._waiting]
            if any(verdicts):
                late = [(put.callback, verdict) for put, verdict in zip(self._waiting, verdicts, strict=True)
                        if verdict is not None]
                self._waiting = [
                    put for put, verdict in zip(self._waiting, verdicts, strict=True) if verdict is None]
                heapq.heapify(self._waiting)
            more = bool(self._waiting)
        _call_all(done, _PUT_OK)
        for callback, status in late:
            self._count(status)
            _call_all([callback], status)
        return more


def _call_all(callbacks: list[DurableCallback], status: PutMessageStatus) -> None:
    """Answer waiting puts. A callback that raises is logged, and the puts after it are answered."""
    for callback in callbacks:
        try:
            callback(status)
        except Exception:  # noqa: BLE001 - the code of a caller: its error must not cost another put its answer
            events.AN_ANSWER_TO_A_PUT_FAILED.log(_log, status=status.name, exc_info=True)
