"""Which segments are sealed; up to where the one that is still written can be archived, and the age of what is not.

A10: ranges of it are in the archive beside sealed segments, and are replaced when it is sealed. A range begins where
the one before it ends, and ends after a record that is synced and whose unit is written, so it never changes.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

from tailrace.errors import StoreError
from tailrace.formats.commitlog import STORE_TIME_HEAD, plausible_size, store_timestamp_of
from tailrace.formats.consumequeue import PRE_BLANK_SIZE
from tailrace.segments import MappedFile
from tailrace.store.archive_manifest import HEAD_BYTES, Manifest
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.store.directory import DirectoryState, StoreDirectory

__all__ = ["OpenRange", "check_goes_on", "range_after", "sealed_segments", "units_until"]

_FOREVER = (1 << 63) - 1


class OpenRange(NamedTuple):
    """Bytes [start, end) of the file ``file`` of the log that are not archived."""

    file: MappedFile
    start: int
    end: int
    stored_ms: int
    """When the first record was stored, by the wall clock; -1 if that is not known."""

    def age_ms(self, now_ms: int) -> int:
        """Return how long ago the first record was stored, in ms; 0 if that is not known."""
        return max(now_ms - self.stored_ms, 0) if self.stored_ms >= 0 else 0


def sealed_segments(directory: StoreDirectory) -> list[MappedFile]:
    """Return the files of the log that no longer change and whose messages all have queue units."""
    named = directory.max_phy_offset
    if directory.state in {DirectoryState.LIVE, DirectoryState.LIVE_JAVA}:
        # Dispatch follows the order of the log. If a message after a segment has a unit, all of its messages do.
        named = max((_last_position(queue) for queue in directory.queues()), default=-1)
    return [
        file for file in directory.log_files
        if file.file_from_offset + file.size <= min(directory.max_phy_offset, named)
    ]


def _last_position(queue: ConsumeQueue) -> int:
    unit = queue.unit(queue.max_offset - 1)
    return -1 if unit is None or unit.size == PRE_BLANK_SIZE else unit.phy_offset


def units_until(directory: StoreDirectory) -> int:
    """Return the position up to which the queues have a unit of every message."""
    if directory.state not in {DirectoryState.LIVE, DirectoryState.LIVE_JAVA}:
        return directory.max_phy_offset
    if directory.dispatched != _FOREVER:
        return min(directory.dispatched, directory.max_phy_offset)
    # Dispatch follows the order of the log. If a message has a unit, all messages before it do.
    found = 0
    for queue in directory.queues():
        unit = queue.unit(queue.max_offset - 1)
        if unit is not None and unit.size != PRE_BLANK_SIZE:
            found = max(found, unit.phy_offset + unit.size)
    return min(found, directory.max_phy_offset)


def range_after(directory: StoreDirectory, file: MappedFile, ranges: list[Manifest]) -> OpenRange | None:
    """Return what can be archived of a file after its ``ranges``; None if that is nothing.

    Of a store that was not closed it is not known what is synced, so nothing can be archived before its next open.
    """
    start = ranges[-1].until if ranges else file.file_from_offset
    end = min(units_until(directory), file.file_from_offset + file.size)
    if directory.state is DirectoryState.UNCLEAN or end <= start:
        return None
    head = directory.read(start, STORE_TIME_HEAD)
    stored = store_timestamp_of(head) if plausible_size(head, start) else None
    return OpenRange(file, start, end, -1 if stored is None else directory.wall_times.of(start, stored))


def check_goes_on(archive: str, store: str, file: MappedFile, last: Manifest) -> None:
    """Raise StoreError unless the log has the bytes with which the last archived range begins."""
    head = file.read(last.segment - file.file_from_offset, min(HEAD_BYTES, last.size))
    if head and zlib.crc32(head) != last.head_crc32:
        written = f", it was written from {last.store}" if last.store else ""
        raise StoreError(
            f"{archive} has other bytes of the segment {file.file_from_offset} than {store}{written}: an archive is "
            f"for one store; if this is the store and its log was cut, remove {archive}/_open")
