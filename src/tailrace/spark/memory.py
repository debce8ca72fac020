"""Memory that is used again: fresh memory costs more than what is written to it.

The kernel clears every page it gives out, and the allocator gives pages of large buffers back as
soon as they are free, so a buffer a batch would cost a page fault every 4 KiB.
"""

from __future__ import annotations

import weakref
from typing import Any, Final, final

import numpy as np

__all__ = ["Bytes", "Rooms", "Scratch"]

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
_POISON: Final = 0xA5
_LEAST: Final = 1 << 16
_KEPT: Final = 4


@final
class Scratch:
    """A buffer that is used again and again."""

    def __init__(self) -> None:
        self._room = np.empty(0, dtype=np.uint8)

    def room(self, size: int) -> memoryview:
        """So many bytes with anything in them; the last ones taken are void."""
        if len(self._room) < size:
            self._room = np.empty(size, dtype=np.uint8)
        return self._room[:size].data

    def take(self, size: int) -> memoryview:
        """The same, and none of the bytes is left from before."""
        view = self.room(size)
        np.frombuffer(view, dtype=np.uint8)[:] = _POISON
        return view


@final
class Rooms:
    """Buffers for columns that somebody else may hold: one is used again when nobody does any more.

    What is taken must be handed on as it is, not as a part of it: NumPy lets a part of an array
    hold the memory, not the array.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[Bytes]] = {}

    def take(self, size: int) -> Bytes:
        """So many bytes with anything in them."""
        if size < _LEAST:
            return np.empty(size, dtype=np.uint8)
        room = 1 << (int(size) - 1).bit_length()  # interpreted kernels count in NumPy's integers
        free = self._free.setdefault(room, [])
        whole = free.pop() if free else np.empty(room, dtype=np.uint8)
        part = whole[:size]
        weakref.finalize(part, _give_back, free, whole).atexit = False
        return part


def _give_back(free: list[Bytes], whole: Bytes) -> None:
    if len(free) < _KEPT:
        free.append(whole)
