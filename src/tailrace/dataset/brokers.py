"""Messages that brokers serve: read over the network by the tasks of the Spark source, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, final

import pyarrow as pa

from tailrace.arrow.schema import arrow_schema
from tailrace.dataset.narrowing import columns_of, narrowed
from tailrace.dataset.rows import MessageRows, Ranges
from tailrace.dataset.store import TIME_STEP_MS, TIMES, time_scalar
from tailrace.spark.source.broker_scan import BrokerTask, plan_broker_tasks, read_broker_task
from tailrace.spark.source.brokers import Brokers, broker_batch_ranges
from tailrace.spark.source.options import BrokerOptions, ReadOptions

__all__ = ["BrokerRows"]


@final
class BrokerRows(MessageRows):
    """Rows of the messages that brokers had acknowledged when the dataset was made."""

    def __init__(self, options: ReadOptions, reopen: Callable[..., Any]) -> None:
        assert options.brokers is not None
        self._options, self._reopen = options, reopen
        self._brokers: BrokerOptions = options.brokers
        with Brokers(self._brokers) as brokers:
            self.ranges_of_queues: Ranges = broker_batch_ranges(brokers, options)
        super().__init__(arrow_schema(options.columns), self.ranges_of_queues)

    def read(self, names: Sequence[str], columns: tuple[str, ...], filter_: Any) -> Iterator[pa.RecordBatch]:
        """Yield rows of some parts, queue after queue. Raises DataLossError, CorruptionError or RemotingError."""
        options, ranges = replace(self._options, columns=columns), self.ranges(names)
        if filter_ is not None and ranges:
            ranges = self._narrowed(ranges, filter_)
        for task in plan_broker_tasks(ranges, options):
            assert isinstance(task, BrokerTask)
            yield from read_broker_task(task, options)

    def reopened(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return the call that makes the dataset again. It then may have more messages."""
        return self._reopen, ()

    def _narrowed(self, ranges: Ranges, filter_: Any) -> Ranges:
        named = columns_of([filter_], self.schema)
        if "queueOffset" in named:
            low, high = narrowed(filter_, self.schema, "queueOffset", 0, 1 << 62, pa.scalar, 1)
            ranges = {key: (max(start, low), min(end, high)) for key, (start, end) in ranges.items()}
        if "storeTimestamp" in named:
            low, high = narrowed(filter_, self.schema, "storeTimestamp", 0, TIMES, time_scalar, 1)
            with Brokers(self._brokers) as brokers:
                if low > TIME_STEP_MS:
                    first = brokers.offsets_by_time(dict.fromkeys(ranges, low - TIME_STEP_MS))
                    ranges = {key: (max(start, first[key]), end) for key, (start, end) in ranges.items()}
                if high < TIMES - TIME_STEP_MS:
                    last = brokers.offsets_by_time(dict.fromkeys(ranges, high + TIME_STEP_MS))
                    ranges = {key: (start, min(end, last[key])) for key, (start, end) in ranges.items()}
        return {key: (start, end) for key, (start, end) in ranges.items() if start < end}
