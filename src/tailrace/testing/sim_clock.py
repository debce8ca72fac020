"""A clock that moves only when the test moves it."""

from __future__ import annotations

from typing import final

__all__ = ["SimClock"]


@final
class SimClock:
    """Both clocks start at ``now_ms``; ``advance`` moves them, ``step_wall`` the wall alone."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._wall_ahead_ms = 0

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return self._now_ms + self._wall_ahead_ms

    def monotonic_ns(self) -> int:
        """Nanoseconds that only ``advance`` moves."""
        return self._now_ms * 1_000_000

    def advance(self, ms: int) -> None:
        """Let time pass."""
        self._now_ms += ms

    def step_wall(self, ms: int) -> None:
        """Set the wall clock ahead or back; the monotonic clock does not move."""
        self._wall_ahead_ms += ms
