"""Tables beside the messages, for ``tailrace sql``: queues, timers and segments of a directory or an archive."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from tailrace.dataset.rows import Ranges, RowsDataset, TableRows
from tailrace.doctor.timers import parked_timers, pending_timers
from tailrace.env.clock import Clock, SystemClock
from tailrace.formats.commitlog import STORE_TIME_HEAD, plausible_size, store_timestamp_of
from tailrace.formats.consumequeue import PRE_BLANK_SIZE
from tailrace.spark.archive.directory import ArchivedDirectory, ArchivedQueue
from tailrace.spark.source.checkpoints import Directory
from tailrace.spark.source.offsets import Directories
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.store.directory import StoreDirectory
from tailrace.store.queue_search import message_from
from tailrace.timer.pending import OVERDUE, PendingTimer

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["queues_of_brokers", "side_tables"]

_TIME: Final = pa.timestamp("us", tz="UTC")
_QUEUES: Final = pa.schema([
    ("store", pa.string()), ("topic", pa.string()), ("queueId", pa.int32()), ("minOffset", pa.int64()),
    ("maxOffset", pa.int64()), ("minOffsetInLog", pa.int64()), ("firstInLog", _TIME), ("lastInLog", _TIME)])
_TIMERS: Final = pa.schema([
    ("store", pa.string()), ("dueTimestamp", _TIME), ("topic", pa.string()), ("queueId", pa.int32()),
    ("uniqKey", pa.string()), ("keys", pa.string()), ("commitLogOffset", pa.int64()), ("rolls", pa.int32()),
    ("state", pa.string()), ("reason", pa.string())])
_SEGMENTS: Final = pa.schema([
    ("store", pa.string()), ("segment", pa.int64()), ("until", pa.int64()), ("size", pa.int64()),
    ("firstStored", _TIME), ("inLog", pa.bool_()), ("inArchive", pa.bool_())])


def side_tables(directories: Directories, clock: Clock | None = None) -> dict[str, RowsDataset]:
    """Return the datasets `queues`, `timers` and `segments`; without `timers` for an archive that is read alone.

    Each is made when it is read first. ``clock`` tells which timers are overdue.
    """
    def made(schema: pa.Schema, rows: Callable[[Directory], Iterable[tuple[Any, ...]]]) -> RowsDataset:
        def table() -> pa.Table:
            found = [(label, *row) for label, one in directories.items() for row in rows(one)]
            return pa.table(
                [pa.array([row[place] for row in found], field.type) for place, field in enumerate(schema)],
                schema=schema)
        return RowsDataset(TableRows(schema, table))

    tables = {
        "queues": made(_QUEUES, lambda directory: [_queue(directory, one) for one in directory.queues()]),
        "segments": made(_SEGMENTS, _segments)}
    if all(_log_of(directory) is not None for directory in directories.values()):
        now_ms = (clock or SystemClock()).now_ms()
        tables["timers"] = made(_TIMERS, lambda directory: _timers(directory, now_ms))
    return tables


def queues_of_brokers(ranges: Ranges) -> RowsDataset:
    """Return the dataset `queues` of brokers, which know nothing of a log and of times."""
    rows = [(*key, *span, *[None] * (len(_QUEUES) - len(key) - len(span))) for key, span in sorted(ranges.items())]
    table = pa.table(
        [pa.array([row[place] for row in rows], field.type) for place, field in enumerate(_QUEUES)], schema=_QUEUES)
    return RowsDataset(TableRows(_QUEUES, lambda: table))


def _log_of(directory: Directory) -> StoreDirectory | None:
    """Return the store of a directory; None for an archive that is read alone."""
    if isinstance(directory, StoreDirectory):
        return directory
    return directory.live if directory.live.log_files else None


def _us(ms: int | None) -> int | None:
    return None if ms is None or ms < 0 else ms * 1000


def _queue(directory: Directory, queue: ConsumeQueue) -> tuple[Any, ...]:
    low = queue.live_min_offset if isinstance(queue, ArchivedQueue) else queue.min_offset
    last = _stored(directory, queue, queue.max_offset - 1) if queue.max_offset > low else None
    return (
        queue.topic, queue.queue_id, queue.min_offset, queue.max_offset, low, _stored(directory, queue, low), last)


def _stored(directory: Directory, queue: ConsumeQueue, offset: int) -> int | None:
    """Return the store time, us, of the message at an offset or the first after it; None if it cannot be read."""
    unit = message_from(queue, offset)
    return None if unit is None or unit.size == PRE_BLANK_SIZE else _us(directory.store_time(unit))


def _timers(directory: Directory, now_ms: int) -> Iterable[tuple[Any, ...]]:
    log = _log_of(directory)
    found: list[PendingTimer] = [] if log is None else [*pending_timers(log), *parked_timers(log)]
    for one in found:
        yield (
            _us(one.due_ms), one.topic, one.queue_id, one.uniq_key, one.keys, one.phy_offset, one.rounds,
            OVERDUE if one.is_overdue(now_ms) else one.state, one.reason or None)


def _segments(directory: Directory) -> Iterable[tuple[Any, ...]]:
    log, archived = _log_of(directory), directory if isinstance(directory, ArchivedDirectory) else None
    for start, until in archived.spans if archived is not None else ():
        yield start, until, until - start, None, False, True
    for file in log.log_files if log is not None else ():
        at = file.file_from_offset
        head = log.read(at, STORE_TIME_HEAD) if log is not None else b""
        until = min(at + file.size, log.max_phy_offset) if log is not None else at
        yield (
            at, until, file.size, _us(store_timestamp_of(head)) if plausible_size(head, at) else None, True,
            None if archived is None else False)
