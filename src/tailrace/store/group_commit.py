"""Making the CommitLog durable under both disk types, and answering the puts that wait for it.

Invariants:
  FL1  A waiting put gets PUT_OK only after a sync that covers its bytes has returned.
  FL2  After a failed sync no waiting put gets PUT_OK, and the store takes no more writes.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable
from typing import final

from tailrace import events
from tailrace.config import FlushDiskType, StoreConfig
from tailrace.env.clock import Clock
from tailrace.errors import FatalStorageError
from tailrace.logs import get_logger
from tailrace.metrics import LOG_SYNC, Histogram
from tailrace.model import PutMessageStatus
from tailrace.store.commit_log import CommitLog
from tailrace.store.running_flags import NOT_WRITEABLE, RunningFlags
from tailrace.store.store_checkpoint import StoreCheckpoint

__all__ = ["DurableCallback", "FlushCommitLogService"]

_log = get_logger(__name__)
DurableCallback = Callable[[PutMessageStatus], None]


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
        wake: Callable[[], bool],
    ) -> None:
        """``wake`` has the service run its step soon; it returns False if no service runs."""
        self._clock = clock
        self._config = config
        self._commit_log = commit_log
        self._flags = flags
        self._checkpoint = checkpoint
        self._wake = wake
        self._lock = threading.Lock()
        self._waiting: list[tuple[int, int, int, DurableCallback]] = []
        self._number = itertools.count()
        self._last_thorough_ns = clock.monotonic_ns()
        self.sync = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self.failed = False
        self._short = False
        self.sync_times = Histogram(LOG_SYNC)
        """Times of the syncs that returned."""

    def when_durable(self, until: int, callback: DurableCallback) -> None:
        """Call ``callback`` with the result when everything below ``until`` is durable or cannot become durable.

        Under ASYNC_FLUSH the call is immediate, with PUT_OK. Under SYNC_FLUSH the result is PUT_OK after a
        sync, FLUSH_DISK_TIMEOUT after ``sync_flush_timeout``, SERVICE_NOT_AVAILABLE after a failed sync.
        """
        if not self.sync or self._commit_log.queue.flushed_where >= until:
            callback(PutMessageStatus.PUT_OK)
            return
        deadline = self._clock.monotonic_ns() + self._config.sync_flush_timeout * 1_000_000
        with self._lock:  # without it the callback would wait forever if a sync fails between these two lines
            failed = self.failed
            if not failed:
                heapq.heappush(self._waiting, (until, next(self._number), deadline, callback))
        if failed:
            callback(PutMessageStatus.SERVICE_NOT_AVAILABLE)
        elif not self._wake():
            self.step()

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
        return self._answer(self._commit_log.queue.flushed_where)

    def flush(self) -> None:
        """Make the whole log durable. Raises FatalStorageError; OSError while descriptors are short."""
        self._flush(0)
        self._answer(self._commit_log.queue.flushed_where)

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
        _call_all([entry[3] for entry in waiting], PutMessageStatus.SERVICE_NOT_AVAILABLE)

    def _answer(self, flushed_where: int) -> bool:
        """Answer the puts that are durable or late. Return True if others still wait."""
        if not self._waiting:
            return False
        now = self._clock.monotonic_ns()
        done: list[DurableCallback] = []
        late: list[DurableCallback] = []
        with self._lock:
            while self._waiting and self._waiting[0][0] <= flushed_where:
                done.append(heapq.heappop(self._waiting)[3])
            if self._waiting and min(entry[2] for entry in self._waiting) <= now:
                late = [entry[3] for entry in self._waiting if entry[2] <= now]
                self._waiting = [entry for entry in self._waiting if entry[2] > now]
                heapq.heapify(self._waiting)
            more = bool(self._waiting)
        _call_all(done, PutMessageStatus.PUT_OK)
        _call_all(late, PutMessageStatus.FLUSH_DISK_TIMEOUT)
        return more


def _call_all(callbacks: list[DurableCallback], status: PutMessageStatus) -> None:
    """Answer waiting puts. A callback that raises is logged, and the puts after it are answered."""
    for callback in callbacks:
        try:
            callback(status)
        except Exception:  # noqa: BLE001 - the code of a caller: its error must not cost another put its answer
            events.AN_ANSWER_TO_A_PUT_FAILED.log(_log, status=status.name, exc_info=True)
