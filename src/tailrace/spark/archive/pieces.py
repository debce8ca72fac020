"""Division of a segment into pieces: every byte is in a record or in a raw range of exactly one piece."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

import numpy as np

from tailrace.arrow.columns import Rows
from tailrace.formats.commitlog import MESSAGE_MAGIC_START, PLAUSIBLE_LENGTH, plausible_size
from tailrace.kernels import record
from tailrace.kernels.shared import constants as C
from tailrace.spark.archive.layout import BLANK, DAMAGED
from tailrace.spark.archive.rows import Piece, RawRange
from tailrace.spark.buffers import Scratch

__all__ = ["Segment", "pieces_of", "read_into"]

_ROWS: Final = 1 << 16
_RAW: Final = 16 << 20  # the longest raw range: one value of a column
_READ: Final = 2 << 20  # small enough to stay in the processor's cache until it is copied


class Segment(Protocol):
    """A file of the log as a task reads it."""

    path: str
    file_from_offset: int
    size: int

    def read_into(self, room: memoryview, at: int) -> int:
        """Fill ``room`` with the bytes from ``at`` onwards; return their number."""
        ...


def read_into(file: Segment, at: int, size: int, scratch: Scratch) -> memoryview:
    """Read a part of a file into a buffer of ``scratch``. Raises FileNotFoundError if the file is deleted."""
    room = scratch.room(size)
    if file.read_into(room, at) < size:
        raise FileNotFoundError(file.path)
    return room


def pieces_of(file: Segment, piece_bytes: int) -> Iterator[Piece]:
    """Yield pieces of about ``piece_bytes``, in the order of the log. A piece ends at a record boundary.

    The data of a piece is no longer valid when the next piece is read. Raises FileNotFoundError if the file
    is deleted.
    """
    at, ended = 0, False
    scratch = Scratch()
    while at < file.size:
        want = piece_bytes
        while True:
            data = read_into(file, at, min(want, file.size - at), scratch)
            base = file.file_from_offset + at
            piece = _behind_blank(data, base) if ended else _piece(
                data, base, last=at + len(data) == file.size)
            if len(piece.data):
                break
            want *= 4  # a record that is longer than a piece
        ended = ended or any(one.kind == BLANK for one in piece.raw)
        yield piece
        at += len(piece.data)


def _behind_blank(data: memoryview, base: int) -> Piece:
    raw: list[RawRange] = []
    _note(raw, base, base + len(data), BLANK, "")
    return Piece(base, data, np.empty((0, C.COLUMNS), dtype=np.int64), raw)


def _piece(data: memoryview, base: int, *, last: bool) -> Piece:
    parts: list[Rows] = [np.empty((0, C.COLUMNS), dtype=np.int64)]
    raw: list[RawRange] = []
    room = np.empty((_ROWS, C.COLUMNS), dtype=np.int64)
    at = 0
    while at < len(data):
        count, stop, reason = record.scan(data, at, len(data), base, C.CHECK_ALL, room)
        parts.append(room[:count].copy())
        at = stop
        if reason == C.REASON_ROWS_FULL:
            continue
        if reason == C.REASON_END or at >= len(data):
            break
        if reason == C.REASON_SHORT and not last and (at or _goes_on(data, base)):
            break  # the next piece begins with it
        kind = BLANK if reason == C.REASON_BLANK else DAMAGED
        found, until = (False, len(data)) if kind == BLANK else _next_record(
            data, at + 1, base, last=last)
        _note(raw, base + at, base + until, kind, record.REASON_NAMES[reason])
        at = until
        if not found:
            break
    return Piece(base, data[:at], np.concatenate(parts), raw)


def _goes_on(data: memoryview, base: int) -> bool:
    """Return True if the piece may start with a record that is longer than the piece."""
    return len(data) < PLAUSIBLE_LENGTH or _is_head(data, 0, base)


def _is_head(data: memoryview, at: int, base: int) -> bool:
    """Return True if a record may start here: its magic, its length and its own position fit."""
    return plausible_size(data[at : at + PLAUSIBLE_LENGTH], base + at) > 0


def _next_record(data: memoryview, at: int, base: int, *, last: bool) -> tuple[bool, int]:
    """Return the position of the next record, or of a possible record that the data cuts off, or the end."""
    one = np.empty((1, C.COLUMNS), dtype=np.int64)
    place = _find(data, at + 4)
    while place >= 0:
        start = place - 4
        if _is_head(data, start, base):
            count, _, reason = record.scan(data, start, len(data), base, C.CHECK_ALL, one)
            if count or (reason == C.REASON_SHORT and not last):
                return True, start
        place = _find(data, place + 1)
    # The end of the data may cut off the start of a record; the next piece searches these bytes again.
    return False, len(data) if last else max(len(data) - PLAUSIBLE_LENGTH + 1, at)


def _find(data: memoryview, at: int) -> int:
    """Return the first position from ``at`` onwards at which a magic may start, or -1."""
    for low in range(at, len(data), _READ):
        found = bytes(data[low : low + _READ + len(MESSAGE_MAGIC_START) - 1]).find(MESSAGE_MAGIC_START)
        if found >= 0:
            return low + found
    return -1


def _note(raw: list[RawRange], start: int, end: int, kind: str, reason: str) -> None:
    for low in range(start, end, _RAW):
        raw.append(RawRange(low, min(low + _RAW, end), kind, reason))
