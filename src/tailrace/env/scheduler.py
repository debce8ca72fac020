"""Services as steps: the scheduler decides when a step runs, and continues after a step has raised."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Protocol, final

from tailrace import events
from tailrace.env.shortage import is_disk_full, is_shortage
from tailrace.errors import FatalStorageError, LockLostError
from tailrace.logs import get_logger

__all__ = ["Period", "Scheduler", "ServiceHandle", "Step", "ThreadScheduler", "period_of"]

_log = get_logger(__name__)

Step = Callable[[], bool | None]
"""One piece of work. If it returns True it is run again without a wait."""
Period = int | Callable[[], int]
"""Milliseconds between steps, or a function that returns them before each wait."""


def period_of(period_ms: Period) -> int:
    """Return the milliseconds until the next step."""
    return period_ms if isinstance(period_ms, int) else period_ms()


class ServiceHandle(Protocol):
    """A service that was handed to a scheduler."""

    @property
    def failures(self) -> int:
        """Number of its steps that have raised."""
        ...

    def wake(self) -> None:
        """Run the step soon, without waiting for the period."""
        ...

    def hurry(self) -> None:
        """Run the step now, without waiting for the period or the rest."""
        ...

    def stop(self) -> None:
        """Run no further step. Return after a running step has ended."""
        ...


class Scheduler(Protocol):
    """Runs steps. A step that raises is logged by name, counted, and run again at the next time."""

    def every(self, name: str, period_ms: Period, step: Step, *, rest_ms: Period = 0) -> ServiceHandle:
        """Run ``step`` every ``period_ms``, and when it is woken.

        If a service is woken within ``rest_ms`` after its last step, it runs when ``rest_ms`` are over, so that
        under load one step does the work of many. A scheduler without threads may ignore ``rest_ms``.
        """
        ...

    def stop_all(self) -> None:
        """Stop every service, last started first."""
        ...


def _release(lock: threading.Lock) -> None:
    """Release a lock unless it is free."""
    if lock.locked():
        with contextlib.suppress(RuntimeError):  # another thread has released it since
            lock.release()


@final
class _ThreadService:
    def __init__(self, name: str, period_ms: Period, step: Step, rest_ms: Period = 0) -> None:
        self.name = name
        self.failures = 0
        self._rest_ms = rest_ms
        self._period_ms = period_ms
        self._step = step
        # They are held until wake, hurry or stop releases them. An Event costs several times as much.
        self._asleep, self._resting, self._running = threading.Lock(), threading.Lock(), threading.Lock()
        for lock in (self._asleep, self._resting, self._running):
            lock.acquire()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        again = short = False
        ended = 0.0
        while True:
            if not again and self._asleep.acquire(timeout=period_of(self._period_ms) / 1000) and self._rest_ms:
                rest_s = ended + period_of(self._rest_ms) / 1000 - time.monotonic()
                if rest_s > 0:
                    self._resting.acquire(timeout=rest_s)
                self._asleep.acquire(blocking=False)
            if not self._running.locked():
                return
            try:
                again = bool(self._step())
                short = False
                if self._rest_ms:
                    ended = time.monotonic()
            except LockLostError:
                self.failures += 1  # the service that checks the lock has logged it
                return
            except FatalStorageError:
                # The step has already closed the store for writing; nothing is left to retry.
                self.failures += 1
                events.SERVICE_STOPPED_AFTER_A_FAILED_SYNC.log(_log, name=self.name)
                return
            except Exception as error:  # noqa: BLE001 - the outermost step of a service: log, count, continue
                self.failures += 1
                again = False
                if is_disk_full(error) or is_shortage(error):  # expected until the shortage ends: no traceback
                    if not short:
                        self._log_shortage(error)
                    short = True
                    continue
                events.SERVICE_STEP_FAILED.log(_log, name=self.name, failures=self.failures, exc_info=True)

    def _log_shortage(self, error: Exception) -> None:
        if is_disk_full(error):
            events.SERVICE_WAITS_FOR_ROOM_ON_THE_DISK.log(_log, name=self.name, cause=error)
        else:
            events.SERVICE_WAITS_FOR_DESCRIPTORS_OR_MEMORY.log(_log, name=self.name, cause=error)

    def wake(self) -> None:
        _release(self._asleep)

    def hurry(self) -> None:
        _release(self._resting)
        _release(self._asleep)

    def stop(self) -> None:
        _release(self._running)
        self.hurry()
        if threading.current_thread() is not self._thread:
            self._thread.join()


@final
class ThreadScheduler:
    """A thread for each service."""

    def __init__(self) -> None:
        self._services: list[_ThreadService] = []

    def every(self, name: str, period_ms: Period, step: Step, *, rest_ms: Period = 0) -> ServiceHandle:
        """Run ``step`` every ``period_ms`` in a thread of its own, and when it is woken."""
        service = _ThreadService(name, period_ms, step, rest_ms)
        self._services.append(service)
        return service

    def stop_all(self) -> None:
        """Stop every service, last started first."""
        while True:
            try:
                service = self._services.pop()
            except IndexError:  # two threads may call this at the same time
                return
            service.stop()
