"""Parquet files of an archive. Every byte is compared with its checksum before it is used.

The page checksums of Parquet cover pages, but not page headers, statistics and footer. A changed bit there may
lead to wrong rows without an error. So the manifest has a CRC-32 of each row group, and of all bytes after them.
Each part is compared when a reader first needs it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, final

import pyarrow as pa
import pyarrow.parquet as pq
from isal import isal_zlib

from tailrace.env.object_store import ObjectStoreError
from tailrace.errors import ChecksumMismatchError, CorruptionError
from tailrace.spark.buffers import Scratch
from tailrace.store.archive_manifest import ArchivedFile, FilePart, archived_name
from tailrace.store.archive_store import ArchivedBytes, ArchiveStore

__all__ = ["Readable", "SeekableFile", "groups_with_topic", "in_archive", "opened", "parts_of"]


class Readable(NamedTuple):
    """A data file: how to open it, its path for messages, and its entry in the manifest."""

    open: Callable[[], ArchivedBytes]
    path: str
    file: ArchivedFile


def in_archive(archive: ArchiveStore, file: ArchivedFile) -> Readable:
    """Return a published file of an archive."""
    name = archived_name(archive, file.path)
    return Readable(lambda: archive.open(name), archive.path_of(name), file)


class SeekableFile(io.RawIOBase):
    """A file of ``size`` bytes with a position, as PyArrow asks for it; ``read`` moves ``_at``."""

    def __init__(self, size: int) -> None:
        self._size, self._at = size, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position of the next read."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position of the next read, from the start, the present position or the end."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(start + offset, 0)
        return self._at


@final
class _CheckedFile(SeekableFile):
    """The bytes of an archived file; a read loads and compares the parts that it needs.

    Manifests of version 1 have no parts: the whole file is one part, compared by its SHA-256. One part is in memory
    at a time, and a read returns a copy.
    """

    def __init__(self, file: ArchivedBytes, archived: ArchivedFile, path: str, scratch: Scratch) -> None:
        self._file, self._archived, self._path, self._scratch = file, archived, path, scratch
        ends = [one.end for one in archived.parts] or [archived.size]
        self._bounds = list(zip([0, *ends], ends, strict=False))
        super().__init__(archived.size)
        self._loaded = -1
        self._room: memoryview = memoryview(b"")

    def read(self, n: int = -1) -> bytes:
        until = self._archived.size if n < 0 else min(self._at + n, self._archived.size)
        found = []
        for number, (low, high) in enumerate(self._bounds):
            if high > self._at and low < until:
                part = self._load(number)
                found.append(bytes(part[self._at - low : min(until, high) - low]))
                self._at = min(until, high)
        return found[0] if len(found) == 1 else b"".join(found)

    def _load(self, number: int) -> memoryview:
        if self._loaded == number:
            return self._room
        low, high = self._bounds[number]
        self._loaded = -1
        self._room = self._scratch.room(high - low)
        read = self._file.pread_into(self._room, low)
        if read < high - low:
            raise ChecksumMismatchError(
                f"{self._part(number)} of an archived file is cut off", path=self._path, file_pos=low,
                expected=high - low, actual=read)
        self._compare(number, low)
        self._loaded = number
        return self._room

    def _compare(self, number: int, low: int) -> None:
        expected: str | int
        actual: str | int
        if self._archived.parts:
            expected, actual = self._archived.parts[number].crc32, isal_zlib.crc32(self._room)
        else:
            expected, actual = self._archived.sha256, hashlib.sha256(self._room).hexdigest()
        if expected != actual:
            raise ChecksumMismatchError(
                f"{self._part(number)} of an archived file is not what the manifest says; "
                "`tailrace pipeline archive --verify` writes the file again while the log has its "
                "segment, otherwise restore it from a copy",
                path=self._path, file_pos=low, expected=expected, actual=actual)

    def _part(self, number: int) -> str:
        if not self._archived.parts:
            return "the whole"
        return "the footer" if number == len(self._bounds) - 1 else f"row group {number}"


@contextlib.contextmanager
def opened(readable: Readable, scratch: Scratch | None = None) -> Iterator[pq.ParquetFile]:
    """Open an archived file as Parquet; ``scratch`` holds the part that is read.

    Every error of the file, when it is opened and inside the ``with`` block, becomes a CorruptionError that
    names the file. Raises ObjectStoreError if the server of an object store does not answer.
    """
    path, archived = readable.path, readable.file
    try:
        with contextlib.closing(readable.open()) as file:
            size = file.size()
            if size != archived.size:
                raise CorruptionError(
                    "a file of the archive is not what its manifest says", path=path,
                    expected=archived.size, actual=size)
            checked = _CheckedFile(file, archived, path, scratch or Scratch())
            with pq.ParquetFile(pa.PythonFile(checked, "r")) as found:
                yield found
    except (CorruptionError, ObjectStoreError):
        raise
    except (OSError, pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise CorruptionError(
            f"a file of the archive cannot be read: {type(error).__name__}: {error}",
            path=path) from error


def groups_with_topic(found: pq.ParquetFile, topics: Sequence[str]) -> Iterator[int]:
    """Yield the row groups that may have rows of one of the topics, by their statistics."""
    leaf = next(
        n for n in range(len(found.schema)) if found.schema.column(n).path == "topic")
    for number in range(found.num_row_groups):
        known = found.metadata.row_group(number).column(leaf).statistics
        if known is None or not known.has_min_max or any(
            known.min <= topic <= known.max for topic in topics
        ):
            yield number


def parts_of(data: Any, path: str) -> tuple[FilePart, ...]:
    """Return the parts of a file by its footer, for a manifest that has none.

    ``data`` are all bytes of the file and must have been compared already.
    """
    with pq.ParquetFile(pa.BufferReader(data)) as found:
        ends = [_group_end(found.metadata.row_group(n)) for n in range(found.num_row_groups)]
    if sorted(set(ends)) != ends:
        raise CorruptionError("the row groups of an archived file are not in their order", path=path)
    bounds = [*ends, len(data)]
    view = memoryview(data)
    return tuple(
        FilePart(high, isal_zlib.crc32(view[low:high]))
        for low, high in zip([0, *bounds], bounds, strict=False))


def _group_end(group: Any) -> int:
    """Return the position after the last page of a row group."""
    ends = []
    for number in range(group.num_columns):
        column = group.column(number)
        first = column.data_page_offset
        if column.has_dictionary_page and column.dictionary_page_offset:
            first = min(first, column.dictionary_page_offset)
        ends.append(first + column.total_compressed_size)
    return max(ends)
