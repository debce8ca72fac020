"""What the timer services share: how far enqueue and dequeue are, and which timers need a look in the log.

`TimerMessageStore` makes one `TimerState` per store and gives it to each service. Every field is read and
written under the lock of the timers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple, final

from tailrace.timer.arrays import Ints, no_positions
from tailrace.timer.unread import Tries

__all__ = ["Skipped", "TimerState"]

_NO_TIME: Final = (1 << 63) - 1


class Skipped(NamedTuple):
    """A message of the timer queue that could not be read yet."""

    phy_offset: int
    size: int
    tries: Tries


@final
@dataclass(slots=True)
class TimerState:
    """The positions of one store's timers."""

    precision_ms: int
    """Time that a slot of the wheel covers."""
    grain_ms: int
    """Coarsest precision that the directory has had: slot times of messages are rounded down by at most this."""
    queue_offset: int = 0
    """Messages of the timer queue below this offset are in the wheel, except those in ``skipped``."""
    skipped: dict[int, Skipped] = field(default_factory=dict)
    """Messages below ``queue_offset`` that could not be read yet, by queue offset."""
    hold_until: int = 0
    """Messages of the timer queue below this offset come into the wheel before any timer is delivered (T6)."""
    known: Ints = field(default_factory=no_positions)
    """Sorted positions of messages from ``queue_offset`` onwards that have a unit in the timer log already."""
    late: dict[int, int] = field(default_factory=dict)
    """Slots with timers that came too late for their own slot: the earliest time at which one is due."""
    frontier_ms: int = 0
    """Slots before this time were begun (RocketMQ's currReadTimeMs)."""
    last_floor_ms: int = 0
    """Slot of the time at which the clock was last read; an earlier slot shows that the clock was set back."""
    suspicious_until_ms: int = 0
    """Timers with a slot time before this one may be delivered already: the log is searched for them first."""

    follows: bool = False
    """True on a slave: its master delivers, so the log is searched for every due timer."""

    @property
    def ask_until_ms(self) -> int:
        """Timers with a slot time before this one are searched for in the log before they are delivered."""
        return _NO_TIME if self.follows else self.suspicious_until_ms

    @property
    def all_below(self) -> int:
        """Every message of the timer queue below this offset is in the wheel, was parked, or was left out."""
        return min(self.queue_offset, *self.skipped) if self.skipped else self.queue_offset

    def floor(self, time_ms: int) -> int:
        """Return the start of the slot of a time."""
        return time_ms // self.precision_ms * self.precision_ms
