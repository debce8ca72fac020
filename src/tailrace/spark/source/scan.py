"""Reading of a store's log in ranges: the driver plans them, and each task reads one.

The driver opens the directory once and finds which messages may be shown. A task gets the files, a range of
positions, and the offsets to read of each queue. It counts the records that it finds. Fewer than queues name are
reported as data loss, unless records are damaged.

If few messages are read, and for a store that was not closed, the driver reads all units; then it knows these numbers,
and tasks open nothing but log files. Otherwise it divides the log by bytes, and each task reads its own units
(`own_units`). So a plan costs as much as there are queues and files, whatever the number of messages.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from copy import copy
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
from tailrace.formats.consumequeue import BATCH_CQ_UNIT, CQ_UNIT
from tailrace.kernels import record
from tailrace.kernels.shared import constants as C
from tailrace.logs import get_logger
from tailrace.spark.archive.directory import ArchivedDirectory
from tailrace.spark.offset_ranges import OffsetRange, RowFilter, units_of
from tailrace.spark.source.archive_scan import (
    ArchiveTask,
    IndexedTask,
    RecordCount,
    plan_archive,
    read_archive,
    task_for_vanished,
    tasks_in,
)
from tailrace.spark.source.checkpoints import Directory
from tailrace.spark.source.damaged_records import report_damaged
from tailrace.spark.source.offsets import Ranges
from tailrace.spark.source.options import ReadOptions
from tailrace.spark.source.own_units import (
    TABLE_BYTES,
    QueueFiles,
    RangeQueue,
    bounds_of,
    each_once,
    own_units,
    packed,
    queues_on_disk,
    unpacked,
)
from tailrace.spark.source.partition import InputPartition
from tailrace.spark.source.planning import plan_splits
from tailrace.store.directory import DirectoryState, StoreDirectory
from tailrace.store.queue_search import first_kept
from tailrace.store.queue_types import whole_units
from tailrace.store.walk.scan import CHUNK, LogChunk, LogEnd, rows_of_a_chunk, scan_files

__all__ = ["ScanTask", "plan_scan", "plan_tasks", "read_scan", "read_task"]

_log = get_logger(__name__)
_READ: Final = 2 << 20  # for a longer record the walk reads again, with more bytes
_FEW: Final = 1 << 22
"""Most messages whose units the driver reads for a plan: 84 MB."""
_BYTES_OF_A_QUEUE: Final = 256 << 10
"""Bytes of the log in a task for each queue, so that it takes less time to find units than to read records.
Only if ``splitBytes`` is not given."""
_OF_PROPERTIES: Final = frozenset({"keys", "tags", "uniqKey"})  # columns for which a walk parses properties


class ScanTask(InputPartition):
    """Records that start in [start, end) of a store's log."""

    def __init__(
        self,
        label: str,
        path: str,
        span: tuple[int, int],
        files: list[tuple[str, int, int]],
        table: bytes,
        expected: int,
        damaged: Sequence[tuple[int, int, str]],
        queue_files: QueueFiles | None = None,
    ) -> None:
        super().__init__(span)
        self.label, self.path = label, path
        self.start, self.end = span
        self.files = files  # (path, position of its first byte, size)
        self.table = table  # the ranges of all queues of the read, packed
        self.expected = expected  # records in the range that a queue names
        self.damaged = damaged  # (position, size, reason), found on the driver
        self.queue_files = queue_files
        """Where the task finds the units that tell where its records are and how many; None if the driver has read
        them. Then ``start`` and ``end`` are bounds of records."""

    @property
    def wanted(self) -> list[OffsetRange]:
        """The ranges of the queues that are read."""
        return unpacked(self.table)


def plan_scan(
    label: str, directory: StoreDirectory, ranges: Ranges, options: ReadOptions
) -> list[ScanTask]:
    """Return tasks for one store: every record to read is in exactly one of them."""
    queues, until = _queues_of(label, directory, ranges)
    if not queues:
        return []
    table = packed([one for _, one in queues])
    begin = min(one.first for _, one in queues)
    is_read = _is_read_here(directory, queues)
    split_bytes = _split_bytes(until - begin, len(queues), len(table), options, is_read=is_read)
    if is_read:
        positions = each_once([
            units_of(queue, one.start, one.end, directory.min_phy_offset)["phy_offset"].astype(np.int64)
            for queue, one in queues])
        splits, queue_files = plan_splits(positions, until, split_bytes, options.min_partitions), None
    else:
        positions = _grid(directory, begin, until, split_bytes, options.min_partitions)
        splits = list(zip(positions.tolist(), [*positions[1:].tolist(), until], strict=True))
        queue_files = QueueFiles(
            directory.path, whole_units(directory.config.mapped_file_size_consume_queue, CQ_UNIT.size),
            whole_units(directory.config.mapper_file_size_batch_consume_queue, BATCH_CQ_UNIT.size))
    damaged = [(one.phy_offset, one.size, one.reason) for one in directory.damaged if one.phy_offset < until]
    known = set(positions[np.isin(positions, [place for place, _, _ in damaged])].tolist())
    starts = [file.file_from_offset for file in directory.log_files]
    tasks = []
    for low, high in splits:
        first, last = np.searchsorted(positions, [low, high])
        own = [one for one in damaged if low <= one[0] < high]
        tasks.append(ScanTask(
            label, directory.path, (low, high),
            [
                (file.path, file.file_from_offset, file.size)
                for file in directory.log_files[max(bisect_right(starts, low) - 1, 0) : bisect_left(starts, high)]
                if low < file.file_from_offset + file.size
            ],
            table, int(last - first) - sum(place in known for place, _, _ in own), own, queue_files))
    return tasks


def _queues_of(label: str, directory: StoreDirectory, ranges: Ranges) -> tuple[list[RangeQueue], int]:
    """Return the queues that are read, each with its range, and the end of the last record."""
    found: list[RangeQueue] = []
    until = 0
    for queue in directory.queues():
        start, end = ranges.get((label, queue.topic, queue.queue_id), (0, 0))
        if start >= end:
            continue
        shown_from = -1
        if queue.is_batch:  # a batch queue has no units before its first message, an archive may have messages there
            shown_from = start = max(start, first_kept(queue, directory.min_phy_offset))
        start = queue.begin_of(start)
        bounds = bounds_of(queue, start, end, directory.min_phy_offset)
        if bounds is not None:
            first, last, record_end = bounds
            found.append((queue, OffsetRange(queue.topic, queue.queue_id, start, end, first, last, shown_from)))
            until = max(until, record_end)
    return found, until


def _is_read_here(directory: StoreDirectory, queues: Sequence[RangeQueue]) -> bool:
    """Return True if the driver reads all units.

    It does for few messages, because then no task is made for a part of the log without one. It does for a store that
    was not closed, because only the driver has the units that recovery found.
    """
    return directory.state is DirectoryState.UNCLEAN or sum(one.end - one.start for _, one in queues) <= _FEW


def _grid(directory: StoreDirectory, begin: int, until: int, split_bytes: int, least: int) -> Rows:
    """Return the starts of ranges that cover the log from ``begin``, and one range for what is after its last file."""
    end = max((file.file_from_offset + file.size for file in directory.log_files), default=begin)
    total = max(min(end, until) - begin, 1)
    count = max(-(-total // split_bytes), min(least, total))
    starts = begin + np.arange(count, dtype=np.int64) * (total // count)
    return np.append(starts, end) if begin < end < until else starts


def _split_bytes(total: int, queues: int, table: int, options: ReadOptions, *, is_read: bool) -> int:
    """Return the bytes of a task: ``splitBytes`` if it is given, otherwise more if there are many queues.

    ``total`` is the number of bytes to read, ``table`` the size of the packed ranges.
    """
    if "splitbytes" in options.given:
        return options.split_bytes
    least = 0 if is_read else queues * _BYTES_OF_A_QUEUE
    return max(options.split_bytes, least, -(-total // max(TABLE_BYTES // table, 1)))


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
    elif isinstance(task, IndexedTask):
        for one in tasks_in(task, options):
            yield from read_archive(one, options)
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
    positions, unknown = None, ""
    if task.queue_files is not None:
        task, positions, unknown = _with_own_units(task, task.queue_files)
    keep, messages = RowFilter(task.wanted), _Messages(task.wanted)
    found = 0
    start = task.start
    behind = _AfterDamage(task, options, positions)
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
        start, unknown = vanished.end, ""
    bad = behind.bad
    if bad:
        yield from report_damaged(task.label, task.path, bad, options)
    known = {place for place, _, _ in task.damaged}
    missing = task.expected - found - sum(place not in known for place, _ in bad)
    if missing > 0 or unknown:
        which = f"records of {unknown}" if unknown else f"{missing} of {task.expected} records"
        text = (f"{which} between {task.start} and {task.end} of "
                f"{task.path} were deleted by retention before they were read")
        if options.fail_on_data_loss:
            raise StoreError(f"{text}; failOnDataLoss=false continues without them")
        events.DATA_LOST_IN_THE_LOG.log(_log, store=task.label, phy_offset=task.start, until=task.end,
            skipped=unknown or missing)


def _with_own_units(task: ScanTask, queue_files: QueueFiles) -> tuple[ScanTask, Rows, str]:
    """Return the task with the bounds of its own records, their positions, and what is known to be deleted.

    The last is a queue whose messages and units retention has deleted since the task was planned, or "".
    """
    found = own_units(queues_on_disk(queue_files, task.table), task.start, task.end)
    made = copy(task)
    made.expected = len(found.positions)
    # Retention deletes units after their messages, so this look comes last.
    unknown = found.deleted if not all(OsFileSystem().exists(path) for path, _, _ in task.files) else ""
    if not unknown:
        made.start, made.end = (int(found.positions[0]), found.end) if made.expected else (task.end, task.end)
    return made, found.positions, unknown


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

    def __init__(self, task: ScanTask, options: ReadOptions, positions: Rows | None) -> None:
        self._task, self._options = task, options
        self._known = positions
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
            parts: list[Rows] = []
            directory = StoreDirectory(task.path, config=self._options.store_config())
            wanted = {(one.topic, one.queue_id): one for one in task.wanted}
            for queue in directory.queues():
                one = wanted.get((queue.topic, queue.queue_id))
                if one is not None:
                    low = max(one.start, queue.min_offset)
                    units = units_of(queue, low, one.end, task.start)
                    parts.append(units["phy_offset"].astype(np.int64))
            places = each_once(parts)
            self._known = places[(places >= task.start) & (places < task.end)]
        return self._known
