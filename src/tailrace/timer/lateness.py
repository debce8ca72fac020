"""How late messages were put back."""

from __future__ import annotations

import bisect
from typing import Final, final

__all__ = ["LATENESS_BUCKETS_MS", "Lateness"]

LATENESS_BUCKETS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 150, 250, 500, 1000, 2000, 5000, 60_000)
"""Upper ends of the lateness histogram; one bucket more has the rest."""


@final
class Lateness:
    """A histogram of put time minus due time."""

    __slots__ = ("counts", "sum_ms")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENESS_BUCKETS_MS) + 1)
        self.sum_ms = 0

    def add(self, late_ms: int) -> None:
        """Count one message."""
        self.counts[bisect.bisect_left(LATENESS_BUCKETS_MS, late_ms)] += 1
        self.sum_ms += late_ms
