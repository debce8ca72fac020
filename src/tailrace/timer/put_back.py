"""Puts timers back into the log: due timers under their own topic, far timers on the timer topic again (rolled).

A timer leaves its slot only when its record is in the log. A put that may succeed later is retried without
end; a message that can never be put, or whose topic was deleted, is parked in ``%DLQ%TAILRACE_TIMER`` with the reason.
A timer that cannot be read is tried again by the rules of ``unread``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, final

from tailrace import events
from tailrace.env.clock import Clock
from tailrace.errors import CorruptionError
from tailrace.formats.names import (
    REAL_QID,
    REAL_TOPIC,
    TIMER_DEL_UNIQKEY,
    TIMER_OUT_MS,
    TIMER_TOPIC,
)
from tailrace.formats.timerlog import TimerUnit
from tailrace.logs import get_logger
from tailrace.model import MessageExt, MessageExtBrokerInner
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.timer.lateness import Lateness
from tailrace.timer.parking import NEVER, Parking, inner_message
from tailrace.timer.properties import (
    PARKED_TOPIC,
    Identity,
    due_ms,
    named_by,
    put_back_properties,
)
from tailrace.timer.slots import DueQueue, DueTimer
from tailrace.timer.state import TimerState
from tailrace.timer.targets import ANY_TARGET, Targets, why_gone
from tailrace.timer.unread import FailedReads

__all__ = ["PutBack"]

_log = get_logger(__name__)
_BATCH: Final = 500
_RETRY_MS: Final = 500
_COUNTERS: Final = (
    "timerPutBack", "timerRolled", "timerRecalled", "timerDouble", "timerParked", "timerPutFailed",
    "timerUnreadable", "timerBrokenList", "timerAppendFailed",
)


@final
class PutBack:
    """The step dequeue_put; the caller holds the lock of the timers."""

    def __init__(
        self, clock: Clock, store: DefaultMessageStore, due: DueQueue, state: TimerState,
        ensure_topic: Callable[[str], object], targets: Targets = ANY_TARGET,
    ) -> None:
        self.counters = dict.fromkeys(_COUNTERS, 0)
        self.lateness = Lateness()
        self.targets = targets
        self.parking = Parking(store, ensure_topic)
        self.reads = FailedReads(clock, store)
        self._clock = clock
        self._store = store
        self._due = due
        self._state = state

    # -- the log

    def read(self, unit: TimerUnit) -> MessageExt | None:
        """Return the message of a unit. If it is deleted or damaged, count that and return None. Raises OSError."""
        try:
            message = self._store.message(unit.phy_offset, unit.msg_size)
            if message.phy_offset != unit.phy_offset or message.topic != TIMER_TOPIC:
                raise CorruptionError("another record is there", phy_offset=unit.phy_offset)
        except CorruptionError as error:
            self.counters["timerUnreadable"] += 1
            events.TIMER_MESSAGE_UNREADABLE.log(_log, phy_offset=unit.phy_offset, size=unit.msg_size, cause=error)
            return None
        return message

    def read_failed(self, error: OSError) -> None:
        """Count a read of many messages that has failed; these are read one by one next."""
        self.reads.failed += 1

    def leave_out(self, phy_offset: int, size: int, error: OSError) -> bool:
        """Leave out a message that cannot be read. Return False if it must be tried further."""
        if not self.reads.leave_out(phy_offset, size, error):
            return False
        self.counters["timerUnreadable"] += 1
        return True

    def was_rolled(self, identity: Identity, phy_offset: int) -> bool:
        """Return True if the timer topic has a later copy of a far timer."""
        return any(m.phy_offset > phy_offset for m in self._records(TIMER_TOPIC, identity))

    def was_delivered(self, identity: Identity, *, sure: bool) -> bool:
        """Return True if the log has the delivered record of a timer.

        The log is searched for timers from before the open or before a step of the clock, and for far
        timers (``sure``). Without an index the record is not found, so a timer may be delivered twice.
        """
        if identity.out_ms >= self._state.suspicious_until_ms and not sure:
            return False
        return bool(self._records(identity.real_topic, identity)) or bool(
            self._records(PARKED_TOPIC, identity))

    def _records(self, topic: str, identity: Identity) -> list[MessageExt]:
        out = str(identity.out_ms)
        return [
            m for m in self._store.reader.copies(topic, identity.unique_key)
            if m.properties.get(TIMER_OUT_MS) == out and TIMER_DEL_UNIQKEY not in m.properties
        ]

    # -- putting

    def is_due(self, now: int) -> bool:
        """Return True if a timer that waits one by one is due."""
        due = self._due.next_due_ms()
        return due is not None and due <= now

    def step(self, now: int) -> bool:
        """Put back timers that are due by ``now``. Return True if there are more."""
        put = 0
        while put < _BATCH:
            pending = self._due.first_due(now)
            if pending is None:
                break
            put += 1
            self._put(pending)
        if put:
            self._store.wake_flush()
        return put == _BATCH

    def _put(self, pending: DueTimer) -> None:
        """Deliver the first due timer, roll it, park it, or let it wait. It stays in its slot until that is done."""
        unit, roll = pending.unit, pending.roll
        if not roll and self._due.must_wait(unit):
            self._due.retry(pending, self._clock.now_ms() + _RETRY_MS)
            return
        try:
            message = pending.message or self.read(unit)
            why = why_gone(
                self.targets, message.properties[REAL_TOPIC], unit.phy_offset) if message is not None else ""
            is_parked = bool(why and pending.identity and self._records(PARKED_TOPIC, pending.identity))
        except OSError as error:
            self._put_off(pending, error)
            return
        if message is None or is_parked:
            self._due.done(pending, delivered=True)
            return
        if roll and self._own_slot_has_come(pending, message):
            return
        if why:
            status, cause = "", why
        else:
            result = self._store.put(self._convert(message, unit, roll=roll))
            if result.status.appended:
                self.counters["timerRolled" if roll else "timerPutBack"] += 1
                if not roll:
                    self.lateness.add(result.store_timestamp - pending.due_ms)
                self._due.done(pending, delivered=True)
                return
            status, cause = result.status.name, result.remark
            why = f"{status}: {cause}" if result.status in NEVER else ""
        if why and self.park(message, why):
            self._due.done(pending, delivered=True)
            return
        self.counters["timerPutFailed"] += 1
        events.TIMER_PUT_BACK_FAILED.log(_log, phy_offset=unit.phy_offset, status=status, cause=cause)
        self._due.retry(pending, self._clock.now_ms() + _RETRY_MS)

    def _put_off(self, pending: DueTimer, error: OSError) -> None:
        """Read the message of a due timer again later, or leave it out if the tries are over."""
        unit = pending.unit
        pending.tries = self.reads.after(pending.tries, error, unit.phy_offset, unit.msg_size)
        if self.reads.are_over(pending.tries) and self.leave_out(unit.phy_offset, unit.msg_size, error):
            self._due.done(pending, delivered=True)
        else:
            self._due.retry(pending, self._clock.now_ms() + self.reads.wait_ms(pending.tries))

    def delete(self, properties: Mapping[str, str], out: int) -> None:
        """Note the timers that a request deletes, and drop those that wait already."""
        for identity in named_by(properties, out):
            named = self._due.delete(identity)
            if named is not None:
                self.counters["timerRecalled"] += 1
                self._due.done(named, delivered=True)

    def _own_slot_has_come(self, pending: DueTimer, message: MessageExt) -> bool:
        """Stop rolling a far timer whose own slot has come, because the clock jumped ahead.

        Return True if it is handled: it waits as an ordinary timer now, or it was deleted, a double or a
        request to delete. Return False if it must be rolled.
        """
        properties, now = message.properties, self._clock.now_ms()
        out = int(properties[TIMER_OUT_MS])
        if out > now:
            return False
        self._due.done(pending, delivered=True, left=False)
        if TIMER_DEL_UNIQKEY in properties:
            self._due.left(pending.unit)
            self.delete(properties, out)
        elif pending.identity is not None and self._due.is_deleted(pending.identity):
            self._due.left(pending.unit)
            self.counters["timerRecalled"] += 1
        elif pending.identity is not None and self._due.has(pending.identity):
            self._due.left(pending.unit)
            self.counters["timerDouble"] += 1
        else:
            due = due_ms(properties, out, message.store_timestamp, self._state.grain_ms)
            again = DueTimer(
                due, pending.slot_time_ms, pending.unit, pending.identity, False, pending.message)
            self._due.slot(pending.slot_time_ms).waiting[pending.unit.phy_offset] = again
            self._due.push(again)
        return True

    def _convert(
        self, message: MessageExt, unit: TimerUnit, *, roll: bool
    ) -> MessageExtBrokerInner:
        """Return the record to put (convertMessage). It keeps the properties REAL_TOPIC and TIMER_OUT_MS."""
        properties = message.properties
        topic, queue_id, roll_due = message.topic, message.queue_id, None
        if roll:
            roll_due = due_ms(
                properties, int(properties[TIMER_OUT_MS]), message.store_timestamp, self._state.grain_ms)
        else:
            topic = properties[REAL_TOPIC]
            queue_id = self._queue_of(topic, _number(properties.get(REAL_QID, "0")))
        made = put_back_properties(properties, unit.write_time_ms, self._clock.now_ms(), roll_due)
        return inner_message(message, topic, queue_id, made)

    def _queue_of(self, topic: str, queue_id: int) -> int:
        """Return the queue to which a message of a queue is delivered. If it is another one, that is logged."""
        to = self.targets.queue_id(topic, queue_id)
        if to != queue_id:
            self.parking.step.moved(topic, queue_id, to, 1)
        return to

    def park(self, message: MessageExt, reason: str) -> bool:
        """Park a timer that cannot be delivered. Return True if it is stored there.

        A request to delete is dropped.
        """
        if TIMER_DEL_UNIQKEY in message.properties:
            return True
        kept = self.parking.park(message, reason)
        self.counters["timerParked"] += kept
        return kept


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return 0
