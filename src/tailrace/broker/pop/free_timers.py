"""Timers of queues that a pop in order blocks until its messages are visible again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import final

from tailrace.env.clock import Clock

__all__ = ["FreeTimers"]


@final
class FreeTimers:
    """Calls ``on_free`` with topic, group and queue id at the time that was set last. Runs on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop, self._clock = loop, clock
        self.on_free: list[Callable[[str, str, int], None]] = []
        self._timers: dict[tuple[str, str, int], asyncio.TimerHandle] = {}
        self._stopped = False

    def set(self, topic: str, group: str, queue_id: int, at_ms: int) -> None:
        """Set the time, in ms, of a queue and a group."""
        key = topic, group, queue_id
        if (before := self._timers.pop(key, None)) is not None:
            before.cancel()
        if not self._stopped:
            self._timers[key] = self._loop.call_later(max(0, at_ms - self._clock.now_ms()) / 1000, self._end, key)

    def _end(self, key: tuple[str, str, int]) -> None:
        self._timers.pop(key, None)
        for function in self.on_free:
            function(*key)

    def stop(self) -> None:
        """Call nothing any more."""
        self._stopped = True
        for timer in self._timers.values():
            timer.cancel()
