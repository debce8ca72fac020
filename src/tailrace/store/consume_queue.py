"""ConsumeQueue: the places in the CommitLog of the messages of one queue of a topic, in order.

Owns ``consumequeue/TOPIC/ID/``. A unit has 20 bytes: position and length of a record, code of its tag.
Queue offsets number the units. Invariants:
  C1  Unit ``i`` is at byte ``20 * i`` of the queue and names the message with QUEUEOFFSET ``i``.
      A place without a message holds the pre-blank unit.
  C2  Everything here is a function of the CommitLog and may be deleted.
Commit point: ``max_offset`` moves after the units are written. Dispatch is the only writer; any thread may read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from tailrace.errors import CorruptionError
from tailrace.formats.commitlog import MIN_RECORD_LENGTH
from tailrace.formats.consumequeue import CQ_UNIT, PRE_BLANK, PRE_BLANK_SIZE, CqUnit
from tailrace.formats.names import LMQ_PREFIX
from tailrace.segments import MappedFile, MappedFileQueue
from tailrace.store.queue_search import first_at, first_kept

__all__ = ["ConsumeQueue", "find_units_end"]

_UNIT = CQ_UNIT.size
_LOOK: Final = 4096
_NEVER: Final = 1 << 62
_LAST: Final = 256
_AHEAD: Final = 160
"""Units that ``units_ahead`` reads in one call: 3 kB per queue, enough for four reads of 32 messages."""


def _count_units(data: bytes) -> int:
    """Return the number of units at the start of a queue file, up to the first bytes that are not a unit."""
    units = CQ_UNIT.view(data[: len(data) - len(data) % _UNIT])
    valid = (units["size"] > 0) & (units["phy_offset"] >= 0)
    return len(units) if bool(valid.all()) else int(np.argmin(valid))


def _is_unit(data: bytes) -> bool:
    """Return True if 20 bytes can be a unit."""
    if len(data) < _UNIT:
        return False
    unit = CQ_UNIT.unpack_from(data)
    return unit.size > 0 and unit.phy_offset >= 0


def find_units_end(file: MappedFile) -> int:
    """Return the number of units at the start of a queue file that has no hole between its units.

    Searches for the end by halves, so it reads little of the file.
    """
    if not file.hold():  # so that a foreign file is opened once
        return 0
    try:
        return _find_units_end(file)
    finally:
        file.release()


def _find_units_end(file: MappedFile) -> int:
    high = -(-file.data_end() // _UNIT)
    low = max(high - _LAST, 0)  # usually the queue ends in its last allocated block
    if low and not _is_unit(file.read(low * _UNIT, _UNIT)):
        low = 0
    data = file.read(low * _UNIT, (high - low) * _UNIT) if high - low <= _LAST else b""
    start, high = low, min(high, file.size // _UNIT)
    while low < high:
        middle = (low + high) // 2
        at = (middle - start) * _UNIT
        unit = data[at : at + _UNIT] if data else file.read(middle * _UNIT, _UNIT)
        low, high = (middle + 1, high) if _is_unit(unit) else (low, middle)
    return low


class ConsumeQueue:
    """One queue of one topic. ``BatchConsumeQueue`` has other units on disk and the same methods."""

    is_batch = False
    """True if a unit may stand for several messages."""
    unit_size = _UNIT
    """Length of a unit on disk, in bytes."""
    least_bytes = MIN_RECORD_LENGTH
    """Least number of bytes that a message takes in the log."""

    def __init__(self, topic: str, queue_id: int, files: MappedFileQueue) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.record_topic = b"" if topic.startswith(LMQ_PREFIX) else topic.encode()
        """Topic of the records; empty for an LMQ queue, whose records have other topics."""
        self.files = files
        self.logical_min_offset = 0
        """The topic has released messages below this offset: they are still stored, but not shown."""
        self._min_offset = 0
        self.max_offset = 0
        self.last_store_timestamp = 0
        self.last_phy_offset = -1
        self.version = 0
        """Grows when the end moves back or units before it change, so that readers no longer use ``ahead``."""
        self.ahead: tuple[int, int, bytes] = 0, 0, b""
        """Units of the last read of ``units_ahead``: version, number of the first unit, the bytes."""
        self.read_ahead = range(0)
        """Offsets of the messages that the last read from the disk may have brought into memory; a hint for readers."""

    @property
    def min_offset(self) -> int:
        """Offset of the first message that is shown."""
        if self.logical_min_offset <= self._min_offset:
            return self._min_offset
        return max(self._min_offset, min(self.logical_min_offset, self.max_offset))

    # -- loading

    def load(self) -> str:
        """Load the list of files. All of them count as written until ``settle``.

        Return "" or, without loading any file, why the files cannot be right.
        """
        try:
            self.files.load()
        except CorruptionError as error:
            return str(error)
        starts = [file.file_from_offset for file in self.files.files]
        if starts != list(range(starts[0], starts[-1] + 1, self.files.file_size) if starts else ()):
            return f"files are missing between {starts[0]} and {starts[-1]}"
        return self._take_files()

    def _take_files(self) -> str:
        """Start the queue where its files start. Return "" or why the files cannot be right."""
        self._min_offset = self.max_offset = max(self.files.min_offset, 0) // _UNIT
        return ""

    def remove_files(self) -> None:
        """Remove every file of the queue, also files that were not loaded."""
        self.files.remove_all()
        self._min_offset = self.max_offset = 0
        self.version += 1

    def find_end(self, *, raw: bool = False) -> None:
        """End the queue after the last unit in its files; with ``raw`` read every unit to find it."""
        self._min_offset = self.max_offset = max(self.files.min_offset, 0) // _UNIT
        for file in reversed(self.files.files):
            count = _count_units(file.read(0, file.size)) if raw else find_units_end(file)
            self.max_offset = file.file_from_offset // _UNIT + count
            if count:
                return

    def set_end(self, max_offset: int) -> None:
        """End the queue at ``max_offset``. Units after it stay on disk until ``settle``."""
        self.max_offset = max_offset
        self._min_offset = min(self._min_offset, max_offset)
        self.version += 1

    def rewind(self, phy_offset: int) -> None:
        """End the queue after its last unit that names a record below ``phy_offset``.

        Pre-blank units that follow this unit stay, because they keep the places of lost messages.
        """
        high = self.max_offset
        low = max(self.files.min_offset, 0) // _UNIT
        while high > low:
            start = max(low, high - _LOOK, (high - 1) - (high - 1) % (self.files.file_size // _UNIT))
            units = CQ_UNIT.view(self.units(start, high - start))
            kept = np.flatnonzero(
                (units["size"] != PRE_BLANK_SIZE) & (units["phy_offset"] < phy_offset))
            if len(kept):
                self.last_phy_offset = int(units["phy_offset"][kept[-1]])
                self.set_end(self._after_blanks(start + int(kept[-1]) + 1))
                return
            high = start
        self.last_phy_offset = -1
        # If no unit is left, the pre-blank units at its start say where the queue begins.
        self.set_end(self._after_blanks(low))

    def _after_blanks(self, offset: int) -> int:
        """Return the first offset, from ``offset`` onwards, whose unit is not pre-blank, or the end of the queue."""
        while offset < self.max_offset:
            data = self.units(offset, min(_LOOK, self.max_offset - offset))
            blank = CQ_UNIT.view(data)["size"] == PRE_BLANK_SIZE
            count = len(blank) if bool(blank.all()) else int(np.argmin(blank))
            offset += count
            if count < len(blank) or not count:
                break
        return offset

    def settle(self, *, clear_after_end: bool, unflushed_files: int) -> bool:
        """Set the wrote and flushed positions of the files from the end of the queue.

        Bytes after the end are cleared if a later file has them, and also in the last file if
        ``clear_after_end``. The last ``unflushed_files`` files may be in the page cache only, so they do
        not count as flushed. Return True if bytes were cleared.
        """
        end = self._end_position()
        files = self.files.files
        clear = len(files) > 1 and files[-1].file_from_offset >= end
        last = self.files.find(end)
        if not clear and last is not None and clear_after_end:
            clear = any(True for _ in last.nonzero(end - last.file_from_offset))
        (self.files.truncate_dirty_files if clear else self.files.set_end)(end)
        self.files.doubt(unflushed_files)
        return clear

    def _end_position(self) -> int:
        """Return the position of the next unit, in bytes from the start of the queue."""
        return self.max_offset * _UNIT

    def correct_min_offset(self, min_phy_offset: int) -> None:
        """Move the least offset to the first unit whose message is still in the log (W11)."""
        self._min_offset = first_kept(self, min_phy_offset)

    def stamps(self, *, last: bool) -> list[list[int]]:
        """Return [position, time of change in ms] of each full file, with ``last`` also of the last file."""
        files = self.files.files
        return [[file.file_from_offset, file.mtime_ms()] for file in (files if last else files[:-1])]

    def has_stamps(self, stamps: list[list[int]], *, trimmed: bool, grown: bool) -> bool:
        """Return True if the files still have these ``stamps``.

        With ``trimmed`` the first files may have been deleted since; with ``grown`` the last file may
        have changed.
        """
        if grown:
            stamps = stamps[:-1]
        there = {file.file_from_offset: file for file in self.files.files}
        return all(
            (trimmed and at < self.files.min_offset)
            or (at in there and there[at].mtime_ms() == mtime)
            for at, mtime in stamps)

    def delete_expired_file(self, min_phy_offset: int) -> bool:
        """Delete the oldest file durably if the log has none of its messages any more.

        Return True if it was deleted. The last file always stays, so that the queue's end is known.
        Raises OSError, and FatalStorageError when a sync fails.
        """
        files = self.files.files
        if len(files) < 2 or self._last_phy_offset(files[0]) >= min_phy_offset:
            return False
        self._min_offset = max(self._min_offset, self._first_in(files[1]))
        self.files.delete_head(files[0])
        return True

    def count_between(self, low_phy_offset: int, high_phy_offset: int) -> int:
        """Return the number of messages in [``low_phy_offset``, ``high_phy_offset``) of the log.

        Pre-blank units between them count as messages.
        """
        low = first_at(self, self.min_offset, low_phy_offset)
        return first_at(self, low, high_phy_offset) - low

    def _first_in(self, file: MappedFile) -> int:
        """Return the queue offset of the first unit of a file."""
        return file.file_from_offset // _UNIT

    def _last_phy_offset(self, file: MappedFile) -> int:
        """Return the position of the last message that a full file names, -1 if it has only pre-blank units."""
        data = file.read(file.size - _UNIT, _UNIT)
        if len(data) < _UNIT:
            return _NEVER  # its topic is being deleted
        last = CQ_UNIT.unpack_from(data)
        if last.size != PRE_BLANK_SIZE:
            return last.phy_offset
        units = CQ_UNIT.view(file.read(0, file.size))
        real = np.flatnonzero(units["size"] != PRE_BLANK_SIZE)
        return int(units["phy_offset"][real[-1]]) if len(real) else -1

    # -- reading

    @property
    def first_offset(self) -> int:
        """Number of the first unit of the first file."""
        return max(self.files.min_offset, 0) // _UNIT

    def next_file(self, offset: int) -> int:
        """Return the number of the first unit of the file after ``offset``; after the last file, the queue's end."""
        starts = (file.file_from_offset // _UNIT for file in self.files.files)
        return next((start for start in starts if start > offset), self.max_offset)

    def begin_of(self, offset: int) -> int:
        """Return the queue offset of the first message of the record that has the message at ``offset``."""
        return offset

    def end_of(self, offset: int) -> int:
        """Return the queue offset after the last message of the record that has the message at ``offset``."""
        return offset + 1

    def unit_bytes(self) -> int:
        """Return the bytes of the units of the messages that are shown."""
        return (self.max_offset - self.min_offset) * _UNIT

    def offset_after_file(self, offset: int) -> int:
        """Return the offset to continue reading at if the file with the unit at ``offset`` was deleted."""
        per_file = self.files.file_size // _UNIT
        return offset + per_file - offset % per_file

    def last_unit(self) -> tuple[CqUnit | None, int]:
        """Return the last unit in the files, even after the queue's end, and its queue offset; (None, -1) without."""
        for file in reversed(self.files.files):
            count = find_units_end(file)
            if count:
                unit = CQ_UNIT.unpack_from(file.read((count - 1) * _UNIT, _UNIT))
                return unit, self._first_in(file) + count - 1
        return None, -1

    def unit(self, offset: int) -> CqUnit | None:
        """Return the unit of the message at ``offset``, or None."""
        if not 0 <= offset < self.max_offset:
            return None
        data = self.files.read(offset * _UNIT, _UNIT)
        return CQ_UNIT.unpack_from(data) if len(data) == _UNIT else None

    def units(self, offset: int, count: int) -> bytes:
        """Return the bytes of up to ``count`` units from ``offset`` onwards, up to a file that was deleted."""
        at, until = offset * _UNIT, min(offset + count, self.max_offset) * _UNIT
        found = self.files.read(at, until - at)
        while found and len(found) < until - at and (part := self.files.read(at + len(found), until - at - len(found))):
            found += part
        return found

    def stored_units(self, offset: int, count: int) -> bytes:
        """Return up to ``count`` units as they are on disk, starting with that of the message at ``offset``."""
        return self.units(offset, count)

    def runs(self, offset: int, until: int, most: int = _LOOK) -> Iterator[tuple[int, Any]]:
        """Yield (offset of the first, up to ``most`` units) in [``offset``, ``until``) without deleted files.

        The units are a structured array (``CQ_UNIT``).
        """
        until = min(until, self.max_offset)
        while offset < until:
            data = self.units(offset, min(most, until - offset))
            if units := len(data) // _UNIT:
                yield offset, CQ_UNIT.view(data[: units * _UNIT])
            offset = offset + units if units else max(self.next_file(offset), offset + 1)

    def units_ahead(self, offset: int, count: int, *, only_cached: bool = False) -> bytes | None:
        """Read ``count`` units or some more from ``offset`` onwards, and keep those of a longer read in ``ahead``.

        A reader that reads on through the queue uses ``ahead`` before it calls, so several reads share one file read.
        With ``only_cached`` do not wait for the disk: return None if a unit is not in the page cache.
        """
        version, left = self.version, self.max_offset - offset
        if left <= 0:
            return b""
        read = self.files.read_cached if only_cached else self.files.read
        units = read(offset * _UNIT, min(max(count, _AHEAD), left) * _UNIT)
        if units is not None and len(units) > count * _UNIT:
            self.ahead = version, offset, units
        return units

    def skip_written(self, units: memoryview) -> int:
        """Move the queue's end past those of these units that are on disk there. Return their length in bytes.

        A full file whose units are right is not written to again, because progress names its time of change.
        """
        found = self._count_written(units)
        if found:
            self.set_end(self.max_offset + found // _UNIT)
        return found

    def _count_written(self, units: memoryview) -> int:
        """Return the length of the first of these units that are on disk at the queue's end."""
        start, done, size = self._end_position(), 0, self.unit_size
        while done < len(units):
            part = self.files.read(start + done, len(units) - done)
            wanted = units[done : done + len(part)]
            if part != wanted:
                return done + next(
                    at for at in range(0, len(part), size) if part[at : at + size] != wanted[at : at + size])
            if not part:
                break
            done += len(part)
        return done - done % size

    def follows(self, phy_offset: int) -> bool:
        """Return True if the unit on disk after the queue's end names the record at ``phy_offset``."""
        data = self.files.read(self.max_offset * _UNIT, _UNIT)
        return len(data) == _UNIT and CQ_UNIT.unpack_from(data).phy_offset == phy_offset

    # -- writing

    def write(self, offset: int, units: bytes | memoryview, *, gap: bytes = PRE_BLANK) -> None:
        """Write units from number ``offset`` onwards and end the queue after them.

        In an empty queue pre-blank units fill the file before the first unit, and the queue starts there. A gap after
        the end of another queue is filled with ``gap``. So C1 holds: unit ``i`` is at byte ``20 * i``.
        Raises DiskFullError or OSError.
        """
        if not self.files.files:
            self.max_offset = offset - offset % (self.files.file_size // _UNIT)
            self._extend(self.max_offset, PRE_BLANK * (offset - self.max_offset))
            self._min_offset = offset
        elif offset > self.max_offset:
            is_empty = self._min_offset == self.max_offset
            self._extend(self.max_offset, (PRE_BLANK if is_empty else gap) * (offset - self.max_offset))
            if is_empty:
                self._min_offset = offset
        self._extend(offset, units)

    def append(self, units: memoryview) -> bool:
        """Write units at the queue's end, and return True, if the last file has room for them: `write` without a gap.

        Raises DiskFullError or OSError.
        """
        files, end = self.files, self.max_offset
        if not files.append_to_last(end * _UNIT, units):
            return False
        self.max_offset = end + len(units) // _UNIT
        return True

    def write_one(self, offset: int, unit: bytes, count: int = 1) -> None:
        """Write the unit (20 bytes) of one record at the queue's end. ``count`` is for batch queues."""
        del count
        self.write(offset, unit)

    def continue_at(self, offset: int) -> None:
        """Move the queue's end to ``offset``, with pre-blank units for the places before it."""
        if self.files.files:
            self._extend(self.max_offset, PRE_BLANK * (offset - self.max_offset))
        else:
            self.restart_at(offset)

    def restart_at(self, offset: int) -> None:
        """Start an empty queue at ``offset``. Pre-blank units in its first file record that start."""
        per_file = self.files.file_size // _UNIT
        start = max(offset - 1, 0) // per_file * per_file
        self._extend(start, PRE_BLANK * (offset - start))
        self._min_offset = self.max_offset = offset
        self.version += 1

    def forget_messages(self, end: int) -> None:
        """Drop every message durably: the queue ends at ``end``, and its last file has pre-blank units only.

        The units of the last file are overwritten before other files are deleted. After a crash at any
        moment each place has an old unit or a pre-blank one, so the end of the queue is known.
        Raises OSError, and FatalStorageError when a sync fails.
        """
        self.restart_at(end)
        self.files.flush()
        self.truncate(end)
        first = (end - 1) * _UNIT // self.files.file_size * self.files.file_size
        while self.files.min_offset < first:
            self.files.delete_head(self.files.files[0])

    def _extend(self, offset: int, units: bytes | memoryview) -> None:
        if not units:
            return
        self.files.write(offset * _UNIT, units)
        self.version += offset < self.max_offset
        self.max_offset = max(self.max_offset, offset + len(units) // _UNIT)

    def truncate(self, max_offset: int) -> None:
        """End the queue at ``max_offset`` and clear the bytes after it."""
        self.files.truncate_dirty_files(max_offset * _UNIT)
        self.set_end(max_offset)
