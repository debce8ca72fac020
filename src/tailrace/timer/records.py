"""Many records of the CommitLog in few reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

ReadLog = Callable[[int, int], bytes]

__all__ = ["read_records", "whole"]

_WINDOW: Final = 4 << 20
"""Bytes of records that are held at once, unless one alone has more."""
_GAP: Final = 4096
"""Bytes between two records from which on they are read apart."""


def whole(sizes: Any) -> int:
    """How many of the first records are held at once, one at least."""
    total = np.cumsum(np.maximum(sizes, 0), dtype=np.int64)
    return max(int(np.searchsorted(total, _WINDOW, "right")), 1)


def read_records(read: ReadLog, positions: Any, sizes: Any) -> tuple[bytes, Any]:
    """The bytes of records in the order of their positions, and where in them each one begins.

    ``read`` is that of the store. A place below 0 is one that could not be read, and behind the end is
    one that is not whole. Raises OSError.
    """
    ends = positions + np.maximum(sizes, 0)
    cuts = np.flatnonzero(positions[1:] - ends[:-1] > _GAP) + 1
    at, parts, used = np.empty(len(positions), np.int64), list[bytes](), 0
    for low, high in zip([0, *cuts.tolist()], [*cuts.tolist(), len(positions)], strict=True):
        used += _run(read, positions[low:high], ends[low:high], at[low:high], parts, used)
    return (parts[0] if len(parts) == 1 else b"".join(parts)), at


def _run(
    read: ReadLog, positions: Any, ends: Any, at: Any, parts: list[bytes], used: int
) -> int:
    """Read neighbours, in one go for each file of the log; the bytes that were read."""
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
