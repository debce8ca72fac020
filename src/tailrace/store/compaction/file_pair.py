"""A file of a compaction log and the file of its units, which has the same name in another directory.

Owns ``compactionLog/TOPIC/QUEUE/NUMBER`` and ``compactionCq/TOPIC/QUEUE/NUMBER``. Invariants:
  CF1  A record is as in the CommitLog, except its position, which is that in the compaction log.
  CF2  Queue offsets ascend from unit to unit. The records are the truth; units are rebuilt from them.
  CF3  A file that is not the last one ends in a BLANK record, its units end in an end unit, and both are synced.
Commit point: ``sync``. Concurrency: one writer; the caller excludes readers while it writes or rebuilds.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Final, Self, final

import numpy as np

from tailrace.env.filesystem import File, FileSystem
from tailrace.env.whole_files import open_new
from tailrace.errors import CorruptionError
from tailrace.formats.commitlog import BLANK, BLANK_MAGIC, MESSAGE_HEAD
from tailrace.formats.consumequeue import BATCH_CQ_UNIT, END_UNIT, INVALID_POS, BatchCqUnit
from tailrace.formats.filenames import offset_to_file_name
from tailrace.kernels.shared import constants as C
from tailrace.segments import MappedFile, OpenFiles
from tailrace.store.batch_order import Units
from tailrace.store.batch_units import batch_units, is_batch_unit
from tailrace.store.compaction.damage import DamagedMessages
from tailrace.store.walk.log_walk import Damage, NextOf, Walk
from tailrace.store.walk.scan import LogChunk, LogEnd, is_record, scan_files

__all__ = ["FilePair", "Sizes"]

_UNIT: Final = BATCH_CQ_UNIT.size
_CHECK: Final = C.CHECK_BODY_CRC | C.CHECK_PHY_OFFSET
"""The checksum in the properties of a record covers its position in the CommitLog, so it is not verified."""
_PHY_AT: Final = MESSAGE_HEAD.offsets["phy_offset"]
_PHY_END: Final = _PHY_AT + 8
_LEAST_FACTOR: Final = 5
_FEW: Final = 64
_KEPT_TOGETHER: Final = 4 << 20
"""A copy in quarantine that is longer than this gets no further message."""


@final
class Sizes:
    """Lengths of the two files; the first is a multiple of the second, as in a Java broker."""

    __slots__ = ("log", "queue")

    def __init__(self, log: int, queue: int) -> None:
        self.log, self.queue = log, queue

    @classmethod
    def of_settings(cls, log: int, queue: int) -> Self:
        """Return the lengths that a Java broker uses with these settings."""
        queue = max(queue // _UNIT, 2) * _UNIT
        times, rest = divmod(log, queue)
        if times < _LEAST_FACTOR:
            times = _LEAST_FACTOR
        elif not 0 < rest < queue >> 1:
            times += 1
        return cls(times * queue, queue)


@dataclass(slots=True)
class _Built:
    """Units that were built from records."""

    units: list[bytes]
    end: int
    """Position in the file after the last record."""
    last: int
    """Queue offset of the last unit."""
    damage: list[tuple[int, int, int]]
    """Position, end and queue offset (-1 if it is not known) of the bytes that were stepped over."""


@final
class _PairWalk(Walk[LogChunk]):
    """A walk over one file. Store times need not ascend, as they must in a CommitLog."""

    def __init__(self, file: MappedFile, next_of: NextOf) -> None:
        start = file.file_from_offset
        super().__init__((file,), start, start + file.size, _CHECK, next_of)

    def _stretch(self, start: int) -> Generator[LogChunk, None, bool]:
        yield from scan_files(self._files, start, self._until, self._check, self.end)
        return False


@final
class FilePair:
    """Records from position ``start`` onwards, and one unit for each."""

    def __init__(
        self, file_system: FileSystem, log_directory: str, queue_directory: str, start: int, sizes: Sizes,
        open_files: OpenFiles,
    ) -> None:
        self._file_system = file_system
        self.start = start
        self.name = offset_to_file_name(start)
        self.log = MappedFile(
            file_system, f"{log_directory}/{self.name}", start, sizes.log, mapped=False, open_files=open_files)
        self.queue = MappedFile(
            file_system, f"{queue_directory}/{self.name}", start, sizes.queue, mapped=False,
            open_files=open_files)
        self.count = 0
        """Number of records."""
        self.first = self.last = -1
        """Least and greatest queue offset, -1 without a record."""
        self._records = bytearray()
        self._units = bytearray()

    # -- life

    def create(self) -> None:
        """Make both files, which are new, at their full length; the names are durable on return.

        Raises OSError; then neither is there.
        """
        made: list[str] = []
        try:
            for file in (self.log, self.queue):
                opened = open_new(self._file_system, file.path)
                made.append(file.path)
                self._give_length(file, opened)
        except OSError:
            for path in made:
                with contextlib.suppress(OSError):  # the caller gets the first error
                    self._file_system.remove(path)
            raise

    def _give_length(self, file: MappedFile, opened: File) -> None:
        try:
            if opened.size() != file.size:
                opened.truncate(file.size)
                opened.sync_data()
        finally:
            opened.close()
        self._file_system.sync_dir(file.path.rpartition("/")[0])

    def load(self, again: range | None) -> bool:
        """Find the end of units and records. Return False if the files are not sound: see ``rebuild``.

        ``again`` as for ``rebuild``. A damaged message is no reason to rebuild units that are right, unless it was
        torn when it was copied and can be copied again.
        """
        for file in (self.log, self.queue):
            if not self._file_system.exists(file.path) or self._file_system.stat(file.path).size != file.size:
                return False
        self._show_all()
        count = bisect_left(
            range(self.queue.size // _UNIT), True, key=lambda number: not is_batch_unit(self._unit(number)))
        last = self._unit(count - 1) if count else None
        end = last.phy_offset + last.size - self.start if last is not None else 0
        is_durable = last is None or again is None or last.msg_base_offset not in again
        sound = self._is_sound(count, end, is_durable=is_durable)
        self._end_at(end if sound else 0, count if sound else 0)
        self.log.loaded_at(self.log.wrote_position)
        self.queue.loaded_at(self.queue.wrote_position)
        return sound

    def _show_all(self) -> None:
        """Let reads return every byte of the files."""
        self.log.end_at(self.log.size)
        self.queue.end_at(self.queue.size)

    def _end_at(self, end: int, count: int) -> None:
        """Set the end of the records, in bytes, and their number."""
        self.queue.end_at(count * _UNIT)
        self.log.end_at(end)
        self.count = count
        self.first = self._unit(0).msg_base_offset if count else -1
        self.last = self._unit(count - 1).msg_base_offset if count else -1

    def _is_sound(self, count: int, end: int, *, is_durable: bool) -> bool:
        """Return True if the units ascend, the first and the last name records, and no record follows.

        If either record is damaged and ``is_durable``, the other records decide whether the units are theirs.
        """
        if self._blank_or_zero(end) is None:
            return False
        if not count:
            return True
        units = BATCH_CQ_UNIT.view(self.queue.read(0, count * _UNIT))
        starts = units["phy_offset"].astype(np.int64) - self.start
        ends, offsets = starts + units["size"], units["msg_base_offset"].astype(np.int64)
        ascend = (starts[0] >= 0 and int(ends[-1]) <= self.log.size
                  and bool((starts[1:] >= ends[:-1]).all()) and bool((np.diff(offsets) > 0).all()))
        if not ascend or all(self.record(self._unit(at)) for at in {0, count - 1}):
            return ascend
        return is_durable and self._has_units_of_its_records(units)

    def _has_units_of_its_records(self, units: Units) -> bool:
        """Return True if every record has a unit, and more than half of the units name the offset of their record."""
        agreeing = 0
        for item in _PairWalk(self.log, lambda *_: -1).items():
            if isinstance(item, LogChunk):
                places = np.searchsorted(units["phy_offset"], item.rows[:, C.PHY]).clip(max=len(units) - 1)
                named = units[places]
                if ((named["phy_offset"] != item.rows[:, C.PHY])
                        | (named["size"] != item.rows[:, C.SIZE])).any():
                    return False
                agreeing += int((named["msg_base_offset"] == item.rows[:, C.QUEUE_OFFSET]).sum())
        return agreeing * 2 > len(units)

    def _blank_or_zero(self, at: int) -> bool | None:
        """Return whether a BLANK is at ``at``, False for zeros or the end of the file, None for other bytes."""
        head = self.log.read(at, BLANK.size)
        if len(head) < BLANK.size:
            return False if not any(head) else None
        if BLANK.unpack_from(head).magic == BLANK_MAGIC:
            return True
        return False if not any(head) else None

    def remove(self) -> None:
        """Close and remove both files. Raises OSError."""
        self.close()
        self._file_system.remove(self.log.path)
        self._file_system.remove(self.queue.path)

    def rebuild(self, after: int, damaged: DamagedMessages, again: range | None) -> None:
        """Build the units from the records with queue offsets above ``after``. Damage between records is stepped over.

        ``again`` is None for a file that is not the last one (CF3). The last file may have lost bytes that were not
        durable. ``again`` has the queue offsets that can be copied again: if it has all messages after the damage,
        the file ends at the damage. Raises OSError; FatalStorageError if a sync fails.
        """
        for file in (self.log, self.queue):
            self._give_length(file, self._file_system.open(file.path, writable=True, create=True))
        self._show_all()
        built = self._build(after, again)
        for low, high, queue_offset in built.damage:
            damaged.name(self.log, low, queue_offset)
            damaged.keep(self.log, low, high)
        end, data = built.end, b"".join(built.units)[: self.queue.size]
        tail = end + BLANK.size if self._blank_or_zero(end) else end
        if self.queue.read(0, len(data)) != data:
            self.queue.write_at(data, 0)
        self.queue.zero_tail(len(data))
        self.log.zero_tail(tail)
        self._end_at(end, len(data) // _UNIT)
        self.log.touched()
        self.queue.touched()
        if again is None:
            self.end()
        else:
            self.sync()

    def _build(self, after: int, again: range | None) -> _Built:
        """Return what ``rebuild`` makes of the file."""
        built, cut, following = _Built([], 0, after, []), None, -1
        for item in _PairWalk(self.log, lambda *_: built.last + 1).items():
            if isinstance(item, Damage):
                cut = cut or _Built(built.units.copy(), built.end, built.last, [])
                built.damage.append((item.phy_offset, item.until, item.claim.queue_offset if item.claim else -1))
                continue
            built.end = int(item.rows[-1][C.PHY] + item.rows[-1][C.SIZE]) - self.start
            offsets = item.rows[:, C.QUEUE_OFFSET]
            if cut is not None and following < 0:
                following = int(offsets[0])
            before = np.maximum.accumulate(np.concatenate(([built.last], offsets[:-1])))
            chosen = np.flatnonzero(offsets > before)
            if len(chosen):
                built.last = int(offsets[chosen[-1]])
                built.units.append(batch_units(item.rows, chosen, np.ones(len(chosen), np.int64)))
        if cut is not None and again is not None and following in again and built.last in again:
            return cut
        if again is None:
            left = self.log.size - built.end
            is_whole = left < BLANK.size or self._blank_or_zero(built.end) is True
        else:
            is_whole = self._blank_or_zero(built.end) is not None or again.stop > built.last + 1
        if not is_whole:
            built.damage.append((self.start + built.end, self.start + self.log.size, -1))
        return built

    def chunks(self, damaged: DamagedMessages) -> Iterator[LogChunk]:
        """Yield the records that the units name, in large parts. Damaged ones are named, kept and left out (W14).

        Raises OSError, and CorruptionError if the files are shorter than their units say.
        """
        units = BATCH_CQ_UNIT.view(self.queue.read(0, self.count * _UNIT))
        starts, sizes, offsets = (
            units[name].astype(np.int64) for name in ("phy_offset", "size", "msg_base_offset"))

        low = high = 0

        def leave_out(number: int) -> None:
            """Name a message. Keep its bytes together with those of the damaged messages before it."""
            nonlocal low, high
            at = int(starts[number])
            damaged.name(self.log, at, int(offsets[number]))
            if at != high or high - low > _KEPT_TOGETHER:
                keep()
                low = at
            high = at + int(sizes[number])

        def keep() -> None:
            if high > low:
                damaged.keep(self.log, low, high)

        end = self.log.wrote_position
        if len(units) < self.count or len(self.log.read(max(end - 1, 0), 1)) < min(end, 1):
            raise CorruptionError("a file of a compaction log is cut", path=self.log.path)
        number = 0
        while number < self.count:
            if not self.record(self._unit(number)):
                leave_out(number)
                number += 1
                continue
            found = LogEnd(self.start, C.REASON_END, self.log.path)
            for chunk in scan_files((self.log,), int(starts[number]), self.start + end, _CHECK, found):
                rows = chunk.rows
                places = np.searchsorted(starts, rows[:, C.PHY]).clip(max=self.count - 1)
                good = ((starts[places] == rows[:, C.PHY]) & (sizes[places] == rows[:, C.SIZE])
                        & (offsets[places] == rows[:, C.QUEUE_OFFSET]))
                following = int(np.searchsorted(starts, rows[-1, C.PHY] + rows[-1, C.SIZE]))
                if not good.all() or following - number > len(rows):
                    for bad in sorted(set(range(number, following)).difference(places[good].tolist())):
                        leave_out(bad)
                    chunk.rows = rows[good]
                number = following
                yield chunk
        keep()

    def sync(self) -> None:
        """Make every record and unit durable. Raises FatalStorageError, or OSError for a full disk."""
        self.write()
        self.log.flush()
        self.queue.flush()

    def close(self) -> None:
        """Close both files."""
        self.log.close()
        self.queue.close()

    # -- writing

    def append(self, data: bytes, tags_code: int, store_time: int, queue_offset: int) -> bool:
        """Add a record. Return False if it does not fit, so that a new file is needed.

        The record can be read after ``write``.
        """
        at = self.log.wrote_position + len(self._records)
        units = self.queue.wrote_position + len(self._units)
        # As a Java broker does: a unit stays free for the end, and a BLANK must fit after the record.
        if units + _UNIT >= self.queue.size or at + len(data) + BLANK.size > self.log.size:
            return False
        position = self.start + at
        self._records += data[:_PHY_AT]
        self._records += position.to_bytes(8, "big")
        self._records += data[_PHY_END:]
        self._units += BATCH_CQ_UNIT.pack(
            position, len(data), tags_code, store_time, queue_offset, 1, INVALID_POS, 0)
        return True

    def pending_bytes(self) -> int:
        """Return the number of bytes that the next ``write`` writes."""
        return len(self._records)

    def discard(self) -> None:
        """Forget the records that were added and not written."""
        self._records.clear()
        self._units.clear()

    def write(self) -> None:
        """Write the added records, then their units. Raises DiskFullError or OSError; then no record is added."""
        if not self._records:
            return
        records, units = bytes(self._records), bytes(self._units)
        self.discard()
        self.log.write_at(records, self.log.wrote_position)
        self.queue.write_at(units, self.queue.wrote_position)
        self.log.advance(len(records))
        self.queue.advance(len(units))
        self.count += len(units) // _UNIT
        if self.first < 0:
            self.first = BATCH_CQ_UNIT.unpack_from(units).msg_base_offset
        # Not read back: if that failed, the same messages would be copied once more.
        self.last = BATCH_CQ_UNIT.unpack_from(units, len(units) - _UNIT).msg_base_offset

    def end(self) -> None:
        """Write the end of a full file and sync it (CF3)."""
        self.write()
        left = self.log.size - self.log.wrote_position
        if left >= BLANK.size:
            self.log.write_at(BLANK.pack(left, BLANK_MAGIC), self.log.wrote_position)
        if self.queue.wrote_position + _UNIT <= self.queue.size:
            self.queue.write_at(END_UNIT, self.queue.wrote_position)
        self.sync()

    # -- reading

    def _unit(self, number: int) -> BatchCqUnit:
        return BATCH_CQ_UNIT.unpack_from(self.queue.read(number * _UNIT, _UNIT))

    def find(self, offset: int) -> int:
        """Return the number of the first unit whose queue offset is at least ``offset``."""
        return bisect_left(range(self.count), offset, key=lambda number: self._unit(number).msg_base_offset)

    def find_time(self, store_time: int) -> int:
        """Return the number of the first unit whose store time is at least ``store_time``, in ms."""
        return bisect_left(range(self.count), store_time, key=lambda number: self._unit(number).store_time)

    def units(self, number: int) -> Iterator[BatchCqUnit]:
        """Yield the units from ``number`` onwards."""
        while number < self.count:
            data = self.queue.read(number * _UNIT, min(_FEW, self.count - number) * _UNIT)
            for at in range(0, len(data) - _UNIT + 1, _UNIT):
                yield BATCH_CQ_UNIT.unpack_from(data, at)
            if len(data) < _UNIT:
                return
            number += len(data) // _UNIT

    def record(self, unit: BatchCqUnit, *, only_cached: bool = False) -> bytes | None:
        """Return the record of a unit, b"" if it is damaged; with ``only_cached`` None if the read would wait."""
        read = self.log.read_cached if only_cached else self.log.read
        data = read(unit.phy_offset - self.start, unit.size)
        if data is None:
            return None
        valid = is_record(data, unit.phy_offset, _CHECK)
        return data if valid and MESSAGE_HEAD.unpack_from(data).queue_offset == unit.msg_base_offset else b""
