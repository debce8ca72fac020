"""Work in other threads while the caller uses what is ready."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Final, TypeVar, cast

__all__ = ["HELPERS", "as_finished", "in_background", "in_order", "read_ahead"]

_T = TypeVar("_T")
_R = TypeVar("_R")
_PROCESSORS: Final = (
    len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
HELPERS: Final = max(min(_PROCESSORS, 4) - 1, 1)
"""Number of threads for work in kernels. Even with one processor there is one: it reads while the caller computes."""


def read_ahead(items: Iterator[_T], depth: int = 1) -> Generator[_T, None, None]:
    """Yield ``items``. Another thread makes up to ``depth`` of them before they are consumed.

    An error while an item is made is raised here. The thread ends when the generator ends or is closed.
    """
    end = object()
    with ThreadPoolExecutor(1, "read-ahead") as maker:
        made = deque(maker.submit(next, items, end) for _ in range(depth))
        try:
            while (item := made.popleft().result()) is not end:
                made.append(maker.submit(next, items, end))
                yield cast("_T", item)
        finally:
            maker.shutdown(wait=False, cancel_futures=True)


def in_order(work: Callable[[_T], _R], tasks: Iterator[_T], helpers: int, ahead: int) -> Iterator[_R]:
    """Yield the result of ``work`` for each task, in the order of the tasks.

    One thread takes the tasks, which may read from the disk. ``helpers`` others compute the results, and one more
    computes in the place of the caller. At most ``ahead`` results are computed before they are consumed. An error
    of ``tasks`` or ``work`` is raised here, in the place of its result. When the generator ends or is closed, its
    threads have ended.
    """
    end = object()

    def result_of(task: Future[_T | object]) -> _R | object:
        return end if (value := task.result()) is end else work(cast("_T", value))

    with ThreadPoolExecutor(1, "read-ahead") as taker, ThreadPoolExecutor(helpers + 1, "in-order") as pool:
        jobs: deque[Future[_R | object]] = deque()
        try:
            while True:
                while len(jobs) < ahead:
                    jobs.append(pool.submit(result_of, taker.submit(next, tasks, end)))
                if (result := jobs.popleft().result()) is end:
                    return
                yield cast("_R", result)
        finally:
            taker.shutdown(wait=False, cancel_futures=True)
            pool.shutdown(wait=False, cancel_futures=True)


def as_finished(
    work: Callable[[_T], _R], tasks: Iterable[_T], at_once: int, cancel: Callable[[], object] = lambda: None
) -> Generator[_R, None, None]:
    """Yield the result of ``work`` for each task, as soon as it is there. ``at_once`` threads work.

    The caller's thread takes the tasks, each when a thread is free for it, so at most ``at_once`` tasks and results are
    in memory. An error of ``tasks`` or ``work`` is raised here. When the generator ends, its threads have ended. If
    it ends early, it calls ``cancel`` first, which may end the work of the threads.
    """
    running: set[Future[_R]] = set()
    with ThreadPoolExecutor(at_once, "as-finished") as pool:
        try:
            for task in tasks:
                running.add(pool.submit(work, task))
                while len(running) >= at_once:
                    yield _first_of(running).result()
            while running:
                yield _first_of(running).result()
        finally:
            for one in running:
                one.cancel()
            if running:
                cancel()


def _first_of(running: set[Future[_R]]) -> Future[_R]:
    """Take a future that has its result out of ``running``; wait for one if no future has."""
    found = next(iter(wait(running, return_when=FIRST_COMPLETED).done))
    running.remove(found)
    return found


def in_background(work: Callable[[], None]) -> Callable[[], None]:
    """Start ``work`` in another thread. Return a function that waits for it and raises its error."""
    pool = ThreadPoolExecutor(1, "background")
    done = pool.submit(work)

    def wait() -> None:
        pool.shutdown()
        done.result()

    return wait
