"""The plan of a read: queues, offsets, bytes and tasks, and which options make it read less.

Spark's own ``explain()`` shows a Python data source without any of these.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import StringIO
from typing import Any, Final

import orjson
from pyspark.sql.datasource import InputPartition
from rich.console import Console
from rich.table import Table

from tailrace.errors import StoreError
from tailrace.spark.archive.directory import ArchivedQueue
from tailrace.spark.offset_ranges import units_of
from tailrace.spark.source.archive_scan import ArchiveTask, IndexedTask
from tailrace.spark.source.batch_reader import TailraceBatchReader
from tailrace.spark.source.checkpoints import Directory, from_json
from tailrace.spark.source.offsets import (
    Directories,
    Ranges,
    batch_ranges,
    open_directories,
    stream_ranges,
)
from tailrace.spark.source.options import ReadOptions, parse_options
from tailrace.spark.source.scan import ScanTask, plan_tasks
from tailrace.spark.source.schema import column_names
from tailrace.spark.source.stream_reader import TailraceStreamReader
from tailrace.spellings import size_text
from tailrace.store.archive_manifest import manifest_name
from tailrace.store.archive_store import archive_at
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.store.directory import DirectoryState, StoreDirectory

__all__ = ["QueuePlan", "ReadPlan", "TaskPlan", "explain"]

_SHOWN: Final = 30
_PIPE_WIDTH: Final = 160
_KEYS: Final = (
    "no: Spark applies conditions on keys, tags and all other columns to the rows that were read")


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """Offsets [start, end) that are read of a queue with the offsets [first, until)."""

    store: str
    topic: str
    queue_id: int
    first: int
    start: int
    end: int
    until: int
    archived: int
    """Messages of the read that come from the archive."""
    record_bytes: int
    """Bytes of the records in the log; those in the archive do not count."""

    @property
    def messages(self) -> int:
        """Number of offsets to read."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """Positions [start, end) of the log, or of an archived segment, that one task walks; it reads all records there."""

    store: str
    source: str
    """``log`` or ``archive``."""
    start: int
    end: int
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The plan of one batch. ``text`` is what `explain` prints."""

    queues: tuple[QueuePlan, ...]
    tasks: tuple[TaskPlan, ...]
    left_out: int
    """Queues of the stores of which nothing is read."""
    pruning: Mapping[str, str]
    """For topic, queue, time, key and columns: whether the read is limited by it, and how."""
    served: tuple[str, ...]
    """Stores that a server has open. Only messages up to its last synced position are read."""

    @property
    def messages(self) -> int:
        """Number of offsets to read."""
        return sum(one.messages for one in self.queues)

    @property
    def record_bytes(self) -> int:
        """Bytes of the records to read that are in the log."""
        return sum(one.record_bytes for one in self.queues)

    @property
    def walked_bytes(self) -> int:
        """Bytes of the log that tasks walk, other queues' records between the wanted ones included."""
        return sum(one.end - one.start for one in self.tasks)

    def text(self, width: int | None = None) -> str:
        """Return the plan as a table and sentences, for a terminal of ``width`` columns."""
        out = StringIO()
        console = Console(file=out, width=width or _PIPE_WIDTH, highlight=False, markup=False, soft_wrap=True)
        console.print(self._table())
        if len(self.queues) > _SHOWN:
            console.print(f"... and {len(self.queues) - _SHOWN} more queues")
        tasks = ", ".join(
            f"{sum(task.source == source for task in self.tasks)} of the {source}" for source in ("log", "archive")
            if any(task.source == source for task in self.tasks)) or "none"
        console.print(
            f"messages: {self.messages:,}; queues: {len(self.queues)}, left out: {self.left_out}\n"
            f"records in the log: {size_text(self.record_bytes)}; tasks walk {size_text(self.walked_bytes)}\n"
            f"tasks: {tasks}")
        for store in self.served:
            console.print(f"a server has {store} open: messages up to its last synced position are read")
        for name, how in self.pruning.items():
            console.print(f"limited by {name}: {how}")
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines())

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False)
        table.add_column("store", no_wrap=True)
        table.add_column("topic", no_wrap=True)
        for name in ("queue", "in queue", "read", "messages", "archived", "bytes"):
            table.add_column(name, justify="right", no_wrap=True)
        for one in self.queues[:_SHOWN]:
            table.add_row(
                one.store, one.topic, str(one.queue_id), f"{one.first}..{one.until}", f"{one.start}..{one.end}",
                f"{one.messages:,}", f"{one.archived:,}", size_text(one.record_bytes))
        return table


def explain(
    options: Mapping[str, Any], *, stream: bool = False, since: str | Mapping[str, Any] | None = None,
    show: Callable[[str], object] | None = print,
) -> ReadPlan:
    """Print and return what a batch query reads, or with ``stream`` the next batch of a stream. Nothing is read.

    ``options`` are those of the source, with ``path``. A stream begins where a new query begins, or at ``since``: the
    ``endOffset`` of a source of ``query.lastProgress``. With ``show=None`` nothing is printed. Raises ConfigError and
    StoreError as the query does.
    """
    parsed = parse_options({name: str(value) for name, value in options.items()}, column_names)
    directories = open_directories(parsed)
    ranges, tasks = _of_stream(directories, parsed, since) if stream else _of_batch(directories, parsed)
    queues = [
        _queue(label, directory, queue, ranges[key])
        for label, directory in directories.items() for queue in directory.queues()
        if (key := (label, queue.topic, queue.queue_id)) in ranges and ranges[key][0] < ranges[key][1]]
    known = sum(len(directory.queues()) for directory in directories.values())
    plan = ReadPlan(
        tuple(queues), tuple(_task(task) for task in tasks), known - len(queues),
        _pruning(parsed, stream=stream), _served(directories))
    if show is not None:
        show(plan.text(Console().width if sys.stdout.isatty() else None))
    return plan


def _of_batch(directories: Directories, options: ReadOptions) -> tuple[Ranges, list[InputPartition]]:
    TailraceBatchReader(options)  # refuses options of streams
    ranges = batch_ranges(directories, options)
    return ranges, [
        task for label, directory in directories.items() for task in plan_tasks(label, directory, ranges, options)]


def _of_stream(
    directories: Directories, options: ReadOptions, since: str | Mapping[str, Any] | None
) -> tuple[Ranges, list[InputPartition]]:
    reader = TailraceStreamReader(options)
    try:
        start = dict(orjson.loads(since) if isinstance(since, str) else since or reader.initialOffset())
    except (ValueError, TypeError) as error:
        raise StoreError(f"since={since!r} is not the endOffset of a progress") from error
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    labels = tuple(label for label, _ in options.roots)
    ranges = stream_ranges(directories, from_json(start, labels), from_json(end, labels), options)
    return ranges, reader.partitions(start, end)


def _queue(label: str, directory: Directory, queue: ConsumeQueue, span: tuple[int, int]) -> QueuePlan:
    start, end = span
    live = queue.live_min_offset if isinstance(queue, ArchivedQueue) else queue.min_offset
    low = min(max(start, live), end)
    size = int(units_of(queue, low, end, 0)["size"].astype("int64").sum()) if low < end else 0
    return QueuePlan(
        label, queue.topic, queue.queue_id, queue.min_offset, start, end, queue.max_offset, low - start, size)


def _task(task: InputPartition) -> TaskPlan:
    if isinstance(task, ArchiveTask):
        return TaskPlan(task.label, "archive", task.start, task.end, tuple(
            archive_at(task.archive).path_of(file.path) for file in task.files))  # as the manifest names them
    if isinstance(task, IndexedTask):
        return TaskPlan(task.label, "archive", task.start, task.end, tuple(
            archive_at(task.archive).path_of(manifest_name(one.segment)) for one in task.segments))
    assert isinstance(task, ScanTask)
    return TaskPlan(task.label, "log", task.start, task.end, tuple(path for path, _, _ in task.files))


def _served(directories: Directories) -> tuple[str, ...]:
    stores = {
        label: one if isinstance(one, StoreDirectory) else one.live for label, one in directories.items()}
    return tuple(
        label for label, one in stores.items() if one.state in {DirectoryState.LIVE, DirectoryState.LIVE_JAVA})


def _pruning(options: ReadOptions, *, stream: bool) -> dict[str, str]:
    given = {name.lower() for name in options.given}

    def of(*names: str) -> str:
        used = [name for name in names if name.lower() in given]
        return f"yes, by {', '.join(used)}" if used else f"no; set {', '.join(names[:-1])} or {names[-1]}"

    times = ["startingTimestamp", "startingOffsetsByTimestamp"]
    if not stream:
        times += ["endingTimestamp", "endingOffsetsByTimestamp"]
    more = "; conditions of the query also limit it (pushFilters)" if options.push_filters and not stream else ""
    narrow = "; body=none" if options.body == "none" else ""
    return {
        "topic": of("topic", "subscribe", "subscribePattern", "assign") + more,
        "queue": of("queueId", "assign") + more,
        "time": of(*times) + more,
        "key": _KEYS,
        "columns": ("yes, by columns" if "columns" in given else (
            "no; set columns, because Spark does not pass a select to the source")) + narrow,
    }
