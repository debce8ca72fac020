"""A walk over the log with several threads, which scan parts of the log in parallel.

The start of a part is a guess: the first bytes after a multiple of the part's length that look like the
header of a record at that position. A part is used only if it starts exactly where the part before it
ended. So a wrong guess, or a message made to look like a record, costs a scan and changes no result.

Each thread reads its part into the same 2 MiB repeatedly, so that a processor's cache holds what is
checked. Of a part only a batch is kept: what units and index entries are made of, a tenth of the bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple, TypeVar, final

from tailrace.env.read_ahead import HELPERS, in_order
from tailrace.kernels.shared import constants as C
from tailrace.segments import MappedFile
from tailrace.store.dispatch import Dispatcher
from tailrace.store.record_batch import RecordBatch
from tailrace.store.walk.log_walk import NextOf, Walk
from tailrace.store.walk.scan import (
    CHUNK,
    LogChunk,
    LogEnd,
    Rows,
    ends_with_nul,
    rows_of_a_chunk,
    scan_files,
)

__all__ = ["ParallelWalk"]

_PART: Final = 32 << 20
_FIRST: Final = 4 << 20
_LOOK: Final = (64 << 10, 4 << 20)
"""Bytes in which the next header is searched for: first the smaller number, then the larger one."""
_MANY: Final = 1 << 19
"""Number of records after which a batch is full (32 MiB of short ones); the bytes of two parts also fill it."""
_Spare = TypeVar("_Spare")


class _Range(NamedTuple):
    """Positions [``start``, ``until``) of one segment, to be scanned as a part."""

    start: int
    until: int
    is_guess: bool
    """True if ``until`` is a guessed start of a record, False if it is the end of the segment or of the walk."""


@dataclass(slots=True)
class _Part:
    """Result of the scan of a range."""

    range: _Range
    end: LogEnd
    batch: RecordBatch
    tail: LogChunk | None = None
    """The last record if it has a NUL, not in the batch yet: it is torn if no record follows (rule d)."""
    is_full: bool = False
    """True if the scan stopped because the batch was full, so the range may have more records."""

    @property
    def is_empty(self) -> bool:
        """True if the range has no record."""
        return self.tail is None and not len(self.batch)


def _room() -> tuple[Rows, bytearray]:
    """Return the memory that a thread reuses for each chunk."""
    return rows_of_a_chunk(), bytearray(CHUNK)


def _taken(spare: deque[_Spare]) -> _Spare | None:
    """Remove and return an unused item, or None. Several threads may call it at the same time."""
    try:
        return spare.pop()
    except IndexError:
        return None


@final
class ParallelWalk(Walk[RecordBatch]):
    """Yields batches for ``dispatcher``. A batch is valid until the next one is requested.

    The calling thread scans the first range of each extent, and everything if the extent is not longer
    than a part. In a log with much damage extents are short, and scans ahead would be wasted.
    """

    def __init__(
        self, files: Sequence[MappedFile], start: int, until: int, check: int, next_of: NextOf,
        dispatcher: Dispatcher,
    ) -> None:
        super().__init__(files, start, until, check, next_of)
        self._dispatcher = dispatcher
        self._rooms: deque[tuple[Rows, bytearray]] = deque()
        self._batches: deque[RecordBatch] = deque()

    def _stretch(self, start: int) -> Generator[RecordBatch, None, bool]:
        held: _Part | None = None
        self.end.phy_offset, self.end.reason = start, C.REASON_END
        for part in self._parts(start):
            if held is not None and not part.is_empty:
                yield from self._yield(held)
                held = None
            end = part.end
            self.end.phy_offset, self.end.reason, self.end.path = end.phy_offset, end.reason, end.path
            if part.tail is None:
                yield from self._yield(part)
            else:
                held = part
        if held is None:
            return False
        assert held.tail is not None
        torn = self._ends_torn(held.tail)
        if torn:
            held.tail = None
        yield from self._yield(held)
        return torn

    def _yield(self, part: _Part) -> Iterator[RecordBatch]:
        if part.tail is not None:
            self._dispatcher.add(part.batch, part.tail.data, part.tail.rows)
        if len(part.batch):
            self._note(part.batch.rows)
            yield part.batch
        self._give_back(part)

    def _give_back(self, part: _Part) -> None:
        part.batch.clear()
        self._batches.append(part.batch)

    # -- parts in the order of the log

    def _parts(self, start: int) -> Iterator[_Part]:
        """Yield parts from ``start`` onwards without a gap, up to the first part with damage."""
        at = start
        with closing(self._scanned(start)) as scanned:
            for found in scanned:
                goal = found.range
                if goal.start != at:  # this guess, or an earlier one, was wrong
                    self._give_back(found)
                if goal.until <= at:
                    continue
                part = found if goal.start == at else self._scan(goal._replace(start=at))
                yield part
                while part.is_full:
                    part = self._scan(goal._replace(start=part.end.phy_offset))
                    yield part
                at = part.end.phy_offset
                if at < goal.until and not (goal.is_guess and part.end.reason == C.REASON_SHORT):
                    return

    def _scanned(self, start: int) -> Generator[_Part, None, None]:
        ranges = self._ranges(start)
        yield from map(self._scan, islice(ranges, 1))
        is_long = self._length(start) > _PART
        yield from in_order(self._scan, ranges, HELPERS, HELPERS + 2) if is_long else map(self._scan, ranges)

    def _ranges(self, start: int) -> Iterator[_Range]:
        at, size = start, _FIRST
        for file in self._files:
            if at < file.file_from_offset:
                return  # files are missing before this one
            end = min(file.file_from_offset + file.size, self._until)
            while at < end:
                until = self._guess(file, at + size, end)
                yield _Range(at, until, is_guess=until < end)
                at, size = until, _PART

    def _guess(self, file: MappedFile, phy_offset: int, end: int) -> int:
        """Return the first position from ``phy_offset`` onwards with a plausible header; ``end`` without one."""
        at = phy_offset - file.file_from_offset
        for size in _LOOK if phy_offset < end else ():
            data = file.read(at, min(size, end - phy_offset))
            if (head := next(self._heads(file, at, at, data), None)) is not None:
                return head
            if data == bytes(len(data)):
                break  # never written
        return end

    def _scan(self, goal: _Range) -> _Part:
        """Scan a range up to the first invalid bytes. Several threads may call it at the same time."""
        room = _taken(self._rooms) or _room()
        batch = _taken(self._batches)
        if batch is None:  # not `or`: an empty batch is false
            batch = self._dispatcher.new_batch()
        part = _Part(goal, LogEnd(goal.start), batch)
        for chunk in scan_files(self._files, goal.start, goal.until, self._check, part.end, *room):
            self._take(part, chunk)
            if part.is_full:
                break
        self._rooms.append(room)
        return part

    def _take(self, part: _Part, chunk: LogChunk) -> None:
        if part.tail is not None:
            self._dispatcher.add(part.batch, part.tail.data, part.tail.rows)
            part.tail = None
        rows = chunk.rows
        last = rows[-1]
        if ends_with_nul(chunk):
            part.tail = LogChunk(bytes(chunk.data), chunk.base, rows[-1:].copy())
            rows = rows[:-1]
        self._dispatcher.add(part.batch, chunk.data, rows)
        end = int(last[C.PHY] + last[C.SIZE])
        if len(part.batch) >= _MANY or end - part.range.start >= 2 * _PART:
            part.end.phy_offset, part.end.reason, part.is_full = end, C.REASON_END, True
