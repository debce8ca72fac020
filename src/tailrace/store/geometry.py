"""File sizes of an existing directory, recognised from its files."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from tailrace.config import StoreConfig
from tailrace.env.filesystem import FileSystem
from tailrace.formats import filenames
from tailrace.formats.consumequeue import CQ_UNIT
from tailrace.formats.indexfile import INDEX_ENTRY, INDEX_HEADER, INDEX_SLOT, index_file_size

__all__ = ["recognise"]

_ENTRIES_PER_SLOT: Final = 4


def recognise(file_system: FileSystem, root: str, config: StoreConfig) -> StoreConfig:
    """``config`` with the file sizes that the directory at ``root`` really has."""
    found: dict[str, Any] = {}
    if size := _segment_size(file_system, f"{root}/{filenames.COMMITLOG}"):
        found["mapped_file_size_commit_log"] = size
    if size := _queue_file_size(file_system, f"{root}/{filenames.CONSUMEQUEUE}"):
        found["mapped_file_size_consume_queue"] = size
    found.update(_index_geometry(file_system, f"{root}/{filenames.INDEX}", config))
    return dataclasses.replace(config, **found) if found else config


def _segment_size(file_system: FileSystem, directory: str) -> int:
    for name in file_system.list(directory):
        if filenames.file_name_to_offset(name) is not None:
            size = file_system.stat(f"{directory}/{name}").size
            if size:
                return size
    return 0


def _queue_file_size(file_system: FileSystem, directory: str) -> int:
    for topic in file_system.list(directory):
        for queue in file_system.list(f"{directory}/{topic}"):
            size = _segment_size(file_system, f"{directory}/{topic}/{queue}")
            if size and size % CQ_UNIT.size == 0:
                return size
    return 0


def _index_geometry(
    file_system: FileSystem, directory: str, config: StoreConfig
) -> dict[str, int]:
    """Slots and entries: the configured ones when they fit, else 1 to 4, checked by an entry."""
    for name in file_system.list(directory):
        path = f"{directory}/{name}"
        if not name.isdigit():
            continue
        size = file_system.stat(path).size
        if size == index_file_size(config.max_hash_slot_num, config.max_index_num):
            return {}
        per_slot = INDEX_SLOT.size + _ENTRIES_PER_SLOT * INDEX_ENTRY.size
        slots, rest = divmod(size - INDEX_HEADER.size, per_slot)
        if slots > 0 and rest == 0 and _entries_fit(file_system, path, slots):
            return {"max_hash_slot_num": slots, "max_index_num": slots * _ENTRIES_PER_SLOT}
    return {}


def _entries_fit(file_system: FileSystem, path: str, slots: int) -> bool:
    """Whether the newest entry is the head of the slot that its hash belongs to."""
    file = file_system.open(path)
    try:
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
    finally:
        file.close()
