"""Units of a batch ConsumeQueue as those of a ConsumeQueue, by queue offset.

A file has one unit of 46 bytes for each record, and a record may have many messages: the unit says the
queue offset of the first one and how many there are. Readers of queues get units of 20 bytes, one for each
queue offset: the record's at its first message, and pre-blank ones, which are no message, at the others. A
gap between two units is pre-blank, too. So searches, sums and kernels see nothing but a ConsumeQueue.

Units are in the order of their queue offsets. The first that is no unit, or begins before the one in front of
it ends, ends a queue.
"""

from __future__ import annotations

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
from tailrace.formats.inner_batch import MIN_ITEM_LENGTH
from tailrace.kernels import record

__all__ = [
    "UNIT", "BatchFile", "BatchPlaces", "Covering", "batch_units", "count_batch_units", "end_of_units", "first_of",
    "is_batch_unit", "last_of", "place_of", "valid_units",
]

UNIT: Final = BATCH_CQ_UNIT.size
_READ: Final = 512
"""Units that one read takes."""
_LAST: Final = 64
OFFSET_LIMIT: Final = 1 << 40
"""A unit with a larger queue offset is damaged."""
_COLUMNS: Final = {
    "phy_offset": record.C_PHY, "size": record.C_SIZE, "tags_code": record.C_TAGS_CODE,
    "store_time": record.C_STORE_TIMESTAMP, "msg_base_offset": record.C_QUEUE_OFFSET}
Units = np.ndarray[Any, np.dtype[np.void]]
Rows = np.ndarray[Any, np.dtype[np.int64]]


class BatchFile(Protocol):
    """A file of units."""

    file_from_offset: int
    size: int

    def read(self, at: int, n: int) -> bytes:
        """Up to ``n`` bytes."""
        ...


class _EndedFile(BatchFile, Protocol):
    def data_end(self) -> int: ...


class Covering(NamedTuple):
    """The unit that stands for a queue offset."""

    unit: BatchCqUnit
    base: int
    end: int
    """Behind its last message."""


def is_batch_unit(unit: BatchCqUnit | None) -> bool:
    """Return whether these fields can be a unit."""
    return (
        unit is not None and unit.size > 0 and unit.phy_offset >= 0
        and 0 <= unit.msg_base_offset < OFFSET_LIMIT and unit.batch_size > 0
        and unit.compacted_offset == INVALID_POS and not unit.reserved)


def _unit(file: BatchFile, at: int) -> BatchCqUnit | None:
    data = file.read(at, UNIT)
    return BATCH_CQ_UNIT.unpack_from(data) if len(data) == UNIT else None


def end_of_units(file: _EndedFile) -> int:
    """Return the number of units at the start of a file whose units have no hole between them, by few reads."""
    low, high = 0, min(-(-file.data_end() // UNIT), file.size // UNIT)
    if high > _LAST and is_batch_unit(_unit(file, (high - _LAST) * UNIT)):
        low = high - _LAST  # a queue ends in the last block it has, but for zeros
    while low < high:
        middle = (low + high) // 2
        if is_batch_unit(_unit(file, middle * UNIT)):
            low = middle + 1
        else:
            high = middle
    return low


def last_of(files: Sequence[_EndedFile]) -> tuple[int, BatchCqUnit] | None:
    """Return the last unit of some files and the position in the stream after it, or None.

    A unit is damaged, and does not count, if the log had no room for the messages that are missing before it.
    """
    later: tuple[int, BatchCqUnit] | None = None
    for file in reversed(files):
        for place in range(end_of_units(file) - 1, -1, -1):
            unit = _unit(file, place * UNIT)
            if unit is None or not is_batch_unit(unit):
                continue
            if later is not None and _follow(unit, later[1]):
                return later
            later = file.file_from_offset + (place + 1) * UNIT, unit
    return later


def _follow(unit: BatchCqUnit, following: BatchCqUnit) -> bool:
    """Return whether a unit can be the one after another, places of lost messages between them."""
    lost = following.msg_base_offset - unit.msg_base_offset - unit.batch_size
    room = (following.phy_offset - unit.phy_offset) // MIN_ITEM_LENGTH
    # One without a message stands for all that were in a log that is lost.
    return lost == 0 or (lost > 0 and (lost <= room or following.size == PRE_BLANK_SIZE))


def batch_units(rows: Rows, chosen: Rows, counts: Rows) -> bytes:
    """Return the units of some record rows, each with so many messages, as they are on disk."""
    units: Units = np.zeros(len(chosen), dtype=BATCH_CQ_UNIT.dtype)
    for name, column in _COLUMNS.items():
        units[name] = rows[chosen, column]
    units["batch_size"] = counts
    units["compacted_offset"] = INVALID_POS
    return units.tobytes()


def valid_units(data: bytes, after: int = 0) -> Units:
    """Return the units at the start of some bytes, up to the first that is none.

    ``after`` is the queue offset that the first one must not be below.
    """
    units: Units = BATCH_CQ_UNIT.view(data[: len(data) - len(data) % UNIT])
    bases = units["msg_base_offset"].astype(np.int64)
    ends = bases + units["batch_size"]
    good = (units["size"] > 0) & (units["phy_offset"] >= 0) & (units["batch_size"] > 0)
    good &= (bases >= 0) & (bases < OFFSET_LIMIT)
    good &= (units["compacted_offset"] == INVALID_POS) & (units["reserved"] == 0)
    good &= bases >= np.concatenate(([after], ends[:-1]))
    return units if bool(good.all()) else units[: int(np.argmin(good))]


def count_batch_units(data: bytes) -> int:
    """Return the number of units at the start of a file, up to the first that is none."""
    return len(valid_units(data))


def first_of(file: BatchFile) -> int:
    """Return the queue offset of the first message of a file, -1 if it has no unit."""
    unit = _unit(file, 0)
    return unit.msg_base_offset if unit is not None and is_batch_unit(unit) else -1


def place_of(files: Sequence[BatchFile], end: int, offset: int) -> int:
    """Return the stream position of the last unit that does not begin behind a queue offset, -1 if there is none.

    ``end`` is the position behind the last unit.
    """
    low, high = 0, len(files)
    while low < high:
        middle = (low + high) // 2
        first = first_of(files[middle]) if files[middle].file_from_offset < end else -1
        if 0 <= first <= offset:
            low = middle + 1
        else:
            high = middle
    if not low:
        return -1
    file = files[low - 1]
    low, high = 1, min(end - file.file_from_offset, file.size) // UNIT
    while low < high:
        middle = (low + high) // 2
        unit = _unit(file, middle * UNIT)
        if unit is not None and is_batch_unit(unit) and unit.msg_base_offset <= offset:
            low = middle + 1
        else:
            high = middle
    return file.file_from_offset + (low - 1) * UNIT


def _file_of(files: Sequence[BatchFile], place: int) -> int:
    for number, file in enumerate(files):
        if file.file_from_offset <= place < file.file_from_offset + file.size:
            return number
    return -1


class BatchPlaces(NamedTuple):
    """What a batch queue says of its places: its files as they are now, and where it ends."""

    files: Sequence[BatchFile]
    end: int
    """Position in the stream behind the last unit."""
    max_offset: int

    def covering(self, offset: int) -> Covering | None:
        """Return the unit that stands for a queue offset, None if there is none."""
        place = place_of(self.files, self.end, offset)
        number = _file_of(self.files, place) if place >= 0 else -1
        if number < 0:
            return None
        unit = _unit(self.files[number], place - self.files[number].file_from_offset)
        if unit is None or not is_batch_unit(unit):
            return None
        base = unit.msg_base_offset
        if not base <= offset < base + unit.batch_size:
            return None
        return Covering(unit, base, base + unit.batch_size)

    def begin_of(self, offset: int) -> int:
        """Return the queue offset of the first message of the record that has the message at ``offset``."""
        found = self.covering(offset)
        return found.base if found is not None else offset

    def end_of(self, offset: int) -> int:
        """Return the queue offset behind the last message of the record that has the message before ``offset``."""
        found = self.covering(offset - 1)
        return max(found.end, offset) if found is not None else offset

    @property
    def first_offset(self) -> int:
        """Queue offset of the first message of the first file."""
        first = first_of(self.files[0]) if self.files else 0
        return first if first >= 0 else self.max_offset

    def next_file(self, offset: int) -> int:
        """Return the queue offset of the first message of the next file; the end of the queue after the last one."""
        for file in self.files:
            if file.file_from_offset < self.end and (first := first_of(file)) > offset:
                return min(first, self.max_offset)
        return self.max_offset

    def units(self, offset: int, count: int) -> bytes:
        """Return units of 20 bytes for up to ``count`` queue offsets from ``offset`` on, as far as one file has them.

        Nothing if the file is gone, or has something that is no unit there.
        """
        until = min(offset + count, self.max_offset)
        place = place_of(self.files, self.end, offset) if offset < until else -1
        number = _file_of(self.files, place) if place >= 0 else -1
        if number < 0:
            return b""
        made, done, is_whole = _expanded(self.files[number], place, self.end, offset, until)
        if done < until and is_whole:  # the messages between two files are lost, those behind the last unit, too
            following = self.files[number + 1 :]
            first = first_of(following[0]) if following and following[0].file_from_offset < self.end else until
            done = max(done, first)
        found: bytes = made[: min(done, until) - offset].tobytes()
        return found


def _expanded(file: BatchFile, place: int, end: int, offset: int, until: int) -> tuple[Any, int, bool]:
    """Return units of 20 bytes for [``offset``, ``until``), up to where they are right, whether all is read.

    Units of the file are read from the one at ``place`` of the stream on.
    """
    made: Any = CQ_UNIT.view(PRE_BLANK * (until - offset)).copy()
    at, stop = place - file.file_from_offset, min(end - file.file_from_offset, file.size)
    done, last = offset, 0
    while at < stop and done < until:
        data = file.read(at, min(_READ * UNIT, stop - at))
        units = valid_units(data, last)
        bases = units["msg_base_offset"].astype(np.int64)
        inside = (bases >= offset) & (bases < until)
        for name in CqUnit._fields:
            made[name][bases[inside] - offset] = units[name][inside]
        if len(units):
            last = int(bases[-1] + units["batch_size"][-1])
            done = max(done, last)
        if len(units) < len(data) // UNIT or not len(units):
            return made, done, False
        at += len(data)
    return made, done, True
