"""Reads from the disk for pulls and for requests that name a record, in threads, so that no other client waits.

A read from the disk takes milliseconds. If the event loop made it, every client would wait. So the event
loop reads only messages that are in the page cache, and a pull of other messages waits here for one of two
threads. The consumer groups take turns, and within a group its connections. The thread only reads: the event
loop makes the answer and writes it. Other requests of the same connection are served in the meantime.

Memory is bounded:

- Requests that wait: at most `WAITING_MAX` in all, `WAITING_OF_CHANNEL_MAX` of one connection, and
  `WAITING_BYTES_MAX` bytes in all. A further request is refused (SYSTEM_BUSY), and its client pulls again.
  Requests that wait also count as held by their connection, see `tailrace.remoting.limits`.
- Results: one for each thread. A read starts only while the client reads its answers, and the result is
  written when the read ends. So a client that stops reading has at most two more answers in memory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, final

from tailrace.broker.answers_later import Answer, Serve, answer_failure, finish
from tailrace.broker.executors import BoundedExecutor
from tailrace.broker.waiting import WaitingRequests, memory_of
from tailrace.env.supervision import caught, failed
from tailrace.errors import RefusalError
from tailrace.formats.remoting import RemotingCommand, ResponseCode
from tailrace.model import GetMessageResult
from tailrace.remoting import Channel

if TYPE_CHECKING:
    from tailrace.broker.context import BrokerContext

__all__ = ["ColdRead", "ColdReadService", "with_record"]

THREADS: Final = 2
WAITING_MAX: Final = 10_000
"""Number of pulls of all connections that may wait."""
WAITING_OF_CHANNEL_MAX: Final = 1_000
"""Number of pulls of one connection that may wait; a client has one for each queue."""
WAITING_BYTES_MAX: Final = 64 << 20
"""Bytes of memory that the waiting pulls may take together."""


@dataclass(slots=True, eq=False)
class ColdRead:
    """A pull, or a request that names a record, which waits for the disk.

    ``read`` runs in a thread. ``answer`` is called on the event loop with the result or the error.
    """

    channel: Channel
    request: RemotingCommand
    group: str
    read: Callable[[], GetMessageResult | bytes | None]
    answer: Callable[[Any], None]
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = memory_of(self.request)


@final
class ColdReadService:
    """Runs reads in two threads. All methods are called on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, executor: BoundedExecutor | None = None) -> None:
        self._loop = loop
        self._executor = executor or BoundedExecutor("cold-reads", THREADS, 0)
        self._turns: dict[str, dict[Channel, deque[ColdRead]]] = {}
        self._waiting: dict[Channel, set[ColdRead]] = {}
        """All pulls that wait; those that are delayed or whose client does not read are not in ``_turns``."""
        self._bounds = WaitingRequests(
            "pulls from the disk", WAITING_MAX, WAITING_OF_CHANNEL_MAX,
            WAITING_BYTES_MAX)
        self._reads: set[asyncio.Future[GetMessageResult | bytes | None]] = set()
        self._stopped = False
        self.count = 0
        """Number of reads that have ended."""
        self.bytes = 0
        """Bytes of messages that these reads returned."""

    @property
    def pending(self) -> int:
        """Number of pulls that wait for a thread or are being read."""
        return self._bounds.count + len(self._reads)

    def submit(self, pull: ColdRead, delay_s: float = 0) -> None:
        """Queue a pull, after a delay of ``delay_s`` seconds.

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
        """Queue a pull after the others of its connection, unless it was dropped while it was delayed."""
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

    def release(self, is_wanted: Callable[[Channel, RemotingCommand], bool]) -> list[ColdRead]:
        """Drop and return the pulls that wait and for which ``is_wanted`` returns True. Reads under way continue."""
        released = [
            pull for pulls in self._waiting.values() for pull in pulls if is_wanted(pull.channel, pull.request)]
        for pull in released:
            self._forget(pull)
            queue = self._turns.get(pull.group, {}).get(pull.channel)  # without this pull if it is delayed
            if queue is not None and pull in queue:
                queue.remove(pull)
                if not queue:
                    del self._turns[pull.group][pull.channel]
                if not self._turns[pull.group]:
                    del self._turns[pull.group]
        return released

    def release_all(self) -> list[ColdRead]:
        """Drop and return the pulls that wait, and refuse further ones, for a stop. Reads under way continue."""
        self._stopped = True
        return self.release(lambda *_: True)

    async def stop(self) -> None:
        """Wait for the reads that are under way."""
        self.release_all()
        while self._reads:
            await asyncio.wait(self._reads)
            await asyncio.sleep(0)  # let the event loop call `_answer`
        self._executor.stop()

    def _forget(self, pull: ColdRead) -> None:
        """Remove a pull from those that wait, and from their counts."""
        mine = self._waiting[pull.channel]
        mine.remove(pull)
        if not mine:
            del self._waiting[pull.channel]
        self._bounds.remove(pull.channel, pull.size)
        pull.channel.hold(-1, -pull.size)

    def _queue(self, group: str, channel: Channel, pulls: Iterable[ColdRead]) -> None:
        self._turns.setdefault(group, {}).setdefault(channel, deque()).extend(pulls)

    def _start(self) -> None:
        """Start the next pulls on the threads that are free."""
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
        """Read for the first pull of a queue; the others go back to wait for the next turn of their connection."""
        if self._stopped:
            return
        waiting = self._waiting.get(channel, set())
        queue = deque(pull for pull in queue if pull in waiting)  # others were released
        if not queue:
            return
        # The client may have started to read again later, when both threads were busy.
        pull = queue.popleft() if len(self._reads) < THREADS else None
        if queue:
            self._queue(group, channel, queue)
        if pull is None:
            return
        self._forget(pull)
        try:
            future = self._executor.run(pull.read)
        except (RefusalError, RuntimeError) as error:  # RuntimeError: no thread can be started
            with caught("ColdReadService"):
                pull.answer(error)
            return
        self._reads.add(future)
        future.add_done_callback(partial(self._answer, pull))

    def _answer(self, pull: ColdRead, future: asyncio.Future[GetMessageResult | bytes | None]) -> None:
        self._reads.discard(future)
        try:
            error = None if future.cancelled() else future.exception()
            if isinstance(error, Exception):
                pull.answer(error)
            elif error is None and not future.cancelled():
                result = future.result()
                self.count += 1
                self.bytes += len(result.data if isinstance(result, GetMessageResult) else result or b"")
                if not pull.channel.closed:
                    pull.answer(result)
        except Exception:  # noqa: BLE001 - the other pulls are read
            failed("ColdReadService")
        finally:
            self._start()


def with_record(broker: BrokerContext, serve: Serve, place: Callable[[RemotingCommand], int | None]) -> Serve:
    """Return a processor of requests that name a record: ``serve``, which never waits for the disk.

    ``place`` returns the position of the record, None if the request names none. If the record is not in memory, a
    thread reads it first; ``serve`` then finds it at hand. Topics and groups that the request lacks are created, as by
    `creates_missing`. Errors of ``place`` are left to ``serve``.
    """
    store, loop = broker.store, broker.loop

    def served(channel: Channel, request: RemotingCommand) -> Answer:
        try:
            at = place(request)
        except (ValueError, RefusalError):
            at = None
        if at is None or at < 0 or not loop.is_running() or store.is_in_memory(at):
            return broker.changes.serve(channel, request, serve)

        def answer(record: bytes | Exception | None) -> None:
            if isinstance(record, Exception):
                answer_failure(channel, request, record)
                return

            def again(channel: Channel, request: RemotingCommand) -> Answer:
                store.at_hand(at, record)
                try:
                    return serve(channel, request)
                finally:
                    store.at_hand(-1, None)

            finish(channel, request, lambda: broker.changes.serve(channel, request, again))

        group = request.ext.get("group") or request.ext.get("consumerGroup") or ""
        broker.cold_reads.submit(ColdRead(channel, request, group, partial(store.record_at, at), answer))
        return None

    return served
