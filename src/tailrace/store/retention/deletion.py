"""The parts of one store that free disk space: trash, check of the disks, and the two services that delete."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import final

from tailrace.env.clock import Clock
from tailrace.env.filesystem import FileSystem
from tailrace.formats import filenames
from tailrace.segments import MappedFile
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.store.log_paths import log_paths
from tailrace.store.retention.clean_commit_log import CleanCommitLogService
from tailrace.store.retention.clean_consume_queue import CleanConsumeQueueService
from tailrace.store.retention.disk_check import DiskCheckService
from tailrace.store.retention.forced_deletions import ForcedDeletions
from tailrace.store.retention.free_request import FreeRequest
from tailrace.store.retention.trash import Trash

__all__ = ["Deletion"]


@final
class Deletion:
    """Composes the parts and gives them the functions of the store that they call.

    Messages of the topics ``waiting`` are not counted as deleted: the service that writes them again
    counts those that are lost.
    """

    def __init__(
        self, clock: Clock, file_system: FileSystem, store: DefaultMessageStore,
        waiting: Collection[str],
    ) -> None:
        config, log = store.config, store.commit_log
        self._file_system = file_system
        self._store = store
        self._waiting = waiting
        self.trash = Trash(clock, file_system, store.root, log.queue.directories, config.delete_rate)
        self.disk = DiskCheckService(
            file_system, config, store.flags, self.trash, log_paths(config, store.root).writable,
            f"{store.root}/{filenames.CONSUMEQUEUE}", self.store_bytes)
        self.clean_commit_log = CleanCommitLogService(
            clock, file_system, config, log, store.flags, self.trash, self.disk,
            self._store_timestamp, self._dispatched_until, self._count_messages,
            ForcedDeletions(file_system, store.root))
        self.clean_consume_queue = CleanConsumeQueueService(
            clock, config, log, store.queues, store.index)

    def full_files(self) -> tuple[MappedFile, ...]:
        """Return the files of the log without the last one."""
        return self._store.commit_log.queue.files[:-1]

    def run_pass(self, also: Callable[[], object]) -> int:
        """Make one whole pass by hand, with queues and index. Return the number of deleted CommitLog files.

        ``also`` is called before the first file is deleted. Raises FatalStorageError.
        """
        self._store.sync_log()  # what an open found counts as written only
        also()
        count = self.clean_commit_log.run_pass(manual=True)
        self.clean_consume_queue.run_pass()
        return count

    def run_free(self, wanted_bytes: int) -> FreeRequest:
        """Delete the oldest files without a pin until this many bytes are freed, then clean queues and index.

        Returns the request when it has ended. Raises StoreError or OSError.
        """
        self._store.sync_log()
        request = self.clean_commit_log.run_free(wanted_bytes)
        self.clean_consume_queue.run_pass()
        return request

    def store_bytes(self) -> int:
        """Return the bytes that log, index and queue units take, as maxStoreBytes counts them."""
        store = self._store
        size = sum(self._allocated(file) for file in store.commit_log.queue.files)
        for queue in list(store.queues.table.values()):
            size += max(queue.files.max_offset - max(queue.files.min_offset, 0), 0)
        return size + sum(self._allocated(file) for file in (store.index.files if store.index else ()))

    def _count_messages(self, low_phy_offset: int, high_phy_offset: int) -> dict[str, int]:
        """Return the messages by topic between two positions, without those that wait for their time."""
        found: dict[str, int] = {}
        for (topic, _), queue in list(self._store.queues.table.items()):
            if topic in self._waiting:
                continue
            if count := queue.count_between(low_phy_offset, high_phy_offset):
                found[topic] = found.get(topic, 0) + count
        return found

    def _allocated(self, file: MappedFile) -> int:
        try:
            return self._file_system.stat(file.path).allocated
        except OSError:
            return 0  # it has just been deleted

    def _dispatched_until(self, wanted: int) -> int:
        """Return the position below which no record is needed to find the next offset of its queue.

        For that, the unit of the record must be durable. Otherwise, after a deletion and a power loss, the
        queue would give its next message an offset that it has given before. The queues are synced if the
        result then reaches ``wanted``; -1 syncs nothing.
        """
        store, flush = self._store, self._store.flush_consume_queue
        until, position = store.reput.reput_from_offset, store.reput.position
        if position is None or position.until <= flush.durable_until:
            return until  # after it there are only blanks
        if flush.durable_until < wanted <= until and store.is_writeable:
            flush.flush(0)
        return until if position.until <= flush.durable_until else min(until, flush.durable_until)

    def _store_timestamp(self, phy_offset: int) -> int:
        """Return when the record at a position was stored, by the wall clock; -1 if there is no valid record."""
        found = self._store.reader.decode_at(phy_offset)
        if found is None:
            return -1
        return self._store.commit_log.wall_times.of(phy_offset, found.store_timestamp)
