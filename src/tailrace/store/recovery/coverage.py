"""Whether queue units tell of every record of a segment, without reading the segment.

The records of a segment lie end to end from its first byte to its blank, and all but prepared and
rolled back transactions have one unit. So over the units of a segment the sum of
``h(end) - h(start)``, with any mixing function h and modulo 2**64, leaves only the outermost
terms when the units tile it, in whatever order they come. A missing, doubled or foreign unit
leaves something else. 20 bytes a message are read instead of the message, memory is two numbers a
segment. What is not seen is a wrong tags code.

Units of LMQ queues are further units of records that have one already, so they are not summed. Only
the log says which of them there must be; what can be told of an LMQ queue is where its units stop to
follow each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, final

import numpy as np

from tailrace.formats.commitlog import BLANK, BLANK_MAGIC
from tailrace.formats.consumequeue import CQ_UNIT
from tailrace.kernels import queue_units
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.store.multi_dispatch import is_lmq
from tailrace.store.walk.log_walk import LogFile

__all__ = ["Coverage"]

_UNIT: Final = CQ_UNIT.size
_LOOK: Final = 1 << 16


@final
class Coverage:
    """Sums over the units of all queues, by segment. ``end`` is the length of the log so far."""

    def __init__(self, files: Sequence[LogFile]) -> None:
        self._files = files
        self._starts = np.array([file.file_from_offset for file in files], dtype=np.int64)
        self._sums = np.zeros(len(files), dtype=np.uint64)
        self._highs = self._starts.copy()

    def add_queues(self, queues: Iterable[ConsumeQueue]) -> None:
        """Count the units of queues; each queue ends before the first that cannot follow."""
        for queue in queues:
            self._add_queue(queue)

    def _add_queue(self, queue: ConsumeQueue) -> None:
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
        """Start of the first segment below ``until`` whose records do not all have a unit."""
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


def _ends_at(file: LogFile, at: int) -> bool:
    """Whether the blank that ends a segment is at ``at``."""
    head = file.read(at, BLANK.size)
    if len(head) < BLANK.size:
        return at == file.size
    blank = BLANK.unpack_from(head)
    return blank.magic == BLANK_MAGIC and blank.total_size == file.size - at
