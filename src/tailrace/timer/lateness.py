"""Lateness of delivered messages."""

from __future__ import annotations

import bisect
from typing import Any, Final, final

import numpy as np

from tailrace.metrics import TIMER_LATENESS
from tailrace.timer.arrays import Ints

__all__ = ["LATENESS_BUCKETS_MS", "Lateness"]

LATENESS_BUCKETS_MS: Final = TIMER_LATENESS.buckets
"""Upper bounds of the lateness histogram; one more bucket has the rest."""


@final
class Lateness:
    """A histogram of put time minus due time."""

    __slots__ = ("counts", "sum_ms")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENESS_BUCKETS_MS) + 1)
        self.sum_ms = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the counts by upper bound, with all above in the last one, and the sum, ms."""
        return {"counts": list(self.counts), "sumMs": self.sum_ms}

    def add(self, late_ms: int) -> None:
        """Count one message."""
        self.counts[bisect.bisect_left(LATENESS_BUCKETS_MS, late_ms)] += 1
        self.sum_ms += late_ms

    def add_many(self, late_ms: Ints) -> None:
        """Count one message for each number of the array."""
        buckets = np.searchsorted(LATENESS_BUCKETS_MS, late_ms, "left")
        for bucket, count in enumerate(np.bincount(buckets).tolist()):
            self.counts[bucket] += count
        self.sum_ms += int(late_ms.sum())
