"""Types of the arrays that the timer services pass to each other and to kernels, and reads of many records."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from tailrace.kernels import timer_units

__all__ = ["Ints", "Mask", "Units", "grouped", "no_positions", "numbered", "read_records", "whole"]

Ints = np.ndarray[Any, np.dtype[np.int64]]
"""An array of offsets, positions, times or hashes; of two dimensions for rows of a kernel."""
Mask = np.ndarray[Any, np.dtype[np.bool_]]
"""An array of truth values."""
Units = np.ndarray[Any, np.dtype[np.void]]
"""An array of units of the timer log, of queue units or of slots of the wheel."""
ReadLog = Callable[[int, int], bytes]
_WINDOW: Final = 4 << 20
"""Number of bytes of records that are held in memory together, unless one record has more."""
_GAP: Final = 4096
"""Gap in bytes between two records from which they are read separately."""


def no_positions() -> Ints:
    """Return an empty array of positions."""
    return np.empty(0, np.int64)


def numbered(values: Ints) -> tuple[Ints, Ints]:
    """Return the first index of each different value, sorted, and for each value its index there."""
    count = len(values)
    numbers, firsts, table = np.empty(count, np.int64), np.empty(count, np.int64), np.zeros(
        1 << (2 * count).bit_length(), np.int64)
    return firsts[: timer_units.number(values, table, numbers, firsts)], numbers


def grouped(values: Ints) -> tuple[Ints, Ints]:
    """Return a stable order that groups equal values, and the index at which each group starts."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    return order, np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))


def whole(sizes: Ints) -> int:
    """Return how many of the first records are held in memory together, at least one."""
    total = np.maximum(sizes, 0).cumsum(dtype=np.int64)
    return max(int(total.searchsorted(_WINDOW, "right")), 1)


def read_records(
    read: ReadLog, positions: Ints, sizes: Ints, *, on_error: Callable[[OSError], object]
) -> tuple[bytes, Ints]:
    """Return the bytes of records that are sorted by position, and the index at which each record starts.

    ``read`` is the read method of the store. An index below 0 means that the record could not be read. A record
    that reaches past the end of the bytes is incomplete. A read that fails is given to ``on_error``, and the other
    records of that read count as not read.
    """
    ends = positions + np.maximum(sizes, 0)
    cuts = ((positions[1:] - ends[:-1] > _GAP).nonzero()[0] + 1).tolist()
    starts, until = positions.tolist(), ends.tolist()
    at, parts, used, low = np.full(len(starts), -1, np.int64), list[bytes](), 0, 0
    for high in (*cuts, len(starts)):
        while low < high:  # one read per file of the log
            try:
                data = read(starts[low], max(until[low:high]) - starts[low])
            except OSError as error:
                on_error(error)
                low = high
                continue
            reached = bisect_left(starts, starts[low] + len(data), low, high)
            at[low:reached] = positions[low:reached] + (used - starts[low])
            parts.append(data)
            used += len(data)
            low = max(reached, low + 1)  # without data nothing is there
    return (parts[0] if len(parts) == 1 else b"".join(parts)), at
