"""A walk over the log by several threads: parts of it are scanned apart and come in order.

Where a part begins is a guess: bytes that look like the head of a record made for that place, behind
each multiple of a length. A part is only taken when it begins exactly where the one before it ended, so
a wrong guess, or a message that was made to look like a record, costs a scan and changes nothing.

A part is read into the same few megabytes again and again, which a processor's cache keeps. What is
handed on of it is a batch: what units and entries are made of, a tenth of the bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple, TypeVar, final

from tailrace.env.in_order import HELPERS, in_order
from tailrace.kernels import record
from tailrace.segments import MappedFile
from tailrace.store.dispatch import Dispatcher
from tailrace.store.record_batch import RecordBatch
from tailrace.store.walk.log_walk import Fresh, LogFile, Walk
from tailrace.store.walk.scan import (
    CHUNK,
    LogChunk,
    LogEnd,
    ReadableFile,
    SameRows,
    ends_with_nul,
    scan_files,
)

__all__ = ["ParallelWalk"]

_PART: Final = 32 << 20
_FIRST: Final = 4 << 20
_LOOK: Final = (64 << 10, 4 << 20)
"""So much is searched for the next head, then so much: few records are longer."""
_MANY: Final = 1 << 19
"""So many records, or the bytes of two parts, are the most that a batch holds: 32 MiB of short ones fit."""
_Spare = TypeVar("_Spare")


class _Range(NamedTuple):
    """Bytes of one segment: from a record, as it seems, to another or to the segment's end."""

    start: int
    until: int
    is_guess: bool
    """Whether ``until`` was guessed."""


@dataclass(slots=True)
class _Part:
    """What a scan of a range found."""

    range: _Range
    end: LogEnd
    batch: RecordBatch
    tail: LogChunk | None = None
    """The last record, not in the batch yet: it is torn if none follows (rule d)."""
    is_full: bool = False
    """Whether there may be more than the batch has room for."""

    @property
    def is_empty(self) -> bool:
        """Whether there was no record."""
        return self.tail is None and not len(self.batch)


@final
class _Room(SameRows):
    """The same memory again for each chunk."""

    def __init__(self) -> None:
        super().__init__()
        self._buffer = bytearray(CHUNK)

    def read(self, file: ReadableFile, at: int, n: int) -> bytes | memoryview:
        """Up to ``n`` bytes of a file; void when the next ones are read."""
        if n > CHUNK or not isinstance(file, MappedFile):
            return file.read(at, n)
        view = memoryview(self._buffer)[:n]
        return view[: file.read_into(at, view)]


def _taken(spare: deque[_Spare]) -> _Spare | None:
    """One that nobody has, if there is one; other threads may ask at the same time."""
    try:
        return spare.pop()
    except IndexError:
        return None


@final
class ParallelWalk(Walk[RecordBatch]):
    """Yields batches for ``dispatcher``; one is void when the next is asked for.

    What is not longer than a part, and the beginning of everything else, is scanned by who asks:
    a log with much damage is walked in short stretches, and scans ahead would be in vain.
    """

    def __init__(
        self, files: Sequence[LogFile], start: int, until: int, check: int, fresh: Fresh,
        dispatcher: Dispatcher,
    ) -> None:
        super().__init__(files, start, until, check, fresh)
        self._dispatcher = dispatcher
        self._rooms: deque[_Room] = deque()
        self._batches: deque[RecordBatch] = deque()

    def _stretch(self, start: int) -> Generator[RecordBatch, None, bool]:
        held: _Part | None = None
        self.end.phy_offset, self.end.reason = start, record.REASON_END
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
        """Parts from ``start`` on, end to end, up to the first that does not come to its end."""
        at = start
        with closing(self._scanned(start)) as scanned:
            for found in scanned:
                goal = found.range
                if goal.start != at:  # one of the guesses was wrong
                    self._give_back(found)
                if goal.until <= at:
                    continue
                part = found if goal.start == at else self._scan(goal._replace(start=at))
                yield part
                while part.is_full:
                    part = self._scan(goal._replace(start=part.end.phy_offset))
                    yield part
                at = part.end.phy_offset
                if at < goal.until and not (goal.is_guess and part.end.reason == record.REASON_SHORT):
                    return

    def _scanned(self, start: int) -> Generator[_Part, None, None]:
        ranges = self._ranges(start)
        yield from map(self._scan, islice(ranges, 1))
        helpers = HELPERS if self._length(start) > _PART else 0
        yield from in_order(self._scan, ranges, helpers, helpers + 2)

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

    def _guess(self, file: LogFile, phy_offset: int, end: int) -> int:
        """The first position from here on where a record seems to begin; ``end`` where none does."""
        at = phy_offset - file.file_from_offset
        for size in _LOOK if phy_offset < end else ():
            data = file.read(at, min(size, end - phy_offset))
            if (head := next(self._heads(file, at, at, data), None)) is not None:
                return head
            if data == bytes(len(data)):
                break  # nothing was ever written here
        return end

    def _scan(self, goal: _Range) -> _Part:
        """Scan a range as far as its records are whole; may be called in several threads."""
        room = _taken(self._rooms) or _Room()
        batch = _taken(self._batches)
        if batch is None:  # an empty one is false
            batch = self._dispatcher.new_batch()
        part = _Part(goal, LogEnd(goal.start), batch)
        for chunk in scan_files(self._files, goal.start, goal.until, self._check, part.end, room):
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
        end = int(last[record.C_PHY] + last[record.C_SIZE])
        if len(part.batch) >= _MANY or end - part.range.start >= 2 * _PART:
            part.end.phy_offset, part.end.reason, part.is_full = end, record.REASON_END, True
