"""Pending timers of a CommitLog file that must go are written again at the end of the log.

A copy is what a far timer leaves on each of its rounds: the same message on the timer topic, with one
round more. Both are in the same slot, where the second is known for a double, so that a crash between
the copy and the deletion delivers once. The copies are durable before the file goes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final, Protocol, final

from tailrace.env.clock import Clock
from tailrace.errors import CorruptionError
from tailrace.formats.commitlog import SysFlag, decode_message, encode_properties, pack_host
from tailrace.model import MessageExtBrokerInner
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.store.retention import Pin, PinKind
from tailrace.timer.properties import TIMER_OUT_MS, TIMER_TOPIC, due_ms, put_back_properties

__all__ = ["PendingTimers", "TimerRescue"]

_log = logging.getLogger(__name__)
_HOSTS: Final = SysFlag.BORNHOST_V6 | SysFlag.STOREHOST_V6
_MOST_SHARE: Final = 2
"""Timers that take more than one part in so many of a file are not worth the room."""


class PendingTimers(Protocol):
    """Who knows where the messages of timers are that were not delivered: the timer room."""

    @property
    def grain_ms(self) -> int:
        """What their slot times are rounded down by, at most."""
        ...

    def first_pending(self) -> int:
        """Position of the oldest one, -1 when there is none."""
        ...

    def pending_between(self, low: int, high: int) -> Sequence[int]:
        """Positions from ``low`` on and below ``high``, in order; requests to delete included."""
        ...


@final
class TimerRescue:
    """Pin source and rescuer of one store."""

    def __init__(
        self, clock: Clock, store: DefaultMessageStore, timers: PendingTimers
    ) -> None:
        self._clock = clock
        self._store = store
        self._timers = timers

    def pins(self) -> Iterator[Pin]:
        """The oldest pending timer."""
        first = self._timers.first_pending()
        if first >= 0:
            yield Pin(PinKind.TIMER, first, "that is not due yet")

    def rewrite(self, low: int, high: int) -> tuple[int, int]:
        """Copy the pending timers between two positions; how many were, and how many are lost.

        Raises FatalStorageError when the log cannot be synced.
        """
        places = self._timers.pending_between(low, high)
        records = [(place, self._store.commit_log.record_at(place)) for place in places]
        size = sum(len(data) for _, data in records if data is not None)
        if size * _MOST_SHARE > high - low:
            return 0, len(places)
        copied = 0
        for place, data in records:
            made = self._copy_of(place, data)
            if made is None:
                continue
            result = self._store.commit_log.put(made, though_full=True)
            if not result.status.appended:
                _log.warning("a pending timer cannot be written again phy_offset=%d cause=%s", place,
                             result.remark or result.status.name)
                break
            copied += 1
        if copied:
            self._store.flush_commit_log.flush()
            self._store.wake_reput()
        return copied, len(places) - copied

    def _copy_of(self, place: int, data: bytes | None) -> MessageExtBrokerInner | None:
        """The message of a record as a far timer's round leaves it; None for what is no timer."""
        if data is None:
            return None
        try:
            message = decode_message(data)
            out = int(message.properties[TIMER_OUT_MS])
        except (CorruptionError, KeyError, ValueError):
            return None
        if message.topic != TIMER_TOPIC or message.phy_offset != place:
            return None
        now = self._clock.now_ms()
        # A delay counts from the store time of the first record: its copy says the moment.
        due = due_ms(
            message.properties, out, message.store_timestamp, self._timers.grain_ms)
        return MessageExtBrokerInner(
            message.topic, message.queue_id, message.body,
            encode_properties(put_back_properties(message.properties, now, now, due)),
            message.flag, message.sys_flag & ~_HOSTS, message.born_timestamp,
            pack_host(*message.born_host), message.reconsume_times, wait_store_msg_ok=False)
