"""The state of each half message since the progress of the checks, one byte for each."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, final

__all__ = ["COMMITTED", "ENDED", "FRESH", "PASSED", "ROLLED_BACK", "UNKNOWN", "HalfQueue"]

UNKNOWN: Final = 0
"""Pending. Before it is committed, the log is searched for its committed message."""
FRESH: Final = 1
"""Pending, put for the first time by this process: it cannot be committed yet."""
COMMITTED: Final = 2
ROLLED_BACK: Final = 3
ENDED: Final = 4
"""Settled by an operation that was there when the store was opened: committed or rolled back."""
PASSED: Final = 5
"""A later copy or another topic has it, or it is lost."""


@final
class HalfQueue:
    """States of the half messages from queue offset ``base`` on, and the operations that settle them.

    Half messages below ``base`` are PASSED. ``op_progress`` is the first operation that is needed to
    know the states again.
    """

    def __init__(self, base: int = 0, op_progress: int = 0) -> None:
        self.base = base
        self.op_progress = op_progress
        self._states = bytearray()
        self._operations: deque[tuple[int, int]] = deque()
        """Queue offset of each operation, and the highest half message that it settles."""

    @property
    def until(self) -> int:
        """Queue offset after the last half message that is known."""
        return self.base + len(self._states)

    @property
    def pending(self) -> int:
        """Number of half messages that are not settled."""
        return self._states.count(UNKNOWN) + self._states.count(FRESH)

    def state(self, offset: int) -> int:
        """Return the state of a half message; UNKNOWN for one that is not there yet."""
        at = offset - self.base
        if at < 0:
            return PASSED
        return self._states[at] if at < len(self._states) else UNKNOWN

    def is_pending(self, offset: int) -> bool:
        """Whether a half message is there and not settled."""
        return self.base <= offset < self.until and self.state(offset) <= FRESH

    def put(self, offset: int, state: int) -> None:
        """Note the state of a half message, also of one that has just been put."""
        at = offset - self.base
        if at < 0:
            return
        if at >= len(self._states):
            self._states.extend(bytes(at + 1 - len(self._states)))
        self._states[at] = state

    def grow(self, until: int) -> None:
        """Note that there are half messages below ``until``."""
        self._states.extend(bytes(max(0, until - self.until)))

    def add_operation(self, op_offset: int, settled: Iterable[int]) -> None:
        """Note an operation and the half messages that it settles."""
        highest = -1
        for offset in settled:
            highest = max(highest, offset)
            if self.is_pending(offset):
                self.put(offset, ENDED)
        self._operations.append((op_offset, highest))

    def next_pending(self, offset: int) -> int:
        """Return the first pending half message from ``offset`` on, or ``until``."""
        at = max(offset - self.base, 0)
        found = [place for state in (UNKNOWN, FRESH) if (place := self._states.find(state, at)) >= 0]
        return self.base + min(found) if found else self.until

    def advance(self, until: int) -> None:
        """Forget what is settled below ``until``, where no half message may be pending."""
        assert until <= self.next_pending(self.base), "a pending half message would be forgotten"
        del self._states[: until - self.base]
        self.base = until
        while self._operations and self._operations[0][1] < until:
            self.op_progress = self._operations.popleft()[0] + 1
