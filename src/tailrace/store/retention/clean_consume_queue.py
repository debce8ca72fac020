"""Deletes files of queues and index after files of the CommitLog (RocketMQ's CleanConsumeQueueService).

When the least offset of the log has moved, every queue deletes the files whose messages have all been
deleted, except its last file, and corrects its least offset. Then the index does the same. Files are deleted
oldest first, and each name is durably removed before the next file is touched, so a queue never has a hole.
Queues and index are derived from the log, so the next pass completes what a crash has interrupted.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import final

from tailrace import events
from tailrace.config import StoreConfig
from tailrace.env.clock import Clock
from tailrace.logs import get_logger
from tailrace.store.commit_log import CommitLog
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.store.consume_queue_store import ConsumeQueueStore
from tailrace.store.index_service import IndexService

__all__ = ["CleanConsumeQueueService"]

_log = get_logger(__name__)
_MS = 1_000_000


@final
class CleanConsumeQueueService:
    """Makes a pass at the start and at each ``cleanResourceInterval``.

    A step ends after the first queue that has deleted files.
    """

    def __init__(
        self, clock: Clock, config: StoreConfig, commit_log: CommitLog, queues: ConsumeQueueStore,
        index: IndexService | None,
    ) -> None:
        self._clock = clock
        self._config = config
        self._log = commit_log
        self._queues = queues
        self._index = index
        self._next_pass_ns = clock.monotonic_ns()
        self._done_until = 0
        self._min_phy_offset = 0
        self._pending: Iterator[ConsumeQueue] | None = None
        self._failed = False
        self._lock = threading.Lock()
        """Held by the one thread that makes a pass."""
        self.deleted_queue_files = 0
        self.deleted_index_files = 0

    def run_pass(self) -> None:
        """Make one whole pass without pauses, for tools."""
        with self._lock:
            if self._pending is None:
                self._begin_pass()
            while self._pending is not None:
                self._pass_step()

    def step(self) -> bool:
        """Start a pass when it is time, or continue one. Return True to be run again without a wait."""
        with self._lock:
            now = self._clock.monotonic_ns()
            if self._pending is None and now >= self._next_pass_ns:
                self._next_pass_ns = now + self._config.clean_resource_interval * _MS
                self._begin_pass()
            if self._pending is None:
                return False
            self._pass_step()
            return not self._config.delete_consume_queue_files_interval

    def _begin_pass(self) -> None:
        low = self._log.min_offset
        if low > self._done_until:
            self._min_phy_offset = low
            self._failed = False
            self._pending = iter(list(self._queues.table.values()))

    def _pass_step(self) -> None:
        assert self._pending is not None
        try:
            for queue in self._pending:
                with self._queues.deleting:
                    is_there = self._queues.table.get((queue.topic, queue.queue_id)) is queue
                    if is_there and self._clean(queue):  # else its topic was deleted in the meantime
                        return
            if self._index is not None:
                self.deleted_index_files += self._index.delete_expired_files(self._min_phy_offset)
        except OSError as error:
            self._failed = True
            events.CANNOT_DELETE_AN_INDEX_FILE.log(_log, cause=error)
        self._pending = None
        if not self._failed:
            self._done_until = self._min_phy_offset

    def _clean(self, queue: ConsumeQueue) -> int:
        """Delete the files of one queue that the log has left, and correct its least offset.

        Return the number of deleted files.
        """
        count = 0
        try:
            while queue.delete_expired_file(self._min_phy_offset):
                count += 1
            unit = queue.unit(queue.min_offset)
            if unit is not None and unit.phy_offset < self._min_phy_offset:
                queue.correct_min_offset(self._min_phy_offset)
        except OSError as error:
            self._failed = True
            events.CANNOT_DELETE_A_QUEUE_FILE.log(_log, topic=queue.topic, queue_id=queue.queue_id, cause=error)
        if count:
            events.DELETED_QUEUE_FILES.log(
                _log, topic=queue.topic, queue_id=queue.queue_id, files=count, min_offset=queue.min_offset)
        self.deleted_queue_files += count
        return count
