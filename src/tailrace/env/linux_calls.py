"""System calls of Linux for which Python has no function, or not in this form.

All but ``pwrite_with_lock`` and ``in_memory`` run without the interpreter's lock.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Final

__all__ = [
    "address_of", "few_heaps", "in_memory", "populate", "punch_hole", "pwrite_with_lock", "trim_heap", "will_need"]

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_with_lock = ctypes.PyDLL(None, use_errno=True)
_with_lock.pwrite.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64)
_with_lock.pwrite.restype = ctypes.c_ssize_t
_mincore = _with_lock.mincore
_mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_MADV_WILLNEED: Final = 3
_MADV_POPULATE_READ: Final = 22
_M_ARENA_MAX: Final = -8
_HEAPS: Final = 2
_IN_MEMORY: Final = b"\1"
_PAGE: Final = mmap.PAGESIZE
_FEW: Final = 16
_FewPages = ctypes.c_ubyte * _FEW


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def few_heaps() -> None:
    """Let threads that start from now on share two heaps of the C library, instead of eight for each processor.

    A few objects that stay keep pages of a heap in use, so `trim_heap` gives back more of few heaps than of many.
    Nothing happens with a library that has no ``mallopt`` for this, such as musl.
    """
    if option := getattr(_libc, "mallopt", None):
        option(_M_ARENA_MAX, _HEAPS)


def trim_heap() -> None:
    """Give free memory in the middle of the C library's heaps back to the system. A few ms for each 100 MB.

    Nothing happens with a library that has no ``malloc_trim``, such as musl.
    """
    if trim := getattr(_libc, "malloc_trim", None):
        trim(0)


def punch_hole(descriptor: int, start: int, length: int) -> None:
    """Free the blocks of ``length`` bytes from ``start`` of a file; its length stays. Raises OSError."""
    if _libc.fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, start, length):
        raise _last_error()


def populate(view: memoryview, start: int, length: int) -> bool:
    """Bring the pages of ``length`` bytes from ``start`` of a writable mapping into memory.

    The pages stay clean, so none of them is written to the disk for this. Return False if it cannot be done:
    madvise(2) has MADV_POPULATE_READ since Linux 5.14.
    """
    first = ctypes.c_char.from_buffer(view)
    before = start % _PAGE
    return not _libc.madvise(ctypes.addressof(first) + start - before, length + before, _MADV_POPULATE_READ)


def address_of(view: memoryview | bytes) -> int:
    """Return the address of the first byte of a buffer."""
    import numpy as np  # noqa: PLC0415 - a command that maps no file must not wait for it

    return np.frombuffer(view, np.uint8).ctypes.data


def in_memory(address: int, length: int) -> bool:
    """Return True if all pages of the part of a mapped file at an address are in the page cache.

    The call takes about a microsecond, and keeps the interpreter's lock. If the system does not say it, the result is
    False.
    """
    before = address % _PAGE
    pages = (before + length + _PAGE - 1) // _PAGE
    found = _FewPages() if pages <= _FEW else (ctypes.c_ubyte * pages)()
    if _mincore(address - before, before + length, found):
        return False
    return bytes(found).count(_IN_MEMORY) == pages


def will_need(address: int, length: int) -> None:
    """Start to read the part of a mapped file at an address from the disk. The call does not wait for the disk.

    It is only advice, so it has no result.
    """
    before = address % _PAGE
    _libc.madvise(address - before, length + before, _MADV_WILLNEED)


def pwrite_with_lock(descriptor: int, data: memoryview, pos: int) -> int:
    """Write bytes of a writable buffer at ``pos``, and return their number. Raises OSError.

    The call keeps the interpreter's lock. ``os.pwrite`` gives it up, and if another thread takes it, the writer gets
    it back up to 5 ms later.
    """
    first = ctypes.c_char.from_buffer(data)
    done: int = _with_lock.pwrite(descriptor, ctypes.addressof(first), len(data), pos)
    if done < 0:
        raise _last_error()
    return done
