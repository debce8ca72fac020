"""Offsets of queues: the start and end of a query. Ends are exclusive. ``checkpoints`` has their text."""

from __future__ import annotations

from collections.abc import Mapping

from tailrace import events
from tailrace.env.clock import SystemClock
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import ConfigError, DataLossError, StoreError
from tailrace.logs import get_logger
from tailrace.node.synced_directory import open_synced
from tailrace.spark.archive.directory import ArchivedQueue, open_archived
from tailrace.spark.source.checkpoints import (
    Checkpoint,
    Directory,
    begin_of_life,
    last_message,
    why_other,
)
from tailrace.spark.source.options import EARLIEST, LATEST, Position, ReadOptions
from tailrace.spellings import meant
from tailrace.store.archive_store import archive_at
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.store.multi_dispatch import is_lmq
from tailrace.store.queue_search import first_at, first_stored
from tailrace.store.queue_types import CLEANUP_POLICY, COMPACTION, read_compacted_topics

__all__ = [
    "Directories", "Offsets", "Ranges", "batch_ranges", "ended_at", "offset_by_position", "offset_by_time",
    "open_directories", "resumed", "share", "starts", "stream_ranges", "tips",
]

_log = get_logger(__name__)
_LOGGED: set[str] = set()
"""Labels of stores for which the log line about LMQ queues was written."""
Queue = tuple[str, str, int]  # label of the store, topic, queueId
Offsets = dict[Queue, int]
Ranges = dict[Queue, tuple[int, int]]
Directories = Mapping[str, Directory]


def open_directories(options: ReadOptions) -> dict[str, Directory]:
    """Open every store, with its archive if one is read. Return the directories by label.

    A server that has a store open is asked to sync first.
    """
    if options.brokers is not None:
        raise ConfigError("this call is for directories; the options name brokers")
    config = options.store_config()
    found: dict[str, Directory] = {}
    for label, path in options.roots:
        live, behind = open_synced(path, config=config)
        if behind:
            events.MESSAGES_MAY_BE_MISSING.log(_log, store=path, reason=behind)
        archive = options.archive_of(label)
        found[label] = open_archived(live, archive_at(archive)) if archive else live
    return found


def queues_of(directories: Directories, options: ReadOptions, *, strict: bool = True) -> dict[Queue, ConsumeQueue]:
    """Return all queues that are read. Raises ConfigError if a topic or queue does not exist and ``strict`` is True."""
    found = {}
    topics = set()
    compacted = {label: read_compacted_topics(OsFileSystem(), one.path) for label, one in directories.items()}
    for label, directory in directories.items():
        left_out = 0
        for queue in directory.queues():
            if is_lmq(queue.topic):
                left_out += 1
                continue
            if queue.topic in compacted[label]:
                _tell_compacted(label, queue.topic)
                continue
            topics.add(queue.topic)
            if options.wants(queue.topic, queue.queue_id):
                found[label, queue.topic, queue.queue_id] = queue
        if left_out and label not in _LOGGED:
            _LOGGED.add(label)
            events.LMQ_QUEUES_ARE_LEFT_OUT.log(_log, store=label, lmq_queues=left_out)
    problems = [
        f"topic {topic} is an LMQ queue, which cannot be read: read the topics of its messages, whose "
        "property INNER_MULTI_DISPATCH names it" if is_lmq(topic)
        else f"topic {topic} has {CLEANUP_POLICY}={COMPACTION}, which Spark does not read"
        if any(topic in one for one in compacted.values()) else f"topic {topic} does not exist{meant(topic, topics)}"
        for topic in sorted(options.named_topics() - topics)]
    for topic, numbers in options.assigned.items():
        there = {queue_id for _, name, queue_id in found if name == topic}
        problems += [
            f"topic {topic} has no queue {number}" for number in sorted(numbers - there)
            if topic in topics]
    if problems and strict:
        raise ConfigError(*problems)
    return found


def _tell_compacted(label: str, topic: str) -> None:
    if f"{label}/{topic}" not in _LOGGED:
        _LOGGED.add(f"{label}/{topic}")
        events.A_TOPIC_WITH_COMPACTION_IS_LEFT_OUT.log(_log, store=label, topic=topic)


def offset_by_time(directory: Directory, queue: ConsumeQueue, timestamp: int) -> int:
    """Return the first offset stored at ``timestamp`` or later, or the queue's end."""
    low = queue.min_offset
    if isinstance(queue, ArchivedQueue):
        if (found := queue.offset_by_time(timestamp)) is not None:
            return found
        low = queue.live_min_offset
    since = directory.wall_times.floor(timestamp, SystemClock().now_ms())
    return first_stored(queue, low, since, directory.store_time)


def offset_by_position(queue: ConsumeQueue, phy_offset: int) -> int:
    """Return the first offset whose message has the position ``phy_offset`` or a later one."""
    if not isinstance(queue, ArchivedQueue):
        return first_at(queue, queue.min_offset, phy_offset)
    found = queue.offset_by_position(phy_offset)
    return first_at(queue, queue.live_min_offset, phy_offset) if found is None else found


def _resolve(
    key: Queue, directory: Directory, queue: ConsumeQueue, position: Position, default: int
) -> int:
    """Return the offset of a position. It is outside of [min, max] only if the position names that offset."""
    _, topic, queue_id = key
    match position.by:
        case "earliest":
            return queue.min_offset
        case "latest":
            return queue.max_offset
        case "timestamp":
            return offset_by_time(directory, queue, position.timestamp)
        case "timestamps":
            time = position.table.get(topic, {}).get(queue_id)
            return default if time is None else offset_by_time(directory, queue, time)
        case _:
            offset = position.table.get(topic, {}).get(queue_id, default)
            return {EARLIEST: queue.min_offset, LATEST: queue.max_offset}.get(offset, offset)


def _check_named(position: Position, queues: Mapping[Queue, ConsumeQueue], name: str) -> list[str]:
    there = {(topic, queue_id) for _, topic, queue_id in queues}
    return [
        f"{name} names {topic} queue {queue_id}, which is not read"
        for topic, numbers in position.table.items() for queue_id in numbers
        if (topic, queue_id) not in there
    ]


def _lost(key: Queue, asked: int, queue: ConsumeQueue, begin: int, options: ReadOptions, until: int = -1) -> None:
    """Report offsets from ``asked`` onwards that a queue does not have any more."""
    first = queue.min_offset if until < 0 else until
    if asked < begin <= queue.min_offset:
        _other(key, asked, first, options, (
            f"begins at {begin}, but offset {asked} is named: the topic was deleted and created again"))
        return
    if options.fail_on_data_loss:
        raise DataLossError(key[1], key[2], asked, first)
    store, topic, queue_id = key
    events.DATA_LOST.log(
        _log, store=store, topic=topic, queue_id=queue_id, from_=asked, until=first, skipped=first - asked)


def _other(key: Queue, known: int, first: int, options: ReadOptions, reason: str) -> None:
    """Report that a queue is not the one that was read, and is read from its first message."""
    store, topic, queue_id = key
    if options.fail_on_data_loss:
        raise StoreError(
            f"{topic} queue {queue_id} {reason}; failOnDataLoss=false reads the queue from its first message")
    events.QUEUE_IS_ANOTHER_ONE.log(
        _log, store=store, topic=topic, queue_id=queue_id, known=known, first=first, reason=reason)


def _went_back(key: Queue, known: int, end: int, options: ReadOptions) -> None:
    if options.fail_on_data_loss:
        raise StoreError(
            f"{key[1]} queue {key[2]} ends at {end}, but the checkpoint has {known}: the topic was "
            "deleted and created again, or the store was replaced; failOnDataLoss=false continues")
    store, topic, queue_id = key
    events.QUEUE_WENT_BACK.log(_log, store=store, topic=topic, queue_id=queue_id, known=known, end=end)


def _starts(
    directories: Directories, queues: Mapping[Queue, ConsumeQueue], options: ReadOptions, default: str
) -> Offsets:
    position = Position(default) if not options.start.by else options.start
    problems = _check_named(position, queues, "the start")
    found = {}
    for key, queue in queues.items():
        directory = directories[key[0]]
        start = _resolve(key, directory, queue, position, queue.min_offset)
        by_time = position.by == "timestamp" or (
            position.by == "timestamps" and key[2] in position.table.get(key[1], {}))
        if by_time and start == queue.max_offset and options.starting_strategy == "error":
            problems.append(
                f"{key[1]} queue {key[2]} has no message at or after the starting timestamp; "
                "startingOffsetsByTimestampStrategy=latest starts at its end")
        if start > queue.max_offset:
            problems.append(
                f"{key[1]} queue {key[2]}: start {start} is after the end {queue.max_offset}")
        if start < queue.min_offset:
            _lost(key, start, queue, begin_of_life(directory, key[1], key[2]), options)
            start = queue.min_offset
        if options.starting_commit_log_offset:
            start = max(start, offset_by_position(queue, options.starting_commit_log_offset))
        found[key] = start
    if problems:
        raise ConfigError(*problems)
    return found


def starts(directories: Directories, options: ReadOptions) -> Offsets:
    """Return the offsets at which a new stream starts: the ends, unless the options name another position."""
    return _starts(directories, queues_of(directories, options), options, "latest")


def tips(directories: Directories, options: ReadOptions) -> Offsets:
    """Return the end of every queue. With failOnDataLoss=false a topic may be missing that was deleted."""
    found = queues_of(directories, options, strict=options.fail_on_data_loss)
    return {key: queue.max_offset for key, queue in found.items()}


def batch_ranges(directories: Directories, options: ReadOptions) -> Ranges:
    """Return the offsets [start, end) of each queue that a batch query reads."""
    queues = queues_of(directories, options)
    found = _starts(directories, queues, options, "earliest")
    problems = _check_named(options.end, queues, "the end")
    ranges = {}
    for key, queue in queues.items():
        end = _resolve(key, directories[key[0]], queue, options.end, queue.max_offset)
        if end > queue.max_offset:
            problems.append(f"{key[1]} queue {key[2]}: end {end} is after {queue.max_offset}")
        if options.end.by == "offsets" and end < found[key]:
            problems.append(f"{key[1]} queue {key[2]}: end {end} is before start {found[key]}")
        if options.ending_commit_log_offset >> 63 == 0:
            end = min(end, offset_by_position(queue, options.ending_commit_log_offset))
        ranges[key] = (found[key], max(end, found[key]))
    if problems:
        raise ConfigError(*problems)
    return ranges


def _all_queues(directories: Directories) -> dict[Queue, ConsumeQueue]:
    return {
        (label, queue.topic, queue.queue_id): queue
        for label, directory in directories.items() for queue in directory.queues()}


def resumed(directories: Directories, start: Checkpoint, options: ReadOptions, *, log: bool) -> Offsets:
    """Return for each queue the offset at which it is read on after a checkpoint.

    That is the offset of the checkpoint, and for a queue that is not in it the offset at which the queue began. A queue
    that is not the one that was read, or whose messages were deleted since, is read from its first message; with
    failOnDataLoss=true that raises StoreError. With ``log`` it is logged.
    """
    found = {}
    for key, queue in _all_queues(directories).items():
        directory = directories[key[0]]
        begin = begin_of_life(directory, queue.topic, queue.queue_id)
        at = start.offsets.get(key)
        reason = "" if at is None else why_other(directory, queue, at, start.last.get(key))
        if at is not None and (reason or at < queue.min_offset):
            if reason and (log or options.fail_on_data_loss):
                _other(key, at, queue.min_offset, options, reason)
            elif log or options.fail_on_data_loss:
                _lost(key, at, queue, 0, options)
            at = queue.min_offset
        found[key] = begin if at is None else at
    return found


def share(
    start: Offsets, at: Offsets, tip: Offsets, limit: int | None, options: ReadOptions, gone: set[Queue] | None = None
) -> Offsets:
    """Return for each queue how many messages the next batch reads: at most ``limit``, in proportion to the backlogs.

    ``start`` are the offsets of the checkpoint, ``at`` those at which the queues are read on (`resumed`). A queue that
    no longer exists is reported as data loss, once as long as it is in ``gone``.
    """
    gone, waiting = set() if gone is None else gone, Offsets()
    gone.difference_update(tip)
    for key in sorted(start.keys() | tip.keys()):
        if key not in tip and start[key] and key not in gone:
            _went_back(key, start[key], 0, options)
            gone.add(key)
        waiting[key] = max(tip.get(key, 0) - at.get(key, 0), 0)
    total = sum(waiting.values())
    if limit is None or total <= limit:
        return waiting
    parts = {key: limit * waiting[key] // total for key in waiting}
    left = limit - sum(parts.values())
    for key in sorted(waiting, key=lambda key: (-(limit * waiting[key] % total), key)):
        if left and parts[key] < waiting[key]:
            parts[key] += 1
            left -= 1
    return parts


def ended_at(directories: Directories, start: Checkpoint, at: Offsets, parts: Offsets) -> Checkpoint:
    """Return the checkpoint after a batch that has read ``parts`` of the queues, starting at the offsets ``at``.

    A queue of which nothing was read keeps its offset and last message, so that an exchange of it is still noticed.
    """
    offsets, last, queues = dict(start.offsets), dict(start.last), _all_queues(directories)
    for key, count in parts.items():
        if not count and key in offsets and key in last:
            continue
        if count or key not in offsets:
            offsets[key] = at.get(key, 0) + count
        last.pop(key, None)
        queue = queues.get(key)
        found = last_message(directories[key[0]], queue, offsets[key]) if queue is not None else None
        if found is not None:
            last[key] = found
    return Checkpoint(offsets, last)


def stream_ranges(
    directories: Directories, start: Checkpoint, end: Checkpoint, options: ReadOptions
) -> Ranges:
    """Return the offsets [start, end) that a batch of a stream reads. Raises StoreError for offsets that go back."""
    queues, at, ranges = _all_queues(directories), resumed(directories, start, options, log=True), Ranges()
    for key, stop in end.offsets.items():
        known = start.offsets.get(key)
        if (stop, end.last.get(key)) == (known, start.last.get(key)):
            continue  # the batch reads nothing of the queue
        queue = queues.get(key)
        first, last = at.get(key, known or 0), stop
        if last < first and first == known:
            raise StoreError(f"{key[1]} queue {key[2]}: offsets go back from {first} to {last}")
        if last <= first:
            continue
        low = queue.min_offset if queue is not None else last
        high = queue.max_offset if queue is not None else 0
        if first < low and queue is not None:
            _lost(key, first, queue, 0, options, min(low, last))
            first = min(low, last)
        if last > high and first < last:
            _went_back(key, last, high, options)
            last = max(high, first)
        if first < last:
            ranges[key] = (first, last)
    return ranges
