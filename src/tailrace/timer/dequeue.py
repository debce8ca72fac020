"""Out of the wheel: slots whose time has come, their messages, what is deleted and what is double."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, final

import numpy as np

from tailrace.env.clock import Clock
from tailrace.formats.commitlog import decode_message
from tailrace.formats.timerlog import MAGIC_DELETE, MAGIC_ROLL, TimerUnit
from tailrace.formats.timerwheel import Slot
from tailrace.logs import get_logger
from tailrace.model import MessageExt
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.timer.bulk import MANY, BulkPutBack
from tailrace.timer.properties import (
    TIMER_DEL_UNIQKEY,
    TIMER_ROLL_TIMES,
    Identity,
    due_ms,
    identity_of,
    out_ms,
)
from tailrace.timer.put_back import PutBack
from tailrace.timer.put_before import NOBODY
from tailrace.timer.slots import DueQueue, Later, Pending, SlotState, Units
from tailrace.timer.timer_log import TimerLog
from tailrace.timer.timer_wheel import NO_SLOT, TimerWheel

__all__ = ["Dequeue"]

_log = get_logger(__name__)
_MOST_WAITING: Final = 20_000
"""Begun timers beyond which no further slot is begun."""
_MOST_BEGUN: Final = 500_000
"""The same for those that are kept as units only."""
_BATCH: Final = 1000
_BULK_BATCH: Final = 16_384
_SMALL: Final = 4096
"""A record up to this size is kept until it is due."""


@final
class Dequeue:
    """dequeue_get and dequeue_get_message; the caller holds the timers' lock."""

    def __init__(
        self, clock: Clock, store: DefaultMessageStore, wheel: TimerWheel, timer_log: TimerLog,
        due: DueQueue, put_back: PutBack, precision_ms: int,
    ) -> None:
        self.frontier_ms = 0
        """Slots before this time were begun (RocketMQ's currReadTimeMs)."""
        self.last_floor_ms = 0
        self.bulk_from = MANY
        """From so many due units of a slot on they are put back in bulk."""
        self.on_step_back: Callable[[int], None] | None = None
        """Told before anything that was read once is read again."""
        self._clock = clock
        self._store = store
        self._wheel = wheel
        self._timer_log = timer_log
        self._due = due
        self._put_back = put_back
        self._precision = precision_ms
        self._bulk = BulkPutBack(clock, store, due, put_back)

    def step(self) -> bool:
        """Begin slots, look at their messages, put back what is due; True when there is more."""
        now = self._clock.now_ms()
        self.watch_clock(now)
        behind = self._dequeue_get(now)
        more = self._dequeue_get_message()
        return self._put_back.step(now) or more or behind

    @property
    def commit_read_time_ms(self) -> int:
        """Slots before this time are delivered."""
        now = self._clock.now_ms()
        return min(self.frontier_ms, now - now % self._precision, *self._due.slots)

    def has_begun(self, slot_time_ms: int) -> bool:
        """Whether a slot was begun and has timers left."""
        return slot_time_ms in self._due.slots

    def watch_clock(self, now: int) -> None:
        """When the wall clock was stepped back, read the slots again that come a second time.

        What is in them may have been delivered, so the log is asked before it is again.
        """
        floor = now // self._precision * self._precision
        if floor < self.last_floor_ms:
            _log.warning("wall clock stepped back by_ms=%d", self.last_floor_ms - floor)
            self._put_back.suspicious_until_ms = max(
                self._put_back.suspicious_until_ms, self.frontier_ms)
            self.frontier_ms = min(self.frontier_ms, floor)
            if self.on_step_back is not None:
                self.on_step_back(floor)
        self.last_floor_ms = floor

    # -- dequeue_get

    def _dequeue_get(self, now: int) -> bool:
        """Begin every slot whose time has come, as far as memory allows; True when some are left."""
        floor = now // self._precision * self._precision
        if self.frontier_ms > floor:
            return False
        if floor - self.frontier_ms > 2 * self._precision:
            times = self._wheel.live_slots(self.frontier_ms, floor + self._precision)
        else:
            times = list(range(self.frontier_ms, floor + 1, self._precision))
        for time_ms in times:
            if len(self._due) >= _MOST_WAITING or self._due.backlog() >= _MOST_BEGUN:
                return True
            slot = self._wheel.get_slot(time_ms)
            if slot is not NO_SLOT and slot.last_pos >= 0:
                self._begin(time_ms, slot)
            self.frontier_ms = time_ms + self._precision
        self.frontier_ms = floor + self._precision
        return False

    def _begin(self, time_ms: int, slot: Slot) -> None:
        """Take the units of a slot's list, oldest first, and what it deletes before anything else."""
        state = self._due.slot(time_ms)
        units = self.walk(time_ms, slot.last_pos)[::-1]
        if state.waiting:
            units = units[~np.isin(units["phy_offset"], list(state.waiting))]
        deletes = (units["magic"] & MAGIC_DELETE != 0) & (units["magic"] & MAGIC_ROLL == 0)
        state.units, state.later = Units(), Later()
        for row in units[deletes].tolist():
            unit = TimerUnit(*row)
            message = self._put_back.read(unit)
            if message is not None:
                self._take(time_ms, state, unit, message)
            self._due.left(unit)
        state.units = Units(units[~deletes])
        self._due.forget_finished(time_ms)

    def walk(self, time_ms: int, pos: int) -> Any:
        """A slot's units, newest first; a list that leads astray ends there, which is logged."""
        units, pos = self._timer_log.walk(time_ms, self._precision, pos)
        if pos >= 0:
            self._put_back.counters["timerBrokenList"] += 1
            _log.error("list of a timer slot is broken time_ms=%d pos=%d units=%d",
                       time_ms, pos, len(units))
        return units

    # -- dequeue_get_message

    def _dequeue_get_message(self) -> bool:
        """Look at some of the begun units; True when there are more."""
        left, bulk_left = _BATCH, _BULK_BATCH
        for time_ms in sorted(self._due.slots):
            state = self._due.slots.get(time_ms)
            if state is None:  # a request to delete may have finished another slot
                continue
            if state.later.next_due_ms <= self._clock.now_ms():
                bulk_left -= self._bulk.put_later(state)
            not_plain = 0
            while state.units and min(left, bulk_left) > 0 and len(self._due) < 2 * _MOST_WAITING:
                if not not_plain and len(state.units) >= self.bulk_from and self._bulk.possible and (
                    not self._put_back.is_due(self._clock.now_ms())
                ):
                    done, not_plain = self._bulk.look(state)
                    bulk_left -= done
                    continue
                not_plain = max(not_plain - 1, 0)
                unit = state.units.popleft()
                left -= 1
                self.read_and_take(time_ms, unit)
            self._due.forget_finished(time_ms)
            if min(left, bulk_left) <= 0:
                return True
        return False

    def take(self, slot_time_ms: int, unit: TimerUnit, message: MessageExt) -> None:
        """Let the message of a unit wait for its time, unless it is deleted or was delivered."""
        state = self._due.slot(slot_time_ms)
        double = unit.phy_offset in state.waiting
        self._take(slot_time_ms, state, unit, message)
        if double or unit.phy_offset not in state.waiting:
            self._due.left(unit)
        self._due.forget_finished(slot_time_ms)

    def read_and_take(self, slot_time_ms: int, unit: TimerUnit) -> None:
        """``take`` with the message of a unit; one that is unreadable has left."""
        message = self._put_back.read(unit)
        if message is not None:
            self.take(slot_time_ms, unit, message)
        else:
            self._due.left(unit)

    def _take(
        self, slot_time_ms: int, state: SlotState, unit: TimerUnit, message: MessageExt
    ) -> None:
        counters, properties = self._put_back.counters, message.properties
        out = out_ms(properties)
        if out is None or unit.phy_offset in state.waiting:
            return
        # A far timer whose own slot has come meanwhile is not sent round once more.
        far = bool(unit.magic & MAGIC_ROLL)
        roll = far and out >= self.frontier_ms
        if TIMER_DEL_UNIQKEY in properties and not roll:
            self._put_back.delete(properties, out)
            return
        # A request to delete has the unique key of what it deletes.
        identity = None if TIMER_DEL_UNIQKEY in properties else identity_of(properties, out)
        if identity is not None:
            if not roll and self._due.is_deleted(identity):
                counters["timerRecalled"] += 1
                return
            if identity in state.identities or self._due.has(identity) or self._went_in_bulk(
                identity, unit
            ) or self._was_done(identity, unit, properties, far=far, roll=roll):
                counters["timerDouble"] += 1
                return
            state.identities.add(identity)
        due = slot_time_ms if roll else due_ms(
            properties, out, message.store_timestamp, self._put_back.grain_ms)
        pending = Pending(
            due, slot_time_ms, unit, identity, roll,
            message if message.store_size <= _SMALL and len(self._due) < _MOST_WAITING else None)
        state.waiting[unit.phy_offset] = pending
        self._due.push(pending)

    def _went_in_bulk(self, identity: Identity, unit: TimerUnit) -> bool:
        """Whether the timer was, or another one of the same identity will be, put back in bulk."""
        for state in self._due.slots.values():
            other = state.before.other(identity, unit.phy_offset)
            if other == unit.phy_offset:
                return True
            data = self._store.record_at(other) if other != NOBODY else None
            if data is not None:
                properties = decode_message(data).properties
                out = out_ms(properties)
                if out is not None and identity_of(properties, out) == identity:
                    return True
        return False

    def _was_done(
        self, identity: Identity, unit: TimerUnit, properties: dict[str, str], *, far: bool,
        roll: bool,
    ) -> bool:
        """Whether the log shows that the timer was delivered, or sent round, already."""
        if far and self._put_back.was_rolled(identity, unit.phy_offset):
            return True
        return not roll and self._put_back.was_delivered(
            identity, sure=far or TIMER_ROLL_TIMES in properties)
