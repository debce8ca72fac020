"""The table of all queues of a store.

Queues of topics with ``queue.type=BatchCQ`` are in ``batchconsumequeue/TOPIC/ID/``, the others in
``consumequeue/TOPIC/ID/``.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final, final

from tailrace import events
from tailrace.env.filesystem import FileSystem
from tailrace.formats.consumequeue import BATCH_CQ_UNIT, CQ_UNIT
from tailrace.logs import get_logger
from tailrace.segments import MappedFileQueue, OpenFiles
from tailrace.store.batch_consume_queue import BatchConsumeQueue
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.store.queue_types import queue_directories, whole_units

__all__ = ["ConsumeQueueStore"]

_log = get_logger(__name__)


@contextlib.contextmanager
def _named(path: str) -> Iterator[None]:
    """Context that logs an OSError of a removal and continues."""
    try:
        yield
    except OSError as error:
        events.FILES_OF_A_DELETED_TOPIC_STAY.log(_log, file=error.filename or path, cause=error)


@final
class ConsumeQueueStore:
    """The table of all queues of a store, and which of them are dirty."""

    def __init__(
        self, file_system: FileSystem, directory: str, file_size: int, open_files: OpenFiles,
        is_batch: Callable[[str], bool], *, batch_directory: str = "", batch_file_size: int = BATCH_CQ_UNIT.size,
    ) -> None:
        """``is_batch`` returns True if new queues of a topic are batch queues (``queue.type=BatchCQ``)."""
        self._file_system = file_system
        self._directory = directory
        self._batch_directory = batch_directory
        self._file_size = whole_units(file_size, CQ_UNIT.size)
        self.units_per_file: Final = self._file_size // CQ_UNIT.size
        """Number of units of one ConsumeQueue file."""
        self._batch_file_size = whole_units(batch_file_size, BATCH_CQ_UNIT.size)
        self._open_files = open_files
        self._batch_topics: set[str] = set()
        """Topics whose queues were found in the directory of batch queues."""
        self.is_batch: Final = is_batch
        self._lock = threading.Lock()
        self.deleting = threading.Lock()
        """Held while files of queues are deleted."""
        self.table: dict[tuple[str, int], ConsumeQueue] = {}
        self.dirty: set[ConsumeQueue] = set()

    def load(self) -> dict[tuple[str, int], str]:
        """Load every queue directory. Return, for queues whose files cannot be right, why."""
        bad = {}
        for batch, directory in ((False, self._directory), (True, self._batch_directory)):
            for topic, queue_id in queue_directories(self._file_system, directory):
                queue = self._make(topic, queue_id, batch=batch)
                if why := queue.load():
                    bad[topic, queue_id] = why
                elif queue.files.foreign and not queue.files.files:
                    del self.table[topic, queue_id]  # a deleted queue, whose directory has a foreign file
                    continue
                if batch:
                    self._batch_topics.add(topic)
        return bad

    def has_batch_queues(self, topic: str) -> bool:
        """Return True if queues of a topic are batch queues, by its configuration or, without one, by its files."""
        return topic in self._batch_topics or self.is_batch(topic)

    def _make(self, topic: str, queue_id: int, *, batch: bool) -> ConsumeQueue:
        kind, directory, size = (
            (BatchConsumeQueue, self._batch_directory, self._batch_file_size) if batch
            else (ConsumeQueue, self._directory, self._file_size))
        queue = kind(topic, queue_id, MappedFileQueue(
            self._file_system, f"{directory}/{topic}/{queue_id}", size, mapped=False, open_files=self._open_files))
        self.table[topic, queue_id] = queue
        return queue

    def snapshot(self, *, clean: bool = False) -> dict[str, dict[str, list[Any]]]:
        """Return ``Progress.queues``: by topic and queue id [next offset, position of the last record, stamps]."""
        found: dict[str, dict[str, list[Any]]] = {}
        for (topic, queue_id), queue in list(self.table.items()):
            found.setdefault(topic, {})[str(queue_id)] = [
                queue.max_offset, queue.last_phy_offset, queue.stamps(last=clean)]
        return found

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue, or None. Does not create it."""
        return self.table.get((topic, queue_id))

    def find_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue, and create it if it is missing. Its directory is created with its first unit."""
        queue = self.table.get((topic, queue_id))
        if queue is None:
            with self._lock:
                queue = self.table.get((topic, queue_id)) or self._make(
                    topic, queue_id, batch=self.has_batch_queues(topic))
        return queue

    def delete(self, keys: Collection[tuple[str, int]]) -> None:
        """Remove queues, and the directories of topics without other queues. Their records stay in the log.

        A file that cannot be removed stays. The next open removes it, because the deletion is noted.
        """
        with self.deleting:
            for key in sorted(keys):
                queue = self.table.pop(key, None)
                if queue is None:
                    continue
                self.dirty.discard(queue)
                directory = queue.files.directories[0]
                with _named(directory):
                    if self._file_system.exists(directory):
                        queue.files.destroy()
            for topic in sorted({topic for topic, _ in keys}):
                for directory in (self._directory, self._batch_directory):
                    path = f"{directory}/{topic}"
                    with _named(path):
                        if self._file_system.exists(path) and not self._file_system.list(path):
                            self._file_system.rmdir(path)
                            self._batch_topics.discard(topic)

    def flush(self, least_pages: int) -> bool:
        """Sync the queues with at least ``least_pages`` dirty pages of 4 KiB.

        Return True if everything that was written before the call is durable.
        """
        everything = True
        # Sorted, so that a simulated run can be repeated.
        for queue in sorted(self.dirty, key=lambda queue: (queue.topic, queue.queue_id)):
            self.dirty.discard(queue)  # before the sync: a write during the sync makes it dirty again
            if queue.files.dirty_bytes() >= least_pages * 4096:
                try:
                    queue.files.flush(0)
                except OSError:  # descriptors were short and no sync was tried: it stays dirty
                    self.dirty.add(queue)
                    raise
            else:
                self.dirty.add(queue)
                everything = False
        return everything

    def close(self) -> None:
        """Close every file."""
        for queue in self.table.values():
            queue.files.close()
