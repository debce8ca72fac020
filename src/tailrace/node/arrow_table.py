"""Messages of a queue as an Arrow table, for ``MessageStore.to_arrow``."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np

from tailrace.arrow import pyarrow
from tailrace.arrow.columns import Columns
from tailrace.arrow.inner_rows import message_rows
from tailrace.arrow.schema import COLUMN_NAMES, arrow_schema
from tailrace.kernels import record
from tailrace.store.reading import MessageReader

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["arrow_table", "check_not_negative", "chosen_schema"]


def arrow_table(
    reader: MessageReader, schema: pa.Schema, label: str, topic: str, queue_id: int, offset: int, until: int,
    count: int,
) -> pa.Table:
    """Return at most ``count`` messages of a queue with offsets in [``offset``, ``until``).

    ``label`` is the value of the column ``store``. A record batch has up to 4 MiB of records, so the call
    needs the memory of its result and little more. Inner batches are unwrapped.
    """
    memory, has_batches = _ArrowMemory(), reader.has_batch_queues(topic)
    batches = []
    with contextlib.closing(reader.scan(topic, queue_id, offset, until, count)) as parts:
        for data, records in parts:
            rows = records
            if has_batches:
                rows = message_rows(data, rows)
                offsets = rows[:, record.C_QUEUE_OFFSET]
                rows = rows[(offsets >= offset) & (offsets < until)][:count]
                count -= len(rows)
            columns = Columns(data, rows, label, "stored", memory)
            batches.append(pyarrow().RecordBatch.from_arrays(
                [columns.make(field.name, field.type) for field in schema], schema=schema))
            if has_batches and not count:
                break
    return pyarrow().Table.from_batches(batches, schema=schema)


def chosen_schema(columns: Sequence[str] | None) -> pa.Schema:
    """Return the columns of the Spark source, or those named.

    Raises ValueError for a name that is unknown or given twice, TypeError for a string, MissingPackageError
    if pyarrow is not installed.
    """
    if columns is None:
        return arrow_schema()
    if isinstance(columns, str):
        raise TypeError(f"columns must be a list of names, not the string {columns!r}")
    for place, name in enumerate(columns):
        if name not in COLUMN_NAMES:
            raise ValueError(f"unknown column {name!r}; known are {', '.join(COLUMN_NAMES)}")
        if name in columns[:place]:
            raise ValueError(f"column {name!r} is given twice")
    if not columns:
        raise ValueError("columns must name at least one column")
    return arrow_schema(tuple(columns))


@final
class _ArrowMemory:
    """Arrow's memory pool: it reuses what earlier tables have freed, and fresh memory costs page faults."""

    def take(self, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return an array of ``size`` bytes with any content."""
        return np.frombuffer(pyarrow().allocate_buffer(int(size)), np.uint8)


def check_not_negative(**values: int | None) -> None:
    """Raise ValueError for the first value below 0; the message names it."""
    for name, value in values.items():
        if value is not None and value < 0:
            raise ValueError(f"{name} must not be negative: {value}")
