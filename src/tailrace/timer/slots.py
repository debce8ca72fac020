"""Timers that were read from the wheel and are not put back yet."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, final

import numpy as np

from tailrace.formats.timerlog import MAGIC_DELETE, TIMER_UNIT, TimerUnit
from tailrace.model import MessageExt
from tailrace.timer.arrays import Ints, Units
from tailrace.timer.properties import Identity
from tailrace.timer.put_before import PutBefore
from tailrace.timer.unread import NO_TRIES, Tries

__all__ = ["DueQueue", "DueTimer", "Later", "SlotState", "UnitQueue", "UnreadUnits"]

_MOST_DELETES: Final = 100_000
_NEVER: Final = (1 << 63) - 1


@dataclass(slots=True, eq=False)
class DueTimer:
    """One timer that is due at ``due_ms``."""

    due_ms: int
    slot_time_ms: int
    unit: TimerUnit
    identity: Identity | None
    roll: bool = False
    message: MessageExt | None = None
    """The message if it is small; a large one is read again."""
    tries: Tries = NO_TRIES
    """Reads of the message that have failed."""
    cancelled: bool = False


@final
class UnitQueue:
    """Queue of the units of a slot, in an array because a slot may have millions."""

    __slots__ = ("_at", "_rows")

    def __init__(self, rows: Units | None = None) -> None:
        self._rows = np.empty(0, TIMER_UNIT.dtype) if rows is None else rows
        self._at = 0

    def __len__(self) -> int:
        return len(self._rows) - self._at

    def __iter__(self) -> Iterator[TimerUnit]:
        return (TimerUnit(*row) for row in self._rows[self._at :].tolist())

    def first(self) -> TimerUnit:
        """Return the first unit without removing it."""
        return TimerUnit(*self._rows[self._at].tolist())

    def head(self, count: int) -> Units:
        """Return the first units without removing them."""
        return self._rows[self._at : self._at + count]

    def drop(self, count: int) -> None:
        """Remove the first units."""
        self._at += count

    def put_first(self, rows: Units) -> None:
        """Put units before the others."""
        if len(rows) <= self._at:
            self._at -= len(rows)
            self._rows[self._at : self._at + len(rows)] = rows
        else:
            self._rows, self._at = np.concatenate([rows, self._rows[self._at :]]), 0


@final
class Later:
    """Units of plain timers of a slot, in the order in which they are due."""

    __slots__ = ("_held", "next_due_ms")

    def __init__(self) -> None:
        self.next_due_ms = _NEVER
        """Time at which the first of them is due."""
        self._held: tuple[tuple[Ints, Units], ...] = ()
        """Due times and units: the first part is sorted, the others were added since. Replaced as a whole, because
        other threads read it."""

    def __len__(self) -> int:
        return sum(len(due) for due, _ in self._held)

    def __iter__(self) -> Iterator[TimerUnit]:
        self._sort()
        return (TimerUnit(*row) for _, units in self._held for row in units.tolist())

    def add(self, due_ms: Ints, rows: Units) -> None:
        """Add units. They are sorted when units are taken."""
        if len(due_ms):
            held = self._held or ((np.empty(0, np.int64), np.empty(0, TIMER_UNIT.dtype)),)
            self._held = (*held, (due_ms, rows))
            self.next_due_ms = min(self.next_due_ms, int(due_ms.min()))

    def _sort(self) -> None:
        if len(self._held) > 1:
            due, rows = (np.concatenate(parts) for parts in zip(*self._held, strict=True))
            order = np.argsort(due, kind="stable")
            self._held = ((due[order], rows[order]),)

    def dues(self) -> Ints:
        """Return the due time, ms, of each of them. Any thread may call, because nothing is changed."""
        return np.concatenate([np.empty(0, np.int64), *(due for due, _ in self._held)])

    def head(self, now_ms: int, most: int) -> Units:
        """Return up to ``most`` units that are due by ``now_ms``, without removing them."""
        self._sort()
        if not self._held:
            return np.empty(0, TIMER_UNIT.dtype)
        due, rows = self._held[0]
        return rows[: min(int(np.searchsorted(due, now_ms, "right")), most)]

    def drop(self, count: int) -> None:
        """Remove the first units, which ``head`` has returned."""
        due, rows = self._held[0]
        self._held = ((due[count:], rows[count:]),) if count < len(due) else ()
        self.next_due_ms = int(due[count]) if count < len(due) else _NEVER


@dataclass(slots=True)
class UnreadUnits:
    """Units of a slot whose messages could not be read, with the same number of tries."""

    tries: Tries
    units: deque[TimerUnit]


@dataclass(slots=True)
class SlotState:
    """A slot that was begun: units to process, timers that wait for their time, and timers that were delivered."""

    units: UnitQueue = field(default_factory=UnitQueue)
    later: Later = field(default_factory=Later)
    waiting: dict[int, DueTimer] = field(default_factory=dict)
    """By position in the CommitLog."""
    identities: set[Identity] = field(default_factory=set)
    before: PutBefore = field(default_factory=PutBefore)
    """Timers that were delivered in bulk, or will be."""
    delivered: int = 0
    unread: list[UnreadUnits] = field(default_factory=list)
    """Units whose messages could not be read; they are tried again."""
    list_pos: int = -1
    """Position in the timer log from which the list of the slot could not be read, else -1."""
    list_tries: Tries = NO_TRIES

    @property
    def finished(self) -> bool:
        """Return True if every timer of the slot has left."""
        return not self.units and not self.waiting and not self.later and not self.unread and self.list_pos < 0

    def left_units(self) -> list[TimerUnit]:
        """Return the units whose timers have not left, without those of a list that could not be read."""
        return [
            *self.units, *self.later, *(pending.unit for pending in self.waiting.values()),
            *(unit for group in self.unread for unit in group.units)]


@final
class DueQueue:
    """Slots that were begun, and their timers in the order in which they are due."""

    def __init__(
        self, on_left: Callable[[TimerUnit], None] = lambda _: None,
        on_left_many: Callable[[str, int], None] = lambda *_: None,
    ) -> None:
        self.slots: dict[int, SlotState] = {}
        self.left = on_left
        """Called with each unit that has left its slot."""
        self.left_many = on_left_many
        """Called with a topic and the number of its timers that were put back together."""
        self._deletes: dict[Identity, None] = {}
        self._delete_times: Counter[int] = Counter()
        self._by_identity: dict[Identity, DueTimer] = {}
        self._heap: list[tuple[int, int, DueTimer]] = []
        self._number = itertools.count()
        self.unread = 0
        """Number of units whose messages could not be read."""
        self.unread_requests: Counter[int] = Counter()
        """How many of them are requests to delete, by the hash of their topic: timers of these topics wait."""

    def __len__(self) -> int:
        return len(self._heap)

    def backlog(self) -> int:
        """Return the number of timers of begun slots that are in memory as units only. Any thread may call."""
        return self.unread + sum(len(slot.units) + len(slot.later) for slot in list(self.slots.values()))

    def put_off(self, time_ms: int, unit: TimerUnit, tries: Tries) -> None:
        """Keep a unit whose message could not be read in its slot, with others that are tried at the same time."""
        groups = self.slot(time_ms).unread
        if not groups or groups[-1].tries[:2] != tries[:2] or groups[-1].tries.again_ms != tries.again_ms:
            groups.append(UnreadUnits(tries, deque()))
        groups[-1].units.append(unit)
        self.unread += 1
        if unit.magic & MAGIC_DELETE:
            self.unread_requests[unit.topic_hash] += 1

    def tried(self, group: UnreadUnits) -> None:
        """Remove the first unit of a group: it was read, put off again, or left out."""
        unit = group.units.popleft()
        self.unread -= 1
        if unit.magic & MAGIC_DELETE:
            self.unread_requests[unit.topic_hash] -= 1
            if not self.unread_requests[unit.topic_hash]:
                del self.unread_requests[unit.topic_hash]

    def must_wait(self, unit: TimerUnit) -> bool:
        """Return True if a request to delete that could not be read yet may name the timer of a unit."""
        return unit.topic_hash in self.unread_requests

    def slot(self, time_ms: int) -> SlotState:
        """Return the state of a slot, which is created if it is new."""
        return self.slots.setdefault(time_ms, SlotState())

    def push(self, pending: DueTimer) -> None:
        """Add a timer, to wait until it is due."""
        if pending.identity is not None and not pending.roll:
            self._by_identity[pending.identity] = pending
        heapq.heappush(
            self._heap, (pending.due_ms, next(self._number), pending))

    def first_due(self, now_ms: int) -> DueTimer | None:
        """Return the next timer that is due, or None; it stays. Cancelled timers are dropped."""
        while self._heap and self._heap[0][0] <= now_ms:
            pending = self._heap[0][2]
            if not pending.cancelled:
                return pending
            heapq.heappop(self._heap)
        return None

    def retry(self, pending: DueTimer, not_before_ms: int) -> None:
        """Let the timer that ``first_due`` has returned wait until a time."""
        assert self._heap[0][2] is pending, "only the first one is tried"
        heapq.heapreplace(self._heap, (
            max(pending.due_ms, not_before_ms), next(self._number), pending))

    def next_due_ms(self) -> int | None:
        """Return the time at which the next timer is due, or None."""
        return self._heap[0][0] if self._heap else None

    def done(self, pending: DueTimer, *, delivered: bool, left: bool = True) -> None:
        """Remove a timer that was delivered or dropped. With ``left`` false its unit stays in the slot."""
        pending.cancelled = True
        if self._heap and self._heap[0][2] is pending:
            heapq.heappop(self._heap)
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
        """Return True if this timer waits for its time in any slot."""
        return identity in self._by_identity

    def delete(self, named: Identity) -> DueTimer | None:
        """Record a request to delete a timer; return that timer if it waits already.

        The request is kept for a while, because a copy of the timer may arrive later.
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
        """Return True if a request to delete names this timer."""
        return identity in self._deletes

    def has_named(self, out_ms: set[int]) -> bool:
        """Return True if timers of these slot times may be deleted, or if timers wait one by one."""
        return bool(self._by_identity) or not out_ms.isdisjoint(self._delete_times)

    def forget_finished(self, time_ms: int) -> None:
        """Drop the state of a slot that has nothing left."""
        slot = self.slots.get(time_ms)
        if slot is not None and slot.finished:
            del self.slots[time_ms]
