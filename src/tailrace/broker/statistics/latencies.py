"""How long requests hold the event loop, and how long calls of the gRPC endpoint take.

A timer of the event loop is due every `TICK_S` seconds. While a request holds the loop, the timer runs late.
Its lateness is counted for the metric ``LOOP_LAG`` and logged from `LONG_S` on.
"""

from __future__ import annotations

import asyncio
from typing import Final, final

from tailrace import events
from tailrace.logs import get_logger
from tailrace.metrics import LOOP_LAG, RPC_LATENCY, Histogram

__all__ = ["LONG_POLLING", "LoopLag", "RpcLatency"]

_log = get_logger(__name__)

TICK_S: Final = 0.02
LONG_S: Final = 1.0
"""Least lateness, in seconds, that is logged."""


@final
class LoopLag:
    """Counts ticks by their lateness, in seconds."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self.lateness = Histogram(LOOP_LAG)

    def start(self) -> None:
        """Start the next tick."""
        self._due = self._loop.time() + TICK_S
        self._timer = self._loop.call_at(self._due, self._tick)

    def stop(self) -> None:
        """Stop the ticks."""
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        late = max(0.0, self._loop.time() - self._due)
        self.lateness.add(late)
        if late >= LONG_S:
            events.EVENT_LOOP_WAS_HELD.log(_log, ms=int(late * 1000))
        self.start()


LONG_POLLING: Final = frozenset({"receive_message"})
"""Calls that wait for messages."""
Key = tuple[str, str]


@final
class RpcLatency:
    """Durations by call and status, and whether the endpoint serves."""

    def __init__(self) -> None:
        self.is_served = False
        self.calls: dict[Key, Histogram] = {}

    def observe(self, name: str, code: str, ms: float) -> None:
        """Count a call, such as ``send_message``, that ended with a status, such as ``ok``, after ``ms``."""
        took = self.calls.get((name, code))
        if took is None:
            took = self.calls[name, code] = Histogram(RPC_LATENCY)
        took.add(ms)
