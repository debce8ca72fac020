"""Find the records of the CommitLog one after the other, up to the first bytes that are not a valid record.

``log_walk`` has the rules for what follows such bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from tailrace.config import StoreConfig
from tailrace.formats.commitlog import SysFlag
from tailrace.kernels import record
from tailrace.kernels.shared import constants as C
from tailrace.segments import MappedFile

__all__ = [
    "CHUNK", "LogChunk", "LogEnd", "ReadableFile", "Rows", "checks_of", "ends_with_nul", "has_unit", "is_record",
    "rows_of_a_chunk", "scan_files",
]

CHUNK: Final = 2 << 20  # small enough to be checked while it is still in a processor's cache
_ROWS: Final = 1 << 15
Rows = np.ndarray[Any, np.dtype[np.int64]]


class ReadableFile(Protocol):
    """A segment file of the log."""

    @property
    def file_from_offset(self) -> int:
        """Position of the first byte in the log."""
        ...

    @property
    def path(self) -> str:
        """Path of the file."""
        ...

    @property
    def size(self) -> int:
        """Length in bytes."""
        ...

    def read(self, at: int, n: int) -> bytes | memoryview:
        """Return up to ``n`` bytes at ``at``; they may be valid only until the next read."""
        ...


@dataclass(slots=True)
class LogChunk:
    """Some records that follow each other."""

    data: Any
    """Bytes of the records, or a view of them."""
    base: int
    """Position of the first byte of ``data`` in the log."""
    rows: Rows
    """One row per record, columns of ``kernels.shared.constants``; *_POS are positions in ``data``."""


@dataclass(slots=True)
class LogEnd:
    """Position where a scan ended, and why: ``reason`` is one of kernels.record.REASON_*."""

    phy_offset: int = 0
    reason: int = C.REASON_END
    path: str = ""


def rows_of_a_chunk() -> Rows:
    """Return an array that has room for the rows of a chunk."""
    return np.empty((_ROWS, C.COLUMNS), dtype=np.int64)


def scan_files(
    files: Sequence[ReadableFile], start: int, until: int, check: int, end: LogEnd,
    rows: Rows | None = None, buffer: bytearray | None = None,
) -> Iterator[LogChunk]:
    """Yield the records from ``start`` (start of a record) to ``until``, up to the first invalid bytes.

    A blank record leads to the next file. ``end`` is set to where the scan stopped: at ``until``, after
    the last file, at a missing file, or at bytes that are not a valid record. With ``rows`` and ``buffer`` (of
    ``CHUNK`` bytes) each chunk uses the same memory: it is valid until the next one is requested.
    """
    end.phy_offset, end.reason = start, C.REASON_END
    for file in files:
        at = end.phy_offset - file.file_from_offset
        if at >= file.size:
            continue
        if at < 0:
            return  # files are missing before this one
        want, short = CHUNK, 0
        while True:
            limit = min(file.size, until - file.file_from_offset)
            end.phy_offset, end.path = file.file_from_offset + at, file.path
            if at >= limit:
                end.reason = C.REASON_END
                if limit < file.size:
                    return
                break
            data = _read(file, at, min(want, limit - at), buffer)
            found = rows if rows is not None else rows_of_a_chunk()
            count, stop, reason = record.scan(
                data, 0, len(data), file.file_from_offset + at, check, found)
            if count:
                yield LogChunk(data, file.file_from_offset + at, found[:count])
            at += stop
            end.phy_offset, end.reason = file.file_from_offset + at, reason
            if reason == C.REASON_BLANK:
                end.phy_offset = file.file_from_offset + file.size
                break
            if reason == C.REASON_SHORT and short < len(data) < limit - (at - stop):
                short = 0 if stop else len(data)  # if a read returns no more than before, the file is being cut
                want = CHUNK if stop else want * 8  # a record longer than what was read
                continue
            if reason in {C.REASON_END, C.REASON_ROWS_FULL} and data:
                want = CHUNK
                continue
            return


def _read(file: ReadableFile, at: int, n: int, buffer: bytearray | None) -> bytes | memoryview:
    """Return up to ``n`` bytes of a file, in ``buffer`` if they fit."""
    if buffer is None or n > len(buffer) or not isinstance(file, MappedFile):
        return file.read(at, n)
    view = memoryview(buffer)[:n]
    return view[: file.read_into(at, view)]


def ends_with_nul(chunk: LogChunk) -> bool:
    """Return True if topic or properties of the last record have a NUL byte (rule d of ``log_walk``)."""
    row, data = chunk.rows[-1], chunk.data
    for pos, length in (
        (C.TOPIC_POS, C.TOPIC_LEN), (C.PROPS_POS, C.PROPS_LEN)
    ):
        at = int(row[pos])
        if b"\0" in bytes(data[at : at + int(row[length])]):
            return True
    return False


def checks_of(config: StoreConfig) -> int:
    """Return the checks, flags C.CHECK_*, that a record must pass to count in a recovery."""
    return C.CHECK_PHY_OFFSET | C.CHECK_PROP_CRC | (C.CHECK_BODY_CRC if config.check_crc_on_recover else 0)


def is_record(data: bytes, phy_offset: int, check: int = C.CHECK_ALL) -> bool:
    """Return True if ``data`` is exactly one valid record of position ``phy_offset``; ``check`` is flags C.CHECK_*."""
    return _record_type(data, phy_offset, check) >= 0


def has_unit(data: bytes, phy_offset: int) -> bool:
    """Return True if ``is_record`` holds and a record of this kind has a unit in a queue.

    Half messages and rolled back messages have no unit. Placeholders over damage are stored as rolled back.
    """
    return _record_type(data, phy_offset, C.CHECK_ALL) in {0, SysFlag.TRANSACTION_COMMIT}


def _record_type(data: bytes, phy_offset: int, check: int) -> int:
    rows = np.empty((1, C.COLUMNS), dtype=np.int64)
    count, stop, _ = record.scan(data, 0, len(data), phy_offset, check, rows)
    if count != 1 or stop != len(data):
        return -1
    return int(rows[0, C.SYS_FLAG]) & SysFlag.TRANSACTION_MASK
