"""Durations of the calls of the gRPC endpoint, for ``/metrics``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from tailrace.metrics import RPC_LATENCY, Histogram

__all__ = ["LONG_POLLING", "RpcLatency"]

LONG_POLLING: Final = frozenset({"receive_message"})
"""Calls that wait for messages."""
Key = tuple[str, str]


@final
class RpcLatency:
    """Durations by call and status. ``clients`` returns the number of clients; None without the endpoint."""

    def __init__(self) -> None:
        self.clients: Callable[[], int] | None = None
        self.calls: dict[Key, Histogram] = {}

    def observe(self, name: str, code: str, ms: float) -> None:
        """Count a call, such as ``send_message``, that ended with a status, such as ``ok``, after ``ms``."""
        took = self.calls.get((name, code))
        if took is None:
            took = self.calls[name, code] = Histogram(RPC_LATENCY)
        took.add(ms)
