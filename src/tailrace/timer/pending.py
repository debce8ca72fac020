"""What an open store is still to deliver, message by message."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from tailrace.formats.consumequeue import CqUnit
from tailrace.formats.timerlog import MAGIC_DELETE, MAGIC_ROLL, TimerUnit
from tailrace.model import MessageExt
from tailrace.timer.properties import (
    REAL_QID,
    REAL_TOPIC,
    TIMER_ROLL_TIMES,
    UNIQ_KEY,
    Identity,
    due_ms,
    identity_of,
    out_ms,
)
from tailrace.timer.schedule_message_service import ScheduleMessageService
from tailrace.timer.timer_message_store import TimerMessageStore

__all__ = ["PendingTimer", "pending_levels", "pending_timers"]


class PendingTimer(NamedTuple):
    """A message that waits. ``level`` is its delay level, 0 for a timer."""

    due_ms: int
    topic: str
    queue_id: int
    uniq_key: str
    keys: str
    phy_offset: int
    rounds: int
    """How often a far timer was sent round so far."""
    level: int


def pending_timers(timers: TimerMessageStore) -> Iterator[PendingTimer]:
    """Pending timers by due time, without those that a request to delete names."""
    while timers.enqueue_step():  # what is not in the wheel yet
        pass
    deleted = timers.deleted()
    far: list[PendingTimer] = []
    for time_ms, units in timers.pending_slots():
        while far and far[0].due_ms <= time_ms:
            yield heapq.heappop(far)
        near = []
        for unit in units:
            found = _timer(timers, unit, deleted)
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
    timers: TimerMessageStore, unit: TimerUnit, deleted: set[Identity]
) -> PendingTimer | None:
    message = timers.put_back.read(unit) if not unit.magic & MAGIC_DELETE else None
    out = out_ms(message.properties) if message is not None else None
    if message is None or out is None:
        return None
    properties = message.properties
    if identity_of(properties, out) in deleted:
        return None
    due = due_ms(properties, out, message.store_timestamp, timers.put_back.grain_ms)
    return _pending(message, due, _number(properties.get(TIMER_ROLL_TIMES)), 0)


def pending_levels(schedule: ScheduleMessageService) -> Iterator[PendingTimer]:
    """Messages that wait in a delay level, by deliver time."""
    return heapq.merge(*(_level(schedule, level) for level in schedule.levels))


def _level(schedule: ScheduleMessageService, level: int) -> Iterator[PendingTimer]:
    for unit in schedule.pending_units(level):
        found = CqUnit(*unit.tolist())
        message = schedule.read(found)
        if message is not None:
            yield _pending(message, found.tags_code, 0, level)


def _pending(message: MessageExt, due: int, rounds: int, level: int) -> PendingTimer:
    properties = message.properties
    return PendingTimer(
        due, properties.get(REAL_TOPIC, ""), _number(properties.get(REAL_QID)),
        properties.get(UNIQ_KEY, ""), properties.get("KEYS", ""), message.phy_offset, rounds, level)


def _number(text: str | None) -> int:
    try:
        return int(text or 0)
    except ValueError:
        return 0
