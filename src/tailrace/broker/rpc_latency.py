"""Durations of the calls of the gRPC endpoint, for ``/metrics``."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Final, final

from tailrace.metrics import RPC_LATENCY

__all__ = ["LONG_POLLING", "RpcLatency"]

LONG_POLLING: Final = frozenset({"receive_message"})
"""Calls that wait for messages."""
Key = tuple[str, str]


@final
class RpcLatency:
    """Durations by call and status. ``clients`` returns the number of clients; None without the endpoint."""

    def __init__(self) -> None:
        self.clients: Callable[[], int] | None = None
        self.counts: dict[Key, list[int]] = {}
        self.sums_ms: dict[Key, float] = {}

    def observe(self, name: str, code: str, ms: float) -> None:
        """Count a call, such as ``send_message``, that ended with a status, such as ``ok``, after ``ms``."""
        key = name, code
        counts = self.counts.get(key)
        if counts is None:
            counts = self.counts[key] = [0] * (len(RPC_LATENCY.buckets) + 1)
            self.sums_ms[key] = 0.0
        counts[bisect_left(RPC_LATENCY.buckets, ms)] += 1
        self.sums_ms[key] += ms
