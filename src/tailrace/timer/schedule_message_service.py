"""Delay levels (RocketMQ's ScheduleMessageService): messages of ``SCHEDULE_TOPIC_XXXX`` go to their real topics.

Queue n of the topic holds level n + 1. Its units have the deliver time as their tags code, so a queue is in the
order of deliver times, and one offset per level is enough to record its progress.

Invariants:
  DL1  A level is delivered in order. Messages before its offset were put back, parked or handed over, or are damaged;
       messages after it were not. A level that is held up does not hold up another level. A message that cannot be
       read now is held (``unread``): up to 32 in a level, the messages after them are delivered before them, and the
       offset on disk stays below them.
  DL2  No message is put back before its deliver time by the store's clock. If the clock was set back, or the
       levels have changed, no message waits longer than the delay of its level plus 1/64 of it, counted from
       the time at which this is noticed.
  DL3  The offsets on disk never claim more than was durable before they were written.
After an open, messages from the offset onwards may have been put back already. By DL1 at most 32 of them were not
put back before the last one that was: the index is searched for each until 33 are not found. With
``messageIndexEnable=false``, and for messages without a unique key, this is not possible: after a kill, messages that
were delivered since the offsets were last written may be delivered again.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, Protocol, final

import numpy as np

from tailrace import events
from tailrace.env.clock import Clock
from tailrace.formats.consumequeue import CQ_UNIT, PRE_BLANK_SIZE, CqUnit
from tailrace.formats.filenames import is_number
from tailrace.formats.names import DELAY, REAL_QID, REAL_TOPIC, TIMER_OUT_MS, TIMER_TOPIC
from tailrace.logs import get_logger
from tailrace.model import MessageExt
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.store.dispatch import SCHEDULE_TOPIC
from tailrace.store.queue_search import first_at, message_from
from tailrace.timer.parking import ANY_TARGET, NEVER, Parking, Targets
from tailrace.timer.properties import PARKED_TOPIC, slot_ms, whole_number
from tailrace.timer.timer_metrics import Lateness
from tailrace.timer.unread import NO_TRIES, FailedReads, Tries

__all__ = ["NO_REAL_TOPICS", "DelayOffsets", "ScheduleMessageService"]

_log = get_logger(__name__)
_BATCH: Final = 200
_RETRY_MS: Final = 100
_MOST_WAIT_MS: Final = 100
"""New messages are looked for that often; the least delay of a level is usually a second."""
_MARKS: Final = 64
_QUEUE_DIGITS: Final = 3
"""Length of a queue id that is believed when a topic without a config gets one."""
_MOST_HELD: Final = 32
"""Number of messages of a level that cannot be read from which the later messages of the level wait."""
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


class _Held(NamedTuple):
    """A due message that could not be read."""

    unit: CqUnit
    due_ms: int
    tries: Tries


@final
class _Level:
    """State of a level while the store is open."""

    __slots__ = (
        "ahead", "asking", "delay_ms", "held", "marks", "next_offset", "number", "seen", "tries", "wait_until_ms",
    )

    def __init__(self, number: int, delay_ms: int) -> None:
        self.number = number
        self.delay_ms = delay_ms
        self.asking = _MOST_HELD + 1
        """While it is above 0 the next message may have been put back before the open."""
        self.held: dict[int, _Held] = {}
        """Messages that cannot be read now, by queue offset."""
        self.ahead = 0
        """With held messages: the offset after the last message that was delivered or held."""
        self.tries = NO_TRIES
        """Reads of the queue of the level that have failed."""
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
        ensure_topic: Callable[[str], object] = lambda _: None, targets: Targets = ANY_TARGET,
    ) -> None:
        self.counters = dict.fromkeys(_COUNTERS, 0)
        self.reads = FailedReads(
            clock, store, SCHEDULE_TOPIC, self.counters, "scheduleUnreadable",
            lambda place, size, error: events.DELAYED_MESSAGE_UNREADABLE.log(
                _log, phy_offset=place, size=size, cause=error))
        self._opened_at = 0
        self.parking = Parking(store, ensure_topic, targets)
        self.lateness = Lateness()
        self._clock = clock
        self._store = store
        self._offsets = offsets
        self._levels = [_Level(number, delay) for number, delay in enumerate(levels, 1)]
        self._lock = threading.Lock()

    def load(self) -> None:
        """Bring the offsets within their queues (correctDelayOffset)."""
        with self._lock:
            self._opened_at = self._store.commit_log.max_offset
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
        offset = level.ahead = min(max(known, low), high)
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
                more |= self._step(level)
            if self.counters["schedulePutBack"] != before:
                self._store.wake_flush()
            self.parking.step.log()
        return more

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[None]:
        """Deliver nothing while the context is open, so that a topic can be deleted."""
        with self._lock:
            yield

    def _step(self, level: _Level) -> bool:
        """Put back the due messages of a level. If its queue cannot be read, try it again later."""
        if not self.reads.may_try(level.tries):
            return False
        try:
            more = self._deliver(level)
        except OSError as error:
            if not level.tries.failed:
                events.DELAYED_MESSAGE_HELD_UP.log(
                    _log, level=level.number, offset=self._next(level), phy_offset=-1, cause=error)
            level.tries = self.reads.counted(level.tries, error)
            return False
        level.tries = NO_TRIES
        return more

    def _deliver(self, level: _Level) -> bool:
        queue = self._store.queues.get(SCHEDULE_TOPIC, level.queue_id)
        if queue is None:
            return False
        now = self._clock.now_ms()
        self._look_at_end(level, queue, now)
        self._deliver_held(level, queue)
        offset = self._next(level)
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
                problem = self._time_up_or_hold(level, offset, unit, due)
                if problem:
                    if offset != level.next_offset or level.wait_until_ms == due:
                        events.DELAYED_MESSAGE_HELD_UP.log(
                            _log, level=level.number, offset=offset, phy_offset=unit.phy_offset, cause=problem)
                    level.next_offset, level.wait_until_ms = offset, now + _RETRY_MS
                    return False
            offset += 1
            self._passed(level, offset)
        return offset < queue.max_offset

    # -- messages that cannot be read

    def _next(self, level: _Level) -> int:
        """Return the offset of the first message of a level that was not looked at."""
        return level.ahead if level.held else max(self._offsets.query(level.number), 0)

    def _passed(self, level: _Level, offset: int) -> None:
        """Continue a level at ``offset``: the messages before it have left the level, or are held."""
        level.ahead = offset
        first = min(level.held, default=offset)
        if first != self._offsets.query(level.number):
            self._offsets.update(level.number, first)

    def _time_up_or_hold(self, level: _Level, offset: int, unit: CqUnit, due_ms: int) -> str:
        """Put a message back, or hold it if it cannot be read. Return why the level must wait, or an empty text."""
        try:
            return self._time_up(level, unit, due_ms)
        except OSError as error:
            return "" if self._hold(level, offset, unit, due_ms, error) else str(error)

    def _hold(self, level: _Level, offset: int, unit: CqUnit, due_ms: int, error: OSError) -> bool:
        """Hold a message that cannot be read. Return False if the level has too many of them."""
        if len(level.held) >= _MOST_HELD:
            return False
        tries = self.reads.after(NO_TRIES, error, unit.phy_offset, unit.size)
        level.held[offset] = _Held(unit, due_ms, tries)
        return True

    def _deliver_held(self, level: _Level, queue: ConsumeQueue) -> None:
        """Read held messages again whose time to do so has come, and put them back."""
        for offset, held in sorted(level.held.items()):
            if offset >= queue.min_offset:  # else it is deleted
                if not self.reads.may_try(held.tries):
                    continue
                if not self._put_held(level, offset, held):
                    continue
            del level.held[offset]
            self._passed(level, level.ahead)

    def _put_held(self, level: _Level, offset: int, held: _Held) -> bool:
        """Put a held message back. Return False if it must be tried again."""
        unit, again_ms = held.unit, self.reads.now_ms() + _RETRY_MS
        try:
            if not self._time_up(level, unit, held.due_ms):
                return True
            tries = held.tries._replace(again_ms=again_ms)
        except OSError as error:
            tries = self.reads.after(held.tries, error, unit.phy_offset, unit.size)
            if self.reads.are_over(tries) and self._settle(level, held, error):
                return True
        level.held[offset] = held._replace(tries=tries)
        return False

    def _settle(self, level: _Level, held: _Held, error: OSError) -> bool:
        """End the tries of a message. Return False if it must be tried further.

        If the message can be read, it was the index that could not. Then it counts as a message without an index.
        """
        try:
            return not self._time_up(level, held.unit, held.due_ms, look=False)
        except OSError:
            return self.reads.leave_out(held.unit.phy_offset, held.unit.size, error)

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

    def _time_up(self, level: _Level, unit: CqUnit, due_ms: int, *, look: bool = True) -> str:
        """Put a message back (messageTimeUp). Return why the level must wait, or an empty text. Raises OSError.

        Without ``look`` the index is not searched for its delivery. The stored properties are unchanged, with DELAY,
        REAL_TOPIC and REAL_QID, as in RocketMQ.
        """
        message = self.read(unit)
        if message is None:
            return ""
        properties = message.properties
        topic = properties.get(REAL_TOPIC, "")
        if topic in NO_REAL_TOPICS:
            return self._park(message, f"its real topic is {topic or 'not there'}")
        queue_id = whole_number(properties.get(REAL_QID))
        if queue_id is None:
            return self._park(message, f"{REAL_QID} is no number")
        if look and self._is_double(level, message, unit):
            return ""
        if why := self.parking.why_gone(topic, unit.phy_offset):
            return self._park(message, why)
        result = self.parking.deliver(message, topic, queue_id, properties)
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
        if not level.held:
            self._within(level, queue)
        until, left = first_at(queue, queue.min_offset, high), 0
        offsets = [*sorted(level.held), *range(self._next(level), until)]
        for index, offset in enumerate(offsets):
            unit = queue.unit(offset)
            if unit is not None and unit.size != PRE_BLANK_SIZE and low <= unit.phy_offset < high:
                try:
                    message = self.read(unit)
                    if message is not None and not self._is_double(level, message, unit):
                        if not put(message, self._due(level, queue, unit, offset, now)):
                            return left + len(offsets) - index
                        self.counters["scheduleHandedOver"] += 1
                except OSError as error:
                    left += 1
                    if offset not in level.held:
                        if not self._hold(level, offset, unit, unit.tags_code, error):
                            return left + len(offsets) - index - 1
                        self._passed(level, offset + 1)
                    continue
            elif offset in level.held:
                continue
            level.held.pop(offset, None)
            self._passed(level, max(level.ahead, offset + 1))
        return left

    @property
    def levels(self) -> list[int]:
        """The numbers of the levels."""
        return [level.number for level in self._levels]

    @property
    def delays(self) -> list[int]:
        """The delays in ms, level 1 first."""
        return [level.delay_ms for level in self._levels]

    def read(self, unit: CqUnit) -> MessageExt | None:
        """Return the message of a unit. If it is deleted or damaged, count that and return None. Raises OSError."""
        return self.reads.message(unit.phy_offset, unit.size)

    def _park(self, message: MessageExt, reason: str) -> str:
        kept = self.parking.park(message, reason)
        self.counters["scheduleParked"] += kept
        return "" if kept else f"it could not be parked: {reason}"

    def _is_double(self, level: _Level, message: MessageExt, unit: CqUnit) -> bool:
        """Return True if a message left its level before the open.

        Messages that did not end the search (DL1), but a message that could not be read is searched for in any case.
        """
        if unit.phy_offset >= self._opened_at or not message.unique_key:
            return False
        if not level.asking and all(held.unit.phy_offset != unit.phy_offset for held in level.held.values()):
            return False
        has_left = self._has_left(message, slot_ms(unit.tags_code, self._store.config.timer_precision_ms))
        if not has_left and level.asking:
            level.asking -= 1
        self.counters["scheduleDouble"] += has_left
        return has_left

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
        found = self._store.reader.copies(topic, message.unique_key or "")
        return [other for other in found if _identity(other) == identity]

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
        found = {}
        for level in self._levels:
            queue = self._store.queues.get(SCHEDULE_TOPIC, level.queue_id)
            if queue is not None:
                offset = max(self._next(level), queue.min_offset)
                found[level.number] = len(level.held) + max(queue.max_offset - offset, 0)
        return found

    def first_pending(self, level: int) -> int:
        """Return the position of the first message that waits in a level, or -1."""
        queue = self._store.queues.get(SCHEDULE_TOPIC, level - 1)
        if queue is None:
            return -1
        unit = message_from(queue, max(self._offsets.query(level), queue.min_offset))
        return unit.phy_offset if unit is not None else -1

    def targets_of_waiting(self) -> set[tuple[str, int]]:
        """Return real topic and queue id of the messages that wait, as far as these can be read."""
        found = set[tuple[str, int]]()
        for level in self.levels:
            for row in self.pending_units(level).tolist():
                try:
                    message = self.read(CqUnit(*row))
                except OSError:
                    continue
                topic = message.properties.get(REAL_TOPIC, "") if message is not None else ""
                if message is not None and topic not in NO_REAL_TOPICS:
                    text = message.properties.get(REAL_QID, "")
                    found.add((topic, int(text) if is_number(text) and len(text) <= _QUEUE_DIGITS else 0))
        return found

    def pending_units(self, level: int) -> np.ndarray[Any, Any]:
        """Return the queue units of the messages that wait in a level, in order."""
        queue = self._store.queues.get(SCHEDULE_TOPIC, level - 1)
        if queue is None:
            return CQ_UNIT.view(b"")
        with self._lock:
            state = self._levels[level - 1]
            offset = max(self._next(state), queue.min_offset)
            parts = [CQ_UNIT.pack(*held.unit) for _, held in sorted(state.held.items())]
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
            "scheduleLateness": self.lateness.as_dict(),
            "scheduleUnread": sum(len(level.held) for level in self._levels),
            "scheduleReadFailed": self.reads.failed, **self.counters}


def _identity(message: MessageExt) -> _Identity:
    properties = message.properties
    return _Identity(
        properties.get(REAL_TOPIC), properties.get(REAL_QID), properties.get(DELAY),
        message.reconsume_times, message.unique_key)
