"""Read a queue from its first to its last message, a segment of the log at a time.

Invariant: what a sink takes is a whole record whose checksums, position, topic and queue offset are right, as for
``MessageReader.get_message``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, final

import numpy as np

from tailrace.formats.consumequeue import CQ_UNIT, PRE_BLANK_SIZE
from tailrace.kernels import record, unit_records
from tailrace.kernels.shared import constants as C
from tailrace.segments import MappedFile
from tailrace.store.commit_log import CommitLog
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.store.multi_dispatch import holds_unit
from tailrace.store.walk.scan import Rows

__all__ = ["NOT_MAPPED", "Sink", "Window", "hold_around", "scan_queue"]

_UNIT: Final = CQ_UNIT.size
_unit: Final = CQ_UNIT.struct.unpack_from
_ANY_CODE: Final = np.empty(0, np.int64)
_UNITS: Final = 1 << 13
_PART: Final = 512 << 10
_PLACES: Final = 512
"""Bytes and number of the records of which ``Window.rows`` makes rows in one call."""
_READ: Final = 2 << 20
NOT_MAPPED: Final = bytearray()
"""``seen`` of ``kernels.unit_records`` for bytes that are not mapped."""
Tell = Callable[[ConsumeQueue, int, int], None]
"""Notes a damaged record: its queue, its queue offset and its position."""


@final
@dataclass(frozen=True, slots=True)
class Window:
    """Units of a queue, and a buffer with the records of some of them. It is valid during a call of ``Sink.take``.

    ``units[0]`` has the queue offset ``offset``, and ``buffer[0]`` is at position ``start`` of the log.
    """

    queue: ConsumeQueue
    buffer: memoryview
    start: int
    units: bytes
    offset: int
    seen: bytearray
    tell: Tell

    def rows(self, at: int, most: int) -> tuple[Rows, int, int]:
        """Return rows (``kernels.record``) of at most ``most`` records from unit ``at`` onwards.

        At most 512 records with 512 KiB, or one record. Positions in rows are indexes into ``buffer``. Return also the
        unit at which it ended and the reason UNITS_*.
        """
        places = np.empty((min(most, _PLACES), C.PLACE_COLUMNS), np.int64)
        found, at, why = unit_records.find_units(
            self.buffer, self.start, len(self.buffer), self.units, at, _ANY_CODE, self.queue.record_topic,
            self.queue.queue_id, self.offset, _PART, False, self.seen, places)
        places = places[:found]
        if found and not self.queue.record_topic:
            places = _of_lmq(self.queue, self.buffer, places, self.start, self.tell)
        rows = np.empty((len(places), C.COLUMNS), np.int64)
        record.fill_rows(self.buffer, self.start, places, rows)
        return rows, at, why


class Sink(Protocol):
    """Takes the messages of ``scan_queue``."""

    left: int
    """Number of messages that it may still take."""

    def take(self, window: Window, at: int) -> tuple[int, int]:
        """Take messages from unit ``at`` onwards, at least one if there is one.

        Return the unit at which it ended and the reason UNITS_*.
        """
        ...


def hold_around(
    log: CommitLog, phy_offset: int, size: int, least: int, *, mapped: bool
) -> tuple[MappedFile | None, memoryview | bytes, int, int]:
    """Do what `MappedFileQueue.hold_around` does. If ``size`` bytes cannot be read, try the first ``least``.

    So a record that cannot be read does not keep the records before it from being read.
    """
    try:
        return log.queue.hold_around(phy_offset, size, mapped=mapped)
    except OSError:
        if size <= least:
            raise
        return log.queue.hold_around(phy_offset, least, mapped=mapped)


def scan_queue(
    log: CommitLog, queue: ConsumeQueue, offset: int, until: int, sink: Sink, tell: Tell,
    seen: unit_records.SeenPages,
) -> None:
    """Give ``sink`` the messages with queue offsets in [``offset``, ``until``), in order, until its ``left`` is 0.

    ``tell`` is called for each damaged record with the queue, its queue offset and its position.
    """
    offset = max(offset, queue.min_offset)
    at, units, mapped = 0, b"", True
    while sink.left > 0:
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
        first = at
        try:
            held, view, start, there = hold_around(log, phy_offset, wanted, size, mapped=mapped)
        except OSError as error:
            if not log.unreadable.gives_up(phy_offset, error):
                raise
            tell(queue, offset + at, phy_offset)
            at += 1
            continue
        try:
            pages = NOT_MAPPED if held is None else seen.of(start)
            with memoryview(view)[:there] as buffer:
                at, why = sink.take(Window(queue, buffer, start, units, offset, pages, tell), at)
        finally:
            if held is not None:
                held.release()
        mapped = why != C.UNITS_COLD  # a record outside the page cache is read by a system call
        if why == C.UNITS_DAMAGED:
            tell(queue, offset + at, _unit(units, at * _UNIT)[0])
            at += 1
        elif at == first and (
            why == C.UNITS_CUT_OFF
            or (why == C.UNITS_ELSEWHERE and not there)
        ):
            if not 0 <= (named := _unit(units, at * _UNIT)[0]) < log.min_offset:
                tell(queue, offset + at, named)  # it was not deleted: the unit names no record
            at += 1


def _of_lmq(
    queue: ConsumeQueue, buffer: memoryview, places: Rows, start: int, tell: Tell
) -> Rows:
    """Return the places whose records name this LMQ queue and this queue offset in it."""
    kept = []
    for at, size, offset in places.tolist():
        kept.append(holds_unit(bytes(buffer[at : at + size]), queue.topic, offset))
        if not kept[-1]:
            tell(queue, offset, start + at)
    return places[kept]
