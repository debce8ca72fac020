"""How late messages were put back."""

from __future__ import annotations

import bisect
from typing import Any, Final, final

import numpy as np

from tailrace.metrics import TIMER_LATENESS

__all__ = ["LATENESS_BUCKETS_MS", "Lateness"]

LATENESS_BUCKETS_MS: Final = TIMER_LATENESS.buckets
"""Upper ends of the lateness histogram; one bucket more has the rest."""


@final
class Lateness:
    """A histogram of put time minus due time."""

    __slots__ = ("counts", "sum_ms")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENESS_BUCKETS_MS) + 1)
        self.sum_ms = 0

    def as_dict(self) -> dict[str, Any]:
        """Counts by upper end, the last one being of all above, and the sum, ms."""
        return {"counts": list(self.counts), "sumMs": self.sum_ms}

    def add(self, late_ms: int) -> None:
        """Count one message."""
        self.counts[bisect.bisect_left(LATENESS_BUCKETS_MS, late_ms)] += 1
        self.sum_ms += late_ms

    def add_many(self, late_ms: Any) -> None:
        """Count as many messages as the array has numbers."""
        buckets = np.searchsorted(LATENESS_BUCKETS_MS, late_ms, "left")
        for bucket, count in enumerate(np.bincount(buckets).tolist()):
            self.counts[bucket] += count
        self.sum_ms += int(late_ms.sum())
