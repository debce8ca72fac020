"""Verification of archived files: they are read back, and their bytes are compared with the log."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace

import pyarrow as pa

from tailrace.errors import ChecksumMismatchError, CorruptionError
from tailrace.spark.archive.parquet_file import Readable, in_archive, opened, parts_of
from tailrace.spark.archive.rows import ENCODED_COLUMNS, bytes_of, first_difference, give_back
from tailrace.spark.buffers import Scratch
from tailrace.store.archive_manifest import VERSION, ArchivedFile, Manifest, archived_name
from tailrace.store.archive_store import ArchiveStore

__all__ = ["checked", "compare", "restored"]


def _tables(files: Sequence[Readable], read: Scratch) -> Generator[pa.Table, None, None]:
    """Yield the row groups of files, with the columns that records need. ``read`` is the buffer for bytes of files."""
    for file in files:
        with opened(file, read) as found:
            for group in range(found.num_row_groups):
                yield found.read_row_group(group, columns=list(ENCODED_COLUMNS), use_threads=False)


def _bytes_in(
    files: Sequence[Readable], start: int, end: int, scratch: Scratch, read: Scratch
) -> tuple[memoryview, int]:
    """Return the bytes [start, end) of the log that the files give, and how many of them the files gave.

    ``scratch`` is the buffer of the result.
    """
    out = scratch.take(end - start)
    return out, sum(bytes_of(table, start, out) for table in _tables(files, read))


def compare(files: Sequence[Readable], start: int, data: memoryview, scratch: Scratch, read: Scratch) -> None:
    """Raise CorruptionError unless the files together give ``data``, which is at ``start`` in the log."""
    with closing(_tables(files, read)) as tables:
        if give_back(tables, start, data, scratch):
            return
    out, written = _bytes_in(files, start, start + len(data), scratch, read)  # again, to name the place
    paths = [one.path for one in files]
    if written != len(data):
        raise CorruptionError(
            f"{', '.join(paths)}: {written} bytes of the log instead of {len(data)}",
            phy_offset=start)
    if (differ := first_difference(out, data)) >= 0:
        raise CorruptionError(
            f"{', '.join(paths)}: the bytes differ from those of the log",
            phy_offset=start + differ)


def _groups(files: Sequence[ArchivedFile]) -> Iterator[tuple[int, int, list[ArchivedFile]]]:
    """Yield the pieces of the log (start, end), each with its files."""
    pieces = sorted({(file.start, file.end) for file in files})
    for start, end in pieces:
        yield start, end, [file for file in files if (file.start, file.end) == (start, end)]


def restored(archive: ArchiveStore, manifest: Manifest) -> Iterator[bytes]:
    """Yield the bytes of an archived segment, piece by piece.

    Raises CorruptionError if a file, or the whole segment, differs from its manifest.
    """
    total = hashlib.sha256()
    position = manifest.segment
    scratch, read = Scratch(), Scratch()
    for start, end, files in _groups(manifest.files):
        if start != position:
            raise CorruptionError(f"{archive.location}: no file of the manifest has this position",
                                  phy_offset=position)
        out, written = _bytes_in([in_archive(archive, file) for file in files], start, end, scratch, read)
        if written != end - start:
            raise CorruptionError(f"{archive.location}: {written} bytes of the log instead of {end - start}",
                                  phy_offset=start)
        total.update(out)
        position = end
        yield bytes(out)
    if position != manifest.until or total.hexdigest() != manifest.sha256:
        raise ChecksumMismatchError(
            f"{archive.location}: the segment at {manifest.segment} is not what its manifest says",
            expected=manifest.sha256, actual=total.hexdigest())


def checked(archive: ArchiveStore, manifest: Manifest) -> Manifest:
    """Read an archived segment without the log; return its manifest, verified and with all parts.

    Raises CorruptionError if a file or the segment differs from the manifest.
    """
    for _ in restored(archive, manifest):
        pass
    files = []
    for file in manifest.files:
        readable = in_archive(archive, file)
        path, head = readable.path, archive.head(archived_name(archive, file.path))
        with closing(readable.open()) as opened_file:
            data = opened_file.pread(file.size, 0)  # compared above, but the file may have changed since
        if (actual := hashlib.sha256(data).hexdigest()) != file.sha256:
            raise ChecksumMismatchError(
                "a file of the archive is not what its manifest says", path=path,
                expected=file.sha256, actual=actual)
        files.append(replace(
            file, parts=file.parts or parts_of(data, path),
            tag="" if head is None else head.tag))  # another program may have copied the object
    return replace(manifest, files=tuple(files), verified=True, version=VERSION)
