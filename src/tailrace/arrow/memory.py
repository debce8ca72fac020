"""Memory for columns, which is reused as soon as nothing refers to it.

The operating system clears every page before a process gets it, and an allocator returns large blocks when they are
free. With new memory for each batch of columns, a page fault every 4 KiB would take as long as the columns of some
messages. The block that was freed last is used first, because the processor's caches still have it.
"""

from __future__ import annotations

import weakref
from typing import Any, Final

import numpy as np

__all__ = ["Array", "array"]

Array = np.ndarray[Any, np.dtype[Any]]
_SIZES: Final[dict[Any, int]] = {np.uint8: 1, np.int32: 4, np.int64: 8}
_LEAST: Final = 1 << 16
"""Bytes of the smallest block. The allocator keeps smaller ones by itself."""
_KEPT: Final = 4
_KEPT_BYTES: Final = 16 << 20
"""Number and bytes of the free blocks of one size that are kept at most."""
_free: dict[int, list[Array]] = {}


def array(count: int, kind: Any = np.uint8) -> Array:
    """Return an array of ``count`` values of any content. Its memory is used again when it and its slices are gone."""
    size = int(count) * _SIZES[kind]
    if size < _LEAST:
        return np.empty(int(count), kind)
    room = 1 << (size - 1).bit_length()
    if size <= room // 4 * 3:
        room = room // 4 * 3
    free = _free.setdefault(room, [])
    try:
        block = free.pop()
    except IndexError:
        block = np.empty(room, np.uint8)
    made: Array = np.frombuffer(block.data, kind, int(count))  # slices refer to it: its base is not an array
    weakref.finalize(made, _give_back, free, block).atexit = False
    return made


def _give_back(free: list[Array], block: Array) -> None:
    if len(free) < _KEPT and (len(free) + 1) * block.nbytes <= _KEPT_BYTES:
        free.append(block)
