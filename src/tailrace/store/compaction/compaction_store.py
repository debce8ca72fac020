"""All topics with ``cleanup.policy=COMPACTION``: their compaction logs, copying, reads and the service.

Owns ``compaction/``. A message is put, dispatched and indexed like every other one. The flush of the queues copies it
from the CommitLog into the compaction log of its queue; a progress or a checkpoint that covers the message is
written after that. So recovery finds every message either in a compaction log or in the part of the CommitLog
that retention has to keep. Reads take what is copied from the compaction log, and the rest from the CommitLog.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, final

import orjson

from tailrace import events
from tailrace.config import StoreConfig
from tailrace.env.clock import Clock
from tailrace.env.filesystem import FileSystem
from tailrace.env.whole_files import read_hint, replace_file
from tailrace.errors import FatalStorageError, StoreError
from tailrace.formats import filenames
from tailrace.formats.commitlog import STORE_TIME_HEAD, store_timestamp_of
from tailrace.formats.consumequeue import BATCH_CQ_UNIT, PRE_BLANK_SIZE
from tailrace.logs import get_logger
from tailrace.segments import OpenFiles
from tailrace.store.commit_log import CommitLog
from tailrace.store.compaction.compaction_log import CompactionLog, has_keys, remove_queue
from tailrace.store.compaction.damage import DamagedMessages, Keep
from tailrace.store.compaction.file_pair import Sizes
from tailrace.store.compaction.replacement import QueueDirectories, segment_starts
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.store.consume_queue_store import ConsumeQueueStore
from tailrace.store.lives import EndedLives
from tailrace.store.queue_types import CLEANUP_POLICY, COMPACTION, queue_directories
from tailrace.store.walk.scan import has_unit

__all__ = ["CompactionStore"]

_log = get_logger(__name__)
_UNITS: Final = 512
_MAX_POSITIONS: Final = 64 << 20
Key = tuple[str, int]


@final
class CompactionStore:
    """Compaction logs by queue. Any thread may read; the flush of the queues copies; one service compacts."""

    def __init__(
        self, clock: Clock, file_system: FileSystem, config: StoreConfig, root: str, commit_log: CommitLog,
        queues: ConsumeQueueStore, open_files: OpenFiles, lives: EndedLives,
        sync_log: Callable[[], None], quarantine: Keep,
    ) -> None:
        self._clock = clock
        self._file_system = file_system
        self._config = config
        self._root = root
        self._commit_log = commit_log
        self._lives = lives
        self._queues = queues
        self._open_files = open_files
        self._sync_log = sync_log
        self._damaged = DamagedMessages(quarantine)
        self._positions_lock = threading.Lock()
        self._positions: dict[str, int] = {}
        self._lock = threading.RLock()
        self.topics: Mapping[str, int] = {}
        """Number of queues of each topic with compaction; {} with ``enableCompaction=false``."""
        self.logs: dict[Key, CompactionLog] = {}
        self._told: set[Key] = set()
        self.copied = self.without_keys = self.passes = self.dropped = self.failures = 0

    # -- life

    def load(self, topics: Mapping[str, int]) -> None:
        """Load the logs of these topics (name: number of queues) after recovery.

        The next message of a queue gets an offset after its compaction log, even if its ConsumeQueue is lost. Raises
        OSError, CorruptionError or FatalStorageError.
        """
        self.follow(topics)
        if not self.topics:
            return
        self._load_positions()
        for topic, queue_id in queue_directories(self._file_system, f"{self._root}/{filenames.COMPACTION_LOG}"):
            if topic in self.topics:
                self._load(topic, queue_id)

    def refuse(self, topic: str, why: str) -> None:
        """Raise StoreError if a topic has compaction. ``why`` is the end of its text: what cannot be done with it."""
        if topic in self.topics:
            raise StoreError(f"{topic} has {CLEANUP_POLICY}={COMPACTION}{why}")

    def follow(self, topics: Mapping[str, int]) -> None:
        """Serve these topics from now on."""
        self.topics = dict(topics) if self._config.enable_compaction else {}

    def _load(self, topic: str, queue_id: int) -> CompactionLog:
        where = self._where(topic, queue_id)
        key = topic, queue_id
        queue = self._queues.table.get(key)
        again = range(queue.min_offset, queue.max_offset) if queue is not None else range(0)
        log = self._opened(key, where, again)
        begin = self._lives.begin(*key)
        if 0 < log.max_offset <= begin and (queue is None or queue.max_offset > begin):
            log.destroy()  # it has messages of an ended life only; a crash left it
            log = self._opened(key, where, again)
        log.position = min(log.position, log.max_offset - 1)
        following = max(queue.max_offset if queue is not None else 0, self._commit_log.queue_offsets.get(key, 0))
        if log.max_offset > following:
            events.A_QUEUE_ENDS_BEFORE_ITS_COMPACTION_LOG.log(
                _log, topic=topic, queue_id=queue_id, queue_offset=following, next_offset=log.max_offset)
            self._commit_log.queue_offsets[key] = log.max_offset
        self.logs[key] = log
        return log

    def _opened(self, key: Key, where: QueueDirectories, again: range) -> CompactionLog:
        topic, queue_id = key
        log = CompactionLog(self._file_system, where, self._sizes(where), self._open_files, self._damaged)
        log.position = self._positions.get(f"{topic}_{queue_id}", -1)
        log.load(lambda position: self._keep_position(topic, queue_id, position), again)
        return log

    def _where(self, topic: str, queue_id: int) -> QueueDirectories:
        return QueueDirectories(*(
            f"{self._root}/{name}/{topic}/{queue_id}" for name in (filenames.COMPACTION_LOG, filenames.COMPACTION_CQ)))

    def _sizes(self, where: QueueDirectories) -> Sizes:
        """Return the lengths of the present files, or those of the settings for a queue without files."""
        config = self._config
        sizes = Sizes.of_settings(config.compaction_mapped_file_size, config.compaction_cq_mapped_file_size)
        for directory, unit, name in zip(where, (1, BATCH_CQ_UNIT.size), ("log", "queue"), strict=True):
            for start in segment_starts(self._file_system, directory):
                size = self._file_system.stat(f"{directory}/{filenames.offset_to_file_name(start)}").size
                if size and size % unit == 0:
                    setattr(sizes, name, size)
                    break
        return sizes

    def close(self) -> None:
        """Close the files without a flush."""
        for log in list(self.logs.values()):
            log.close()

    def delete(self, keys: Collection[Key]) -> None:
        """Remove the files of queues, durably. Raises OSError or FatalStorageError."""
        with self._lock:
            gone = False
            for key in keys:
                log = self.logs.pop(key, None)
                if log is not None:
                    log.destroy()
                elif self._file_system.exists(self._where(*key).log):
                    remove_queue(self._file_system, self._where(*key))
                else:
                    continue
                events.REMOVED_A_COMPACTION_LOG.log(_log, topic=key[0], queue_id=key[1])
                gone = True
            if not gone:
                return
            with self._positions_lock:
                self._load_positions()
                for topic, queue_id in keys:
                    self._positions.pop(f"{topic}_{queue_id}", None)
                self._write_positions()

    # -- position-checkpoint

    def _load_positions(self) -> None:
        """Read up to where keys are compacted. Without a position all keys are compacted again, which is right."""
        text = read_hint(self._file_system, f"{self._root}/{filenames.COMPACTION_POSITIONS}", _MAX_POSITIONS)
        try:
            found = orjson.loads(text or b"{}")["queueOffsetMap"] if text else {}
            self._positions = {str(name): int(offset) for name, offset in found.items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            events.POSITIONS_OF_COMPACTION_ARE_DAMAGED.log(_log, file=f"{self._root}/{filenames.COMPACTION_POSITIONS}")
            self._positions = {}

    def _keep_position(self, topic: str, queue_id: int, position: int) -> None:
        with self._positions_lock:
            self._positions[f"{topic}_{queue_id}"] = position
            self._write_positions()

    def _write_positions(self) -> None:
        replace_file(self._file_system, f"{self._root}/{filenames.COMPACTION_POSITIONS}",
                     orjson.dumps({"queueOffsetMap": self._positions}))

    # -- copying

    def flush(self, thorough: bool) -> bool:
        """Copy the dispatched messages that are durable, and sync what was copied.

        With ``thorough`` make the CommitLog durable first if a message waits for that. Return True if all
        messages that were dispatched before the call are copied and durable. Raises OSError or FatalStorageError.
        """
        if not self.topics:
            return True
        with self._lock:
            behind = [(key, queue) for key, queue in self._compacted_queues()
                      if queue.max_offset > self._copied_until(key)]
            if thorough and behind:
                self._sync_log()
            everything = True
            for key, queue in behind:
                everything = self._copy(key, queue) and everything
            if thorough:
                for log in list(self.logs.values()):
                    log.sync()
            return everything

    def _compacted_queues(self) -> Iterator[tuple[Key, ConsumeQueue]]:
        for topic, count in self.topics.items():
            for queue_id in range(count):
                queue = self._queues.table.get((topic, queue_id))
                if queue is not None and queue.max_offset:
                    yield (topic, queue_id), queue

    def _copied_until(self, key: Key) -> int:
        log = self.logs.get(key)
        return log.max_offset if log is not None else 0

    def _copy(self, key: Key, queue: ConsumeQueue) -> bool:
        """Copy the messages of a queue. Return False if some are not durable in the CommitLog yet."""
        log = self.logs.get(key)
        if log is None:
            log = self._load(*key)
        copying = _Copying(self, key, queue, max(log.max_offset, queue.min_offset))
        try:
            self.copied += log.append(copying.messages())
        except (OSError, StoreError) as error:
            self._failed(key, error)
            if isinstance(error, FatalStorageError):
                raise
            return False
        self._told.discard(key)
        return copying.is_done

    def _failed(self, key: Key, error: Exception) -> None:
        self.failures += 1
        if key not in self._told:
            self._told.add(key)
            events.MESSAGES_CANNOT_BE_COPIED_TO_A_COMPACTION_LOG.log(_log, topic=key[0], queue_id=key[1], cause=error)

    # -- compaction

    def step(self) -> None:
        """Compact each queue that has a new full file."""
        for key, log in list(self.logs.items()):
            if key[0] in self.topics:
                self.compact(key, log)

    def compact(self, key: Key, log: CompactionLog) -> None:
        """Compact one queue until nothing is left to compact. An error is logged; the next step tries again."""
        began = self._clock.monotonic_ns()
        try:
            while (done := log.compact(
                self._config.max_offset_map_size, lambda position: self._keep_position(*key, position))) is not None:
                self.passes += 1
                self.dropped += done.dropped
                events.COMPACTED_A_QUEUE.log(
                    _log, topic=key[0], queue_id=key[1], files=done.files, kept=done.kept, dropped=done.dropped,
                    position=done.position, elapsed_ms=(self._clock.monotonic_ns() - began) // 1_000_000)
        except (OSError, StoreError) as error:
            self.failures += 1
            events.A_QUEUE_CANNOT_BE_COMPACTED.log(_log, topic=key[0], queue_id=key[1], cause=error)
            if isinstance(error, FatalStorageError):
                raise

    def stats(self) -> dict[str, Any]:
        """Return the counters."""
        return {
            "compactionQueues": len(self.logs), "compactionCopied": self.copied,
            "compactionWithoutKeys": self.without_keys, "compactionPasses": self.passes,
            "compactionDropped": self.dropped, "compactionDamaged": self._damaged.count,
            "compactionFailures": self.failures,
        }


class _Copying:
    """The messages of a queue from ``offset`` onwards, as far as they are durable."""

    def __init__(self, store: CompactionStore, key: Key, queue: ConsumeQueue, offset: int) -> None:
        self._store = store
        self._key = key
        self._queue = queue
        self._offset = offset
        self.is_done = False

    def messages(self) -> Iterator[tuple[bytes, int, int, int]]:
        """Yield (record, tags code, store time, queue offset) of each message that has keys."""
        log = self._store._commit_log
        durable, high = log.queue.flushed_where, self._queue.max_offset
        for start, units in self._queue.runs(self._offset, high, _UNITS):
            self._offset = start
            for phy_offset, size, tags_code in units.tolist():
                if size != PRE_BLANK_SIZE and phy_offset + size > durable:
                    return
                message = (
                    None if size == PRE_BLANK_SIZE else self._message(log.read_record(phy_offset, size), phy_offset))
                self._offset += 1
                if message is not None:
                    yield message[0], tags_code, message[1], self._offset - 1
        self.is_done = True

    def _message(self, stored: bytes, phy_offset: int) -> tuple[bytes, int] | None:
        if not has_unit(stored, phy_offset):
            return None  # damaged or deleted: a read of the queue skips it as well
        if not has_keys(stored):
            self._store.without_keys += 1
            events.A_MESSAGE_WITHOUT_KEYS_IS_NOT_SERVED.log(
                _log, topic=self._key[0], queue_id=self._key[1], queue_offset=self._offset)
            return None
        return stored, store_timestamp_of(stored[:STORE_TIME_HEAD]) or 0
