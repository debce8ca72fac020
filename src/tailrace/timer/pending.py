"""Messages that wait for their time or were parked, as an open store, a directory and ``tailrace timers`` show them."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from tailrace.formats.consumequeue import CqUnit
from tailrace.formats.names import (
    DELAY,
    REAL_QID,
    REAL_TOPIC,
    TIMER_OUT_MS,
    TIMER_ROLL_TIMES,
    UNIQ_KEY,
)
from tailrace.formats.timerlog import MAGIC_DELETE, MAGIC_ROLL, TimerUnit
from tailrace.model import MessageExt
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.timer.properties import (
    PARKED_TOPIC,
    TIMER_PARKED_REASON,
    Identity,
    due_ms,
    identity_of,
    out_ms,
    whole_number,
)
from tailrace.timer.schedule_message_service import ScheduleMessageService
from tailrace.timer.timer_message_store import TimerMessageStore

__all__ = [
    "OVERDUE", "PARKED", "PENDING", "UNREADABLE", "PendingTimer", "parked_timer", "parked_timers", "pending_levels",
    "pending_timer", "pending_timers", "unreadable_timer",
]

PENDING: Final = "pending"
OVERDUE: Final = "overdue"
"""A pending timer whose time has passed: a server delivers it after its start, or within a second."""
PARKED: Final = "parked"
UNREADABLE: Final = "unreadable"


class PendingTimer(NamedTuple):
    """A timer, or a message of a delay level, that is not delivered yet, or that was parked."""

    due_ms: int
    topic: str
    queue_id: int
    uniq_key: str
    keys: str
    phy_offset: int
    rounds: int
    """Number of times that a far timer was put on the timer topic again."""
    level: int
    """Its delay level, 0 for a timer."""
    timer_log_pos: int = -1
    """Position of its unit in the timer log; -1 if it has none, or if the log was not searched."""
    state: str = PENDING
    """``pending``; ``parked`` if it is in ``%DLQ%TAILRACE_TIMER`` and is not delivered; ``unreadable`` if its record
    cannot be read at the moment, so that only position, level and about the due time are known."""
    reason: str = ""
    """Why it was parked, or cannot be read."""

    def is_overdue(self, now_ms: int) -> bool:
        """Return whether it is pending although its time has passed."""
        return self.state == PENDING and self.due_ms <= now_ms

    def line(self, now_ms: int) -> dict[str, Any]:
        """Return the line of ``tailrace timers --json``, where a pending timer can be ``overdue``."""
        return {"timer": {
            "dueMs": self.due_ms, "topic": self.topic, "queueId": self.queue_id,
            "uniqKey": self.uniq_key, "keys": self.keys, "physicalOffset": self.phy_offset,
            "timerLogPos": self.timer_log_pos, "roll": self.rounds,
            "state": OVERDUE if self.is_overdue(now_ms) else self.state,
            **({"reason": self.reason} if self.reason else {}),
        }}


def pending_timer(
    message: MessageExt, due_ms: int, *, level: int = 0, timer_log_pos: int = -1
) -> PendingTimer:
    """Return the pending timer of a message on the timer topic, or in a delay level."""
    properties = message.properties
    return PendingTimer(
        due_ms, properties.get(REAL_TOPIC, ""), whole_number(properties.get(REAL_QID)) or 0,
        properties.get(UNIQ_KEY, ""), properties.get("KEYS", ""), message.phy_offset,
        0 if level else whole_number(properties.get(TIMER_ROLL_TIMES)) or 0, level, timer_log_pos)


def unreadable_timer(phy_offset: int, due_ms: int, error: OSError, *, level: int = 0) -> PendingTimer:
    """Return the form of a message that cannot be read."""
    return PendingTimer(due_ms, "", 0, "", "", phy_offset, 0, level, state=UNREADABLE, reason=str(error))


def parked_timer(message: MessageExt, grain_ms: int) -> PendingTimer:
    """Return the form of a message in the topic of parked messages.

    Its due time is that of a timer, or else the time at which it was parked.
    """
    properties = message.properties
    try:
        due = due_ms(properties, int(properties[TIMER_OUT_MS]), message.store_timestamp, grain_ms)
    except (KeyError, ValueError):
        due = message.store_timestamp
    level = 0 if TIMER_OUT_MS in properties else whole_number(properties.get(DELAY)) or 0
    return pending_timer(message, due, level=level)._replace(
        state=PARKED, reason=properties.get(TIMER_PARKED_REASON, ""))


def pending_timers(timers: TimerMessageStore) -> Iterator[PendingTimer]:
    """Yield pending timers by due time, without those that a request to delete names.

    The slot of the present second still has the timers that were delivered in it before an open. They are left out.
    """
    while timers.enqueue_step():  # what is not in the wheel yet
        pass
    deleted = timers.deleted()
    far: list[PendingTimer] = []
    for time_ms, units in timers.pending_slots():
        while far and far[0].due_ms <= time_ms:
            yield heapq.heappop(far)
        near = []
        for unit in map(TimerUnit._make, units.tolist()):
            found = _timer(timers, time_ms, unit, deleted)
            if found is None:
                continue
            if unit.magic & MAGIC_ROLL:
                heapq.heappush(far, found)
            else:
                near.append(found)
        yield from heapq.merge(sorted(near), _before(far, time_ms + timers.precision_ms))
    yield from sorted(far)


def _before(far: list[PendingTimer], until_ms: int) -> list[PendingTimer]:
    found = []
    while far and far[0].due_ms <= until_ms:
        found.append(heapq.heappop(far))
    return found


def _timer(
    timers: TimerMessageStore, time_ms: int, unit: TimerUnit, deleted: set[Identity]
) -> PendingTimer | None:
    if unit.magic & MAGIC_DELETE:
        return None
    try:
        message = timers.put_back.reads.message(unit.phy_offset, unit.msg_size)
        out = out_ms(message.properties) if message is not None else None
        if message is None or out is None:
            return None
        properties = message.properties
        identity = identity_of(properties, out)
        if identity is not None and (
            identity in deleted or timers.put_back.was_delivered(identity, sure=False)
        ):
            return None
    except OSError as error:
        return unreadable_timer(unit.phy_offset, time_ms + timers.precision_ms, error)
    due = due_ms(properties, out, message.store_timestamp, timers.state.grain_ms)
    return pending_timer(message, due)


def pending_levels(schedule: ScheduleMessageService) -> Iterator[PendingTimer]:
    """Yield the messages that wait in a delay level, by deliver time."""
    return heapq.merge(*(_level(schedule, level) for level in schedule.levels))


def _level(schedule: ScheduleMessageService, level: int) -> Iterator[PendingTimer]:
    for unit in schedule.pending_units(level):
        found = CqUnit(*unit.tolist())
        try:
            message = schedule.read(found)
        except OSError as error:
            yield unreadable_timer(found.phy_offset, found.tags_code, error, level=level)
            continue
        if message is not None:
            yield pending_timer(message, found.tags_code, level=level)


def parked_timers(store: DefaultMessageStore, grain_ms: int) -> list[PendingTimer]:
    """Return the messages in the topic of parked messages, by due time. Raises OSError."""
    queue = store.queues.get(PARKED_TOPIC, 0)
    found = []
    for offset in range(queue.min_offset, queue.max_offset) if queue is not None else ():
        unit = queue.unit(offset) if queue is not None else None
        message = store.reader.visible_at(unit.phy_offset) if unit is not None else None
        if message is not None and message.topic == PARKED_TOPIC:
            found.append(parked_timer(message, grain_ms))
    return sorted(found)
