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
        self._executor: ThreadPoolExecutor | None = None
        self._running = 0
        self.pending = 0
        """Number of pulls that wait or are being read."""
        self.count = 0
        """Number of reads that were made."""
        self.bytes = 0
        """Bytes of messages that they returned."""

    def submit(self, group: str, pull: ColdRead) -> bool:
        """Queue a pull of a group. Return False if too many wait."""
        if self.pending >= WAITING_MAX:
            return False
        self._waiting.setdefault(group, deque()).append(pull)
        self.pending += 1
        pull.channel.hold(1)
        self._start()
        return True

    def stop(self) -> None:
        """Drop the pulls that wait; their connections are being closed."""
        self._waiting.clear()
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None

    def _start(self) -> None:
        while self._running < THREADS and self._waiting:
            group = next(iter(self._waiting))
            queue = self._waiting.pop(group)
            pull = queue.popleft()
            if queue:
                self._waiting[group] = queue  # after the other groups
            if pull.channel.closed:
                self._done(pull)
                continue
            if self._executor is None:
                self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="ColdRead")
            self._running += 1
            future = self._loop.run_in_executor(self._executor, pull.read)
            future.add_done_callback(lambda done, pull=pull: self._read(pull, done))  # type: ignore[misc]

    def _read(self, pull: ColdRead, future: asyncio.Future[GetMessageResult]) -> None:
        self._running -= 1
        self._done(pull)
        if not future.cancelled():
            error = future.exception()
            if isinstance(error, Exception):
                pull.channel.when_reading(lambda: pull.answer(error))
            elif error is None:
                result = future.result()
                self.count += 1
                self.bytes += len(result.data)
                pull.channel.when_reading(lambda: pull.answer(result))
        self._start()

    def _done(self, pull: ColdRead) -> None:
        self.pending -= 1
        pull.channel.hold(-1)
