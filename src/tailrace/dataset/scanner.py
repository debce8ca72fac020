"""A scanner over batches that are made in the thread that asks for them.

Arrow's own scanner over an iterator reads ahead in threads of C++. Such a thread still runs Python code when a program
ends after a LIMIT, which the interpreter does not survive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, final

import pyarrow as pa
import pyarrow.dataset as ds

__all__ = ["MessageScanner"]


@final
class MessageScanner:
    """Has the methods of ``pyarrow.dataset.Scanner``. Each of them reads the rows again."""

    def __init__(
        self, batches: Callable[[], Iterator[pa.RecordBatch]], schema: pa.Schema, dataset_schema: pa.Schema,
        columns: list[str] | Mapping[str, Any], filter_: Any, batch_size: int,
    ) -> None:
        """``batches`` makes batches of ``schema``, which has what ``columns`` and ``filter_`` need."""
        self._batches, self._columns, self._filter, self._batch_size = batches, columns, filter_, batch_size
        self.dataset_schema = dataset_schema
        self.projected_schema: pa.Schema = ds.Scanner.from_batches(
            [], schema=schema, columns=dict(columns) if isinstance(columns, Mapping) else columns,
            filter=filter_).projected_schema

    def _chosen(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches():
            for one in self._of(batch):
                for at in range(0, one.num_rows, self._batch_size):
                    yield one.slice(at, self._batch_size)

    def _of(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Return the rows of a batch that pass the filter, in the chosen columns."""
        columns = self._columns
        if isinstance(columns, Mapping):
            whole = ds.InMemoryDataset(pa.Table.from_batches([batch]))
            table = whole.to_table(columns=dict(columns), filter=self._filter)
        elif self._filter is None:
            return [batch.select(columns)]
        else:
            table = pa.Table.from_batches([batch]).filter(self._filter).select(columns)
        return list(table.to_batches())

    def to_reader(self) -> pa.RecordBatchReader:
        """Return a reader of the rows."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self._chosen())

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Return an iterator over the rows."""
        return self._chosen()

    def scan_batches(self) -> Iterator[ds.TaggedRecordBatch]:
        """Yield the rows without fragments, because a batch has rows of several."""
        for batch in self._chosen():
            yield ds.TaggedRecordBatch(record_batch=batch, fragment=None)

    def to_table(self) -> pa.Table:
        """Return the rows."""
        return pa.Table.from_batches(self._chosen(), schema=self.projected_schema)

    def head(self, num_rows: int) -> pa.Table:
        """Return the first rows that are read; no more are read."""
        found, left = [], num_rows
        for batch in self._chosen() if left > 0 else ():
            found.append(batch.slice(0, left))
            left -= found[-1].num_rows
            if left <= 0:
                break
        return pa.Table.from_batches(found, schema=self.projected_schema)

    def take(self, indices: Any) -> pa.Table:
        """Return rows by their numbers. All rows are read."""
        return self.to_table().take(indices)

    def count_rows(self) -> int:
        """Return the number of rows."""
        return sum(batch.num_rows for batch in self._chosen())
