"""Timers that a wall clock set back has left too far ahead: they go round like any far timer.

A slot is never more than the roll window ahead when it is filled. After the clock was set back by about
the length of the ring, places that new slots need hold timers of a time that is far ahead now, and
whatever is due before would have to wait for them. Their units are written again into the slot at the end
of the window, from where they are sent round. The old units stay in the log: a rebuilt wheel may list
a timer twice, which is known when its slot is read.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tailrace.formats.timerlog import MAGIC_DELETE, MAGIC_ROLL, TIMER_UNIT
from tailrace.timer.dequeue import Dequeue
from tailrace.timer.timer_log import TimerLog
from tailrace.timer.timer_wheel import TimerWheel

__all__ = ["make_way"]


def make_way(
    wheel: TimerWheel, log: TimerLog, dequeue: Dequeue, slot_time_ms: int, now_ms: int, window_ms: int
) -> bool:
    """Free the place of a slot from timers that are due beyond the window; whether it is free now.

    ``now_ms`` and ``window_ms`` are multiples of the precision. Raises DiskFullError or OSError; then
    every timer is still in a slot.
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


def _append(log: TimerLog, units: Any, last: int) -> int:
    """Append units as one list behind the unit at ``last``; the position of the first."""
    begin = log.max_offset
    units["prev_pos"] = begin + TIMER_UNIT.size * np.arange(-1, len(units) - 1)
    units["prev_pos"][0] = last
    return log.append(units.astype(TIMER_UNIT.dtype).tobytes())  # what was joined has another byte order
