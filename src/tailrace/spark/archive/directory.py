"""A store and its archive as one directory: messages that are deleted from the log come from the archive.

Each position is read from exactly one of them: from the log if it is in the first file or later, from the
archive if it is before. A queue starts at the first offset that log or archive has. For a topic that was
deleted and created again, only the newer topic counts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from copy import copy
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from tailrace import events
from tailrace.env.filesystem import FileSystem, OsFileSystem
from tailrace.errors import CorruptionError
from tailrace.formats.consumequeue import CQ_UNIT, CqUnit
from tailrace.logs import get_logger
from tailrace.segments import MappedFileQueue
from tailrace.spark.archive.layout import MESSAGE
from tailrace.spark.archive.parquet_file import groups_with_topic, opened
from tailrace.store.archive_manifest import (
    OPEN,
    BrokenLink,
    Manifest,
    QueueRange,
    archived_path,
    broken_link,
    list_manifests,
    open_ranges,
    read_manifest,
)
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.store.directory import StoreDirectory
from tailrace.store.wall_times import WallTimes

__all__ = ["ArchivedDirectory", "ArchivedQueue", "open_archived"]

_log = get_logger(__name__)
_FOREVER: Final = (1 << 63) - 1
Key = tuple[str, int]


@final
class ArchivedQueue(ConsumeQueue):
    """A queue that starts in the archive, with the files of its part in the log, ``live``.

    ``units`` returns only units of messages in the log.
    """

    def __init__(
        self, key: Key, live: ConsumeQueue | None, archived: list[tuple[Manifest, QueueRange]], archive: str,
        file_system: FileSystem,
    ) -> None:
        super().__init__(*key, live.files if live is not None else MappedFileQueue(
            file_system, (), CQ_UNIT.size, mapped=False))
        self.live, self.archived, self.archive, self.file_system = live, archived, archive, file_system
        end = archived[-1][1].end
        self.live_min_offset, self.max_offset = (live.min_offset, live.max_offset) if live is not None else (end, end)
        self._min_offset = archived[0][1].start

    def units(self, offset: int, count: int) -> bytes:
        """Bytes of up to ``count`` units from ``offset``; none without messages in the log."""
        return b"" if self.live is None else self.live.units(offset, count)

    @property
    def first_offset(self) -> int:
        """Number of the first unit of the first file."""
        return 0 if self.live is None else self.live.first_offset

    def next_file(self, offset: int) -> int:
        """Number of the first unit of the next file; the end of the queue after the last one."""
        return self.max_offset if self.live is None else self.live.next_file(offset)

    def offset_by_time(self, timestamp: int) -> int | None:
        """Return the first archived offset stored at ``timestamp`` or later, or None if all are older."""
        for manifest, one in self.archived:
            if one.max_store_timestamp >= timestamp:
                offsets, times = self._columns(manifest, "storeTimestamp")
                found = np.flatnonzero(times // 1000 >= timestamp)
                return int(offsets[found[0]]) if len(found) else one.end
        return None

    def offset_by_position(self, phy_offset: int) -> int | None:
        """Return the first archived offset whose position is ``phy_offset`` or later, or None."""
        for manifest, one in self.archived:
            if one.last >= phy_offset:
                offsets, places = self._columns(manifest, "commitLogOffset")
                found = np.flatnonzero(places >= phy_offset)
                return int(offsets[found[0]]) if len(found) else one.end
        return None

    def _columns(self, manifest: Manifest, name: str) -> tuple[Any, Any]:
        """Return (offsets, values of a column) of the messages of this queue in a segment, by offset."""
        wanted = (
            (pa.compute.field("kind") == MESSAGE) & (pa.compute.field("topic") == self.topic)
            & (pa.compute.field("queueId") == self.queue_id))
        columns = list(dict.fromkeys(("kind", "topic", "queueId", "queueOffset", name)))
        none = np.empty(0, dtype=np.int64)
        parts: list[tuple[Any, Any]] = [(none, none)]
        for file in manifest.files:
            place = archived_path(self.file_system, self.archive, file.path)
            with opened(self.file_system, place, file) as found:
                for group in groups_with_topic(found, [self.topic]):
                    rows = found.read_row_group(group, columns=columns).filter(wanted)
                    parts.append((
                        rows["queueOffset"].to_numpy(), rows[name].cast(pa.int64()).to_numpy()))
        offsets = np.concatenate([one for one, _ in parts])
        order = np.argsort(offsets, kind="stable")
        return offsets[order], np.concatenate([one for _, one in parts])[order]


@final
class ArchivedDirectory:
    """Has the reading methods of ``StoreDirectory``: ``live`` is the store, ``manifests`` the archive before it."""

    def __init__(
        self, live: StoreDirectory, archive: str, manifests: list[Manifest], file_system: FileSystem,
        missing: BrokenLink | None = None,
    ) -> None:
        self.missing = missing
        """The first manifest that is missing although another one names it."""
        self.live, self.archive, self.manifests = live, archive, manifests
        self.path = live.path
        self._bases = [one.segment for one in manifests]
        self._queues = _merge(live, archive, manifests, file_system)

    def queues(self) -> list[ConsumeQueue]:
        """Return every queue of log and archive, by topic and number."""
        return [self._queues[key] for key in sorted(self._queues)]

    def read(self, phy_offset: int, n: int) -> bytes:
        """Return bytes of the log; the archive is not read."""
        return self.live.read(phy_offset, n)

    def store_time(self, unit: CqUnit) -> int | None:
        """Return the store time of a message in the log, as ``StoreDirectory.store_time`` does."""
        return self.live.store_time(unit)

    @property
    def wall_times(self) -> WallTimes:
        """What the wall clock said while store times of the log were ahead of it."""
        return self.live.wall_times

    def hole_between(self, first: int, until: int) -> bool:
        """Return True if a part of [first, until) is neither in the archive nor in the log."""
        start = self.live.min_phy_offset if self.live.log_files else _FOREVER
        at = first
        for one in self.manifests[max(bisect_left(self._bases, first + 1) - 1, 0) :]:
            if one.segment > at or at >= until:
                break
            at = max(at, one.until)
        return at < min(until, start) and at < until


def open_archived(
    live: StoreDirectory, archive: str, file_system: FileSystem | None = None
) -> ArchivedDirectory:
    """Return the directory of a store and its archive.

    The archive is listed after the store, so a file that retention deletes in between is in one of them. Ranges of the
    segment that is still written count only without a log, which has it otherwise.
    Raises CorruptionError if a manifest is damaged, does not fit the log, or is not the one that another
    manifest names.
    """
    file_system = file_system or OsFileSystem()
    least = live.min_phy_offset if live.log_files else _FOREVER
    found: list[Manifest] = []
    known: list[Manifest] = []
    for segment in list_manifests(file_system, archive):
        if segment >= least:
            break
        manifest = read_manifest(file_system, archive, segment)
        if manifest is None:
            continue
        known.append(manifest)
        if not manifest.verified:
            continue
        if manifest.until > least:
            raise CorruptionError(
                f"{archive} is not of {live.path}: its segment {segment} ends at {manifest.until}, "
                f"where the log has begun at {least}")
        found.append(manifest)
    if not live.log_files:
        start = known[-1].until if known else min(list_manifests(file_system, archive, OPEN), default=0)
        found += [one for one in open_ranges(file_system, archive, start) if one.verified]
    broken = broken_link(known)
    if broken is not None and broken.exchanged:
        raise CorruptionError(f"{archive}: {broken}; restore it from a copy")
    if old := [one.segment for one in known if not one.protected]:
        events.AN_ARCHIVE_HAS_MANIFESTS_WITHOUT_A_CHECKSUM.log(_log, archive=archive, manifests=len(old), first=old[0])
    return ArchivedDirectory(live, archive, found, file_system, broken)


def _merge(
    live: StoreDirectory, archive: str, manifests: list[Manifest], file_system: FileSystem
) -> Mapping[Key, ConsumeQueue]:
    there: dict[Key, ConsumeQueue] = {}
    for queue in live.queues():
        kept = queue
        if (queue.topic, queue.queue_id) in live.purged:  # this table also shows messages that the topic has released
            kept = copy(queue)
            kept.logical_min_offset = 0
        there[queue.topic, queue.queue_id] = kept
    ranges: dict[Key, list[tuple[Manifest, QueueRange]]] = {}
    for manifest in manifests:
        for one in manifest.queues:
            ranges.setdefault((one.topic, one.queue_id), []).append((manifest, one))
    for key, own in ranges.items():
        present = there.get(key)
        least = _FOREVER if present is None else present.min_offset
        used: list[tuple[Manifest, QueueRange]] = []
        deleted_up_to = live.lives.deleted_up_to(key[0])
        for manifest, one in reversed(own):
            # A Java broker begins a topic that is created again at 0, and Tailrace after the offsets of the older one.
            if one.end > least or one.last < deleted_up_to:
                events.OFFSETS_OF_AN_OLDER_TOPIC_OF_THE_SAME_NAME_ARE_LEFT_OUT.log(
                    _log, topic=one.topic, queue_id=one.queue_id, until=one.end)
                break
            used.append((manifest, one))
            least = one.start
        if used:
            used.reverse()
            there[key] = ArchivedQueue(key, present, used, archive, file_system)
    return there
