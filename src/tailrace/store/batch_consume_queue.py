"""BatchConsumeQueue, for topics with ``queue.type=BatchCQ``: one unit for all messages of a record.

Owns ``batchconsumequeue/TOPIC/ID/``. Invariants:
  B1  Units follow each other from the first byte of the first file onwards, one for each record, in the order
      of their queue offsets. A unit has the queue offset of its first message and their number (``batch_units``).
  B2  The first file has a unit, and its queue offset is where the queue begins.
  B3  No unit is trusted by itself: its neighbours decide which messages it stands for (``batch_order``).
Rule C2 of ConsumeQueue also holds: everything is a function of the CommitLog and may be deleted.
A unit with the size of a pre-blank unit keeps the places of lost messages. It has the position of the record before
it, because a Java broker takes the last position in a queue as the position up to which the queue was dispatched.
Commit point and concurrency are those of ``ConsumeQueue``.
"""

from __future__ import annotations

from typing import Any, Final, final

import numpy as np

from tailrace.formats.consumequeue import (
    BATCH_CQ_UNIT,
    CQ_UNIT,
    INVALID_POS,
    PRE_BLANK,
    PRE_BLANK_SIZE,
    CqUnit,
)
from tailrace.formats.inner_batch import MIN_ITEM_LENGTH
from tailrace.segments import MappedFile
from tailrace.store.batch_reading import BatchWindow, batch_window
from tailrace.store.batch_units import (
    UNIT,
    BatchPlaces,
    end_of_units,
    first_of,
    fitting_between,
    last_of,
    places_until,
)
from tailrace.store.consume_queue import ConsumeQueue

__all__ = ["BatchConsumeQueue", "batch_unit"]

_LOOK: Final = 4096
_NEVER: Final = 1 << 62
Codes = np.ndarray[Any, np.dtype[np.int64]]


class _NotCachedError(Exception):
    """A read would have to wait for the disk."""


class _CachedFile:
    """A file that is read from the page cache only; raises ``_NotCachedError`` if a page is missing."""

    def __init__(self, file: MappedFile) -> None:
        self.file_from_offset, self.size = file.file_from_offset, file.size
        self._file = file

    def read(self, at: int, n: int) -> bytes:
        data = self._file.read_cached(at, n)
        if data is None:
            raise _NotCachedError
        return data


def batch_unit(unit: CqUnit, store_time: int, base: int, count: int = 1) -> bytes:
    """Return the unit of a record as it is on disk."""
    return BATCH_CQ_UNIT.pack(*unit, store_time, base, count, INVALID_POS, 0)


@final
class BatchConsumeQueue(ConsumeQueue):
    """One queue of a topic with ``queue.type=BatchCQ``. ``units`` returns units as a ConsumeQueue does."""

    is_batch = True
    unit_size = UNIT
    least_bytes = MIN_ITEM_LENGTH
    _end = 0
    """Position after the last unit, in bytes from the start of the queue."""

    # -- loading

    def _take_files(self) -> str:
        files = self.files.files
        self._end = max(self.files.min_offset, 0)
        self._min_offset = self.max_offset = max(first_of(files[0]), 0) if files else 0
        return "the first file has no unit" if files and first_of(files[0]) < 0 else ""

    def remove_files(self) -> None:
        """Remove every file of the queue, also files that were not loaded."""
        super().remove_files()
        self._end = 0

    def find_end(self, *, raw: bool = False) -> None:
        """End the queue after the last unit in its files."""
        del raw  # the neighbours of a damaged unit show the damage, however the end is found
        self._take_files()
        if found := last_of(self.files.files):
            self._end, last = found
            self.max_offset = last.msg_base_offset + last.batch_size

    def set_end(self, max_offset: int) -> None:
        """End the queue at ``max_offset``, or before the record that has messages before and after it."""
        places = places_until(self.files.files, max_offset)
        self._end = places.end
        super().set_end(places.max_offset)

    def _end_position(self) -> int:
        return self._end

    def rewind(self, phy_offset: int) -> None:
        """End the queue before its first unit that names a record at or after ``phy_offset``.

        Positions of records grow along a queue. A position out of order is damaged and is ignored: its unit
        stays. A unit without a message also stays.
        """
        low, at = max(self.files.min_offset, 0), self._end
        end = at
        while at > low:
            file = self.files.find(at - UNIT)
            assert file is not None, "files follow each other"
            start = max(file.file_from_offset, at - _LOOK * UNIT)
            places, units, fits = fitting_between(self.files.files, self._end, start, at)
            real = np.flatnonzero(fits & (units["size"] != PRE_BLANK_SIZE))
            named = units["phy_offset"][real]
            grows = np.diff(named) > 0
            below = np.flatnonzero((named < phy_offset) & np.append(True, grows)[: len(real)])
            last = int(below[-1]) if len(below) else -1
            above = np.flatnonzero((named >= phy_offset) & np.append(grows, True)[: len(real)])
            above = above[above > last]
            end = int(places[real[above[0]]]) if len(above) else end
            if last >= 0:
                self.last_phy_offset = int(named[last])
                self._end_at(end)
                return
            at = start
        self.last_phy_offset = -1
        self._end_after_blanks(low)

    def _end_after_blanks(self, at: int) -> None:
        """End the queue at position ``at``, or after the units without a message that start there."""
        while at < self._end:
            data = self.files.read(at, UNIT)
            if len(data) < UNIT or BATCH_CQ_UNIT.unpack_from(data).size != PRE_BLANK_SIZE:
                break
            at += UNIT
        self._end_at(at)

    def _end_at(self, at: int) -> None:
        found = self.places().near(at - UNIT) if at > max(self.files.min_offset, 0) else None
        if found is not None:
            self.max_offset = found[1].msg_base_offset + found[1].batch_size
        else:
            self.max_offset = self.first_offset
        self._end = at
        self._min_offset = min(self._min_offset, self.max_offset)

    def last_unit(self) -> tuple[CqUnit | None, int]:
        """Return the last unit in the files, even after the queue's end, and the offset of its last message."""
        if found := last_of(self.files.files):
            last = found[1]
            return CqUnit(*last[:3]), last.msg_base_offset + last.batch_size - 1
        return None, -1

    def _first_in(self, file: MappedFile) -> int:
        return self.places().first_in(file)

    def _last_phy_offset(self, file: MappedFile) -> int:
        at, is_there = file.file_from_offset + file.size, False
        while at > file.file_from_offset:
            start = max(at - _LOOK * UNIT, file.file_from_offset)
            _, units, fits = fitting_between(self.files.files, self._end, start, at)
            is_there = is_there or len(units) > 0
            real = units["phy_offset"][fits & (units["size"] != PRE_BLANK_SIZE)]
            if len(real):
                return int(real[-3:].max())  # of three: a damaged one must not let the file be deleted early
            at = start
        return -1 if is_there else _NEVER  # its topic is being deleted

    # -- reading

    def places(self) -> BatchPlaces:
        """Return the queue's units as they are now."""
        max_offset = self.max_offset  # read it first, because units are written before it moves
        return BatchPlaces(self.files.files, self._end, max_offset)

    def window(
        self, offset: int, count: int, most: int, codes: Codes | None, *, only_cached: bool
    ) -> BatchWindow | None:
        """Return the units that a read examines (``batch_window``); None if a page is not in the page cache."""
        places = self.places()
        if not only_cached:
            return batch_window(places, offset, count, most, codes)
        cached = places._replace(files=[_CachedFile(file) for file in self.files.files])
        try:
            return batch_window(cached, offset, count, most, codes)
        except _NotCachedError:
            return None

    @property
    def first_offset(self) -> int:
        """Queue offset of the first message of the first file."""
        places = self.places()
        return places.first_in(places.files[0]) if places.files else places.max_offset

    def next_file(self, offset: int) -> int:
        """Return the queue offset of the first message of the next file; after the last file, the queue's end."""
        places = self.places()
        starts = (first for file in places.files if (first := places.first_in(file)) > offset)
        return min(next(starts, places.max_offset), places.max_offset)

    def offset_after_file(self, offset: int) -> int:
        """Return the offset to continue reading at if the file with the unit at ``offset`` was deleted."""
        return self.next_file(offset)

    def begin_of(self, offset: int) -> int:
        """Return the queue offset of the first message of the record that has the message at ``offset``."""
        return self.places().begin_of(offset)

    def end_of(self, offset: int) -> int:
        """Return the queue offset after the last message of the record that has the message at ``offset``."""
        found = self.places().covering(offset)
        return found.end if found is not None else offset + 1

    def unit_bytes(self) -> int:
        """Return the bytes of the units of the messages that are shown."""
        low, high = (self.places().place_of(at) for at in (self.min_offset, self.max_offset))
        return high - low + UNIT if low >= 0 and self.min_offset < self.max_offset else 0

    def unit(self, offset: int) -> CqUnit | None:
        """Return the unit of the record that has the message at ``offset``, or None."""
        if not self.first_offset <= offset < self.max_offset:
            return None
        found = self.places().covering(offset)
        return CqUnit(*found.unit[:3]) if found is not None else CQ_UNIT.unpack_from(PRE_BLANK)

    def units(self, offset: int, count: int) -> bytes:
        """Return units of 20 bytes of up to ``count`` messages from ``offset``, up to a file that was deleted."""
        places, found, until = self.places(), b"", offset + count
        while part := places.look(offset, until - offset, places.place_of(offset))[0]:
            found += part
            offset += len(part) // CQ_UNIT.size
        return found

    def stored_units(self, offset: int, count: int) -> bytes:
        """Return up to ``count`` units as they are on disk, starting with that of the message at ``offset``."""
        at, found = self.places().place_of(offset), b""
        while at >= 0 and (part := self.files.read(at + len(found), count * UNIT - len(found))):
            found += part
        return found

    def skip_written(self, units: memoryview) -> int:
        """Do what the method of ``ConsumeQueue`` does, for units of 46 bytes."""
        found = self._count_written(units)
        if found:
            last = BATCH_CQ_UNIT.unpack_from(units, found - UNIT)
            self.set_end(last.msg_base_offset + last.batch_size)
        return found

    def follows(self, phy_offset: int) -> bool:
        """Return True if the unit on disk at the queue's end names the record at ``phy_offset``."""
        data = self.files.read(self._end, UNIT)
        if len(data) < UNIT:
            return False
        unit = BATCH_CQ_UNIT.unpack_from(data)
        return unit.phy_offset == phy_offset and unit.msg_base_offset == self.max_offset

    # -- writing

    def write(self, offset: int, units: bytes | memoryview, *, gap: bytes = PRE_BLANK) -> None:
        """Write units of 46 bytes at the queue's end. ``offset`` is that of the first message of the first unit.

        Offsets between the queue's end and ``offset`` need no unit, so ``gap`` is not used.
        Raises DiskFullError or OSError.
        """
        del gap
        assert offset >= self.max_offset, "units are in the order of their queue offsets"
        last = BATCH_CQ_UNIT.unpack_from(units, len(units) - UNIT)
        if not self.files.files:
            self._end, self._min_offset = 0, offset
        self.files.write(self._end, units)
        self._end += len(units)
        self.max_offset = last.msg_base_offset + last.batch_size

    def write_one(self, offset: int, unit: bytes, count: int = 1) -> None:
        """Write the unit (20 bytes) of a record with ``count`` messages at the queue's end."""
        self.write(offset, batch_unit(CQ_UNIT.unpack_from(unit), self.last_store_timestamp, offset, count))

    def continue_at(self, offset: int) -> None:
        """Move the queue's end to ``offset``, with one unit without a message for the places before it."""
        if offset > self.max_offset:
            self.write_one(offset - 1, CQ_UNIT.pack(max(self.last_phy_offset, 0), PRE_BLANK_SIZE, 0))

    def restart_at(self, offset: int) -> None:
        """Start an empty queue at ``offset``."""
        self.continue_at(offset)
        self._min_offset = self.max_offset

    def forget_messages(self, end: int) -> None:
        """Drop every message durably: the queue ends at ``end``, and its last file has units without a message.

        The units of the last file are changed in place before other files are deleted. After a crash at any
        moment each place has an old unit or a changed one, so the end of the queue is known.
        Raises OSError, and FatalStorageError when a sync fails.
        """
        for file in reversed(self.files.files):
            count = end_of_units(file)
            if not count:
                continue
            units: Any = BATCH_CQ_UNIT.view(file.read(0, count * UNIT)).copy()
            units["size"] = PRE_BLANK_SIZE
            self.files.write(file.file_from_offset, units.tobytes())
            self.files.flush()
            self.set_end(end)
            self.files.truncate_dirty_files(self._end)
            while self.files.files[0] is not file:
                self.files.delete_head(self.files.files[0])
            break
        self.continue_at(end)
        self.files.flush()
        self._min_offset = end

    def truncate(self, max_offset: int) -> None:
        """End the queue at ``max_offset`` and clear the bytes after it."""
        self.set_end(max_offset)
        self.files.truncate_dirty_files(self._end)
