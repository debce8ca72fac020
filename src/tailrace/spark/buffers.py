"""A buffer that is reused, because fresh memory costs more than writing to it.

The operating system clears every page before a process gets it, and the allocator returns the pages of
a large buffer as soon as the buffer is free. A new buffer for each batch would cost a page fault every
4 KiB.
"""

from __future__ import annotations

from typing import Final, final

import numpy as np

__all__ = ["Scratch"]

_POISON: Final = 0xA5


@final
class Scratch:
    """One buffer that is used for one purpose after another."""

    def __init__(self) -> None:
        self._room = np.empty(0, dtype=np.uint8)

    def room(self, size: int) -> memoryview:
        """Return ``size`` bytes of any content. Bytes that were returned before are no longer valid."""
        if len(self._room) < size:
            self._room = np.empty(size, dtype=np.uint8)
        return self._room[:size].data

    def take(self, size: int) -> memoryview:
        """Return ``size`` bytes that hold a fixed pattern, so that old content cannot be taken for new."""
        view = self.room(size)
        np.frombuffer(view, dtype=np.uint8)[:] = _POISON
        return view
