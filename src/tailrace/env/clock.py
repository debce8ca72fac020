"""Clocks, passed to the code that needs time."""

from __future__ import annotations

import time
from typing import Protocol, final

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """A wall clock, which may step back, and a monotonic clock, which never does."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970 by the wall clock."""
        ...

    def monotonic_ns(self) -> int:
        """Return nanoseconds since an arbitrary point; never steps back."""
        ...


@final
class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    def now_ms(self) -> int:
        """Milliseconds since 1970 by the wall clock."""
        return time.time_ns() // 1_000_000

    monotonic_ns = staticmethod(time.monotonic_ns)  # read twice per put, so without a Python frame
