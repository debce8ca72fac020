"""Writes pending messages of a CommitLog file again at the end of the log before the file is deleted.

The copy of a timer is the record that a far timer gets in each of its rounds: the same message on the timer
topic, with one more round. Original and copy are in the same slot, which recognises the second as a double,
so a crash between copy and deletion delivers once. A message of a delay level is handed over to the timer
wheel (``timer.hand_over``), and its level continues after the message. All copies are durable before the file
is deleted. A message whose topic was deleted is parked instead, because its copy would belong to the next life of the
topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol, final

from tailrace import events
from tailrace.env.clock import Clock
from tailrace.errors import CorruptionError
from tailrace.formats.commitlog import MAX_PROPERTIES_LENGTH, SysFlag, decode_message, pack_host
from tailrace.formats.names import REAL_TOPIC, TIMER_DEL_UNIQKEY, TIMER_OUT_MS, TIMER_TOPIC
from tailrace.kernels.properties import encode_properties
from tailrace.logs import get_logger
from tailrace.model import MessageExt, MessageExtBrokerInner
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.store.retention.pins import Pin, PinKind
from tailrace.timer.hand_over import as_delayed, as_timer
from tailrace.timer.parking import Parking
from tailrace.timer.pins import LevelPins
from tailrace.timer.properties import due_ms, put_back_properties
from tailrace.timer.schedule_message_service import NO_REAL_TOPICS, ScheduleMessageService
from tailrace.timer.targets import why_gone

__all__ = ["PendingPositions", "TimerRescue"]

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
        self._parking = Parking(store, levels.parking.ensure_topic)

    def pins(self) -> Iterator[Pin]:
        """Yield a pin for the oldest pending timer, and one for the first message of each delay level."""
        first = self._timers.first_pending() if self._timers is not None else -1
        if first >= 0:
            yield Pin(PinKind.TIMER, first, "that is not due yet")
        yield from LevelPins(self._levels)()

    def rewrite(self, low: int, high: int) -> tuple[int, int]:
        """Copy the pending messages between two positions. Return how many were copied and how many are lost.

        Raises FatalStorageError if the log cannot be synced.
        """
        places = self._timers.pending_between(low, high) if self._timers is not None else ()
        records = [(place, self._store.record_at(place)) for place in places]
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
            timer = as_timer(message, due, config.timer_precision_ms)
            if len(timer.properties) <= MAX_PROPERTIES_LENGTH:  # it has more than the message had
                return self._put(timer, place)
        left = due - self._clock.now_ms()
        return self._put(as_delayed(message, left, self._levels.delays), place)

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
        why = why_gone(self._levels.targets, topic, message.phy_offset) if topic not in NO_REAL_TOPICS else ""
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
        return MessageExtBrokerInner(
            message.topic, message.queue_id, message.body,
            encode_properties(put_back_properties(message.properties, now, now, due)),
            message.flag, message.sys_flag & ~_HOSTS, message.born_timestamp,
            pack_host(*message.born_host), message.reconsume_times, wait_store_msg_ok=False)


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
