"""Reads many records of the CommitLog with few reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from tailrace.timer.arrays import Ints

ReadLog = Callable[[int, int], bytes]

__all__ = ["read_records", "whole"]

_WINDOW: Final = 4 << 20
"""Number of bytes of records that are held in memory together, unless one record has more."""
_GAP: Final = 4096
"""Gap in bytes between two records from which they are read separately."""


def whole(sizes: Ints) -> int:
    """Return how many of the first records are held in memory together, at least one."""
    total = np.cumsum(np.maximum(sizes, 0), dtype=np.int64)
    return max(int(np.searchsorted(total, _WINDOW, "right")), 1)


def read_records(read: ReadLog, positions: Ints, sizes: Ints) -> tuple[bytes, Ints]:
    """Return the bytes of records that are sorted by position, and the index at which each record starts.

    ``read`` is the read method of the store. An index below 0 means that the record could not be read. A record
    that reaches past the end of the bytes is incomplete. Raises OSError.
    """
    ends = positions + np.maximum(sizes, 0)
    cuts = np.flatnonzero(positions[1:] - ends[:-1] > _GAP) + 1
    at, parts, used = np.empty(len(positions), np.int64), list[bytes](), 0
    for low, high in zip([0, *cuts.tolist()], [*cuts.tolist(), len(positions)], strict=True):
        used += _run(read, positions[low:high], ends[low:high], at[low:high], parts, used)
    return (parts[0] if len(parts) == 1 else b"".join(parts)), at


def _run(
    read: ReadLog, positions: Ints, ends: Ints, at: Ints, parts: list[bytes], used: int
) -> int:
    """Read neighbouring records with one read per file of the log. Return the number of bytes."""
    low, before = 0, used
    while low < len(positions):
        start = int(positions[low])
        data = read(start, max(int(ends[low:].max()) - start, 0))
        reached = int(np.searchsorted(positions, start + len(data), "left")) if data else low
        at[low:reached] = positions[low:reached] - start + used
        if reached == low:  # nothing is there
            at[low] = -1
            reached = low + 1
        parts.append(data)
        used += len(data)
        low = reached
    return used - before
