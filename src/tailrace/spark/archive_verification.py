"""Whether files hold a part of the log: they are read back, and every byte is compared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from tailrace.env.filesystem import FileSystem
from tailrace.env.whole_files import read_file
from tailrace.errors import ChecksumMismatchError, CorruptionError
from tailrace.spark.archive_manifest import ArchivedFile, Manifest
from tailrace.spark.archive_rows import ENCODED_COLUMNS, bytes_of, first_difference
from tailrace.spark.memory import Scratch

__all__ = ["compare", "restored"]


def _bytes_in(
    file_system: FileSystem, paths: Sequence[str], start: int, end: int, scratch: Scratch
) -> tuple[memoryview, int]:
    out = scratch.take(end - start)
    written = 0
    for path in paths:
        found = pq.ParquetFile(pa.BufferReader(read_file(file_system, path)))
        for group in range(found.num_row_groups):
            table = found.read_row_group(group, columns=list(ENCODED_COLUMNS), use_threads=False)
            written += bytes_of(table, start, out)
    return out, written


def compare(
    file_system: FileSystem, paths: Sequence[str], start: int, data: memoryview, scratch: Scratch
) -> None:
    """Raise CorruptionError unless the files together hold ``data``, which is at ``start``."""
    out, written = _bytes_in(file_system, paths, start, start + len(data), scratch)
    if written != len(data):
        raise CorruptionError(
            f"{', '.join(paths)}: {written} bytes of the log instead of {len(data)}",
            phy_offset=start)
    if (differ := first_difference(out, data)) >= 0:
        raise CorruptionError(
            f"{', '.join(paths)} do not give the bytes of the log back",
            phy_offset=start + differ)


def _groups(files: Sequence[ArchivedFile]) -> Iterator[tuple[int, int, list[ArchivedFile]]]:
    """Files by the piece of the log that they are from together."""
    pieces = sorted({(one.start, one.end) for one in files})
    for start, end in pieces:
        yield start, end, [one for one in files if (one.start, one.end) == (start, end)]


def restored(file_system: FileSystem, archive: str, manifest: Manifest) -> Iterator[bytes]:
    """The bytes of an archived segment, piece by piece.

    Raises CorruptionError when a file or the whole is not what the manifest says.
    """
    total = hashlib.sha256()
    position = manifest.segment
    scratch = Scratch()
    for start, end, files in _groups(manifest.files):
        if start != position:
            raise CorruptionError(f"{archive}: no file of the manifest has this place",
                                  phy_offset=position)
        for one in files:
            data = read_file(file_system, f"{archive}/{one.path}")
            if (actual := hashlib.sha256(data).hexdigest()) != one.sha256:
                raise ChecksumMismatchError(
                    "a file of the archive is not what its manifest says",
                    path=f"{archive}/{one.path}", expected=one.sha256, actual=actual)
        out, written = _bytes_in(
            file_system, [f"{archive}/{one.path}" for one in files], start, end, scratch)
        if written != end - start:
            raise CorruptionError(f"{archive}: {written} bytes of the log instead of {end - start}",
                                  phy_offset=start)
        total.update(out)
        position = end
        yield bytes(out)
    if position != manifest.until or total.hexdigest() != manifest.sha256:
        raise ChecksumMismatchError(
            f"{archive}: the segment at {manifest.segment} is not what its manifest says",
            expected=manifest.sha256, actual=total.hexdigest())
