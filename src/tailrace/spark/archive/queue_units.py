"""Messages of a segment for which queues have units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from tailrace.arrow.columns import Rows
from tailrace.formats.consumequeue import PRE_BLANK_SIZE
from tailrace.spark.offset_ranges import OffsetRange
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.store.directory import StoreDirectory
from tailrace.store.multi_dispatch import is_lmq
from tailrace.store.queue_search import first_kept

__all__ = ["Units", "named_in", "units_between"]

_LOOK: Final = 1 << 20
Units = list[tuple[ConsumeQueue, Rows, Rows]]
"""For each queue the offsets and the positions of its messages; of an inner batch only those of the first one."""


def units_between(directory: StoreDirectory, start: int, until: int) -> Units:
    """Return the messages of every queue in a range of the log.

    LMQ queues are left out, because their units name messages of other topics. A message that was put into an
    LMQ topic itself is archived as a record without a unit.
    """
    return [
        (queue, *_units(queue, start, until)) for queue in directory.queues() if not is_lmq(queue.topic)]


def _units(queue: ConsumeQueue, start: int, until: int) -> tuple[Any, Any]:
    found: list[tuple[Any, Any]] = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    for low, units in queue.runs(first_kept(queue, start), first_kept(queue, until), _LOOK):
        positions = units["phy_offset"].astype(np.int64)
        kept = (units["size"] != PRE_BLANK_SIZE) & (positions >= start) & (positions < until)
        found.append((low + np.flatnonzero(kept), positions[kept]))
    offsets, places = zip(*found, strict=True)
    return np.concatenate(offsets), np.concatenate(places)


def named_in(
    units: Sequence[tuple[ConsumeQueue, Rows, Rows]], segment: int, size: int
) -> tuple[list[OffsetRange], Rows]:
    """Return the queues in a segment, and a row (position, offset, index of the queue) for each message."""
    wanted: list[OffsetRange] = []
    named = [np.empty((0, 3), dtype=np.int64)]
    for queue, offsets, positions in units:
        inside = (positions >= segment) & (positions < segment + size)
        if not inside.any():
            continue
        own, places = offsets[inside], positions[inside]
        named.append(np.stack(
            [places, own, np.full(len(own), len(wanted), dtype=np.int64)], axis=1))
        start = int(own.min())
        wanted.append(OffsetRange(
            queue.topic, queue.queue_id, start, queue.end_of(int(own.max())), int(places.min()),
            int(places.max()), start if queue.is_batch else -1))
    return wanted, np.concatenate(named)
