"""Division of the log into ranges for tasks: pure functions over positions."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["plan_splits"]


def plan_splits(
    positions: np.ndarray[Any, np.dtype[np.int64]], until: int, split_bytes: int, min_partitions: int
) -> list[tuple[int, int]]:
    """Return ranges [start, end) that cover every position once.

    ``positions`` are the sorted starts of records; ``until`` is the end of the last record. Every range starts at one
    of the positions and has about ``split_bytes``. There are at least ``min_partitions`` ranges, or one for each
    record if there are fewer records.
    """
    if not len(positions):
        return []
    total = until - int(positions[0])
    count = max(-(-total // split_bytes), min_partitions)
    wanted = int(positions[0]) + np.arange(count, dtype=np.int64) * max(total // count, 1)
    places = np.unique(np.searchsorted(positions, wanted))
    starts = positions[places[places < len(positions)]].tolist()
    return list(zip(starts, [*starts[1:], until], strict=True))
