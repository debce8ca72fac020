"""Types of the arrays that the timer services pass to each other and to kernels, and reads of many records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

__all__ = ["Ints", "Mask", "Units", "different", "grouped", "no_positions", "read_records", "whole"]

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


def different(values: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the different values, the index of the first of each, and their counts; fast if all are equal."""
    if len(values) and bool((values == values[0]).all()):
        return values[:1], np.zeros(1, np.int64), np.array([len(values)])
    return np.unique(values, return_index=True, return_counts=True)


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
    at, parts, used = np.full(len(positions), -1, np.int64), list[bytes](), 0
    for low, high in zip([0, *cuts], [*cuts, len(positions)], strict=True):
        try:
            for part in _run(read, positions[low:high], ends[low:high], at[low:high], used):
                parts.append(part)
                used += len(part)
        except OSError as error:
            on_error(error)
    return (parts[0] if len(parts) == 1 else b"".join(parts)), at


def _run(read: ReadLog, positions: Ints, ends: Ints, at: Ints, used: int) -> Iterator[bytes]:
    """Yield the bytes of neighbouring records, of one read per file of the log. ``used`` bytes are before them.

    ``at`` is set for the records of a read after the read.
    """
    low = 0
    while low < len(positions):
        start = int(positions[low])
        data = read(start, max(int(ends[low:].max()) - start, 0))
        reached = int(positions.searchsorted(start + len(data))) if data else low
        at[low:reached] = positions[low:reached] + (used - start)
        used += len(data)
        low = max(reached, low + 1)  # without data nothing is there
        yield data
