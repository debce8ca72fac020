"""A walk over a log whose segments were scanned apart: scans speculate, the walk decides.

A record never crosses the end of its segment, so each segment can be scanned by itself, up to
damage and on behind it, as if every record behind a gap counted. What that found is cut into pieces:
records without damage between them. ``StitchedWalk`` is the walk of ``log_walk`` and takes every
decision as that one does, with the whole log in view: where the log ends, what is stale, what is
damage. It only takes a piece that begins exactly where the walk is to go on, so a scan that guessed
wrong costs a scan here and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Final, NamedTuple, TypeVar, final

from tailrace.kernels import record
from tailrace.store.dispatch import Dispatcher
from tailrace.store.record_batch import RecordBatch
from tailrace.store.walk.log_walk import Damage, Fresh, LogFile, LogWalk, Walk
from tailrace.store.walk.scan import LogChunk

__all__ = [
    "ChunksOfPiece", "LogScanner", "Piece", "PieceSource", "Source", "StitchedWalk", "first_piece",
    "in_batches", "scan_pieces",
]

_MANY: Final = 1 << 15
_Item = TypeVar("_Item")


class Piece(NamedTuple):
    """Records of one segment end to end."""

    start: int
    end: int
    """Where the scan stopped; the end of the segment behind a blank."""
    reason: int
    """Why, one of kernels.record.REASON_*."""
    timestamp: int
    """Store time of the last record, in ms; -1 without one."""


Source = Callable[[LogFile, int], Generator[_Item, None, Piece]]
"""Records of the piece of a segment that starts at a position, and the piece itself."""
PieceSource = Source[LogChunk]
LogScanner = Callable[[Sequence[LogFile], int, int, int], PieceSource]
"""Scans segments from one position of the log up to another, with these checks."""


def scan_pieces(file: LogFile, start: int, until: int, check: int) -> Iterator[LogChunk | Piece]:
    """Scan one segment: the chunks of each piece, then the piece."""
    end = min(until, file.file_from_offset + file.size)
    walk = LogWalk([file], start, end, check, lambda _: True)
    at = start
    for item in walk.items():
        if isinstance(item, Damage):
            yield Piece(at, walk.end.phy_offset, walk.end.reason, walk.stretch_timestamp)
            at = item.until
        else:
            yield item
    yield Piece(at, walk.end.phy_offset, walk.end.reason, walk.stretch_timestamp)


def first_piece(
    file: LogFile, start: int, until: int, check: int
) -> Generator[LogChunk, None, Piece]:
    """The piece that starts at a position, scanned here."""
    for item in scan_pieces(file, start, until, check):
        if isinstance(item, Piece):
            return item
        yield item
    raise AssertionError("a scan ends with a piece")


@final
class ChunksOfPiece:
    """Chunks that a source has; ``piece`` is there behind the last one."""

    piece: Piece

    def __init__(self, made: Generator[LogChunk, None, Piece]) -> None:
        self._made = made

    def __iter__(self) -> Iterator[LogChunk]:
        self.piece = yield from self._made


@final
class StitchedWalk(Walk[_Item]):
    """A walk that takes its records from ``source``."""

    def __init__(
        self, files: Sequence[LogFile], start: int, until: int, check: int, fresh: Fresh,
        source: Source[_Item],
    ) -> None:
        super().__init__(files, start, until, check, fresh)
        self._source = source

    def _stretch(self, start: int) -> Generator[_Item, None, bool]:
        end = self.end
        end.phy_offset, end.reason = start, record.REASON_END
        for file in self._files:
            behind = file.file_from_offset + file.size
            if end.phy_offset >= behind:
                continue
            if end.phy_offset < file.file_from_offset:
                return False  # files are missing before this one
            piece = yield from self._source(file, end.phy_offset)
            end.phy_offset, end.reason, end.path = piece.end, piece.reason, file.path
            if piece.timestamp >= 0:
                self._last_timestamp = self.stretch_timestamp = piece.timestamp
            if end.phy_offset >= self._until or end.phy_offset < behind:
                return piece.reason == record.REASON_TORN
        return False


def in_batches(source: PieceSource, dispatcher: Dispatcher) -> Source[RecordBatch]:
    """Pieces of ``source`` as batches for ``dispatcher``; one is void when the next is asked for."""

    def batches(file: LogFile, start: int) -> Generator[RecordBatch, None, Piece]:
        batch = dispatcher.new_batch()
        chunks = ChunksOfPiece(source(file, start))
        for chunk in chunks:
            dispatcher.add(batch, chunk.data, chunk.rows)
            if len(batch) >= _MANY:
                yield batch
                batch.clear()
        if len(batch):
            yield batch
        return chunks.piece

    return batches
