"""Ranges of queue offsets that a task reads, and the record rows that belong to them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from tailrace.arrow.columns import Rows
from tailrace.formats.consumequeue import CQ_UNIT, PRE_BLANK_SIZE
from tailrace.kernels import columns
from tailrace.kernels.shared import constants as C
from tailrace.store.consume_queue import ConsumeQueue

__all__ = ["OffsetRange", "RowFilter", "units_of"]

_LOOK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets [start, end) of a queue, whose records start in [first, last] of the log."""

    topic: str
    queue_id: int
    start: int
    end: int
    first: int
    last: int
    shown_from: int = -1
    """For a batch queue: first message of the range, because its first record may also have earlier messages."""

    @property
    def is_batch(self) -> bool:
        """True for a range of a batch queue."""
        return self.shown_from >= 0

    def of_messages(self) -> OffsetRange:
        """Return the range without the earlier messages of its first record."""
        return replace(self, start=max(self.start, self.shown_from))


def units_of(queue: ConsumeQueue, start: int, end: int, least: int) -> Any:
    """Return the units in a range of a queue whose messages are at ``least`` or after it in the log."""
    units = np.concatenate([CQ_UNIT.view(b""), *(units for _, units in queue.runs(start, end, _LOOK))])
    return units[(units["size"] != PRE_BLANK_SIZE) & (units["phy_offset"] >= least)]


class RowFilter:
    """Selects the record rows that belong to some offset ranges."""

    def __init__(self, ranges: list[OffsetRange]) -> None:
        table = sorted(
            (self.hash_of(one), one.start, one.end, one.first, one.last)
            for one in ranges)
        self._hash, self._start, self._end, self._first, self._last = (
            np.array(column, dtype=np.int64) for column in (zip(*table, strict=True) if table else [()] * 5))

    @staticmethod
    def hash_of(one: OffsetRange) -> int:
        """Return the hash by which record rows name the queue."""
        return int(columns.queue_hash(one.topic.encode(), one.queue_id))

    def mask(self, rows: Rows) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return True for each row that is in a range and is not an open or rolled back transaction."""
        if not len(self._hash):
            return np.zeros(len(rows), dtype=bool)
        named = rows[:, C.QUEUE_HASH]
        place = np.searchsorted(self._hash, named)
        place[place == len(self._hash)] = 0
        offset, phy = rows[:, C.QUEUE_OFFSET], rows[:, C.PHY]
        transaction = rows[:, C.SYS_FLAG] & 0xC
        return np.asarray(
            (self._hash[place] == named)
            & (offset >= self._start[place]) & (offset < self._end[place])
            & (phy >= self._first[place]) & (phy <= self._last[place])
            & ((transaction == 0) | (transaction == 8))
        )

    def __call__(self, rows: Rows) -> Rows:
        """Return the rows for which ``mask`` is true."""
        keep = self.mask(rows)
        return rows if keep.all() else rows[keep]
