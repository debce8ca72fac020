"""Batch ConsumeQueues, of topics with ``queue.type=BatchCQ``: one unit for the messages of one record.

Owns ``batchconsumequeue/TOPIC/ID/``. Invariants:
  B1  Units follow each other from the first byte of the first file on, one for each record, in the order of
      their queue offsets; each names the first of its messages and their number, see ``batch_units``.
  B2  The first file that is there has a unit. Its first queue offset is where the queue begins.
C2 of ConsumeQueues holds here, too: all of it is a function of the CommitLog and may be deleted.
A unit whose size is that of a pre-blank one keeps the places of messages that are lost. It names the position of the
record before it: a Java broker takes the last position in a queue for how far the queue was dispatched.
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
    last_of,
    place_of,
    valid_units,
)
from tailrace.store.consume_queue import ConsumeQueue

__all__ = ["BatchConsumeQueue", "batch_unit"]

_LOOK: Final = 1 << 16
_NEVER: Final = 1 << 62
Codes = np.ndarray[Any, np.dtype[np.int64]]


class _NotCachedError(Exception):
    """A read would have to wait for the disk."""


class _CachedFile:
    """A file of which only what is in the page cache is read."""

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
    """One queue of one topic with ``queue.type=BatchCQ``. ``units`` of it are as if it were a ConsumeQueue."""

    is_batch = True
    unit_size = UNIT
    least_bytes = MIN_ITEM_LENGTH
    _end = 0
    """Position in the stream behind the last unit."""

    # -- loading

    def _take_files(self) -> str:
        files = self.files.files
        self._end = max(self.files.min_offset, 0)
        self._min_offset = self.max_offset = max(first_of(files[0]), 0) if files else 0
        return "the first file has no unit" if files and first_of(files[0]) < 0 else ""

    def remove_files(self) -> None:
        """Remove every file of the queue, also those that were not taken."""
        super().remove_files()
        self._end = 0

    def find_end(self) -> None:
        """Set the end to where the units of the last file that has any end."""
        self._take_files()
        if found := last_of(self.files.files):
            self._end, last = found
            self.max_offset = last.msg_base_offset + last.batch_size

    def set_end(self, max_offset: int) -> None:
        """Have the queue end at ``max_offset``, or before the record that has messages on both sides of it."""
        files = self.files.files
        end = files[-1].file_from_offset + files[-1].size if files else 0
        max_offset = BatchPlaces(files, end, _NEVER).begin_of(max_offset)
        place = place_of(files, end, max_offset - 1)
        self._end = place + UNIT if place >= 0 else max(self.files.min_offset, 0)
        super().set_end(max_offset)

    def _end_position(self) -> int:
        return self._end

    def rewind(self, phy_offset: int) -> None:
        """Have the queue end behind its last unit of a record below ``phy_offset``.

        Units without a message that follow it stay: they keep the places of messages that are lost.
        """
        low, at = max(self.files.min_offset, 0), self._end
        while at > low:
            file = self.files.find(at - UNIT)
            assert file is not None, "files follow each other"
            start = max(file.file_from_offset, at - _LOOK * UNIT)
            units: Any = BATCH_CQ_UNIT.view(self.files.read(start, at - start))
            kept = np.flatnonzero((units["size"] != PRE_BLANK_SIZE) & (units["phy_offset"] < phy_offset))
            if len(kept):
                self.last_phy_offset = int(units["phy_offset"][kept[-1]])
                self._end_behind_blanks(start + (int(kept[-1]) + 1) * UNIT)
                return
            at = start
        self.last_phy_offset = -1
        self._end_behind_blanks(low)

    def _end_behind_blanks(self, at: int) -> None:
        """End the queue at a position, or behind the units without a message that are there."""
        while at < self._end:
            data = self.files.read(at, UNIT)
            if len(data) < UNIT or BATCH_CQ_UNIT.unpack_from(data).size != PRE_BLANK_SIZE:
                break
            at += UNIT
        if at > max(self.files.min_offset, 0):
            last = BATCH_CQ_UNIT.unpack_from(self.files.read(at - UNIT, UNIT))
            self.max_offset = last.msg_base_offset + last.batch_size
        else:
            self.max_offset = self.first_offset
        self._end = at
        self._min_offset = min(self._min_offset, self.max_offset)

    def last_unit(self) -> tuple[CqUnit | None, int]:
        """The last unit that the files have, whatever the queue's end is, and the offset of its last message."""
        if found := last_of(self.files.files):
            last = found[1]
            return CqUnit(*last[:3]), last.msg_base_offset + last.batch_size - 1
        return None, -1

    def _first_in(self, file: MappedFile) -> int:
        return max(first_of(file), 0)

    def _last_phy_offset(self, file: MappedFile) -> int:
        units = valid_units(file.read(0, file.size))
        if not len(units):
            return _NEVER  # its topic is being deleted
        real = units["phy_offset"][units["size"] != PRE_BLANK_SIZE]
        return int(real[-1]) if len(real) else -1

    # -- reading

    def places(self) -> BatchPlaces:
        """What the queue says of its places at the moment."""
        max_offset = self.max_offset  # first: units are written before it moves
        return BatchPlaces(self.files.files, self._end, max_offset)

    def window(
        self, offset: int, count: int, most: int, codes: Codes, *, only_cached: bool
    ) -> BatchWindow | None:
        """What a read looks at, see ``batch_window``; None if it is not all in the page cache."""
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
        return self.places().first_offset

    def next_file(self, offset: int) -> int:
        """Queue offset of the first message of the next file; the end of the queue after the last one."""
        return self.places().next_file(offset)

    def behind_file(self, offset: int) -> int:
        """Where to go on when the file that has the unit at ``offset`` is gone."""
        return self.next_file(offset)

    def begin_of(self, offset: int) -> int:
        """Queue offset of the first message of the record that has the message at ``offset``."""
        return self.places().begin_of(offset)

    def unit(self, offset: int) -> CqUnit | None:
        """The unit of the record that has the message at ``offset``, or None."""
        if not self.first_offset <= offset < self.max_offset:
            return None
        found = self.places().covering(offset)
        return CqUnit(*found.unit[:3]) if found is not None else CQ_UNIT.unpack_from(PRE_BLANK)

    def units(self, offset: int, count: int) -> bytes:
        """Units of 20 bytes of up to ``count`` messages from ``offset``, as far as one file has them."""
        return self.places().units(offset, count)

    def is_written(self, offset: int, units: bytes | memoryview) -> bool:
        """Whether exactly these units, of 46 bytes, are on disk behind the end, at ``offset``."""
        assert offset == self.max_offset, "only what follows can be compared"
        done = 0
        while done < len(units):
            part = self.files.read(self._end + done, len(units) - done)
            if not part or part != units[done : done + len(part)]:
                return False
            done += len(part)
        return True

    def follows(self, phy_offset: int) -> bool:
        """Whether the unit on disk behind the end names the record at a position as the next one."""
        data = self.files.read(self._end, UNIT)
        if len(data) < UNIT:
            return False
        unit = BATCH_CQ_UNIT.unpack_from(data)
        return unit.phy_offset == phy_offset and unit.msg_base_offset == self.max_offset

    # -- writing

    def write(self, offset: int, units: bytes | memoryview, *, gap: bytes = PRE_BLANK) -> None:
        """Write units, of 46 bytes, behind the end; the first message of the first one is at ``offset``.

        The places between the end and ``offset`` need no unit, whatever ``gap`` says. Raises DiskFullError or
        OSError.
        """
        del gap
        assert offset >= self.max_offset, "units are in the order of their queue offsets"
        last = BATCH_CQ_UNIT.unpack_from(units, len(units) - UNIT)
        if not self.files.files:
            self._end, self._min_offset = 0, offset
        self._write_at(self._end, units)
        self._end += len(units)
        self.max_offset = last.msg_base_offset + last.batch_size

    def write_one(self, offset: int, unit: bytes, count: int = 1) -> None:
        """Write the unit, of 20 bytes, of a record with ``count`` messages behind the end."""
        self.write(offset, batch_unit(CQ_UNIT.unpack_from(unit), self.last_store_timestamp, offset, count))

    def go_on_at(self, offset: int) -> None:
        """Have the next message come at ``offset``; a unit without a message says so."""
        if offset > self.max_offset:
            self.write_one(offset - 1, CQ_UNIT.pack(max(self.last_phy_offset, 0), PRE_BLANK_SIZE, 0))

    def restart_at(self, offset: int) -> None:
        """Begin an empty queue at ``offset``."""
        self.go_on_at(offset)
        self._min_offset = self.max_offset

    def forget_messages(self, end: int) -> None:
        """Have the queue go on at ``end`` with nothing but units without a message in its last file, durably.

        Units are made such in place before other files are deleted. After a crash at any moment each
        place has an old unit or one of these, so the end of the queue is known. Raises OSError;
        FatalStorageError when a sync fails.
        """
        for file in reversed(self.files.files):
            count = end_of_units(file)
            if not count:
                continue
            units: Any = BATCH_CQ_UNIT.view(file.read(0, count * UNIT)).copy()
            units["size"] = PRE_BLANK_SIZE
            file.write_at(units.tobytes(), 0)
            self.files.flushed_where = min(self.files.flushed_where, file.file_from_offset)
            self.files.flush()
            self.set_end(end)
            self.files.truncate_dirty_files(self._end)
            while self.files.files[0] is not file:
                self.files.delete_head(self.files.files[0])
            break
        self.go_on_at(end)
        self.files.flush()
        self._min_offset = end

    def truncate(self, max_offset: int) -> None:
        """End the queue at ``max_offset`` and clear what is behind."""
        self.set_end(max_offset)
        self.files.truncate_dirty_files(self._end)
