"""Queue units in a range of the log, which a task reads by itself.

The driver reads the first and the last unit of each queue only, so the cost of a plan does not grow with the messages.
A task gets the ranges of all queues as one packed table, finds its units in the files of the queues, and so knows where
its first record starts, where its last record ends, and how many records it must find.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from tailrace.arrow.columns import Rows
from tailrace.env.filesystem import OsFileSystem
from tailrace.formats import filenames
from tailrace.formats.consumequeue import PRE_BLANK_SIZE, CqUnit
from tailrace.segments import MappedFile, MappedFileQueue
from tailrace.spark.offset_ranges import OffsetRange, units_of
from tailrace.store.batch_consume_queue import BatchConsumeQueue
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.store.log_paths import segment_files
from tailrace.store.queue_search import first_at, message_from

__all__ = ["TABLE_BYTES", "OwnUnits", "QueueFiles", "RangeQueue", "bounds_of", "each_once", "own_units", "packed",
           "queues_on_disk", "unpacked"]

RangeQueue = tuple[ConsumeQueue, OffsetRange]
_LOOK: Final = 1 << 14
_LAST: Final = 3
"""Number of units that decide that a queue has left a range: one of them may be damaged."""
_NEAR: Final = 8
TABLE_BYTES: Final = 256 << 20
"""Bytes of the packed ranges in all tasks of a plan together, if ``splitBytes`` is not given."""


class QueueFiles(NamedTuple):
    """Where queues are: the store's directory, and the sizes of files of both kinds of queues, in bytes."""

    path: str
    file_size: int
    batch_file_size: int


class OwnUnits(NamedTuple):
    """What units say about the records that start in a range of the log."""

    positions: Rows
    """Positions of the records, sorted, each once."""
    end: int
    """Position after the last of these records; 0 without one."""
    deleted: str
    """A queue whose units of the range may have been deleted, with its offsets, or ""."""


def packed(wanted: Sequence[OffsetRange]) -> bytes:
    """Return ranges of queues as bytes that each task gets."""
    return zlib.compress(pickle.dumps(list(wanted)), 1)


@lru_cache(maxsize=4)
def unpacked(table: bytes) -> list[OffsetRange]:
    """Return the ranges of ``packed``. A worker unpacks the table of a query once."""
    return list(pickle.loads(zlib.decompress(table)))


def each_once(parts: Sequence[Rows]) -> Rows:
    """Return the positions of several queues in order, each once. Each part is nearly sorted, so sorting is fast."""
    found = np.sort(np.concatenate([np.empty(0, dtype=np.int64), *parts]), kind="stable")
    return found[np.append(True, found[1:] != found[:-1])] if len(found) else found


def bounds_of(queue: ConsumeQueue, start: int, end: int, least: int) -> tuple[int, int, int] | None:
    """Return (first, last, end of the last) for the positions of the messages in [``start``, ``end``) of a queue.

    Messages before ``least`` do not count; the result is None if there are no others. Some units at both ends are read,
    because a single one may be damaged. If they name no message, all units of the range are read.
    """
    def near(offsets: range) -> list[CqUnit]:
        found = [queue.unit(offset) for offset in offsets]
        return [one for one in found if one is not None and one.size != PRE_BLANK_SIZE and one.phy_offset >= least]

    head, tail = near(range(start, min(start + _NEAR, end))), near(range(max(end - _NEAR, start), end))
    if head and tail:
        last = max(tail, key=lambda unit: unit.phy_offset)
        return min(unit.phy_offset for unit in head), last.phy_offset, last.phy_offset + last.size
    units = units_of(queue, start, end, least)
    if not len(units):
        return None
    places = units["phy_offset"].astype(np.int64)
    return int(places.min()), int(places.max()), int(places.max()) + int(units["size"][places.argmax()])


@lru_cache(maxsize=4)
def queues_on_disk(files: QueueFiles, table: bytes) -> list[RangeQueue]:
    """Return the queues of a table with the files that they have now. A worker looks for them once a query."""
    found = []
    for one in unpacked(table):
        kind, name, size = (
            (BatchConsumeQueue, filenames.BATCHCONSUMEQUEUE, files.batch_file_size) if one.is_batch else
            (ConsumeQueue, filenames.CONSUMEQUEUE, files.file_size))
        path, system = f"{files.path}/{name}/{one.topic}/{one.queue_id}", OsFileSystem()
        queue = kind(one.topic, one.queue_id, MappedFileQueue(system, path, size, mapped=False, files=[
            MappedFile(system, place, offset, size, foreign=True) for offset, place in segment_files(system, (path,))]))
        if one.is_batch:
            queue.find_end()
        queue.max_offset = one.end
        found.append((queue, one))
    return found


def own_units(queues: Sequence[RangeQueue], low: int, high: int) -> OwnUnits:
    """Return what the units of some queues say about records that start in [``low``, ``high``) of the log."""
    parts: list[Rows] = []
    end, deleted = 0, ""
    for queue, one in queues:
        if one.last < low or one.first >= high:
            continue
        offset = first_at(queue, one.start, low)
        for _, units in queue.runs(offset, one.end, _LOOK):
            real = units[units["size"] != PRE_BLANK_SIZE]
            places = real["phy_offset"].astype(np.int64)
            kept = (places >= low) & (places < high)
            if kept.any():
                parts.append(places[kept])
                end = max(end, int((places + real["size"])[kept].max()))
            if len(places) and (places[-_LAST:] >= high).all():
                break
        if not deleted and _begins_later(queue, one, low):
            deleted = f"topic {one.topic} queue {one.queue_id}, offsets from {one.start}"
    return OwnUnits(each_once(parts), end, deleted)


def _begins_later(queue: ConsumeQueue, one: OffsetRange, low: int) -> bool:
    """Return True if units of messages at or after ``low`` have been deleted since the driver has seen the queue."""
    if queue.files.files and queue.first_offset <= one.start:
        return False
    first = message_from(queue, queue.first_offset)
    return first is None or first.phy_offset > low
