"""Check that queues have a unit for every record of a segment, without reading the segment.

The records of a segment lie end to end from its first byte to its blank record, and each has one unit (except
prepared and rolled back transactions; a segment with such records counts as not covered). So, for any mixing
function h, the sum of ``h(end) - h(start)`` over the units of a segment, modulo 2**64, is
``h(last end) - h(first start)`` if the units cover the segment exactly, in any order. A missing, repeated or
foreign unit changes the sum. Only 20 bytes per message are read, and memory is two numbers per segment. A
wrong tags code is not found.

Units of LMQ queues are additional units of records that have one already, so they are not summed. Only the log
says which LMQ units must exist. Of an LMQ queue only the first unit that does not follow the one before it is found.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, final

import numpy as np

from tailrace.formats.commitlog import BLANK, BLANK_MAGIC
from tailrace.formats.consumequeue import CQ_UNIT
from tailrace.kernels import queue_units
from tailrace.segments import MappedFile
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.store.multi_dispatch import is_lmq

__all__ = ["Coverage"]

_UNIT: Final = CQ_UNIT.size
_LOOK: Final = 1 << 16


@final
class Coverage:
    """Sums over the units of all queues, by segment.

    Making them ends each queue before its first unit that cannot follow the one before it.
    """

    def __init__(self, files: Sequence[MappedFile], queues: Iterable[ConsumeQueue]) -> None:
        self._files = files
        self._starts = np.array([file.file_from_offset for file in files], dtype=np.int64)
        self._sums = np.zeros(len(files), dtype=np.uint64)
        self._highs = self._starts.copy()
        for queue in queues:
            self._add(queue)

    def _add(self, queue: ConsumeQueue) -> None:
        offset, last = queue.min_offset, -1
        end = queue.max_offset
        starts = self._starts[:0] if is_lmq(queue.topic) else self._starts
        while offset < end:
            data = queue.units(offset, min(_LOOK, end - offset))
            count, last = queue_units.add_cover(data, last, starts, self._sums, self._highs)
            offset += count
            if not count or count < len(data) // _UNIT:
                queue.set_end(offset)
                return

    def first_gap(self, until: int) -> int:
        """Return the start of the first segment below ``until`` whose records do not all have a unit, or ``until``."""
        for number, file in enumerate(self._files):
            start = file.file_from_offset
            if start >= until:
                break
            high = int(self._highs[number])
            if not start < high <= start + file.size:
                return start
            whole = (queue_units.mix(high) - queue_units.mix(start)) % (1 << 64)
            if int(self._sums[number]) != whole or not _ends_at(file, high - start):
                return start
        return until


def _ends_at(file: MappedFile, at: int) -> bool:
    """Return True if the blank record that ends a segment is at ``at``, or if ``at`` is its end."""
    head = file.read(at, BLANK.size)
    if len(head) < BLANK.size:
        return at == file.size
    blank = BLANK.unpack_from(head)
    return blank.magic == BLANK_MAGIC and blank.total_size == file.size - at
