"""File sizes of an existing directory, recognised from its files."""

from __future__ import annotations

import collections
import itertools
from contextlib import closing
from typing import Final

from tailrace import events
from tailrace.config import StoreConfig, whole_number
from tailrace.env.filesystem import FileSystem
from tailrace.formats import filenames
from tailrace.formats.consumequeue import BATCH_CQ_UNIT, CQ_UNIT
from tailrace.formats.indexfile import INDEX_ENTRY, INDEX_HEADER, INDEX_SLOT, index_file_size
from tailrace.logs import get_logger
from tailrace.store.directory_format import SIZES, DirectoryFormat, fitting, given
from tailrace.store.log_paths import check_log_paths, log_paths, segment_files

__all__ = ["recognise"]

_log = get_logger(__name__)
_QUEUES: Final = 256
_LOG: Final = "mappedFileSizeCommitLog"
_SLOTS: Final = "maxHashSlotNum"
_ENTRIES: Final = "maxIndexNum"
_QUEUE_FILES: Final = (
    ("mappedFileSizeConsumeQueue", filenames.CONSUMEQUEUE, CQ_UNIT.size),
    ("mapperFileSizeBatchConsumeQueue", filenames.BATCHCONSUMEQUEUE, BATCH_CQ_UNIT.size))
_ENTRIES_PER_SLOT: Final = 4


def recognise(
    file_system: FileSystem, root: str, kept: DirectoryFormat, config: StoreConfig, *, writes: bool
) -> StoreConfig:
    """Return ``config`` with the file sizes that the directory at ``root`` has.

    The size in ``kept`` counts if a file has its size, or if all files are shorter (cut off). Otherwise the
    distance of two file names or the most frequent length counts. Without a file the size in ``kept`` counts, unless
    another one was given and the caller ``writes``: a reader makes no file, and its writer may make one at any time.
    Raises ConfigError if the settings leave out a part of the CommitLog.
    """
    hint = {name: whole_number(text) or 0 for name, text in kept.of(SIZES).items()}
    free = kept.of(SIZES - given(config) if writes else SIZES)
    found = {name: size for name, size in hint.items() if size and name in free}
    directories = log_paths(config, root)
    check_log_paths(file_system, root, directories, kept.log_directories())
    names = sorted(file for path in directories.all for file in _segments(file_system, path))
    if size := _size(names, hint.get(_LOG, 0)):
        found[_LOG] = size
    for name, kind, unit in _QUEUE_FILES:
        if size := _queue_file_size(file_system, f"{root}/{kind}", unit, hint.get(name, 0)):
            found[name] = size
    index = f"{root}/{filenames.INDEX}"
    files = [f"{index}/{name}" for name in file_system.list(index) if filenames.is_index_name(name)]
    if files and (slots := hint.get(_SLOTS)) and (entries := hint.get(_ENTRIES)):
        found.update({_SLOTS: slots, _ENTRIES: entries})
    config = _with_sizes(config, found)
    return _with_sizes(config, _index_geometry(file_system, files, config))


def _with_sizes(config: StoreConfig, found: dict[str, int]) -> StoreConfig:
    """Return ``config`` with the valid ones of some sizes; cut files and old hints may give invalid sizes."""
    return fitting(
        config, {name: str(size) for name, size in found.items()},
        lambda error: events.A_SIZE_OF_THE_DIRECTORY_IS_IGNORED.log(_log, cause=error))


def _queue_file_size(file_system: FileSystem, queues: str, unit: int, hint: int) -> int:
    """Return the length of the files of queues, 0 without files."""
    paths = (
        f"{queues}/{topic}/{queue}"
        for topic in file_system.list(queues) for queue in file_system.list(f"{queues}/{topic}")
    )
    return _most_frequent([
        file for path in itertools.islice(paths, _QUEUES) for file in _segments(file_system, path)
        if file[1] % unit == 0
    ], hint)


def _segments(file_system: FileSystem, directory: str) -> list[tuple[int, int]]:
    """Return (position in the name, length) of the segment files that are not empty."""
    found = segment_files(file_system, (directory,))
    return [(offset, size) for offset, path in found if (size := file_system.stat(path).size)]


def _size(files: list[tuple[int, int]], hint: int) -> int:
    steps = [b - a for (a, _), (b, _) in itertools.pairwise(files)]
    if steps and min(steps) in {size for _, size in files}:
        return min(steps)
    return _most_frequent(files, hint)


def _most_frequent(files: list[tuple[int, int]], hint: int) -> int:
    sizes = collections.Counter(size for _, size in files)
    if not sizes:
        return 0
    if hint in sizes or max(sizes) < hint:
        return hint
    return max(sizes, key=lambda size: (sizes[size], size))


def _index_geometry(file_system: FileSystem, files: list[str], config: StoreConfig) -> dict[str, int]:
    """Return {} if the configured slots and entries fit an index file; else try 4 entries per slot."""
    for path in files:
        size = file_system.stat(path).size
        if size == index_file_size(config.max_hash_slot_num, config.max_index_num):
            return {}
        per_slot = INDEX_SLOT.size + _ENTRIES_PER_SLOT * INDEX_ENTRY.size
        slots, rest = divmod(size - INDEX_HEADER.size, per_slot)
        if slots > 0 and rest == 0 and _entries_fit(file_system, path, slots):
            return {_SLOTS: slots, _ENTRIES: slots * _ENTRIES_PER_SLOT}
    return {}


def _entries_fit(file_system: FileSystem, path: str, slots: int) -> bool:
    """Return True if the slot of the newest entry's hash names that entry."""
    with closing(file_system.open(path)) as file:
        header = INDEX_HEADER.unpack_from(file.pread(INDEX_HEADER.size, 0))
        newest = header.index_count - 1
        if newest < 1:
            return True
        at = INDEX_HEADER.size + slots * INDEX_SLOT.size + newest * INDEX_ENTRY.size
        data = file.pread(INDEX_ENTRY.size, at)
        if len(data) < INDEX_ENTRY.size:
            return False
        entry = INDEX_ENTRY.unpack_from(data)
        slot = file.pread(INDEX_SLOT.size, INDEX_HEADER.size + entry.key_hash % slots * INDEX_SLOT.size)
        return entry.key_hash >= 0 and INDEX_SLOT.unpack_from(slot).newest == newest
