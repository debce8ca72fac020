"""Pulls whose messages are not in the page cache: read in threads, so that no other client waits.

A read from the disk takes milliseconds, and during a read on the event loop every client waits. So the
loop reads only what is cached. A pull that needs the disk waits here for one of two threads. The groups
take turns, and within a group its connections. Only the read happens in the thread: the answer is made
and written on the event loop. Other requests of the same connection are served in the meantime.

Memory is bounded:

- Requests that wait: `WAITING_MAX` in all, `WAITING_OF_CHANNEL_MAX` of one connection, and
  `WAITING_BYTES_MAX` bytes in all. One more is refused (SYSTEM_BUSY), and its client pulls again.
  They also count as held by their connection, see `tailrace.remoting.limits`.
- Results: one for each thread. A read starts only while the client reads its answers, and its result
  is written when it ends. So a client that stops reading has at most two more answers in memory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Final, final

from tailrace.broker.waiting import WaitingRequests, memory_of
from tailrace.errors import RefusalError
from tailrace.formats.remoting import RemotingCommand, ResponseCode
from tailrace.model import GetMessageResult
from tailrace.remoting import Channel

__all__ = ["ColdRead", "ColdReadService"]

THREADS: Final = 2
WAITING_MAX: Final = 10_000
"""Pulls that may wait, of all connections together."""
WAITING_OF_CHANNEL_MAX: Final = 1_000
"""Pulls of one connection that may wait; a client has one for each queue."""
WAITING_BYTES_MAX: Final = 64 << 20
"""Bytes of memory that the waiting pulls may take together."""


@dataclass(slots=True, eq=False)
class ColdRead:
    """A pull that waits for the disk. ``answer`` gets the result or the error, on the event loop."""

    channel: Channel
    request: RemotingCommand
    group: str
    read: Callable[[], GetMessageResult]
    answer: Callable[[GetMessageResult | Exception], None]
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = memory_of(self.request)


@final
class ColdReadService:
    """Runs reads in two threads. Everything else is on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._turns: dict[str, dict[Channel, deque[ColdRead]]] = {}
        self._waiting: dict[Channel, set[ColdRead]] = {}
        """Every pull that waits, also those of connections that are paused, which have no turn."""
        self._bounds = WaitingRequests(
            "pulls from the disk", WAITING_MAX, WAITING_OF_CHANNEL_MAX,
            WAITING_BYTES_MAX)
        self._reads: set[asyncio.Future[GetMessageResult]] = set()
        self._executor: ThreadPoolExecutor | None = None
        self._stopped = False
        self.count = 0
        """Number of reads that were made."""
        self.bytes = 0
        """Bytes of messages that they returned."""

    @property
    def pending(self) -> int:
        """Number of pulls that wait for a thread or are being read."""
        return self._bounds.count + len(self._reads)

    def submit(self, pull: ColdRead, delay_s: float = 0) -> None:
        """Queue a pull, after a delay if there is one.

        Raises RefusalError (SYSTEM_BUSY) if too many wait or the broker stops.
        """
        if pull.channel.closed:
            return  # its answer could not be sent
        if self._stopped:
            raise RefusalError(ResponseCode.SYSTEM_BUSY, "the broker is shutting down")
        self._bounds.add(pull.channel, pull.size)
        self._waiting.setdefault(pull.channel, set()).add(pull)
        pull.channel.hold(1, pull.size)
        if delay_s:
            self._loop.call_later(delay_s, self._take_turn, pull)
        else:
            self._take_turn(pull)

    def _take_turn(self, pull: ColdRead) -> None:
        """Give a pull its place among those of its group, unless it was given up while it was delayed."""
        if pull in self._waiting.get(pull.channel, ()):
            self._queue(pull.group, pull.channel, (pull,))
            self._start()

    def closed(self, channel: Channel) -> None:
        """Forget the pulls of a connection that has closed."""
        for pull in tuple(self._waiting.get(channel, ())):
            self._forget(pull)
            queues = self._turns.get(pull.group, {})  # without this pull if it is delayed
            if queues.pop(channel, None) is not None and not queues:
                del self._turns[pull.group]

    def release_all(self) -> list[ColdRead]:
        """Give up the pulls that wait, for shutting down, and take no more; reads under way go on."""
        self._stopped = True
        released = [pull for pulls in self._waiting.values() for pull in pulls]
        self._turns.clear()
        for pull in released:
            self._forget(pull)
        return released

    async def stop(self) -> None:
        """Wait for the reads that are under way."""
        self.release_all()
        while self._reads:
            await asyncio.wait(self._reads)
            await asyncio.sleep(0)  # their results are handed on
        if self._executor is not None:
            self._executor.shutdown()
            self._executor = None

    def _forget(self, pull: ColdRead) -> None:
        """Count a pull no more as one that waits."""
        mine = self._waiting[pull.channel]
        mine.remove(pull)
        if not mine:
            del self._waiting[pull.channel]
        self._bounds.remove(pull.channel, pull.size)
        pull.channel.hold(-1, -pull.size)

    def _queue(self, group: str, channel: Channel, pulls: Iterable[ColdRead]) -> None:
        self._turns.setdefault(group, {}).setdefault(channel, deque()).extend(pulls)

    def _start(self) -> None:
        """Give the free threads to the pulls whose turn it is."""
        while len(self._reads) < THREADS and self._turns:
            group = next(iter(self._turns))
            queues = self._turns.pop(group)
            channel = next(iter(queues))
            queue = queues.pop(channel)
            if queues:
                self._turns[group] = queues  # after the other groups
            # Messages are read only for a client that reads its answers: they take memory until then.
            channel.when_reading(partial(self._run, group, channel, queue))

    def _run(self, group: str, channel: Channel, queue: deque[ColdRead]) -> None:
        """Read for the first pull of a queue; the others wait for their next turn."""
        if self._stopped:
            return
        # Both threads may be taken when a client begins to read again.
        pull = queue.popleft() if len(self._reads) < THREADS else None
        if queue:
            self._queue(group, channel, queue)
        if pull is None:
            return
        self._forget(pull)
        if self._executor is None:
            self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="ColdRead")
        future = self._loop.run_in_executor(self._executor, pull.read)
        self._reads.add(future)
        future.add_done_callback(partial(self._answer, pull))

    def _answer(self, pull: ColdRead, future: asyncio.Future[GetMessageResult]) -> None:
        self._reads.discard(future)
        try:
            error = None if future.cancelled() else future.exception()
            if isinstance(error, Exception):
                pull.answer(error)
            elif error is None and not future.cancelled():
                result = future.result()
                self.count += 1
                self.bytes += len(result.data)
                if not pull.channel.closed:
                    pull.answer(result)
        finally:
            self._start()
