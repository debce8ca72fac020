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
        return self._store.queue_of(topic, queue_id).min

    def begin_of_life(self, topic: str, queue_id: int) -> int:
        """Return the offset at which a queue began, see ``QueueReader.begin_of_life``."""
        return self._store.lives.begin(topic, queue_id)

    def max(self, topic: str, queue_id: int, *, committed: bool = True) -> int:
        """Return the offset after the last message of a queue that can be read.

        With ``committed=False`` messages count that were put and cannot be read yet.
        """
        readable = self._store.queue_of(topic, queue_id).max
        return readable if committed else max(readable, self._store.next_queue_offset(topic, queue_id))

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the offset of the first message of a queue, and the one after its last."""
        return self.min(topic, queue_id), self.max(topic, queue_id)

    def by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: BoundaryType = BoundaryType.LOWER
    ) -> int:
        """Return the offset of the first message stored at or after a time; with UPPER the last at or before it."""
        self._check_open()
        return self._store.queue_of(topic, queue_id).by_time(timestamp_ms, boundary)

    def store_timestamp(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the store time of a message in ms, -1 if it does not exist."""
        self._check_open()
        return self._store.queue_of(topic, queue_id).store_timestamp(offset)
