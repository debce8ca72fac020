"""Moves timers that are too far ahead because the wall clock was set back; they are rolled like any far timer.

When a slot is filled it is never further ahead than the roll window. If the clock is set back by about the
length of the ring, places that new slots need hold timers that are now far ahead, and timers that are due
earlier would have to wait for them. So the units of these timers are written again into the slot at the end of the
window, from which they are rolled. The old units stay in the timer log: a rebuilt wheel may list a timer twice,
and the double is recognised when its slot is read.
"""

from __future__ import annotations

import numpy as np

from tailrace.formats.timerlog import MAGIC_DELETE, MAGIC_ROLL, TIMER_UNIT
from tailrace.timer.arrays import Units
from tailrace.timer.dequeue import Dequeue
from tailrace.timer.timer_log import TimerLog
from tailrace.timer.timer_wheel import TimerWheel

__all__ = ["make_way"]


def make_way(
    wheel: TimerWheel, log: TimerLog, dequeue: Dequeue, slot_time_ms: int, now_ms: int, window_ms: int
) -> bool:
    """Move timers that are due after the window out of the place of a slot. Return True if it is free now.

    ``now_ms`` and ``window_ms`` are multiples of the precision. Raises DiskFullError or OSError; every timer
    is then still in a slot.
    """
    target = now_ms + window_ms
    far = sorted({wheel.held_time(slot_time_ms), wheel.held_time(target)})
    far = [time for time in far if time > target and wheel.get_slot(time).last_pos >= 0]
    held = wheel.held_time(target)
    if wheel.held_time(slot_time_ms) not in far or (
        held not in {0, target, *far} and wheel.get_slot(held).last_pos >= 0
    ):
        return False
    lists = [dequeue.walk(time, wheel.get_slot(time).last_pos) for time in far]
    units = np.concatenate(lists)
    units = units[np.argsort(units["phy_offset"], kind="stable")]
    units["magic"] |= MAGIC_ROLL
    units["write_time_ms"] = now_ms
    units["delay_ms"] = window_ms
    slot = wheel.get_slot(target)
    first, last, num = (slot.first_pos, slot.last_pos, slot.num) if held == target else (-1, -1, 0)
    at = 0
    while at < len(units):
        part = units[at : at + log.room()]
        at += len(part)
        begin = _append(log, part, last)
        first = begin if first < 0 else first
        last = begin + TIMER_UNIT.size * (len(part) - 1)
    num += int(np.where(units["magic"] & MAGIC_DELETE, -1, 1).sum())
    for time in far:
        wheel.put_slot(time, -1, -1, 0)
    wheel.put_slot(target, first, last, num)
    return True


def _append(log: TimerLog, units: Units, last: int) -> int:
    """Append units as one list that continues the unit at ``last``. Return the position of the first."""
    begin = log.max_offset
    units["prev_pos"] = begin + TIMER_UNIT.size * np.arange(-1, len(units) - 1)
    units["prev_pos"][0] = last
    return log.append(units.astype(TIMER_UNIT.dtype).tobytes())  # the joined array has another byte order
