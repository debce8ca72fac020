"""The batch reader: plans on the driver, reads a range of a log in each task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from tailrace.spark.source.filters import Bounds, bounds_of
from tailrace.spark.source.offsets import batch_ranges, open_directories
from tailrace.spark.source.options import STREAM_ONLY, ReadOptions
from tailrace.spark.source.scan import plan_tasks, read_task

__all__ = ["FilteringBatchReader", "TailraceBatchReader"]


class TailraceBatchReader(DataSourceReader):
    """Rows for every record that a queue unit confirms and that the options ask for."""

    def __init__(self, options: ReadOptions) -> None:
        options.refuse(STREAM_ONLY, "is for streams")
        if options.start.by == "latest":
            options.refuse(("startingOffsets",), "may not be latest: a batch would be empty")
        self._options = options
        self._bounds = Bounds()

    def partitions(self) -> list[InputPartition]:
        """Ranges of the logs; an empty list becomes one partition None, which reads nothing."""
        options = self._options
        directories = open_directories(options)
        ranges = self._bounds.apply(directories, batch_ranges(directories, options))
        return [
            task for label, directory in directories.items()
            for task in plan_tasks(label, directory, ranges, options)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Arrow batches of one range, at most a chunk of the log each."""
        yield from read_task(partition, self._options)


class FilteringBatchReader(TailraceBatchReader):
    """The same with filters as bounds. A class of its own: where Spark's setting
    ``spark.sql.python.filterPushdown.enabled`` is false it refuses a reader that has this method."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Read less; all filters are given back, for Spark to apply to the rows."""
        self._bounds = bounds_of(filters)
        return filters
