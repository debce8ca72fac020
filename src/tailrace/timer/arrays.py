"""Types of the arrays that the timer services pass to each other and to kernels, and reads of many records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from tailrace.formats.timerlog import TIMER_UNIT
from tailrace.kernels import timer_units

__all__ = [
    "Ints", "Mask", "Units", "counts", "grouped", "joined", "no_positions", "numbered", "read_records", "whole",
]

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


def numbered(values: Ints) -> tuple[Ints, Ints, Ints]:
    """Return for each different value its first index, sorted, and its count, and for each value its index there."""
    work, numbers = np.zeros((3, 1 << (2 * len(values)).bit_length()), np.int64), np.empty(len(values), np.int64)
    count = timer_units.number(values, work, numbers)
    return work[1, :count], work[2, :count], numbers


def counts(values: Ints) -> Iterator[tuple[int, int]]:
    """Yield each different value and how often it comes."""
    firsts, found, _ = numbered(values)
    return zip(values[firsts].tolist(), found.tolist(), strict=True)


def grouped(values: Ints) -> tuple[Ints, Ints]:
    """Return a stable order that groups equal values, and the index at which each group starts."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    return order, np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))


def joined(parts: Sequence[Units]) -> Units:
    """Return units of the timer log one after the other; NumPy would compare their types field by field."""
    return parts[0] if len(parts) == 1 else TIMER_UNIT.view(bytearray().join(part.data for part in parts))


def whole(sizes: Ints) -> int:
    """Return how many of the first records are held in memory together, at least one."""
    return int(timer_units.whole(sizes, _WINDOW))


def read_records(
    read: ReadLog, positions: Ints, sizes: Ints, at: Ints, *, on_error: Callable[[OSError], object]
) -> bytes:
    """Return the bytes of records that are sorted by position, and set ``at`` to the index at which each one starts.

    ``read`` is the read method of the store. An index below 0 means that the record could not be read. A record
    that reaches past the end of the bytes is incomplete. A read that fails is given to ``on_error``, and the other
    records of that read count as not read.
    """
    parts, used, low = list[bytes](), 0, 0
    at[:] = -1
    while low < len(positions):  # one read per extent, and per file of the log
        high, until = timer_units.extent(positions, sizes, low, _GAP)
        start = int(positions[low])
        try:
            data = read(start, int(until) - start)
        except OSError as error:
            on_error(error)
            low = high
            continue
        reached = timer_units.locate(positions, low, high, len(data), used, at)
        parts.append(data)
        used += len(data)
        low = max(reached, low + 1)  # without data nothing is there
    return b"".join(parts)
