"""Messages of queues as an Arrow table, for ``MessageStore.to_arrow``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, final

import numpy as np

from tailrace.arrow import pyarrow
from tailrace.arrow.columns import Columns, Fields
from tailrace.arrow.inner_rows import message_rows
from tailrace.arrow.memory import array
from tailrace.arrow.schema import COLUMN_NAMES, arrow_schema
from tailrace.formats.consumequeue import CQ_UNIT
from tailrace.kernels import packed_rows
from tailrace.kernels.shared import constants as C
from tailrace.store.queue_scan import Window
from tailrace.store.reading import MessageReader

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["arrow_table", "check_not_negative", "chosen_schema"]

_ROWS: Final = 1 << 14
_BODIES: Final = 16 << 20
_TEXTS: Final = 4 << 20
_SIZE: Final = np.dtype(">i4")


def arrow_table(
    reader: MessageReader, schema: pa.Schema, label: str, topic: str, ranges: Sequence[tuple[int, int, int]],
    count: int | None,
) -> pa.Table:
    """Return the messages of ``ranges`` of a topic: (queue id, first offset, end offset); at most ``count`` if given.

    ``label`` is the value of the column ``store``. A record batch has at most 16,384 messages with 16 MiB of bodies, or
    one message, so the call needs the memory of its result and little more. Inner batches are unwrapped.
    """
    batches: list[pa.RecordBatch] = []
    left = sum(until for *_, until in ranges) if count is None else count
    for queue_id, offset, until in ranges:
        pack = _Pack(schema, label, left, (offset, until) if reader.has_batch_queues(topic) else None)
        reader.scan(topic, queue_id, offset, until, pack)
        batches += pack.batches()
        left = pack.left
        if not left:
            break
    return pyarrow().Table.from_batches(batches, schema=schema)


@final
class _Pack:
    """Rows for a record batch, and the bytes that they need.

    A record is read once, while the processor's caches still have it from its verification: its body is copied to
    Arrow's memory, its texts close to those of other records. Columns are made of many records, so that the time of
    the calls is small.
    """

    def __init__(self, schema: pa.Schema, label: str, count: int, within: tuple[int, int] | None) -> None:
        """``within`` is given for a queue whose records may have several messages: offsets [first, end)."""
        self._schema, self._label, self._within = schema, label, within
        self.left = count
        self._has_bodies = "body" in schema.names
        self._fields = Fields(min(count, _ROWS), schema.names)
        self._row, self._texts = np.empty((1, C.COLUMNS), np.int64), array(_TEXTS)
        self._bodies = pyarrow().allocate_buffer(0)
        self._count = self._texts_end = self._bodies_end = 0
        self._longest = self._room = 0
        self._batches: list[pa.RecordBatch] = []

    def batches(self) -> list[pa.RecordBatch]:
        """Return the messages that were taken."""
        if self._count:
            self._end_batch()
        return self._batches

    def take(self, window: Window, at: int) -> tuple[int, int]:
        """Take messages up to the end of a record batch, see ``queue_scan.Sink``."""
        if self._within is not None or not window.queue.record_topic:
            return self._take_rows(window, at)
        if not self._count:
            sizes = np.ndarray(len(window.units) // CQ_UNIT.size, _SIZE, window.units, 8, (CQ_UNIT.size,))
            self._begin(int(sizes[at : at + self.left].clip(0, _BODIES).sum(dtype=np.int64)))
        before = self._count
        self._count, self._texts_end, self._bodies_end, at, why = packed_rows.pack_units(
            window.buffer, window.start, len(window.buffer), window.units, at, window.queue.record_topic,
            window.queue.queue_id, window.offset, window.seen, self._row, before, self._room, self._texts,
            self._texts_end, np.frombuffer(self._bodies, np.uint8), self._bodies_end, self._has_bodies,
            *self._fields.places)
        self.left -= self._count - before
        if why == C.UNITS_FULL and self.left:
            if self._count:
                self._end_batch()
            else:
                self._longest = CQ_UNIT.struct.unpack_from(window.units, at * CQ_UNIT.size)[1]
        return at, why

    def _take_rows(self, window: Window, at: int) -> tuple[int, int]:
        """Do what ``take`` does for records of which not every one is one message of the queue."""
        rows, at, why = window.rows(at, self.left)
        if self._within is not None:
            rows = message_rows(window.buffer, rows)
            offsets = rows[:, C.QUEUE_OFFSET]
            rows = rows[(offsets >= self._within[0]) & (offsets < self._within[1])][: self.left]
        first = 0
        while first < len(rows):
            if not self._count:
                self._longest = int(rows[first, C.SIZE])
                self._begin(self.left * int(rows[first:, C.SIZE].max()))
            first, self._count, self._texts_end, self._bodies_end = packed_rows.pack_rows(
                window.buffer, rows, first, self._row, self._count, self._room, self._texts, self._texts_end,
                np.frombuffer(self._bodies, np.uint8), self._bodies_end, self._has_bodies, *self._fields.places)
            if first < len(rows):
                self._end_batch()
        self.left -= len(rows)
        return at, why

    def _begin(self, size: int) -> None:
        """Get memory for records with ``size`` bytes, or at least for one with ``_longest``, and for their numbers."""
        if self._longest > len(self._texts):
            self._texts = array(self._longest)
        room = max(min(_BODIES, size), self._longest) if self._has_bodies else 0
        self._bodies = pyarrow().allocate_buffer(room, resizable=True)
        self._room = min(self.left, _ROWS)
        self._fields.begin(self._room)

    def _end_batch(self) -> None:
        """Make a record batch of the rows. The next row begins another one."""
        self._fields.count = self._count
        made = Columns(self._texts.data, self._fields, self._label, "stored")
        arrays = [
            self._body_column(field.type) if field.name == "body" else made.make(field.name, field.type)
            for field in self._schema]
        self._batches.append(pyarrow().RecordBatch.from_arrays(arrays, schema=self._schema))
        self._count = self._texts_end = self._bodies_end = self._longest = 0

    def _body_column(self, kind: pa.DataType) -> pa.Array:
        pa = pyarrow()
        offsets = array(self._count + 1, np.int32)
        offsets[:-1], offsets[-1] = self._fields[C.BODY_POS], self._bodies_end
        # Some allocators copy to shrink, which is not worth it for a quarter.
        self._bodies.resize(self._bodies_end, shrink_to_fit=self._bodies_end < self._bodies.size // 4 * 3)
        return pa.Array.from_buffers(kind, self._count, [None, pa.py_buffer(offsets), self._bodies])


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


def check_not_negative(**values: int | None) -> None:
    """Raise ValueError for the first value below 0, TypeError for another type. The message names it."""
    for name, value in values.items():
        if value is None:
            continue
        if not hasattr(value, "__index__"):
            raise TypeError(f"{name} must be a whole number, not {value!r}")
        if value < 0:
            raise ValueError(f"{name} must not be negative: {value}")
