"""One queue of the store, which answers in the same way whatever its kind is: plain, batch, LMQ or compacted."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, final

from tailrace.model import BoundaryType, GetMessageResult, GetMessageStatus, places_of
from tailrace.store.compaction.compaction_log import CompactionLog, has_keys
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.store.hooks import PropertyFilter
from tailrace.store.queue_search import first_at
from tailrace.store.queue_sizes import QueueSize, queue_size

if TYPE_CHECKING:
    from tailrace.store.default_message_store import DefaultMessageStore

__all__ = ["CompactedQueue", "QueueReader"]


class QueueReader:
    """A plain, a batch or an LMQ queue. A queue that does not exist is empty."""

    __slots__ = ("_store", "queue_id", "topic")

    def __init__(self, store: DefaultMessageStore, topic: str, queue_id: int) -> None:
        self._store = store
        self.topic = topic
        self.queue_id = queue_id

    @property
    def _queue(self) -> ConsumeQueue | None:
        return self._store.queues.get(self.topic, self.queue_id)

    @property
    def begin_of_life(self) -> int:
        """Offset at which the queue began, 0 unless its topic was deleted before.

        If it is the least offset of the queue, the queue still has the first message of its life.
        """
        return self._store.lives.begin(self.topic, self.queue_id)

    @property
    def min(self) -> int:
        """Offset of the first message, or of the first one to come if the queue is empty."""
        queue = self._queue
        return queue.min_offset if queue is not None else self.begin_of_life

    @property
    def kept_min(self) -> int:
        """``min``, without the messages of deleted files that the next pass over the queues takes out of it."""
        queue = self._queue
        if queue is None:
            return self.begin_of_life
        first, low = queue.min_offset, self._store.commit_log.min_offset
        unit = queue.unit(first)
        return first if unit is None or unit.phy_offset >= low else first_at(queue, first, low)

    @property
    def max(self) -> int:
        """Offset after the last message that can be read."""
        queue = self._queue
        return queue.max_offset if queue is not None else self.begin_of_life

    @property
    def next(self) -> int:
        """Offset of the next message that is put; those before it may not be readable yet."""
        return max(self.max, self._store.next_queue_offset(self.topic, self.queue_id))

    @property
    def bounds(self) -> tuple[int, int]:
        """``min`` and ``max``."""
        return self.min, self.max

    def read(
        self, offset: int, max_msg_nums: int, max_bytes: int, codes: Collection[int] | None, *,
        property_filter: PropertyFilter | None = None, only_cached: bool = False,
    ) -> GetMessageResult:
        """Return stored records, see ``MessageReader.get_message``."""
        return self._store.reader.get_message(
            self.topic, self.queue_id, offset, max_msg_nums, max_bytes, codes, property_filter=property_filter,
            only_cached=only_cached)

    def by_time(self, timestamp_ms: int, boundary: BoundaryType = BoundaryType.LOWER) -> int:
        """Return the offset of the first message stored at or after a time; with UPPER the last at or before it."""
        return self._store.reader.offset_by_time(self.topic, self.queue_id, timestamp_ms, boundary)

    def store_timestamp(self, offset: int) -> int:
        """Return the store time of a message in ms, -1 if it does not exist."""
        return self._store.reader.message_store_timestamp(self.topic, self.queue_id, offset)

    def size(self) -> QueueSize:
        """Return the bytes of the messages, an estimate if there are more than a thousand."""
        queue = self._queue
        return queue_size(queue, self.min) if queue is not None else QueueSize(0, is_exact=True)


@final
class CompactedQueue(QueueReader):
    """A queue of a topic with compaction: its compaction log, and then the messages that are not copied yet."""

    __slots__ = ()

    @property
    def _log(self) -> CompactionLog | None:
        """The compaction log, None without a message in it."""
        log = self._store.compaction.logs.get((self.topic, self.queue_id))
        return log if log is not None and log.max_offset else None

    @property
    def min(self) -> int:
        """Offset of the first message, or of the first one to come if the queue is empty."""
        return self._first(super().min)

    @property
    def kept_min(self) -> int:
        """The same as in a queue without compaction, whose log has the messages that the CommitLog has deleted."""
        return self._first(super().kept_min)

    def _first(self, low: int) -> int:
        """Return ``low``, or the first offset of the compaction log if that is lower."""
        log = self._log
        first = -1 if log is None else log.min_offset  # -1: its messages were removed since then
        return min(low, first) if first >= 0 else low

    @property
    def max(self) -> int:
        """Offset after the last message that can be read."""
        log, high = self._log, super().max
        return max(high, log.max_offset) if log is not None else high

    def read(
        self, offset: int, max_msg_nums: int, max_bytes: int, codes: Collection[int] | None, *,
        property_filter: PropertyFilter | None = None, only_cached: bool = False,
    ) -> GetMessageResult:
        """Return stored records, see ``MessageReader.get_message``.

        An offset below the first message is no error, because offsets of compacted messages are missing
        everywhere. Messages without keys are not returned.
        """
        log, queue = self._log, self._queue
        first = -1 if log is None else log.min_offset  # -1 as in `min`
        low = first if first >= 0 else self.min
        high = max(log.max_offset if log is not None else 0, queue.max_offset if queue is not None else 0)
        if log is None or log.max_offset <= offset < high:
            result = _with_keys(super().read(
                offset, max_msg_nums, max_bytes, codes, property_filter=property_filter, only_cached=only_cached))
            if log is not None:
                result.min_offset = min(low, result.min_offset)
            return result
        if offset == high:
            return GetMessageResult(GetMessageStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
        if offset > high:  # as in RocketMQ: a queue that still has its first message is read again
            following = high if low > self.begin_of_life else low
            return GetMessageResult(GetMessageStatus.OFFSET_OVERFLOW_BADLY, following, low, high)
        config = self._store.config
        most = max(min(max_msg_nums, config.max_transfer_count_on_message_in_memory), 1)
        room = min(max_bytes, config.max_transfer_bytes_on_message_in_memory)
        records, offsets, following, is_cold = log.read(
            offset, most, room, codes, property_filter, only_cached=only_cached)
        status = GetMessageStatus.FOUND if records else GetMessageStatus.NO_MATCHED_MESSAGE
        return GetMessageResult(
            status, following, low, high, b"".join(records), len(records), places_of(records, offsets), is_cold)

    def by_time(self, timestamp_ms: int, boundary: BoundaryType = BoundaryType.LOWER) -> int:
        """Return the offset for a store time, see ``QueueReader.by_time``.

        Messages that only the compaction log has are stored before all others.
        """
        offset, log, queue = super().by_time(timestamp_ms, boundary), self._log, self._queue
        if log is None or boundary is not BoundaryType.LOWER or (queue is not None and offset > queue.min_offset):
            return offset
        found = log.first_stored(timestamp_ms)
        return found if found >= 0 else offset


def _with_keys(result: GetMessageResult) -> GetMessageResult:
    """Remove the messages without keys from a result."""
    if not result.record_count:
        return result
    kept = [(one, at) for one, at in zip(result.records, result.queue_offsets, strict=True) if has_keys(one)]
    if len(kept) < result.record_count:
        records = [one for one, _ in kept]
        result.data, result.record_count = b"".join(records), len(records)
        result.places = places_of(records, [at for _, at in kept])
        if not records:
            result.status = GetMessageStatus.NO_MATCHED_MESSAGE
    return result
