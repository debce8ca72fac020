"""Positions of the messages of pending timers, found in the timer log.

A unit is pending until its slot is delivered. Units are in the order of the CommitLog, except strays, which an
open or a close has appended again. Strays are remembered, so a look for the oldest pending timer reads no
unit twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import final

import numpy as np

from tailrace.formats.consumequeue import PRE_BLANK_SIZE
from tailrace.formats.names import TIMER_TOPIC
from tailrace.formats.timerlog import TIMER_UNIT
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.timer.arrays import Ints, Units
from tailrace.timer.timer_message_store import TimerMessageStore

__all__ = ["WheelPositions"]


@final
class WheelPositions:
    """Pending timers of one open store; one caller at a time, which holds the lock of the service that deletes."""

    def __init__(self, store: DefaultMessageStore, timers: TimerMessageStore) -> None:
        self._store = store
        self._timers = timers
        self._cursor = 0
        """Units before this position of the timer log are delivered."""
        self._seen_until = 0
        self._highest = -1
        self._strays: list[tuple[int, int]] = []
        """Position of the message and time of the slot of units that are out of order."""

    @property
    def grain_ms(self) -> int:
        """Largest precision, ms, by which slot times of messages were rounded down."""
        return self._timers.state.grain_ms

    def first_pending(self) -> int:
        """Return the position of the message of the oldest pending timer, or -1."""
        read_ms = self._timers.commit_read_time_ms
        found = [next(self._not_enqueued(), -1), *self._stray_places(read_ms)]
        for pos, units in self._timers.timer_log.scan(self._cursor):
            pending = np.flatnonzero(_slots(units) >= read_ms)
            if len(pending):
                self._cursor = pos + int(pending[0]) * TIMER_UNIT.size
                found.append(int(units["phy_offset"][pending[0]]))
                break
            self._cursor = pos + len(units) * TIMER_UNIT.size
        return min((place for place in found if place >= 0), default=-1)

    def pending_between(self, low: int, high: int) -> Sequence[int]:
        """Return the positions in [low, high), in order, with those of requests to delete."""
        read_ms = self._timers.commit_read_time_ms
        found = {place for place in self._stray_places(read_ms) if low <= place < high}
        for _, units in self._timers.timer_log.scan(self._cursor):
            places = units["phy_offset"]
            chosen = (_slots(units) >= read_ms) & (places >= low) & (places < high)
            found.update(places[chosen].tolist())
            if len(units) and int(places[-1]) >= high:
                break
        for place in self._not_enqueued():
            if place >= high:
                break
            if place >= low:
                found.add(place)
        return sorted(found)

    def _stray_places(self, read_ms: int) -> list[int]:
        """Return the positions of messages of pending strays; examine the units added since the last call."""
        for pos, units in self._timers.timer_log.scan(self._seen_until):
            places = units["phy_offset"].astype(np.int64)
            before = np.maximum.accumulate(np.concatenate(([self._highest], places)))[:-1]
            odd = np.flatnonzero(places < before)
            self._strays += zip(places[odd].tolist(), _slots(units)[odd].tolist(), strict=True)
            self._highest = max(self._highest, int(places.max()))
            self._seen_until = pos + len(units) * TIMER_UNIT.size
        self._strays = [stray for stray in self._strays if stray[1] >= read_ms]
        return [place for place, _ in self._strays]

    def _not_enqueued(self) -> Iterator[int]:
        """Yield the positions of messages of the timer queue that have no unit yet, in order."""
        queue = self._store.queues.get(TIMER_TOPIC, 0)
        state = self._timers.state
        offset = max(state.queue_offset, queue.min_offset) if queue is not None else 0  # before the skipped ones
        yield from sorted(message.phy_offset for message in list(state.skipped.values()))
        for _, units in queue.runs(offset, queue.max_offset) if queue is not None else ():
            yield from units["phy_offset"][units["size"] != PRE_BLANK_SIZE].tolist()


def _slots(units: Units) -> Ints:
    """Return the slot times of units."""
    return units["write_time_ms"].astype(np.int64) + units["delay_ms"].astype(np.int64)
