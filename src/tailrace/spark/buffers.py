"""Buffers that are reused, because fresh memory costs more than writing to it.

The operating system clears every page before a process gets it, and the allocator returns the pages of
a large buffer as soon as the buffer is free. A new buffer for each batch would cost a page fault every
4 KiB.
"""

from __future__ import annotations

import weakref
from typing import Any, Final, final

import numpy as np

__all__ = ["Bytes", "BufferPool", "Scratch"]

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
_POISON: Final = 0xA5
_LEAST: Final = 1 << 16
_KEPT: Final = 4


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


@final
class BufferPool:
    """Buffers for columns that Arrow may still hold. A buffer is reused when nothing refers to it.

    Pass on the array that ``take`` returned, not a slice of it: a slice keeps the memory alive, not the
    array, so the buffer would be reused too early.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[Bytes]] = {}

    def take(self, size: int) -> Bytes:
        """Return an array of ``size`` bytes of any content."""
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
