"""ConsumeQueues: for each queue of a topic the places of its messages, in order.

Owns ``consumequeue/TOPIC/ID/``. Invariants:
  C1  Unit ``i`` is at byte ``20 * i`` of the queue's stream and names the message with
      QUEUEOFFSET ``i``; a place without a message holds the pre-blank unit.
  C2  Everything here is a function of the CommitLog and may be deleted.
Commit point: ``max_offset``, moved after the units are written. One writer (dispatch), any readers.
"""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np

from tailrace.env.filesystem import FileSystem
from tailrace.errors import CorruptionError
from tailrace.formats.commitlog import LMQ_PREFIX, MIN_RECORD_LENGTH
from tailrace.formats.consumequeue import CQ_UNIT, PRE_BLANK, PRE_BLANK_SIZE, CqUnit
from tailrace.segments import MappedFile, MappedFileQueue, OpenFiles
from tailrace.store.queue_search import first_at, first_kept

__all__ = ["ConsumeQueue", "count_units", "find_units_end"]

_UNIT = CQ_UNIT.size
_LOOK: Final = 4096
_NEVER: Final = 1 << 62
_LAST: Final = 256
_AHEAD: Final = 160
"""Units that a read of some units takes at once: 3 kB a queue, for four reads of 32 messages."""


def count_units(data: bytes) -> int:
    """Units at the start of a queue file, up to the first that is none."""
    units = CQ_UNIT.view(data[: len(data) - len(data) % _UNIT])
    valid = (units["size"] > 0) & (units["phy_offset"] >= 0)
    return len(units) if bool(valid.all()) else int(np.argmin(valid))


def _is_unit(data: bytes) -> bool:
    """Whether 20 bytes can be a unit."""
    if len(data) < _UNIT:
        return False
    unit = CQ_UNIT.unpack_from(data)
    return unit.size > 0 and unit.phy_offset >= 0


class _UnitFile(Protocol):
    """A queue file that tells where its data ends."""

    @property
    def size(self) -> int: ...

    def data_end(self) -> int: ...

    def read(self, at: int, n: int) -> bytes: ...


def find_units_end(file: _UnitFile) -> int:
    """Units at the start of a queue file whose units have no hole between them, by few reads."""
    high = -(-file.data_end() // _UNIT)
    low = max(high - _LAST, 0)  # a queue ends in the last block it has, but for zeros
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
    """One queue of one topic; ``BatchConsumeQueue`` has other units on disk and shows the same."""

    is_batch = False
    """Whether a unit may stand for several messages."""
    unit_size = _UNIT
    """Bytes of a unit on disk."""
    least_bytes = MIN_RECORD_LENGTH
    """Bytes of the log that a message takes at least."""

    def __init__(
        self, file_system: FileSystem, directory: str, topic: str, queue_id: int, file_size: int,
        open_files: OpenFiles,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.record_topic = b"" if topic.startswith(LMQ_PREFIX) else topic.encode()
        """Topic of the records; empty for an LMQ queue, whose records have other topics."""
        self.files = MappedFileQueue(
            file_system, directory, file_size, mapped=False, open_files=open_files)
        self.logical_min_offset = 0
        """Messages below it were let go: they are there and are not shown."""
        self._min_offset = 0
        self.max_offset = 0
        self.last_store_timestamp = 0
        self.last_phy_offset = -1
        self._version = 0
        """Grows when the end has moved back or units below it have changed: ``_ahead`` is old then."""
        self._ahead: tuple[int, int, bytes] = 0, 0, b""
        """Version, number of the first unit, and units that the last read took from the disk."""

    @property
    def min_offset(self) -> int:
        """Offset of the first message that is shown."""
        if self.logical_min_offset <= self._min_offset:
            return self._min_offset
        return max(self._min_offset, min(self.logical_min_offset, self.max_offset))

    # -- loading

    def load(self) -> str:
        """Take the files; all of them count as written until ``settle``.

        Says why they cannot be right, and then has none of them.
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
        """Begin where the files do; why they cannot be right."""
        self._min_offset = self.max_offset = max(self.files.min_offset, 0) // _UNIT
        return ""

    def remove_files(self) -> None:
        """Remove every file of the queue, also those that were not taken."""
        self.files.remove_all()
        self._min_offset = self.max_offset = 0
        self._version += 1

    def find_end(self) -> None:
        """Set the end to where the units of the last file that has any end."""
        self._min_offset = self.max_offset = max(self.files.min_offset, 0) // _UNIT
        for file in reversed(self.files.files):
            count = find_units_end(file)
            self.max_offset = file.file_from_offset // _UNIT + count
            if count:
                return

    def set_end(self, max_offset: int) -> None:
        """Have the queue end at ``max_offset``; what is behind stays on disk until ``settle``."""
        self.max_offset = max_offset
        self._min_offset = min(self._min_offset, max_offset)
        self._version += 1

    def rewind(self, phy_offset: int) -> None:
        """Have the queue end behind its last unit of a record below ``phy_offset``.

        Pre-blank units that follow it stay: they keep the places of messages that are lost.
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
                self.set_end(self._behind_blanks(start + int(kept[-1]) + 1))
                return
            high = start
        self.last_phy_offset = -1
        # Without a message there the pre-blank units at its start say where the queue begins.
        self.set_end(self._behind_blanks(low))

    def _behind_blanks(self, offset: int) -> int:
        """The first unit from ``offset`` on that is not pre-blank, or the end of the queue."""
        while offset < self.max_offset:
            data = self.units(offset, min(_LOOK, self.max_offset - offset))
            blank = CQ_UNIT.view(data)["size"] == PRE_BLANK_SIZE
            count = len(blank) if bool(blank.all()) else int(np.argmin(blank))
            offset += count
            if count < len(blank) or not count:
                break
        return offset

    def settle(self, *, look_behind: bool, unflushed_files: int) -> bool:
        """Take the end for what is written; whether there was something behind it.

        ``look_behind`` clears what is there, in later files, too. So many last files may be in the
        page cache only: they do not count as flushed.
        """
        end = self._end_position()
        files = self.files.files
        behind = len(files) > 1 and files[-1].file_from_offset >= end
        last = self.files.find(end)
        if not behind and last is not None and look_behind:
            behind = any(True for _ in last.nonzero(end - last.file_from_offset))
        if behind:
            self.files.truncate_dirty_files(end)
        elif last is not None:
            last.wrote_position = end - last.file_from_offset
            last.flushed_position = min(last.flushed_position, last.wrote_position)
        self.files.flushed_where = min(self.files.flushed_where, end)
        for file in self.files.files[-unflushed_files:] if unflushed_files else ():
            file.flushed_position = 0
            self.files.flushed_where = min(self.files.flushed_where, file.file_from_offset)
        return behind

    def _end_position(self) -> int:
        """Where the next unit comes in the stream of the files."""
        return self.max_offset * _UNIT

    def correct_min_offset(self, min_phy_offset: int) -> None:
        """Move the least offset to the first unit whose message is still in the log (W11)."""
        self._min_offset = first_kept(self, min_phy_offset)

    def stamps(self, *, last: bool) -> list[list[int]]:
        """Position and time of change of each full file, with ``last`` also of the last one."""
        files = self.files.files
        return [[file.file_from_offset, file.mtime_ms()] for file in (files if last else files[:-1])]

    def has_stamps(self, stamps: list[list[int]], *, trimmed: bool, grown: bool) -> bool:
        """Whether the files are as they were.

        ``trimmed``: but for first ones that are gone; ``grown``: but for the last one.
        """
        if grown:
            stamps = stamps[:-1]
        there = {file.file_from_offset: file for file in self.files.files}
        return all(
            (trimmed and at < self.files.min_offset)
            or (at in there and there[at].mtime_ms() == mtime)
            for at, mtime in stamps)

    def delete_expired_file(self, min_phy_offset: int) -> bool:
        """Delete the oldest file when the log has none of its messages any more, durably.

        The last file always stays, so that the queue's end is known. Raises OSError, and
        FatalStorageError when a sync fails.
        """
        files = self.files.files
        if len(files) < 2 or self._last_phy_offset(files[0]) >= min_phy_offset:
            return False
        self._min_offset = max(self._min_offset, self._first_in(files[1]))
        self.files.delete_head(files[0])
        return True

    def count_between(self, low_phy_offset: int, high_phy_offset: int) -> int:
        """Messages at positions from ``low_phy_offset`` on and below ``high_phy_offset``.

        Places without a message between them count, too.
        """
        low = first_at(self, self.min_offset, low_phy_offset)
        return first_at(self, low, high_phy_offset) - low

    def _first_in(self, file: MappedFile) -> int:
        """Queue offset of the first unit of a file."""
        return file.file_from_offset // _UNIT

    def _last_phy_offset(self, file: MappedFile) -> int:
        """Position of the last message that a full file names, -1 when it names none."""
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
        """Number of the first unit of the next file; the end of the queue after the last one."""
        starts = (file.file_from_offset // _UNIT for file in self.files.files)
        return next((start for start in starts if start > offset), self.max_offset)

    def begin_of(self, offset: int) -> int:
        """Queue offset of the first message of the record that has the message at ``offset``."""
        return offset

    def behind_file(self, offset: int) -> int:
        """Where to go on when the file that has the unit at ``offset`` is gone."""
        per_file = self.files.file_size // _UNIT
        return offset + per_file - offset % per_file

    def last_unit(self) -> tuple[CqUnit | None, int]:
        """The last unit that the files have, whatever the queue's end is, and its queue offset."""
        for file in reversed(self.files.files):
            count = find_units_end(file)
            if count:
                unit = CQ_UNIT.unpack_from(file.read((count - 1) * _UNIT, _UNIT))
                return unit, self._first_in(file) + count - 1
        return None, -1

    def unit(self, offset: int) -> CqUnit | None:
        """The unit of the message at ``offset``, or None."""
        if not 0 <= offset < self.max_offset:
            return None
        data = self.files.read(offset * _UNIT, _UNIT)
        return CQ_UNIT.unpack_from(data) if len(data) == _UNIT else None

    def units(self, offset: int, count: int) -> bytes:
        """Bytes of up to ``count`` units from ``offset``, as far as one file has them."""
        left = self.max_offset - offset
        if left <= 0:
            return b""
        return self.files.read(offset * _UNIT, min(count, left) * _UNIT)

    def units_ahead(self, offset: int, count: int, *, only_cached: bool = False) -> bytes | None:
        """``units`` for a reader that goes on through the queue: several calls take one read of the file.

        With ``only_cached`` it does not wait for the disk: None if they are not all in the page cache.
        """
        version, left = self._version, self.max_offset - offset
        count = min(count, left)
        if count <= 0:
            return b""
        known, first, ahead = self._ahead
        at = (offset - first) * _UNIT
        if known == version and at >= 0 and at + count * _UNIT <= len(ahead):
            return ahead[at : at + count * _UNIT]
        read = self.files.read_cached if only_cached else self.files.read
        units = read(offset * _UNIT, min(max(count, _AHEAD), left) * _UNIT)
        if units is None or len(units) <= count * _UNIT:
            return units
        self._ahead = version, offset, units
        return units[: count * _UNIT]

    def is_written(self, offset: int, units: bytes | memoryview) -> bool:
        """Whether exactly these units are on disk at ``offset``, behind the end or before it."""
        done = 0
        while done < len(units):
            part = self.files.read(offset * _UNIT + done, len(units) - done)
            if not part or part != units[done : done + len(part)]:
                return False
            done += len(part)
        return True

    def follows(self, phy_offset: int) -> bool:
        """Whether the unit on disk behind the end names the record at a position."""
        data = self.files.read(self.max_offset * _UNIT, _UNIT)
        return len(data) == _UNIT and CQ_UNIT.unpack_from(data).phy_offset == phy_offset

    # -- writing

    def write(self, offset: int, units: bytes | memoryview, *, gap: bytes = PRE_BLANK) -> None:
        """Write units from number ``offset`` on and end the queue behind them.

        A first unit above 0 is preceded by pre-blank units up to the start of its file; a gap
        behind the end is filled with ``gap``, so that C1 holds. Raises DiskFullError or OSError.
        """
        if not self.files.files:
            self.max_offset = offset - offset % (self.files.file_size // _UNIT)
            self._extend(self.max_offset, PRE_BLANK * (offset - self.max_offset))
            self._min_offset = offset
        elif offset > self.max_offset:
            self._extend(self.max_offset, gap * (offset - self.max_offset))
        self._extend(offset, units)

    def write_one(self, offset: int, unit: bytes, count: int = 1) -> None:
        """Write the unit, of 20 bytes, of one record behind the end; ``count`` is for batch queues."""
        del count
        self.write(offset, unit)

    def go_on_at(self, offset: int) -> None:
        """Have the next message come at ``offset``; pre-blank units stand for those before it."""
        if self.files.files:
            self._extend(self.max_offset, PRE_BLANK * (offset - self.max_offset))
        else:
            self.restart_at(offset)

    def restart_at(self, offset: int) -> None:
        """Begin an empty queue at ``offset``, which pre-blank units in its first file say."""
        per_file = self.files.file_size // _UNIT
        start = max(offset - 1, 0) // per_file * per_file
        self._extend(start, PRE_BLANK * (offset - start))
        self._min_offset = self.max_offset = offset
        self._version += 1

    def forget_messages(self, end: int) -> None:
        """Have the queue go on at ``end`` with nothing but pre-blank units in its last file, durably.

        The units are written over before other files are deleted. After a crash at any moment each
        place has an old unit or a pre-blank one, so the end of the queue is known. Raises OSError;
        FatalStorageError when a sync fails.
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
        self._write_at(offset * _UNIT, units)
        self._version += offset < self.max_offset
        self.max_offset = max(self.max_offset, offset + len(units) // _UNIT)

    def _write_at(self, at: int, units: bytes | memoryview) -> None:
        """Write units from a position of the stream on, into as many files as it takes."""
        done = 0
        size = self.files.file_size
        while done < len(units):
            file = self.files.find(at)
            if file is None:
                file = self.files.last_file(at)
                assert file is not None
                assert file.file_from_offset == at - at % size, "C1"
            n = min(len(units) - done, size - at % size)
            file.write_at(units[done : done + n], at % size)
            file.wrote_position = max(file.wrote_position, at % size + n)
            self.files.flushed_where = min(self.files.flushed_where, at)
            at += n
            done += n

    def truncate(self, max_offset: int) -> None:
        """End the queue at ``max_offset`` and clear what is behind."""
        self.files.truncate_dirty_files(max_offset * _UNIT)
        self.set_end(max_offset)
