"""Whether queue units tell of every record of a segment, without reading the segment.

The records of a segment lie end to end from its first byte to its blank, and all but prepared and
rolled back transactions have one unit. So over the units of a segment the sum of
``h(end) - h(start)``, with any mixing function h and modulo 2**64, leaves only the outermost
terms when the units tile it, in whatever order they come. A missing, doubled or foreign unit
leaves something else. 20 bytes a message are read instead of the message, memory is two numbers a
segment. What is not seen is a wrong tags code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, final

import numpy as np

from tailrace.formats.commitlog import BLANK, BLANK_MAGIC
from tailrace.formats.consumequeue import CQ_UNIT, PRE_BLANK_SIZE
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.store.log_scan import LogFile

__all__ = ["Coverage"]

_UNIT: Final = CQ_UNIT.size
_LOOK: Final = 1 << 16
Numbers = np.ndarray[Any, np.dtype[np.uint64]]


def _mix(values: Any) -> Numbers:
    """A mixing function (splitmix64's finisher)."""
    x: Numbers = np.asarray(values).astype(np.uint64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@final
class Coverage:
    """Sums over the units of all queues, by segment. ``end`` is the length of the log so far."""

    def __init__(self, files: Sequence[LogFile]) -> None:
        self._files = files
        self._starts = np.array([file.file_from_offset for file in files], dtype=np.int64)
        self._size = files[0].size if files else 1
        self._sums = np.zeros(len(files), dtype=np.uint64)
        self._highs = self._starts.copy()

    def add_queues(self, queues: Iterable[ConsumeQueue]) -> None:
        """Count the units of queues; each queue ends before the first that cannot follow."""
        for queue in queues:
            self._add_queue(queue)

    def _add_queue(self, queue: ConsumeQueue) -> None:
        offset, last = queue.min_offset, -1
        end = queue.max_offset
        while offset < end:
            data = queue.units(offset, min(_LOOK, end - offset))
            units = CQ_UNIT.view(data[: len(data) - len(data) % _UNIT])
            phy = units["phy_offset"].astype(np.int64)
            size = units["size"].astype(np.int64)
            real = size != PRE_BLANK_SIZE
            high = np.maximum.accumulate(np.where(real, phy, last))
            before = np.concatenate(([last], high[:-1]))
            good = ~real | ((size > 0) & (phy >= 0) & (phy > before))
            count = len(units) if bool(good.all()) else int(np.argmin(good))
            self._add(phy[:count][real[:count]], size[:count][real[:count]])
            if count < len(units) or not count:
                queue.set_end(offset + count)
                return
            last = int(high[-1])
            offset += count

    def _add(self, phy: Any, size: Any) -> None:
        place = np.searchsorted(self._starts, phy, side="right") - 1
        inside = place >= 0
        phy, size, place = phy[inside], size[inside], place[inside]
        if len(phy):
            np.add.at(self._sums, place, _mix(phy + size) - _mix(phy))
            np.maximum.at(self._highs, place, phy + size)

    def first_gap(self, until: int) -> int:
        """Start of the first segment below ``until`` whose records do not all have a unit."""
        for number, file in enumerate(self._files):
            start = file.file_from_offset
            if start >= until:
                break
            high = int(self._highs[number])
            if not start < high <= start + file.size:
                return start
            whole = _mix([high]) - _mix([start])
            if self._sums[number] != whole[0] or not _ends_at(file, high - start):
                return start
        return until


def _ends_at(file: LogFile, at: int) -> bool:
    """Whether the blank that ends a segment is at ``at``."""
    head = file.read(at, BLANK.size)
    if len(head) < BLANK.size:
        return at == file.size
    blank = BLANK.unpack_from(head)
    return blank.magic == BLANK_MAGIC and blank.total_size == file.size - at
