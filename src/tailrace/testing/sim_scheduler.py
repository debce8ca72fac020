"""A scheduler that runs all services in one thread, in an order from a seed, by a simulated clock."""

from __future__ import annotations

from typing import Final, final

from tailrace import events
from tailrace.env.entropy import Entropy
from tailrace.env.scheduler import Period, ServiceHandle, Step, period_of
from tailrace.errors import FatalStorageError
from tailrace.logs import get_logger
from tailrace.testing.sim_clock import SimClock

__all__ = ["SimScheduler"]

_log = get_logger(__name__)
_MS: Final = 1_000_000


@final
class _SimService:
    def __init__(self, name: str, period_ms: Period, step: Step, now_ms: int) -> None:
        self.name = name
        self.failures = 0
        self.due_ms = now_ms + period_of(period_ms)
        self._period_ms = period_ms
        self._step = step
        self._woken = False
        self._stopped = False

    def is_ready(self, now_ms: int) -> bool:
        return not self._stopped and (self._woken or self.due_ms <= now_ms)

    @property
    def stopped(self) -> bool:
        return self._stopped

    def run(self, now_ms: int) -> None:
        self._woken = False
        again = False
        try:
            again = bool(self._step())
        except FatalStorageError:
            self.failures += 1
            self._stopped = True
            events.SERVICE_STOPPED_AFTER_A_FAILED_SYNC.log(_log, name=self.name)
        except Exception:  # noqa: BLE001 - as ThreadScheduler: log, count, continue
            self.failures += 1
            events.SERVICE_STEP_FAILED.log(_log, name=self.name, failures=self.failures, exc_info=True)
        self.due_ms = now_ms if again else now_ms + period_of(self._period_ms)

    def wake(self) -> None:
        self._woken = True

    def hurry(self) -> None:
        self.wake()

    def stop(self) -> None:
        self._stopped = True


@final
class SimScheduler:
    """A Scheduler whose steps run only inside ``run_one`` and ``run``, never two at a time.

    A step that raises is counted and run again at its next time, as by ThreadScheduler;
    SimulatedCrash is raised to the caller.
    """

    def __init__(self, clock: SimClock, entropy: Entropy) -> None:
        self._clock = clock
        self._entropy = entropy
        self._services: list[_SimService] = []

    def every(self, name: str, period_ms: Period, step: Step, *, rest_ms: Period = 0) -> ServiceHandle:
        """Run ``step`` every ``period_ms`` of the clock, and when it is woken."""
        service = _SimService(name, period_ms, step, self._now_ms())
        self._services.append(service)
        return service

    def stop_all(self) -> None:
        """Run no step of any service any more."""
        while self._services:
            self._services.pop().stop()

    def failures(self) -> dict[str, int]:
        """Services whose steps have raised, and how often."""
        return {service.name: service.failures for service in self._services if service.failures}

    def run_one(self) -> str | None:
        """Run a step of one of the services that are due. Return its name, or None if no service is due."""
        now_ms = self._now_ms()
        ready = [service for service in self._services if service.is_ready(now_ms)]
        if not ready:
            return None
        service = ready[self._entropy.randrange(len(ready))]
        service.run(now_ms)
        return service.name

    def run(self, ms: int, most: int = 1 << 60) -> int:
        """Let time pass and run steps that become due, at most ``most``. Return the number of steps."""
        until = self._now_ms() + ms
        count = 0
        while count < most:
            if self.run_one() is not None:
                count += 1
                continue
            now_ms = self._now_ms()
            if now_ms >= until:
                break
            due = [service.due_ms for service in self._services if not service.stopped]
            self._clock.advance(min([until, *due]) - now_ms)
        return count

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // _MS
