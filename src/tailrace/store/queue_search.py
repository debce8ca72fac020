"""Searches in a queue: the first message that is not before a position or a time.

Positions and store times grow along a queue, so each search halves a range of units. Units are read from
an open queue or from a directory that is only looked at: ``QueueUnits`` is what both have. A place whose
unit cannot be read, because retention was faster or a file is missing, is no message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import numpy as np

from tailrace.formats.consumequeue import CQ_UNIT, PRE_BLANK_SIZE, CqUnit

__all__ = [
    "QueueUnits", "first_at", "first_kept", "first_message", "first_stored", "message_from",
    "next_message",
]

_UNIT: Final = CQ_UNIT.size
_LOOK: Final = 4096
"""Units that are read together where many pre-blank ones follow each other."""


class QueueUnits(Protocol):
    """The units of a queue, up to ``max_offset``."""

    max_offset: int

    @property
    def first_offset(self) -> int:
        """Number of the first unit of the first file."""
        ...

    def units(self, offset: int, count: int) -> bytes:
        """Bytes of up to ``count`` units from ``offset``; fewer at the end of a file, none when gone."""
        ...

    def next_file(self, offset: int) -> int:
        """Number of the first unit of the next file; ``max_offset`` after the last one."""
        ...


def first_message(queue: QueueUnits, low: int, holds: Callable[[CqUnit], bool | None]) -> int:
    """Return the first offset from ``low`` on whose message ``holds`` is True for, as for all later ones.

    The end of the queue if there is none. Pre-blank units, at the start or in between, are no message.
    ``holds`` returns None for a message that says nothing, which is then decided by the one after it; such
    a message directly before the answer may be the answer itself.
    """
    high = queue.max_offset
    while low < high:
        middle = (low + high) // 2
        at, unit = _next(queue, middle, high)
        verdict = unit is None or holds(unit)
        while verdict is None:
            at, unit = _next(queue, at + 1, high)
            verdict = unit is None or holds(unit)
        # With nothing but pre-blank units above the middle the answer is below it or after them.
        if verdict:
            high = middle
        else:
            low = at + 1
    return next_message(queue, low)


def first_at(queue: QueueUnits, low: int, phy_offset: int) -> int:
    """Return the first offset from ``low`` on whose message is at ``phy_offset`` of the log or after it.

    Units with an impossible position are stepped over.
    """
    return first_message(
        queue, low, lambda unit: unit.phy_offset >= phy_offset if unit.phy_offset >= 0 else None)


def first_kept(queue: QueueUnits, phy_offset: int) -> int:
    """Return ``first_at`` over all units that are there, also of messages that their topic released.

    A unit that rotted must not hide those before it: the first one is looked at first.
    """
    low, unit = _next(queue, queue.first_offset, queue.max_offset)
    return low if unit is not None and unit.phy_offset >= phy_offset else first_at(queue, low, phy_offset)


def first_stored(
    queue: QueueUnits, low: int, timestamp_ms: int, store_time: Callable[[CqUnit], int | None]
) -> int:
    """Return the first offset from ``low`` on whose message was stored at ``timestamp_ms`` or later.

    ``store_time`` gives the store time in ms of a unit's message, None if it cannot be read.
    """

    def is_not_before(unit: CqUnit) -> bool | None:
        stored = store_time(unit)
        return None if stored is None else stored >= timestamp_ms

    return first_message(queue, low, is_not_before)


def next_message(queue: QueueUnits, offset: int) -> int:
    """Return the offset of the first message from ``offset`` on, the end of the queue if there is none."""
    return _next(queue, offset, queue.max_offset)[0]


def message_from(queue: QueueUnits, offset: int) -> CqUnit | None:
    """Return the unit of the first message from ``offset`` on, None if there is none."""
    return _next(queue, offset, queue.max_offset)[1]


def _next(queue: QueueUnits, offset: int, until: int) -> tuple[int, CqUnit | None]:
    """Return offset and unit of the first message in a range, (``until``, None) if there is none."""
    count = 1
    while offset < until:
        data = queue.units(offset, min(count, until - offset))
        if len(data) < _UNIT:
            following = queue.next_file(offset)
            offset = following if offset < following else until
            continue
        units = CQ_UNIT.view(data[: len(data) - len(data) % _UNIT])
        real = np.flatnonzero(units["size"] != PRE_BLANK_SIZE)
        if len(real):
            at = int(real[0])
            return offset + at, CQ_UNIT.unpack_from(data, at * _UNIT)
        offset += len(units)
        count = _LOOK
    return until, None
