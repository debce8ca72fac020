"""The timer wheel: a ring of slots, each with the list of the timers of one slot time.

Owns ``timerwheel``. Invariants:
  TW1  The wheel can be computed from the timer log, so its file may be deleted at any time.
  TW2  Only ``flush`` changes the file, by whole pages, so a slot is never half written.
  TW3  A slot that holds another time counts as empty.
Commit point: none, because only the timer log counts. Durable on return: after ``flush`` every slot that was
put before it. There is one writer; ``flush`` may run at the same time. Only changed pages are written. Pages
that were never written take no space, in memory and on disk.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final, final

import numpy as np

from tailrace.env.filesystem import File, FileSystem
from tailrace.env.whole_files import open_hint
from tailrace.formats.timerwheel import SLOT, SLOTS_TOTAL, Slot, wheel_file_size
from tailrace.kernels import timer_units
from tailrace.timer.arrays import Ints, Mask, Units

__all__ = ["NO_SLOT", "TimerWheel"]

NO_SLOT: Final = Slot(-1, -1, -1, 0, 0)
_PAGE: Final = 4096
_MANY_PAGES: Final = 300
"""Number of written pages from which one scan of the whole ring is faster than one per page."""


@final
class TimerWheel:
    """The ring of slots, in memory; ``precision_ms`` is the time that a slot covers."""

    def __init__(
        self, file_system: FileSystem, path: str, precision_ms: int, slots_total: int = SLOTS_TOTAL
    ) -> None:
        self.precision_ms = precision_ms
        self.slots_total = slots_total
        self._file_system = file_system
        self._path = path
        self._count = 2 * slots_total
        self._size = wheel_file_size(slots_total)
        self._bytes = self._empty()
        self._dirty: set[int] = set()
        self._written: set[int] = set()
        self._lock = threading.Lock()
        self._fresh = True

    def _empty(self) -> memoryview:
        """Return zeroes that take no memory before they are written; a bytearray would."""
        return np.zeros(self._size, np.uint8).data

    def _place(self, time_ms: int) -> int:
        return time_ms // self.precision_ms % self._count * SLOT.size

    def get_slot(self, time_ms: int) -> Slot:
        """Return the slot of a time, or ``NO_SLOT`` if it is empty (TW3)."""
        found = SLOT.unpack_from(self._bytes, self._place(time_ms))
        return found if found.time == time_ms // self.precision_ms and found.time else NO_SLOT

    def held_time(self, time_ms: int) -> int:
        """Return the slot time, ms, that the place of ``time_ms`` holds now; 0 if it never held one."""
        return SLOT.unpack_from(self._bytes, self._place(time_ms)).time * self.precision_ms

    def put_slot(self, time_ms: int, first_pos: int, last_pos: int, num: int) -> None:
        """Set the slot of a time."""
        at = self._place(time_ms)
        slot = Slot(time_ms // self.precision_ms, first_pos, last_pos, num, 0)
        with self._lock:
            SLOT.pack_into(self._bytes, at, slot)
            self._dirty.add(at // _PAGE)
            self._written.add(at // _PAGE)

    def places(self, times_ms: Ints) -> Ints:
        """Return the place in the ring of each time; times that are a whole ring apart share one."""
        return times_ms // self.precision_ms % self._count

    def slots_at(self, times_ms: Ints) -> Units:
        """Return what the places of some times hold now, of these or of other times."""
        return SLOT.view(self._bytes, self._count)[self.places(times_ms)]

    def lists_of(self, times_ms: Ints) -> tuple[Ints, Ints, Ints]:
        """Return first position, last position and number of each time's slot; -1, -1, 0 if it is empty (TW3)."""
        found = self.slots_at(times_ms)
        there = (found["time"] == times_ms // self.precision_ms) & (found["time"] != 0)
        return (
            np.where(there, found["first_pos"], -1), np.where(there, found["last_pos"], -1),
            np.where(there, found["num"], 0))

    def put_slots(self, times_ms: Ints, first_pos: Ints, last_pos: Ints, num: Ints) -> None:
        """Set the slots of many times. No two of them share a place."""
        times = times_ms // self.precision_ms
        places = self.places(times_ms)
        with self._lock:
            slots = SLOT.view(self._bytes, self._count)
            for name, values in (
                ("time", times), ("first_pos", first_pos), ("last_pos", last_pos), ("num", num),
                ("magic", 0),
            ):
                slots[name][places] = values
            pages = set((places * SLOT.size // _PAGE).tolist())
            self._dirty |= pages
            self._written |= pages

    def clear(self) -> None:
        """Empty every slot."""
        with self._lock:
            self._dirty |= self._written
            self._bytes = self._empty()

    def _live(self, begin_ms: int, until_ms: int | None) -> Units:
        """Return the slots of a range of times that are not empty, by place."""
        with self._lock:
            pages = sorted(self._written)
        whole = SLOT.view(self._bytes, self._count)
        per_page = _PAGE // SLOT.size
        if len(pages) > _MANY_PAGES:
            parts = [whole]
        else:
            parts = [whole[page * per_page : (page + 1) * per_page] for page in pages]
        begin = max(begin_ms // self.precision_ms, 1)
        found = []
        for slots in parts:
            live = (slots["time"] >= begin) & (slots["last_pos"] >= 0)
            if until_ms is not None:
                live &= slots["time"] * self.precision_ms < until_ms
            found.append(slots[live])
        return np.concatenate([whole[:0], *found])

    def live_slots(self, begin_ms: int, until_ms: int | None = None) -> list[int]:
        """Return the times, ms, of the slots in a range that are not empty, in order."""
        times = self._live(begin_ms, until_ms)["time"].astype(np.int64) * self.precision_ms
        times.sort()
        found: list[int] = times.tolist()
        return found

    def listed(self, units: Units, pos: int, begin_ms: int) -> Mask:
        """Return True for each unit in the list of a slot at ``begin_ms`` or later; the first unit is at ``pos``."""
        found = np.zeros(len(units), np.uint8)
        timer_units.listed(
            units.view(np.uint8).data, pos, begin_ms, self.precision_ms, self._bytes, found)
        return found.view(np.bool_)

    def replay(self, units: Units, pos: int, begin_ms: int) -> tuple[int, int]:
        """Add units of the timer log, the first one at ``pos``, to the lists of slots at ``begin_ms`` or later.

        Return (number of units, reason of the end), as the kernel of the same name.
        """
        touched = np.zeros(-(-self._size // _PAGE), np.uint8)
        count, why = timer_units.replay(
            units.view(np.uint8).data, pos, begin_ms, self.precision_ms, self._bytes, touched)
        pages = set(np.flatnonzero(touched).tolist())
        with self._lock:
            self._dirty |= pages
            self._written |= pages
        return int(count), int(why)

    def pending(self, begin_ms: int, until_ms: int | None = None) -> int:
        """Return the number of timers in the slots of a range of times."""
        return int(np.maximum(self._live(begin_ms, until_ms)["num"], 0).sum(dtype=np.int64))

    def pending_until(self, begin_ms: int, ends_ms: Sequence[int]) -> list[int]:
        """Return, for each of some times, the number of timers in slots from a time up to it."""
        live = self._live(begin_ms, max(ends_ms))
        times = live["time"].astype(np.int64) * self.precision_ms
        counts = np.maximum(live["num"], 0).astype(np.int64)
        return [int(counts[times < end].sum()) for end in ends_ms]

    def file_lists_before(self, pos: int, begin_ms: int) -> bool:
        """Return True if the file on disk has a live slot whose list starts below a position."""
        if not self._file_system.exists(self._path):
            return False
        file = self._file_system.open(self._path)
        try:
            for low, high in file.data_ranges(0, file.size()):
                first = low // _PAGE * _PAGE
                data = file.pread(high - first, first)
                slots = SLOT.view(data[: len(data) - len(data) % SLOT.size])
                live = (slots["time"] >= begin_ms // self.precision_ms) & (slots["num"] > 0)
                if bool((live & (slots["first_pos"] >= 0) & (slots["first_pos"] < pos)).any()):
                    return True
        finally:
            file.close()
        return False

    def take_dirty(self) -> dict[int, bytes]:
        """Return the bytes of the pages that changed since the last call, for ``write``."""
        with self._lock:
            taken, self._dirty = self._dirty, set()
            return {page: bytes(self._bytes[page * _PAGE : (page + 1) * _PAGE]) for page in taken}

    def write(self, pages: dict[int, bytes]) -> bool:
        """Write and sync pages. Return True if there was anything to do. Raises OSError.

        The first call creates the file, or clears the pages that an earlier process has written.
        """
        if not pages and not self._fresh:
            return False
        try:
            self._write(pages)
        except OSError:
            self.give_back(pages)
            raise
        self._fresh = False
        return True

    def give_back(self, pages: dict[int, bytes]) -> None:
        """Mark pages as dirty again that ``take_dirty`` returned and that could not be written."""
        with self._lock:
            self._dirty |= set(pages)

    def flush(self) -> bool:
        """Write and sync all changed pages. Return True if there was anything to do. Raises OSError."""
        return self.write(self.take_dirty())

    def _write(self, pages: dict[int, bytes]) -> None:
        file = open_hint(self._file_system, self._path)
        try:
            if file.size() != self._size:
                file.truncate(self._size)
            if self._fresh:
                self._clear_stale(file, pages)
            for page in sorted(pages):
                file.pwrite(pages[page], page * _PAGE)
            file.sync_data()
        finally:
            file.close()
        if self._fresh:  # the name may be one that an earlier attempt could not make durable
            self._file_system.sync_dir(self._path.rpartition("/")[0])

    def _clear_stale(self, file: File, pages: dict[int, bytes]) -> None:
        """Zero the pages that the file has and memory does not have, so that both are equal."""
        for low, high in file.data_ranges(0, self._size):
            first, last = low // _PAGE, -(-high // _PAGE)
            for page in range(first, last):
                if page not in pages:
                    held = file.pread(_PAGE, page * _PAGE)
                    if np.frombuffer(held, np.uint8).any():
                        file.pwrite(bytes(len(held)), page * _PAGE)
