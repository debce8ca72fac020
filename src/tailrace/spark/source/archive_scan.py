"""Archived messages as rows of the source: planned by manifests, read from Parquet in tasks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tailrace import events
from tailrace.arrow.columns import MAX_BODY
from tailrace.arrow.schema import arrow_schema
from tailrace.env.filesystem import FileSystem
from tailrace.errors import CorruptionError, DataLossError
from tailrace.formats.commitlog import SysFlag, decompress_body
from tailrace.formats.inner_batch import INNER_NUM_MAX
from tailrace.logs import get_logger
from tailrace.spark.archive.directory import ArchivedDirectory, ArchivedQueue
from tailrace.spark.archive.index import Group, Indexed, manifest_of
from tailrace.spark.archive.layout import MESSAGE
from tailrace.spark.archive.parquet_file import groups_with_topic, in_archive, opened
from tailrace.spark.archive.rows import ENCODED_COLUMNS
from tailrace.spark.offset_ranges import OffsetRange
from tailrace.spark.source.archived_batches import batch_messages
from tailrace.spark.source.damaged_records import report_damaged
from tailrace.spark.source.options import ReadOptions
from tailrace.spark.source.own_units import TABLE_BYTES, packed, unpacked
from tailrace.spark.source.partition import InputPartition
from tailrace.store.archive_manifest import (
    ArchivedFile,
    LostMessage,
    Manifest,
    read_manifest,
)
from tailrace.store.archive_store import archive_at
from tailrace.store.consume_queue import ConsumeQueue

__all__ = [
    "ArchiveTask", "IndexedTask", "RecordCount", "plan_archive", "read_archive", "task_for_vanished", "tasks_in"]

_log = get_logger(__name__)
_BATCH_ROWS: Final = 1 << 14
_FOUND: Final = ("kind", "topic", "queueId", "queueOffset", "commitLogOffset")
Ranges = dict[tuple[str, str, int], tuple[int, int]]


class ArchiveTask(InputPartition):
    """Messages to read from some files of one archived segment, with positions in [start, end)."""

    def __init__(
        self, label: str, archive: str, files: Sequence[ArchivedFile], span: tuple[int, int],
        wanted: Sequence[OffsetRange], damaged: Sequence[LostMessage],
    ) -> None:
        super().__init__(span)
        self.label, self.archive = label, archive
        self.files, self.wanted, self.damaged = tuple(files), tuple(wanted), tuple(damaged)
        self.start, self.end = span


class IndexedTask(InputPartition):
    """Messages with positions in [start, end) to read from segments of an index, whose manifests the task reads."""

    def __init__(
        self, label: str, archive: str, segments: Sequence[Indexed], span: tuple[int, int], table: bytes
    ) -> None:
        super().__init__(span)
        self.label, self.archive, self.segments, self.table = label, archive, tuple(segments), table
        self.start, self.end = span


@dataclass(slots=True)
class RecordCount:
    """Number of records that were read. An inner batch counts once."""

    records: int = 0


def plan_archive(
    label: str, directory: ArchivedDirectory, ranges: Ranges, options: ReadOptions
) -> list[InputPartition]:
    """Return tasks for messages before the log. Raises DataLossError if neither log nor archive has a message."""
    wanted: dict[int, list[OffsetRange]] = {}
    for queue in directory.queues():
        start, end = ranges.get((label, queue.topic, queue.queue_id), (0, 0))
        if start >= end:
            continue
        if 0 < start <= queue.min_offset:
            _check_start(directory, queue, options)
        if not isinstance(queue, ArchivedQueue):
            continue
        _check_holes(label, directory, queue, (start, end), options)
        for source, one in queue.archived:
            low, high = max(start, one.start), min(end, one.end)
            if low < high:
                # A record with earlier messages may also have those at ``low``.
                begin = max(low - INNER_NUM_MAX + 1, one.start) if one.is_batch else low
                wanted.setdefault(source.segment, []).append(OffsetRange(
                    queue.topic, queue.queue_id, begin, high, one.first, one.last, low if one.is_batch else -1))
    tasks: list[InputPartition] = []
    tables = {one.segment: packed(wanted[one.segment]) for one in directory.sources
              if isinstance(one, Group) and one.segment in wanted}
    split_bytes = options.split_bytes
    if tables and "splitbytes" not in options.given:
        total = sum(one.until - one.segment for one in directory.sources if one.segment in tables)
        split_bytes = max(split_bytes, -(-total // max(TABLE_BYTES // max(map(len, tables.values())), 1)))
    place = directory.archive.location
    for source in directory.sources:
        if source.segment not in wanted:
            continue
        asked = wanted[source.segment]
        if isinstance(source, Group):
            tasks += _tasks_of_group(label, place, source, asked, tables[source.segment], split_bytes)
        else:
            tasks += _tasks_of(label, place, source, asked, options, (source.segment, source.until))
    return tasks


def _tasks_of_group(
    label: str, archive: str, group: Group, wanted: Sequence[OffsetRange], table: bytes, split_bytes: int
) -> list[IndexedTask]:
    """Return tasks for the segments of an index; each has about ``split_bytes`` of the log, of one or more segments."""
    low, high = min(one.first for one in wanted), max(one.last for one in wanted)
    tasks: list[IndexedTask] = []
    waiting: list[Indexed] = []
    chosen = [one for one in group.segments if one.segment <= high and one.until > low]
    for one in chosen:
        waiting.append(one)
        start, until = waiting[0].segment, one.until
        if until - start >= split_bytes or one is chosen[-1]:
            count = max((until - start) // split_bytes, 1) if len(waiting) == 1 else 1
            bounds = [start + (until - start) * number // count for number in range(count + 1)]
            tasks += [IndexedTask(label, archive, waiting, span, table) for span in itertools.pairwise(bounds)]
            waiting = []
    return tasks


def tasks_in(task: IndexedTask, options: ReadOptions) -> Iterator[ArchiveTask]:
    """Yield the tasks of the files that begin in the range of a task, by the manifests of its segments.

    Raises CorruptionError for a manifest that is missing or is not the one that was indexed.
    """
    asked = unpacked(task.table)
    for segment in task.segments:
        manifest = manifest_of(archive_at(task.archive), segment)
        there = {(one.topic, one.queue_id) for one in manifest.queues}
        own = [one for one in asked if (one.topic, one.queue_id) in there
               and one.first < manifest.until and one.last >= manifest.segment]
        files = [one for one in manifest.files if task.start <= one.start < task.end]
        if own and files:
            span = min(one.start for one in files), max(one.end for one in files)
            yield from _tasks_of(
                task.label, task.archive, manifest, own, replace(options, split_bytes=1 << 62), span)


def _check_start(directory: ArchivedDirectory, queue: ConsumeQueue, options: ReadOptions) -> None:
    """Report a missing manifest that may have had messages before the first one of a queue."""
    missing = directory.missing
    if missing is None or (
        isinstance(queue, ArchivedQueue) and queue.archived[0][1].first < missing.segment
    ):
        return
    if options.fail_on_data_loss:
        raise CorruptionError(
            f"{directory.archive.location}: {missing}; messages of {queue.topic} queue {queue.queue_id} before "
            f"offset {queue.min_offset} may be in it: restore it from a copy, or read the rest with "
            "failOnDataLoss=false")
    events.A_MANIFEST_OF_THE_ARCHIVE_IS_MISSING.log(
        _log, archive=directory.archive.location, topic=queue.topic, queue_id=queue.queue_id, cause=missing)


def _check_holes(
    label: str, directory: ArchivedDirectory, queue: ArchivedQueue, asked: tuple[int, int],
    options: ReadOptions,
) -> None:
    ends = [(one.end, one.last, one.start, one.first) for _, one in queue.archived]
    live = (0, 0, queue.live_min_offset, directory.live.min_phy_offset)
    for (end, last, _, _), (_, _, start, first) in zip(ends, [*ends[1:], live], strict=True):
        low, high = max(end, asked[0]), min(start, asked[1])
        if low >= high or not directory.hole_between(last, first):
            continue
        if options.fail_on_data_loss:
            raise DataLossError(queue.topic, queue.queue_id, low, high)
        events.DATA_LOST.log(
            _log, store=label, topic=queue.topic, queue_id=queue.queue_id, from_=low, until=high, skipped=high - low)


def _tasks_of(
    label: str, archive: str, manifest: Manifest, wanted: Sequence[OffsetRange], options: ReadOptions,
    span: tuple[int, int],
) -> list[ArchiveTask]:
    """Return tasks for a segment; each has files with about ``splitBytes`` of the log."""
    tasks: list[ArchiveTask] = []
    group: list[ArchivedFile] = []
    low = span[0]
    pieces = sorted({(one.start, one.end) for one in manifest.files})
    for number, (start, end) in enumerate(pieces):
        if end <= span[0] or start >= span[1]:
            continue
        group += [one for one in manifest.files if one.start == start]
        following = pieces[number + 1][1] if number + 1 < len(pieces) else None
        if following is None or following - low > options.split_bytes or end >= span[1]:
            bounds = (low, min(end, span[1]))
            own = [one for one in wanted if one.first < bounds[1] and bounds[0] <= one.last]
            if own:
                tasks.append(ArchiveTask(
                    label, archive, group, bounds, own, _lost(manifest, own, bounds)))
            group, low = [], end
    return tasks


def _lost(
    manifest: Manifest, wanted: Sequence[OffsetRange], span: tuple[int, int]
) -> list[LostMessage]:
    by_queue = {(one.topic, one.queue_id): one for one in wanted}
    found = []
    for lost in manifest.damaged:
        one = by_queue.get((lost.topic, lost.queue_id))
        if one is not None and lost.queue_offset < one.end and (
            lost.queue_offset + lost.messages > one.of_messages().start and span[0] <= lost.position < span[1]
        ):
            found.append(lost)
    return found


def task_for_vanished(
    label: str, archive: str, segment: int, span: tuple[int, int], wanted: Sequence[OffsetRange],
    options: ReadOptions,
) -> ArchiveTask | None:
    """Return a task for a file of the log that was deleted since planning; None if it is not archived."""
    manifest = read_manifest(archive_at(archive), segment)
    if manifest is None or not manifest.verified:
        return None
    whole = _tasks_of(
        label, archive, manifest, wanted, replace(options, split_bytes=1 << 62), span)
    return whole[0] if whole else ArchiveTask(label, archive, (), span, (), ())


def read_archive(
    task: ArchiveTask, options: ReadOptions, seen: RecordCount | None = None, file_system: FileSystem | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the Arrow batches of a task, in the source's columns. ``seen`` counts records, also damaged ones.

    Raises CorruptionError if a file differs from its manifest, and in mode FAILFAST for a message that was damaged
    when it was archived.
    """
    seen = seen or RecordCount()
    plain, batches = ([one for one in task.wanted if one.is_batch is kind] for kind in (False, True))
    if plain:
        needed = sorted(_needed(options))
        schema = arrow_schema(options.columns)
        for kept in _kept(task, plain, needed, seen, file_system):
            yield from _shown(kept, schema, task, options).to_batches(_BATCH_ROWS)
    if batches:
        needed = sorted({*_FOUND, *ENCODED_COLUMNS})
        yield from batch_messages(_kept(task, batches, needed, seen, file_system), batches, task.label, options)
    if task.damaged:
        seen.records += len(task.damaged)
        bad = [(one.position, one.reason) for one in task.damaged]
        yield from report_damaged(task.label, task.archive, bad, options)


def _needed(options: ReadOptions) -> set[str]:
    """Return the columns of the archive from which those of the source are made."""
    schema = arrow_schema(options.columns)
    needed = set(_FOUND) | {name for name in schema.names if name not in {"store", "damaged"}}
    if options.body == "decoded" and "body" in schema.names:
        needed.add("sysFlag")
    if options.body == "none":
        needed.discard("body")
    return needed


def _kept(
    task: ArchiveTask, wanted: Sequence[OffsetRange], columns: list[str], seen: RecordCount,
    file_system: FileSystem | None,
) -> Iterator[pa.Table]:
    """Yield the rows of records in some ranges, in tables that are not empty."""
    archive = archive_at(task.archive, file_system)
    for file in task.files:
        with opened(in_archive(archive, file)) as found:
            for group in groups_with_topic(found, [one.topic for one in wanted]):
                table = found.read_row_group(group, columns=columns)
                kept = table.filter(pa.array(_mask(table, task, wanted)))
                seen.records += kept.num_rows
                if kept.num_rows:
                    yield kept


def _mask(
    table: pa.Table, task: ArchiveTask, wanted: Sequence[OffsetRange]
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return True for each row of a record to read."""
    topics = table["topic"].combine_chunks()
    topics = (topics.chunk(0) if isinstance(topics, pa.ChunkedArray) else topics).dictionary_encode()
    names = topics.dictionary.to_pylist()
    codes = topics.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    queues = table["queueId"].fill_null(0).to_numpy().astype(np.int64)
    keys, place = np.unique((codes << 32) | (queues & 0xFFFFFFFF), return_inverse=True)
    by_queue = {(one.topic, one.queue_id): one for one in wanted}
    bounds = np.zeros((len(keys), 4), dtype=np.int64)
    for number, key in enumerate(keys.tolist()):
        queue_id = (key & 0xFFFFFFFF) - ((key & 0x80000000) << 1)
        one = by_queue.get((names[key >> 32], queue_id)) if key >= 0 else None
        if one is not None:
            bounds[number] = one.start, one.end, max(one.first, task.start), min(one.last + 1, task.end)
    own = bounds[place.reshape(-1)]
    offset = table["queueOffset"].fill_null(-1).to_numpy()
    phy = table["commitLogOffset"].to_numpy()
    message = pa.compute.equal(table["kind"], MESSAGE).to_numpy()
    return np.asarray(
        message & (offset >= own[:, 0]) & (offset < own[:, 1]) & (phy >= own[:, 2]) & (phy < own[:, 3]))


def _shown(table: pa.Table, schema: pa.Schema, task: ArchiveTask, options: ReadOptions) -> pa.Table:
    columns = []
    for one in schema:
        if one.name == "store":
            columns.append(pa.repeat(pa.scalar(task.label, one.type), table.num_rows))
        elif one.name == "damaged" or (one.name == "body" and options.body == "none"):
            columns.append(pa.nulls(table.num_rows, one.type))
        elif one.name == "body" and options.body == "decoded":
            columns.append(_decoded(table))
        else:
            columns.append(table[one.name].cast(one.type))
    return pa.table(columns, schema=schema)


def _decoded(table: pa.Table) -> Any:
    flags = table["sysFlag"].to_numpy()
    if not (flags & SysFlag.COMPRESSED).any():
        return table["body"]
    found = []
    for body, flag, place in zip(
        table["body"].to_pylist(), flags.tolist(), table["commitLogOffset"].to_pylist(), strict=True):
        try:
            found.append(decompress_body(body, flag, MAX_BODY))
        except CorruptionError as error:
            raise CorruptionError(str(error), phy_offset=place) from error
    return pa.array(found, pa.binary())
