"""Messages of a queue as an Arrow table, for ``MessageStore.to_arrow``."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, final

import numpy as np

from tailrace.arrow import pyarrow
from tailrace.arrow.columns import Columns
from tailrace.arrow.schema import arrow_schema
from tailrace.store.reading import MessageReader

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["arrow_table", "check_not_negative"]


def arrow_table(
    reader: MessageReader, label: str, topic: str, queue_id: int, offset: int, until: int, count: int
) -> pa.Table:
    """Return at most ``count`` messages of a queue with offsets in [``offset``, ``until``).

    The columns are those of the Spark source; ``label`` is the value of the column ``store``. A record
    batch has up to 8 MiB of records, so the call needs the memory of its result and little more.
    Raises MissingPackageError if pyarrow is not installed.
    """
    schema, memory = arrow_schema(), _ArrowMemory()
    batches = []
    with contextlib.closing(reader.scan(topic, queue_id, offset, until, count)) as parts:
        for data, rows in parts:
            columns = Columns(data, rows, label, "stored", memory)
            batches.append(pyarrow().RecordBatch.from_arrays(
                [columns.make(field.name, field.type) for field in schema], schema=schema))
    return pyarrow().Table.from_batches(batches, schema=schema)


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
