"""A walk over a log whose segments were scanned elsewhere, for example in Spark tasks.

A record never crosses the end of its segment, so each segment can be scanned by itself. The scan
continues after damage as if every record after a gap counted. It returns pieces: records without
damage between them. ``StitchedWalk`` joins the pieces. It decides as every ``Walk`` does, with the
whole log in view, where the log ends, what is stale and what is damage. It uses a piece only if
it starts exactly where the walk continues; otherwise that piece is scanned again (``first_piece``). So a
wrong guess of a scan costs time and changes no result.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Final, NamedTuple, TypeVar, final

from tailrace.kernels.shared import constants as C
from tailrace.segments import MappedFile
from tailrace.store.dispatch import Dispatcher
from tailrace.store.record_batch import RecordBatch
from tailrace.store.walk.log_walk import Damage, LogWalk, NextOf, Walk
from tailrace.store.walk.scan import LogChunk

__all__ = [
    "Piece", "Source", "StitchedWalk", "first_piece", "in_batches", "scan_pieces",
]

_MANY: Final = 1 << 15
_Item = TypeVar("_Item")


class Piece(NamedTuple):
    """Records of one segment that follow each other without damage."""

    start: int
    end: int
    """Position where the scan stopped; after a blank record the end of the segment."""
    reason: int
    """Why it stopped, one of kernels.record.REASON_*."""
    timestamp: int
    """Store time of the last record, in ms; -1 without one."""


Source = Callable[[MappedFile, int], Iterator[_Item | Piece]]
"""Yields the records of the piece that starts at a position of a segment, then the piece."""


def scan_pieces(file: MappedFile, start: int, until: int, check: int) -> Iterator[LogChunk | Piece]:
    """Scan one segment. For each piece yield its chunks, then the piece."""
    end = min(until, file.file_from_offset + file.size)
    walk = LogWalk([file], start, end, check, lambda *_: -1)
    at = start
    for item in walk.items():
        if isinstance(item, Damage):
            yield Piece(at, walk.end.phy_offset, walk.end.reason, walk.stretch_timestamp)
            at = item.until
        else:
            yield item
    yield Piece(at, walk.end.phy_offset, walk.end.reason, walk.stretch_timestamp)


def first_piece(file: MappedFile, start: int, until: int, check: int) -> Iterator[LogChunk | Piece]:
    """Scan the piece that starts at ``start``: yield its chunks, then the piece."""
    for item in scan_pieces(file, start, until, check):
        yield item
        if isinstance(item, Piece):
            return


@final
class StitchedWalk(Walk[_Item]):
    """A walk that takes its records from ``source``."""

    def __init__(
        self, files: Sequence[MappedFile], start: int, until: int, check: int, next_of: NextOf,
        source: Source[_Item],
    ) -> None:
        super().__init__(files, start, until, check, next_of)
        self._source = source

    def _stretch(self, start: int) -> Generator[_Item, None, bool]:
        end = self.end
        end.phy_offset, end.reason = start, C.REASON_END
        for file in self._files:
            file_end = file.file_from_offset + file.size
            if end.phy_offset >= file_end:
                continue
            if end.phy_offset < file.file_from_offset:
                return False  # files are missing before this one
            for item in self._source(file, end.phy_offset):
                if not isinstance(item, Piece):
                    yield item
                    continue
                end.phy_offset, end.reason, end.path = item.end, item.reason, file.path
                if item.timestamp >= 0:
                    self._last_timestamp = self.stretch_timestamp = item.timestamp
            if end.phy_offset >= self._until or end.phy_offset < file_end:
                return end.reason == C.REASON_TORN
        return False


def in_batches(source: Source[LogChunk], dispatcher: Dispatcher) -> Source[RecordBatch]:
    """Return a source of batches for ``dispatcher``. A batch is valid until the next one is requested."""

    def batches(file: MappedFile, start: int) -> Iterator[RecordBatch | Piece]:
        batch = dispatcher.new_batch()
        for item in source(file, start):
            if isinstance(item, Piece):
                if len(batch):
                    yield batch
                yield item
                return
            dispatcher.add(batch, item.data, item.rows)
            if len(batch) >= _MANY:
                yield batch
                batch.clear()

    return batches
