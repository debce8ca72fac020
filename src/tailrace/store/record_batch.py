"""Records sorted by their queues: of one part of the log, or of several together."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Final, final

import numpy as np

from tailrace.kernels import queue_units, record
from tailrace.store.log_scan import Rows

__all__ = ["UNIT_COLUMNS", "RecordBatch", "rows_by_queue"]

UNIT_COLUMNS: Final = record.C_TAGS_CODE + 1
"""So many columns of a row are kept: what a unit is made of, and the checks before it is written."""


def _number(data: Any, rows: Rows) -> tuple[Rows, list[tuple[bytes, int]]]:
    """The number of each row's queue, -1 of one that has no unit; raw topic and id of each queue."""
    count = len(rows)
    numbers, firsts = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    table = np.zeros(1 << (2 * count).bit_length(), dtype=np.int64)
    queues = queue_units.number_queues(data, rows, numbers, firsts, table)
    heads = rows[firsts[:queues]][:, [record.C_TOPIC_POS, record.C_TOPIC_LEN, record.C_QUEUE_ID]]
    return numbers, [(bytes(data[at : at + n]), queue_id) for at, n, queue_id in heads.tolist()]


def rows_by_queue(data: Any, rows: Rows) -> Iterator[tuple[str, int, Rows]]:
    """Topic and id of each queue and the numbers of its rows, in the order of the log.

    Rows of a kind that has no unit are left out.
    """
    numbers, queues = _number(data, rows)
    order, bounds = np.empty(len(rows), dtype=np.int64), np.empty(len(queues) + 1, dtype=np.int64)
    queue_units.sort_by_queue(numbers, len(queues), order, bounds)
    for (topic, queue_id), (first, last) in zip(queues, itertools.pairwise(bounds.tolist()), strict=True):
        yield topic.decode("utf-8", "replace"), queue_id, order[first:last]


@final
class RecordBatch:
    """Rows of several parts of the log; their bytes are not needed any more once a part was added.

    Its memory is used again after ``clear``: new memory costs more than what is done in it.
    """

    def __init__(self) -> None:
        self._rows = np.empty((0, UNIT_COLUMNS), dtype=np.int64)
        self._numbers = self._order = np.empty(0, dtype=np.int64)
        self._count = 0
        self._queues: dict[tuple[bytes, int], int] = {}

    def __len__(self) -> int:
        return self._count

    def clear(self) -> None:
        """Forget all rows; what ``sorted`` returned is not valid any more."""
        self._count = 0
        self._queues.clear()

    def add(self, data: Any, rows: Rows) -> None:
        """Take record rows, which follow those that were taken before; ``data`` is what they point into."""
        numbers, queues = _number(data, rows)
        known = self._queues
        places = [known.setdefault(queue, len(known)) for queue in queues]
        first, last = self._count, self._count + len(rows)
        if last > len(self._rows):
            self._grow(2 * last)
        self._rows[first:last] = rows[:, :UNIT_COLUMNS]
        self._numbers[first:last] = np.array([*places, -1], dtype=np.int64)[numbers]
        self._count = last

    def _grow(self, count: int) -> None:
        rows, numbers = self._rows[: self._count], self._numbers[: self._count]
        self._rows = np.empty((count, UNIT_COLUMNS), dtype=np.int64)
        self._numbers, self._order = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
        self._rows[: self._count], self._numbers[: self._count] = rows, numbers

    def sorted(self) -> tuple[Rows, Rows, list[int], list[tuple[bytes, int]]]:
        """All rows, cut to UNIT_COLUMNS; their numbers by queue; bounds of the queues in these; the queues.

        A queue is its raw topic and its id.
        """
        bounds = np.empty(len(self._queues) + 1, dtype=np.int64)
        total = queue_units.sort_by_queue(
            self._numbers[: self._count], len(self._queues), self._order, bounds)
        return self._rows[: self._count], self._order[:total], bounds.tolist(), list(self._queues)
