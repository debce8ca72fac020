"""Pulls whose messages are not in the page cache: read in threads, so that no other client waits.

A read from the disk takes milliseconds, and during a read on the event loop every client waits. So the
loop reads only what is cached. A pull that needs the disk waits here for one of two threads; the groups
take turns. Only the read happens in the thread: the answer is made and written on the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple, final

from tailrace.model import GetMessageResult
from tailrace.remoting import Channel

__all__ = ["ColdRead", "ColdReadService"]

THREADS: Final = 2
WAITING_MAX: Final = 10_000
"""Pulls that may wait, of all groups together."""


class ColdRead(NamedTuple):
    """A pull that waits for the disk. ``answer`` gets the result or the error, on the event loop."""

    channel: Channel
    read: Callable[[], GetMessageResult]
    answer: Callable[[GetMessageResult | Exception], None]


@final
class ColdReadService:
    """Runs reads in two threads, one group after the other. Everything else is on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[str, deque[ColdRead]] = {}
        self._queued = 0
        self._running = 0
        self._executor: ThreadPoolExecutor | None = None
        self.count = 0
        """Number of reads that were made."""
        self.bytes = 0
        """Bytes of messages that they returned."""

    @property
    def pending(self) -> int:
        """Number of pulls that wait for a thread or are being read."""
        return self._queued + self._running

    def submit(self, group: str, pull: ColdRead) -> bool:
        """Queue a pull of a group. Return False if too many wait."""
        if self.pending >= WAITING_MAX:
            return False
        pull.channel.hold(1)
        self._enqueue(group, pull)
        self._start()
        return True

    def stop(self) -> None:
        """Drop the pulls that wait; their connections are being closed."""
        self._waiting.clear()
        self._queued = 0
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None

    def _enqueue(self, group: str, pull: ColdRead) -> None:
        self._waiting.setdefault(group, deque()).append(pull)
        self._queued += 1

    def _start(self) -> None:
        while self._running < THREADS and self._waiting:
            group = next(iter(self._waiting))
            queue = self._waiting.pop(group)
            pull = queue.popleft()
            self._queued -= 1
            if queue:
                self._waiting[group] = queue  # after the other groups
            # Messages are read only for a client that reads its answers: they take memory until then.
            pull.channel.when_reading(partial(self._run, group, pull))

    def _run(self, group: str, pull: ColdRead) -> None:
        if self._running >= THREADS:  # the client began to read again when both threads were taken
            self._enqueue(group, pull)
            return
        if self._executor is None:
            self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="ColdRead")
        self._running += 1
        future = self._loop.run_in_executor(self._executor, pull.read)
        future.add_done_callback(partial(self._answer, pull))

    def _answer(self, pull: ColdRead, future: asyncio.Future[GetMessageResult]) -> None:
        self._running -= 1
        pull.channel.hold(-1)
        if not (future.cancelled() or pull.channel.closed):
            error = future.exception()
            if isinstance(error, Exception):
                pull.answer(error)
            elif error is None:
                result = future.result()
                self.count += 1
                self.bytes += len(result.data)
                pull.answer(result)
        self._start()
