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
from tailrace.kernels import record
from tailrace.kernels.shared import constants as C
from tailrace.kernels.unit_records import Packer, Sink, UnitWindow
from tailrace.store.reading import MessageReader

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["arrow_table", "check_not_negative", "chosen_schema"]

_ROWS: Final = 1 << 14
_BODIES: Final = 16 << 20
_TEXTS: Final = 4 << 20
_PART: Final = 512 << 10
_PLACES: Final = 512
"""Bytes and number of the records with several messages of which rows are made in one call."""
_READ: Final = 2 << 20
"""Bytes that are read from the disk in one call."""


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
class _Pack(Sink):
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
        self._packer: Packer | None = None
        self._batches: list[pa.RecordBatch] = []

    def batches(self) -> list[pa.RecordBatch]:
        """Return the messages that were taken."""
        self._end_batch()
        return self._batches

    def take(self, window: UnitWindow) -> bool:
        if self._within is not None:
            return self._take_batches(window, *self._within)
        longest, more = 0, True
        while more and self.left:
            sizes = CQ_UNIT.view(window.units)["size"][window.at : window.at + self.left]
            packer = self._packer or self._begin(int(sizes.clip(0, _BODIES).sum(dtype=np.int64)), longest)
            before = packer.count
            window.pack(packer, self.left)
            self.left -= packer.count - before
            more = window.why == C.UNITS_FULL
            if more and self.left:
                longest = int(CQ_UNIT.view(window.units)["size"][window.at])
                self._end_batch()
        return self.left > 0

    def _take_batches(self, window: UnitWindow, begin: int, until: int) -> bool:
        """Do what ``take`` does for records of which each may have several messages."""
        places = np.empty((_PLACES, C.PLACE_COLUMNS), np.int64)
        window.find(min(self.left, _PLACES), _PART, False)
        window.take_places(places)
        rows = np.empty((window.count, C.COLUMNS), np.int64)
        record.fill_rows(window.buffer, window.start, places[: len(rows)], rows, C.LEAVE_HASHES)
        rows = message_rows(window.buffer, rows)
        offsets = rows[:, C.QUEUE_OFFSET]
        rows = rows[(offsets >= begin) & (offsets < until)][: self.left]
        first = 0
        while first < len(rows):
            sizes = rows[first:, C.SIZE]
            packer = self._packer or self._begin(self.left * int(sizes.max()), int(sizes[0]))
            first = packer.put_rows(window.buffer, rows, first)
            if first < len(rows):
                self._end_batch()
        self.left -= len(rows)
        return self.left > 0

    def span(self, window: UnitWindow) -> int:
        return _READ

    def _begin(self, size: int, longest: int) -> Packer:
        """Get memory for records with ``size`` bytes, or at least for one with ``longest``, and for their numbers."""
        if longest > len(self._texts):
            self._texts = array(longest)
        room = max(min(_BODIES, size), longest) if self._has_bodies else 0
        self._bodies = pyarrow().allocate_buffer(room, resizable=True)
        count = min(self.left, _ROWS)
        self._fields.begin(count)
        self._packer = Packer(
            count, self._row, self._texts, np.frombuffer(self._bodies, np.uint8), self._has_bodies,
            *self._fields.places)
        return self._packer

    def _end_batch(self) -> None:
        """Make a record batch of the rows, if there are any. The next row begins another one."""
        packer, self._packer = self._packer, None
        if packer is None or not packer.count:
            return
        self._fields.count = packer.count
        made = Columns(self._texts.data, self._fields, self._label, "stored")
        arrays = [
            self._body_column(field.type, packer.bodies_end) if field.name == "body"
            else made.make(field.name, field.type) for field in self._schema]
        self._batches.append(pyarrow().RecordBatch.from_arrays(arrays, schema=self._schema))

    def _body_column(self, kind: pa.DataType, end: int) -> pa.Array:
        pa, count = pyarrow(), self._fields.count
        offsets = array(count + 1, np.int32)
        offsets[:-1], offsets[-1] = self._fields[C.BODY_POS], end
        # Some allocators copy to shrink, which is not worth it for a quarter.
        self._bodies.resize(end, shrink_to_fit=end < self._bodies.size // 4 * 3)
        return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(offsets), self._bodies])


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
