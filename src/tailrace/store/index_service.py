"""The key index: finds messages by key. Each file has hash slots and chained entries.

Owns ``index/``. A file is named by the local time of its creation. Its header says which positions of the log it
covers. The index is derived from the CommitLog; files that look wrong are rebuilt.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, final

import numpy as np

from tailrace import events
from tailrace.config import StoreConfig
from tailrace.env.clock import Clock
from tailrace.env.filesystem import FileSystem
from tailrace.env.shortage import DirectorySyncs
from tailrace.env.whole_files import is_directory
from tailrace.formats.filenames import is_index_name
from tailrace.formats.indexfile import (
    INDEX_ENTRY,
    INDEX_HEADER,
    INDEX_SLOT,
    IndexHeader,
    index_file_size,
)
from tailrace.kernels import hashes, index_chains, index_entries
from tailrace.kernels.shared import constants as C
from tailrace.logs import get_logger
from tailrace.segments import Lease, MappedFile, OpenFiles
from tailrace.store.index_builder import IndexBuilder
from tailrace.store.record_batch import RecordBatch, ShortBatch
from tailrace.store.walk.scan import Rows

__all__ = ["IndexService", "find_by_key", "index_file_name"]

_STEP = 16 << 20
_SLOTS_AT_ONCE = 1 << 18
_YEAR_9999_MS = 253_370_764_800_000
_log = get_logger(__name__)


def index_file_name(timestamp_ms: int) -> str:
    """Return the name of an index file created at a time: 17 digits, local time to the millisecond."""
    when = datetime.fromtimestamp(timestamp_ms / 1000)  # noqa: DTZ006 - the format is local time
    return when.strftime("%Y%m%d%H%M%S") + f"{timestamp_ms % 1000:03d}"


def _time_of(name: str) -> int:
    """Return the time in a file's name, in ms; 0 for a name of another form."""
    try:
        when = datetime.strptime(name[:14], "%Y%m%d%H%M%S")  # noqa: DTZ007 - the format is local time
        return int(when.timestamp()) * 1000 + int(name[14:17])
    except (ValueError, OverflowError):
        return 0


def _first_key(ends: Rows, row: int) -> int:
    """Return the number of the first key of a row. ``ends`` has for each row the number after its last key."""
    return int(ends[row - 1]) if row else 0


def _row_of(ends: Rows, key: int) -> int:
    """Return the row of a key."""
    return int(np.searchsorted(ends, key, side="right"))


def find_by_key(
    files: Sequence[MappedFile], config: StoreConfig, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int
) -> list[int]:
    """Return what ``IndexService.query`` returns, from these index files, oldest first.

    A file of another length than the settings say is left out.
    """
    wanted = hashes.index_hash(topic.encode(), key.encode())
    slots, entries = config.max_hash_slot_num, config.max_index_num
    found: list[int] = []
    room = np.empty(max(max_num, 1), dtype=np.int64)
    for file in reversed(files):
        if file.size != index_file_size(slots, entries):
            continue
        lease = file.select(0, file.size, mapped=True)  # a look-up reads only a few bytes
        if lease is None:  # retention has deleted the file
            continue
        with lease:
            header = INDEX_HEADER.unpack_from(lease.buffer)
            if header.index_count <= 1:
                continue
            if header.begin_timestamp <= end_ms and header.end_timestamp >= begin_ms:
                n = index_entries.search(
                    lease.buffer, slots, entries, wanted, begin_ms, end_ms, room[: max_num - len(found)])
                found.extend(room[:n].tolist())
        if header.begin_timestamp < begin_ms or len(found) >= max_num:
            break
    return found


@final
class IndexService:
    """All index files, oldest first."""

    def __init__(
        self, clock: Clock, file_system: FileSystem, config: StoreConfig, directory: str,
        open_files: OpenFiles | None = None,
    ) -> None:
        self._clock = clock
        self._file_system = file_system
        self._removals = DirectorySyncs(file_system)
        self._directory = directory
        self._open_files = open_files
        self._config = config
        self._slots = config.max_hash_slot_num
        self._entries = config.max_index_num
        self._size = index_file_size(self._slots, self._entries)
        self._start = index_file_size(self._slots, 0)
        self._lock = threading.Lock()
        self.files: tuple[MappedFile, ...] = ()
        self.full_unflushed: list[MappedFile] = []
        self._half_done = -1, 0
        self._builder: IndexBuilder | None = None
        self._work = np.empty(index_entries.WORK, dtype=np.int64)

    def load(self) -> str:
        """Load the files up to the first one that cannot be right.

        Return "" or why that file cannot be right. It and the later files stay on disk until ``rewind``.
        """
        files: list[MappedFile] = []
        self.files = ()
        for name in self._file_system.list(self._directory):
            path = f"{self._directory}/{name}"
            if not is_index_name(name):
                if not is_directory(self._file_system, path):
                    events.NOT_A_SEGMENT_FILE.log(_log, file=path)
                continue
            if self._file_system.stat(path).is_dir:
                continue
            if (size := self._file_system.stat(path).size) != self._size:
                return f"index file {name} has {size} bytes, not {self._size}"
            file = MappedFile(
                self._file_system, path, 0, self._size, mapped=True, allocate_step=_STEP,
                open_files=self._open_files)
            file.loaded_at(self._size)
            header = self.header(file)
            before = self.header(files[-1]).end_phy_offset if files else 0
            if not (
                1 <= header.index_count <= self._entries
                and before <= header.begin_phy_offset <= header.end_phy_offset
            ):
                file.close()
                return f"index file {name} has an impossible header"
            files.append(file)
            self.files = tuple(files)
        return ""

    def names(self) -> list[str]:
        """Names of the files, oldest first."""
        return [file.path.rpartition("/")[2] for file in self.files]

    def names_left_out(self) -> list[str]:
        """Names of the files on disk that ``load`` did not load."""
        known = set(self.names())
        return [name for name in self._file_system.list(self._directory) if is_index_name(name) and name not in known]

    def good_until(self) -> int:
        """Return the position of the last record in the valid entries at the start of the last file.

        Return -1 without entries. After a kill the keys of that record may be incomplete.
        """
        for file in reversed(self.files):
            count = self.header(file).index_count
            if count > 1:
                heads = np.empty(self._slots, dtype=np.int32)
                with self._entries_of(file) as lease:
                    _, last = index_chains.follow(lease.buffer, count, 1 << 62, heads)
                return last if last >= 0 else self.header(file).begin_phy_offset
        return -1

    def is_whole(self, file: MappedFile) -> bool:
        """Return True if all entries and slots of a file are valid.

        If not, no entry of it can be trusted: a wrong hash shows only in the slots.
        """
        heads = np.empty(self._slots, dtype=np.int32)
        wanted = self.header(file).index_count
        with self._entries_of(file) as lease:
            count, _ = index_chains.follow(lease.buffer, wanted, 1 << 62, heads)
        slots = heads.astype(">i4").tobytes()
        return count == wanted and file.read(INDEX_HEADER.size, len(slots)) == slots

    def _entries_of(self, file: MappedFile) -> Lease:
        start = INDEX_HEADER.size + self._slots * INDEX_SLOT.size
        lease = file.select(start, self._entries * INDEX_ENTRY.size, mapped=True)
        assert lease is not None
        return lease

    def drop_unfinished(
        self, durable: str, count: int, start: int, timestamp_of: Callable[[int], int],
        is_next: Callable[[int, int], bool],
    ) -> bool:
        """After a kill: drop what may be incomplete, that is, everything after the valid entries.

        The entries of the last record are also dropped, because its keys may be incomplete. ``durable`` is
        the name of the last synced file: pages of it and of later files, and names of later files, may be lost.
        ``count`` is the number in its header at that sync. The entries that it counts have all keys of their records,
        so they are dropped only after a damaged one. Return False if one of them was dropped.
        Records from ``start`` onwards are indexed again if they have no entry.
        ``is_next`` returns True if the second of two positions is that of the record after the first.
        """
        names = self.names()
        first = names.index(durable) if durable in names else 0
        self._forget_syncs(first)
        for number, file in enumerate(self.files[first:-1], first):
            header, following = self.header(file), self.header(self.files[number + 1])
            end, begin = header.end_phy_offset, following.begin_phy_offset
            whole = self.is_whole(file)
            goes_on = begin == end or following.index_count <= 1 or is_next(end, begin)
            # A file that is not the last one must be full.
            if not whole or header.index_count < self._entries or not goes_on:
                events.INDEX_FILE_IS_NOT_WHOLE.log(_log, file=file.path)
                kept = number + (whole or header.begin_phy_offset < start)
                later, self.files = self.files[kept:], self.files[:kept]
                for other in later:
                    other.destroy()
                self._file_system.sync_dir(self._directory)
                break
        self.rewind(1 << 62, timestamp_of, complete=(durable, count))
        return count <= 1 or any(
            name == durable and self.header(file).index_count >= count
            for name, file in zip(self.names(), self.files, strict=True))

    def rewind(
        self, phy_offset: int, timestamp_of: Callable[[int], int], *, durably: bool = False,
        complete: tuple[str, int] | None = None,
    ) -> None:
        """Remove every entry of records at or after ``phy_offset``; repair slots and header of the last file.

        ``durably`` makes the change durable on return. That is needed before other records are
        written at the positions of removed ones, because old entries would hide that the new records have no
        entries. ``timestamp_of`` returns the store time of the record at a position, in ms. Files without
        an entry are removed. ``complete`` also removes the entries of the last remaining record. It is the name of a
        file and a number: entries of that file before that number stay.
        """
        for name in self.names_left_out():
            self._file_system.remove(f"{self._directory}/{name}")
            self._file_system.sync_dir(self._directory)
        if complete is None:
            self._forget_syncs(0)
        while self.files:
            file = self.files[-1]
            header = self.header(file)
            if header.index_count > 1 and header.begin_phy_offset < phy_offset:
                least = header.index_count
                if complete is not None:
                    name, count = complete
                    least = count if self.names()[-1] == name else 1
                self._rewind_file(file, header, phy_offset, timestamp_of, least)
                if self.header(file).index_count > 1:
                    if durably:
                        file.flush()
                    return
            self.files = self.files[:-1]
            file.destroy()
            self._file_system.sync_dir(self._directory)  # else the file may reappear after a crash

    def _forget_syncs(self, first: int) -> None:
        """Let the next flush sync these files, because a killed process may have left them unsynced."""
        for file in self.files[first:]:
            file.doubt()

    def _rewind_file(
        self, file: MappedFile, header: IndexHeader, phy_offset: int, timestamp_of: Callable[[int], int], least: int,
    ) -> None:
        """Remove entries from a file, then those of its last remaining record whose numbers are ``least`` or more."""
        heads = np.empty(self._slots, dtype=np.int32)
        with self._entries_of(file) as lease:
            count, last = index_chains.follow(lease.buffer, header.index_count, phy_offset, heads)
            unfinished = last
            while count > 1:
                entry = INDEX_ENTRY.unpack_from(lease.buffer, (count - 1) * INDEX_ENTRY.size)
                last = entry.phy_offset
                if count <= least or last != unfinished:
                    break
                heads[entry.key_hash % self._slots] = entry.prev_index
                count, last = count - 1, -1
        start = INDEX_HEADER.size + self._slots * INDEX_SLOT.size
        for first in range(0, self._slots, _SLOTS_AT_ONCE):  # all of them together need 60 MB of new memory
            slots = heads[first : first + _SLOTS_AT_ONCE].astype(">i4").tobytes()
            at = INDEX_HEADER.size + first * INDEX_SLOT.size
            if file.read(at, len(slots)) != slots:
                file.write_at(slots, at)
        file.zero_tail(start + count * INDEX_ENTRY.size)
        made = header._replace(
            end_phy_offset=max(last, 0), end_timestamp=max(timestamp_of(last), 0) if last >= 0 else 0,
            hash_slot_count=int(np.count_nonzero(heads)), index_count=count)
        if made != header:
            file.write_at(INDEX_HEADER.pack(*made), 0)
        file.touched()

    def header(self, file: MappedFile) -> IndexHeader:
        """Return the header of a file; an empty one if retention has deleted the file."""
        data = file.read(0, INDEX_HEADER.size)
        return INDEX_HEADER.unpack_from(data) if data else IndexHeader(0, 0, 0, 0, 0, 1)

    def delete_expired_files(self, min_phy_offset: int) -> int:
        """Delete the oldest files that end below a position, never the last file. Return their number.

        Raises OSError, and FatalStorageError when the directory cannot be synced.
        """
        count = 0
        while len(self.files) > 1:
            file = self.files[0]
            if self.header(file).end_phy_offset >= min_phy_offset or file in self.full_unflushed:
                break
            events.DELETED_AN_EXPIRED_INDEX_FILE.log(_log, file=file.path)
            self._file_system.remove(file.path)
            with self._lock:
                self.files = self.files[1:]
            file.close()
            count += 1
        if count:
            # If a crash brings a name back, that file is expired, and a later pass deletes it.
            self._removals.sync(self._directory)
        return count

    def clear(self) -> None:
        """Remove every file."""
        for file in self.files:
            file.close()
        self.files = ()
        self.full_unflushed.clear()
        for name in self._file_system.list(self._directory):
            if is_index_name(name):
                self._file_system.remove(f"{self._directory}/{name}")

    @property
    def end_phy_offset(self) -> int:
        """Position of the last indexed message, -1 without one."""
        files = self.files
        if not files:
            return -1
        header = self.header(files[-1])
        return header.end_phy_offset if header.index_count > 1 else -1

    def snapshot(self, *, clean: bool = False) -> dict[str, Any]:
        """Return names and times of change of the files, count and end of the last one, for ``Progress.index``.

        The time of the last file is -1, because it grows; with ``clean`` it does not grow.
        """
        header = self.header(self.files[-1]) if self.files else None
        times = [file.mtime_ms() for file in (self.files if clean else self.files[:-1])]
        return {
            "files": self.names(), "times": [*times, -1][: len(self.files)],
            "count": header.index_count if header else 0,
            "end": header.end_phy_offset if header else 0,
        }

    # -- writing

    def put(self, batch: RecordBatch | ShortBatch) -> None:
        """Index the keys of records. Raises DiskFullError or OSError."""
        rows, (ends, key_hashes) = batch.rows, batch.key_hashes
        key, total = self._resumed(rows, ends), int(ends[-1]) if len(ends) else 0
        if key < total and not self.files:
            self._create(None, int(rows[_row_of(ends, key), C.STORE_TIMESTAMP]))
        while key < total:
            file = self.files[-1]
            if self._builder is not None:
                key = self._builder.put(file, rows, ends, key_hashes, key, self._work)
            else:
                with file:
                    count: int = INDEX_HEADER.struct.unpack_from(file.buffer)[-1]
                    file.reserve(self._start + min(count + total - key, self._entries) * INDEX_ENTRY.size)
                    key = index_entries.put_keys(
                        file.buffer, self._slots, self._entries, rows, ends, key_hashes, key,
                        self._work)
                    file.touched()
            self._half_done = -1, 0  # only now: until here the call may have failed again
            if key < total:
                self.write_built()
                row = _row_of(ends, key)
                self._half_done = int(rows[row, C.PHY]), key - _first_key(ends, row)
                self._create(file, int(rows[row, C.STORE_TIMESTAMP]))
                self._half_done = -1, 0

    def build(self) -> None:
        """Keep new entries in memory from now on; ``write_built`` writes them to the files."""
        self._builder = IndexBuilder(self._slots, self._entries)

    def write_built(self) -> None:
        """Write the entries that are in memory. Raises DiskFullError or OSError."""
        if self._builder is not None:
            self._builder.write()

    def end_build(self) -> None:
        """Write new entries to the files again. Entries that are still in memory are dropped."""
        if self._builder is not None:
            self._builder.close()
            self._builder = None

    def _resumed(self, rows: Rows, ends: Rows) -> int:
        """Return the key to continue with if the last call failed between two keys of a record, else 0."""
        phy_offset, key = self._half_done
        if not key:
            return 0
        row = int(np.searchsorted(rows[:, C.PHY], phy_offset))
        found = row < len(rows) and int(rows[row, C.PHY]) == phy_offset
        return _first_key(ends, row) + key if found else 0

    def _create(self, previous: MappedFile | None, timestamp_ms: int) -> MappedFile:
        """Create a file that starts where the previous one ends."""
        with self._lock:
            self._file_system.makedirs(self._directory)
            if not 0 < timestamp_ms < _YEAR_9999_MS:  # not a store time: the record is damaged
                timestamp_ms = self._clock.now_ms()
            # Names must be in the order of the log, even if an earlier name is free again.
            last = self.files[-1].path.rpartition("/")[2] if self.files else ""
            if index_file_name(timestamp_ms) <= last:
                timestamp_ms = max(timestamp_ms, _time_of(last) + 1)
            while self._file_system.exists(path := f"{self._directory}/{index_file_name(timestamp_ms)}"):
                timestamp_ms += 1
            file = MappedFile.create(
                self._file_system, path, 0, self._size, mapped=True, allocate_step=_STEP,
                open_files=self._open_files, derived=True)
            end = self.header(previous) if previous is not None else IndexHeader(0, 0, 0, 0, 0, 1)
            start = IndexHeader(
                end.end_timestamp, end.end_timestamp, end.end_phy_offset, end.end_phy_offset, 0, 1)
            file.write_at(INDEX_HEADER.pack(*start), 0)
            file.advance(self._size)
            self.files = (*self.files, file)
            if previous is not None:
                self.full_unflushed.append(previous)
            return file

    def flush_full(self) -> None:
        """Sync the files that have become full since the last call."""
        while self.full_unflushed:
            self.full_unflushed[0].flush()
            self.full_unflushed.pop(0)

    @property
    def full_until(self) -> int:
        """End time of the last full file in ms, 0 without a full file."""
        full = [header for header in map(self.header, self.files[-2:])
                if header.index_count >= self._entries]
        return full[-1].end_timestamp if full else 0

    def close(self) -> None:
        """Close every file."""
        for file in self.files:
            file.close()

    def unmap(self) -> None:
        """Unmap the files, so that pages read by recovery do not count as memory of this process."""
        for file in self.files:
            file.unmap()

    def flush(self) -> None:
        """Sync every changed file."""
        for file in self.files:
            file.flush()

    # -- reading

    def query(
        self, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int
    ) -> list[int]:
        """Return the positions of the newest ``max_num`` messages whose key has this hash, newest first.

        Different keys may have the same hash, so the caller must compare the keys.
        """
        return find_by_key(self.files, self._config, topic, key, max_num, begin_ms, end_ms)
