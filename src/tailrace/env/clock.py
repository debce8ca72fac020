"""Time, as something that is passed in."""

from __future__ import annotations

import time
from typing import Protocol, final

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """Two clocks: the wall, which may step back, and one that never does."""

    def now_ms(self) -> int:
        """Milliseconds since 1970 by the wall clock."""
        ...

    def monotonic_ns(self) -> int:
        """Nanoseconds from an arbitrary point; never goes back."""
        ...


@final
class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    def now_ms(self) -> int:
        """Milliseconds since 1970 by the wall clock."""
        return time.time_ns() // 1_000_000

    monotonic_ns = staticmethod(time.monotonic_ns)  # asked twice a put: no call of Python's
