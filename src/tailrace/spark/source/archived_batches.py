"""Messages of archived inner batches: records are made again from their rows, and each message becomes a row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from tailrace.arrow.columns import Columns, Fields, Rows
from tailrace.arrow.inner_rows import message_rows
from tailrace.arrow.schema import arrow_schema
from tailrace.errors import CorruptionError
from tailrace.kernels import record
from tailrace.kernels.shared import constants as C
from tailrace.spark.archive.rows import bytes_of
from tailrace.spark.buffers import Scratch
from tailrace.spark.offset_ranges import OffsetRange, RowFilter
from tailrace.spark.source.options import ReadOptions

__all__ = ["batch_messages", "records_of"]

_SPAN: Final = 4 << 20
"""Bytes of the log whose records are made at a time, unless one record is longer."""


def batch_messages(
    tables: Iterable[pa.Table], wanted: list[OffsetRange], label: str, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    """Yield the messages in the ranges of batch queues, in the source's columns.

    ``tables`` have the rows of their records with ``ENCODED_COLUMNS``. Raises CorruptionError for a row from which
    no record can be made.
    """
    schema, keep, scratch = arrow_schema(options.columns), RowFilter([one.of_messages() for one in wanted]), Scratch()
    for table in tables:
        for base, data, rows in records_of(table, scratch):
            shown = keep(message_rows(data, rows))
            if not len(shown):
                continue
            made = Columns(data, Fields.of(shown, options.columns), label, options.body)
            try:
                yield pa.RecordBatch.from_arrays(
                    [made.make(field.name, field.type) for field in schema], schema=schema)
            except CorruptionError as error:
                raise CorruptionError(str(error), phy_offset=base) from error


def records_of(table: pa.Table, scratch: Scratch) -> Iterator[tuple[int, memoryview, Rows]]:
    """Yield position, bytes and rows of records that are close to each other. The bytes are valid until the next."""
    order = np.argsort(table["commitLogOffset"].to_numpy(), kind="stable")
    table = table.take(pa.array(order))
    places = table["commitLogOffset"].to_numpy()
    sizes = table["storeSize"].to_numpy().astype(np.int64)
    ends = places + sizes
    low = 0
    while low < len(places):
        base = int(places[low])
        high = max(int(np.searchsorted(ends, base + _SPAN, side="right")), low + 1)
        data = scratch.take(int(ends[high - 1]) - base)
        written = bytes_of(table.slice(low, high - low), base, data)
        at = np.zeros((high - low, C.PLACE_COLUMNS), dtype=np.int64)
        at[:, C.PLACE_AT], at[:, C.PLACE_SIZE] = places[low:high] - base, sizes[low:high]
        rows = np.empty((high - low, C.COLUMNS), dtype=np.int64)
        try:
            if written != int(sizes[low:high].sum()):
                raise ValueError(f"{written} bytes of records instead of {int(sizes[low:high].sum())}")
            record.fill_rows(data, base, at, rows)
        except ValueError as error:
            raise CorruptionError(f"rows of the archive give no records: {error}", phy_offset=base) from error
        yield base, data, rows
        low = high
