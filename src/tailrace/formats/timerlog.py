"""The timer log (RocketMQ's TimerLog.java): a unit for each timer; the units of a slot are linked backwards.

All files have the same length. If another unit and a blank unit do not fit at the end of a file, a blank unit
fills the rest. Zeros are not a unit: the log ends there.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from tailrace.formats._layout import Layout

__all__ = [
    "MAGIC_DEFAULT", "MAGIC_DELETE", "MAGIC_ROLL", "TIMER_BLANK", "TIMER_BLANK_MAGIC", "TIMER_UNIT",
    "TimerBlank", "TimerUnit",
]

MAGIC_DEFAULT: Final = 1
MAGIC_ROLL: Final = 2
"""The timer is due later than its slot: it is put on the timer topic again when the slot comes."""
MAGIC_DELETE: Final = 4
"""The message is a request to delete another timer of the slot."""
MAGIC_MASK: Final = 0xF
"""All bits that the magic of a unit may have."""
TIMER_BLANK_MAGIC: Final = 0xCBD43194 - (1 << 32)


class TimerUnit(NamedTuple):
    """One timer. Its slot is that of the time ``write_time_ms + delay_ms``."""

    size: Annotated[int, "i", "i4", "52"]
    prev_pos: Annotated[int, "q", "i8", "position of the previous unit of the slot, -1 when first"]
    magic: Annotated[int, "i", "i4", "1, with 2 for a far timer and 4 for a request to delete"]
    write_time_ms: Annotated[int, "q", "i8", "time of the enqueue, a multiple of the precision, ms"]
    delay_ms: Annotated[int, "i", "i4", "slot time minus write time, ms"]
    phy_offset: Annotated[int, "q", "i8", "position of the message in the CommitLog"]
    msg_size: Annotated[int, "i", "i4", "bytes of that record"]
    topic_hash: Annotated[int, "i", "i4", "Java hash of the real topic"]
    reserved: Annotated[int, "q", "i8", "0"]


class TimerBlank(NamedTuple):
    """The blank unit that ends a full file."""

    size: Annotated[int, "i", "i4", "bytes up to the end of the file"]
    zero: Annotated[int, "q", "i8", "0"]
    magic: Annotated[int, "i", "i4", "0xCBD43194"]


TIMER_UNIT: Final = Layout(TimerUnit, size=52)
TIMER_BLANK: Final = Layout(TimerBlank, size=16)
