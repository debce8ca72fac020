"""Operations that wait to be written together (TransactionalOpBatchService).

Invariant: the operation of a commit is put after the committed message is durable. A power loss may keep any
unsynced page. If it kept the operation and lost the message, the half message would never be checked again.
"""

from __future__ import annotations

from collections import deque
from typing import Final, final

__all__ = ["OperationBatch"]

WAITING_MAX: Final = 20_000
"""Number of half messages whose operation may wait, as in RocketMQ. More wait only if writes fail."""


@final
class OperationBatch:
    """Queue offsets of settled half messages, in the order in which they were settled."""

    def __init__(self, interval_ms: int, max_size: int) -> None:
        self._interval_ms = interval_ms
        self._max_size = max_size
        self._offsets: deque[tuple[int, int]] = deque()
        self._size = 0
        self._since_ms = 0

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def full(self) -> bool:
        """True if no more half messages should be settled for now."""
        return len(self._offsets) >= WAITING_MAX

    def add(self, offset: int, until: int, now_ms: int) -> None:
        """Add a settled half message, whose operation waits until the log is durable up to ``until``."""
        if not self._offsets:
            self._since_ms = now_ms
        self._offsets.append((offset, until))
        self._size += _length(offset)

    def is_due(self, now_ms: int, flushed_where: int) -> bool:
        """Return whether an operation should be written now, and its committed messages are durable."""
        if not self._offsets or self._offsets[0][1] > flushed_where:
            return False
        return self._size >= self._max_size or not 0 <= now_ms - self._since_ms < self._interval_ms

    def next_part(self, flushed_where: int) -> list[int]:
        """Return the offsets of the next operation; they stay until `written` is called."""
        part: list[int] = []
        size = 0
        for offset, until in self._offsets:
            if until > flushed_where:
                break
            part.append(offset)
            size += _length(offset)
            if size >= self._max_size:
                break
        return part

    def written(self, part: list[int]) -> None:
        """Remove offsets whose operation is in the log."""
        for _ in part:
            self._size -= _length(self._offsets.popleft()[0])


def _length(offset: int) -> int:
    return len(str(offset)) + 1
