"""Topics that release their messages by rules of their own, and topics that were purged.

Owns ``config/tailrace-min-offsets.json``. A purge is durable before readers see it. Logical minimum offsets
that a rule of a topic has moved are written at most once a minute: after a crash the first pass finds them
again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any, Final, NamedTuple, final

import numpy as np

from tailrace import events
from tailrace.env.clock import Clock
from tailrace.env.filesystem import FileSystem
from tailrace.errors import StoreError
from tailrace.formats import filenames
from tailrace.formats.consumequeue import CQ_UNIT, PRE_BLANK_SIZE
from tailrace.logs import get_logger
from tailrace.model import BoundaryType
from tailrace.node.config_manager import ConfigManager, DataVersion, Draft, Owned, read_config
from tailrace.node.topic_config import TopicConfigManager
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.store.lives import Ended
from tailrace.store.queue_search import first_at, message_from
from tailrace.store.retention.min_offsets import (
    LogicalMin,
    decode_ended,
    decode_minima,
    encode_ended,
    encode_minima,
)
from tailrace.store.retention.topic_rules import (
    NOWHERE,
    TopicLimits,
    TopicNeeds,
    topic_limits,
    topic_needs,
)

__all__ = ["TopicRetention", "Unfinished", "forget_deletions", "limits_of_topics", "read_unfinished"]

_log = get_logger(__name__)
_WRITE_NS: Final = 60_000_000_000
_LOOK: Final = 4096
_LAST_DELETION: Final = "lastDeletion"

QueueKey = tuple[str, int]


class Unfinished(NamedTuple):
    """A deletion of topics, with the version of ``topics.json`` before it."""

    topics: list[str]
    version: DataVersion

    def covers(self, version: DataVersion) -> bool:
        """Return True if ``topics.json`` with this version still has the configuration of the topics."""
        return version.counter <= self.version.counter and version.timestamp <= self.version.timestamp

    def to_json(self) -> dict[str, Any]:
        """Return the members of the state file."""
        return {"topics": self.topics, "version": self.version.to_json()}

    @classmethod
    def from_json(cls, value: Any) -> Unfinished | None:
        """Return the deletion of a state file; None without one."""
        if not isinstance(value, dict) or not isinstance(topics := value.get("topics"), list):
            return None
        version = DataVersion()
        version.take(value.get("version"))
        return cls([str(topic) for topic in topics], version)


def read_unfinished(file_system: FileSystem, config_dir: str) -> Unfinished | None:
    """Return the last deletion of a directory, which may not be complete."""
    return Unfinished.from_json(
        (read_config(file_system, f"{config_dir}/{filenames.MIN_OFFSETS}") or {}).get(_LAST_DELETION))


@final
class _MinOffsets(ConfigManager[QueueKey, LogicalMin]):
    """The state file: logical minima of all queues that have one, and deleted topics."""

    owned = Owned.BY_LOCK

    def __init__(self, file_system: FileSystem, config_dir: str, clock: Clock) -> None:
        super().__init__(file_system, config_dir, filenames.MIN_OFFSETS, clock.now_ms)
        self.ended: dict[str, Ended] = {}
        self.unfinished: Unfinished | None = None
        """The last deletion."""

    def _decode(self, value: dict[str, Any]) -> None:
        self._table = decode_minima(value)
        self.ended = decode_ended(value)
        self.unfinished = Unfinished.from_json(value.pop(_LAST_DELETION, None))

    def _encode(self, table: dict[QueueKey, LogicalMin]) -> dict[str, Any]:
        last = {_LAST_DELETION: self.unfinished.to_json()} if self.unfinished is not None else {}
        return {**encode_minima(table), **encode_ended(self.ended), **last}


def forget_deletions(clock: Clock, file_system: FileSystem, config_dir: str, topics: Iterable[str]) -> None:
    """Forget durably that topics of a closed directory were deleted; its queues must be rebuilt. Raises OSError."""
    minima = _MinOffsets(file_system, config_dir, clock)
    minima.load()
    for topic in topics:
        minima.ended.pop(topic, None)
    minima.unfinished = None
    minima.change(Draft.touch)


class _QueueBytes:
    """Bytes of the records that the units of a queue name, from ``start`` up to ``end``."""

    __slots__ = ("end", "start", "total")

    def __init__(self) -> None:
        self.start = self.end = self.total = 0

    def first_within(self, queue: ConsumeQueue, limit: int) -> int:
        """Return the first offset whose message and all later ones have at most ``limit`` bytes together.

        The newest message always stays. Each unit is read twice: when it is added, and when it is dropped.
        """
        if not self.start <= queue.min_offset <= self.end <= queue.max_offset:
            self._begin_at(queue.min_offset)
        while self.start < queue.min_offset:
            sizes = _sizes(queue, self.start)[: queue.min_offset - self.start]
            if not len(sizes):  # their file is deleted
                self._begin_at(queue.min_offset)
                break
            self.start += len(sizes)
            self.total -= int(sizes.sum())
        while self.end < queue.max_offset and len(sizes := _sizes(queue, self.end)):
            self.end += len(sizes)
            self.total += int(sizes.sum())
        while self.total > limit and self.start < self.end - 1:
            sizes = _sizes(queue, self.start)[: self.end - 1 - self.start]
            if not len(sizes):
                break
            enough = np.flatnonzero(self.total - np.cumsum(sizes) <= limit)
            count = int(enough[0]) + 1 if len(enough) else len(sizes)
            self.start += count
            self.total -= int(sizes[:count].sum())
        return self.start

    def _begin_at(self, offset: int) -> None:
        self.start = self.end = offset
        self.total = 0


def _sizes(queue: ConsumeQueue, offset: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the record sizes of some units from ``offset`` onwards; 0 for a unit without a message."""
    data = queue.units(offset, _LOOK)
    sizes = CQ_UNIT.view(data[: len(data) - len(data) % CQ_UNIT.size])["size"].astype(np.int64)
    sizes[sizes == PRE_BLANK_SIZE] = 0
    return sizes


def limits_of_topics(
    topics: TopicConfigManager, refused: Callable[[str, ValueError], None]
) -> dict[str, TopicLimits]:
    """Return the limits of the topics that have any. ``refused`` gets each topic with an invalid attribute."""
    found = {}
    for config in topics.items():
        try:
            limits = topic_limits(config.attributes)
        except ValueError as error:
            refused(config.topic_name, error)
            continue
        if limits != TopicLimits() and not topics.is_system_topic(config.topic_name):
            found[config.topic_name] = limits
    return found


@final
class TopicRetention:
    """Moves logical minimum offsets and computes which part of the log topics need. Any thread may call."""

    def __init__(
        self, clock: Clock, file_system: FileSystem, store: DefaultMessageStore,
        topics: TopicConfigManager,
    ) -> None:
        self._clock = clock
        self._store = store
        self._topics = topics
        self._minima = _MinOffsets(file_system, f"{store.root}/{filenames.CONFIG}", clock)
        self._limits: dict[str, TopicLimits] = {}
        self._limits_version = -1
        self._bytes: dict[QueueKey, _QueueBytes] = {}
        self._first: dict[QueueKey, tuple[int, int]] = {}
        self._dirty = False
        self._written_ns = clock.monotonic_ns()
        self._lock = threading.RLock()

    # -- life

    def load(self) -> None:
        """Load the logical minima that are still valid, and release messages that have expired since."""
        self._minima.load()
        self._minima.ended = dict(self._store.lives.table)  # as recovery has corrected it
        for key, low in list(self._minima.table.items()):
            queue = self._store.queues.table.get(key)
            if queue is None:
                del self._minima.table[key]
                continue
            # A queue that was started again, or lost its end, has younger messages at these offsets.
            offset = min(low.offset, first_at(queue, queue.first_offset, low.phy_offset))
            queue.logical_min_offset = max(queue.logical_min_offset, offset)
            if offset != low.offset:
                events.A_QUEUE_IS_NOT_THE_ONE_THAT_WAS_PURGED.log(
                    _log, topic=key[0], queue_id=key[1], logical_min=low.offset, now=offset)
                self._minima.table[key] = low._replace(offset=offset)
                self._dirty = True
        self._forget_names()
        if self._store.lives.is_lowered:  # durable before a message is put at such a position
            self._persist()
        self.run_pass()

    def _forget_names(self) -> None:
        """Forget deletions that need not be remembered, and what is known of queues that were removed."""
        if gone := self._store.lives.superfluous(self._store.commit_log.min_offset):
            self._store.forget_ended(gone)
            for topic in gone:
                self._minima.ended.pop(topic, None)
            self._dirty = True
        for table in (self._bytes, self._first):
            for key in [key for key in table if key not in self._store.queues.table]:
                del table[key]

    def close(self) -> None:
        """Write changes that are not written yet."""
        with self._lock:
            self._write(force=True)

    # -- rules

    def step(self) -> None:
        """Move the logical minima of topics with rules of their own."""
        with self._lock:
            self.run_pass()
            self._forget_names()
            self._write(force=False)

    def run_pass(self) -> None:
        """Move the logical minima of topics with rules of their own, without writing the file."""
        limits = self._topic_limits()
        if not limits:
            return
        for key, queue in list(self._store.queues.table.items()):
            limit = limits.get(key[0])
            if limit is not None and queue.min_offset < queue.max_offset:
                offset = self._wanted(key, queue, limit)
                if offset > queue.min_offset:
                    self._minima.table[key] = self._minimum(queue, offset)
                    queue.logical_min_offset = offset
                    self._dirty = True

    def _wanted(self, key: QueueKey, queue: ConsumeQueue, limit: TopicLimits) -> int:
        low = queue.min_offset
        if limit.keep_ms is not None and limit.keep_ms >= 0:
            until_ms = self._clock.now_ms() - limit.keep_ms
            first = queue.unit(low)
            stored = self._store.reader.store_timestamp(first.phy_offset) if first else -1
            if stored < until_ms:
                low = self._store.reader.offset_by_time(*key, until_ms, BoundaryType.LOWER)
        if limit.keep_bytes is not None:
            counted = self._bytes.setdefault(key, _QueueBytes())
            low = max(low, counted.first_within(queue, limit.keep_bytes))
        return low

    def _minimum(self, queue: ConsumeQueue, offset: int) -> LogicalMin:
        """Return the logical minimum of a queue that releases its messages below ``offset``."""
        unit = message_from(queue, queue.begin_of(offset))
        return LogicalMin(
            offset, unit.phy_offset if unit is not None else self._store.reput.reput_from_offset)

    def _topic_limits(self) -> dict[str, TopicLimits]:
        """Return the limits of the topics that have any. They are read again when a topic has changed."""
        version = self._topics.data_version.counter
        if version != self._limits_version:
            self._limits, self._limits_version = limits_of_topics(self._topics, lambda topic, error: (
                events.ATTRIBUTE_IGNORED.log(_log, topic=topic, cause=error))), version
        return self._limits

    def needs(self) -> TopicNeeds | None:
        """Return which part of the log topics need; None if only ``fileReservedTime`` counts."""
        limits = self._topic_limits()
        if not limits and not self._minima.table:
            return None
        return topic_needs(limits, (
            (key[0], self._first_position(key, queue)) for key, queue in list(self._store.queues.table.items())))

    def _first_position(self, key: QueueKey, queue: ConsumeQueue) -> int:
        low = queue.min_offset
        known = self._first.get(key)
        if known is not None and known[0] == low and known[1] != NOWHERE:
            return known[1]
        unit = message_from(queue, low)
        found = unit.phy_offset if unit is not None else NOWHERE
        self._first[key] = low, found
        return found

    # -- by hand

    def purge(
        self, topic: str, queue_id: int | None = None, before_ms: int | None = None
    ) -> dict[int, tuple[int, int]]:
        """Release the messages of a topic, or those stored before a time; durable on return.

        Return {queue id: (least offset before, least offset now)}. Raises StoreError for a system topic or
        an unknown one, and OSError or FatalStorageError; then no message was released.
        """
        if self._topics.is_system_topic(topic):
            raise StoreError(f"{topic} belongs to the broker, it is not purged")
        self._store.sync_log()  # the log before a logical minimum must never be cut
        with self._lock:  # no queue is deleted in this time
            queues = {
                key: queue for key, queue in sorted(self._store.queues.table.items(), key=itemgetter(0))
                if key[0] == topic and queue_id in {None, key[1]}
            }
            if not queues and self._topics.select(topic) is None:
                raise StoreError(f"there is no topic {topic}")
            if not queues and queue_id is not None:
                raise StoreError(f"{topic} has no messages in a queue {queue_id}")
            return self._purge(topic, queues, before_ms)

    def _purge(
        self, topic: str, queues: dict[QueueKey, ConsumeQueue], before_ms: int | None
    ) -> dict[int, tuple[int, int]]:
        before = {key: queue.min_offset for key, queue in queues.items()}
        made: dict[QueueKey, LogicalMin] = {}
        for key, queue in queues.items():
            offset = queue.max_offset if before_ms is None else (
                self._store.reader.offset_by_time(*key, before_ms, BoundaryType.LOWER))
            if offset > before[key]:
                made[key] = self._minimum(queue, offset)
        if made:
            self._minima.change(lambda draft: draft.put_all(made))
            self._dirty = False
        for key, low in made.items():
            queues[key].logical_min_offset = low.offset
        found = {key[1]: (before[key], queue.min_offset) for key, queue in queues.items()}
        events.PURGED_A_TOPIC.log(_log, topic=topic, queues=found)
        return found

    def note_ended(self, ended: Mapping[str, Ended], unfinished: Unfinished | None, also: Callable[[], None]) -> None:
        """Note topics that are deleted next, durably: messages of their ended lives stay deleted.

        ``also`` makes the other parts of the deletion durable; ``unfinished`` tells an open to complete them after a
        crash. Raises OSError or what ``also`` raises; then nothing is noted.
        """
        with self._lock:
            def remove(draft: Draft[QueueKey, LogicalMin]) -> None:
                draft.touch()  # the deleted topics are in the file as well
                for key in [key for key in self._minima.table if key[0] in ended]:
                    draft.remove(key)

            with self._noting(ended):
                self._minima.unfinished = unfinished
                self._minima.change(remove, also)
            for table in (self._bytes, self._first):
                for key in [key for key in table if key[0] in ended]:
                    del table[key]

    def note_begins(self, begins: Mapping[str, Ended]) -> None:
        """Note where queues without a message begin, durably. Raises OSError; then nothing is noted."""
        with self._lock, self._noting(begins):
            self._minima.change(lambda draft: draft.touch())

    @contextlib.contextmanager
    def _noting(self, ended: Mapping[str, Ended]) -> Iterator[None]:
        """Context in which these are in the table; they stay there if it ends without an error."""
        was = dict(self._minima.ended), self._minima.unfinished
        self._minima.ended.update(ended)
        try:
            yield
        except BaseException:
            self._minima.ended, self._minima.unfinished = was
            raise

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Context in which no rule moves a logical minimum and no purge runs."""
        with self._lock:
            yield

    def _write(self, *, force: bool) -> None:
        now = self._clock.monotonic_ns()
        if not self._dirty or (not force and now - self._written_ns < _WRITE_NS):
            return
        self._written_ns = now
        try:
            self._persist()
        except OSError as error:
            events.CANNOT_WRITE_LOGICAL_MINIMUM_OFFSETS.log(_log, file=self._minima.path, cause=error)

    def _persist(self) -> None:
        self._minima.change(Draft.touch)
        self._dirty = False
