"""Units of a batch ConsumeQueue, read as units of a ConsumeQueue by queue offset.

A file has one unit of 46 bytes for each record. A record may have many messages, so the unit has the queue
offset of the first message and the number of messages. Readers get units of 20 bytes, one for each queue
offset: at the first message of a record the unit of the record, at its other messages pre-blank units. A gap
between two units is also read as pre-blank units. So searches, sums and kernels work as on a ConsumeQueue.

Units follow each other through all files, in the order of their queue offsets. A unit is used if its neighbours
agree with it. If they do not, more neighbours are read and ``batch_order`` decides.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from tailrace.formats.consumequeue import (
    BATCH_CQ_UNIT,
    CQ_UNIT,
    INVALID_POS,
    PRE_BLANK,
    PRE_BLANK_SIZE,
    BatchCqUnit,
    CqUnit,
)
from tailrace.kernels.shared import constants as C
from tailrace.segments import MappedFile
from tailrace.store.batch_order import Units, fitting, follow_each_other, is_batch_unit, is_tidy

__all__ = [
    "UNIT", "BatchFile", "BatchPlaces", "Covering", "batch_units", "end_of_units", "first_of", "fitting_between",
    "is_batch_unit", "last_of", "places_until",
]

UNIT: Final = BATCH_CQ_UNIT.size
_READ: Final = 512
"""Number of units per read."""
_BESIDE: Final = 64
"""Number of units on each side that are read to decide what a damaged unit stands for."""
_GROUP: Final = 4
"""This many invalid units in a row are the end of a file, or a hole that a crash has left."""
_COLUMNS: Final = {
    "phy_offset": C.PHY, "size": C.SIZE, "tags_code": C.TAGS_CODE,
    "store_time": C.STORE_TIMESTAMP, "msg_base_offset": C.QUEUE_OFFSET}
_NEVER: Final = 1 << 62
Rows = np.ndarray[Any, np.dtype[np.int64]]


class BatchFile(Protocol):
    """A file of units: an open file, or a file of a directory that is read without the lock."""

    file_from_offset: int
    size: int

    def read(self, at: int, n: int) -> bytes:
        """Return up to ``n`` bytes at ``at``."""
        ...


class Covering(NamedTuple):
    """The unit that stands for a queue offset."""

    unit: BatchCqUnit
    base: int
    end: int
    """Queue offset after its last message."""
    place: int
    """Position of the unit, in bytes from the start of the queue."""


def batch_units(rows: Rows, chosen: Rows, counts: Rows) -> bytes:
    """Return the stored form of one unit for each chosen record row; ``counts`` are their numbers of messages."""
    units: Units = np.zeros(len(chosen), dtype=BATCH_CQ_UNIT.dtype)
    for name, column in _COLUMNS.items():
        units[name] = rows[chosen, column]
    units["batch_size"] = counts
    units["compacted_offset"] = INVALID_POS
    return units.tobytes()


def first_of(file: BatchFile) -> int:
    """Return the queue offset in the first unit of a file, -1 if the file does not start with a valid unit."""
    data = file.read(0, UNIT)
    unit = BATCH_CQ_UNIT.unpack_from(data) if len(data) == UNIT else None
    return unit.msg_base_offset if unit is not None and is_batch_unit(unit) else -1


def end_of_units(file: MappedFile) -> int:
    """Return the number of units at the start of a file, up to its end or a hole.

    Searches by halves, so it reads little of the file.
    """
    units = min(-(-file.data_end() // UNIT), file.size // UNIT)
    low, high = 0, -(-units // _GROUP)
    if (near := high - _BESIDE // _GROUP) > 0 and _last_in(file, near):
        low = near  # usually the queue ends in its last allocated block
    low += bisect_left(range(low, high), True, key=lambda group: not _last_in(file, group))
    return (low - 1) * _GROUP + _last_in(file, low - 1) if low else 0


def _last_in(file: BatchFile, group: int) -> int:
    """Return the number of units of a group up to its last valid one."""
    data = file.read(group * _GROUP * UNIT, _GROUP * UNIT)
    units = [BATCH_CQ_UNIT.unpack_from(data, at) for at in range(0, len(data) - UNIT + 1, UNIT)]
    return max((number for number, unit in enumerate(units, 1) if is_batch_unit(unit)), default=0)


def last_of(files: Sequence[MappedFile]) -> tuple[int, BatchCqUnit] | None:
    """Return (position after it, unit) for the last unit that fits the units before it; None without such a unit."""
    for file in reversed(files):
        if count := end_of_units(file):
            high = file.file_from_offset + count * UNIT
            low = max(files[0].file_from_offset, high - _BESIDE * UNIT)
            places, units, fits = fitting_between(files, high, low, high)
            if fits.any():
                at = int(np.flatnonzero(fits)[-1])
                return int(places[at]) + UNIT, _as_tuple(units, at)
    return None


def places_until(files: Sequence[MappedFile], max_offset: int) -> BatchPlaces:
    """Return the places of a queue that ends at ``max_offset``.

    A record with messages before and after ``max_offset`` is left out.
    """
    last = last_of(files)
    if last is None:
        return BatchPlaces(files, max(files[0].file_from_offset, 0) if files else 0, max_offset)
    # Damaged units may come after the last one that fits.
    end = min(last[0] + _BESIDE * UNIT, files[-1].file_from_offset + files[-1].size)
    places = BatchPlaces(files, end, _NEVER)
    max_offset = places.begin_of(max_offset)
    place = places.place_of(max_offset - 1)
    return BatchPlaces(files, place + UNIT if place >= 0 else places.start, max_offset)


def fitting_between(
    files: Sequence[BatchFile], end: int, low: int, high: int
) -> tuple[Rows, Units, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Return the units at positions [``low``, ``high``), corrected by their neighbours.

    Return three arrays: the position of each unit, the unit, and whether it fits its neighbours as stored.
    ``end`` is the position after the last unit of the queue.
    """
    start, data = _read(files, max(low - UNIT, files[0].file_from_offset), min(high + UNIT, end), low)
    units: Units = BATCH_CQ_UNIT.view(data[: len(data) - len(data) % UNIT])
    if is_tidy(units):
        numbers, fits = np.arange(len(units)), np.ones(len(units), dtype=np.bool_)
    else:
        around = _BESIDE * UNIT
        start, data = _read(files, max(low - around, files[0].file_from_offset), min(high + around, end), low)
        numbers, units, fits = fitting(BATCH_CQ_UNIT.view(data[: len(data) - len(data) % UNIT]))
    places = start + numbers * UNIT
    inside = (places >= low) & (places < high)
    return places[inside], units[inside], fits[inside]


def _read(files: Sequence[BatchFile], low: int, high: int, place: int) -> tuple[int, bytes]:
    """Return (position of the first byte, bytes) for positions [``low``, ``high``).

    If a file in between was deleted, only the bytes on the same side of the gap as ``place`` are returned.
    """
    parts: list[bytes] = []
    start = low
    first = max(bisect_right(files, low, key=_start_of) - 1, 0)
    for file in itertools.islice(files, first, None):
        base = file.file_from_offset
        if base >= high:
            break
        at = max(low, base)
        if parts and start + sum(len(part) for part in parts) != at:
            if at > place:
                break
            parts = []
        if not parts:
            start = at
        parts.append(file.read(at - base, min(high, base + file.size) - at))
    return start, parts[0] if len(parts) == 1 else b"".join(parts)


def _start_of(file: BatchFile) -> int:
    return file.file_from_offset


def _as_tuple(units: Units, at: int) -> BatchCqUnit:
    return BatchCqUnit(*units[at].tolist())


class BatchPlaces(NamedTuple):
    """The units of a batch queue: its files at one moment, and its end. Positions count bytes of the queue."""

    files: Sequence[BatchFile]
    end: int
    """Position after the last unit."""
    max_offset: int

    @property
    def start(self) -> int:
        """Position of the first unit."""
        return max(self.files[0].file_from_offset, 0) if self.files else 0

    def near(self, place: int) -> tuple[int, BatchCqUnit] | None:
        """Return (position, corrected unit) for the unit at a position.

        If there is no valid unit, return the closest valid one before it, or else the closest after it.
        Return None if the queue has no valid unit.
        """
        low, high = max(place - UNIT, self.start), min(place + 2 * UNIT, self.end)
        start, data = _read(self.files, low, high, place)
        if start == low and len(data) == high - low and follow_each_other(data):
            return place, BATCH_CQ_UNIT.unpack_from(data, place - low)
        reach = _BESIDE * UNIT
        while True:
            low, high = max(place - reach, self.start), min(place + UNIT + reach, self.end)
            start, data = _read(self.files, low, high, place)
            numbers, found, _ = fitting(BATCH_CQ_UNIT.view(data[: len(data) - len(data) % UNIT]))
            if len(numbers):
                at = max(int(np.searchsorted(numbers, (place - start) // UNIT, "right")) - 1, 0)
                return start + int(numbers[at]) * UNIT, _as_tuple(found, at)
            if low == self.start and high == self.end:
                return None
            reach *= 8

    def place_of(self, offset: int) -> int:
        """Return the position of the last unit that starts at or before a queue offset, -1 without one."""
        start, last = self.start, -1
        low, high = 0, max((self.end - start) // UNIT, 0)
        while low < high:
            middle = (low + high) // 2
            found = self.near(start + middle * UNIT)
            if found is None:
                return -1
            number = (found[0] - start) // UNIT
            if found[1].msg_base_offset <= offset:
                low, last = max(middle, number) + 1, max(last, found[0])
            else:
                high = min(middle, number)
        return last

    def covering(self, offset: int) -> Covering | None:
        """Return the unit that has the message at a queue offset, None without one."""
        place = self.place_of(offset)
        found = self.near(place) if place >= 0 else None
        if found is None:
            return None
        unit = found[1]
        base = unit.msg_base_offset
        if not base <= offset < base + unit.batch_size:
            return None
        return Covering(unit, base, base + unit.batch_size, found[0])

    def begin_of(self, offset: int) -> int:
        """Return the queue offset of the first message of the record that has the message at ``offset``."""
        found = self.covering(offset)
        return found.base if found is not None else offset

    def first_in(self, file: BatchFile) -> int:
        """Return the queue offset of the first message of a file; the end of the queue if it has none."""
        found = self.near(file.file_from_offset) if file.file_from_offset < self.end else None
        return found[1].msg_base_offset if found is not None else self.max_offset

    def look(self, offset: int, count: int, place: int) -> tuple[bytes, int]:
        """Return units of 20 bytes for up to ``count`` queue offsets from ``offset`` onwards, from one file.

        ``place`` is the position of the first of them. A damaged unit is read as what its neighbours say of its
        messages. Return also the queue offset after the last record. Return b"" if the file was deleted.
        """
        until = min(offset + count, self.max_offset)
        number = bisect_right(self.files, place, key=_start_of) - 1
        if place < 0 or number < 0 or until <= offset:
            return b"", offset
        file = self.files[number]
        made: Any = CQ_UNIT.view(PRE_BLANK * (until - offset)).copy()
        at, stop = place, min(self.end, file.file_from_offset + file.size)
        done, last = offset, offset
        while at < stop and done < until:
            high = min(at + min(_READ, until - done + 1) * UNIT, stop)
            _, units, _ = fitting_between(self.files, self.end, at, high)
            bases = units["msg_base_offset"].astype(np.int64)
            inside = (bases >= offset) & (bases < until)
            for name in CqUnit._fields:
                made[name][bases[inside] - offset] = units[name][inside]
            if inside.any():
                chosen = np.flatnonzero(inside & (units["size"] != PRE_BLANK_SIZE))
                last = int(bases[chosen[-1]] + units["batch_size"][chosen[-1]]) if len(chosen) else last
            if len(units):
                done = max(done, int(bases[-1] + units["batch_size"][-1]))
            elif not file.read(at - file.file_from_offset, UNIT):
                break
            at = high
        else:
            if done < until:  # messages between two files, or after the last unit, are lost
                following = self.files[number + 1 :]
                done = max(done, self.first_in(following[0]) if following else until)
        found: bytes = made[: min(done, until) - offset].tobytes()
        return found, last
