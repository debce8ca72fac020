"""Search a queue for the first message at or after a position or a time.

Positions and store times grow along a queue, so each search is a bisection over its units. The
queue is an open one, or one of a directory that is read without the lock. A unit that cannot be
read, because retention deleted its file or the file is missing, does not count as a message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace.formats.consumequeue import CQ_UNIT, PRE_BLANK_SIZE, CqUnit

if TYPE_CHECKING:
    from tailrace.store.consume_queue import ConsumeQueue

__all__ = [
    "first_at", "first_kept", "first_message", "first_stored", "message_from",
    "next_message",
]

_UNIT: Final = CQ_UNIT.size
_BACK: Final = 32
"""Number of units before the answer of a search that are checked first."""
_LAST: Final = 3
_LOOK: Final = 4096
"""Number of units per read in a sequence of pre-blank units."""


def first_message(
    queue: ConsumeQueue, low: int, holds: Callable[[CqUnit], bool | None], high: int | None = None
) -> int:
    """Return the first offset, from ``low`` onwards, of a message for which ``holds`` returns True.

    ``holds`` must be False for the messages before the answer and True for it and all later ones. It may
    return None if a message does not say, for example because it is damaged; then the next message decides. A
    message of that kind directly before the answer may be returned instead. Pre-blank units are skipped.
    Return the end of the queue if ``holds`` is True for no message. ``high`` is an offset known to be at or after
    the answer.
    """
    high = queue.max_offset if high is None else high
    while low < high:
        middle = (low + high) // 2
        at, unit = _next(queue, middle, high)
        verdict = unit is None or holds(unit)
        while verdict is None:
            at, unit = _next(queue, at + 1, high)
            verdict = unit is None or holds(unit)
        # If only pre-blank units are above the middle, the answer is below the middle or after them.
        if verdict:
            high = middle
        else:
            low = at + 1
    return next_message(queue, low)


def first_at(queue: ConsumeQueue, low: int, phy_offset: int) -> int:
    """Return the first offset, from ``low`` onwards, whose message is at or after ``phy_offset`` of the log.

    Units with an impossible position are skipped. A unit with a damaged position may lead the bisection past
    messages. So the last units before the answer are checked: if one of them is not before ``phy_offset``, the
    search continues before that unit.
    """
    high: int | None = None
    while True:
        found = first_message(
            queue, low, lambda unit: unit.phy_offset >= phy_offset if unit.phy_offset >= 0 else None, high)
        start = _kept_before(queue, low, found, phy_offset)
        if start == found or (high is not None and start >= high):
            return found
        high = start


def _kept_before(queue: ConsumeQueue, low: int, found: int, phy_offset: int) -> int:
    """Return the first of the last messages before ``found`` that is not before ``phy_offset``, else ``found``."""
    places: list[int] = []
    positions: list[int] = []
    for count in (_BACK, _LOOK):
        start = max(low, found - count)
        for at, units in queue.runs(start, found):
            real = np.flatnonzero(units["size"] != PRE_BLANK_SIZE)[-_LAST:]
            places += (real + at).tolist()
            positions += units["phy_offset"][real].tolist()
        if places or start == low:
            break
    last = zip(places[-_LAST:], positions[-_LAST:], strict=True)
    return next((place for place, position in last if position >= phy_offset), found)


def first_kept(queue: ConsumeQueue, phy_offset: int) -> int:
    """Return ``first_at`` over all stored units, also of messages that their topic has released.

    The first unit is checked before the search, because a damaged unit must not hide the units before it.
    """
    low, unit = _next(queue, queue.first_offset, queue.max_offset)
    return low if unit is not None and unit.phy_offset >= phy_offset else first_at(queue, low, phy_offset)


def first_stored(
    queue: ConsumeQueue, low: int, timestamp_ms: int, store_time: Callable[[CqUnit], int | None]
) -> int:
    """Return the first offset, from ``low`` onwards, whose message was stored at ``timestamp_ms`` or later.

    ``store_time`` gives the store time in ms of a unit's message, None if it cannot be read.
    """

    def is_not_before(unit: CqUnit) -> bool | None:
        stored = store_time(unit)
        return None if stored is None else stored >= timestamp_ms

    return first_message(queue, low, is_not_before)


def next_message(queue: ConsumeQueue, offset: int) -> int:
    """Return the offset of the first message from ``offset`` onwards, or the end of the queue."""
    return _next(queue, offset, queue.max_offset)[0]


def message_from(queue: ConsumeQueue, offset: int) -> CqUnit | None:
    """Return the unit of the first message from ``offset`` onwards, or None."""
    return _next(queue, offset, queue.max_offset)[1]


def _next(queue: ConsumeQueue, offset: int, until: int) -> tuple[int, CqUnit | None]:
    """Return offset and unit of the first message in [``offset``, ``until``), or (``until``, None)."""
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
