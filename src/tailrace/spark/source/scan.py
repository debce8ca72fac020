"""Reading of a store's log in ranges: the driver plans them, and each task reads one.

The driver opens the directory once and finds which messages may be shown. A task gets the files, a range of
positions, and the offsets to read of each queue in that range; it opens nothing else. It counts the messages that
it finds. Fewer messages than the driver planned are reported as data loss, unless records are damaged.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from tailrace import events
from tailrace.arrow.columns import Columns, Fields, Rows
from tailrace.arrow.inner_rows import message_rows
from tailrace.arrow.memory import array
from tailrace.arrow.schema import arrow_schema
from tailrace.env.filesystem import File, OsFileSystem
from tailrace.errors import StoreError
from tailrace.kernels import record
from tailrace.kernels.shared import constants as C
from tailrace.logs import get_logger
from tailrace.spark.archive.directory import ArchivedDirectory
from tailrace.spark.offset_ranges import OffsetRange, RowFilter, units_of
from tailrace.spark.source.archive_scan import (
    ArchiveTask,
    RecordCount,
    plan_archive,
    read_archive,
    task_for_vanished,
)
from tailrace.spark.source.checkpoints import Directory
from tailrace.spark.source.damaged_records import report_damaged
from tailrace.spark.source.offsets import Ranges
from tailrace.spark.source.options import ReadOptions
from tailrace.spark.source.partition import InputPartition
from tailrace.spark.source.planning import plan_splits
from tailrace.store.directory import StoreDirectory
from tailrace.store.queue_search import first_kept
from tailrace.store.walk.scan import CHUNK, LogChunk, LogEnd, rows_of_a_chunk, scan_files

__all__ = ["ScanTask", "plan_scan", "plan_tasks", "read_scan", "read_task"]

_log = get_logger(__name__)
_READ: Final = 2 << 20  # for a longer record the walk reads again, with more bytes
_OF_PROPERTIES: Final = frozenset({"keys", "tags", "uniqKey"})  # columns for which a walk parses properties


class ScanTask(InputPartition):
    """Records that start in [start, end) of a store's log."""

    def __init__(
        self,
        label: str,
        path: str,
        span: tuple[int, int],
        files: list[tuple[str, int, int]],
        wanted: list[OffsetRange],
        expected: int,
        damaged: list[tuple[int, int, str]],
    ) -> None:
        super().__init__(span)
        self.label, self.path = label, path
        self.start, self.end = span
        self.files = files  # (path, position of its first byte, size)
        self.wanted = wanted
        self.expected = expected  # records in the range that a queue names
        self.damaged = damaged  # (position, size, reason), found on the driver


def _sorted(parts: list[Rows]) -> Rows:
    """Return the positions of several queues in order, each once. Each part is nearly sorted, so sorting is fast."""
    found = np.sort(np.concatenate(parts), kind="stable")
    return found[np.append(True, found[1:] != found[:-1])] if len(found) else found


def plan_scan(
    label: str, directory: StoreDirectory, ranges: Ranges, options: ReadOptions
) -> list[ScanTask]:
    """Return tasks for one store: every record to read is in exactly one of them."""
    wanted, parts, until = [], [np.empty(0, dtype=np.int64)], 0
    for queue in directory.queues():
        start, end = ranges.get((label, queue.topic, queue.queue_id), (0, 0))
        if start >= end:
            continue
        shown_from = -1
        if queue.is_batch:  # a batch queue has no units before its first message, an archive may have messages there
            shown_from = start = max(start, first_kept(queue, directory.min_phy_offset))
        start = queue.begin_of(start)
        units = units_of(queue, start, end, directory.min_phy_offset)
        if len(units):
            places = units["phy_offset"].astype(np.int64)
            parts.append(places)
            until = max(until, int(places.max()) + int(units["size"][places.argmax()]))
            wanted.append(OffsetRange(
                queue.topic, queue.queue_id, start, end, int(places.min()), int(places.max()), shown_from))
    positions = _sorted(parts)
    damaged = [
        (found.phy_offset, found.size, found.reason) for found in directory.damaged
        if not wanted or found.phy_offset < until
    ]
    starts = [file.file_from_offset for file in directory.log_files]
    firsts, lasts = (np.array([getattr(one, name) for one in wanted], dtype=np.int64) for name in ("first", "last"))
    at = np.searchsorted(positions, [found[0] for found in damaged])
    named = [place < len(positions) and positions[place] == found[0]
             for place, found in zip(at.tolist(), damaged, strict=True)]
    tasks = []
    for low, high in plan_splits(positions, until, options.split_bytes, options.min_partitions):
        first, last = np.searchsorted(positions, [low, high])
        tasks.append(ScanTask(
            label, directory.path, (low, high),
            [
                (file.path, file.file_from_offset, file.size)
                for file in directory.log_files[max(bisect_right(starts, low) - 1, 0) : bisect_left(starts, high)]
                if low < file.file_from_offset + file.size
            ],
            [wanted[number] for number in np.flatnonzero((firsts < high) & (low <= lasts)).tolist()],
            int(last - first) - sum(
                low <= found[0] < high and is_named for found, is_named in zip(damaged, named, strict=True)),
            [found for found in damaged if low <= found[0] < high],
        ))
    return tasks


def plan_tasks(
    label: str, directory: Directory, ranges: Ranges, options: ReadOptions
) -> list[InputPartition]:
    """Return tasks for one store and for its archive."""
    if isinstance(directory, ArchivedDirectory):
        return [
            *plan_archive(label, directory, ranges, options),
            *plan_scan(label, directory.live, ranges, options)]
    return [*plan_scan(label, directory, ranges, options)]


def read_task(task: InputPartition, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield the Arrow batches of a task of either kind; nothing for the partition of an empty plan."""
    if isinstance(task, ArchiveTask):
        yield from read_archive(task, options)
    elif isinstance(task, ScanTask):
        yield from read_scan(task, options)


class _Segment:
    """A file of the log. It is opened once, so it can be read to its end even if retention deletes it.

    Reads are short enough that a chunk stays in the processor's cache until its columns are made. All reads
    use the same memory: bytes that were read are no longer valid after the next read.
    """

    def __init__(self, path: str, file_from_offset: int, size: int) -> None:
        self.path, self.file_from_offset, self.size = path, file_from_offset, size
        self._file: File | None = None
        self._room: memoryview = memoryview(b"")

    def read(self, at: int, n: int) -> memoryview:
        """Return up to ``n`` bytes; empty if the file was deleted before it was opened."""
        if self._file is None:
            try:
                self._file = OsFileSystem().open(self.path)
            except FileNotFoundError:
                return memoryview(b"")
        n = _READ if n == CHUNK else n
        if len(self._room) < n:
            self._room = array(n).data
        return self._room[: self._file.pread_into(self._room[:n], at)]

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def read_scan(task: ScanTask, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield the Arrow batches of a task; each has at most a chunk of the log.

    Raises CorruptionError for a damaged record in mode FAILFAST, and StoreError for records that were deleted if
    ``failOnDataLoss`` is true.
    """
    files = [_Segment(*file) for file in task.files]
    try:
        yield from _read_files(files, task, options)
    finally:
        for file in files:
            file.close()


def _read_files(
    files: list[_Segment], task: ScanTask, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    keep, messages = RowFilter(task.wanted), _Messages(task.wanted)
    found = 0
    start = task.start
    behind = _AfterDamage(task, options)
    check = C.CHECK_ALL if _OF_PROPERTIES & set(options.columns) else C.CHECK_ALL | C.LEAVE_PROPERTIES
    rows = rows_of_a_chunk()
    while start < task.end:
        end = LogEnd()
        for chunk in scan_files(files, start, task.end, check, end, rows):
            kept = keep(chunk.rows)
            found += len(kept)
            if len(kept):
                yield _batch(task, LogChunk(chunk.data, chunk.base, messages(chunk.data, kept)), options)
        if end.phy_offset >= task.end:
            break
        vanished = _vanished(task, end.phy_offset, options)
        if vanished is None:
            start = behind(end)
            continue
        seen = RecordCount()
        yield from read_archive(vanished, options, seen)
        found += seen.records
        start = vanished.end
    bad = behind.bad
    if bad:
        yield from report_damaged(task.label, task.path, bad, options)
    known = {place for place, _, _ in task.damaged}
    missing = task.expected - found - sum(place not in known for place, _ in bad)
    if missing > 0:
        text = (f"{missing} of {task.expected} records between {task.start} and {task.end} of "
                f"{task.path} were deleted by retention before they were read")
        if options.fail_on_data_loss:
            raise StoreError(f"{text}; failOnDataLoss=false continues without them")
        events.DATA_LOST_IN_THE_LOG.log(_log, store=task.label, phy_offset=task.start, until=task.end, skipped=missing)


class _Messages:
    """Turns record rows into rows of messages: one for each wanted message of an inner batch."""

    def __init__(self, wanted: list[OffsetRange]) -> None:
        self._keep: RowFilter | None = None
        if any(one.is_batch for one in wanted):
            self._keep = RowFilter([one.of_messages() for one in wanted])

    def __call__(self, data: bytes | memoryview, rows: Rows) -> Rows:
        return rows if self._keep is None else self._keep(message_rows(data, rows))


def _vanished(task: ScanTask, stop: int, options: ReadOptions) -> ArchiveTask | None:
    """Return a task that reads the rest of a file from the archive, if the file was deleted since planning."""
    archive = options.archive_of(task.label)
    for path, base, size in task.files:
        if archive and base <= stop < base + size and not OsFileSystem().exists(path):
            span = stop, min(task.end, base + size)
            return task_for_vanished(task.label, archive, base, span, task.wanted, options)
    return None


def _batch(task: ScanTask, chunk: LogChunk, options: ReadOptions) -> pa.RecordBatch:
    schema = arrow_schema(options.columns)
    made = Columns(chunk.data, Fields.of(chunk.rows, options.columns), task.label, options.body)
    return pa.RecordBatch.from_arrays(
        [made.make(field.name, field.type) for field in schema], schema=schema)


class _AfterDamage:
    """Finds the position to continue at after bytes that are not a valid record; ``bad`` collects damaged records."""

    def __init__(self, task: ScanTask, options: ReadOptions) -> None:
        self._task, self._options = task, options
        self._known: Rows | None = None
        self.bad: list[tuple[int, str]] = []

    def __call__(self, end: LogEnd) -> int:
        task, stop = self._task, end.phy_offset
        reason = record.REASON_NAMES[end.reason]
        for place, size, _ in task.damaged:
            if place == stop:
                self.bad.append((place, reason))
                return place + size
        places = self._positions()
        if end.reason == C.REASON_END:  # the file was deleted
            stop = next(
                (start + size for _, start, size in task.files if start <= stop < start + size),
                task.end)
        elif stop in places:
            self.bad.append((stop, reason))
            stop += 1
        following = places[np.searchsorted(places, stop) :]
        return int(following[0]) if len(following) else task.end

    def _positions(self) -> Rows:
        """Return positions from the queues. They are read only if the log cannot be walked."""
        if self._known is None:
            task = self._task
            parts = [np.empty(0, dtype=np.int64)]
            directory = StoreDirectory(task.path, config=self._options.store_config())
            wanted = {(one.topic, one.queue_id): one for one in task.wanted}
            for queue in directory.queues():
                one = wanted.get((queue.topic, queue.queue_id))
                if one is not None:
                    low = max(one.start, queue.min_offset)
                    units = units_of(queue, low, one.end, task.start)
                    parts.append(units["phy_offset"].astype(np.int64))
            places = _sorted(parts)
            self._known = places[(places >= task.start) & (places < task.end)]
        return self._known
