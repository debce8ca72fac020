"""The timer wheel (RocketMQ's TimerWheel.java, Slot.java): a ring of slots.

A slot is for the timers of one unit of the precision (``timerPrecisionMs``, by default 1 s). The slot of a time has
number ``time // precision % (2 * SLOTS_TOTAL)``. Slots are never cleared, only overwritten one round later, so a slot
with another time counts as empty. The file records neither its precision nor its length.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from tailrace.formats._layout import Layout

__all__ = ["SLOT", "SLOTS_TOTAL", "Slot", "wheel_file_size"]


class Slot(NamedTuple):
    """The timers of one slot."""

    time: Annotated[int, "q", "i8", "start of the slot, in units of the precision"]
    first_pos: Annotated[int, "q", "i8", "timer log position of its oldest unit"]
    last_pos: Annotated[int, "q", "i8", "timer log position of its newest unit"]
    num: Annotated[int, "i", "i4", "timers in it, requests to delete counted as -1"]
    magic: Annotated[int, "i", "i4", "unused, 0"]


SLOT: Final = Layout(Slot, size=32)
SLOTS_TOTAL: Final = 7 * 86_400
"""Half of the number of slots of a wheel; it does not depend on the precision."""


def wheel_file_size(slots_total: int = SLOTS_TOTAL) -> int:
    """Return the length of a wheel file in bytes."""
    return 2 * slots_total * SLOT.size
