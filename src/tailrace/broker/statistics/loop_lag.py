"""Measurement of how long requests hold the event loop.

A timer of the event loop is due every `TICK_S` seconds. While a request holds the loop, the timer runs late.
Its lateness is counted for the metric ``LOOP_LAG`` and logged from `LONG_S` on.
"""

from __future__ import annotations

import asyncio
from typing import Final, final

from tailrace import events
from tailrace.logs import get_logger
from tailrace.metrics import LOOP_LAG, Histogram

__all__ = ["LoopLag"]

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
