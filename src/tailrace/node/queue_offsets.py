"""Bounds of queues, and offsets by time, as the requests of a broker ask for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from tailrace.model import BoundaryType
from tailrace.store.default_message_store import DefaultMessageStore

__all__ = ["QueueOffsets"]


@final
class QueueOffsets:
    """Offsets of queues, for a broker: an unknown topic or queue is empty and not an error of its client."""

    def __init__(self, store: DefaultMessageStore, check_open: Callable[[], None]) -> None:
        self._store = store
        self._check_open = check_open

    def min(self, topic: str, queue_id: int) -> int:
        """Return the offset of the first message of a queue, or of its first one to come if the queue is empty."""
        queue = self._store.queues.get(topic, queue_id)
        return self._store.compaction.min_offset(
            topic, queue_id, queue.min_offset if queue is not None else self.begin_of_life(topic, queue_id))

    def begin_of_life(self, topic: str, queue_id: int) -> int:
        """Return the offset at which a queue began, 0 unless its topic was deleted before.

        If it is the least offset of the queue, the queue still has the first message of its life.
        """
        return self._store.lives.begin(topic, queue_id)

    def max(self, topic: str, queue_id: int, *, committed: bool = True) -> int:
        """Return the offset after the last message of a queue that can be read.

        With ``committed=False`` messages count that were put and cannot be read yet.
        """
        queue = self._store.queues.get(topic, queue_id)
        readable = self._store.compaction.max_offset(
            topic, queue_id, queue.max_offset if queue is not None else self.begin_of_life(topic, queue_id))
        return readable if committed else max(readable, self._store.next_queue_offset(topic, queue_id))

    def by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: BoundaryType = BoundaryType.LOWER
    ) -> int:
        """Return the offset of the first message stored at or after a time; with UPPER the last at or before it."""
        self._check_open()
        found = self._store.reader.offset_by_time(topic, queue_id, timestamp_ms, boundary)
        return self._store.compaction.offset_by_time(topic, queue_id, timestamp_ms, boundary, found)

    def store_timestamp(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the store time of a message in ms, -1 if it does not exist."""
        self._check_open()
        return self._store.reader.message_store_timestamp(topic, queue_id, offset)
