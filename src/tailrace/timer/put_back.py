"""Back into the log: due timers under their own topic, far ones on the timer topic again.

A timer leaves its slot only when its record is in the log. A put that may succeed later is tried
again for ever; one that never can is parked in ``%DLQ%TAILRACE_TIMER`` with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

from tailrace.env.clock import Clock
from tailrace.errors import CorruptionError
from tailrace.formats.timerlog import TimerUnit
from tailrace.logs import get_logger
from tailrace.model import MessageExt, MessageExtBrokerInner
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.timer.lateness import Lateness
from tailrace.timer.parking import NEVER, Parking, inner_message
from tailrace.timer.properties import (
    PARKED_TOPIC,
    REAL_QID,
    REAL_TOPIC,
    TIMER_DEL_UNIQKEY,
    TIMER_OUT_MS,
    TIMER_TOPIC,
    Identity,
    due_ms,
    named_by,
    put_back_properties,
)
from tailrace.timer.slots import DueQueue, Pending

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
    """dequeue_put; the caller holds the timers' lock."""

    def __init__(
        self, clock: Clock, store: DefaultMessageStore, due: DueQueue
    ) -> None:
        self.suspicious_until_ms = 0
        self.grain_ms = 1000
        """What slot times of messages are rounded down by, at most."""
        self.counters = dict.fromkeys(_COUNTERS, 0)
        self.lateness = Lateness()
        self.parking = Parking(store)
        self._clock = clock
        self._store = store
        self._due = due

    # -- the log

    def read(self, unit: TimerUnit) -> MessageExt | None:
        """The message of a unit; None, counted, when it is gone or no record."""
        try:
            message = self._store.message(unit.phy_offset, unit.msg_size)
            if message.phy_offset != unit.phy_offset or message.topic != TIMER_TOPIC:
                raise CorruptionError("another record is there", phy_offset=unit.phy_offset)
        except CorruptionError as error:
            self.counters["timerUnreadable"] += 1
            _log.error("timer message unreadable phy_offset=%d size=%d cause=%s",
                       unit.phy_offset, unit.msg_size, error)
            return None
        return message

    def was_rolled(self, identity: Identity, phy_offset: int) -> bool:
        """Whether the timer topic has a later copy of a far timer."""
        return any(m.phy_offset > phy_offset for m in self._records(TIMER_TOPIC, identity))

    def was_delivered(self, identity: Identity, *, sure: bool) -> bool:
        """Whether the log has the put-back record of a timer.

        Asked of timers from before the open or a step of the clock, and of far ones (``sure``).
        Without an index nobody can tell: they are delivered, perhaps twice.
        """
        if identity.out_ms >= self.suspicious_until_ms and not sure:
            return False
        return bool(self._records(identity.real_topic, identity)) or bool(
            self._records(PARKED_TOPIC, identity))

    def _records(self, topic: str, identity: Identity) -> list[MessageExt]:
        found = self._store.reader.query(topic, identity.unique_key, 64, 0, (1 << 63) - 1, "U")
        out = str(identity.out_ms)
        return [
            m for m, _ in found
            if m.properties.get(TIMER_OUT_MS) == out and TIMER_DEL_UNIQKEY not in m.properties
        ]

    # -- putting

    def is_due(self, now: int) -> bool:
        """Whether a timer that waits is to be put back before any later one."""
        due = self._due.next_due_ms()
        return due is not None and due <= now

    def step(self, now: int) -> bool:
        """Put back what is due by ``now``; True when there is more."""
        put = 0
        while put < _BATCH:
            pending = self._due.pop_due(now)
            if pending is None:
                break
            put += 1
            self._put(pending)
        if put:
            self._store.wake_flush()
        return put == _BATCH

    def _put(self, pending: Pending) -> None:
        unit = pending.unit
        message = pending.message or self.read(unit)
        if message is None:
            self._due.done(pending, delivered=True)
            return
        if pending.roll and self._own_slot_has_come(pending, message):
            return
        roll = pending.roll
        result = self._store.put(self._convert(message, unit, roll=roll))
        status = result.status
        if status.appended:
            self.counters["timerRolled" if roll else "timerPutBack"] += 1
            if not roll:
                self.lateness.add(result.store_timestamp - pending.due_ms)
            self._due.done(pending, delivered=True)
            return
        if status in NEVER and self.park(message, f"{status.name}: {result.remark}"):
            self._due.done(pending, delivered=True)
            return
        self.counters["timerPutFailed"] += 1
        _log.warning("timer put-back failed, it is tried again phy_offset=%d status=%s cause=%s",
                     unit.phy_offset, status.name, result.remark)
        pending.not_before_ms = self._clock.now_ms() + _RETRY_MS
        self._due.push(pending)

    def delete(self, properties: Mapping[str, str], out: int) -> None:
        """Note what a request deletes, and take those of its timers away that wait already."""
        for identity in named_by(properties, out):
            named = self._due.delete(identity)
            if named is not None:
                self.counters["timerRecalled"] += 1
                self._due.done(named, delivered=True)

    def _own_slot_has_come(self, pending: Pending, message: MessageExt) -> bool:
        """A far timer that is late for its own slot, after a jump of the clock, goes no more round.

        True when that was all: it waits as an ordinary one now, or was a request to delete.
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
            due = due_ms(properties, out, message.store_timestamp, self.grain_ms)
            again = Pending(
                due, pending.slot_time_ms, pending.unit, pending.identity, False, pending.message)
            self._due.slot(pending.slot_time_ms).waiting[pending.unit.phy_offset] = again
            self._due.push(again)
        return True

    def _convert(
        self, message: MessageExt, unit: TimerUnit, *, roll: bool
    ) -> MessageExtBrokerInner:
        """The record that leaves the wheel (convertMessage): REAL_TOPIC and TIMER_OUT_MS stay on it."""
        properties = message.properties
        topic, queue_id, roll_due = message.topic, message.queue_id, None
        if roll:
            roll_due = due_ms(
                properties, int(properties[TIMER_OUT_MS]), message.store_timestamp, self.grain_ms)
        else:
            topic = properties[REAL_TOPIC]
            queue_id = _number(properties.get(REAL_QID, "0"))
        made = put_back_properties(properties, unit.write_time_ms, self._clock.now_ms(), roll_due)
        return inner_message(message, topic, queue_id, made)

    def park(self, message: MessageExt, reason: str) -> bool:
        """Keep a timer that cannot be delivered where someone can see it; whether it is there.

        A request to delete is nothing to keep.
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
