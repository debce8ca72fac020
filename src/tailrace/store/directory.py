"""Read a store directory without its lock. Files are read by pread, and nothing is changed.

Which records are shown:
  closed cleanly    every valid record
  not closed        what recovery finds. It runs on an overlay, whose changes stay in memory
  open in Tailrace  records before the position in the hint ``tailrace/flushed``, which counts only if its
                    process is the one in the abort file
  open in Java      records that are older than the flush time in the checkpoint

`node.synced_directory` asks the server to sync first.

A short read means that retention has deleted the file since.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final, final

import numpy as np
import orjson

from tailrace.config import FlushDiskType, RecoveryMode, StoreConfig
from tailrace.env.clock import SystemClock
from tailrace.env.filesystem import FileSystem, OsFileSystem
from tailrace.env.memory_overlay import OverlayFileSystem
from tailrace.env.whole_files import read_hint
from tailrace.errors import NotAStoreError, OddFileError, StoreError
from tailrace.formats import filenames
from tailrace.formats.commitlog import STORE_TIME_HEAD, plausible_size, store_timestamp_of
from tailrace.formats.consumequeue import BATCH_CQ_UNIT, CQ_UNIT, PRE_BLANK_SIZE, CqUnit
from tailrace.formats.indexfile import INDEX_HEADER
from tailrace.kernels import hashes, index_entries
from tailrace.kernels.shared import constants as C
from tailrace.store.batch_units import BatchPlaces, last_of, places_until
from tailrace.store.consume_queue import count_units, find_units_end
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.store.geometry import recognise
from tailrace.store.lives import EndedLives, end_of_life, has_ended
from tailrace.store.log_paths import log_paths
from tailrace.store.own_settings import remembered
from tailrace.store.queue_search import first_kept, first_message
from tailrace.store.queue_types import check_queue_types, queue_directories, whole_units
from tailrace.store.recovery.passes import RecoveryOptions
from tailrace.store.retention.min_offsets import LogicalMin, read_ended, read_minima
from tailrace.store.store_checkpoint import read_checkpoint
from tailrace.store.walk.log_walk import Damage
from tailrace.store.walk.scan import LogEnd, is_record, scan_files
from tailrace.store.wall_times import read_wall_times

__all__ = ["BatchQueueView", "DirectoryState", "FileView", "QueueView", "StoreDirectory"]

_UNIT: Final = CQ_UNIT.size
_CHECK: Final = C.CHECK_BODY_CRC | C.CHECK_PHY_OFFSET | C.CHECK_PROP_CRC
_FOREVER: Final = (1 << 63) - 1
_CHUNK: Final = 1 << 20


class DirectoryState(enum.Enum):
    """Whether a process has the directory open, and whether it was closed cleanly."""

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
        """Return up to ``n`` bytes at ``at``; b"" if the file was deleted."""
        try:
            file = self._file_system.open(self.path)
        except FileNotFoundError:
            return b""
        try:
            return file.pread(n, at)
        finally:
            file.close()

    def data_end(self) -> int:
        """Return the position in the file after which there is only a hole; 0 if the file was deleted."""
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
        """Yield (position, bytes) of every chunk from ``start`` onwards that is not all zero."""
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
    """A queue of a directory. Its messages have queue offsets [min_offset, max_offset)."""

    topic: str
    queue_id: int
    min_offset: int = 0
    max_offset: int = 0
    files: list[FileView] = field(default_factory=list)
    purged_until: int = 0
    """Messages below this offset were released by their topic."""
    is_batch: ClassVar[bool] = False

    @property
    def directory(self) -> str:
        """Directory of its files, relative to the root of the store."""
        kind = filenames.BATCHCONSUMEQUEUE if self.is_batch else filenames.CONSUMEQUEUE
        return f"{kind}/{self.topic}/{self.queue_id}"

    def find_end(self, *, raw: bool) -> None:
        """End the queue after the last unit in its files; with ``raw`` read every unit to find it."""
        for file in reversed(self.files):
            count = count_units(file.read(0, file.size)) if raw else find_units_end(file)
            if count or file is self.files[0]:
                self.max_offset = file.file_from_offset // _UNIT + count
                break

    def unit_bytes(self) -> int:
        """Bytes of the units of its messages."""
        return (self.max_offset - self.min_offset) * _UNIT

    def begin_of(self, offset: int) -> int:
        """Queue offset of the first message of the record that has the message at ``offset``."""
        return offset

    def end_of(self, offset: int) -> int:
        """Queue offset after the last message of the record that has the message at ``offset``."""
        return offset + 1

    def last_unit(self) -> CqUnit | None:
        """The unit of the record that has the last message."""
        data = self.units(self.max_offset - 1, 1) if self.max_offset else b""
        return CQ_UNIT.unpack_from(data) if len(data) == _UNIT else None

    def units(self, offset: int, count: int) -> bytes:
        """Bytes of up to ``count`` units from ``offset``."""
        count = min(count, self.max_offset - offset)
        if count <= 0:
            return b""
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

    @property
    def first_offset(self) -> int:
        """Number of the first unit of the first file."""
        return self.files[0].file_from_offset // _UNIT if self.files else 0

    def next_file(self, offset: int) -> int:
        """Number of the first unit of the next file; the end of the queue after the last one."""
        starts = [file.file_from_offset // _UNIT for file in self.files]
        return min((start for start in starts if start > offset), default=self.max_offset)

    def all_units(self) -> np.ndarray[Any, np.dtype[np.void]]:
        """Return every unit from ``min_offset`` onwards as a structured array."""
        data = self.units(self.min_offset, self.max_offset - self.min_offset)
        return CQ_UNIT.view(data[: len(data) - len(data) % _UNIT])


@final
@dataclass(slots=True)
class BatchQueueView(QueueView):
    """A queue of a topic with ``queue.type=BatchCQ``, with the methods of a ``QueueView``."""

    is_batch: ClassVar[bool] = True

    _places: BatchPlaces | None = None

    def places(self) -> BatchPlaces:
        """Return the units of the queue."""
        if self._places is None:
            self._places = places_until(self.files, self.max_offset)
        return self._places._replace(max_offset=self.max_offset)

    def find_end(self, *, raw: bool) -> None:
        """End the queue after the last unit in its files."""
        del raw  # the neighbours of a damaged unit show the damage, however the end is found
        if found := last_of(self.files):
            self.max_offset = found[1].msg_base_offset + found[1].batch_size

    def unit_bytes(self) -> int:
        """Bytes of the units of its messages."""
        low, high = (self.places().place_of(at) for at in (self.min_offset, self.max_offset))
        return high - low + BATCH_CQ_UNIT.size if low >= 0 and self.min_offset < self.max_offset else 0

    def begin_of(self, offset: int) -> int:
        """Queue offset of the first message of the record that has the message at ``offset``."""
        return self.places().begin_of(offset)

    def end_of(self, offset: int) -> int:
        """Queue offset after the last message of the record that has the message at ``offset``."""
        found = self.places().covering(offset)
        return found.end if found is not None else offset + 1

    def last_unit(self) -> CqUnit | None:
        """The unit of the record that has the last message."""
        found = self.places().covering(self.max_offset - 1) if self.max_offset else None
        return CqUnit(*found.unit[:3]) if found is not None else None

    def units(self, offset: int, count: int) -> bytes:
        """Return units of 20 bytes of up to ``count`` messages from ``offset`` onwards."""
        places, parts, until = self.places(), [], min(offset + count, self.max_offset)
        while offset < until and (part := places.units(offset, until - offset)):
            parts.append(part)
            offset += len(part) // _UNIT
        return b"".join(parts)

    def batch_units(self, offset: int, count: int) -> bytes:
        """Return the bytes of up to ``count`` units of 46 bytes, starting with that of the message at ``offset``."""
        parts, wanted = [], count * BATCH_CQ_UNIT.size
        at = self.places().place_of(offset)
        for file in self.files if at >= 0 else ():
            low = max(at, file.file_from_offset) - file.file_from_offset
            if low < file.size and wanted > 0:
                parts.append(file.read(low, min(wanted, file.size - low)))
                wanted -= len(parts[-1])
        return b"".join(parts)

    @property
    def first_offset(self) -> int:
        """Queue offset of the first message of the first file."""
        return self.places().first_offset

    def next_file(self, offset: int) -> int:
        """Queue offset of the first message of the next file; the end of the queue after the last one."""
        return self.places().next_file(offset)


@final
class StoreDirectory:
    """A directory at the moment of opening; open another one to see later messages.

    ``raw`` takes queues as they are on disk, without recovery. ``index`` lets recovery also complete the
    index; without it the index files of a directory that was not closed are not read.

    Raises NotAStoreError if ``path`` is not a store, OddFileError if its CommitLog is not a directory, and
    CorruptionError or OSError if recovery fails.
    """

    def __init__(
        self, path: str, *, config: StoreConfig | None = None, file_system: FileSystem | None = None,
        raw: bool = False, index: bool = False,
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
        check_queue_types(self.file_system, self.path)
        self.config = recognise(self.file_system, self.path, config)
        self.lives = EndedLives(whole_units(self.config.mapped_file_size_consume_queue, _UNIT) // _UNIT)
        """The topics that were deleted, and where their queues begin again."""
        self.lives.load(read_ended(self.file_system, self.path))
        self.dispatched = _FOREVER
        """Position up to which a live server has written queue units and index entries."""
        self.state, self.bound, self.time_bound = self._look()
        self.wall_times = read_wall_times(self.file_system, self.path)
        """What the wall clock said while store times were ahead of it."""
        self.odd_files: list[tuple[str, int, int]] = []
        """(path, length, expected length) of segment and queue files that are left out."""
        self.unused_files: list[str] = []
        """Empty last files. They were never used, and an open removes them."""
        self.damaged: list[Damage] = []
        """Damage that recovery found in the part of the log that it walked."""
        recovered = self._recover(index=index) if self.state is DirectoryState.UNCLEAN and not raw else None
        self.log_files = sorted(
            (file for path in self.log_paths.all
             for file in self._files(path, self.config.mapped_file_size_commit_log)),
            key=lambda file: file.file_from_offset)
        self.min_phy_offset = self.log_files[0].file_from_offset if self.log_files else 0
        if recovered is not None:
            self._queues = self._recovered_queues(recovered)
            self.max_phy_offset = recovered.commit_log.max_offset
        else:
            self._queues = self._load_queues(raw=raw)
            self.max_phy_offset = self._find_end()
            self._hide_past_bound()
        self.lives.lower(self.max_phy_offset)
        if not raw:
            self._drop_ended()
        self._correct_min_offsets({} if raw else read_minima(self.file_system, self.path), raw=raw)

    # -- the files of the directory

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
                self.dispatched = int(hint.get("dispatched", hint["flushed"]))
                return DirectoryState.LIVE, int(hint["flushed"]), _FOREVER
        except (ValueError, KeyError, TypeError):
            pass
        checkpoint = read_checkpoint(self.file_system, f"{root}/{filenames.CHECKPOINT}")
        return DirectoryState.LIVE_JAVA, _FOREVER, checkpoint.physic_msg_timestamp

    def _text(self, path: str) -> bytes | None:
        text = read_hint(self.file_system, path, 4096)
        if text is None:  # an abort file that cannot be read counts as present
            return b"" if self.file_system.exists(path) else None
        return text.strip()

    def _files(self, directory: str, size: int) -> list[FileView]:
        found: list[FileView] = []
        odd: list[tuple[str, int, int]] = []
        for name in self.file_system.list(directory):
            offset = filenames.file_name_to_offset(name)
            path = f"{directory}/{name}"
            if offset is None:
                continue
            if (there := self.file_system.stat(path).size) != size:
                odd.append((path, there, size))
            else:
                found.append(FileView(self.file_system, path, offset, size))
        while odd and not odd[-1][1] and (not found or odd[-1][0] > found[-1].path):
            self.unused_files.append(odd.pop()[0])
        self.odd_files += odd
        return found

    def _recover(self, *, index: bool) -> DefaultMessageStore | None:
        """Recover the directory in memory; later reads go through that memory.

        Return the recovered store, whose files are closed, or None if another process has opened the
        directory since. Memory: the pages that recovery changes, 20 bytes for each message whose unit was
        missing and, with ``index``, 20 bytes for each key.
        """
        overlay = OverlayFileSystem(self.file_system)
        config = replace(
            self.config, recovery_mode=RecoveryMode.TOLERATE_ANY,  # a mode refuses to open, not to show
            flush_disk_type=FlushDiskType.ASYNC_FLUSH,
            message_index_enable=index and self.config.message_index_enable)
        store = DefaultMessageStore(SystemClock(), overlay, config, self.path)
        failure = None
        try:
            store.load(RecoveryOptions(last_exit_ok=False, read_only="the directory is only read"))
        except (OSError, StoreError) as error:
            failure = error
        finally:
            store.release()
        self.state, self.bound, self.time_bound = self._look()
        if self.state is not DirectoryState.UNCLEAN:
            return None
        if failure is not None:
            raise failure
        self.file_system = overlay
        self.damaged = [
            Damage(found["physicalOffset"], found["physicalOffset"] + found["length"], found["reason"], "")
            for found in store.report.stepped_over]
        return store

    def _recovered_queues(self, store: DefaultMessageStore) -> dict[tuple[str, int], QueueView]:
        return {
            key: (BatchQueueView if queue.is_batch else QueueView)(*key, max_offset=queue.max_offset, files=[
                FileView(self.file_system, file.path, file.file_from_offset, file.size)
                for file in queue.files.files])
            for key, queue in store.queues.table.items()}

    def _load_queues(self, *, raw: bool) -> dict[tuple[str, int], QueueView]:
        found = {}
        for kind, name, unit, size in (
            (QueueView, filenames.CONSUMEQUEUE, CQ_UNIT, self.config.mapped_file_size_consume_queue),
            (BatchQueueView, filenames.BATCHCONSUMEQUEUE, BATCH_CQ_UNIT,
             self.config.mapper_file_size_batch_consume_queue),
        ):
            root = f"{self.path}/{name}"
            for topic, queue_id in queue_directories(self.file_system, root):
                queue = kind(topic, queue_id, files=self._files(
                    f"{root}/{topic}/{queue_id}", whole_units(size, unit.size)))
                queue.find_end(raw=raw)
                found[topic, queue_id] = queue
        return found

    def _correct_min_offsets(self, minima: Mapping[tuple[str, int], LogicalMin], *, raw: bool) -> None:
        for key, queue in self._queues.items():
            queue.min_offset = first_kept(queue, self.min_phy_offset)
            ended = self.lives.table.get(key[0]) if not raw else None
            if ended is not None:
                queue.min_offset = max(queue.min_offset, end_of_life(queue, ended))
            if (low := minima.get(key)) is not None:
                queue.purged_until = min(
                    low.offset, first_kept(queue, low.phy_offset), queue.max_offset)
                queue.min_offset = max(queue.min_offset, queue.purged_until)

    # -- where it ends

    def _find_end(self) -> int:
        """Return the position after the last record: start after the last unit, then walk the records."""
        last = self.min_phy_offset
        for queue in self._queues.values():
            unit = queue.last_unit()
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

    def _hide_past_bound(self) -> None:
        if self.bound == _FOREVER and self.time_bound == _FOREVER:
            return
        for queue in self._queues.values():
            queue.max_offset = first_message(
                queue, queue.first_offset, lambda unit: not self._may_be_shown(unit))

    def _may_be_shown(self, unit: CqUnit) -> bool:
        if unit.phy_offset < self.min_phy_offset:
            return True
        if unit.phy_offset + unit.size > self.bound:
            return False
        if self.time_bound == _FOREVER:
            return True
        stored = store_timestamp_of(self.read(unit.phy_offset, STORE_TIME_HEAD))
        return stored is None or stored < self.time_bound

    def _drop_ended(self) -> None:
        """Leave out queues that have only messages of deleted topics."""
        for key, queue in list(self._queues.items()):
            ended = self.lives.table.get(key[0])
            if ended is not None and has_ended(queue, ended, key[1]):
                del self._queues[key]

    # -- reading

    def queues(self) -> list[QueueView]:
        """Return every queue, sorted by topic and queue id."""
        return [self._queues[key] for key in sorted(self._queues)]

    def queue(self, key: tuple[str, int]) -> QueueView | None:
        """Return the queue of (topic, queue id), or None."""
        return self._queues.get(key)

    def read(self, phy_offset: int, n: int) -> bytes:
        """Return up to ``n`` bytes of one segment of the log; b"" if it was deleted."""
        file = self._log_file(phy_offset)
        if file is None:
            return b""
        at = phy_offset - file.file_from_offset
        return file.read(at, min(n, file.size - at))

    def _log_file(self, phy_offset: int) -> FileView | None:
        for file in self.log_files:
            if 0 <= phy_offset - file.file_from_offset < file.size:
                return file
        return None

    def store_time(self, unit: CqUnit) -> int | None:
        """Return when a unit's message was stored, in ms of the wall clock.

        The result is -1 if its file was deleted, and None if it is damaged.
        """
        at = unit.phy_offset
        head = self.read(at, STORE_TIME_HEAD)
        if plausible_size(head, at) == unit.size and is_record(self.read(at, unit.size), at):
            stored = store_timestamp_of(head)
            return None if stored is None else self.wall_times.of(at, stored)
        is_file_gone = not head and self._log_file(at) is not None
        return -1 if is_file_gone or at < self.min_phy_offset else None

    def records(
        self, queue: QueueView, unread: dict[int, OSError] | None = None
    ) -> Iterator[tuple[int, Any, bytes | None]]:
        """Yield (offset, unit, record or None) for each message of a queue, without pre-blank units.

        ``unread`` gets the position of each record that cannot be read, and why; without it such a record raises
        OSError.
        """
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
                    base, cache = unit.phy_offset, self._around(unit, unread)
                    at = 0
                found = cache[at : at + unit.size]
                yield offset + number, unit, found if len(found) == unit.size else None
            offset += len(data) // _UNIT

    def _around(self, unit: CqUnit, unread: dict[int, OSError] | None) -> bytes:
        """Return the record of a unit and bytes after it; no bytes if it cannot be read and ``unread`` is given."""
        try:
            return self.read(unit.phy_offset, max(unit.size, 1 << 18))
        except OSError:
            try:
                return self.read(unit.phy_offset, unit.size)  # the error may be of the bytes after it
            except OSError as error:
                if unread is None:
                    raise
                unread[unit.phy_offset] = error
                return b""

    def query(self, topic: str, key: str, index_type: str = "K") -> list[int]:
        """Return the positions of all records with this key's hash, from the index files."""
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
        """True if another process has the directory open, so that files may grow while they are read."""
        return self.state in {DirectoryState.LIVE, DirectoryState.LIVE_JAVA}

    @property
    def readable_until(self) -> int:
        """Position where a walk over the log must stop: the end of what may be shown."""
        return self.bound if self.time_bound == _FOREVER else self.max_phy_offset

    @property
    def shown_until(self) -> int:
        """Position after the last record that may be shown, beside a Java broker that of the last unit."""
        if self.time_bound == _FOREVER:
            return self.readable_until
        last = (queue.last_unit() for queue in self._queues.values())
        return max((unit.phy_offset + unit.size for unit in last if unit is not None and unit.size != PRE_BLANK_SIZE),
                   default=self.min_phy_offset)

    def log_path(self, phy_offset: int) -> str:
        """Return the path of the segment with a position; without one, the directory of new segments."""
        file = self._log_file(phy_offset)
        return file.path if file is not None else self.log_paths.writable[0]

    def index_files(self) -> list[FileView]:
        """Return the index files of any length, oldest first."""
        directory = f"{self.path}/{filenames.INDEX}"
        return [
            FileView(self.file_system, f"{directory}/{name}", 0,
                     self.file_system.stat(f"{directory}/{name}").size)
            for name in self.file_system.list(directory) if filenames.is_index_name(name)
        ]
