"""Messages of a queue as an Arrow table, for ``MessageStore.to_arrow``."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from tailrace.arrow import pyarrow
from tailrace.arrow.columns import Columns, Numbers, Rows
from tailrace.arrow.inner_rows import message_rows
from tailrace.arrow.schema import COLUMN_NAMES, arrow_schema
from tailrace.kernels import record
from tailrace.store.reading import MessageReader

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["arrow_table", "check_not_negative", "chosen_schema"]

_ROWS: Final = 1 << 13
_BODIES: Final = 8 << 20
_TEXTS: Final = 2 << 20  # small enough to stay in a processor's caches until columns are made of it


def arrow_table(
    reader: MessageReader, schema: pa.Schema, label: str, topic: str, queue_id: int, offset: int, until: int,
    count: int,
) -> pa.Table:
    """Return at most ``count`` messages of a queue with offsets in [``offset``, ``until``).

    ``label`` is the value of the column ``store``. A record batch has at most 8,192 messages with 8 MiB of bodies, or
    one message, so the call needs the memory of its result and little more. Inner batches are unwrapped.
    """
    has_batches, batches = reader.has_batch_queues(topic), []
    pack = _Pack(schema, label)
    with contextlib.closing(reader.scan(topic, queue_id, offset, until, count)) as parts:
        for data, records in parts:
            rows = records
            if has_batches:
                rows = message_rows(data, rows)
                offsets = rows[:, record.C_QUEUE_OFFSET]
                rows = rows[(offsets >= offset) & (offsets < until)][:count]
            first = 0
            while first < len(rows):
                first = pack.add(data, rows, first, count)
                if first < len(rows):
                    batches.append(pack.batch())
            count -= len(rows)
            if not count:
                break
    if pack.count:
        batches.append(pack.batch())
    return pyarrow().Table.from_batches(batches, schema=schema)


@final
class _Pack:
    """Rows for a record batch, and the bytes that they need.

    A record is read once, while a processor's second cache still has it from its verification: its body is copied to
    Arrow's memory, its texts close to those of other records. Columns are made of many records, so that the time of
    the calls is small.
    """

    def __init__(self, schema: pa.Schema, label: str) -> None:
        self._schema, self._label, self._memory = schema, label, _ArrowMemory()
        self._has_bodies = "body" in schema.names
        self._rows = np.empty((_ROWS, record.COLUMNS), np.int64)
        self._texts = np.empty(_TEXTS, np.uint8)
        self._bodies, self._numbers = pyarrow().allocate_buffer(0), Numbers(0)
        self.count = self._texts_end = self._bodies_end = 0

    def add(self, data: memoryview, rows: Rows, first: int, left: int) -> int:
        """Add rows from ``first`` onwards. Return the number of the first row that needs another batch.

        ``left`` is the number of messages that are not added yet, or more.
        """
        if not self.count:
            self._begin(int(rows[first:, record.C_SIZE].max()), left)
        at, start = self.count, first
        first, self.count, self._texts_end, self._bodies_end = record.pack_rows(
            data, rows, first, self._rows, at, self._texts, self._texts_end,
            np.frombuffer(self._bodies, np.uint8), self._bodies_end, self._has_bodies)
        self._numbers.take(rows[start:first], at)
        return int(first)

    def _begin(self, longest: int, left: int) -> None:
        """Get memory for a batch: at least for a record of ``longest`` bytes, at most for ``left`` such records."""
        if longest > len(self._texts):
            self._texts = np.empty(longest, np.uint8)
        size = max(min(_BODIES, left * longest), longest) if self._has_bodies else 0
        self._bodies = pyarrow().allocate_buffer(size, resizable=True)
        self._numbers = Numbers(min(left, _ROWS), self._schema.names)

    def batch(self) -> pa.RecordBatch:
        """Return the rows as a record batch. The next row begins another one."""
        made = Columns(
            self._texts.data, self._rows[: self.count], self._label, "stored", self._memory, self._numbers)
        arrays = [
            self._body_column(field.type) if field.name == "body" else made.make(field.name, field.type)
            for field in self._schema]
        self.count = self._texts_end = self._bodies_end = 0
        return pyarrow().RecordBatch.from_arrays(arrays, schema=self._schema)

    def _body_column(self, kind: pa.DataType) -> pa.Array:
        pa = pyarrow()
        offsets = np.empty(self.count + 1, np.int32)
        offsets[:-1], offsets[-1] = self._rows[: self.count, record.C_BODY_POS], self._bodies_end
        # Some allocators copy to shrink, which is not worth it for an eighth.
        self._bodies.resize(self._bodies_end, shrink_to_fit=self._bodies_end < self._bodies.size // 8 * 7)
        return pa.Array.from_buffers(kind, self.count, [None, pa.py_buffer(offsets), self._bodies])


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
