"""The state of each half message since the progress of the checks, and the operations that settle them.

Operations wait to be written together (TransactionalOpBatchService). Invariant: the operation of a commit is put after
the committed message is durable. A power loss may keep any unsynced page. If it kept the operation and lost the
message, the half message would never be checked again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, final

__all__ = ["COMMITTED", "ENDED", "FRESH", "PASSED", "ROLLED_BACK", "UNKNOWN", "HalfQueue", "OperationBatch"]

UNKNOWN: Final = 0
"""Pending. Before it is committed, the log is searched, because it may have been committed already."""
FRESH: Final = 1
"""Pending, and first put by this process, so it is known that the log has no committed message of it."""
COMMITTED: Final = 2
ROLLED_BACK: Final = 3
ENDED: Final = 4
"""Settled (committed or rolled back) by an operation that was in the log when the store was opened."""
PASSED: Final = 5
"""Replaced by a later copy, moved to the topic of given-up messages, or lost."""


@final
class HalfQueue:
    """States of the half messages from queue offset ``base`` onwards, and the operations that settle them.

    Half messages below ``base`` are PASSED. ``op_progress`` is the offset of the first operation that is needed
    to rebuild the states.
    """

    def __init__(self, base: int = 0, op_progress: int = 0) -> None:
        self.base = base
        self.op_progress = op_progress
        self._states = bytearray()
        self._operations: deque[tuple[int, int]] = deque()
        """Queue offset of each operation, and that of the last half message that it settles."""

    @property
    def until(self) -> int:
        """Queue offset after the last known half message."""
        return self.base + len(self._states)

    @property
    def pending(self) -> int:
        """Number of half messages that are not settled."""
        return self._states.count(UNKNOWN) + self._states.count(FRESH)

    def state(self, offset: int) -> int:
        """Return the state of a half message; UNKNOWN if it is not put yet."""
        at = offset - self.base
        if at < 0:
            return PASSED
        return self._states[at] if at < len(self._states) else UNKNOWN

    def is_pending(self, offset: int) -> bool:
        """Return whether a half message exists and is not settled."""
        return self.base <= offset < self.until and self.state(offset) <= FRESH

    def put(self, offset: int, state: int) -> None:
        """Set the state of a half message, also of one that has just been put."""
        at = offset - self.base
        if at < 0:
            return
        if at >= len(self._states):
            self._states.extend(bytes(at + 1 - len(self._states)))
        self._states[at] = state

    def grow(self, until: int) -> None:
        """Add pending half messages up to ``until``."""
        self._states.extend(bytes(max(0, until - self.until)))

    def add_operation(self, op_offset: int, settled: Iterable[int]) -> None:
        """Add an operation, and mark the half messages that it settles."""
        highest = -1
        for offset in settled:
            highest = max(highest, offset)
            if self.is_pending(offset):
                self.put(offset, ENDED)
        self._operations.append((op_offset, highest))

    def next_pending(self, offset: int) -> int:
        """Return the offset of the first pending half message from ``offset`` onwards, or else ``until``."""
        at = max(offset - self.base, 0)
        found = [place for state in (UNKNOWN, FRESH) if (place := self._states.find(state, at)) >= 0]
        return self.base + min(found) if found else self.until

    def advance(self, until: int) -> None:
        """Drop the states below ``until``, where no half message may be pending."""
        assert until <= self.next_pending(self.base), "a pending half message would be forgotten"
        del self._states[: until - self.base]
        self.base = until
        while self._operations and self._operations[0][1] < until:
            self.op_progress = self._operations.popleft()[0] + 1


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
