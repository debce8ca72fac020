"""Timers of slots that were begun, as arrays: their units until they leave, and what has left.

A unit that was read from the wheel is in one of these places until its timer has left its slot:

    ready ─▶ later ─▶ ready until it is due: its record tells its millisecond
    put off: its message could not be read, or its put was refused; it is tried again at a time of the monotonic clock

Requests to delete are taken before all others, because they may end the timer of any unit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, final

import numpy as np

from tailrace.formats.timerlog import MAGIC_DELETE, MAGIC_ROLL
from tailrace.kernels import timer_records, timer_units
from tailrace.timer.arrays import Ints, Units, counts, grouped, joined, no_positions, whole
from tailrace.timer.properties import Identity
from tailrace.timer.unread import NO_TRIES, Tries

__all__ = ["NOBODY", "RETRY_MS", "Delivered", "DueTable", "UnreadList", "column", "identity_hash"]

NOBODY: Final = -1
_SMALLEST: Final = 256
_MOST_DELETES: Final = 100_000
_MOST_UNREAD: Final = 100_000
"""Number of units that could not be read from which no other units are processed."""
RETRY_MS: Final = 500
"""Time until units are tried again whose puts were refused, or that wait for a request to delete."""
_NEVER: Final = (1 << 63) - 1
_FAR_OUT: Final = 1 << 61


def column(number: int) -> int:
    """Return a number within the range of a column: a property may have one of any length."""
    return min(max(number, -_FAR_OUT), _FAR_OUT)


def identity_hash(identity: Identity) -> int:
    """Return the hash of a timer's identity, as the kernel computes it. Different timers may have the same hash."""
    found: int = timer_records.identity_hash(
        identity.real_topic.encode(), identity.unique_key.encode(), column(identity.out_ms))
    return found


@final
class Delivered:
    """Table from the hash of a timer's identity to the position of the message that has left its slot.

    An entry stays at least as long as its slot has timers left. Different timers may have the same hash, so a caller
    compares the record at the position.
    """

    __slots__ = ("_table", "_used")

    def __init__(self) -> None:
        self._table: Ints = np.zeros((_SMALLEST, 3), np.int64)
        self._used = 0

    def find(self, hashes: Ints) -> tuple[Ints, int]:
        """Return the position for each hash, or -1, and the number of hashes that were found."""
        found = np.empty(len(hashes), np.int64)
        return found, timer_units.find(self._table, hashes, found)

    def add(self, rows: Ints, begun: dict[int, int]) -> None:
        """Add timers: hash, position and slot of each; ``begun`` has the slots with timers left."""
        if 2 * (self._used + len(rows)) > len(self._table):
            kept = self._table[self._table[:, 0] != 0]
            kept = kept[np.isin(kept[:, 2], list(begun))]
            size = _SMALLEST
            while size < 3 * (len(kept) + len(rows)):
                size *= 2
            self._table = np.zeros((size, 3), np.int64)
            self._used = timer_units.add(self._table, kept, 0)
        self._used = timer_units.add(self._table, rows, self._used)


class UnreadList(NamedTuple):
    """The list of a slot that was not read yet."""

    pos: int
    tries: Tries = NO_TRIES


@dataclass(slots=True)
class _PutOff:
    """Units that are tried again at the same time."""

    tries: Tries
    requests: bool
    parts: deque[Units] = field(default_factory=deque)
    count: int = 0


@final
class DueTable:
    """Units of begun slots whose timers have not left; the caller holds the lock of the timers.

    Any thread may call ``len``, ``waiting``, ``unread`` and ``due_times``.
    """

    def __init__(self, precision_ms: int, on_left: Callable[[Units], None] = lambda _: None) -> None:
        self.slots: dict[int, int] = {}
        """Number of units that are left, by slot time. A slot with an unread list and no units has 0."""
        self.lists: dict[int, UnreadList] = {}
        """Lists that could not be read, by slot time."""
        self._precision = precision_ms
        self._on_left = on_left
        """Called with units that have left their slots."""
        self._requests: deque[Units] = deque()
        self._ready: deque[Units] = deque()
        self._later: tuple[tuple[Ints, Units], ...] = ()
        """Due times and units: the first part is sorted, the others were added since. Replaced as a whole, because
        other threads read it."""
        self._next_due_ms = _NEVER
        self._put_off: list[_PutOff] = []
        self._deletes: dict[Identity, int] = {}
        self._delete_hashes: Ints | None = None

    def __len__(self) -> int:
        return sum(self.slots.copy().values())

    # -- slots

    def slot_times(self, units: Units) -> Ints:
        """Return the slot time of each unit."""
        times: Ints = units["write_time_ms"].astype(np.int64) + units["delay_ms"]
        return times // self._precision * self._precision

    def begin(self, time_ms: int, pos: int) -> None:
        """Begin a slot whose list starts at a position."""
        self.forget(time_ms, time_ms + 1)
        self.lists[time_ms] = UnreadList(pos)
        self.slots.setdefault(time_ms, 0)

    def loaded(self, time_ms: int, units: Units) -> None:
        """Add the units of the list of a slot, oldest first."""
        del self.lists[time_ms]
        self.slots[time_ms] += len(units)
        self._add(units)
        self._left(time_ms, 0)

    def add(self, units: Units) -> None:
        """Add units, also of slots that were begun before."""
        for time, count in counts(self.slot_times(units)):
            self.slots[time] = self.slots.get(time, 0) + count
        self._add(units)

    def _add(self, units: Units) -> None:
        if timer_units.requests(units.view(np.uint8).data):
            requests = (units["magic"] & (MAGIC_DELETE | MAGIC_ROLL)) == MAGIC_DELETE
            self._requests.append(units[requests])
            units = units[~requests]
        if len(units):
            self._ready.append(units)

    def leave(self, units: Units, slots: Ints) -> None:
        """Note that the timers of these units have left their slots."""
        self._on_left(units)
        for time, count in counts(slots):
            self._left(time, count)

    def _left(self, time_ms: int, count: int) -> None:
        self.slots[time_ms] -= count
        if not self.slots[time_ms] and time_ms not in self.lists:
            del self.slots[time_ms]

    def forget(self, first_ms: int, until_ms: int = _NEVER) -> None:
        """Forget the slots from a time onwards, because they are begun again."""
        if not any(first_ms <= time < until_ms for time in self.slots):
            return
        units = self.left_units()
        times = self.slot_times(units)
        self.lists = {time: found for time, found in self.lists.items() if not first_ms <= time < until_ms}
        self.slots = dict.fromkeys(self.lists, 0)
        self._requests, self._ready, self._later, self._put_off = deque(), deque(), (), []
        self._next_due_ms = _NEVER
        self.add(units[(times < first_ms) | (times >= until_ms)])

    def left_units(self) -> Units:
        """Return all units, without those of lists that could not be read."""
        return joined([*self._parts(), *(units for _, units in self._later)])

    def by_slot(self) -> dict[int, Units]:
        """Return the same in the order of their positions, by slot time."""
        units = self.left_units()
        units = units[np.argsort(units["phy_offset"], kind="stable")]
        times = self.slot_times(units)
        order, heads = grouped(times)
        return {int(times[part[0]]): units[part] for part in np.split(order, heads[1:]) if len(part)}

    def _parts(self) -> Iterator[Units]:
        yield from list(self._requests)
        yield from list(self._ready)
        for group in list(self._put_off):
            yield from list(group.parts)

    def due_times(self) -> Ints:
        """Return the due time, ms, of each timer. One that was not read, or was put off, is due at its slot's end."""
        timers = [units[(units["magic"] & MAGIC_DELETE) == 0] for units in self._parts()]
        return np.concatenate([
            no_positions(), *(due for due, _ in self._later),
            *(self.slot_times(units) + self._precision for units in timers)])

    # -- what is next

    def take(self, now_ms: int, monotonic_ms: int, most: int) -> tuple[Units, Tries] | None:
        """Remove and return units to process next and their failed reads, or None if none has its time come.

        The caller gives back each of them that it neither lets wait nor puts off nor lets leave. Timers of a topic wait
        while a request to delete one of the topic could not be read.
        """
        while (taken := self._take(now_ms, monotonic_ms, most)) is not None:
            unread = [part["topic_hash"] for group in self._put_off if group.requests for part in group.parts]
            if not unread:
                return taken
            units, tries = taken
            waits = np.isin(units["topic_hash"], np.concatenate(unread)) & (units["magic"] & MAGIC_DELETE == 0)
            if waits.any():
                self.put_off(units[waits], tries._replace(again_ms=monotonic_ms + RETRY_MS))
            if not waits.all():
                return units[~waits], tries
        return None

    def _take(self, now_ms: int, monotonic_ms: int, most: int) -> tuple[Units, Tries] | None:
        if self._requests:
            return _first(self._requests, most), NO_TRIES
        if self._put_off and (
            groups := [group for group in self._put_off if group.tries.again_ms <= monotonic_ms]
        ):
            group = next((group for group in groups if group.requests), groups[0])
            units = _first(group.parts, most)
            group.count -= len(units)
            if not group.count:
                self._put_off.remove(group)
            return units, group.tries
        if self._next_due_ms <= now_ms:
            return self._first_due(now_ms, most), NO_TRIES
        if self._ready and self.unread < _MOST_UNREAD:
            return _first(self._ready, most), NO_TRIES
        return None

    def _first_due(self, now_ms: int, most: int) -> Units:
        if len(self._later) > 1:
            due = np.concatenate([due for due, _ in self._later])
            order = due.argsort(kind="stable")
            self._later = ((due[order], joined([units for _, units in self._later])[order]),)
        due, units = self._later[0]
        taken = _together(units[: int(due.searchsorted(now_ms, "right"))], most)
        count = len(taken)
        self._later = ((due[count:], units[count:]),) if count < len(due) else ()
        self._next_due_ms = int(due[count]) if count < len(due) else _NEVER
        return taken

    def give_back(self, units: Units, tries: Tries) -> None:
        """Put units that were taken before the others."""
        if tries.failed:
            self.put_off(units, tries)
        else:
            (self._requests if timer_units.requests(units[:1].view(np.uint8).data) else self._ready).appendleft(units)

    def wait(self, due_ms: Ints, units: Units) -> None:
        """Let units wait until they are due."""
        if len(units):
            order = due_ms.argsort(kind="stable")
            due_ms = due_ms[order]
            self._later = (*self._later, (due_ms, units[order]))
            self._next_due_ms = min(self._next_due_ms, int(due_ms[0]))

    def put_off(self, units: Units, tries: Tries) -> None:
        """Keep units whose messages could not be read, or whose puts were refused, until they are tried again."""
        requests = bool(units["magic"][0] & MAGIC_DELETE)
        group = self._put_off[-1] if self._put_off else None
        if group is None or (group.tries._replace(first_ms=0), group.requests) != (
            tries._replace(first_ms=0), requests
        ):
            group = _PutOff(tries, requests)
            self._put_off.append(group)
        group.parts.append(units)
        group.count += len(units)

    @property
    def waiting(self) -> int:
        """Number of units that wait until they are due."""
        return sum(len(due) for due, _ in self._later)

    @property
    def unread(self) -> int:
        """Number of units whose messages could not be read."""
        return sum(group.count for group in list(self._put_off) if group.tries.failed)

    # -- requests to delete

    @property
    def deletes(self) -> set[Identity]:
        """The timers that requests to delete have named."""
        return set(self._deletes)

    def delete(self, named: Identity) -> None:
        """Note a request to delete a timer. It is kept for a while, because a copy of the timer may arrive later."""
        self._deletes.setdefault(named, identity_hash(named))
        if len(self._deletes) > _MOST_DELETES:
            del self._deletes[next(iter(self._deletes))]
        self._delete_hashes = None

    def is_deleted(self, identity: Identity) -> bool:
        """Return True if a request to delete names this timer."""
        return identity in self._deletes

    def may_be_deleted(self, hashes: Ints) -> list[int]:
        """Return the indexes of hashes that timers named by requests to delete have."""
        if not self._deletes:
            return []
        if self._delete_hashes is None:
            self._delete_hashes = np.array(list(self._deletes.values()), np.int64)
        found: list[int] = np.isin(hashes, self._delete_hashes).nonzero()[0].tolist()
        return found


def _together(units: Units, most: int) -> Units:
    """Return the first units: at most ``most``, and as many as are held in memory together."""
    return units[: whole(units["msg_size"][:most].astype(np.int64))]


def _first(parts: deque[Units], most: int) -> Units:
    """Remove and return the first units, see ``_together``."""
    taken, count = [parts.popleft()], 0
    while parts and (count := count + len(taken[-1])) < most:
        taken.append(parts.popleft())
    units = joined(taken)
    found = _together(units, most)
    if len(found) < len(units):
        parts.appendleft(units[len(found) :])
    return found
