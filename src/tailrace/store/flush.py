"""Making ConsumeQueues and index durable, and the progress and the checkpoint that say so.

Invariant:
  FL3  A checkpoint field is set after the sync that it stands for (W5).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final, final

from tailrace import events
from tailrace.config import StoreConfig
from tailrace.env.clock import Clock
from tailrace.env.filesystem import FileSystem
from tailrace.formats.checkpoint import CHECKPOINT
from tailrace.logs import get_logger
from tailrace.store.commit_log import CommitLog
from tailrace.store.consume_queue_store import ConsumeQueueStore
from tailrace.store.index_service import IndexService
from tailrace.store.progress import Position, Progress, ProgressFile, checkpoint_bytes
from tailrace.store.reput import ReputMessageService
from tailrace.store.store_checkpoint import StoreCheckpoint

__all__ = ["FlushConsumeQueueService"]

_log = get_logger(__name__)
_PROGRESS_BYTES: Final = 64 << 20
_MAX_PENDING: Final = 32


@final
class FlushConsumeQueueService:
    """Syncs queues and index, then writes progress and the checkpoint."""

    def __init__(
        self,
        clock: Clock,
        file_system: FileSystem,
        config: StoreConfig,
        commit_log: CommitLog,
        queues: ConsumeQueueStore,
        index: IndexService | None,
        reput: ReputMessageService,
        checkpoint: StoreCheckpoint,
        progress: ProgressFile,
        copy_compacted: Callable[[bool], bool],
    ) -> None:
        """``copy_compacted`` copies messages of topics with compaction. Its argument is True in a thorough pass.

        It returns True if all are copied durably.
        """
        self._clock = clock
        self._file_system = file_system
        self._config = config
        self._commit_log = commit_log
        self._queues = queues
        self._index = index
        self._reput = reput
        self._checkpoint = checkpoint
        self._progress_file = progress
        self._last_thorough_ns = -1
        self._took_ns = 0
        self._put_off = False
        self._written: Position | None = None
        """Position of the last progress that was written."""
        self._pending: list[Progress] = []
        """Progress whose units and entries are durable, to be written when the log is durable up to there."""
        self._lock = threading.Lock()
        self._copy_compacted = copy_compacted
        self.durable_until = -1
        """The unit and the index entries of every record below this position are durable; -1: not known."""

    def step(self) -> None:
        """Sync the queues that have many dirty pages; in a thorough pass sync all queues and the index.

        A pass is thorough after the configured interval, and after 64 MiB of records, so that an open
        after a kill has little more than that to walk. Thorough passes by size take at most a fifth of
        the time.
        """
        now = self._clock.monotonic_ns()
        since = now - self._last_thorough_ns
        position, last = self._reput.position, (self._pending[-1] if self._pending else self._written)
        much = (
            position is not None
            and position.until - (last.until if last else 0) >= _PROGRESS_BYTES
            and since >= 4 * self._took_ns
        )
        thorough = much or self._last_thorough_ns < 0 or (
            since >= self._config.flush_consume_queue_thorough_interval * 1_000_000)
        self.flush(0 if thorough else self._config.flush_consume_queue_least_pages)
        if thorough and not self._put_off:
            self._last_thorough_ns = now
            self._took_ns = self._clock.monotonic_ns() - now

    def flush(self, least_pages: int, *, clean: bool = False) -> None:
        """Sync queues with at least ``least_pages`` dirty pages; with 0 also the index, then write progress.

        ``clean`` marks the last flush before a clean stop. Any thread may call it.
        Raises FatalStorageError; with ``clean`` also OSError, which is otherwise logged, and the next flush retries.
        """
        with self._lock:
            self._flush(least_pages, clean=clean)

    def _flush(self, least_pages: int, *, clean: bool) -> None:
        thorough = least_pages == 0
        try:
            progress = self._make_progress(clean=clean) if thorough else None
            everything = self._queues.flush(least_pages)
            everything = self._copy_compacted(thorough) and everything
            if self._index is not None:
                if thorough:
                    self._index.flush()
                self._index.flush_full()
            if progress is not None and everything:
                self.durable_until = progress.until
                self._pending.append(progress)
                del self._pending[1 : -_MAX_PENDING]  # keep the first: it can be written soonest
            self._write_progress()
            self._put_off = False
        except OSError as error:
            # Not a failed sync, which is a FatalStorageError. Old progress makes a recovery longer and loses no
            # message. The next pass writes it again.
            if clean:
                raise
            if not self._put_off:
                events.THE_CHECKPOINT_CANNOT_BE_WRITTEN.log(_log, cause=error)
            self._put_off = True

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Context in which no flush is under way. Enter it before ``ReputMessageService.paused``."""
        with self._lock:
            yield

    def forget(self) -> None:
        """Let the next flush write progress, even if no message was put since the last one.

        The caller is in `paused`, so that no flush writes progress of before the call.
        """
        self._written = None
        self._pending.clear()

    def _make_progress(self, *, clean: bool) -> Progress | None:
        """Return the progress that the next sync makes durable; None if it was written already.

        Must be called before the sync, because the sync may not cover units dispatched during it.
        """
        with self._reput.paused():
            position = self._reput.position
            if position is None or (position == self._written and not clean):
                return None
            return Progress.of(
                position, self._commit_log, [], self._queues, self._index, clean=clean)

    def _write_progress(self) -> None:
        """Write the latest pending progress that the durable part of the log covers, and the checkpoint.

        Another service syncs the log, so units and entries may be durable before their records. While
        writers are faster than the disk the log never catches up, so each progress waits in
        ``_pending`` for its own position. The checkpoint is written only together with a progress
        that names its bytes.
        """
        flushed = self._commit_log.queue.flushed_where
        covered = [progress for progress in self._pending if progress.until <= flushed]
        if not covered:
            return
        progress = covered[-1]
        before = checkpoint_bytes(self._file_system, self._checkpoint.path)
        self._checkpoint.update(
            logics_physical_offset=progress.last, logics_msg_timestamp=progress.last_timestamp)
        if self._index is not None:
            self._checkpoint.update(index_msg_timestamp=self._index.full_until)
        fields = self._checkpoint.fields  # the flush of the log may update them during the two writes
        self._progress_file.write(
            replace(progress, checkpoints=[before, CHECKPOINT.pack(*fields).hex()]))
        self._checkpoint.flush(fields)
        del self._pending[: len(covered)]
        self._written = Position(
            progress.start, progress.last, progress.until - progress.last, progress.last_timestamp)
