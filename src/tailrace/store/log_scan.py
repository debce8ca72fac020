"""A forward walk over the CommitLog, the one way recovery, dump and Spark find records."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from tailrace.kernels import record

__all__ = ["CHUNK", "LogChunk", "LogEnd", "behind_damage", "group_rows", "scan_files"]

_log = logging.getLogger(__name__)
CHUNK: Final = 8 << 20
ROWS: Final = 1 << 15


class LogFile(Protocol):
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

    def read(self, at: int, n: int) -> bytes:
        """Up to ``n`` bytes from ``at``."""
        ...


@dataclass(slots=True)
class LogChunk:
    """Some records: rows point into ``data``, whose first byte is at ``base``."""

    data: bytes
    base: int
    rows: np.ndarray[Any, np.dtype[np.int64]]


@dataclass(slots=True)
class LogEnd:
    """Where a walk ended and why; ``reason`` is one of kernels.record.REASON_*."""

    phy_offset: int = 0
    reason: int = record.REASON_END
    path: str = ""


def scan_files(
    files: Sequence[LogFile], start: int, until: int, check: int, end: LogEnd
) -> Iterator[LogChunk]:
    """Walk records from ``start`` (a record's position) up to ``until``.

    A blank leads to the next file. ``end`` tells where the walk stopped: at ``until``, behind the
    last file, or at bytes that are no record. The last record of a log that was not closed may be
    torn behind its body, which alone has a checksum: when its topic or its properties are not
    well-formed, the walk ends before it.
    """
    held: LogChunk | None = None
    for chunk in _walk(files, start, until, check, end):
        if held is not None:
            yield held
        held = chunk
    if held is None:
        return
    if end.phy_offset < until and _is_torn(held) and behind_damage(files, end, until, check) is None:
        _log.warning("the last record is torn phy_offset=%d", held.rows[-1, record.C_PHY])
        end.phy_offset, end.reason = int(held.rows[-1, record.C_PHY]), record.REASON_SHORT
        end.path = next(
            f.path for f in files if 0 <= end.phy_offset - f.file_from_offset < f.size)
        held.rows = held.rows[:-1]
    if len(held.rows):
        yield held


def _is_torn(chunk: LogChunk) -> bool:
    """Whether the last record has a topic or properties that nobody can have written."""
    row, data = chunk.rows[-1], chunk.data
    at = int(row[record.C_TOPIC_POS])
    topic = data[at : at + int(row[record.C_TOPIC_LEN])]
    at = int(row[record.C_PROPS_POS])
    properties = data[at : at + int(row[record.C_PROPS_LEN])]
    return b"\0" in topic or b"\0" in properties or any(
        piece and piece.find(b"\x01") < 1 for piece in properties.split(b"\x02"))


def _walk(
    files: Sequence[LogFile], start: int, until: int, check: int, end: LogEnd
) -> Iterator[LogChunk]:
    rows = np.empty((ROWS, record.COLUMNS), dtype=np.int64)
    end.phy_offset = start
    for file in files:
        at = max(start, end.phy_offset) - file.file_from_offset
        if at >= file.size:
            continue
        at = max(at, 0)  # files are missing before this one
        want = CHUNK
        while True:
            limit = min(file.size, until - file.file_from_offset)
            end.phy_offset, end.path = file.file_from_offset + at, file.path
            if at >= limit:
                end.reason = record.REASON_END
                if limit < file.size:
                    return
                break
            data = file.read(at, min(want, limit - at))
            count, stop, reason = record.scan(
                data, 0, len(data), file.file_from_offset + at, check, rows)
            if count:
                yield LogChunk(data, file.file_from_offset + at, rows[:count].copy())
            at += stop
            end.phy_offset, end.reason = file.file_from_offset + at, reason
            if reason == record.REASON_BLANK:
                end.phy_offset = file.file_from_offset + file.size
                break
            if reason == record.REASON_SHORT and len(data) < limit - (at - stop) and data:
                want = CHUNK if stop else want * 8  # a record longer than what was read
                continue
            if reason in {record.REASON_END, record.REASON_ROWS_FULL} and data:
                want = CHUNK
                continue
            return


_DAMAGED: Final = (
    record.REASON_BAD_CRC, record.REASON_BAD_PROP_CRC, record.REASON_BAD_LENGTH,
    record.REASON_BAD_PHY_OFFSET,
)


def behind_damage(
    files: Sequence[LogFile], end: LogEnd, until: int, check: int
) -> tuple[int, int] | None:
    """(position, length) of a damaged record that has a good one right behind it, or None.

    ``end`` is where a walk stopped; the length is the one the damaged record claims.
    """
    if end.reason not in _DAMAGED:
        return None
    for file in files:
        at = end.phy_offset - file.file_from_offset
        if 0 <= at < file.size:
            size = int.from_bytes(file.read(at, 4), "big", signed=True)
            if not 91 <= size <= file.size - at:
                return None
            for _ in scan_files(files, end.phy_offset + size, until, check, LogEnd()):
                return end.phy_offset, size
    return None


def group_rows(
    rows: np.ndarray[Any, np.dtype[np.int64]],
) -> Iterator[np.ndarray[Any, np.dtype[np.int64]]]:
    """Row numbers of each queue that has a unit for them, in the order of the log.

    Prepared and rolled back transaction messages have none.
    """
    transaction = rows[:, record.C_SYS_FLAG] & 0xC
    chosen = np.flatnonzero((transaction == 0) | (transaction == 8))
    if not len(chosen):
        return
    queue = rows[chosen, record.C_QUEUE_HASH]
    order = np.argsort(queue, kind="stable")
    ordered = queue[order]
    bounds = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    for part in np.split(order, bounds):
        yield np.ascontiguousarray(chosen[part])
