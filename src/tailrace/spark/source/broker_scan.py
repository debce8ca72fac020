"""Tasks of a read over the network: each pulls a range of offsets of one queue and makes Arrow columns of the records.

A pulled record has the bytes of the stored one, so the rows are those of a read of the directory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tailrace.arrow.columns import Columns, Fields, Rows
from tailrace.arrow.inner_rows import message_rows
from tailrace.arrow.schema import arrow_schema
from tailrace.errors import CorruptionError, RemotingError, StoreError
from tailrace.formats.commitlog import MESSAGE_HEAD
from tailrace.kernels import record
from tailrace.kernels.shared import constants as C
from tailrace.spark.source.brokers import Brokers, Queue, lost, queue_of, shown, subscribed
from tailrace.spark.source.options import BrokerOptions, ReadOptions
from tailrace.spark.source.partition import InputPartition
from tailrace.store.walk.scan import rows_of_a_chunk

__all__ = ["BrokerTask", "plan_broker_tasks", "read_broker_task"]

_BATCH: Final = 4 << 20
"""Bytes of records from which a batch of columns is made."""
_AHEAD: Final = 1
"""Batches of answers that wait for the task at most; one more is being pulled. An answer is much smaller than a batch,
and to wake another thread for each of them would cost more than its columns."""
_WAIT_MS: Final = 500
"""Time that a broker waits for a message that it does not serve yet."""
_CHECK: Final = C.CHECK_BODY_CRC | C.CHECK_PROP_CRC | C.LEAVE_HASHES
_LEAST: Final = 1024
"""Messages of a task at least, when a queue is split for ``minPartitions``."""


class BrokerTask(InputPartition):
    """Messages [start, end) of a queue of a broker."""

    def __init__(self, key: Queue, start: int, end: int) -> None:
        super().__init__((key, start, end))
        self.key, self.start, self.end = key, start, end


def plan_broker_tasks(ranges: Mapping[Queue, tuple[int, int]], options: ReadOptions) -> list[InputPartition]:
    """Return a task for each queue with messages, or several if there are fewer than ``minPartitions``."""
    total = sum(end - start for start, end in ranges.values())
    size = max(-(-total // options.min_partitions), _LEAST)
    tasks: list[InputPartition] = []
    for key, (start, end) in sorted(ranges.items()):
        count = 1 if options.min_partitions <= len(ranges) else -(-(end - start) // size)
        step = -(-(end - start) // max(count, 1))
        tasks += [BrokerTask(key, low, min(low + step, end)) for low in range(start, end, step or 1)]
    return tasks


def read_broker_task(task: BrokerTask, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield the Arrow batches of a task.

    Raises DataLossError for messages that the broker does not have, if ``failOnDataLoss`` is true, CorruptionError for
    an answer with a damaged record, and RemotingError.
    """
    assert options.brokers is not None
    made = _Batches(task, options)
    with Brokers(options.brokers) as brokers:
        batches: asyncio.Queue[list[bytes] | BaseException | None] = asyncio.Queue(_AHEAD)
        brokers.submit(_pull(brokers, options.brokers, task, options, batches))
        while (batch := brokers.run(batches.get())) is not None:
            if isinstance(batch, BaseException):
                raise batch
            yield from made(b"".join(batch))
    made.end()


async def _pull(
    brokers: Brokers, own: BrokerOptions, task: BrokerTask, options: ReadOptions,
    batches: asyncio.Queue[list[bytes] | BaseException | None],
) -> None:
    """Put the records of the answers to pulls, then None or the error."""
    error: Exception | None = None
    answers: list[bytes] = []
    size = 0
    try:
        at, idle = task.start, 0
        calls, queue, wanted = brokers.calls, queue_of(task.key), subscribed(own, task.key[1])
        while at < task.end:
            found = await brokers.tried(partial(
                calls.pull_records, wanted, queue, at, wait_ms=_WAIT_MS if idle else 0,
                max_count=own.pull_batch if own.has_filter else min(own.pull_batch, task.end - at)))
            if found.records:
                answers.append(found.records)
                size += len(found.records)
                if size >= _BATCH:
                    await batches.put(answers)
                    answers, size = [], 0
            following = found.next_begin_offset
            if found.status == "OFFSET_ILLEGAL" and following > at:
                if own.has_filter:  # otherwise the task notices what is missing
                    lost(task.key, at, min(following, task.end), options)
            elif found.status == "OFFSET_ILLEGAL" or (following <= at and found.max_offset < at):
                raise StoreError(
                    f"{shown(task.key)} ends at {found.max_offset}, and the query reads up to {task.end}: the topic "
                    "was deleted and created again, or the store was replaced")
            idle = 0 if following > at else idle + 1
            if idle * _WAIT_MS > own.timeout_ms * (own.retries + 1):
                raise RemotingError(
                    f"{shown(task.key)}: the broker serves no message from offset {at} onwards, and the query reads "
                    f"up to {task.end}")
            at = max(following, at)
    except Exception as found_error:  # noqa: BLE001 - the task raises it
        error = found_error
    if answers:
        await batches.put(answers)
    await batches.put(error)


class _Batches:
    """Makes columns of pulled records, and notices offsets that are missing."""

    def __init__(self, task: BrokerTask, options: ReadOptions) -> None:
        assert options.brokers is not None
        self._task, self._options = task, options
        self._tags = [] if options.brokers.subscription.is_sql else options.brokers.subscription.tags
        self._is_whole = not options.brokers.has_filter
        self._next = task.start
        self._rows = rows_of_a_chunk()

    def __call__(self, data: bytes) -> Iterator[pa.RecordBatch]:
        """Yield the messages of the task in ``data``."""
        at = 0
        while at < len(data):
            count, stop, reason = record.scan(data, at, len(data), 0, _CHECK, self._rows)
            if reason not in {C.REASON_END, C.REASON_ROWS_FULL} or not count:
                raise CorruptionError(
                    f"an answer for {shown(self._task.key)} has a damaged record: {record.REASON_NAMES[reason]}",
                    file_pos=stop)
            rows = message_rows(data, _with_positions(data, self._rows[:count]))
            at = stop
            offsets = rows[:, C.QUEUE_OFFSET]
            rows = rows[(offsets >= self._task.start) & (offsets < self._task.end)]
            if len(rows):
                self._check(rows[:, C.QUEUE_OFFSET])
                yield from self._shown(data, rows)

    def _check(self, offsets: Rows) -> None:
        if not self._is_whole:
            return
        before = np.append(self._next - 1, offsets[:-1])
        for place in np.flatnonzero(offsets != before + 1).tolist():
            lost(self._task.key, int(before[place]) + 1, int(offsets[place]), self._options)
        self._next = int(offsets[-1]) + 1

    def end(self) -> None:
        """Report messages that are missing at the end of the range."""
        if self._is_whole and self._next < self._task.end:
            lost(self._task.key, self._next, self._task.end, self._options)

    def _shown(self, data: bytes, rows: Rows) -> Iterator[pa.RecordBatch]:
        options = self._options
        names = options.columns if not self._tags or "tags" in options.columns else (*options.columns, "tags")
        made = Columns(data, Fields.of(rows, names), self._task.key[0], options.body)
        schema = arrow_schema(names)
        batch = pa.RecordBatch.from_arrays([made.make(field.name, field.type) for field in schema], schema=schema)
        if self._tags:  # a broker compares hashes of tags
            batch = batch.filter(pa.compute.is_in(batch["tags"], value_set=pa.array(self._tags)))
            batch = batch.select(list(options.columns))
        if batch.num_rows:
            yield batch


def _with_positions(data: bytes, rows: Rows) -> Rows:
    """Set the positions in the log, which records have and ``scan`` counts from the start of the answer."""
    starts = rows[:, C.BORN_HOST_POS] - MESSAGE_HEAD.size + MESSAGE_HEAD.offsets["phy_offset"]
    bytes_of: np.ndarray[Any, np.dtype[np.uint8]] = np.frombuffer(data, np.uint8)
    rows[:, C.PHY] = bytes_of[starts[:, np.newaxis] + np.arange(8)].reshape(-1, 8).view(">i8")[:, 0]
    return rows
