"""Records of the CommitLog, found one behind the other as far as they are whole.

What a walk does where bytes are no record is in ``log_walk``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from tailrace.formats.commitlog import SysFlag
from tailrace.kernels import record

__all__ = [
    "CHUNK", "LogChunk", "LogEnd", "ReadableFile", "Room", "Rows", "SameRows",
    "ends_with_nul", "has_unit", "is_record", "scan_files",
]

CHUNK: Final = 2 << 20  # what is read is checked while a processor's cache still has it
_ROWS: Final = 1 << 15
Rows = np.ndarray[Any, np.dtype[np.int64]]


class ReadableFile(Protocol):
    """Part of the log: a file and where it starts."""

    @property
    def file_from_offset(self) -> int:
        """Position of the first byte."""
        ...

    @property
    def path(self) -> str:
        """Where it is."""
        ...

    @property
    def size(self) -> int:
        """Length in bytes."""
        ...

    def read(self, at: int, n: int) -> bytes | memoryview:
        """Up to ``n`` bytes from ``at``; they may be void when the next ones are read."""
        ...


@dataclass(slots=True)
class LogChunk:
    """Some records: rows point into ``data``, whose first byte is at ``base``."""

    data: Any
    """Bytes, or a view of them; what a ``Room`` reads into."""
    base: int
    rows: Rows


@dataclass(slots=True)
class LogEnd:
    """Where a walk ended and why; ``reason`` is one of kernels.record.REASON_*."""

    phy_offset: int = 0
    reason: int = record.REASON_END
    path: str = ""


class Room(Protocol):
    """Memory that a scan reads into; it may be the same again for the next chunk, which voids the one before."""

    def read(self, file: ReadableFile, at: int, n: int) -> bytes | memoryview:
        """Up to ``n`` bytes of a file from ``at``."""
        ...

    def rows(self) -> Rows:
        """Place for the rows of what was read last, to fill from the first on."""
        ...


class FreshRoom:
    """New memory for each chunk."""

    def read(self, file: ReadableFile, at: int, n: int) -> bytes | memoryview:
        """As ``Room`` says."""
        return file.read(at, n)

    def rows(self) -> Rows:
        """As ``Room`` says."""
        return np.empty((_ROWS, record.COLUMNS), dtype=np.int64)


class SameRows(FreshRoom):
    """The same place for rows again: those of a chunk are void when the next one is asked for."""

    def __init__(self) -> None:
        self._rows = super().rows()

    def rows(self) -> Rows:
        """As ``Room`` says."""
        return self._rows


def scan_files(
    files: Sequence[ReadableFile], start: int, until: int, check: int, end: LogEnd,
    room: Room | None = None,
) -> Iterator[LogChunk]:
    """Walk records from ``start`` (a record's position) up to ``until``, as far as they are whole.

    A blank leads to the next file. ``end`` tells where the walk stopped: at ``until``, behind the
    last file, at a gap between files, or at bytes that are no record.
    """
    room = room if room is not None else FreshRoom()
    end.phy_offset, end.reason = start, record.REASON_END
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
                end.reason = record.REASON_END
                if limit < file.size:
                    return
                break
            data = room.read(file, at, min(want, limit - at))
            rows = room.rows()
            count, stop, reason = record.scan(
                data, 0, len(data), file.file_from_offset + at, check, rows)
            if count:
                yield LogChunk(data, file.file_from_offset + at, rows[:count])
            at += stop
            end.phy_offset, end.reason = file.file_from_offset + at, reason
            if reason == record.REASON_BLANK:
                end.phy_offset = file.file_from_offset + file.size
                break
            if reason == record.REASON_SHORT and short < len(data) < limit - (at - stop):
                short = 0 if stop else len(data)  # no more than before: somebody cuts the file
                want = CHUNK if stop else want * 8  # a record longer than what was read
                continue
            if reason in {record.REASON_END, record.REASON_ROWS_FULL} and data:
                want = CHUNK
                continue
            return


def ends_with_nul(chunk: LogChunk) -> bool:
    """Whether topic or properties of the last record hold a NUL: it may be torn."""
    row, data = chunk.rows[-1], chunk.data
    for pos, length in (
        (record.C_TOPIC_POS, record.C_TOPIC_LEN), (record.C_PROPS_POS, record.C_PROPS_LEN)
    ):
        at = int(row[pos])
        if b"\0" in bytes(data[at : at + int(row[length])]):
            return True
    return False


def is_record(data: bytes, phy_offset: int) -> bool:
    """Whether ``data`` is one whole record that belongs at ``phy_offset``, checksums included."""
    return _record_type(data, phy_offset) >= 0


def has_unit(data: bytes, phy_offset: int) -> bool:
    """Whether ``data`` is such a record of a kind that has a unit.

    Half messages have none, nor rolled back ones, which placeholders over damage are, too.
    """
    return _record_type(data, phy_offset) in {0, SysFlag.TRANSACTION_COMMIT}


def _record_type(data: bytes, phy_offset: int) -> int:
    rows = np.empty((1, record.COLUMNS), dtype=np.int64)
    count, stop, _ = record.scan(
        data, 0, len(data), phy_offset,
        record.CHECK_BODY_CRC | record.CHECK_PHY_OFFSET | record.CHECK_PROP_CRC, rows)
    if count != 1 or stop != len(data):
        return -1
    return int(rows[0, record.C_SYS_FLAG]) & SysFlag.TRANSACTION_MASK
