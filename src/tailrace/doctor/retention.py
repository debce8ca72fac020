"""Explain which CommitLog files of a directory would be deleted and why the others stay. No lock is taken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, final

from tailrace.config import BrokerConfig, StoreConfig
from tailrace.env.clock import Clock
from tailrace.env.filesystem import FileSystem
from tailrace.errors import CorruptionError
from tailrace.formats import filenames
from tailrace.formats import names as N
from tailrace.formats.commitlog import BLANK, decode_message
from tailrace.formats.consumequeue import CqUnit
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.retention.archive_pins import ArchivePins
from tailrace.node.retention.group_pins import GroupPins
from tailrace.node.retention.topics import limits_of_topics
from tailrace.node.timers import DelayOffsetManager
from tailrace.node.topic_config import TopicConfigManager
from tailrace.segments import MappedFile
from tailrace.store.archive_store import archive_at
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.store.directory import DirectoryState, StoreDirectory
from tailrace.store.log_paths import LogPaths, segment_files
from tailrace.store.queue_search import first_stored, message_from
from tailrace.store.retention.disk_check import measure
from tailrace.store.retention.disk_state import (
    DiskLevels,
    DiskVerdict,
    PathUsage,
    decide,
    disk_levels,
    logical_ratio_of,
)
from tailrace.store.retention.forced_deletions import ForcedDeletions
from tailrace.store.retention.free_request import FreeRequest
from tailrace.store.retention.pins import Pin, PinKind, pin_policies
from tailrace.store.retention.rules import (
    SegmentFacts,
    SegmentVerdict,
    Trigger,
    explain,
    is_time_to_delete,
    segment_time,
    select_to_free,
)
from tailrace.store.retention.topic_rules import (
    NOWHERE,
    RETENTION_BYTES,
    TopicLimits,
    TopicNeeds,
    topic_needs,
)
from tailrace.timer.properties import out_ms

__all__ = ["RetentionView", "explain_directory", "local_time", "plan_free"]


@final
@dataclass(slots=True, kw_only=True)
class RetentionView:
    """Result of a pass of retention if it was made now with the given settings."""

    state: DirectoryState
    now_ms: int
    log_bytes: int
    """Bytes that the CommitLog occupies on the disk."""
    levels: DiskLevels
    usages: list[PathUsage]
    """Disk use for each path of the CommitLog in which new files are created."""
    disk: DiskVerdict
    trigger: Trigger
    segments: list[SegmentVerdict]
    trash_files: int = 0
    topics: TopicNeeds | None = None
    """Part of the log that topics with rules of their own need; None without such topics."""
    rules: dict[str, str] = field(default_factory=dict)
    """These rules by topic, and the least offsets of purged topics."""
    forced: list[dict[str, Any]] = field(default_factory=list)
    """Recorded deletions of files before they expired, oldest first."""
    idle_groups: list[str] = field(default_factory=list)
    """Groups of ``pinGroups`` that pin no message, because they have committed no offset."""


def plan_free(
    path: str, config: StoreConfig, clock: Clock, file_system: FileSystem, wanted_bytes: int
) -> FreeRequest:
    """Return how a request to free bytes would end in a directory. Raises NotAStoreError or OSError."""
    view = explain_directory(path, config, clock, file_system, requested=True)
    return FreeRequest.planned(wanted_bytes, *select_to_free(view.segments, wanted_bytes))


def explain_directory(
    path: str, config: StoreConfig, clock: Clock, file_system: FileSystem, *, requested: bool = False,
    topics: TopicConfigManager | None = None,
) -> RetentionView:
    """Compute the view of a directory. Raises NotAStoreError or OSError.

    With ``requested`` the verdicts are those of a request to free bytes. ``topics`` are those of the process that
    has the directory open; without them they are read.
    """
    directory = StoreDirectory(path, config=config, file_system=file_system)
    root, now_ms = directory.path, clock.now_ms()
    log_directories = directory.log_paths.all
    trash = _trash(file_system, root, directory.log_paths)
    *usages, queue_usage = measure(
        file_system, directory.log_paths.writable, f"{root}/{filenames.CONSUMEQUEUE}", lambda path: sum(trash[path]))
    levels = disk_levels(config)
    log_bytes = sum(
        file_system.stat(path).allocated for _, path in segment_files(file_system, log_directories))
    size = log_bytes
    size += sum(q.unit_bytes() for q in directory.queues())
    size += sum(
        file_system.stat(f"{root}/{filenames.INDEX}/{name}").allocated
        for name in file_system.list(f"{root}/{filenames.INDEX}"))
    disk = decide(
        levels, usages, queue_usage, was_full=False,
        logical_ratio=logical_ratio_of(config, usages, size),
        logical_forcible_ratio=config.logical_disk_space_clean_forcibly_threshold,
        store_bytes=size, max_store_bytes=config.max_store_bytes)
    hour = datetime.fromtimestamp(now_ms / 1000).hour  # noqa: DTZ006 - local hours
    trigger = Trigger(
        is_time_to_delete(config.delete_when, hour), disk.clean, manual=False, requested=requested,
        clean_at_once=disk.clean_immediately and config.clean_file_forcibly_enable and not requested)
    files = directory.log_files
    if len(files) > 1 and not any(files[-1].read(0, BLANK.size)):
        files = files[:-1]  # a file that was created ahead
    groups = _groups(directory, config, clock)
    if topics is None:
        topics = TopicConfigManager(file_system, f"{root}/{filenames.CONFIG}", BrokerConfig(), clock)
        topics.load()
    needs, rules = _topics(directory, now_ms, topics)
    segments = explain(
        _facts(directory, files, config, now_ms), now_ms=now_ms,
        reserved_hours=config.file_reserved_time, clean_at_once=trigger.clean_at_once, requested=requested,
        pins=_pins(directory, config, groups, clock), policies=pin_policies(config), topics=needs)
    return RetentionView(
        state=directory.state, now_ms=now_ms, log_bytes=log_bytes, levels=levels, usages=usages,
        disk=disk, trigger=trigger,
        segments=segments, trash_files=sum(map(len, trash.values())), topics=needs, rules=rules,
        forced=ForcedDeletions(file_system, root).read(), idle_groups=groups.without_offsets())


def _trash(file_system: FileSystem, root: str, paths: LogPaths) -> dict[str, list[int]]:
    """Return the disk space of files in the trash, by path of the CommitLog (``store.retention.trash``)."""
    found: dict[str, list[int]] = {path: [] for path in paths.all}
    places = [(f"{root}/{filenames.TRASH}", paths.all[0])]
    for place, path in places + [(f"{path}/{filenames.SEGMENT_TRASH}", path) for path in paths.all]:
        for name in file_system.list(place):
            try:
                found[path].append(file_system.stat(f"{place}/{name}").allocated)
            except FileNotFoundError:
                continue  # it has just been deleted
    return found


def _facts(
    directory: StoreDirectory, files: Sequence[MappedFile], config: StoreConfig, now_ms: int
) -> list[SegmentFacts]:
    found = []
    for file, following in zip(files, (*files[1:], None), strict=False):
        stored = _store_timestamp(directory, following.file_from_offset) if following else -1
        try:
            stat = directory.file_system.stat(file.path)
        except FileNotFoundError:
            continue  # deleted since the directory was read
        time_ms, source = segment_time(config.expire_by, stored, stat.mtime_ms, now_ms)
        found.append(SegmentFacts(
            file.path, file.file_from_offset, file.size, time_ms, source, allocated=stat.allocated))
    return found


def _store_timestamp(directory: StoreDirectory, phy_offset: int) -> int:
    """Return when the record at a position was stored, by the wall clock; -1 without a valid record."""
    size = int.from_bytes(directory.read(phy_offset, 4), "big", signed=True)
    return directory.store_time(CqUnit(phy_offset, size, 0)) or -1


def _topics(
    directory: StoreDirectory, now_ms: int, topics: TopicConfigManager
) -> tuple[TopicNeeds | None, dict[str, str]]:
    """Return the part of the log that topics need, and the rules by topic."""
    rules: dict[str, str] = {}
    limits = limits_of_topics(topics, lambda topic, error: rules.update({topic: f"attribute ignored: {error}"}))
    for topic, found in limits.items():
        by_bytes = f"{RETENTION_BYTES}={found.keep_bytes}" if found.keep_bytes is not None else ""
        rules[topic] = ", ".join(filter(None, (found.rule, by_bytes)))
    for (topic, queue_id), offset in sorted(directory.purged.items()):
        rules[topic] = ", ".join(filter(None, (
            rules.get(topic), f"queue {queue_id} released below offset {offset}")))
    if not limits and not directory.purged:
        return None, rules

    def first_position(queue: ConsumeQueue) -> int:
        low, keep_ms = queue.min_offset, limits.get(queue.topic, TopicLimits()).keep_ms
        if keep_ms is not None and 0 <= keep_ms < now_ms:
            low = first_stored(queue, low, now_ms - keep_ms, directory.store_time)
        return _message_position(queue, low)

    return topic_needs(limits, ((queue.topic, first_position(queue)) for queue in directory.queues())), rules


def _message_position(queue: ConsumeQueue, offset: int) -> int:
    """Return the position of the first message of a queue from an offset onwards, or NOWHERE."""
    unit = message_from(queue, offset)
    return unit.phy_offset if unit is not None else NOWHERE


def _pins(
    directory: StoreDirectory, config: StoreConfig, groups: GroupPins, clock: Clock
) -> list[Pin]:
    found = [*_first_timer(directory, clock.now_ms()), *_first_of_levels(directory, clock)]
    if config.archive_directory:
        found += ArchivePins(
            clock, directory.file_system,
            archive_at(config.archive_directory, directory.file_system, hurried=True),
            lambda: directory.log_files[:-1])()
    return [*found, *groups()]


def _groups(directory: StoreDirectory, config: StoreConfig, clock: Clock) -> GroupPins:
    """Return the pins of the listed groups and of pending half messages, from the offsets on disk."""
    offsets = ConsumerOffsetManager.of_stopped(
        directory.file_system, f"{directory.path}/{filenames.CONFIG}", clock)
    queues = {(queue.topic, queue.queue_id): queue for queue in directory.queues()}
    if config.pin_groups or any(topic == N.HALF_TOPIC for topic, _ in queues):
        offsets.load()

    def position_of(topic: str, queue_id: int, offset: int) -> int:
        queue = queues[topic, queue_id]
        place = _message_position(queue, max(offset, queue.min_offset))
        return place if place != NOWHERE else -1

    return GroupPins(
        config.pin_groups, offsets, lambda topic: [q for t, q in queues if t == topic], position_of)


def _first_timer(directory: StoreDirectory, now_ms: int) -> list[Pin]:
    """Return a pin for the oldest timer that is not due yet, if there is one."""
    for queue in directory.queues():
        if queue.topic != N.TIMER_TOPIC:
            continue
        for _, unit, data in directory.records(queue):
            try:
                properties = decode_message(data or b"").properties
            except CorruptionError:
                continue
            due = out_ms(properties)
            if due is not None and due > now_ms and N.TIMER_DEL_UNIQKEY not in properties:
                holder = f"of {properties.get(N.REAL_TOPIC)} due {local_time(due)}"
                return [Pin(PinKind.TIMER, unit.phy_offset, holder)]
    return []


def _first_of_levels(directory: StoreDirectory, clock: Clock) -> Iterator[Pin]:
    """Yield a pin for the first waiting message of each delay level."""
    offsets = DelayOffsetManager(
        directory.file_system, f"{directory.path}/{filenames.CONFIG}", clock)
    offsets.load()
    for queue in directory.queues():
        if queue.topic == N.SCHEDULE_TOPIC:
            level = queue.queue_id + 1
            unit = message_from(queue, max(offsets.query(level), queue.min_offset))
            if unit is not None:  # its tags code is its deliver time
                yield Pin(PinKind.TIMER, unit.phy_offset,
                          f"of delay level {level} due {local_time(unit.tags_code)}")


def local_time(ms: int) -> str:
    """Return a time in ms in the zone of this machine, to the second."""
    when = datetime.fromtimestamp(ms / 1000)  # noqa: DTZ006 - for people at this machine
    return f"{when:%Y-%m-%d %H:%M:%S}"
