"""The index file (RocketMQ's IndexFile.java): header, hash slots, entries chained by slot.

Keys are ``topic#UNIQ_KEY``, ``topic#KEY`` for each blank-separated key of KEYS and, since 5.5.0,
``topic#T#TAGS``. A slot has the number of the newest entry of its chain. Entry 0 is never used.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from tailrace.formats._layout import Layout

__all__ = [
    "INDEX_ENTRY", "INDEX_HEADER", "INDEX_SLOT", "IndexEntry", "IndexHeader", "IndexSlot",
    "index_file_size",
]


class IndexHeader(NamedTuple):
    """Positions and store times that an index file covers, and its number of entries."""

    begin_timestamp: Annotated[int, "q", "i8", "store time of the first indexed message, ms"]
    end_timestamp: Annotated[int, "q", "i8", "store time of the last indexed message, ms"]
    begin_phy_offset: Annotated[int, "q", "i8", "CommitLog position of the first message"]
    end_phy_offset: Annotated[int, "q", "i8", "CommitLog position of the last message"]
    hash_slot_count: Annotated[int, "i", "i4", "slots in use"]
    index_count: Annotated[int, "i", "i4", "number of the next entry; starts at 1"]


class IndexSlot(NamedTuple):
    """Start of a chain of entries."""

    newest: Annotated[int, "i", "i4", "number of the newest entry, 0 when empty"]


class IndexEntry(NamedTuple):
    """One key of one message."""

    key_hash: Annotated[int, "i", "i4", "absolute Java hash of the key, 0 for the least integer"]
    phy_offset: Annotated[int, "q", "i8", "CommitLog position of the message"]
    time_diff_seconds: Annotated[int, "i", "i4", "store time less begin_timestamp, whole seconds"]
    prev_index: Annotated[int, "i", "i4", "number of the next older entry of the slot, 0 for none"]


INDEX_HEADER: Final = Layout(IndexHeader, size=40)
INDEX_SLOT: Final = Layout(IndexSlot, size=4)
INDEX_ENTRY: Final = Layout(IndexEntry, size=20)


def index_file_size(slots: int, entries: int) -> int:
    """Return the length of an index file in bytes."""
    return INDEX_HEADER.size + slots * INDEX_SLOT.size + entries * INDEX_ENTRY.size
