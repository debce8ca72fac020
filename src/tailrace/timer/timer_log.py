"""The timer log: one unit for every timer, in the order of arrival.

Owns ``timerlog/``. Invariants:
  TL1  Units follow each other from the start of a file; a full file ends in a blank unit.
  TL2  The units of a slot are linked from newest to oldest by ``prev_pos``, which is -1 at the oldest.
  TL3  Units name records of the CommitLog in the order of the timer queue, rolled timers included.
Commit point: ``max_offset``, which moves after the bytes of the unit are written. One writer, any readers.
Durable on return: only ``flush`` makes units durable.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, final

import numpy as np

from tailrace import events
from tailrace.env.filesystem import FileSystem
from tailrace.formats.timerlog import (
    MAGIC_DELETE,
    TIMER_BLANK,
    TIMER_BLANK_MAGIC,
    TIMER_UNIT,
    TimerUnit,
)
from tailrace.kernels import timer_units
from tailrace.kernels.shared import constants as C
from tailrace.logs import get_logger
from tailrace.segments import MappedFile, MappedFileQueue, OpenFiles
from tailrace.store.log_paths import segment_files
from tailrace.timer.arrays import Ints, Units, joined

__all__ = ["TimerLog", "pending_of", "recognise_file_size", "signs_of"]

_log = get_logger(__name__)
_UNIT: Final = TIMER_UNIT.size
_READ_UNITS: Final = 16_384
_WINDOWS: Final = (40 * _UNIT, 2520 * _UNIT)
"""Number of bytes that a walk reads in one call, for units far from each other and for neighbours."""
_NEIGHBOURS: Final = 16


def recognise_file_size(file_system: FileSystem, directory: str, configured: int) -> int:
    """Length of the files that a directory has, else the configured one."""
    sizes = (file_system.stat(path).size for _, path in segment_files(file_system, (directory,)))
    return next((size for size in sizes if size > _UNIT + TIMER_BLANK.size), configured)


def signs_of(units: Units) -> Ints:
    """Return what each unit adds to the number of timers of its slot."""
    return np.where(units["magic"] & MAGIC_DELETE, -1, 1)


def pending_of(units: Units) -> int:
    """Return what some units add to the number of timers of their slot."""
    return int(signs_of(units).sum())


@final
class TimerLog:
    """Appends units, reads them by position."""

    def __init__(
        self, file_system: FileSystem, directory: str, file_size: int,
        open_files: OpenFiles | None = None,
    ) -> None:
        self.files = MappedFileQueue(
            file_system, directory, file_size, mapped=False, open_files=open_files)
        self._newest: dict[int, int] = {}
        self.scan_end = 0
        """Where the last complete ``scan`` found the end of the units."""

    @property
    def min_offset(self) -> int:
        """Position of the first unit, 0 without a file."""
        return max(self.files.min_offset, 0)

    @property
    def max_offset(self) -> int:
        """Position after the last unit."""
        return self.files.max_offset

    # -- writing

    def room(self) -> int:
        """How many units the next ``append`` may bring; makes room for one at least.

        Raises DiskFullError or OSError.
        """
        file = self._tail()
        room = self._room(file)
        if not room:
            file.append(TIMER_BLANK.pack(file.size - file.wrote_position, 0, TIMER_BLANK_MAGIC))
            file.advance(file.size - file.wrote_position)
            room = self._room(self._tail())
        return room

    def _tail(self) -> MappedFile:
        file = self.files.last_file(0)
        assert file is not None
        return file

    @staticmethod
    def _room(file: MappedFile) -> int:
        return max(file.size - file.wrote_position - TIMER_BLANK.size, 0) // _UNIT

    def append(self, units: bytes | bytearray) -> int:
        """Write whole units, at most as many as ``room`` allows. Return the position of the first one.

        Raises DiskFullError or OSError; then no unit is in the log.
        """
        file = self._tail()
        at = file.append(units)
        assert at >= 0, "room() was not asked"
        return file.file_from_offset + at

    # -- reading

    def unit(self, pos: int) -> TimerUnit | None:
        """Return the unit at a position, or None."""
        data = self.files.read(pos, _UNIT)
        return TIMER_UNIT.unpack_from(data) if len(data) == _UNIT else None

    def walk(self, time_ms: int, precision_ms: int, pos: int) -> tuple[Units, int]:
        """Return the units of a slot up to one, oldest first, and -1 or the position of a broken link."""
        found, window = list[Units](), _WINDOWS[0]
        while pos >= 0:
            file = self.files.find(pos)
            if file is None:
                break
            start = max(pos + _UNIT - window, file.file_from_offset)
            data = self.files.read(start, pos + _UNIT - start)
            if len(data) < pos + _UNIT - start:
                break
            out = bytearray(len(data))
            count, pos, good = timer_units.walk(data, start, pos, time_ms, precision_ms, out)
            found.append(TIMER_UNIT.view(memoryview(out)[len(out) - count * _UNIT :]))
            if not good:
                break
            window = _WINDOWS[count >= _NEIGHBOURS]
        return joined(found[::-1]), pos

    def scan(self, start: int = 0) -> Iterator[tuple[int, Units]]:
        """Yield (position of the first unit, units) from a position up to the first invalid unit."""
        for pos, units, _ in self.scan_newest(C.REPLAY_ENDLESS, start):
            yield pos, units

    def scan_newest(self, limit: int, start: int = 0) -> Iterator[tuple[int, Units, TimerUnit]]:
        """Yield as ``scan`` does, with the unit of each part whose record is last in the CommitLog.

        A unit whose record ends after ``limit`` in the CommitLog counts as invalid.
        """
        follows = -1
        self.scan_end = self.min_offset
        for file in self.files.files:
            if follows >= 0 and file.file_from_offset != follows:
                return  # a file is missing in between
            follows = file.file_from_offset + file.size
            if start >= follows:
                continue
            at = max(start - file.file_from_offset, 0)
            while at + _UNIT <= file.wrote_position:
                data = file.read(at, _UNIT * _READ_UNITS)
                pos = file.file_from_offset + at
                count, newest = timer_units.good(data, pos, limit)
                if count:
                    units = TIMER_UNIT.view(data, count)
                    yield pos, units, TimerUnit(*units[newest].tolist())
                at += count * _UNIT
                self.scan_end = pos + count * _UNIT
                if count < len(data) // _UNIT:
                    if not self._is_blank(file, at):
                        return
                    break
            else:
                if not self._is_blank(file, at):
                    return
            self.scan_end = file.file_from_offset + file.size

    @staticmethod
    def _is_blank(file: MappedFile, at: int) -> bool:
        data = file.read(at, TIMER_BLANK.size)
        return len(data) == TIMER_BLANK.size and TIMER_BLANK.unpack_from(data) == (
            file.size - at, 0, TIMER_BLANK_MAGIC)

    # -- life

    def delete_read_files(self, read_time_ms: int) -> int:
        """Remove the oldest files whose units are all in slots before a time, durably. Return how many.

        Raises OSError, FatalStorageError when a sync fails. The last two files stay: a Java broker starts to read one
        file before the flushed position.
        """
        removed = 0
        while len(self.files.files) > 2:
            first = self.files.files[0]
            if self._newest_slot_ms(first) >= read_time_ms:
                break
            events.TIMER_LOG_FILE_IS_DELIVERED_AND_REMOVED.log(_log, file=first.path)
            self.files.delete_head(first)
            self._newest.pop(first.file_from_offset, None)
            removed += 1
        return removed

    def _newest_slot_ms(self, file: MappedFile) -> int:
        """Return the latest slot time of the units of a full file."""
        known = self._newest.get(file.file_from_offset)
        if known is None:
            known = 0
            for at in range(0, file.size - _UNIT + 1, _UNIT * _READ_UNITS):
                data = file.read(at, _UNIT * _READ_UNITS)
                units = TIMER_UNIT.view(data[: len(data) - len(data) % _UNIT])
                units = units[units["size"] == _UNIT]
                if len(units):
                    known = max(known, int((units["write_time_ms"] + units["delay_ms"]).max()))
            self._newest[file.file_from_offset] = known
        return known

    def truncate(self, pos: int) -> None:
        """End the log at a position and clear the bytes after it."""
        if self.files.files:
            self.files.truncate_dirty_files(pos)

    def destroy(self) -> None:
        """Remove every file."""
        for file in self.files.files:
            events.REMOVE_TIMER_LOG_FILE.log(_log, file=file.path)
        self.files.remove_all()

    def flush(self) -> int:
        """Make every unit durable. Return the position after the last one. Raises FatalStorageError."""
        until = self.max_offset
        self.files.flush(0)
        return until
