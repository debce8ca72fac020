"""Work that several threads share; its results come in the order of the tasks."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Final, Generic, TypeVar, final

__all__ = ["HELPERS", "in_order"]

_T = TypeVar("_T")
_R = TypeVar("_R")
_PROCESSORS: Final = (
    len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
HELPERS: Final = max(min(_PROCESSORS, 4) - 1, 1)
"""Threads to help with work in kernels; also with one processor, where they read meanwhile."""


def in_order(
    work: Callable[[_T], _R], tasks: Iterator[_T], helpers: int, ahead: int
) -> Iterator[_R]:
    """``work`` of each task. So many threads help; who asks works, too, while the next result is not there.

    At most ``ahead`` tasks are begun whose result was not asked for. What ``tasks`` or ``work`` raises
    is raised here, in its place; no thread is left when this ends, also when it is not read to the end.
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
    """Tasks, and the jobs that were made of them: one for each whose result was not asked for."""

    def __init__(self, work: Callable[[_T], _R], tasks: Iterator[_T], ahead: int) -> None:
        self._work = work
        self._tasks = tasks
        self._ahead = ahead
        self._changed = threading.Condition()
        self._jobs: deque[Future[_R]] = deque()
        self._is_over = False

    def _begin(self) -> Callable[[], None] | None:
        """Take on the next task, if there is one and room for it; the lock is held."""
        if self._is_over or len(self._jobs) >= self._ahead:
            return None
        job: Future[_R] = Future()
        try:
            task = next(self._tasks)
        except StopIteration:
            self._is_over = True
            return None
        except BaseException as error:  # noqa: BLE001 - handed over to who asks
            self._is_over = True
            self._jobs.append(job)
            job.set_exception(error)
            return lambda: None  # it is done
        self._jobs.append(job)
        return lambda: self._do(job, task)

    def _do(self, job: Future[_R], task: _T) -> None:
        try:
            job.set_result(self._work(task))
        except BaseException as error:  # noqa: BLE001 - handed over to who asks
            job.set_exception(error)
        with self._changed:
            self._changed.notify_all()

    def help(self) -> None:
        """Work until the last task is begun."""
        while True:
            with self._changed:
                while (job := self._begin()) is None:
                    if self._is_over:
                        self._changed.notify_all()
                        return
                    self._changed.wait()
            job()

    def next_done(self) -> Future[_R] | None:
        """The next job, once it is done; None behind the last one."""
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
        """Begin no more tasks."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
