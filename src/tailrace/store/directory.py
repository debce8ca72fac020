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
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, final

import orjson

from tailrace.config import FlushDiskType, RecoveryMode, StoreConfig
from tailrace.env.clock import SystemClock
from tailrace.env.filesystem import FileSystem, OsFileSystem
from tailrace.env.memory_overlay import OverlayFileSystem
from tailrace.env.whole_files import read_hint
from tailrace.errors import NotAStoreError, OddFileError, StoreError
from tailrace.formats import filenames
from tailrace.formats.commitlog import STORE_TIME_HEAD, plausible_size, store_timestamp_of
from tailrace.formats.consumequeue import CQ_UNIT, PRE_BLANK_SIZE, CqUnit
from tailrace.kernels.shared import constants as C
from tailrace.segments import MappedFile, MappedFileQueue
from tailrace.store.batch_consume_queue import BatchConsumeQueue
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.store.directory_format import read_format, remembered
from tailrace.store.geometry import recognise
from tailrace.store.index_service import find_by_key
from tailrace.store.lives import EndedLives, end_of_life, has_ended
from tailrace.store.log_paths import log_paths, segment_files
from tailrace.store.queue_search import first_kept, first_message
from tailrace.store.queue_types import (
    check_queue_types,
    queue_directories,
    read_batch_topics,
    whole_units,
)
from tailrace.store.recovery.passes import RecoveryOptions
from tailrace.store.retention.min_offsets import LogicalMin, read_ended, read_minima
from tailrace.store.store_checkpoint import read_checkpoint
from tailrace.store.walk.log_walk import Damage
from tailrace.store.walk.scan import LogEnd, is_record, scan_files
from tailrace.store.wall_times import read_wall_times

__all__ = ["DirectoryState", "StoreDirectory"]

_UNIT: Final = CQ_UNIT.size
_FOREVER: Final = (1 << 63) - 1
_MOST_FOUND: Final = 1 << 20


class DirectoryState(enum.Enum):
    """Whether a process has the directory open, and whether it was closed cleanly."""

    CLEAN = "clean"
    UNCLEAN = "unclean"
    LIVE = "live"
    LIVE_JAVA = "live, a Java broker"


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
        kept = read_format(self.file_system, self.path)
        config = remembered(kept, self.path, config or StoreConfig())
        self.log_paths = log_paths(config, self.path)
        if not any(self.file_system.exists(path) for path in self.log_paths.all):
            raise NotAStoreError(self.path, "it has no commitlog, here or where storePathCommitLog says")
        for place in self.log_paths.all:
            if self.file_system.exists(place) and not self.file_system.stat(place).is_dir:
                raise OddFileError(place, "is not a directory")
        check_queue_types(self.file_system, self.path)
        self.config = recognise(self.file_system, self.path, kept, config, writes=False)
        self.lives = EndedLives(whole_units(self.config.mapped_file_size_consume_queue, _UNIT) // _UNIT)
        """The topics that were deleted, and where their queues begin again."""
        self.lives.load(read_ended(self.file_system, self.path))
        self.dispatched = _FOREVER
        """Position up to which a live server has written queue units and index entries."""
        self.state, self.bound, self.time_bound = self._look()
        self.wall_times = read_wall_times(self.file_system, self.path)
        """What the wall clock said while store times were ahead of it."""
        self.purged: dict[tuple[str, int], int] = {}
        """By queue, the offset below which its topic has released messages."""
        self.odd_files: list[tuple[str, int, int]] = []
        """(path, length, expected length) of segment and queue files that are left out."""
        self.unused_files: list[str] = []
        """Empty last files. They were never used, and an open removes them."""
        self.damaged: list[Damage] = []
        """Damage that recovery found in the part of the log that it walked."""
        recovered = self._recover(index=index) if self.state is DirectoryState.UNCLEAN and not raw else None
        log_size = self.config.mapped_file_size_commit_log
        self._log = MappedFileQueue(self.file_system, self.log_paths.all, log_size, mapped=False, files=sorted(
            (file for path in self.log_paths.all for file in self._files(path, log_size)),
            key=lambda file: file.file_from_offset))
        self.log_files = self._log.files
        self.min_phy_offset = max(self._log.min_offset, 0)
        if recovered is not None:
            ends = {key: queue.max_offset for key, queue in recovered.queues.table.items()}
            self._queues = self._load_queues(lambda queue: queue.set_end(ends.get((queue.topic, queue.queue_id), 0)))
            self.max_phy_offset = recovered.commit_log.max_offset
        else:
            self._queues = self._load_queues(lambda queue: queue.find_end(raw=raw))
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

    def _files(self, directory: str, size: int) -> list[MappedFile]:
        found: list[MappedFile] = []
        odd: list[tuple[str, int, int]] = []
        for offset, path in segment_files(self.file_system, (directory,)):
            if (there := self.file_system.stat(path).size) != size:
                odd.append((path, there, size))
            else:
                found.append(MappedFile(self.file_system, path, offset, size, foreign=True))
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
        store = DefaultMessageStore(
            SystemClock(), overlay, config, self.path, read_batch_topics(overlay, self.path).__contains__)
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

    def _load_queues(self, end: Callable[[ConsumeQueue], None]) -> dict[tuple[str, int], ConsumeQueue]:
        """Return the queues that have a directory. ``end`` sets the end of each."""
        found = {}
        for kind, name, wanted in (
            (ConsumeQueue, filenames.CONSUMEQUEUE, self.config.mapped_file_size_consume_queue),
            (BatchConsumeQueue, filenames.BATCHCONSUMEQUEUE, self.config.mapper_file_size_batch_consume_queue),
        ):
            root, size = f"{self.path}/{name}", whole_units(wanted, kind.unit_size)
            for topic, queue_id in queue_directories(self.file_system, root):
                path = f"{root}/{topic}/{queue_id}"
                queue = kind(topic, queue_id, MappedFileQueue(
                    self.file_system, path, size, mapped=False, files=self._files(path, size)))
                end(queue)
                found[topic, queue_id] = queue
        return found

    def _correct_min_offsets(self, minima: Mapping[tuple[str, int], LogicalMin], *, raw: bool) -> None:
        for key, queue in self._queues.items():
            queue.correct_min_offset(self.min_phy_offset)
            ended = self.lives.table.get(key[0]) if not raw else None
            if ended is not None:
                queue.logical_min_offset = end_of_life(queue, ended)
            if (low := minima.get(key)) is not None:
                purged = min(low.offset, first_kept(queue, low.phy_offset), queue.max_offset)
                queue.logical_min_offset = max(queue.logical_min_offset, purged)
                if purged > 0:
                    self.purged[key] = purged

    # -- where it ends

    def _find_end(self) -> int:
        """Return the position after the last record: start after the last unit, then walk the records."""
        last = self.min_phy_offset
        for queue in self._queues.values():
            unit = queue.unit(queue.max_offset - 1)
            if unit is not None and unit.size != PRE_BLANK_SIZE:
                last = max(last, unit.phy_offset + unit.size)
        end = LogEnd()
        if not self.log_files:
            return 0
        if last > self.log_files[-1].file_from_offset + self.config.mapped_file_size_commit_log:
            last = self.min_phy_offset
        for _ in scan_files(self.log_files, last, min(self.bound, _FOREVER), C.CHECK_ALL, end):
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

    def queues(self) -> list[ConsumeQueue]:
        """Return every queue, sorted by topic and queue id."""
        return [self._queues[key] for key in sorted(self._queues)]

    def queue(self, key: tuple[str, int]) -> ConsumeQueue | None:
        """Return the queue of (topic, queue id), or None."""
        return self._queues.get(key)

    def read(self, phy_offset: int, n: int) -> bytes:
        """Return up to ``n`` bytes of one segment of the log; b"" if it was deleted."""
        return self._log.read(phy_offset, n)

    def store_time(self, unit: CqUnit) -> int | None:
        """Return when a unit's message was stored, in ms of the wall clock.

        The result is -1 if its file was deleted, and None if it is damaged.
        """
        at = unit.phy_offset
        head = self.read(at, STORE_TIME_HEAD)
        if plausible_size(head, at) == unit.size and is_record(self.read(at, unit.size), at):
            stored = store_timestamp_of(head)
            return None if stored is None else self.wall_times.of(at, stored)
        is_file_gone = not head and self._log.find(at) is not None
        return -1 if is_file_gone or at < self.min_phy_offset else None

    def records(
        self, queue: ConsumeQueue, unread: dict[int, OSError] | None = None
    ) -> Iterator[tuple[int, Any, bytes | None]]:
        """Yield (offset, unit, record or None) for each message of a queue, without pre-blank units.

        ``unread`` gets the position of each record that cannot be read, and why; without it such a record raises
        OSError.
        """
        cache, base = b"", 0
        for offset, units in queue.runs(queue.min_offset, queue.max_offset):
            for number, unit in enumerate(itertools.starmap(CqUnit, units.tolist())):
                if unit.size == PRE_BLANK_SIZE:
                    continue
                at = unit.phy_offset - base
                if not 0 <= at <= len(cache) - unit.size:
                    base, cache = unit.phy_offset, self._around(unit, unread)
                    at = 0
                found = cache[at : at + unit.size]
                yield offset + number, unit, found if len(found) == unit.size else None

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
        """Return the positions of the newest records with this key's hash, at most a million, from the index files."""
        name = f"T#{key}" if index_type == "T" else key
        return sorted(set(find_by_key(self.index_files(), self.config, topic, name, _MOST_FOUND, 0, _FOREVER - 2000)))

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
        last = (queue.unit(queue.max_offset - 1) for queue in self._queues.values())
        return max((unit.phy_offset + unit.size for unit in last if unit is not None and unit.size != PRE_BLANK_SIZE),
                   default=self.min_phy_offset)

    def log_path(self, phy_offset: int) -> str:
        """Return the path of the segment with a position; without one, the directory of new segments."""
        file = self._log.find(phy_offset)
        return file.path if file is not None else self.log_paths.writable[0]

    def index_files(self) -> list[MappedFile]:
        """Return the index files of any length, oldest first."""
        directory = f"{self.path}/{filenames.INDEX}"
        return [
            MappedFile(self.file_system, f"{directory}/{name}", 0, self.file_system.stat(f"{directory}/{name}").size,
                       foreign=True)
            for name in self.file_system.list(directory) if filenames.is_index_name(name)
        ]
