"""Read a queue in parts, as rows of verified records that point into the log.

Invariant: each row is a whole record whose checksums, position, topic and queue offset are right, as for
``MessageReader.get_message``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final, final

import numpy as np

from tailrace.formats.consumequeue import CQ_UNIT, PRE_BLANK_SIZE
from tailrace.kernels import record, unit_records
from tailrace.store.commit_log import CommitLog
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.store.multi_dispatch import holds_unit
from tailrace.store.walk.scan import Rows

__all__ = ["NOT_MAPPED", "SeenPages", "scan_queue"]

_UNIT: Final = CQ_UNIT.size
_unit: Final = CQ_UNIT.struct.unpack_from
_ANY_CODE: Final = np.empty(0, np.int64)
_UNITS: Final = 1 << 13
_PART: Final = 512 << 10  # small enough to stay in a processor's second cache until the caller has copied it
_PLACES: Final = 512
_PARTS: Final = 8  # of one mapping: then the segment may be deleted, and the page cache is looked at again
_READ: Final = 2 << 20
NOT_MAPPED: Final = bytearray()
"""``seen`` of ``kernels.unit_records`` for bytes that are not mapped."""


@final
class SeenPages(dict[int, bytearray]):
    """``seen`` of ``kernels.unit_records`` by start of segment, made when it is first used."""

    def __init__(self, file_size: int) -> None:
        super().__init__()
        self._length = -(-file_size // unit_records.SEEN_BYTES)

    def __missing__(self, start: int) -> bytearray:
        """Return memory without a page."""
        return self.setdefault(start, bytearray(self._length))


def scan_queue(
    log: CommitLog, queue: ConsumeQueue, offset: int, until: int, count: int,
    tell: Callable[[ConsumeQueue, int, int], None], seen_pages: Callable[[], SeenPages],
) -> Generator[tuple[memoryview, Rows], None, None]:
    """Yield rows of at most ``count`` messages with queue offsets in [``offset``, ``until``).

    A part is a pair of buffer and rows: 1 to 512 messages of one segment, at most 512 KiB or one message.
    Rows (``kernels.record``) have positions in the buffer. Both are valid until the next part is requested.
    ``tell`` is called for each damaged record with the queue, its queue offset and its position. ``seen_pages``
    returns the pages that were in the page cache a moment ago.
    """
    places = np.empty((_PLACES, unit_records.PLACE_COLUMNS), np.int64)
    rows = np.empty((_PLACES, record.COLUMNS), np.int64)
    offset = max(offset, queue.min_offset)
    at, units, mapped = 0, b"", True
    while count > 0:
        if at * _UNIT >= len(units):
            offset, at = offset + at, 0
            if offset >= until:
                return
            units = queue.units(offset, min(_UNITS, until - offset))
            if not units:
                offset = queue.offset_after_file(offset)
                continue
        phy_offset, size, _ = _unit(units, at * _UNIT)
        wanted = max(size, _READ) if size != PRE_BLANK_SIZE else 0
        first, why = at, unit_records.UNITS_FULL
        held, view, start, there = log.queue.hold_around(phy_offset, wanted, mapped=mapped)
        try:
            seen = NOT_MAPPED if held is None else seen_pages()[start]
            with memoryview(view)[:there] as buffer:
                for _ in range(_PARTS):
                    found, at, why = unit_records.find_units(
                        buffer, start, there, units, at, _ANY_CODE, queue.record_topic, queue.queue_id, offset,
                        _PART, False, seen, places[:count])
                    kept = places[:found]
                    if found and not queue.record_topic:
                        kept = _of_lmq(queue, buffer, kept, start, tell)
                    if len(kept):
                        record.fill_rows(buffer, start, kept, rows)
                        yield buffer, rows[: len(kept)]
                        count -= len(kept)
                    if why != unit_records.UNITS_FULL or not count:
                        break
        finally:
            if held is not None:
                held.release()
        mapped = why != unit_records.UNITS_COLD  # a record outside the page cache is read by a system call
        if why == unit_records.UNITS_DAMAGED:
            tell(queue, offset + at, _unit(units, at * _UNIT)[0])
            at += 1
        elif at == first and (
            why == unit_records.UNITS_CUT_OFF
            or (why == unit_records.UNITS_ELSEWHERE and not there)
        ):
            if not 0 <= (named := _unit(units, at * _UNIT)[0]) < log.min_offset:
                tell(queue, offset + at, named)  # it was not deleted: the unit names no record
            at += 1


def _of_lmq(
    queue: ConsumeQueue, buffer: memoryview, places: Rows, start: int,
    tell: Callable[[ConsumeQueue, int, int], None],
) -> Rows:
    """Return the places whose records name this LMQ queue and this queue offset in it."""
    kept = []
    for at, size, offset in places.tolist():
        kept.append(holds_unit(bytes(buffer[at : at + size]), queue.topic, offset))
        if not kept[-1]:
            tell(queue, offset, start + at)
    return places[kept]
