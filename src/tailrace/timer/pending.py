"""Messages that an open store still has to deliver, and those that it has parked."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from tailrace.formats.consumequeue import CqUnit
from tailrace.formats.timerlog import MAGIC_DELETE, MAGIC_ROLL, TimerUnit
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.timer.pending_timer import PendingTimer, parked_timer, pending_timer, unreadable_timer
from tailrace.timer.properties import (
    PARKED_TOPIC,
    Identity,
    due_ms,
    identity_of,
    out_ms,
)
from tailrace.timer.schedule_message_service import ScheduleMessageService
from tailrace.timer.timer_message_store import TimerMessageStore

__all__ = ["parked_timers", "pending_levels", "pending_timers"]


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
        message = timers.put_back.read(unit.phy_offset, unit.msg_size)
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
