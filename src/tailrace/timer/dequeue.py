"""Reads slots of the wheel when their time has come, and drops timers that are deleted or double."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

import numpy as np

from tailrace import events
from tailrace.env.clock import Clock
from tailrace.formats.commitlog import decode_message
from tailrace.formats.names import TIMER_DEL_UNIQKEY, TIMER_ROLL_TIMES
from tailrace.formats.timerlog import MAGIC_DELETE, MAGIC_ROLL, TimerUnit
from tailrace.formats.timerwheel import Slot
from tailrace.logs import get_logger
from tailrace.model import MessageExt
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.timer.arrays import Units
from tailrace.timer.bulk import MANY, BulkPutBack
from tailrace.timer.properties import (
    Identity,
    due_ms,
    identity_of,
    out_ms,
)
from tailrace.timer.put_back import PutBack
from tailrace.timer.put_before import NOBODY
from tailrace.timer.slots import DueQueue, DueTimer, Later, SlotState, UnitQueue
from tailrace.timer.state import TimerState
from tailrace.timer.timer_log import TimerLog
from tailrace.timer.timer_wheel import NO_SLOT, TimerWheel
from tailrace.timer.unread import NO_TRIES, Tries

__all__ = ["Dequeue"]

_log = get_logger(__name__)
_MOST_WAITING: Final = 20_000
"""Number of timers with a message in memory from which no further slot is begun."""
_MOST_BEGUN: Final = 500_000
"""Number of timers that are in memory as units only, from which no further slot is begun."""
_BATCH: Final = 1000
_BULK_BATCH: Final = 16_384
_SMALL: Final = 4096
"""A message up to this size, bytes, stays in memory until it is due."""
_MOST_FAILED: Final = 64
"""Failed reads after which a step reads no further message one by one, because descriptors or memory may be short."""
_MOST_UNREAD: Final = 100_000
"""Number of timers whose messages could not be read from which no further message is read one by one."""


@final
class Dequeue:
    """The steps dequeue_get and dequeue_get_message; the caller holds the lock of the timers."""

    def __init__(
        self, clock: Clock, store: DefaultMessageStore, wheel: TimerWheel, timer_log: TimerLog,
        due: DueQueue, put_back: PutBack, state: TimerState, on_step_back: Callable[[int], None],
    ) -> None:
        self.bulk_from = MANY
        """Number of due units of a slot from which they are put back in bulk."""
        self._state = state
        self._on_step_back = on_step_back
        """Called with the slot of the clock before slots that were read once are read again."""
        self._clock = clock
        self._store = store
        self._wheel = wheel
        self._timer_log = timer_log
        self._due = due
        self._put_back = put_back
        self._reads = put_back.reads
        self._stop_at = 0
        self._precision = state.precision_ms
        self._bulk = BulkPutBack(clock, store, due, put_back, state)

    def step(self) -> bool:
        """Begin slots, read their messages, deliver due timers. Return True if there is more to do."""
        now = self._clock.now_ms()
        self.watch_clock(now)
        behind = self._dequeue_get(now)
        more = self._dequeue_get_message()
        return self._put_back.step(now) or more or behind

    @property
    def commit_read_time_ms(self) -> int:
        """Slots before this time are delivered. The present slot is the one in which the last step read the clock."""
        state = self._state
        return min(state.frontier_ms, state.last_floor_ms, state.floor(self._clock.now_ms()), *self._due.slots)

    def has_begun(self, slot_time_ms: int) -> bool:
        """Return True if a slot was begun and has timers left."""
        return slot_time_ms in self._due.slots

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
            if len(self._due) >= _MOST_WAITING or self._due.backlog() >= _MOST_BEGUN:
                return True
            slot = self._wheel.get_slot(time_ms)
            if slot is not NO_SLOT and slot.last_pos >= 0:
                self._begin(time_ms, slot)
            self._state.frontier_ms = time_ms + self._precision
        self._state.frontier_ms = floor + self._precision
        return False

    def _begin(self, time_ms: int, slot: Slot) -> None:
        """Load the units of a slot's list. If it cannot be read, the slot keeps the position of the list."""
        self._due.slot(time_ms).list_pos = slot.last_pos
        self._load(time_ms)

    def _load(self, time_ms: int) -> None:
        """Load the units of a slot's list, oldest first. Requests to delete are handled before all others."""
        state = self._due.slot(time_ms)
        try:
            units = self.walk(time_ms, state.list_pos)[::-1]
        except OSError as error:
            if not state.list_tries.failed:
                events.LIST_OF_A_TIMER_SLOT_CANNOT_BE_READ.log(
                    _log, time_ms=time_ms, pos=state.list_pos, cause=error)
            state.list_tries = self._reads.counted(state.list_tries, error)
            return
        state.list_pos, state.list_tries = -1, NO_TRIES
        here = [*state.waiting, *(unit.phy_offset for group in state.unread for unit in group.units)]
        if here:
            units = units[~np.isin(units["phy_offset"], here)]
        deletes = (units["magic"] & MAGIC_DELETE != 0) & (units["magic"] & MAGIC_ROLL == 0)
        # A request may end the timer that waits in this slot, and a slot that has nothing left is dropped. So the
        # units come into the slot before requests are handled.
        state.units, state.later = UnitQueue(units[~deletes]), Later()
        for row in units[deletes].tolist():
            self.read_and_take(time_ms, TimerUnit(*row))
        self._due.forget_finished(time_ms)

    def walk(self, time_ms: int, pos: int) -> Units:
        """Return the units of a slot, newest first. A broken list ends at the break, which is logged."""
        units, pos = self._timer_log.walk(time_ms, self._precision, pos)
        if pos >= 0:
            self._put_back.counters["timerBrokenList"] += 1
            events.LIST_OF_A_TIMER_SLOT_IS_BROKEN.log(_log, time_ms=time_ms, pos=pos, units=len(units))
        return units

    # -- dequeue_get_message

    def _dequeue_get_message(self) -> bool:
        """Process some of the begun units. Return True if there are more."""
        left, bulk_left = _BATCH, _BULK_BATCH
        self._stop_at = self._reads.failed + _MOST_FAILED
        for time_ms in sorted(self._due.slots):
            state = self._due.slots.get(time_ms)
            if state is None:  # a request to delete may have finished another slot
                continue
            if state.list_pos >= 0 and self._reads.may_try(state.list_tries):
                self._load(time_ms)
            left -= self._read_again(time_ms, state, left)
            if state.list_pos >= 0:
                continue
            if state.later.next_due_ms <= self._clock.now_ms():
                bulk_left -= self._bulk.put_later(state)
            not_plain = 0
            while state.units and min(left, bulk_left) > 0 and (
                len(self._due) < 2 * _MOST_WAITING and self._due.unread < _MOST_UNREAD
                and self._reads.failed < self._stop_at
            ):
                if not not_plain and len(state.units) >= self.bulk_from and self._bulk.possible and (
                    not self._put_back.is_due(self._clock.now_ms())
                ):
                    done, not_plain = self._bulk.look(state)
                    bulk_left -= done
                    continue
                not_plain = max(not_plain - 1, 0)
                left -= 1
                self.read_and_take(time_ms, state.units.first())
                state.units.drop(1)
            self._due.forget_finished(time_ms)
            if min(left, bulk_left) <= 0:
                return True
        return False

    def take(self, slot_time_ms: int, unit: TimerUnit, message: MessageExt, *, look: bool = True) -> None:
        """Keep the message of a unit until it is due, unless it is deleted or was delivered.

        Without ``look`` the log is not searched for its delivery. Raises OSError; then nothing has changed.
        """
        state = self._due.slot(slot_time_ms)
        double = unit.phy_offset in state.waiting
        self._take(slot_time_ms, state, unit, message, look)
        if double or unit.phy_offset not in state.waiting:
            self._due.left(unit)
        self._due.forget_finished(slot_time_ms)

    def read_and_take(self, slot_time_ms: int, unit: TimerUnit, tries: Tries = NO_TRIES) -> None:
        """Read the message of a unit and call ``take``. A unit without a readable message leaves its slot.

        If a read fails, the unit stays in its slot and is tried again, unless the tries are over.
        """
        try:
            self._read_and_take(slot_time_ms, unit)
        except OSError as error:
            tries = self._reads.after(tries, error, unit.phy_offset, unit.msg_size)
            if not self._reads.are_over(tries) or not self._settle(slot_time_ms, unit, error):
                self._due.put_off(slot_time_ms, unit, tries)

    def _read_and_take(self, slot_time_ms: int, unit: TimerUnit, *, look: bool = True) -> None:
        message = self._put_back.read(unit)
        if message is not None:
            self.take(slot_time_ms, unit, message, look=look)
        else:
            self._due.left(unit)

    def _settle(self, slot_time_ms: int, unit: TimerUnit, error: OSError) -> bool:
        """End the tries of a unit. Return False if it must be tried further.

        If the message can be read, it was the index that could not. Then it counts as a message without an index.
        """
        try:
            self._read_and_take(slot_time_ms, unit, look=False)
        except OSError:
            if not self._put_back.leave_out(unit.phy_offset, unit.msg_size, error):
                return False
            self._due.left(unit)
        return True

    def _read_again(self, time_ms: int, state: SlotState, most: int) -> int:
        """Read messages again whose time to do so has come. Return how many units were tried."""
        done = 0
        for group in [group for group in state.unread if self._reads.may_try(group.tries)]:
            while group.units and done < most and self._reads.failed < self._stop_at:
                done += 1
                self.read_and_take(time_ms, group.units[0], group.tries)
                self._due.tried(group)
            if not group.units:
                state.unread.remove(group)
        return done

    def _take(
        self, slot_time_ms: int, state: SlotState, unit: TimerUnit, message: MessageExt, look: bool
    ) -> None:
        counters, properties = self._put_back.counters, message.properties
        out = out_ms(properties)
        if out is None or unit.phy_offset in state.waiting:
            return
        # A far timer whose own slot has come by now is not rolled again.
        far = bool(unit.magic & MAGIC_ROLL)
        roll = far and out >= self._state.frontier_ms
        if TIMER_DEL_UNIQKEY in properties and not roll:
            self._put_back.delete(properties, out)
            return
        # A request to delete has the unique key of what it deletes.
        identity = None if TIMER_DEL_UNIQKEY in properties else identity_of(properties, out)
        if identity is not None:
            if not roll and self._due.is_deleted(identity):
                counters["timerRecalled"] += 1
                return
            if identity in state.identities or self._due.has(identity) or (look and (
                self._went_in_bulk(identity, unit)
                or self._was_done(identity, unit, properties, far=far, roll=roll)
            )):
                counters["timerDouble"] += 1
                return
            state.identities.add(identity)
        due = slot_time_ms if roll else due_ms(
            properties, out, message.store_timestamp, self._state.grain_ms)
        pending = DueTimer(
            due, slot_time_ms, unit, identity, roll,
            message if message.store_size <= _SMALL and len(self._due) < _MOST_WAITING else None)
        state.waiting[unit.phy_offset] = pending
        self._due.push(pending)

    def _went_in_bulk(self, identity: Identity, unit: TimerUnit) -> bool:
        """Return True if the timer was delivered in bulk, or if one with the same identity will be."""
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
        """Return True if the log shows that the timer was delivered or rolled already."""
        if far and self._put_back.was_rolled(identity, unit.phy_offset):
            return True
        return not roll and self._put_back.was_delivered(
            identity, sure=far or TIMER_ROLL_TIMES in properties)
