"""Timers that are out of the wheel and not yet put back."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, final

from tailrace.formats.timerlog import TimerUnit
from tailrace.model import MessageExt
from tailrace.timer.properties import Identity

__all__ = ["DueQueue", "Pending", "SlotState"]


_MOST_DELETES: Final = 100_000


def _keys(identity: Identity) -> tuple[tuple[int, str], tuple[int, str]]:
    """What a request to delete may say: the unique key, with or without the topic."""
    out, key = identity.out_ms, identity.unique_key
    return (out, key), (out, f"{identity.real_topic}+{key}")


@dataclass(slots=True, eq=False)
class Pending:
    """One timer: due at ``due_ms``, tried again at ``not_before_ms`` after a failed put."""

    due_ms: int
    slot_time_ms: int
    unit: TimerUnit
    identity: Identity | None
    roll: bool = False
    message: MessageExt | None = None
    """Kept when it is small; a large one is read again."""
    not_before_ms: int = 0
    cancelled: bool = False


@dataclass(slots=True)
class SlotState:
    """A slot that was begun: what waits to be looked at, what waits for its time, what is deleted."""

    units: deque[TimerUnit] = field(default_factory=deque)
    waiting: dict[int, Pending] = field(default_factory=dict)
    """By position in the CommitLog."""
    identities: set[Identity] = field(default_factory=set)
    delivered: int = 0

    @property
    def finished(self) -> bool:
        """Whether every timer of the slot has left."""
        return not self.units and not self.waiting


@final
class DueQueue:
    """Slots that were begun, and their timers in the order in which they are due."""

    def __init__(self) -> None:
        self.slots: dict[int, SlotState] = {}
        self.on_left: Callable[[TimerUnit], None] | None = None
        """Told of each unit that has left its slot."""
        self.on_left_many: Callable[[str, int], None] | None = None
        """Told the topic of as many timers that have left together."""
        self._deletes: dict[tuple[int, str], None] = {}
        self._by_key: dict[tuple[int, str], Pending] = {}
        self._heap: list[tuple[int, int, Pending]] = []
        self._number = itertools.count()

    def __len__(self) -> int:
        return len(self._heap)

    def backlog(self) -> int:
        """Units that were read from a slot's list and not yet looked at."""
        return sum(len(slot.units) for slot in self.slots.values())

    def slot(self, time_ms: int) -> SlotState:
        """The state of a slot, made when it is new."""
        return self.slots.setdefault(time_ms, SlotState())

    def push(self, pending: Pending) -> None:
        """Let a timer wait until it is due."""
        if pending.identity is not None and not pending.roll:
            for key in _keys(pending.identity):
                self._by_key[key] = pending
        heapq.heappush(
            self._heap, (max(pending.due_ms, pending.not_before_ms), next(self._number), pending))

    def pop_due(self, now_ms: int) -> Pending | None:
        """The next timer that is due, or None; a cancelled one is dropped on the way."""
        while self._heap and self._heap[0][0] <= now_ms:
            pending = heapq.heappop(self._heap)[2]
            if not pending.cancelled:
                return pending
        return None

    def next_due_ms(self) -> int | None:
        """When the next timer is due."""
        return self._heap[0][0] if self._heap else None

    def done(self, pending: Pending, *, delivered: bool, left: bool = True) -> None:
        """A timer has left, one way or another; its unit, too, unless it waits in another way."""
        pending.cancelled = True
        if left:
            self.left(pending.unit)
        if pending.identity is not None:
            for key in _keys(pending.identity):
                if self._by_key.get(key) is pending:
                    del self._by_key[key]
        slot = self.slots.get(pending.slot_time_ms)
        if slot is not None:
            slot.waiting.pop(pending.unit.phy_offset, None)
            slot.delivered += delivered
            self.forget_finished(pending.slot_time_ms)

    def has(self, identity: Identity) -> bool:
        """Whether this timer waits for its time, in whatever slot."""
        return _keys(identity)[1] in self._by_key

    def left(self, unit: TimerUnit) -> None:
        """A unit has nothing more to bring."""
        if self.on_left is not None:
            self.on_left(unit)

    def left_many(self, topic: str, count: int) -> None:
        """Timers of a topic were put back together."""
        if self.on_left_many is not None:
            self.on_left_many(topic, count)

    def delete(self, out_ms: int, key: str) -> Pending | None:
        """Note a request to delete; the timer that it names, if that waits already.

        Requests are kept for a while: the timer may be a copy that is on its way.
        """
        self._deletes[out_ms, key] = None
        if len(self._deletes) > _MOST_DELETES:
            del self._deletes[next(iter(self._deletes))]
        return self._by_key.get((out_ms, key))

    def is_deleted(self, identity: Identity) -> bool:
        """Whether a request named this timer, in the form of either release."""
        return bool(self._deletes) and any(key in self._deletes for key in _keys(identity))

    def forget_finished(self, time_ms: int) -> None:
        """Drop the state of a slot that has nothing left."""
        slot = self.slots.get(time_ms)
        if slot is not None and slot.finished:
            del self.slots[time_ms]
