"""Keep slots and newest entries of an index file in memory while recovery puts many entries.

An entry changes a slot anywhere in 20 MB, and the first access to a page of a file costs more than
everything else about an entry. So slots and header stay in memory, and a thread writes many entries in one write
while the next ones are put.

Invariant: whenever the process ends, the file on disk is valid up to the count in its header; bytes after
that are not entries. Commit point: ``write`` writes entries, then slots, then the header.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final, final

import numpy as np

from tailrace.env.read_ahead import in_background
from tailrace.formats.indexfile import INDEX_ENTRY, INDEX_HEADER, INDEX_SLOT
from tailrace.kernels import index_entries
from tailrace.segments import MappedFile

__all__ = ["IndexBuilder"]

_AT_ONCE: Final = 1 << 17
_PART: Final = 2 << 20
_Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@final
class IndexBuilder:
    """Puts entries into one file after the other. ``slots`` and ``entries`` are the capacity of a file."""

    def __init__(self, slots: int, entries: int) -> None:
        self._entries = entries
        self._start = INDEX_HEADER.size + slots * INDEX_SLOT.size
        self._slots: _Bytes = np.empty(slots * INDEX_SLOT.size, dtype=np.uint8)
        room = min(_AT_ONCE, entries) * INDEX_ENTRY.size
        self._room, self._spare = np.empty(room, dtype=np.uint8), np.empty(room, dtype=np.uint8)
        self._wait: Callable[[], None] = lambda: None  # waits until the thread has written the entries of ``_spare``
        self._header = bytearray(INDEX_HEADER.size)
        self._first = 1
        self._written = 1
        self._file: MappedFile | None = None

    def put(
        self, file: MappedFile, rows: Any, ends: Any, hashes: Any, key: int, work: Any
    ) -> int:
        """Put keys, as kernels.index_entries does, until all are put or the file is full. Return the next key.

        Raises DiskFullError or OSError.
        """
        if file is not self._file:
            self._take(file)
        while True:
            key = index_entries.put_keys_apart(
                self._header, self._slots.data, self._room.data, self._first, self._entries, rows,
                ends, hashes, key, work)
            if key == ends[-1] or self._count() >= self._entries:
                return key
            self._write_entries()

    def _take(self, file: MappedFile) -> None:
        assert self._count() == self._written, "the next file begins with what this one says on disk"
        self._header[:] = file.read(0, INDEX_HEADER.size)
        self._first = self._written = self._count()
        if self._first > 1:
            for at in range(0, len(self._slots), _PART):
                part = file.read(INDEX_HEADER.size + at, min(_PART, len(self._slots) - at))
                self._slots[at : at + len(part)] = np.frombuffer(part, dtype=np.uint8)
        else:
            self._slots[:] = 0
        self._file = file

    def _count(self) -> int:
        return max(INDEX_HEADER.unpack_from(self._header).index_count, 1)

    def _write_entries(self) -> None:
        assert self._file is not None
        count = self._count() - self._first
        if count:
            part = self._room[: count * INDEX_ENTRY.size].data
            file, at = self._file, self._start + self._first * INDEX_ENTRY.size
            self._wait()
            self._wait = in_background(lambda: file.write_long(part, at))
            self._room, self._spare = self._spare, self._room
            self._first += count

    def write(self) -> None:
        """Write all entries that were put to the file. Raises DiskFullError or OSError."""
        if self._file is None or self._count() == self._written:
            return
        self._write_entries()
        self._wait()
        for at in range(0, len(self._slots), _PART):
            self._file.write_long(self._slots[at : at + _PART].data, INDEX_HEADER.size + at)
        self._file.write_long(self._header, 0)
        self._written = self._first

    def close(self) -> None:
        """Wait for the thread that writes; raises nothing. Entries that were not written are dropped."""
        with contextlib.suppress(Exception):
            self._wait()
