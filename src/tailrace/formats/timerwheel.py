"""The timer wheel (RocketMQ's TimerWheel.java, Slot.java): a ring of slots, one for each precision.

The slot of a time is number ``time // precision % (2 * SLOTS_TOTAL)``. A slot that holds another
time is an empty one: slots are never cleared, only overwritten when the ring comes round. The file
names neither its precision nor its length.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from tailrace.formats._layout import Layout

__all__ = ["SLOT", "SLOTS_TOTAL", "Slot", "wheel_file_size"]


class Slot(NamedTuple):
    """The timers of one precision's worth of time."""

    time: Annotated[int, "q", "i8", "start of the slot, in units of the precision"]
    first_pos: Annotated[int, "q", "i8", "timer log position of its oldest unit"]
    last_pos: Annotated[int, "q", "i8", "timer log position of its newest unit"]
    num: Annotated[int, "i", "i4", "timers in it, requests to delete counted as -1"]
    magic: Annotated[int, "i", "i4", "unused, 0"]


SLOT: Final = Layout(Slot, size=32)
SLOTS_TOTAL: Final = 7 * 86_400
"""Half of the slots of a wheel, whatever its precision."""


def wheel_file_size(slots_total: int = SLOTS_TOTAL) -> int:
    """Bytes of a wheel file."""
    return 2 * slots_total * SLOT.size
