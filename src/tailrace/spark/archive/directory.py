"""A store and its archive as one directory: messages that are deleted from the log come from the archive.

Each position is read from exactly one of them: from the log if it is in the first file or later, from the
archive if it is before. A queue starts at the first offset that log or archive has. For a topic that was
deleted and created again, only the newer topic counts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from tailrace import events
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import ConfigError, CorruptionError
from tailrace.formats.consumequeue import CQ_UNIT, CqUnit
from tailrace.logs import get_logger
from tailrace.segments import MappedFileQueue
from tailrace.spark.archive.index import Group, Indexed, cached_manifest, groups, manifest_of
from tailrace.spark.archive.layout import MESSAGE
from tailrace.spark.archive.parquet_file import groups_with_topic, in_archive, opened
from tailrace.store.archive_manifest import (
    OPEN,
    BrokenLink,
    Linked,
    Manifest,
    QueueRange,
    broken_link,
    list_manifests,
    open_ranges,
)
from tailrace.store.archive_store import MANIFESTS, ArchiveStore
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.store.directory import StoreDirectory
from tailrace.store.wall_times import WallTimes

__all__ = ["ArchivedDirectory", "ArchivedQueue", "Part", "open_archived"]

_log = get_logger(__name__)
_FOREVER: Final = (1 << 63) - 1
Key = tuple[str, int]
Part = tuple[Manifest | Group, QueueRange]
"""A range of a queue that a manifest has, or a run of an index."""


@final
class ArchivedQueue(ConsumeQueue):
    """A queue that starts in the archive, with the files of its part in the log, ``live``.

    ``units`` returns only units of messages in the log.
    """

    def __init__(
        self, key: Key, live: ConsumeQueue | None, archived: list[Part], archive: ArchiveStore
    ) -> None:
        super().__init__(*key, live.files if live is not None else MappedFileQueue(
            OsFileSystem(), (), CQ_UNIT.size, mapped=False))
        self.live, self.archived, self.archive = live, archived, archive
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
        for source, run in self.archived:
            if run.max_store_timestamp >= timestamp:
                manifest, one = self._first(
                    source, run, lambda manifest: manifest.max_store_timestamp >= timestamp,
                    lambda one: one.max_store_timestamp >= timestamp)
                offsets, times = self._columns(manifest, "storeTimestamp")
                found = np.flatnonzero(times // 1000 >= timestamp)
                return int(offsets[found[0]]) if len(found) else one.end
        return None

    def offset_by_position(self, phy_offset: int) -> int | None:
        """Return the first archived offset whose position is ``phy_offset`` or later, or None."""
        for source, run in self.archived:
            if run.last >= phy_offset:
                manifest, one = self._first(
                    source, run, lambda manifest: manifest.until > phy_offset, lambda one: one.last >= phy_offset)
                offsets, places = self._columns(manifest, "commitLogOffset")
                found = np.flatnonzero(places >= phy_offset)
                return int(offsets[found[0]]) if len(found) else one.end
        return None

    def _first(
        self, source: Manifest | Group, run: QueueRange, reaches: Callable[[Manifest], bool],
        holds: Callable[[QueueRange], bool],
    ) -> tuple[Manifest, QueueRange]:
        """Return the first segment of a run whose range of this queue ``holds``, and the range.

        ``reaches`` is true for the manifest of that segment and of all later ones.
        """
        if isinstance(source, Manifest):
            return source, run

        def manifest_at(one: Indexed) -> Manifest:
            return manifest_of(self.archive, one)

        segments = _segments_of(source, run)
        found = bisect_left(segments, True, key=lambda one: reaches(manifest_at(one)))
        for manifest in map(manifest_at, segments[found:]):
            for one in manifest.queues:
                if (one.topic, one.queue_id) == (self.topic, self.queue_id) and holds(one):
                    return manifest, one
        raise CorruptionError(
            f"{self.archive.location}: no manifest of {segments[0].segment} to {segments[-1].until} has what the index "
            f"says of {self.topic} queue {self.queue_id}")

    def _columns(self, manifest: Manifest, name: str) -> tuple[Any, Any]:
        """Return (offsets, values of a column) of the messages of this queue in a segment, by offset."""
        wanted = (
            (pa.compute.field("kind") == MESSAGE) & (pa.compute.field("topic") == self.topic)
            & (pa.compute.field("queueId") == self.queue_id))
        columns = list(dict.fromkeys(("kind", "topic", "queueId", "queueOffset", name)))
        none = np.empty(0, dtype=np.int64)
        parts: list[tuple[Any, Any]] = [(none, none)]
        for file in manifest.files:
            with opened(in_archive(self.archive, file)) as found:
                for group in groups_with_topic(found, [self.topic]):
                    rows = found.read_row_group(group, columns=columns).filter(wanted)
                    parts.append((
                        rows["queueOffset"].to_numpy(), rows[name].cast(pa.int64()).to_numpy()))
        offsets = np.concatenate([one for one, _ in parts])
        order = np.argsort(offsets, kind="stable")
        return offsets[order], np.concatenate([one for _, one in parts])[order]


@final
class ArchivedDirectory:
    """Has the reading methods of ``StoreDirectory``: ``live`` is the store, ``sources`` the archive before it."""

    def __init__(
        self, live: StoreDirectory, archive: ArchiveStore, sources: list[Manifest | Group],
        missing: BrokenLink | None = None,
    ) -> None:
        self.missing = missing
        """The first manifest that is missing although another one names it."""
        self.live, self.archive, self.sources = live, archive, sources
        self.path = live.path
        self.spans = [
            (one.segment, one.until) for source in sources
            for one in (source.segments if isinstance(source, Group) else (source,))]
        """Start and end of each segment."""
        self._bases = [start for start, _ in self.spans]
        self._queues = _merge(live, archive, sources)

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
        for low, high in self.spans[max(bisect_left(self._bases, first + 1) - 1, 0) :]:
            if low > at or at >= until:
                break
            at = max(at, high)
        return at < min(until, start) and at < until


def open_archived(live: StoreDirectory, archive: ArchiveStore) -> ArchivedDirectory:
    """Return the directory of a store and its archive.

    The archive is listed after the store, so a file that retention deletes in between is in one of them. Ranges of the
    segment that is still written count only without a log, which has it otherwise.
    Raises CorruptionError if a manifest is damaged, does not fit the log, or is not the one that another
    manifest names. Raises ConfigError for a prefix of a bucket without a manifest.
    """
    least = live.min_phy_offset if live.log_files else _FOREVER
    found: list[Manifest | Group] = []
    known: list[Linked] = []
    unprotected: list[int] = []
    there = list_manifests(archive)
    if archive.remote and not there and not list_manifests(archive, OPEN):
        raise ConfigError(f"{archive.location} is not an archive: it has no {MANIFESTS}")
    there = [segment for segment in there if segment < least]
    indexed = groups(archive, there)
    place = until = 0
    while place < len(there):
        group = indexed.get(there[place])
        manifest = cached_manifest(archive, there[place]) if group is None else None
        place += 1 if group is None else len(group.segments)
        if group is not None:
            found.append(group)
            known += [
                Linked(one.segment, one.sha256, None if number else group.before)
                for number, one in enumerate(group.segments)]
            until = group.until
        elif manifest is not None:
            known.append(Linked(manifest.segment, manifest.sha256, manifest.before))
            unprotected += [] if manifest.protected else [manifest.segment]
            found += [manifest] if manifest.verified else []
            until = manifest.until
        if found and found[-1].until > least:
            raise CorruptionError(
                f"{archive.location} is not of {live.path}: its segment {there[place - 1]} ends at {found[-1].until}, "
                f"where the log has begun at {least}")
    if not live.log_files:
        start = until if known else min(list_manifests(archive, OPEN), default=0)
        found += [one for one in open_ranges(archive, start) if one.verified]
    broken = broken_link(known)
    if broken is not None and broken.exchanged:
        raise CorruptionError(f"{archive.location}: {broken}; restore it from a copy")
    if unprotected:
        events.AN_ARCHIVE_HAS_MANIFESTS_WITHOUT_A_CHECKSUM.log(
            _log, archive=archive.location, manifests=len(unprotected), first=unprotected[0])
    return ArchivedDirectory(live, archive, found, broken)


def _merge(
    live: StoreDirectory, archive: ArchiveStore, sources: list[Manifest | Group]
) -> Mapping[Key, ConsumeQueue]:
    there: dict[Key, ConsumeQueue] = {}
    for queue in live.queues():
        kept = queue
        if (queue.topic, queue.queue_id) in live.purged:  # this table also shows messages that the topic has released
            kept = copy(queue)
            kept.logical_min_offset = 0
        there[queue.topic, queue.queue_id] = kept
    ranges: dict[Key, list[Part]] = {}
    for source in sources:
        for one in source.queues if isinstance(source, Manifest) else source.runs:
            ranges.setdefault((one.topic, one.queue_id), []).append((source, one))
    for key, own in ranges.items():
        present = there.get(key)
        least = _FOREVER if present is None else present.min_offset
        used: list[Part] = []
        deleted_up_to = live.lives.deleted_up_to(key[0])
        for source, one in reversed(_parted(own, deleted_up_to, archive)):
            # A Java broker begins a topic that is created again at 0, and Tailrace after the offsets of the older one.
            if one.end > least or one.last < deleted_up_to:
                events.OFFSETS_OF_AN_OLDER_TOPIC_OF_THE_SAME_NAME_ARE_LEFT_OUT.log(
                    _log, topic=one.topic, queue_id=one.queue_id, until=one.end)
                break
            used.append((source, one))
            least = one.start
        if used:
            used.reverse()
            there[key] = ArchivedQueue(key, present, used, archive)
    return there


def _parted(own: list[Part], place: int, archive: ArchiveStore) -> list[Part]:
    """Return the parts of a queue; instead of a run with positions on both sides of ``place`` those of its segments."""
    found: list[Part] = []
    for source, one in own:
        if isinstance(source, Manifest) or not one.first < place <= one.last:
            found.append((source, one))
            continue
        for manifest in (manifest_of(archive, each) for each in _segments_of(source, one)):
            found += [(manifest, each) for each in manifest.queues
                      if (each.topic, each.queue_id) == (one.topic, one.queue_id)]
    return found


def _segments_of(group: Group, run: QueueRange) -> list[Indexed]:
    """Return the segments of a group that a run may be in."""
    return [one for one in group.segments if one.until > run.first and one.segment <= run.last]
