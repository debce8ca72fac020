"""Messages of a store directory, of its archive, or of both: read by the tasks of the Spark source, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple, cast, final

import pyarrow as pa

from tailrace.arrow.schema import arrow_schema
from tailrace.dataset.narrowing import columns_of, narrowed
from tailrace.dataset.rows import MessageRows, Ranges
from tailrace.errors import NotAStoreError
from tailrace.formats.commitlog import STORE_TIME_HEAD, store_timestamp_of
from tailrace.formats.consumequeue import CqUnit
from tailrace.spark.archive.directory import ArchivedDirectory, ArchivedQueue, open_archived
from tailrace.spark.source.checkpoints import Directory
from tailrace.spark.source.offsets import (
    Directories,
    batch_ranges,
    offset_by_position,
)
from tailrace.spark.source.options import ReadOptions
from tailrace.spark.source.scan import plan_tasks, read_task
from tailrace.store.archive_manifest import OPEN, list_manifests
from tailrace.store.archive_store import archive_at
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.store.directory import StoreDirectory
from tailrace.store.lives import EndedLives
from tailrace.store.queue_search import first_stored

__all__ = ["TIMES", "TIME_STEP_MS", "StoreRows", "archive_alone", "time_scalar"]

TIME_STEP_MS: Final = 600_000
"""Messages are found by a filter on storeTimestamp if store times never step back by more than this.

Those of Tailrace never step back; those of a Java broker do when its clock is set back.
"""


TIMES: Final = 1 << 43
"""End, in ms, of the times that a filter can narrow: the year 2248."""


@final
class StoreRows(MessageRows):
    """Rows of the messages that a directory had when it was opened."""

    def __init__(
        self, directories: Directories, options: ReadOptions, reopen: Callable[..., Any]
    ) -> None:
        self.directories, self._options, self._reopen = directories, options, reopen
        super().__init__(arrow_schema(options.columns), batch_ranges(directories, options))

    def read(self, names: Sequence[str], columns: tuple[str, ...], filter_: Any) -> Iterator[pa.RecordBatch]:
        """Yield rows of some parts in the order of the log.

        Raises CorruptionError in mode FAILFAST, and StoreError for messages that were deleted since.
        """
        options, ranges = replace(self._options, columns=columns), self.ranges(names)
        if filter_ is not None:
            ranges = self._narrowed(ranges, filter_)
        for label, directory in self.directories.items():
            for task in plan_tasks(label, directory, ranges, options):
                yield from read_task(task, options)

    def reopened(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return the call that opens the directory again. It then may have more messages."""
        return self._reopen, ()

    def _narrowed(self, ranges: Ranges, filter_: Any) -> Ranges:
        for column in sorted(columns_of([filter_], self.schema) & _NARROWING.keys()):
            limit, scalar, margin, offset_at = _NARROWING[column]
            low, high = narrowed(filter_, self.schema, column, 0, limit, scalar, 1)
            low, high = max(low - margin, 0), min(high + margin, limit)
            clipped: Ranges = {}
            for label, directory in self.directories.items():
                for queue in directory.queues():
                    key = label, queue.topic, queue.queue_id
                    start, end = ranges.get(key, (0, 0))
                    if start < end and low > 0:
                        start = max(start, offset_at(directory, queue, low))
                    if start < end and high < limit:
                        end = min(end, offset_at(directory, queue, high))
                    if start < end:
                        clipped[key] = start, end
            ranges = clipped
        return ranges


def time_scalar(ms: int) -> pa.Scalar:
    """Return a time in ms as a value of the columns of times."""
    return pa.scalar(ms * 1000, pa.int64()).cast(pa.timestamp("us", tz="UTC"))


def _offset_by_stored_time(directory: Directory, queue: ConsumeQueue, timestamp: int) -> int:
    """Return the first offset whose record has the store time ``timestamp`` or a later one, by bisection."""
    low = queue.min_offset
    if isinstance(queue, ArchivedQueue):
        if (found := queue.offset_by_time(timestamp)) is not None:
            return found
        low = queue.live_min_offset

    def stored(unit: CqUnit) -> int | None:
        time = directory.store_time(unit)  # None and -1 for a record that cannot be read or was deleted
        if time is None or time < 0:
            return time
        return store_timestamp_of(directory.read(unit.phy_offset, STORE_TIME_HEAD))

    return first_stored(queue, low, timestamp, stored)


class _Narrowing(NamedTuple):
    """How a filter on a column limits the offsets of a queue."""

    limit: int
    """End of the values that are narrowed."""
    scalar: Callable[[int], Any]
    margin: int
    """Values of the column may step back by this, from one message of a queue to a later one."""
    offset_at: Callable[[Directory, ConsumeQueue, int], int]
    """Returns the offset of the first message with this value or a greater one."""


_NARROWING: Final = {
    "queueOffset": _Narrowing(1 << 62, pa.scalar, 0, lambda _, queue, offset: offset),
    "commitLogOffset": _Narrowing(
        1 << 62, pa.scalar, 0, lambda _, queue, phy_offset: offset_by_position(queue, phy_offset)),
    "storeTimestamp": _Narrowing(TIMES, time_scalar, TIME_STEP_MS, _offset_by_stored_time),
}


@dataclass
class _NoLog:
    """Stands for the log of an archive that is read by itself: a directory without a message."""

    path: str
    log_files: tuple[Any, ...] = ()
    damaged: tuple[Any, ...] = ()
    min_phy_offset: int = 0
    purged: dict[tuple[str, int], int] = field(default_factory=dict)
    lives: EndedLives = field(default_factory=partial(EndedLives, 1))

    def queues(self) -> list[ConsumeQueue]:
        """Return no queue."""
        return []

    def read(self, _phy_offset: int, _n: int) -> bytes:
        """Return no bytes."""
        return b""

    def store_time(self, _unit: CqUnit) -> int | None:
        """Return -1, as for a deleted message."""
        return -1


def archive_alone(path: str) -> ArchivedDirectory:
    """Open an archive without its store. Raises NotAStoreError without a manifest, and CorruptionError."""
    if not any(list_manifests(archive_at(path), *within) for within in ((), (OPEN,))):
        raise NotAStoreError(path, "it is an archive without a segment")
    return open_archived(cast("StoreDirectory", _NoLog(path)), archive_at(path))
