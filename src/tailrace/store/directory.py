"""A store directory as it is read without its lock: by pread only, nothing is changed.

What may be shown: when nobody holds the lock, every valid record, after a kill the ones recovery
would show, computed in memory; of a live store of ours what its hint ``tailrace/flushed`` covers,
believed only when its process is the one that ``abort`` names; of a live Java store the records
that are older than the checkpoint's flush time. A short read means that retention was faster.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import orjson

from tailrace.config import StoreConfig
from tailrace.env.filesystem import FileSystem, OsFileSystem
from tailrace.env.whole_files import read_hint
from tailrace.errors import NotAStoreError, OddFileError
from tailrace.formats import filenames
from tailrace.formats.commitlog import STORE_TIME_HEAD, store_timestamp_of
from tailrace.formats.consumequeue import CQ_UNIT, PRE_BLANK, PRE_BLANK_SIZE
from tailrace.formats.indexfile import INDEX_HEADER
from tailrace.kernels import hashes, index_entries, queue_units, record
from tailrace.store.consume_queue import count_units, find_units_end
from tailrace.store.dispatch import (
    damaged_unit,
    deliver_time_codes,
    parse_delay_levels,
)
from tailrace.store.geometry import recognise
from tailrace.store.log_paths import log_paths
from tailrace.store.log_scan import LogEnd, scan_files
from tailrace.store.log_walk import Damage, LogWalk, RecordClaim
from tailrace.store.multi_dispatch import rows_with_lmq
from tailrace.store.own_settings import remembered
from tailrace.store.record_batch import rows_by_queue
from tailrace.store.sealing import sealed_rows
from tailrace.store.store_checkpoint import read_checkpoint
from tailrace.store.topic_retention import LogicalMin, is_deleted, read_deleted, read_minima

__all__ = ["DirectoryState", "FileView", "QueueView", "StoreDirectory"]

_UNIT: Final = CQ_UNIT.size
_CHECK: Final = record.CHECK_BODY_CRC | record.CHECK_PHY_OFFSET | record.CHECK_PROP_CRC
_FOREVER: Final = (1 << 63) - 1
_CHUNK: Final = 1 << 20


class DirectoryState(enum.Enum):
    """Who uses the directory, and how it was left."""

    CLEAN = "clean"
    UNCLEAN = "unclean"
    LIVE = "live"
    LIVE_JAVA = "live, a Java broker"


@final
class FileView:
    """A file of a directory, read by position."""

    def __init__(self, file_system: FileSystem, path: str, file_from_offset: int, size: int) -> None:
        self.path = path
        self.file_from_offset = file_from_offset
        self.size = size
        self._file_system = file_system

    def read(self, at: int, n: int) -> bytes:
        """Up to ``n`` bytes; empty when the file was removed meanwhile."""
        try:
            file = self._file_system.open(self.path)
        except FileNotFoundError:
            return b""
        try:
            return file.pread(n, at)
        finally:
            file.close()

    def data_end(self) -> int:
        """Position behind which the file system has nothing but a hole; 0 when it is gone."""
        try:
            file = self._file_system.open(self.path)
        except FileNotFoundError:
            return 0
        try:
            ranges = file.data_ranges(0, self.size)
        finally:
            file.close()
        return ranges[-1][1] if ranges else 0

    def nonzero(self, start: int) -> Iterator[tuple[int, bytes]]:
        """(position, bytes) of every chunk from ``start`` on that is not all zero."""
        try:
            file = self._file_system.open(self.path)
        except FileNotFoundError:
            return
        try:
            for low, high in file.data_ranges(start, self.size):
                for at in range(low, high, _CHUNK):
                    data = file.pread(min(_CHUNK, high - at), at)
                    if data != bytes(len(data)):
                        yield at, data
        finally:
            file.close()


@dataclass(slots=True)
class QueueView:
    """A queue; ``memory`` holds its units when they are not taken from files."""

    topic: str
    queue_id: int
    min_offset: int = 0
    max_offset: int = 0
    files: list[FileView] = field(default_factory=list)
    memory: bytearray | None = None
    memory_start: int = 0
    purged_until: int = 0
    """Messages below it were let go by their topic."""

    def units(self, offset: int, count: int) -> bytes:
        """Bytes of up to ``count`` units from ``offset``."""
        count = min(count, self.max_offset - offset)
        if count <= 0:
            return b""
        if self.memory is not None:
            at = (offset - self.memory_start) * _UNIT
            return bytes(self.memory[max(at, 0) : at + count * _UNIT])
        parts = []
        at, until = offset * _UNIT, (offset + count) * _UNIT
        for file in self.files:
            low = max(at, file.file_from_offset)
            high = min(until, file.file_from_offset + file.size)
            if low < high:
                part = file.read(low - file.file_from_offset, high - low)
                parts.append(part)
                if len(part) < high - low:
                    break  # retention was faster: what follows would get the wrong numbers
        return b"".join(parts)

    def next_file(self, offset: int) -> int:
        """Number of the first unit of the next file; the end of the queue behind the last one."""
        starts = [file.file_from_offset // _UNIT for file in self.files]
        return min((start for start in starts if start > offset), default=self.max_offset)

    def all_units(self) -> np.ndarray[Any, np.dtype[np.void]]:
        """Every unit from ``min_offset`` on as a structured array."""
        data = self.units(self.min_offset, self.max_offset - self.min_offset)
        return CQ_UNIT.view(data[: len(data) - len(data) % _UNIT])


@final
class StoreDirectory:
    """One look at a directory; open a new one to see what came later.

    ``raw`` takes queues as their files are, also when recovery would make others of them.

    Raises NotAStoreError when ``path`` is no store, OddFileError when its CommitLog is no directory.
    """

    def __init__(
        self, path: str, *, config: StoreConfig | None = None, file_system: FileSystem | None = None,
        raw: bool = False,
    ) -> None:
        self.path = str(Path(path).absolute())
        self.file_system = file_system or OsFileSystem()
        if not self.file_system.exists(self.path):
            raise NotAStoreError(self.path, "it does not exist")
        if not self.file_system.stat(self.path).is_dir:
            raise NotAStoreError(self.path, "it is a file")
        config = remembered(self.file_system, self.path, config or StoreConfig())
        self.log_paths = log_paths(config, self.path)
        if not any(self.file_system.exists(path) for path in self.log_paths.all):
            raise NotAStoreError(self.path, "it has no commitlog, here or where storePathCommitLog says")
        for place in self.log_paths.all:
            if self.file_system.exists(place) and not self.file_system.stat(place).is_dir:
                raise OddFileError(place, "is not a directory")
        self.config = recognise(self.file_system, self.path, config)
        self.deleted_topics = read_deleted(self.file_system, self.path)
        """Topics that were deleted: position of the log after the last message of each."""
        self.state, self.bound, self.time_bound = self._look()
        self.odd_files: list[tuple[str, int, int]] = []
        """Path, length and wanted length of segment and queue files that are left out."""
        self.log_files = sorted(
            (file for path in self.log_paths.all
             for file in self._files(path, self.config.mapped_file_size_commit_log)),
            key=lambda file: file.file_from_offset)
        self.min_phy_offset = self.log_files[0].file_from_offset if self.log_files else 0
        self.damaged: list[Damage] = []
        self._sealed: list[Damage] = []
        self._queues = self._load_queues(raw=raw)
        if self.state is DirectoryState.UNCLEAN and not raw:
            self.max_phy_offset = self._complete_queues()
            self._drop_deleted()
        else:
            self.max_phy_offset = self._find_end()
            self._hide_behind_bound()
        self._correct_min_offsets({} if raw else read_minima(self.file_system, self.path))

    # -- what is there

    def _look(self) -> tuple[DirectoryState, int, int]:
        root = self.path
        holder = self.file_system.lock_holder(f"{root}/{filenames.LOCK}")
        abort = self._text(f"{root}/{filenames.ABORT}")
        if holder is None:
            state = DirectoryState.UNCLEAN if abort is not None else DirectoryState.CLEAN
            return state, _FOREVER, _FOREVER
        try:
            hint = orjson.loads(self._text(f"{root}/{filenames.FLUSHED}") or b"{}")
            if abort is not None and int(abort) == hint["pid"] == holder:
                return DirectoryState.LIVE, int(hint["flushed"]), _FOREVER
        except (ValueError, KeyError, TypeError):
            pass
        checkpoint = read_checkpoint(self.file_system, f"{root}/{filenames.CHECKPOINT}")
        return DirectoryState.LIVE_JAVA, _FOREVER, checkpoint.physic_msg_timestamp

    def _text(self, path: str) -> bytes | None:
        text = read_hint(self.file_system, path, 4096)
        if text is None:  # an abort file that cannot be read is one, too
            return b"" if self.file_system.exists(path) else None
        return text.strip()

    def _files(self, directory: str, size: int) -> list[FileView]:
        found = []
        for name in self.file_system.list(directory):
            offset = filenames.file_name_to_offset(name)
            path = f"{directory}/{name}"
            if offset is None:
                continue
            if (there := self.file_system.stat(path).size) != size:
                self.odd_files.append((path, there, size))
            else:
                found.append(FileView(self.file_system, path, offset, size))
        return found

    def _load_queues(self, *, raw: bool) -> dict[tuple[str, int], QueueView]:
        found = {}
        root = f"{self.path}/{filenames.CONSUMEQUEUE}"
        size = -(-self.config.mapped_file_size_consume_queue // _UNIT) * _UNIT
        for topic in self.file_system.list(root):
            for name in self.file_system.list(f"{root}/{topic}"):
                if not filenames.is_number(name):
                    continue
                queue = QueueView(topic, int(name), files=self._files(f"{root}/{topic}/{name}", size))
                for file in reversed(queue.files):
                    count = count_units(file.read(0, file.size)) if raw else find_units_end(file)
                    if count or file is queue.files[0]:
                        queue.max_offset = file.file_from_offset // _UNIT + count
                        break
                found[topic, int(name)] = queue
        return found

    def _correct_min_offsets(self, minima: Mapping[tuple[str, int], LogicalMin]) -> None:
        for key, queue in self._queues.items():
            queue.min_offset = self._first_at(queue, self.min_phy_offset)
            if (low := minima.get(key)) is not None:
                queue.purged_until = min(
                    low.offset, self._first_at(queue, low.phy_offset), queue.max_offset)
                queue.min_offset = max(queue.min_offset, queue.purged_until)

    def _first_at(self, queue: QueueView, phy_offset: int) -> int:
        """The first message of a queue that is not before a position of the log."""
        low = queue.memory_start if queue.memory is not None else (
            queue.files[0].file_from_offset // _UNIT if queue.files else 0)
        high = queue.max_offset
        while low < high:
            middle = (low + high) // 2
            at = self._next_message(queue, middle, high)
            before = at < high and CQ_UNIT.unpack_from(queue.units(at, 1)).phy_offset < phy_offset
            low, high = (at + 1, high) if before else (low, middle)
        return self._next_message(queue, low, queue.max_offset)

    @staticmethod
    def _next_message(queue: QueueView, offset: int, until: int) -> int:
        """The first unit of a range that is not pre-blank, or ``until``."""
        step = 1
        while offset < until:
            data = queue.units(offset, min(step, until - offset))
            units = CQ_UNIT.view(data[: len(data) - len(data) % _UNIT])
            real = np.flatnonzero(units["size"] != PRE_BLANK_SIZE)
            if len(real) or not len(units):
                return offset + (int(real[0]) if len(real) else 0)
            offset += len(units)
            step = 4096
        return until

    # -- where it ends

    def _find_end(self) -> int:
        """Position behind the last record: behind the last unit, and then on record by record."""
        last = self.min_phy_offset
        for queue in self._queues.values():
            unit = CQ_UNIT.unpack_from(queue.units(queue.max_offset - 1, 1)) if queue.max_offset else None
            if unit is not None and unit.size != PRE_BLANK_SIZE:
                last = max(last, unit.phy_offset + unit.size)
        end = LogEnd()
        if not self.log_files:
            return 0
        if last > self.log_files[-1].file_from_offset + self.config.mapped_file_size_commit_log:
            last = self.min_phy_offset
        for _ in scan_files(self.log_files, last, min(self.bound, _FOREVER), _CHECK, end):
            pass
        return min(end.phy_offset, self.bound) if self.log_files else 0

    def _hide_behind_bound(self) -> None:
        if self.bound == _FOREVER and self.time_bound == _FOREVER:
            return
        for queue in self._queues.values():
            low, high = 0, queue.max_offset
            while low < high:
                middle = (low + high) // 2
                unit = CQ_UNIT.unpack_from(queue.units(middle, 1).ljust(_UNIT, b"\0"))
                low, high = (middle + 1, high) if self._may_be_shown(unit) else (low, middle)
            queue.max_offset = low

    def _may_be_shown(self, unit: Any) -> bool:
        if unit.size == PRE_BLANK_SIZE or unit.phy_offset < self.min_phy_offset:
            return True
        if unit.phy_offset + unit.size > self.bound:
            return False
        if self.time_bound == _FOREVER:
            return True
        stored = store_timestamp_of(self.read(unit.phy_offset, STORE_TIME_HEAD))
        return stored is None or stored < self.time_bound

    def _complete_queues(self) -> int:
        """What recovery would make of the queues, from a walk over the whole log."""
        levels = parse_delay_levels(self.config.message_delay_level)
        seen: set[tuple[str, int]] = set()

        def is_fresh(claim: RecordClaim) -> bool:
            key = claim.topic, claim.queue_id
            return key not in seen or claim.queue_offset >= self._queues[key].max_offset

        walk = LogWalk(self.log_files, self.min_phy_offset, _FOREVER, _CHECK, is_fresh)
        for item in walk.items():
            if isinstance(item, Damage):
                self.damaged.append(item)
                self._take_damage(item, seen)
                continue
            self._sealed += sealed_rows(item.data, item.rows)
            deliver_time_codes(item.data, item.rows, levels)
            rows = rows_with_lmq(item.data, item.rows)
            for topic, queue_id, chosen in rows_by_queue(item.data, rows):
                self._take_rows((topic, queue_id), rows, chosen, seen)
        for key, queue in self._queues.items():
            if key not in seen:
                units = CQ_UNIT.view(queue.units(0, queue.max_offset)) if queue.files else None
                if units is not None and len(units):
                    low = queue.files[0].file_from_offset // _UNIT
                    good = units["phy_offset"] < self.min_phy_offset
                    queue.max_offset = low + int(good.sum())
        return walk.end.phy_offset

    def _drop_deleted(self) -> None:
        """Leave out queues of deleted topics that only the log has, as an open does."""
        for key, queue in list(self._queues.items()):
            last = queue.units(queue.max_offset - 1, 1) if queue.max_offset else b""
            if len(last) == _UNIT and is_deleted(
                self.deleted_topics, key[0], CQ_UNIT.unpack_from(last)
            ):
                del self._queues[key]

    def _take_damage(self, damage: Damage, seen: set[tuple[str, int]]) -> None:
        claim = damage.claim
        if claim is not None and claim.has_unit and (claim.topic, claim.queue_id) in seen:
            queue = self._queues[claim.topic, claim.queue_id]
            if queue.max_offset == claim.queue_offset and queue.memory is not None:
                queue.memory += damaged_unit(damage)
                queue.max_offset += 1

    def _gap_unit(self, queue: QueueView, phy_offset: int) -> bytes:
        assert queue.memory is not None
        last = CQ_UNIT.unpack_from(queue.memory, len(queue.memory) - _UNIT) if queue.memory else None
        for damage in (*self.damaged, *self._sealed):
            if (last.phy_offset if last else -1) < damage.phy_offset < phy_offset:
                return damaged_unit(damage)
        return PRE_BLANK

    def _take_rows(
        self, key: tuple[str, int], rows: Any, chosen: Any, seen: set[tuple[str, int]]
    ) -> None:
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = QueueView(*key)
        start = int(rows[chosen[0], record.C_QUEUE_OFFSET])
        if key not in seen:
            seen.add(key)
            queue.memory, queue.memory_start, queue.max_offset = bytearray(), start, start
        assert queue.memory is not None
        units = bytearray(_UNIT * len(chosen))
        queue_units.build_units(rows, chosen, 0, len(chosen), units)
        for number, row in enumerate(chosen.tolist()):
            offset = int(rows[row, record.C_QUEUE_OFFSET])
            place = (offset - queue.memory_start) * _UNIT
            if place < 0:  # the topic was deleted and made again
                queue.memory_start, place = offset, 0
            if place > len(queue.memory):
                gap = self._gap_unit(queue, int(rows[row, record.C_PHY]))
                queue.memory += gap * ((place - len(queue.memory)) // _UNIT)
            queue.memory[place:] = units[number * _UNIT : (number + 1) * _UNIT]
        queue.max_offset = queue.memory_start + len(queue.memory) // _UNIT

    # -- reading

    def queues(self) -> list[QueueView]:
        """Every queue, by topic and number."""
        return [self._queues[key] for key in sorted(self._queues)]

    def read(self, phy_offset: int, n: int) -> bytes:
        """Up to ``n`` bytes of the log, all from one file; empty when gone."""
        for file in self.log_files:
            at = phy_offset - file.file_from_offset
            if 0 <= at < file.size:
                return file.read(at, min(n, file.size - at))
        return b""

    def records(self, queue: QueueView) -> Iterator[tuple[int, Any, bytes | None]]:
        """(offset, unit, record or None) of each message of a queue; pre-blank places are left out."""
        offset = queue.min_offset
        cache, base = b"", 0
        while offset < queue.max_offset:
            data = queue.units(offset, 4096)
            if not data:
                offset = queue.next_file(offset)
                continue
            for number in range(len(data) // _UNIT):
                unit = CQ_UNIT.unpack_from(data, number * _UNIT)
                if unit.size == PRE_BLANK_SIZE:
                    continue
                at = unit.phy_offset - base
                if not 0 <= at <= len(cache) - unit.size:
                    base, cache = unit.phy_offset, self.read(unit.phy_offset, max(unit.size, 1 << 18))
                    at = 0
                found = cache[at : at + unit.size]
                yield offset + number, unit, found if len(found) == unit.size else None
            offset += len(data) // _UNIT

    def query(self, topic: str, key: str, index_type: str = "K") -> list[int]:
        """Positions of records whose key has the right hash; all of them, by the index files."""
        name = f"T#{key}" if index_type == "T" else key
        wanted = hashes.index_hash(topic.encode(), name.encode())
        slots, entries = self.config.max_hash_slot_num, self.config.max_index_num
        found: set[int] = set()
        for file in self.index_files():
            data = file.read(0, file.size)
            if len(data) == file.size and INDEX_HEADER.unpack_from(data).index_count > 1:
                room = np.empty(min(entries, 1 << 20), dtype=np.int64)
                n = index_entries.search(data, slots, entries, wanted, 0, _FOREVER - 2000, room)
                found.update(room[:n].tolist())
        return sorted(found)

    @property
    def is_live(self) -> bool:
        """Whether somebody serves it, so that files grow while they are looked at."""
        return self.state in {DirectoryState.LIVE, DirectoryState.LIVE_JAVA}

    @property
    def readable_until(self) -> int:
        """Where a walk over the log has to stop: behind what may be shown of a live store."""
        return self.bound if self.time_bound == _FOREVER else self.max_phy_offset

    def log_path(self, phy_offset: int) -> str:
        """The segment file that holds a position, or where it would be."""
        for file in self.log_files:
            if 0 <= phy_offset - file.file_from_offset < file.size:
                return file.path
        return self.log_paths.writable[0]

    def index_files(self) -> list[FileView]:
        """The index files, oldest first, whatever their length."""
        directory = f"{self.path}/{filenames.INDEX}"
        return [
            FileView(self.file_system, f"{directory}/{name}", 0,
                     self.file_system.stat(f"{directory}/{name}").size)
            for name in self.file_system.list(directory) if filenames.is_number(name)
        ]
