"""Rate limit of log lines: at most one a minute for each reason, with the number of lines since the last one."""

from __future__ import annotations

from collections import Counter
from typing import Final, final

__all__ = ["RareLines"]

PERIOD_S: Final = 60.0


@final
class RareLines:
    """Counts lines by reason, and decides which of them are logged."""

    def __init__(self) -> None:
        self._logged_s: dict[str, float] = {}
        self._waiting: Counter[str] = Counter()

    def due(self, reason: str, now: float) -> int:
        """Count a line at a time (s). Return the number of lines since the last logged one; 0: do not log now."""
        self._waiting[reason] += 1
        if now - self._logged_s.get(reason, -PERIOD_S) < PERIOD_S:
            return 0
        self._logged_s[reason] = now
        return self._waiting.pop(reason)
