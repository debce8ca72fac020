"""Messages of a segment for which queues have units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tailrace.arrow.columns import Rows
from tailrace.formats.consumequeue import CQ_UNIT, PRE_BLANK_SIZE
from tailrace.spark.offset_ranges import OffsetRange
from tailrace.store.directory import QueueView, StoreDirectory
from tailrace.store.multi_dispatch import is_lmq
from tailrace.store.queue_search import first_kept

__all__ = ["Units", "named_in", "units_between"]

Units = list[tuple[QueueView, Rows, Rows]]
"""For each queue the offsets and the positions of its messages; of an inner batch only those of the first one."""


def units_between(directory: StoreDirectory, start: int, until: int) -> Units:
    """Return the messages of every queue in a range of the log.

    LMQ queues are left out, because their units name messages of other topics. A message that was put into an
    LMQ topic itself is archived as a record without a unit.
    """
    return [
        (queue, *_units(queue, start, until)) for queue in directory.queues() if not is_lmq(queue.topic)]


def _units(queue: QueueView, start: int, until: int) -> tuple[Any, Any]:
    low, high = first_kept(queue, start), first_kept(queue, until)
    data = queue.units(low, high - low)
    units = CQ_UNIT.view(data[: len(data) - len(data) % CQ_UNIT.size])
    positions = units["phy_offset"].astype(np.int64)
    kept = (units["size"] != PRE_BLANK_SIZE) & (positions >= start) & (positions < until)
    return low + np.flatnonzero(kept), positions[kept]


def named_in(
    units: Sequence[tuple[QueueView, Rows, Rows]], segment: int, size: int
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
