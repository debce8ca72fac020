"""Offsets of queues: the start and end of a query, and their form in a checkpoint.

In a checkpoint they are ``{topic: {queueId: next}}``, below the store's label if there are several stores. Spark
compares offsets as text, so the order is fixed: labels and topics by name, queues by number. Ends are exclusive.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailrace import events
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import ConfigError, DataLossError, StoreError
from tailrace.logs import get_logger
from tailrace.spark.archive.directory import ArchivedDirectory, ArchivedQueue, open_archived
from tailrace.spark.source.options import EARLIEST, LATEST, Position, ReadOptions
from tailrace.store.directory import QueueView, StoreDirectory
from tailrace.store.multi_dispatch import is_lmq
from tailrace.store.queue_search import first_at, first_stored
from tailrace.store.queue_types import CLEANUP_POLICY, COMPACTION, read_compacted_topics

__all__ = [
    "Directories", "Directory", "Offsets", "Ranges", "batch_ranges", "from_json",
    "offset_by_position", "offset_by_time", "open_directories", "share", "starts", "stream_ranges", "tips", "to_json",
]

_log = get_logger(__name__)
_LOGGED: set[str] = set()
"""Labels of stores for which the log line about LMQ queues was written."""
Queue = tuple[str, str, int]  # label of the store, topic, queueId
Offsets = dict[Queue, int]
Ranges = dict[Queue, tuple[int, int]]
Directory = StoreDirectory | ArchivedDirectory
Directories = Mapping[str, Directory]


def open_directories(options: ReadOptions) -> dict[str, Directory]:
    """Open every store, with its archive if one is read. Return the directories by label."""
    config = options.store_config()
    found: dict[str, Directory] = {}
    for label, path in options.roots:
        live = StoreDirectory(path, config=config)
        archive = options.archive_of(label)
        found[label] = open_archived(live, archive) if archive else live
    return found


def to_json(offsets: Offsets, labels: tuple[str, ...]) -> dict[str, Any]:
    """Return offsets in the form of a checkpoint, in the fixed order."""
    found: dict[str, dict[str, dict[str, int]]] = {label: {} for label in sorted(labels)}
    for (label, topic, queue_id), offset in sorted(offsets.items()):
        found.setdefault(label, {}).setdefault(topic, {})[str(queue_id)] = offset
    return found if len(labels) > 1 else found[labels[0]]


def from_json(found: Mapping[str, Any], labels: tuple[str, ...]) -> Offsets:
    """Parse the text of ``to_json``. Raises StoreError for any other text."""
    try:
        by_label = found if len(labels) > 1 else {labels[0]: found}
        made = {
            (label, topic, int(queue_id)): _offset(offset)
            for label, topics in by_label.items()
            for topic, queues in topics.items()
            for queue_id, offset in queues.items()
        }
    except (AttributeError, ValueError, TypeError) as error:
        raise StoreError(f"the checkpoint has no offsets of this source: {found!r}") from error
    if strange := {label for label, _, _ in made} - set(labels):
        raise StoreError(f"the checkpoint names stores that are not read: {', '.join(strange)}")
    return made


def _offset(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(value)
    return value


def queues_of(directories: Directories, options: ReadOptions) -> dict[Queue, QueueView]:
    """Return all queues that are read. Raises ConfigError if a topic does not exist."""
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
        if any(topic in one for one in compacted.values()) else f"topic {topic} does not exist"
        for topic in sorted(options.named_topics() - topics)]
    for topic, numbers in options.assigned.items():
        there = {queue_id for _, name, queue_id in found if name == topic}
        problems += [
            f"topic {topic} has no queue {number}" for number in sorted(numbers - there)
            if topic in topics]
    if problems:
        raise ConfigError(*problems)
    return found


def _tell_compacted(label: str, topic: str) -> None:
    if f"{label}/{topic}" not in _LOGGED:
        _LOGGED.add(f"{label}/{topic}")
        events.A_TOPIC_WITH_COMPACTION_IS_LEFT_OUT.log(_log, store=label, topic=topic)


def offset_by_time(directory: Directory, queue: QueueView, timestamp: int) -> int:
    """Return the first offset stored at ``timestamp`` or later, or the queue's end."""
    low = queue.min_offset
    if isinstance(queue, ArchivedQueue):
        if (found := queue.offset_by_time(timestamp)) is not None:
            return found
        low = queue.live_min_offset
    return first_stored(queue, low, timestamp, directory.store_time)


def offset_by_position(queue: QueueView, phy_offset: int) -> int:
    """Return the first offset whose message has the position ``phy_offset`` or a later one."""
    if not isinstance(queue, ArchivedQueue):
        return first_at(queue, queue.min_offset, phy_offset)
    found = queue.offset_by_position(phy_offset)
    return first_at(queue, queue.live_min_offset, phy_offset) if found is None else found


def _resolve(
    key: Queue, directory: Directory, queue: QueueView, position: Position, default: int
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


def _check_named(position: Position, queues: Mapping[Queue, QueueView], name: str) -> list[str]:
    there = {(topic, queue_id) for _, topic, queue_id in queues}
    return [
        f"{name} names {topic} queue {queue_id}, which is not read"
        for topic, numbers in position.table.items() for queue_id in numbers
        if (topic, queue_id) not in there
    ]


def _lost(key: Queue, asked: int, first: int, options: ReadOptions) -> None:
    if options.fail_on_data_loss:
        raise DataLossError(key[1], key[2], asked, first)
    store, topic, queue_id = key
    events.DATA_LOST.log(
        _log, store=store, topic=topic, queue_id=queue_id, from_=asked, until=first, skipped=first - asked)


def _went_back(key: Queue, known: int, end: int, options: ReadOptions) -> None:
    if options.fail_on_data_loss:
        raise StoreError(
            f"{key[1]} queue {key[2]} ends at {end}, but the checkpoint has {known}: the topic was "
            "deleted and created again, or the store was replaced; failOnDataLoss=false continues")
    store, topic, queue_id = key
    events.QUEUE_WENT_BACK.log(_log, store=store, topic=topic, queue_id=queue_id, known=known, end=end)


def _starts(
    directories: Directories, queues: Mapping[Queue, QueueView], options: ReadOptions, default: str
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
            _lost(key, start, queue.min_offset, options)
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
    """Return the end of every queue."""
    return {key: queue.max_offset for key, queue in queues_of(directories, options).items()}


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


def share(start: Offsets, tip: Offsets, limit: int | None, options: ReadOptions) -> Offsets:
    """Return the end of the next batch: at most ``limit`` messages, shared in proportion to the backlogs.

    The end is never before ``start``: a queue that ends earlier, or no longer exists, is reported as data loss. A new
    queue starts at 0.
    """
    end = {}
    for key in sorted(start.keys() | tip.keys()):
        first, last = start.get(key, 0), tip.get(key, 0)
        if last < first:
            _went_back(key, first, last, options)
        end[key] = max(first, last)
    total = sum(end[key] - start.get(key, 0) for key in end)
    if limit is None or total <= limit:
        return end
    left = limit
    parts: Offsets = {}
    for key in sorted(end):
        waiting = end[key] - start.get(key, 0)
        parts[key] = limit * waiting // total
        left -= parts[key]
    for key in sorted(end, key=lambda key: (-(limit * (end[key] - start.get(key, 0)) % total), key)):
        if left and parts[key] < end[key] - start.get(key, 0):
            parts[key] += 1
            left -= 1
    return {key: start.get(key, 0) + parts[key] for key in end}


def stream_ranges(
    directories: Directories, start: Offsets, end: Offsets, options: ReadOptions
) -> Ranges:
    """Return the offsets [start, end) that a batch of a stream reads. Raises StoreError for offsets that go back."""
    queues = {
        (label, queue.topic, queue.queue_id): queue
        for label, directory in directories.items() for queue in directory.queues()
    }
    ranges = {}
    for key, stop in end.items():
        first, last = start.get(key, 0), stop
        if last < first:
            raise StoreError(f"{key[1]} queue {key[2]}: offsets go back from {first} to {last}")
        if last == first:
            continue
        queue = queues.get(key)
        low = queue.min_offset if queue is not None else last
        high = queue.max_offset if queue is not None else 0
        if first < low:
            _lost(key, first, min(low, last), options)
            first = min(low, last)
        if last > high and first < last:
            _went_back(key, last, high, options)
            last = max(high, first)
        if first < last:
            ranges[key] = (first, last)
    return ranges
