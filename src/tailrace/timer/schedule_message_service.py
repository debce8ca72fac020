"""Delay levels (RocketMQ's ScheduleMessageService): messages of ``SCHEDULE_TOPIC_XXXX`` go to their real topics.

Queue n of the topic holds level n + 1. Its units have the deliver time as their tags code, so a queue is in the
order of deliver times, and one offset per level is enough to record its progress.

Invariants:
  DL1  A level is delivered in order. Messages before its offset were put back, parked or handed over, or cannot
       be read; messages after it were not. A level that is held up does not hold up another level.
  DL2  No message is put back before its deliver time by the store's clock. If the clock was set back, or the
       levels have changed, no message waits longer than the delay of its level plus 1/64 of it, counted from
       the time at which this is noticed.
  DL3  The offsets on disk never claim more than was durable before they were written.
After an open, messages from the offset onwards may have been put back already. By DL1 these are the first ones
of their level: the index is searched for each until one is not found. With ``messageIndexEnable=false``, and for
messages without a unique key, this is not possible: after a kill, messages that were delivered since the offsets
were last written may be delivered again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol, final

import numpy as np

from tailrace import events
from tailrace.env.clock import Clock
from tailrace.errors import CorruptionError
from tailrace.formats.consumequeue import CQ_UNIT, PRE_BLANK_SIZE, CqUnit
from tailrace.logs import get_logger
from tailrace.model import MessageExt
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.store.dispatch import SCHEDULE_TOPIC
from tailrace.store.queue_search import first_at, message_from
from tailrace.timer.lateness import Lateness
from tailrace.timer.parking import NEVER, Parking, inner_message
from tailrace.timer.properties import (
    DELAY,
    PARKED_TOPIC,
    REAL_QID,
    REAL_TOPIC,
    TIMER_OUT_MS,
    TIMER_TOPIC,
    slot_ms,
)

__all__ = ["NO_REAL_TOPICS", "DelayOffsets", "ScheduleMessageService"]

_log = get_logger(__name__)
_BATCH: Final = 200
_RETRY_MS: Final = 100
_MOST_WAIT_MS: Final = 100
"""New messages are looked for that often; the least delay of a level is usually a second."""
_MARKS: Final = 64
NO_REAL_TOPICS: Final = frozenset({"", "RMQ_SYS_TRANS_HALF_TOPIC", SCHEDULE_TOPIC})
"""Topics to which no message is delivered: such messages are parked."""
_COUNTERS: Final = (
    "schedulePutBack", "scheduleHandedOver", "scheduleDouble", "scheduleParked", "schedulePutFailed",
    "scheduleUnreadable")


class DelayOffsets(Protocol):
    """``delayOffset.json``: the next offset of each level."""

    def query(self, level: int) -> int:
        """Return the next offset of a level, or -1 if it is unknown."""
        ...

    def update(self, level: int, offset: int) -> None:
        """Set the next offset of a level."""
        ...


class _Identity(NamedTuple):
    """Two records with the same identity are the same message; one that was handed over has no level."""

    real_topic: str | None
    real_queue_id: str | None
    level: str | None
    reconsume_times: int
    unique_key: str | None


class _Mark(NamedTuple):
    """Messages below ``until`` have deliver times by another clock or other levels."""

    until: int
    due_ms: int
    """Time until which they wait at most."""


@final
class _Level:
    """State of a level while the store is open."""

    __slots__ = (
        "asking", "delay_ms", "marks", "next_offset", "number", "seen", "wait_until_ms",
    )

    def __init__(self, number: int, delay_ms: int) -> None:
        self.number = number
        self.delay_ms = delay_ms
        self.asking = True
        """True while the next message may have been put back before the open."""
        self.next_offset = -1
        self.wait_until_ms = 0
        """Time until which the message at ``next_offset`` must wait."""
        self.seen = -1
        """End of the queue when its last deliver time was checked."""
        self.marks: deque[_Mark] = deque()

    @property
    def queue_id(self) -> int:
        return self.number - 1


@final
class ScheduleMessageService:
    """Delivers the levels of one store. Every step takes the lock of the service."""

    def __init__(
        self, clock: Clock, store: DefaultMessageStore, levels: list[int], offsets: DelayOffsets,
        ensure_topic: Callable[[str], object] = lambda _: None,
    ) -> None:
        self.parking = Parking(store, ensure_topic)
        self.counters = dict.fromkeys(_COUNTERS, 0)
        self.lateness = Lateness()
        self._clock = clock
        self._store = store
        self._offsets = offsets
        self._levels = [_Level(number, delay) for number, delay in enumerate(levels, 1)]
        self._lock = threading.Lock()

    def load(self) -> None:
        """Bring the offsets within their queues (correctDelayOffset)."""
        with self._lock:
            for level in self._levels:
                queue = self._store.queues.get(SCHEDULE_TOPIC, level.queue_id)
                if queue is not None:
                    self._within(level, queue)
                elif self._offsets.query(level.number) > 0:
                    events.DELAY_OFFSET_WITHOUT_A_QUEUE.log(
                        _log, level=level.number, offset=self._offsets.query(level.number), to="0")
                    self._offsets.update(level.number, 0)

    def _within(self, level: _Level, queue: ConsumeQueue) -> int:
        """Return the offset of a level, corrected if its queue does not have it."""
        known = self._offsets.query(level.number)
        low, high = queue.min_offset, queue.max_offset
        offset = min(max(known, low), high)
        if offset == known or (known < 0 and not low):
            return offset
        events.DELAY_OFFSET_CORRECTED.log(
            _log, level=level.number, offset=known, to=offset, min_offset=low, max_offset=high)
        self._offsets.update(level.number, offset)
        return offset

    def wait_ms(self) -> int:
        """Return the ms until the next step: until a message that a step has seen is due, at most 100."""
        now = self._clock.now_ms()
        return min([_MOST_WAIT_MS, *(
            level.wait_until_ms - now for level in self._levels if level.wait_until_ms > now)])

    def step(self) -> bool:
        """Put back the due messages of every level. Return True if there are more."""
        with self._lock:
            before = self.counters["schedulePutBack"]
            more = False
            for level in self._levels:
                more |= self._deliver(level)
            if self.counters["schedulePutBack"] != before:
                self._store.wake_flush()
        return more

    def _deliver(self, level: _Level) -> bool:
        queue = self._store.queues.get(SCHEDULE_TOPIC, level.queue_id)
        if queue is None:
            return False
        now = self._clock.now_ms()
        self._look_at_end(level, queue, now)
        offset = max(self._offsets.query(level.number), 0)
        if offset == level.next_offset and now < level.wait_until_ms <= now + level.delay_ms:
            return False
        if not queue.min_offset <= offset <= queue.max_offset:
            offset = self._within(level, queue)
        data = queue.units(offset, _BATCH)
        for at in range(0, len(data), CQ_UNIT.size):
            unit = CQ_UNIT.unpack_from(data, at)
            if unit.size != PRE_BLANK_SIZE:
                due = self._due(level, queue, unit, offset, now)
                if due > now:
                    level.next_offset, level.wait_until_ms = offset, due
                    return False
                problem = self._time_up(level, unit, due)
                if problem:
                    if offset != level.next_offset or level.wait_until_ms == due:
                        events.DELAYED_MESSAGE_HELD_UP.log(
                            _log, level=level.number, offset=offset, phy_offset=unit.phy_offset, cause=problem)
                    level.next_offset, level.wait_until_ms = offset, now + _RETRY_MS
                    return False
            offset += 1
            self._offsets.update(level.number, offset)
        return offset < queue.max_offset

    def _due(
        self, level: _Level, queue: ConsumeQueue, unit: CqUnit, offset: int, now: int
    ) -> int:
        """Return the time at which a message is due: its deliver time, or an earlier mark (DL2)."""
        marks = level.marks
        while marks and marks[0].until <= offset:
            marks.popleft()
        if not marks and unit.tags_code > now + level.delay_ms:
            self._mark(level, queue, now)
        return min(unit.tags_code, marks[0].due_ms) if marks else unit.tags_code

    def _look_at_end(self, level: _Level, queue: ConsumeQueue, now: int) -> None:
        """Mark new messages whose deliver time is too far ahead.

        Store times do not go back when the clock does, so new messages may have such times until the clock has
        caught up. There is one mark per 1/64 of the delay at most, so there are few marks, and messages are late by
        that part at most.
        """
        if queue.max_offset == level.seen:
            return
        last = queue.unit(queue.max_offset - 1)
        if last is not None and last.tags_code > now + level.delay_ms:
            if level.marks and now + level.delay_ms - level.marks[-1].due_ms < (
                level.delay_ms // _MARKS
            ):
                return
            self._mark(level, queue, now)
        level.seen = queue.max_offset

    @staticmethod
    def _mark(level: _Level, queue: ConsumeQueue, now: int) -> None:
        """Make the messages that are in the queue now wait at most for the delay, counted from now."""
        if not level.marks:
            events.DELIVER_TIMES_ARE_TOO_FAR_AHEAD.log(_log, level=level.number, offset=queue.max_offset)
        level.marks.append(_Mark(queue.max_offset, now + level.delay_ms))

    def _time_up(self, level: _Level, unit: CqUnit, due_ms: int) -> str:
        """Put a message back (messageTimeUp). Return why the level must wait, or an empty text.

        The stored properties are unchanged, with DELAY, REAL_TOPIC and REAL_QID, as in RocketMQ.
        """
        message = self.read(unit)
        if message is None:
            return ""
        properties = message.properties
        topic = properties.get(REAL_TOPIC, "")
        if topic in NO_REAL_TOPICS:
            return self._park(message, f"its real topic is {topic or 'not there'}")
        try:
            queue_id = int(properties.get(REAL_QID, ""))
        except ValueError:
            return self._park(message, f"{REAL_QID} is no number")
        if self._is_double(level, message, unit):
            return ""
        result = self._store.put(inner_message(message, topic, queue_id, properties))
        if result.status.appended:
            self.counters["schedulePutBack"] += 1
            self.lateness.add(result.store_timestamp - due_ms)
            return ""
        cause = f"{result.status.name}: {result.remark}"
        if result.status in NEVER:
            return self._park(message, cause)
        self.counters["schedulePutFailed"] += 1
        return cause

    # -- elsewhere

    def waiting_between(self, low: int, high: int) -> tuple[int, int]:
        """Return number and bytes of the waiting messages with records between two positions of the log."""
        count = size = 0
        for level in self.levels:
            units = self.pending_units(level)
            places = units["phy_offset"]
            sizes = units["size"][(places >= low) & (places < high)]
            count, size = count + len(sizes), size + int(sizes.sum())
        return count, size

    def hand_over(
        self, low: int, high: int, put: Callable[[MessageExt, int], bool]
    ) -> tuple[int, int]:
        """Put the waiting messages between two positions elsewhere. Return how many were moved, and how many not.

        ``low`` is the start of the log. ``put`` gets a message and its due time, and returns True if the message
        is stored. A level ends at the first message that ``put`` refuses.
        """
        with self._lock:
            before = self.counters["scheduleHandedOver"]
            left = sum(self._hand_over(level, low, high, put) for level in self._levels)
            return self.counters["scheduleHandedOver"] - before, left

    def _hand_over(
        self, level: _Level, low: int, high: int, put: Callable[[MessageExt, int], bool]
    ) -> int:
        """Hand over the messages of one level. Return how many are left."""
        queue = self._store.queues.get(SCHEDULE_TOPIC, level.queue_id)
        if queue is None:
            return 0
        now = self._clock.now_ms()
        until = first_at(queue, queue.min_offset, high)
        for offset in range(self._within(level, queue), until):
            unit = queue.unit(offset)
            if unit is not None and unit.size != PRE_BLANK_SIZE and unit.phy_offset >= low:
                message = self.read(unit)
                if message is not None and not self._is_double(level, message, unit):
                    if not put(message, self._due(level, queue, unit, offset, now)):
                        return until - offset
                    self.counters["scheduleHandedOver"] += 1
            self._offsets.update(level.number, offset + 1)
        return 0

    @property
    def levels(self) -> list[int]:
        """The numbers of the levels."""
        return [level.number for level in self._levels]

    @property
    def delays(self) -> list[int]:
        """The delays in ms, level 1 first."""
        return [level.delay_ms for level in self._levels]

    def read(self, unit: CqUnit) -> MessageExt | None:
        """Return the message of a unit. If it is deleted or damaged, count that and return None."""
        try:
            message = self._store.message(unit.phy_offset, unit.size)
            if message.phy_offset != unit.phy_offset or message.topic != SCHEDULE_TOPIC:
                raise CorruptionError("another record is there", phy_offset=unit.phy_offset)
        except CorruptionError as error:
            self.counters["scheduleUnreadable"] += 1
            events.DELAYED_MESSAGE_UNREADABLE.log(_log, phy_offset=unit.phy_offset, size=unit.size, cause=error)
            return None
        return message

    def _park(self, message: MessageExt, reason: str) -> str:
        kept = self.parking.park(message, reason)
        self.counters["scheduleParked"] += kept
        return "" if kept else f"it could not be parked: {reason}"

    def _is_double(self, level: _Level, message: MessageExt, unit: CqUnit) -> bool:
        """Return True if a message left its level before the open. The first one that did not ends the search."""
        if not level.asking or not message.unique_key:
            return False
        level.asking = self._has_left(message, slot_ms(
            unit.tags_code, self._store.config.timer_precision_ms))
        self.counters["scheduleDouble"] += level.asking
        return level.asking

    def _has_left(self, message: MessageExt, slot: int) -> bool:
        """Return True if the log has the delivered record of a message, or the timer that replaced it.

        A producer that retries sends the same message twice, so the copies are counted: by DL1 the first copy
        belongs to the first message, and so on.
        """
        topic, identity = message.properties.get(REAL_TOPIC, ""), _identity(message)
        earlier = sum(
            other.phy_offset < message.phy_offset
            for other in self._same(SCHEDULE_TOPIC, message, identity))
        copies = len(self._same(topic, message, identity)) + len(
            self._same(PARKED_TOPIC, message, identity))
        as_timer = identity._replace(level=None)
        timers, delivered = (
            sum(other.properties.get(TIMER_OUT_MS) == str(slot)
                for name in names for other in self._same(name, message, as_timer))
            for names in ((TIMER_TOPIC,), (topic, PARKED_TOPIC)))
        return copies + max(timers, delivered) > earlier

    def _same(
        self, topic: str, message: MessageExt, identity: _Identity
    ) -> list[MessageExt]:
        found = self._store.reader.query(
            topic, message.unique_key or "", 64, 0, (1 << 63) - 1, "U")
        return [other for other, _ in found if _identity(other) == identity]

    # -- what is pending

    def progress(self) -> list[tuple[int, int, int]]:
        """Return (level, next offset, offset after its last message) of each level that has a queue."""
        found = []
        for level in self._levels:
            queue = self._store.queues.get(SCHEDULE_TOPIC, level.queue_id)
            if queue is not None:
                offset = max(self._offsets.query(level.number), queue.min_offset)
                found.append((level.number, min(offset, queue.max_offset), queue.max_offset))
        return found

    def pending(self) -> dict[int, int]:
        """Return the number of waiting messages by level."""
        return {level: until - offset for level, offset, until in self.progress()}

    def first_pending(self, level: int) -> int:
        """Return the position of the first message that waits in a level, or -1."""
        queue = self._store.queues.get(SCHEDULE_TOPIC, level - 1)
        if queue is None:
            return -1
        unit = message_from(queue, max(self._offsets.query(level), queue.min_offset))
        return unit.phy_offset if unit is not None else -1

    def pending_units(self, level: int) -> np.ndarray[Any, Any]:
        """Return the queue units of the messages that wait in a level, in order."""
        queue = self._store.queues.get(SCHEDULE_TOPIC, level - 1)
        if queue is None:
            return CQ_UNIT.view(b"")
        offset, parts = max(self._offsets.query(level), queue.min_offset), list[bytes]()
        while data := queue.units(offset, 1 << 16):
            parts.append(data)
            offset += len(data) // CQ_UNIT.size
        units: np.ndarray[Any, Any] = CQ_UNIT.view(b"".join(parts))
        return units[units["size"] != PRE_BLANK_SIZE]

    def stats(self) -> dict[str, Any]:
        """Return the counters."""
        pending = self.pending()
        return {
            "schedulePending": sum(pending.values()), "schedulePendingByLevel": pending,
            "scheduleLateness": self.lateness.as_dict(), **self.counters}


def _identity(message: MessageExt) -> _Identity:
    properties = message.properties
    return _Identity(
        properties.get(REAL_TOPIC), properties.get(REAL_QID), properties.get(DELAY),
        message.reconsume_times, message.unique_key)
