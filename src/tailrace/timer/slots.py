"""Timers that are out of the wheel and not yet put back."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, final

import numpy as np

from tailrace.formats.timerlog import TIMER_UNIT, TimerUnit
from tailrace.model import MessageExt
from tailrace.timer.properties import Identity
from tailrace.timer.put_before import PutBefore

__all__ = ["DueQueue", "Later", "Pending", "SlotState", "Units"]

_MOST_DELETES: Final = 100_000
_NEVER: Final = (1 << 63) - 1


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


@final
class Units:
    """Units of a slot, taken from the head; an array of them, for a slot may have millions."""

    __slots__ = ("_at", "_rows")

    def __init__(self, rows: Any = None) -> None:
        self._rows = np.empty(0, TIMER_UNIT.dtype) if rows is None else rows
        self._at = 0

    def __len__(self) -> int:
        return len(self._rows) - self._at

    def __iter__(self) -> Iterator[TimerUnit]:
        return (TimerUnit(*row) for row in self._rows[self._at :].tolist())

    def popleft(self) -> TimerUnit:
        """Take the first one."""
        self._at += 1
        return TimerUnit(*self._rows[self._at - 1].tolist())

    def head(self, count: int) -> Any:
        """The first ones, which stay."""
        return self._rows[self._at : self._at + count]

    def drop(self, count: int) -> None:
        """Take the first ones away."""
        self._at += count

    def put_first(self, rows: Any) -> None:
        """Put some before the others."""
        if len(rows) <= self._at:
            self._at -= len(rows)
            self._rows[self._at : self._at + len(rows)] = rows
        else:
            self._rows, self._at = np.concatenate([rows, self._rows[self._at :]]), 0


@final
class Later:
    """Units of a slot that were looked at and are plain, in the order in which they are due."""

    __slots__ = ("_due", "_more", "_units", "next_due_ms")

    def __init__(self) -> None:
        self.next_due_ms = _NEVER
        """When the first of them is due."""
        self._due = np.empty(0, np.int64)
        self._units = Units()
        self._more: list[tuple[Any, Any]] = []

    def __len__(self) -> int:
        return len(self._units) + sum(len(due) for due, _ in self._more)

    def __iter__(self) -> Iterator[TimerUnit]:
        self._sort()
        return iter(self._units)

    def add(self, due_ms: Any, rows: Any) -> None:
        """Let more units wait; they are sorted when somebody wants them."""
        if len(due_ms):
            self._more.append((due_ms, rows))
            self.next_due_ms = min(self.next_due_ms, int(due_ms.min()))

    def _sort(self) -> None:
        if self._more:
            due = np.concatenate([self._due, *(due for due, _ in self._more)])
            rows = np.concatenate(
                [self._units.head(len(self._units)), *(rows for _, rows in self._more)])
            order = np.argsort(due, kind="stable")
            self._due, self._units, self._more = due[order], Units(rows[order]), []

    def dues(self) -> Any:
        """When each of them is due, ms; changes nothing, so that anybody may ask."""
        return np.concatenate([self._due, *(due for due, _ in self._more)])

    def take(self, now_ms: int, most: int) -> Any:
        """Take those that are due by now, as many as asked for."""
        self._sort()
        count = min(int(np.searchsorted(self._due, now_ms, "right")), most)
        rows = self._units.head(count)
        self._units.drop(count)
        self._due = self._due[count:]
        self.next_due_ms = int(self._due[0]) if len(self._due) else _NEVER
        return rows


@dataclass(slots=True)
class SlotState:
    """A slot that was begun: what waits to be looked at, what waits for its time, what has left."""

    units: Units = field(default_factory=Units)
    later: Later = field(default_factory=Later)
    waiting: dict[int, Pending] = field(default_factory=dict)
    """By position in the CommitLog."""
    identities: set[Identity] = field(default_factory=set)
    before: PutBefore = field(default_factory=PutBefore)
    """Timers that went, or wait to go, in bulk."""
    delivered: int = 0

    @property
    def finished(self) -> bool:
        """Whether every timer of the slot has left."""
        return not self.units and not self.waiting and not self.later

    def left_units(self) -> list[TimerUnit]:
        """Units whose timers have not left."""
        return [*self.units, *self.later, *(pending.unit for pending in self.waiting.values())]


@final
class DueQueue:
    """Slots that were begun, and their timers in the order in which they are due."""

    def __init__(self) -> None:
        self.slots: dict[int, SlotState] = {}
        self.on_left: Callable[[TimerUnit], None] | None = None
        """Told of each unit that has left its slot."""
        self.on_left_many: Callable[[str, int], None] | None = None
        """Told the topic of as many timers that have left together."""
        self._deletes: dict[Identity, None] = {}
        self._delete_times: Counter[int] = Counter()
        self._by_identity: dict[Identity, Pending] = {}
        self._heap: list[tuple[int, int, Pending]] = []
        self._number = itertools.count()

    def __len__(self) -> int:
        return len(self._heap)

    def backlog(self) -> int:
        """Timers of begun slots that do not wait one by one."""
        return sum(len(slot.units) + len(slot.later) for slot in self.slots.values())

    def slot(self, time_ms: int) -> SlotState:
        """The state of a slot, made when it is new."""
        return self.slots.setdefault(time_ms, SlotState())

    def push(self, pending: Pending) -> None:
        """Let a timer wait until it is due."""
        if pending.identity is not None and not pending.roll:
            self._by_identity[pending.identity] = pending
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
        if pending.identity is not None and self._by_identity.get(pending.identity) is pending:
            del self._by_identity[pending.identity]
        slot = self.slots.get(pending.slot_time_ms)
        if slot is not None:
            slot.waiting.pop(pending.unit.phy_offset, None)
            slot.delivered += delivered
            self.forget_finished(pending.slot_time_ms)

    def has(self, identity: Identity) -> bool:
        """Whether this timer waits for its time, in whatever slot."""
        return identity in self._by_identity

    def left(self, unit: TimerUnit) -> None:
        """A unit has nothing more to bring."""
        if self.on_left is not None:
            self.on_left(unit)

    def left_many(self, topic: str, count: int) -> None:
        """Timers of a topic were put back together."""
        if self.on_left_many is not None:
            self.on_left_many(topic, count)

    def delete(self, named: Identity) -> Pending | None:
        """Note that a request deletes a timer; return that timer if it waits already.

        Requests are kept for a while: the timer may be a copy that is on its way.
        """
        if named not in self._deletes:
            self._deletes[named] = None
            self._delete_times[named.out_ms] += 1
        if len(self._deletes) > _MOST_DELETES:
            oldest = next(iter(self._deletes))
            del self._deletes[oldest]
            self._delete_times[oldest.out_ms] -= 1
            if not self._delete_times[oldest.out_ms]:
                del self._delete_times[oldest.out_ms]
        return self._by_identity.get(named)

    def is_deleted(self, identity: Identity) -> bool:
        """Whether a request named this timer."""
        return identity in self._deletes

    def has_named(self, out_ms: set[int]) -> bool:
        """Whether timers of these slot times may be deleted, or wait one by one."""
        return bool(self._by_identity) or not out_ms.isdisjoint(self._delete_times)

    def forget_finished(self, time_ms: int) -> None:
        """Drop the state of a slot that has nothing left."""
        slot = self.slots.get(time_ms)
        if slot is not None and slot.finished:
            del self.slots[time_ms]
