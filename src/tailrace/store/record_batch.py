"""Records reduced to what queue units and index entries are made of. One batch may have several parts of the log."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Final, TypeVar, final

import numpy as np

from tailrace.formats.commitlog import SysFlag
from tailrace.formats.inner_batch import inner_num
from tailrace.kernels import index_entries, queue_units
from tailrace.kernels.shared import constants as C
from tailrace.store.multi_dispatch import rows_with_lmq
from tailrace.store.walk.log_walk import Damage
from tailrace.store.walk.scan import Rows

__all__ = ["UNIT_COLUMNS", "Hashes", "RecordBatch", "ShortBatch", "inner_counts", "rows_by_queue"]

UNIT_COLUMNS: Final = C.TAGS_CODE + 1
"""Number of columns of a row that are kept: what units, entries and the checks before writing them need."""
_FEW: Final = 256
"""Most records of a `ShortBatch`."""
_FEW_QUEUES: Final = 64
Hashes = np.ndarray[Any, np.dtype[np.int32]]
_Array = TypeVar("_Array", bound=np.ndarray[Any, Any])


def _longer(array: _Array, count: int) -> _Array:
    """Return a copy of ``array`` with ``count`` rows; the new rows are not initialised."""
    made = np.empty_like(array, shape=(count, *array.shape[1:]))
    made[: len(array)] = array
    return made


@final
class QueueNumbers:
    """Numbers queues from 0 onwards, in the order in which records name them."""

    def __init__(self) -> None:
        self._count = 0
        self._known = np.empty((64, 4), dtype=np.int64)
        self._names = bytearray(1 << 12)
        self._table = np.zeros(1 << 8, dtype=np.int64)

    def __len__(self) -> int:
        return self._count

    def clear(self) -> None:
        """Forget all queues."""
        self._count = 0
        self._table[:] = 0

    def number(self, data: Any, rows: Rows, numbers: Rows) -> None:
        """Write to ``numbers`` the number of each row's queue, -1 for a record without a unit."""
        done = 0
        while True:
            done, self._count = queue_units.number_queues(
                data, rows, done, numbers, self._count, self._known, self._names, self._table)
            if done == len(rows):
                return
            self._grow(int(rows[done, C.TOPIC_LEN]))

    def _grow(self, more: int) -> None:
        self._known = _longer(self._known, 2 * len(self._known))
        self._names += bytes(len(self._names) + more)
        self._table = np.zeros(2 * len(self._table), dtype=np.int64)
        mask = len(self._table) - 1
        for number, queue_hash in enumerate(self._known[: self._count, 0].tolist(), 1):
            place = queue_hash & mask
            while self._table[place]:
                place = (place + 1) & mask
            self._table[place] = number

    def names(self) -> list[tuple[bytes, int]]:
        """Return topic (bytes) and id of each queue."""
        known, names = self._known[: self._count].tolist(), bytes(self._names)
        return [(names[at : at + length], queue_id) for _, queue_id, at, length in known]


def inner_counts(data: Any, rows: Rows) -> Iterator[tuple[int, int]]:
    """Yield (number of the row, number of its messages) for each row that is an inner batch."""
    for number in np.flatnonzero(rows[:, C.SYS_FLAG] & SysFlag.INNER_BATCH).tolist():
        at, length = rows[number, [C.PROPS_POS, C.PROPS_LEN]].tolist()
        yield number, inner_num(bytes(data[at : at + length]))


def rows_by_queue(data: Any, rows: Rows) -> Iterator[tuple[str, int, Rows]]:
    """Yield (topic, queue id, numbers of its rows in the order of the log) for each queue of record rows.

    Rows of records without a unit are left out. To include units of LMQ queues, pass ``rows_with_lmq``.
    """
    queues, numbers = QueueNumbers(), np.empty(len(rows), dtype=np.int64)
    queues.number(data, rows, numbers)
    order, bounds = np.empty(len(rows), dtype=np.int64), np.empty(len(queues) + 1, dtype=np.int64)
    queue_units.sort_by_queue(numbers, len(queues), order, bounds)
    for (topic, queue_id), (first, last) in zip(
        queues.names(), itertools.pairwise(bounds.tolist()), strict=True
    ):
        yield topic.decode("utf-8", "replace"), queue_id, order[first:last]


@final
class ShortBatch:
    """The few records of a short step of dispatch, if none of them needs a closer look.

    Their numbers are those of a `RecordBatch`, made in two calls, because a step of few records takes most of its time
    for calls. Arrays that are returned are valid until the next ``read``.
    """

    def __init__(self, *, with_keys: bool = True, check: int = C.CHECK_PHY_OFFSET) -> None:
        """``check`` are flags C.CHECK_*."""
        self._step = queue_units.ShortStep(
            np.empty((_FEW, C.COLUMNS), dtype=np.int64), np.zeros(_FEW, dtype=np.int64),
            np.empty(8 * _FEW, dtype=np.int32), np.empty(_FEW, dtype=np.int64), np.empty(_FEW, dtype=np.int64),
            np.empty(_FEW_QUEUES + 1, dtype=np.int64), np.empty((_FEW_QUEUES, 4), dtype=np.int64),
            np.zeros(4 * _FEW_QUEUES, dtype=np.int64), with_keys, check)
        self.read: Final = self._step.read
        """``read(data, size, phy_offset)`` takes the records in ``data[:size]``; False if they are not such records."""
        self.runs: Final = self._step.runs
        """``runs(with_codes)`` returns topic and id of each queue, and the runs of `queue_units.build_units`."""
        self.positions: Final = self._step.positions
        """``positions(most)`` returns the positions of the last ``most`` records."""
        self.last: Final = self._step.last
        """Returns position, length and store time of the last record."""
        self.order: Rows = self._step.order
        self.bounds: Rows = self._step.bounds
        self.units: Final = memoryview(self._step.units)

    @property
    def rows(self) -> Rows:
        """All rows."""
        rows: Rows = self._step.rows
        return rows[: self._step.count]

    @property
    def key_hashes(self) -> tuple[Rows, Hashes]:
        """As that of `RecordBatch`."""
        return self._step.ends[: self._step.count], self._step.hashes


@final
class RecordBatch:
    """Rows of several parts of the log. The bytes of a part are not needed after ``add``.

    Reuse a batch after ``clear``, because allocating new memory costs more than filling it.
    """

    def __init__(self, *, with_keys: bool = True) -> None:
        self._with_keys = with_keys
        self._rows = np.empty((0, UNIT_COLUMNS), dtype=np.int64)
        self._numbers = self._order = self._ends = np.empty(0, dtype=np.int64)
        self._hashes: Hashes = np.empty(0, dtype=np.int32)
        self._count = 0
        self._keys = 0
        self._queues = QueueNumbers()
        self.records = 0
        """Number of records; ``len`` also counts the rows of their LMQ units."""
        self.inner_counts: dict[int, int] = {}
        """Number of messages of each row that is an inner batch."""
        self.sealed: list[Damage] = []
        """Damage that placeholder records cover."""

    def __len__(self) -> int:
        return self._count

    def clear(self) -> None:
        """Remove all rows. Arrays that were returned before are no longer valid."""
        self._count = self._keys = self.records = 0
        self._queues.clear()
        self.inner_counts.clear()
        self.sealed = []

    def add(self, data: Any, rows: Rows, *, odd: bool = True) -> None:
        """Add record rows, which follow those added before. *_POS of ``rows`` are positions in ``data``.

        Rows for the LMQ units of a record are added after its own row. ``odd`` may be false if each has the kind 0.
        """
        self.records += len(rows)
        if odd:
            rows = rows_with_lmq(data, rows)
        first, last = self._count, self._count + len(rows)
        if last > len(self._rows):
            self._grow(2 * last)
        queue_units.copy_columns(rows, self._rows[first:last])
        self._queues.number(data, rows, self._numbers[first:last])
        if self._with_keys:
            self._hash_keys(data, rows, self._ends[first:last])
        for number, count in inner_counts(data, rows) if odd else ():
            self.inner_counts[first + number] = count
        self._count = last

    def _hash_keys(self, data: Any, rows: Rows, ends: Rows) -> None:
        done = 0
        while True:
            done, self._keys = index_entries.hash_keys(
                data, rows, done, self._hashes, self._keys, ends)
            if done == len(rows):
                return
            least = self._keys + int(rows[done, C.KEYS_LEN]) // 2 + 3
            self._hashes = _longer(self._hashes, 2 * least)

    def _grow(self, count: int) -> None:
        self._rows, self._ends = _longer(self._rows, count), _longer(self._ends, count)
        self._numbers, self._order = _longer(self._numbers, count), np.empty(count, dtype=np.int64)

    @property
    def rows(self) -> Rows:
        """All rows, cut to UNIT_COLUMNS."""
        return self._rows[: self._count]

    @property
    def key_hashes(self) -> tuple[Rows, Hashes]:
        """For each row the number after its last key, and the hash of each key (``kernels.index_entries``)."""
        return self._ends[: self._count], self._hashes

    def sorted(self) -> tuple[Rows, Rows, list[tuple[bytes, int]]]:
        """Return (numbers of all rows sorted by queue, bounds of each queue in them, queues as (topic, id))."""
        bounds = np.empty(len(self._queues) + 1, dtype=np.int64)
        total = queue_units.sort_by_queue(
            self._numbers[: self._count], len(self._queues), self._order, bounds)
        return self._order[:total], bounds, self._queues.names()
