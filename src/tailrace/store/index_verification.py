"""Verify index files: first each file by itself, then its entries against the log.

Entries are compared by ranges of the log, so memory is limited to the keys of a segment. For that a file is
divided into blocks, each with the lowest and the highest position in its entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, final

import numpy as np

from tailrace.config import StoreConfig
from tailrace.formats import filenames
from tailrace.formats.indexfile import (
    INDEX_ENTRY,
    INDEX_HEADER,
    INDEX_SLOT,
    index_file_size,
)
from tailrace.kernels import hashes, index_chains, index_entries
from tailrace.kernels.shared import constants as C
from tailrace.segments import MappedFile
from tailrace.store.directory import StoreDirectory
from tailrace.store.findings import Finding
from tailrace.store.walk.scan import LogChunk

__all__ = ["IndexBlock", "IndexFileCheck", "IndexRange", "check_index_file", "indexed_until"]

MANY: Final = 1000
"""Foreign keys are reported up to this number."""
_BLOCK: Final = 1 << 16


class IndexBlock(NamedTuple):
    """Some entries of a file, for records at positions ``low`` to ``high``, both included."""

    file: int
    at: int
    entries: int
    low: int
    high: int


class IndexFileCheck(NamedTuple):
    """Content of an index file, and what is wrong with it."""

    findings: list[Finding]
    blocks: list[IndexBlock]
    entries: int


def check_index_file(
    config: StoreConfig, file: MappedFile, number: int, *, grows: bool = False
) -> IndexFileCheck:
    """Verify length, header and chains of the index file with this number.

    If the file ``grows``, its slots may name newer entries than were read, so slots are not compared. It may also be a
    new one, whose name is there before its length, and its length before its header.
    """
    slots, room = config.max_hash_slot_num, config.max_index_num
    size = index_file_size(slots, room)
    if grows and not file.size:
        return IndexFileCheck([], [], 0)
    if file.size != size:
        return IndexFileCheck(
            [Finding("index-file-length", file.path, 0, f"{file.size} bytes, not {size}")], [], 0)
    header = INDEX_HEADER.unpack_from(file.read(0, INDEX_HEADER.size))
    count = header.index_count
    if grows and not count:
        return IndexFileCheck([], [], 0)
    if not 1 <= count <= room:
        return IndexFileCheck([Finding("index-header", file.path, 0, f"{count} entries")], [], 0)
    start = INDEX_HEADER.size + slots * INDEX_SLOT.size
    data = file.read(start, count * INDEX_ENTRY.size)
    heads = np.empty(slots, dtype=np.int32)
    good, _ = index_chains.follow(data, count, 1 << 62, heads)
    found = []
    if good < count:
        found.append(Finding(
            "index-chain", file.path, start + good * INDEX_ENTRY.size,
            f"entry {good} of {count} cannot be right"))
    elif not grows and (
        file.read(INDEX_HEADER.size, slots * INDEX_SLOT.size) != heads.astype(">i4").tobytes()
    ):
        found.append(Finding("index-chain", file.path, INDEX_HEADER.size,
                             "slots do not name the newest entries"))
    places = INDEX_ENTRY.view(data)["phy_offset"]
    blocks = [
        IndexBlock(number, start + at * INDEX_ENTRY.size, min(_BLOCK, count - at),
                   int(places[at : at + _BLOCK].min()), int(places[at : at + _BLOCK].max()))
        for at in range(1, count, _BLOCK)
    ]
    return IndexFileCheck(found, blocks, count - 1)


def indexed_until(directory: StoreDirectory, blocks: Sequence[IndexBlock]) -> int:
    """Return the position up to which records must be in the index. In a live store the index may lag."""
    if not directory.is_live:
        return (1 << 63) - 1
    return max((block.high for block in blocks), default=-1)


@final
class IndexRange:
    """Index entries of records in [``low``, ``high``) of the log. Records up to ``indexed`` must have entries."""

    def __init__(
        self, directory: StoreDirectory, files: Sequence[MappedFile], blocks: Sequence[IndexBlock],
        low: int, high: int, indexed: int,
    ) -> None:
        self._directory = directory
        self._indexed = indexed
        if directory.is_live:  # later records may not be shown yet, or are newer than this view
            high = min(high, directory.readable_until)
        self._path = f"{directory.path}/{filenames.INDEX}"
        none = np.empty(0, dtype=np.int64)
        places, key_hashes = [none], [none]
        for block in blocks:
            if block.low < high and block.high >= low:
                data = files[block.file].read(block.at, block.entries * INDEX_ENTRY.size)
                entries = INDEX_ENTRY.view(data[: len(data) - len(data) % INDEX_ENTRY.size])
                entries = entries[(entries["phy_offset"] >= low) & (entries["phy_offset"] < high)]
                places.append(entries["phy_offset"].astype(np.int64))
                key_hashes.append(entries["key_hash"].astype(np.int64))
        phy = np.concatenate(places)
        order = np.argsort(phy, kind="stable")
        self._phy, self._hash = phy[order], np.concatenate(key_hashes)[order]
        self._seen = np.zeros(len(phy), dtype=bool)

    def verify_rows(self, chunk: LogChunk) -> Iterator[Finding]:
        """Yield the keys of a chunk's records that have no entry."""
        rows = chunk.rows
        if not self._directory.config.message_index_enable or not len(rows):
            return
        places, key_hashes = _wanted_entries(chunk)
        low = int(np.searchsorted(self._phy, rows[0, C.PHY]))
        high = int(np.searchsorted(self._phy, rows[-1, C.PHY], side="right"))
        if np.array_equal(self._hash[low:high], key_hashes) and np.array_equal(self._phy[low:high], places):
            self._seen[low:high] = True
            return
        there: dict[tuple[int, int], list[int]] = {}
        for number in range(low, high):
            there.setdefault((int(self._phy[number]), int(self._hash[number])), []).append(number)
        tags = _tag_entries(chunk)
        for key in zip(places.tolist(), key_hashes.tolist(), strict=True):
            if key in there:
                for number in there[key]:
                    self._seen[number] = True
            elif key not in tags and key[0] <= self._indexed:  # brokers before 5.5.0 do not index tags
                yield Finding("missing-key", self._path, key[0],
                              f"a key with hash {key[1]} has no entry")

    def foreign(self) -> list[Finding]:
        """Return the first entries that no record has."""
        return [
            Finding("foreign-key", self._path, int(self._phy[number]),
                    f"an entry with hash {self._hash[number]}")
            for number in np.flatnonzero(~self._seen)[:MANY].tolist()
        ]


def _wanted_entries(chunk: LogChunk) -> tuple[Any, Any]:
    """Return positions and hashes of the entries that the records of a chunk must have."""
    rows = chunk.rows
    most = int(rows[:, C.KEYS_LEN].sum()) // 2 + 3 * len(rows)
    key_hashes, ends = np.empty(most, dtype=np.int32), np.empty(len(rows), dtype=np.int64)
    _, count = index_entries.hash_keys(chunk.data, rows, 0, key_hashes, 0, ends)
    return np.repeat(rows[:, C.PHY], np.diff(ends, prepend=0)), key_hashes[:count]


def _tag_entries(chunk: LogChunk) -> set[tuple[int, int]]:
    found = set()
    for row in chunk.rows:
        at = int(row[C.TAGS_POS])
        if at >= 0:
            tag = chunk.data[at : at + int(row[C.TAGS_LEN])]
            at = int(row[C.TOPIC_POS])
            topic = chunk.data[at : at + int(row[C.TOPIC_LEN])]
            found.add((int(row[C.PHY]), hashes.index_hash(topic, b"T#" + tag)))
    return found
