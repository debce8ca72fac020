"""Reads slots of the wheel when their time has come, and passes their timers to the put back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from tailrace import events
from tailrace.env.clock import Clock
from tailrace.logs import get_logger
from tailrace.timer.arrays import Units
from tailrace.timer.due_table import DueTable
from tailrace.timer.put_back import PutBack
from tailrace.timer.state import TimerState
from tailrace.timer.timer_log import TimerLog
from tailrace.timer.timer_wheel import NO_SLOT, TimerWheel

__all__ = ["Dequeue"]

_log = get_logger(__name__)
_MOST_BEGUN: Final = 500_000
"""Number of units in memory from which no further slot is begun."""
_BATCH: Final = 16_384
"""Number of units of a step, which holds the lock of the timers."""
_CHUNK: Final = 4096
_ODD: Final = 15
"""Number of plain units that take as long as an odd one, less one."""


@final
class Dequeue:
    """The steps dequeue_get and dequeue_get_message; the caller holds the lock of the timers."""

    def __init__(
        self, clock: Clock, wheel: TimerWheel, timer_log: TimerLog,
        due: DueTable, put_back: PutBack, state: TimerState, on_step_back: Callable[[int], None],
    ) -> None:
        self._state = state
        self._on_step_back = on_step_back
        """Called with the slot of the clock before slots that were read once are read again."""
        self._clock = clock
        self._wheel = wheel
        self._timer_log = timer_log
        self._due = due
        self._put_back = put_back
        self._reads = put_back.reads
        self._precision = state.precision_ms

    def step(self) -> bool:
        """Begin slots, read their messages, deliver due timers. Return True if there is more to do."""
        now = self._clock.now_ms()
        self.watch_clock(now)
        behind = self._dequeue_get(now)
        return self._dequeue_get_message() or behind

    @property
    def commit_read_time_ms(self) -> int:
        """Slots before this time are delivered. The present slot is the one in which the last step read the clock."""
        state = self._state
        return min(state.frontier_ms, state.last_floor_ms, state.floor(self._clock.now_ms()), *self._due.slots)

    def watch_clock(self, now: int) -> None:
        """If the wall clock was set back, read the slots again whose time comes a second time.

        Their timers may be delivered already, so the log is searched for each before it is delivered.
        """
        floor = self._state.floor(now)
        if floor < self._state.last_floor_ms:
            events.WALL_CLOCK_STEPPED_BACK.log(_log, by_ms=self._state.last_floor_ms - floor)
            self._state.suspicious_until_ms = max(
                self._state.suspicious_until_ms, self._state.frontier_ms)
            self._state.frontier_ms = min(self._state.frontier_ms, floor)
            self._due.forget(floor)
            self._on_step_back(floor)
        self._state.last_floor_ms = floor

    # -- dequeue_get

    def _dequeue_get(self, now: int) -> bool:
        """Begin every slot whose time has come, as far as memory allows. Return True if some are left."""
        floor = self._state.floor(now)
        if self._state.frontier_ms > floor:
            return False
        if floor - self._state.frontier_ms > 2 * self._precision:
            times = self._wheel.live_slots(self._state.frontier_ms, floor + self._precision)
        else:
            times = list(range(self._state.frontier_ms, floor + 1, self._precision))
        for time_ms in times:
            if len(self._due) >= _MOST_BEGUN:
                return True
            slot = self._wheel.get_slot(time_ms)
            if slot is not NO_SLOT and slot.last_pos >= 0:
                self._due.begin(time_ms, slot.last_pos)
                self._load(time_ms)
            self._state.frontier_ms = time_ms + self._precision
        self._state.frontier_ms = floor + self._precision
        return False

    def _load(self, time_ms: int) -> None:
        """Load the units of a slot's list. If it cannot be read, the slot keeps the position of the list."""
        unread = self._due.lists[time_ms]
        try:
            units = self.walk(time_ms, unread.pos)
        except OSError as error:
            if not unread.tries.failed:
                events.LIST_OF_A_TIMER_SLOT_CANNOT_BE_READ.log(
                    _log, time_ms=time_ms, pos=unread.pos, cause=error)
            self._due.lists[time_ms] = unread._replace(tries=self._reads.counted(unread.tries, error))
            return
        self._due.loaded(time_ms, units)

    def look(self) -> None:
        """Drop timers of begun slots that are deleted or were delivered, and deliver none."""
        self._put_back.may_begin()
        while not self._put_back.stopped and (
            taken := self._due.take(0, self._reads.now_ms(), _CHUNK)
        ) is not None:
            self._put_back.step(*taken, put=False)

    def walk(self, time_ms: int, pos: int) -> Units:
        """Return the units of a slot, oldest first. A broken list begins at the break, which is logged."""
        units, pos = self._timer_log.walk(time_ms, self._precision, pos)
        if pos >= 0:
            self._put_back.counters["timerBrokenList"] += 1
            events.LIST_OF_A_TIMER_SLOT_IS_BROKEN.log(_log, time_ms=time_ms, pos=pos, units=len(units))
        return units

    # -- dequeue_get_message

    def _dequeue_get_message(self) -> bool:
        """Process some of the begun units. Return True if there are more."""
        if not self._due.slots or not self._put_back.may_begin():
            return False
        for time_ms, unread in list(self._due.lists.items()):
            if self._reads.may_try(unread.tries):
                self._load(time_ms)
        left, most = _BATCH, _CHUNK
        while left > 0 and not self._put_back.stopped:
            taken = self._due.take(self._clock.now_ms(), self._reads.now_ms(), most)
            if taken is None:
                return False
            odd = self._put_back.step(*taken)
            left -= len(taken[0]) + _ODD * odd
            most = _CHUNK if odd * 4 < most else _CHUNK // 4
        return left <= 0
