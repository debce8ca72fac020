"""A scheduler whose services run only when a test runs a step by name."""

from __future__ import annotations

from typing import final

from tailrace.env.scheduler import Period, ServiceHandle, Step

__all__ = ["IdleService", "ManualScheduler"]


@final
class IdleService:
    """A service whose step is not run by the scheduler."""

    failures = 0

    def wake(self) -> None:
        """Do nothing."""

    def hurry(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""


@final
class ManualScheduler:
    """A Scheduler that runs nothing; ``steps`` are there by the names of their services."""

    def __init__(self) -> None:
        self.steps: dict[str, Step] = {}

    def every(self, name: str, period_ms: Period, step: Step, *, rest_ms: Period = 0) -> ServiceHandle:
        """Store ``step`` by its name; ``period_ms`` is ignored."""
        del period_ms
        self.steps[name] = step
        return IdleService()

    def stop_all(self) -> None:
        """Nothing runs; the steps stay."""
