"""The batch reader: the driver plans, and each task reads a range of a log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from tailrace.spark.plain_errors import plain_errors, plain_errors_of_rows
from tailrace.spark.source.filters import Bounds, bounds_of
from tailrace.spark.source.offsets import batch_ranges, open_directories
from tailrace.spark.source.options import STREAM_ONLY, ReadOptions
from tailrace.spark.source.scan import plan_tasks, read_task
from tailrace.spark.workers import Portable

__all__ = ["FilteringBatchReader", "TailraceBatchReader"]


class TailraceBatchReader(Portable, DataSourceReader):
    """Reads a row for every message that has a queue unit and that the options select."""

    def __init__(self, options: ReadOptions) -> None:
        options.refuse(STREAM_ONLY, "is for streams")
        if options.start.by == "latest":
            options.refuse(("startingOffsets",), "may not be latest: a batch would be empty")
        self._options = options
        self._bounds = Bounds()

    @plain_errors
    def partitions(self) -> list[InputPartition]:
        """Return ranges of the logs. Spark turns an empty list into one partition None, which reads nothing."""
        options = self._options
        directories = open_directories(options)
        ranges = self._bounds.apply(directories, batch_ranges(directories, options))
        return [
            task for label, directory in directories.items()
            for task in plan_tasks(label, directory, ranges, options)
        ]

    @plain_errors_of_rows
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the Arrow batches of a range; each has at most a chunk of the log."""
        yield from read_task(partition, self._options)


class FilteringBatchReader(TailraceBatchReader):
    """A batch reader that uses filters as bounds. It is a separate class, because Spark refuses a reader with this
    method if the setting ``spark.sql.python.filterPushdown.enabled`` is false."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Use filters as bounds of the read. All filters are returned, so Spark also applies them to the rows."""
        self._bounds = bounds_of(filters)
        return filters
