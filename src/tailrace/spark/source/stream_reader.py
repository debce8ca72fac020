"""The streaming reader: the checkpoint has offsets of queues, and each batch opens the stores once.

A batch ends at the last synced position at most, so an end that was reported never moves back. A batch reads
exactly the offsets in the checkpoint, so a batch that is run again gives the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tailrace.env.clock import Clock, SystemClock
from tailrace.spark.archive.directory import ArchivedDirectory
from tailrace.spark.plain_errors import plain_errors, plain_errors_of_rows
from tailrace.spark.source.checkpoints import Checkpoint, Directory, Queue, from_json, to_json
from tailrace.spark.source.offsets import (
    ended_at,
    open_directories,
    resumed,
    share,
    starts,
    stream_ranges,
    tips,
)
from tailrace.spark.source.options import BATCH_ONLY, ReadOptions
from tailrace.spark.source.scan import plan_tasks, read_task
from tailrace.spark.workers import Portable
from tailrace.store.retention.min_offsets import LogicalMin, read_minima

__all__ = ["TailraceStreamReader"]

Kept = list[tuple[bool, Mapping[tuple[str, int], LogicalMin]]]


class TailraceStreamReader(Portable, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Batches of messages by offsets of queues.

    The constructor never raises, because Spark would report another error instead.
    """

    def __init__(self, options: ReadOptions, clock: Clock | None = None) -> None:
        self._options = options
        self._clock = clock or SystemClock()
        self._last_batch_ns: int | None = None
        self._labels = tuple(label for label, _ in options.roots)
        self._target: dict[str, Any] | None = None
        self._gone: set[Queue] = set()
        """Queues of the checkpoint that do not exist, for which this was logged."""
        self._opened: Mapping[str, Directory] | None = None
        """The directories in which the trigger has looked for the end of its batch, until the batch is planned."""
        self._found: tuple[dict[str, Any], Kept] | None = None
        """The end that was found in them, and what they had then."""

    @plain_errors
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - this and the following names are Spark's
        """Return the offsets at which a new query starts."""
        directories = open_directories(self._options)
        found = starts(directories, self._options)
        return to_json(ended_at(directories, Checkpoint({}, {}), found, dict.fromkeys(found, 0)), self._labels)

    @plain_errors
    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a batch: ``maxOffsetsPerTrigger`` messages, or all messages."""
        self._options.refuse(BATCH_ONLY, "is for batch queries")
        limit = self._options.max_offsets_per_trigger
        return ReadMaxRows(limit) if limit else ReadAllAvailable()

    @plain_errors
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of a query that reads the messages stored so far."""
        self._opened = None
        self._target = self.reportLatestOffset()

    @plain_errors
    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """The end of every queue, for the query's progress: that which the trigger has seen."""
        directories = self._opened if self._opened is not None else open_directories(self._options)
        return to_json(Checkpoint(tips(directories, self._options), {}), self._labels)

    @plain_errors
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next batch; ``start`` itself when it is to wait for more."""
        first, directories = from_json(start, self._labels), open_directories(self._options)
        self._opened = directories
        tip = tips(directories, self._options) if self._target is None else (
            from_json(self._target, self._labels).offsets)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        at = resumed(directories, first, self._options, log=False)
        parts = share(first.offsets, at, tip, most, self._options, self._gone)
        waiting = sum(parts.values())
        if self._is_too_early(waiting) or not waiting:
            return start
        end = to_json(ended_at(directories, first, at, parts), self._labels)
        self._found = end, _kept_in(directories)
        return end

    def _is_too_early(self, waiting: int) -> bool:
        """Whether fewer messages wait than a batch should have, and the delay is not over.

        The first batch of a query does not wait, and a query that reads the messages stored so far never waits.
        """
        now = self._clock.monotonic_ns()
        least, last = self._options.min_offsets_per_trigger, self._last_batch_ns
        if self._target is None and waiting < least and last is not None and (
            now - last < self._options.max_trigger_delay_ms * 1_000_000
        ):
            return True
        if waiting:
            self._last_batch_ns = now
        return False

    @plain_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return ranges of the logs for the offsets from ``start`` up to ``end``."""
        first, last = from_json(start, self._labels), from_json(end, self._labels)
        if first == last:
            return []
        directories, found, self._opened, self._found = self._opened, self._found, None, None
        kept = _kept_in(directories) if directories is not None else []
        if directories is None or found != (end, kept) or not all(is_there for is_there, _ in kept):
            directories = open_directories(self._options)  # another batch, or retention has deleted messages since
        ranges = stream_ranges(directories, first, last, self._options)
        return [
            task for label, directory in directories.items()
            for task in plan_tasks(label, directory, ranges, self._options)
        ]

    @plain_errors_of_rows
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the Arrow batches of a range."""
        yield from read_task(partition, self._options)


def _kept_in(directories: Mapping[str, Directory]) -> Kept:
    """Return for each store whether its oldest file is still there, and what its topics have released."""
    found: Kept = []
    for one in directories.values():
        live = one.live if isinstance(one, ArchivedDirectory) else one
        system = live.file_system
        is_there = not live.log_files or system.exists(live.log_files[0].path)
        found.append((is_there, read_minima(system, live.path)))
    return found
