"""Batch and stream readers over the network: ``format("tailrace").option("namesrv", …)``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tailrace.env.clock import Clock, SystemClock
from tailrace.spark.plain_errors import plain_errors, plain_errors_of_rows
from tailrace.spark.source.broker_scan import BrokerTask, plan_broker_tasks, read_broker_task
from tailrace.spark.source.broker_stream import BrokerStream
from tailrace.spark.source.brokers import Brokers, broker_batch_ranges
from tailrace.spark.source.options import BATCH_ONLY, STREAM_ONLY, BrokerOptions, ReadOptions
from tailrace.spark.workers import Portable

__all__ = ["BrokerBatchReader", "BrokerStreamReader"]


def _brokers(options: ReadOptions) -> BrokerOptions:
    assert options.brokers is not None
    return options.brokers


class BrokerBatchReader(Portable, DataSourceReader):
    """Reads a row for every message that brokers serve and that the options select."""

    def __init__(self, options: ReadOptions) -> None:
        options.refuse((*STREAM_ONLY, "maxBytesPerTrigger", "consumerGroup"), "is for streams")
        if options.start.by == "latest":
            options.refuse(("startingOffsets",), "may not be latest: a batch would be empty")
        self._options = options

    @plain_errors
    def partitions(self) -> list[InputPartition]:
        """Return ranges of queues."""
        with Brokers(_brokers(self._options)) as brokers:
            return plan_broker_tasks(broker_batch_ranges(brokers, self._options), self._options)

    @plain_errors_of_rows
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the Arrow batches of a range."""
        if isinstance(partition, BrokerTask):
            yield from read_broker_task(partition, self._options)


class BrokerStreamReader(Portable, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Batches of messages by offsets of queues of brokers. The constructor never raises, as that of a directory."""

    def __init__(self, options: ReadOptions, clock: Clock | None = None) -> None:
        self._options = options
        self._stream = BrokerStream(options, clock or SystemClock())

    @plain_errors
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - this and the following names are Spark's
        """Return the offsets at which a new query starts."""
        return self._stream.first()

    @plain_errors
    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a batch: messages, about a number of bytes, or all messages."""
        self._options.refuse(BATCH_ONLY, "is for batch queries")
        if size := _brokers(self._options).max_bytes_per_trigger:
            return ReadMaxBytes(size)
        limit = self._options.max_offsets_per_trigger
        return ReadMaxRows(limit) if limit else ReadAllAvailable()

    @plain_errors
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of a query that reads the messages stored so far."""
        self._stream.fix_end()

    @plain_errors
    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """The end of every queue, for the query's progress."""
        return self._stream.ends()

    @plain_errors
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next batch; ``start`` itself when it is to wait for more."""
        return self._stream.next_end(
            start, limit.max_rows if isinstance(limit, ReadMaxRows) else None,
            limit.max_bytes if isinstance(limit, ReadMaxBytes) else None)

    @plain_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return ranges of queues for the offsets from ``start`` up to ``end``."""
        return plan_broker_tasks(self._stream.ranges(start, end), self._options)

    @plain_errors_of_rows
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the Arrow batches of a range."""
        if isinstance(partition, BrokerTask):
            yield from read_broker_task(partition, self._options)

    @plain_errors
    def commit(self, end: dict[str, Any]) -> None:
        """Report the offsets of a finished batch to the group of the option ``consumerGroup``."""
        self._stream.report(end)
