"""System calls of Linux for which Python has no function. They run without the interpreter's lock."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Final

__all__ = ["populate", "punch_hole", "will_need"]

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_MADV_WILLNEED: Final = 3
_MADV_POPULATE_READ: Final = 22


def punch_hole(descriptor: int, start: int, length: int) -> None:
    """Free the blocks of ``length`` bytes from ``start`` of a file; its length stays. Raises OSError."""
    if _libc.fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, start, length):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def populate(view: memoryview, start: int, length: int) -> bool:
    """Bring the pages of ``length`` bytes from ``start`` of a writable mapping into memory.

    The pages stay clean, so none of them is written to the disk for this. Return False if it cannot be done:
    madvise(2) has MADV_POPULATE_READ since Linux 5.14.
    """
    first = ctypes.c_char.from_buffer(view)
    before = start % mmap.PAGESIZE
    return not _libc.madvise(ctypes.addressof(first) + start - before, length + before, _MADV_POPULATE_READ)


def will_need(address: int, length: int) -> None:
    """Start to read the part of a mapped file at an address from the disk. The call does not wait for the disk.

    It is only advice, so it has no result.
    """
    before = address % mmap.PAGESIZE
    _libc.madvise(address - before, length + before, _MADV_WILLNEED)
