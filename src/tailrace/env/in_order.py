"""Work that several threads share, with results in the order of the tasks."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Final, Generic, TypeVar, cast, final

__all__ = ["HELPERS", "in_order"]

_T = TypeVar("_T")
_R = TypeVar("_R")
_PROCESSORS: Final = (
    len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
HELPERS: Final = max(min(_PROCESSORS, 4) - 1, 1)
"""Number of threads for work in kernels. Even with one processor there is one: it reads while the caller computes."""


def in_order(
    work: Callable[[_T], _R], tasks: Iterator[_T], helpers: int, ahead: int
) -> Iterator[_R]:
    """Yield the result of ``work`` for each task, in the order of the tasks.

    ``helpers`` threads compute results. The consuming thread computes one itself when the next result is
    not ready. At most ``ahead`` results are computed before they are consumed. An error of ``tasks`` or
    ``work`` is raised here, in the place of its result. When the generator ends or is closed, its threads
    have ended.
    """
    shared = _Shared(work, tasks, ahead)
    threads = [
        threading.Thread(target=shared.help, name="in-order", daemon=True) for _ in range(helpers)]
    for thread in threads:
        thread.start()
    try:
        while (job := shared.next_done()) is not None:
            yield job.result()
    finally:
        shared.stop()
        for thread in threads:
            thread.join()


@final
class _Shared(Generic[_T, _R]):
    """The tasks, and one job for each task that was started and whose result was not consumed."""

    def __init__(self, work: Callable[[_T], _R], tasks: Iterator[_T], ahead: int) -> None:
        self._work = work
        self._tasks = tasks
        self._ahead = ahead
        self._changed = threading.Condition()
        self._jobs: deque[Future[_R]] = deque()
        self._is_over = False
        self._is_taking = False

    def _begin(self) -> Callable[[], None] | None:
        """Start a job if fewer than ``ahead`` are open; the caller holds the lock and runs the result without it.

        One thread at a time takes a task, because the tasks are an iterator, and because the jobs are in their order.
        """
        if self._is_over or self._is_taking or len(self._jobs) >= self._ahead:
            return None
        self._is_taking = True
        job: Future[_R] = Future()
        self._jobs.append(job)
        return lambda: self._take_and_do(job)

    def _take_and_do(self, job: Future[_R]) -> None:
        """Take the next task, which may read from the disk, then do it."""
        error: BaseException | None = None
        task: _T | None = None
        try:
            task = next(self._tasks)
        except BaseException as raised:  # noqa: BLE001 - raised in the consuming thread
            error = raised
        with self._changed:
            stopped, self._is_taking = self._is_over, False
            if error is not None:
                self._is_over = True
            if isinstance(error, StopIteration):
                self._jobs.remove(job)
            elif error is not None:
                job.set_exception(error)
            self._changed.notify_all()
        if error is None and not stopped:
            self._do(job, cast("_T", task))

    def _do(self, job: Future[_R], task: _T) -> None:
        try:
            job.set_result(self._work(task))
        except BaseException as error:  # noqa: BLE001 - raised in the consuming thread
            job.set_exception(error)
        with self._changed:
            self._changed.notify_all()

    def help(self) -> None:
        """Run tasks until the last one is started."""
        while True:
            with self._changed:
                while (job := self._begin()) is None:
                    if self._is_over:
                        self._changed.notify_all()
                        return
                    self._changed.wait()
            job()

    def next_done(self) -> Future[_R] | None:
        """Return the next job when it is done, or None after the last one."""
        while True:
            with self._changed:
                if self._jobs and self._jobs[0].done():
                    self._changed.notify_all()
                    return self._jobs.popleft()
                job = self._begin()
                if job is None:
                    if not self._jobs:
                        return None
                    self._changed.wait()
                    continue
            job()

    def stop(self) -> None:
        """Start no more tasks."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
