"""The threads of a broker: named pools, each with a bounded queue.

Each kind of work has a pool of its own, so that work of one kind, such as pages for a browser, never waits for work of
another kind, such as a configuration file on a slow disk. If the queue of a pool is full, further work is refused
(SYSTEM_BUSY), so that no client waits for an unknown time. ``/metrics`` shows the running, waiting and refused
work of each pool.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, Generic, TypeVar, final

from tailrace.errors import RefusalError
from tailrace.formats.remoting import ResponseCode

__all__ = ["BoundedExecutor", "Executors", "LoopMailbox"]

_Result = TypeVar("_Result")
LOOK_UPS_MAX: Final = 200
"""Look-ups that may wait, such as the end of a transaction by its id; each takes a few reads of the disk."""
FILES_MAX: Final = 100
"""Writes of state files that may wait. There are fewer state files, and one write of each at a time."""
BACKGROUND_MAX: Final = 1_000
"""Work of the broker itself, and parts of answers, that may wait."""


@final
class BoundedExecutor:
    """Runs functions in at most ``threads`` threads. Its methods are called on the event loop."""

    def __init__(self, name: str, threads: int, waiting_max: int) -> None:
        """``name`` is the label of its metrics. At most ``waiting_max`` functions wait for a thread."""
        self.name = name
        self.refused = 0
        """Number of functions that were refused."""
        self._threads, self._waiting_max = threads, waiting_max
        self._pool: ThreadPoolExecutor | None = None
        self._open: set[Future[Any]] = set()

    @property
    def running(self) -> int:
        """Number of functions that run."""
        return min(len(self._open), self._threads)

    @property
    def waiting(self) -> int:
        """Number of functions that wait for a thread."""
        return max(0, len(self._open) - self._threads)

    def run(self, function: Callable[..., _Result], *arguments: object) -> asyncio.Future[_Result]:
        """Run a function in a thread, and return a future with its result.

        Raises RefusalError (SYSTEM_BUSY) if too many wait, and RuntimeError if no thread can be started.
        """
        if len(self._open) >= self._threads + self._waiting_max:
            self.refused += 1
            raise RefusalError(
                ResponseCode.SYSTEM_BUSY, f"{self.waiting} pieces of work wait for the threads {self.name} already; "
                "try again later")
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix=self.name)
        future = self._pool.submit(function, *arguments)
        self._open.add(future)
        future.add_done_callback(self._open.discard)
        return asyncio.wrap_future(future)

    def stop(self) -> None:
        """End the threads after the functions that run; those that wait are dropped."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


@final
class Executors:
    """The pools of a broker."""

    def __init__(self) -> None:
        self.files = BoundedExecutor("state-files", 2, FILES_MAX)
        """Writes topics, groups, offsets and users."""
        self.cold_reads = BoundedExecutor("cold-reads", 2, 0)
        """Reads messages for pulls. `ColdReadService` has the queue, in which groups and connections take turns."""
        self.look_ups = BoundedExecutor("look-ups", 2, LOOK_UPS_MAX)
        """Finds single messages and offsets in the index and the queues."""
        self.transactions = BoundedExecutor("transactions", 2, BACKGROUND_MAX)
        """Reads half messages for their end and for checks; each of both has one task at a time."""
        self.background = BoundedExecutor("long-tables", 2, BACKGROUND_MAX)
        """Encodes and decodes long tables, and starts the broker."""
        self._workers: list[BoundedExecutor] = []

    def worker(self, name: str) -> BoundedExecutor:
        """Return a new pool with one thread for a `RequestWorker`, which has the queue."""
        made = BoundedExecutor(name, 1, 0)
        self._workers.append(made)
        return made

    def __iter__(self) -> Iterator[BoundedExecutor]:
        return itertools.chain(
            (self.files, self.cold_reads, self.look_ups, self.transactions, self.background), list(self._workers))

    def stop(self) -> None:
        """End all threads."""
        for executor in self:
            executor.stop()


T = TypeVar("T")


@final
class LoopMailbox(Generic[T]):
    """Takes items from any thread. ``take`` is called on the event loop with the items that have come, oldest first."""

    def __init__(self, loop: asyncio.AbstractEventLoop, take: Callable[[list[T]], None]) -> None:
        self._loop = loop
        self._take = take
        self._items: deque[T] = deque()
        self._is_scheduled = False

    def put(self, item: T) -> None:
        """Leave an item; any thread may call this. After the loop has been closed nothing happens."""
        self._items.append(item)
        if not self._is_scheduled:
            self._is_scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:  # the loop has been closed, and the connections with it
                self._items.clear()

    def _drain(self) -> None:
        self._is_scheduled = False  # before the items are taken: a later one is taken in this call or in the next
        items = []
        while self._items:
            items.append(self._items.popleft())
        self._take(items)
