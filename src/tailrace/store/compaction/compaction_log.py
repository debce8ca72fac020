"""The compaction log of one queue: a copy of its messages, of which a compaction keeps the last one of each key.

Invariants:
  CP1  Every message with keys below ``max_offset`` is in the log, unless a later message with the same KEYS is
       in the queue, or the message has no body and was compacted.
  CP2  A message is copied only after it is durable in the CommitLog.
  CP3  A compaction changes files only through ``replacement``: before its commit point an open finds all old
       files, after it all new ones.
  CP4  A damaged message is left out after its bytes are in quarantine, and no good one because of it.
Concurrency: one thread copies, one compacts, any number read. ``_lock`` is held to copy, to read and to replace.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final, NamedTuple, final

from tailrace import events
from tailrace.env.filesystem import FileSystem
from tailrace.errors import DiskFullError
from tailrace.formats.commitlog import decode_properties
from tailrace.formats.consumequeue import BatchCqUnit
from tailrace.formats.message_fields import stored_properties
from tailrace.formats.names import KEYS
from tailrace.kernels.shared import constants as C
from tailrace.logs import get_logger
from tailrace.segments import OpenFiles
from tailrace.store.compaction.damage import DamagedMessages
from tailrace.store.compaction.file_pair import FilePair, Sizes
from tailrace.store.compaction.replacement import (
    QueueDirectories,
    commit,
    drop_staged,
    end,
    finish,
    prepare,
    segment_starts,
    settle,
    sync,
)
from tailrace.store.hooks import PropertyFilter

__all__ = ["Compacted", "CompactionLog", "KeyMap", "has_keys"]

_log = get_logger(__name__)
_WRITE: Final = 1 << 18
_ENTRY: Final = 160
"""Bytes of memory that a key needs in a dict, besides its text."""
_LOOK: Final = 4096
_LEAST_KEYS: Final = 100
_COLUMNS: Final = (
    C.KEYS_POS, C.KEYS_LEN, C.PHY, C.SIZE, C.TAGS_CODE,
    C.STORE_TIMESTAMP, C.QUEUE_OFFSET, C.BODY_LEN)


def has_keys(stored: bytes) -> bool:
    """Return True if a record has keys; without keys it has no place in a compacted topic."""
    return bool(decode_properties(stored_properties(stored)).get(KEYS, "").strip())


class Compacted(NamedTuple):
    """What a compaction did."""

    files: int
    kept: int
    dropped: int
    position: int
    """Queue offset up to which keys are compacted, including it."""


class KeyMap:
    """The last queue offset of each key, up to a limit of memory."""

    def __init__(self, memory: int) -> None:
        self._left = memory
        self._last: dict[bytes, int] = {}
        self.last_offset = -1
        """Queue offset of the last message that the map has."""
        self.is_full = False

    def put(self, key: bytes, offset: int) -> bool:
        """Note a message. Return False if there is no room for its key; at least 100 keys have room."""
        if key not in self._last:
            self._left -= len(key) + _ENTRY
            if self._left < 0 and len(self._last) >= _LEAST_KEYS:
                self.is_full = True
                return False
        self._last[key] = self.last_offset = offset
        return True

    def retains(self, key: bytes, offset: int, body_length: int) -> bool:
        """Return True if a compaction keeps this message."""
        if offset > self.last_offset:
            return True
        return bool(key.strip()) and body_length > 0 and offset >= self._last.get(key, -1)


@final
class CompactionLog:
    """One queue of a topic with compaction."""

    def __init__(
        self, file_system: FileSystem, where: QueueDirectories, sizes: Sizes, open_files: OpenFiles,
        damaged: DamagedMessages,
    ) -> None:
        self._file_system = file_system
        self._where = where
        self._sizes = sizes
        self._open_files = open_files
        self._damaged = damaged
        self._pairs: tuple[FilePair, ...] = ()
        self._lock = threading.RLock()
        self._compacting = threading.Lock()
        self._replacing = False
        """True if a replacement was decided and not finished: nothing may be read or copied."""
        self._keeps_staged = False
        """True if it is not known whether a replacement was decided durably; the next open settles that."""
        self._closed = False
        self.position = -1
        """Queue offset up to which keys are compacted, including it."""

    # -- life

    def load(self, keep_position: Callable[[int], None], again: range) -> None:
        """Load the files, after an interrupted replacement is settled and damaged units are built again.

        ``keep_position`` makes a position durable. ``again`` has the queue offsets that the CommitLog still has.
        Raises OSError, CorruptionError or FatalStorageError.
        """
        position = settle(self._file_system, self._where)
        if position is not None:
            self.position = position
            keep_position(position)
            end(self._file_system, self._where)
        self._load_pairs(again)

    def _load_pairs(self, again: range) -> None:
        starts = segment_starts(self._file_system, self._where.log)
        for start in segment_starts(self._file_system, self._where.queue):
            if start not in starts:
                self._file_system.remove(f"{self._where.queue}/{self._pair(start).name}")
        pairs: list[FilePair] = []
        after = -1
        for start in starts:
            pair, copied_again = self._pair(start), again if start == starts[-1] else None
            if not pair.load(copied_again):
                events.UNITS_OF_A_COMPACTION_LOG_ARE_BUILT_AGAIN.log(_log, file=pair.log.path)
                pair.rebuild(after, self._damaged, copied_again)
            if pair.count:
                after = pair.last
                pairs.append(pair)
            else:
                pair.remove()
        self._pairs = tuple(pairs)

    def _pair(self, start: int, where: QueueDirectories | None = None) -> FilePair:
        where = where or self._where
        return FilePair(self._file_system, *where, start, self._sizes, self._open_files)

    def close(self) -> None:
        """Close the files; the log must not be used afterwards."""
        with self._lock:
            self._closed = True
            for pair in self._pairs:
                pair.close()
            self._pairs = ()

    def destroy(self) -> None:
        """Remove the files, durably. Raises OSError."""
        with self._compacting, self._lock:
            self.close()
            remove_queue(self._file_system, self._where)
            self._damaged.forget(self._where.log)

    # -- offsets

    @property
    def min_offset(self) -> int:
        """Queue offset of the first message, -1 without a message."""
        pairs = self._pairs
        return pairs[0].first if pairs else -1

    @property
    def max_offset(self) -> int:
        """Queue offset after the last message, 0 without a message."""
        pairs = self._pairs
        return pairs[-1].last + 1 if pairs else 0

    # -- writing

    def append(self, messages: Iterator[tuple[bytes, int, int, int]]) -> int:
        """Copy (record, tags code, store time, queue offset) of messages in order; return their number.

        Raises OSError, DiskFullError or FatalStorageError; the messages before are then copied.
        """
        count = 0
        with self._lock:
            if self._closed:
                return 0
            self._settled()
            try:
                for message in messages:
                    self._last_pair_for(message)
                    count += 1
                    if self._pairs[-1].pending_bytes() >= _WRITE:
                        self._pairs[-1].write()
                if self._pairs:
                    self._pairs[-1].write()
            except BaseException:
                if self._pairs:
                    self._pairs[-1].discard()  # the next call copies them again
                raise
        return count

    def _last_pair_for(self, message: tuple[bytes, int, int, int]) -> None:
        if self._pairs:
            last = self._pairs[-1]
            if last.append(*message):
                return
            last.end()
        made = self._pair(self._pairs[-1].start + self._sizes.log if self._pairs else 0)
        for directory in self._where:
            self._file_system.makedirs(directory)
        made.create()
        if not made.append(*message):
            made.remove()
            raise OSError(f"{made.log.path}: a message of {len(message[0])} bytes does not fit into a file of "
                          f"{self._sizes.log} bytes; raise compactionMappedFileSize for new topics")
        try:
            made.write()
        except (OSError, DiskFullError):
            with contextlib.suppress(OSError):  # the caller gets the first error
                made.remove()
            raise
        self._pairs = (*self._pairs, made)

    def sync(self) -> None:
        """Make everything that was copied durable. Raises FatalStorageError or OSError."""
        with self._lock:
            if self._pairs:
                self._pairs[-1].sync()  # the others are synced (CF3)

    # -- reading

    def read(
        self, offset: int, most: int, room: int, codes: Collection[int] | None, keep: PropertyFilter | None,
        *, only_cached: bool = False,
    ) -> tuple[list[bytes], list[int], int, bool]:
        """Return (records, their queue offsets, offset to continue at, is cold) from ``offset`` onwards.

        At most ``most`` records of together ``room`` bytes, but one always fits. With ``only_cached`` the
        records before the first one that is not in the page cache; cold without such a record. Raises OSError.
        """
        found: list[bytes] = []
        offsets: list[int] = []
        total = 0
        with self._lock:
            self._settled()
            for number, unit in enumerate(self._units(offset)):
                if len(found) >= most or number >= _LOOK or (found and total + unit.size > room):
                    return found, offsets, offset, False
                before, offset = offset, unit.msg_base_offset + 1
                if codes is not None and unit.tags_code not in codes:
                    continue
                stored = self._record(unit, only_cached=only_cached)
                if stored is None:
                    return found, offsets, before, not found
                if stored and (keep is None or _matches(stored, keep)):
                    found.append(stored)
                    offsets.append(unit.msg_base_offset)
                    total += len(stored)
            return found, offsets, max(offset, self.max_offset), False

    def _units(self, offset: int) -> Iterator[BatchCqUnit]:
        for pair in self._pairs:
            if pair.last >= offset:
                yield from pair.units(pair.find(offset))

    def _record(self, unit: BatchCqUnit, *, only_cached: bool) -> bytes | None:
        pair = next(pair for pair in reversed(self._pairs) if pair.start <= unit.phy_offset)
        stored = pair.record(unit, only_cached=only_cached)
        if stored == b"":
            self._damaged.name(pair.log, unit.phy_offset, unit.msg_base_offset)
        return stored

    def first_stored(self, store_time: int) -> int:
        """Return the queue offset of the first message stored at or after a time in ms, -1 without one."""
        with self._lock:
            for pair in self._pairs:
                if (number := pair.find_time(store_time)) < pair.count:
                    return next(iter(pair.units(number))).msg_base_offset
        return -1

    # -- compaction

    def compact(self, memory: int, keep_position: Callable[[int], None]) -> Compacted | None:
        """Keep the last message of each key in all files but the last one. Return None without a new full file.

        ``memory`` is the limit of the key map. If it is reached, messages after that are compacted by the next call.
        Raises OSError, DiskFullError or FatalStorageError; then all old files are there.
        """
        with self._compacting:
            with self._lock:
                if self._closed or self._keeps_staged:
                    return None
                self._settled()
                old = self._pairs[:-1]
            new = [pair for pair in old if pair.last > self.position]
            if not new:
                return None
            keys = self._map_keys(new, memory)
            staged: list[FilePair] = []
            try:
                drop_staged(self._file_system, self._where)
                total, kept = self._stage(old, keys, staged)
                prepare(self._file_system, self._where, [pair.start for pair in staged],
                        [pair.start for pair in old], max(keys.last_offset, self.position))
            except BaseException:
                for pair in staged:
                    pair.close()
                drop_staged(self._file_system, self._where)
                raise
            for pair in staged:
                pair.close()
            with self._lock:
                if not self._pairs:
                    return None  # closed in the meantime
                self._keeps_staged = True
                commit(self._file_system, self._where)
                self._replacing = True
                self._replace(keep_position)
            return Compacted(len(old), kept, total - kept, self.position)

    def _map_keys(self, new: list[FilePair], memory: int) -> KeyMap:
        keys = KeyMap(memory)
        for pair in new:
            for key, offset, _, _ in _rows(pair, self._damaged):
                if offset > self.position and key.strip() and not keys.put(key, offset):
                    return keys
        keys.last_offset = new[-1].last  # the last messages may be damaged
        return keys

    def _stage(self, old: tuple[FilePair, ...], keys: KeyMap, staged: list[FilePair]) -> tuple[int, int]:
        """Write the messages that stay into new files, durably. Return (messages read, messages kept)."""
        where = self._where.staged()
        for directory in where:
            self._file_system.makedirs(directory)
        total = kept = 0
        for pair in old:
            for key, offset, body, message in _rows(pair, self._damaged):
                total += 1
                if not keys.retains(key, offset, body):
                    continue
                kept += 1
                if staged and staged[-1].append(*message()):
                    if staged[-1].pending_bytes() >= _WRITE:
                        staged[-1].write()
                    continue
                if staged:
                    staged[-1].end()
                made = self._pair(staged[-1].start + self._sizes.log if staged else 0, where)
                staged.append(made)
                made.create()
                assert made.append(*message()), "it fitted into a file of this size before"
        if staged:
            staged[-1].end()
        return total, kept

    def _settled(self) -> None:
        """Finish a replacement whose first attempt failed. Raises OSError."""
        if self._replacing:
            self._replace(self._keep)

    _keep: Callable[[int], None]

    def _replace(self, keep_position: Callable[[int], None]) -> None:
        self._keep = keep_position
        position = finish(self._file_system, self._where)
        assert position is not None, "the record of the replacement stays until its end"
        last = self._pairs[-1]
        starts = segment_starts(self._file_system, self._where.log)
        made = [self._pair(start) for start in starts if start < last.start]
        for pair in made:
            pair.load(None)
        for pair in self._pairs[:-1]:
            pair.close()
        self._pairs = (*made, last)
        self._replacing = False  # an error after this is settled by the next open
        self.position = position
        sync(self._file_system, self._where)
        keep_position(position)
        end(self._file_system, self._where)
        self._keeps_staged = False


def remove_queue(file_system: FileSystem, where: QueueDirectories) -> None:
    """Remove the files of a queue, durably. Raises OSError."""
    drop_staged(file_system, where)
    for directory in where:
        if file_system.exists(directory):
            for name in file_system.list(directory):
                file_system.remove(f"{directory}/{name}")
            file_system.sync_dir(directory)
            file_system.rmdir(directory)


def _matches(stored: bytes, keep: PropertyFilter) -> bool:
    properties = decode_properties(stored_properties(stored))
    return keep.matches([properties.get(name.decode()) for name in keep.names])


def _rows(
    pair: FilePair, damaged: DamagedMessages,
) -> Iterator[tuple[bytes, int, int, Callable[[], tuple[bytes, int, int, int]]]]:
    """Yield (key, queue offset, length of the body, function that returns the message) for each good record."""
    for chunk in pair.chunks(damaged):
        data = chunk.data
        columns = (chunk.rows[:, column].tolist() for column in _COLUMNS)
        for at, length, phy_offset, size, code, store_time, offset, body in zip(*columns, strict=True):
            start = phy_offset - chunk.base

            def message(
                start: int = start, size: int = size, code: int = code, store_time: int = store_time,
                offset: int = offset, data: Any = data,
            ) -> tuple[bytes, int, int, int]:
                return bytes(data[start : start + size]), code, store_time, offset

            yield bytes(data[at : at + length]) if length > 0 else b"", offset, body, message
