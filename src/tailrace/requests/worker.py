"""Requests that wait for a thread: those whose work grows with their input or the store, and reads from the disk.

A read from the disk takes milliseconds. If the event loop made it, every client would wait. So the event loop reads
only messages that are in the page cache, and a pull of other messages waits here for one of two threads. Other work
that is long has one thread. The groups take turns (the consumer groups of pulls), and within a group its connections.
The thread only works: the event loop makes the answer and writes it. Other requests of the same connection are served
in the meantime.

Memory is bounded:

- Requests that wait are counted (`WaitingRequests`). A further request is refused (SYSTEM_BUSY).
- Results: one for each thread. Work starts only while the client reads its answers, and the result is written when
  the work ends. So a client that stops reading has at most one more answer of each thread in memory.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar, final

from tailrace.env.supervision import caught, failed
from tailrace.errors import RefusalError
from tailrace.formats.remoting import RemotingCommand, ResponseCode
from tailrace.formats.requests.table import ADMINISTRATION
from tailrace.model import GetMessageResult
from tailrace.remoting import Channel
from tailrace.requests.executors import BoundedExecutor
from tailrace.requests.reply import Answer, Reply, Serve, Waiters, WaitingRequests, as_it_is

__all__ = ["RequestWorker", "cold_reads"]

_Result = TypeVar("_Result")
_NAME: Final = "RequestWorker"
WAITING_MAX: Final = 2_000
"""Number of requests of all connections that may wait for the thread of a worker."""
WAITING_OF_CHANNEL_MAX: Final = 200
"""Number of requests of one connection that may wait."""
WAITING_BYTES_MAX: Final = 64 << 20
"""Bytes of memory that the waiting requests may take together."""
READ_THREADS: Final = 2
READS_MAX: Final = 10_000
"""Number of pulls of all connections that may wait for the disk."""
READS_OF_CHANNEL_MAX: Final = 1_000
"""Number of pulls of one connection that may wait for the disk; a client has one for each queue."""


@dataclass(slots=True, eq=False)
class _Work:
    """Work that waits. ``work`` runs in a thread, ``then`` makes the answer of its result on the event loop."""

    reply: Reply
    group: str
    work: Callable[[], Any]
    then: Callable[[Any], object]


@final
class RequestWorker(Waiters[_Work]):
    """Runs work in threads. All methods are called on the event loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop | None, executor: BoundedExecutor | None = None, threads: int = 1,
        bounds: WaitingRequests | None = None, *, held: bool = False,
    ) -> None:
        """With ``held`` the requests that wait also count as held by their connection."""
        super().__init__(
            bounds or WaitingRequests("requests", WAITING_MAX, WAITING_OF_CHANNEL_MAX, WAITING_BYTES_MAX), held=held)
        self._loop = loop
        self._executor = executor or BoundedExecutor("requests", threads, 0)
        self._threads = threads
        self._turns: dict[str, dict[Channel, deque[_Work]]] = {}
        """Work by group and connection, but what is delayed or whose client does not read."""
        self._running: set[asyncio.Future[Any]] = set()
        self._stopped = False
        self.count = 0
        """Number of works that have ended without an error."""
        self.bytes = 0
        """Bytes of messages that they returned."""

    @property
    def pending(self) -> int:
        """Number of requests that wait for a thread or for the end of their work."""
        return len(self) + len(self._running)

    def in_thread(self, serve: Serve) -> Serve:
        """Return a processor that queues requests, so that ``serve`` runs in the thread of this worker.

        If the event loop does not run, it serves in the same call, because no other request waits then.
        """

        @functools.wraps(serve)
        def queue(channel: Channel, request: RemotingCommand) -> Answer:
            if self._loop is None or not self._loop.is_running():
                return serve(channel, request)
            self.submit(Reply(channel, request), partial(serve, channel, request), as_it_is)
            return None

        return queue

    def submit(
        self, reply: Reply, work: Callable[[], _Result], then: Callable[[_Result], object], group: str = "",
        delay_s: float = 0,
    ) -> None:
        """Queue ``work``, after a delay of ``delay_s`` seconds, and answer with what ``then`` makes of its result.

        Raises RefusalError (SYSTEM_BUSY) if too many wait or the broker stops.
        """
        channel = reply.channel
        if channel.closed:  # its answer could not be sent
            reply.drop()
            return
        if self._stopped:
            raise RefusalError(ResponseCode.SYSTEM_BUSY, "the broker is shutting down")
        one = _Work(reply, group, work, then)
        self._add(one)
        if delay_s:
            assert self._loop is not None
            self._loop.call_later(delay_s, self._take_turn, one)
        else:
            self._take_turn(one)

    def _take_turn(self, one: _Work) -> None:
        """Queue work after the others of its connection, unless it was dropped while it was delayed."""
        if one in self._of_channel.get(one.reply.channel, ()):
            self._queue(one.group, one.reply.channel, (one,))
            self._start()

    def _remove(self, entry: _Work) -> None:
        self._forget(entry)
        queues = self._turns.get(entry.group, {})
        queue = queues.get(entry.reply.channel)
        if queue is not None and entry in queue:  # it is not delayed, and its client reads
            queue.remove(entry)
            if not queue:
                del queues[entry.reply.channel]
            if not queues:
                del self._turns[entry.group]

    def release_all(self) -> list[Reply]:
        """Drop the work that waits and return its replies, and refuse further work, for a stop."""
        self._stopped = True
        return super().release_all()

    async def stop(self) -> None:
        """Drop the work that waits, and wait for what is running."""
        self.release_all()
        while self._running:
            await asyncio.wait(self._running)
            await asyncio.sleep(0)  # let the event loop call `_answer`
        self._executor.stop()

    def _forget(self, one: _Work) -> None:
        """Remove work from the waiting work, and from its counts."""
        super()._remove(one)
        one.reply.unpark()

    def _queue(self, group: str, channel: Channel, works: Iterable[_Work]) -> None:
        self._turns.setdefault(group, {}).setdefault(channel, deque()).extend(works)

    def _start(self) -> None:
        """Start the next work on the threads that are free."""
        while len(self._running) < self._threads and self._turns:
            group = next(iter(self._turns))
            queues = self._turns.pop(group)
            channel = next(iter(queues))
            queue = queues.pop(channel)
            if queues:
                self._turns[group] = queues  # after the other groups
            # Results are made only for a client that reads its answers: they take memory until then.
            if channel.closed:
                self.closed(channel)
            else:
                channel.when_reading(partial(self._run, group, channel, queue))

    def _run(self, group: str, channel: Channel, queue: deque[_Work]) -> None:
        """Start the first work of a queue; the others go back to wait for the next turn of their connection."""
        if self._stopped:
            return
        waiting = self._of_channel.get(channel, {})
        queue = deque(one for one in queue if one in waiting)  # others were released
        if not queue:
            return
        # The client may have started to read again later, when all threads were busy.
        one = queue.popleft() if len(self._running) < self._threads else None
        if queue:
            self._queue(group, channel, queue)
        if one is None:
            return
        self._forget(one)
        try:
            future = self._executor.run(one.work)
        except (RefusalError, RuntimeError) as error:  # RuntimeError: no thread can be started
            with caught(_NAME):
                one.reply.fail(error)
            return
        self._running.add(future)
        future.add_done_callback(partial(self._answer, one))

    def _answer(self, one: _Work, future: asyncio.Future[Any]) -> None:
        self._running.discard(future)
        try:
            if future.cancelled():
                return
            error, reply = future.exception(), one.reply
            if isinstance(error, Exception):
                reply.fail(error)
            elif error is None:
                result = future.result()
                self.count += 1
                if isinstance(result, GetMessageResult | bytes):
                    self.bytes += len(result if isinstance(result, bytes) else result.data)
                if reply.channel.closed and reply.request.code not in ADMINISTRATION:  # which is recorded
                    reply.drop()
                else:
                    reply.finish(partial(one.then, result))
        except Exception:  # noqa: BLE001 - the other requests are served
            failed(_NAME)
        finally:
            self._start()


def cold_reads(loop: asyncio.AbstractEventLoop, executor: BoundedExecutor | None = None) -> RequestWorker:
    """Return the worker of pulls from the disk."""
    bounds = WaitingRequests("pulls from the disk", READS_MAX, READS_OF_CHANNEL_MAX, WAITING_BYTES_MAX)
    return RequestWorker(
        loop, executor or BoundedExecutor("cold-reads", READ_THREADS, 0), READ_THREADS, bounds, held=True)
