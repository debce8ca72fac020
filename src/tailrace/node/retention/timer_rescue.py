"""Writes pending messages of a CommitLog file again at the end of the log before the file is deleted.

The copy of a timer is the record that a far timer gets in each of its rounds: the same message on the timer
topic, with one more round. Original and copy are in the same slot, which recognises the second as a double,
so a crash between copy and deletion delivers once. A message of a delay level is handed over to the timer
wheel, and its level continues after the message. Its deliver time is its store time plus the delay, so the same record
at the end of the log would be late by the time that it has waited already. It becomes a timer message with the same
deliver time instead, as if its producer had set that. Without the timer wheel it is put into the shortest level that
lasts at least as long as the time left: it is late by the difference, never early. All copies are durable before
the file is deleted. A message whose topic was deleted is parked instead, because its copy would belong to the next life
of the topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol, final

from tailrace import events
from tailrace.env.clock import Clock
from tailrace.errors import CorruptionError
from tailrace.formats.commitlog import MAX_PROPERTIES_LENGTH, SysFlag, decode_message
from tailrace.formats.names import (
    DELAY,
    REAL_TOPIC,
    TIMER_DEL_UNIQKEY,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    TIMER_TOPIC,
)
from tailrace.logs import get_logger
from tailrace.model import MessageExt, MessageExtBrokerInner
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.store.dispatch import SCHEDULE_TOPIC
from tailrace.store.retention.pins import Pin, PinKind
from tailrace.timer.parking import Parking, inner_message
from tailrace.timer.properties import DELIVER_PROPERTIES, due_ms, put_back_properties, slot_ms
from tailrace.timer.schedule_message_service import NO_REAL_TOPICS, ScheduleMessageService

__all__ = ["PendingPositions", "TimerRescue", "level_pins"]

_log = get_logger(__name__)
_HOSTS: Final = SysFlag.BORNHOST_V6 | SysFlag.STOREHOST_V6
_MOST_SHARE: Final = 2
"""Pending messages are not copied if they take more than one part in this many of the file."""


class PendingPositions(Protocol):
    """Positions of the messages of timers that were not delivered; the timer room implements it."""

    @property
    def grain_ms(self) -> int:
        """Largest precision, ms, by which the slot times were rounded down."""
        ...

    def first_pending(self) -> int:
        """Return the position of the oldest one, or -1."""
        ...

    def pending_between(self, low: int, high: int) -> Sequence[int]:
        """Return the positions in [low, high), in order, with those of requests to delete."""
        ...


@final
class TimerRescue:
    """Pins the pending messages of one store and writes them again; ``timers`` is missing without the wheel."""

    def __init__(
        self, clock: Clock, store: DefaultMessageStore, timers: PendingPositions | None,
        levels: ScheduleMessageService,
    ) -> None:
        self._clock = clock
        self._store = store
        self._timers = timers
        self._levels = levels
        self._parking = Parking(store, levels.parking.ensure_topic, levels.parking.targets)

    def pins(self) -> Iterator[Pin]:
        """Yield a pin for the oldest pending timer, and one for the first message of each delay level."""
        first = self._timers.first_pending() if self._timers is not None else -1
        if first >= 0:
            yield Pin(PinKind.TIMER, first, "that is not due yet")
        yield from level_pins(self._levels)

    def rewrite(self, low: int, high: int) -> tuple[int, int]:
        """Copy the pending messages between two positions. Return how many were copied and how many are lost.

        Raises FatalStorageError if the log cannot be synced.
        """
        places = self._timers.pending_between(low, high) if self._timers is not None else ()
        records = [(place, self._store.commit_log.record_at(place)) for place in places]
        delayed, size = self._levels.waiting_between(low, high)
        size += sum(len(data) for _, data in records if data is not None)
        if size * _MOST_SHARE > high - low:
            return 0, len(places) + delayed
        copied = self._copy_timers(records)
        handed_over, left = self._levels.hand_over(low, high, self._put_elsewhere)
        self._parking.step.log()
        if copied or handed_over:
            self._store.sync_log()
            self._store.wake_reput()
        return copied + handed_over, len(places) - copied + left

    def _put_elsewhere(self, message: MessageExt, due: int) -> bool:
        """Write a message of a delay level again, to wait until ``due``. Return True if it was appended."""
        config, place = self._store.config, message.phy_offset
        if (parked := self._park_gone(message)) is not None:
            return parked
        if self._timers is not None and message.properties.get(REAL_TOPIC, "") not in NO_REAL_TOPICS:
            timer = _as_timer(message, due, config.timer_precision_ms)
            if len(timer.properties) <= MAX_PROPERTIES_LENGTH:  # it has more than the message had
                return self._put(timer, place)
        left = due - self._clock.now_ms()
        return self._put(_as_delayed(message, left, self._levels.delays), place)

    def _put(self, made: MessageExtBrokerInner, place: int) -> bool:
        result = self._store.put(made, though_full=True)
        if not result.status.appended:
            events.A_PENDING_TIMER_CANNOT_BE_WRITTEN_AGAIN.log(
                _log, phy_offset=place, cause=result.remark or result.status.name)
        return result.status.appended

    def _copy_timers(self, records: Sequence[tuple[int, bytes | None]]) -> int:
        """Write timer records again. Return how many were appended."""
        copied = 0
        for place, data in records:
            message = _timer_at(place, data)
            if message is None:
                continue
            stored = self._park_gone(message)
            if stored is None:
                stored = self._put(self._copy_of(message), place)
            if not stored:
                break
            copied += 1
        return copied

    def _park_gone(self, message: MessageExt) -> bool | None:
        """Park a message whose topic was deleted. Return True if it is stored, None if its topic exists.

        A request to delete a timer is dropped.
        """
        topic = message.properties.get(REAL_TOPIC, "")
        why = self._parking.why_gone(topic, message.phy_offset) if topic not in NO_REAL_TOPICS else ""
        if not why:
            return None
        return TIMER_DEL_UNIQKEY in message.properties or self._parking.park(message, why, though_full=True)

    def _copy_of(self, message: MessageExt) -> MessageExtBrokerInner:
        """Return the message that the next round of a timer writes."""
        assert self._timers is not None, "who named the place"
        now = self._clock.now_ms()
        # A delay counts from the store time of the first record, so the copy has the absolute time.
        due = due_ms(
            message.properties, int(message.properties[TIMER_OUT_MS]), message.store_timestamp, self._timers.grain_ms)
        return inner_message(
            message, message.topic, message.queue_id, put_back_properties(message.properties, now, now, due))


def level_pins(levels: ScheduleMessageService) -> Iterator[Pin]:
    """Yield a pin for each delay level that has a message.

    A level is delivered in the order of the log, so its first message has the least position that it needs.
    """
    for level in levels.levels:
        position = levels.first_pending(level)
        if position >= 0:
            yield Pin(PinKind.TIMER, position, f"of delay level {level}")


def _as_timer(message: MessageExt, due_ms: int, precision_ms: int) -> MessageExtBrokerInner:
    """Return a timer message that is due at the given time; it has ``REAL_TOPIC`` and ``REAL_QID`` already.

    The level is removed: otherwise a Java broker would put the message there again when it is delivered.
    """
    dropped = (DELAY, *DELIVER_PROPERTIES)
    properties = {name: text for name, text in message.properties.items() if name not in dropped}
    properties[TIMER_DELIVER_MS] = str(due_ms)
    properties[TIMER_OUT_MS] = str(slot_ms(due_ms, precision_ms))
    return inner_message(message, TIMER_TOPIC, 0, properties)


def _as_delayed(message: MessageExt, left_ms: int, levels: Sequence[int]) -> MessageExtBrokerInner:
    """Return the message for the level whose delay fits best; ``levels`` are delays in ms, at least one long enough."""
    _, level = min((delay, number) for number, delay in enumerate(levels, 1) if delay >= left_ms)
    return inner_message(
        message, SCHEDULE_TOPIC, level - 1, {**message.properties, DELAY: str(level)})


def _timer_at(place: int, data: bytes | None) -> MessageExt | None:
    """Return the timer message of a record at a position, or None if it is not one."""
    if data is None:
        return None
    try:
        message = decode_message(data)
        int(message.properties[TIMER_OUT_MS])
    except (CorruptionError, KeyError, ValueError):
        return None
    return message if message.topic == TIMER_TOPIC and message.phy_offset == place else None
