"""The answers of requests that wait: a `Reply` has the memory of its request, and ends exactly once.

A processor returns the answer of a request, or None after it has made a `Reply`, which the place where the request
waits ends later: with an answer, with an error, or by dropping it together with its connection. If the work of a
waiting request ends with None, the request waits again, and another reply has been made for it. A service returns a
result instead, of which the reply makes the answer (`tailrace.requests.caller`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar, final

from tailrace.env.supervision import failed
from tailrace.errors import RefusalError
from tailrace.formats.remoting import RemotingCommand, ResponseCode
from tailrace.formats.requests.table import ADMINISTRATION
from tailrace.remoting import Channel
from tailrace.remoting.server import failure_of

__all__ = [
    "TURN_S", "Answer", "Failure", "Reply", "ReplyTasks", "Serve", "Waiters", "WaitingRequests", "as_it_is", "in_turns",
    "memory_of",
]

Answer = RemotingCommand | bytes | None
Serve = Callable[[Channel, RemotingCommand], Answer]
Failure = Callable[[Channel, RemotingCommand, Exception], RemotingCommand]
"""Returns the answer for an error of the work of a request."""
_Result = TypeVar("_Result")
FIELD_BYTES: Final = 150
"""Memory of a field of a request in addition to its characters: two strings and their place in a dict."""
TURN_S: Final = 0.005
"""Seconds that a request may work in one turn of the event loop."""


def memory_of(request: RemotingCommand) -> int:
    """Return the bytes of memory that the body and the fields of a request take while it waits."""
    ext = request.ext
    return (
        len(request.body) + len(request.remark or "") + sum(map(len, ext)) + sum(map(len, ext.values()))
        + FIELD_BYTES * len(ext))


@final
class WaitingRequests:
    """Counts requests that wait, and refuses one that is over a limit.

    ``what`` names the requests in the refusal. The only waiting request of a connection may take more than
    ``bytes_of_channel``, so that a large request can be served.
    """

    def __init__(
        self, what: str, most: int, most_of_channel: int, bytes_max: int, bytes_of_channel: int | None = None
    ) -> None:
        self._what = what
        self._most, self._most_of_channel = most, most_of_channel
        self._bytes_max = bytes_max
        self._bytes_of_channel = bytes_max if bytes_of_channel is None else bytes_of_channel
        self._of_channel: dict[Channel, tuple[int, int]] = {}
        self.count = 0
        """Number of requests that wait."""
        self.size_bytes = 0
        """Bytes of memory that the requests take."""

    def add(self, channel: Channel, size: int) -> None:
        """Count a request of ``size`` bytes. Raises RefusalError (SYSTEM_BUSY) if that is over a limit."""
        count, size_bytes = self._of_channel.get(channel, (0, 0))
        if (
            self.count >= self._most or count >= self._most_of_channel
            or self.size_bytes + size > self._bytes_max
            or (count and size_bytes + size > self._bytes_of_channel)
        ):
            raise RefusalError(
                ResponseCode.SYSTEM_BUSY,
                f"{self.count} {self._what} with {self.size_bytes} bytes wait already, {count} of them of the "
                "same connection; try again later")
        self._change(channel, 1, size)

    def remove(self, channel: Channel, size: int) -> None:
        """Remove a request, which was added with this size, from the counts."""
        self._change(channel, -1, -size)

    def _change(self, channel: Channel, n: int, size: int) -> None:
        count, size_bytes = self._of_channel.get(channel, (0, 0))
        self.count += n
        self.size_bytes += size
        if count + n:
            self._of_channel[channel] = count + n, size_bytes + size
        else:
            del self._of_channel[channel]


def as_it_is(answer: Any) -> Any:
    """Return the answer that a processor, a task or a thread has made."""
    return answer


class Reply:
    """The answer of a request that waits. Used on the event loop only."""

    __slots__ = (
        "_answer_of", "_bounds", "_counted_for", "_failure", "_has_ended", "_is_held", "channel", "request", "size")

    def __init__(
        self, channel: Channel, request: RemotingCommand,
        failure: Failure = failure_of, answer_of: Callable[[Any], Answer] = as_it_is,
    ) -> None:
        """``failure`` returns the answer for an error of the work, ``answer_of`` the one for its result."""
        self.channel = channel
        self.request = request
        self.size = 0
        """Bytes of memory that the request took when it was counted."""
        self._failure, self._answer_of = failure, answer_of
        self._bounds: WaitingRequests | None = None
        self._counted_for = channel
        self._is_held = self._has_ended = False

    def park(
        self, bounds: WaitingRequests | None = None, of: Channel | None = None, *, held: bool = True
    ) -> Reply:
        """Count the memory of the request until the reply ends or `unpark` is called; return the reply.

        It counts in ``bounds``, for its connection or for ``of``, and if ``held`` as held by its connection. Raises
        RefusalError if it is over a limit of ``bounds``.
        """
        assert self._bounds is None, "a request waits in one place"
        assert not self._is_held, "a request waits in one place"
        self.size = memory_of(self.request)
        if bounds is not None:
            self._counted_for = of or self.channel
            bounds.add(self._counted_for, self.size)
            self._bounds = bounds
        if held:
            self.channel.hold(1, self.size)
            self._is_held = True
        return self

    def unpark(self) -> None:
        """Remove the request from what `park` has counted, if it is counted."""
        self._leave_bounds()
        if self._is_held:
            self.channel.hold(-1, -self.size)
            self._is_held = False

    def _leave_bounds(self) -> None:
        if self._bounds is not None:
            self._bounds.remove(self._counted_for, self.size)
            self._bounds = None

    def drop(self) -> None:
        """End the reply without an answer: its connection has closed, or the answer is sent elsewhere."""
        assert not self._has_ended, "a request is answered once"
        self._has_ended = True
        if self._is_held or self._bounds is not None:
            self.unpark()

    def send(self, answer: Answer) -> None:
        """Send an answer, unless the request is one-way. None: the request waits again."""
        self.drop()
        try:
            if isinstance(answer, RemotingCommand):
                self.channel.answer(self.request, answer)
            elif answer and not self.request.is_oneway:
                self.channel.write(answer)
        except Exception as error:  # noqa: BLE001 - the answer cannot be encoded
            self._answer_failure(error)

    def fail(self, error: Exception) -> None:
        """Send the answer for an error. The connection is closed if that is not possible."""
        self.drop()
        self._answer_failure(error)

    def _answer_failure(self, error: Exception) -> None:
        try:
            self.channel.answer(self.request, self._failure(self.channel, self.request, error))
        except Exception:  # noqa: BLE001 - the caller continues with other requests
            failed("Reply")
            self.channel.close()

    def finish(self, then: Callable[[], object]) -> None:
        """Send the answer for the result of ``then``, or for its error. None: the request waits again."""
        self.unpark()
        try:
            result = then()
            answer = None if result is None else self._answer_of(result)
        except Exception as error:  # noqa: BLE001 - the outermost step of a request: log, answer
            self.fail(error)
        else:
            self.send(answer)

    def finish_when_reading(self, then: Callable[[], object]) -> None:
        """Make the answer when the client reads, because many requests may wait for the same event.

        Until then the request counts as held if it was. If the connection closes before, there is no answer. The
        answer to a request of administration is made now, even if the client has gone: it is recorded then.
        """
        self._leave_bounds()
        if self.request.code in ADMINISTRATION:
            self.finish(then)
        elif self.channel.closed:
            self.drop()
        else:
            self.channel.when_reading(partial(self.finish, then))


class _HasReply(Protocol):
    @property
    def reply(self) -> Reply: ...


_Entry = TypeVar("_Entry", bound=_HasReply)


class Waiters(Generic[_Entry]):
    """Requests that wait in one place, by connection. A subclass has the order in which they are served."""

    def __init__(self, bounds: WaitingRequests | None = None, *, held: bool = True) -> None:
        """The requests count in ``bounds``, and with ``held`` as held by their connection."""
        self._bounds, self._held = bounds, held
        self._of_channel: dict[Channel, dict[_Entry, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[_Entry]:
        return (entry for entries in self._of_channel.values() for entry in entries)

    def _add(self, entry: _Entry) -> None:
        """Add a request. Raises RefusalError if it is over a limit of the bounds."""
        entry.reply.park(self._bounds, held=self._held)
        self._of_channel.setdefault(entry.reply.channel, {})[entry] = None
        self._count += 1

    def _remove(self, entry: _Entry) -> None:
        """Remove a request from its connection; a subclass also removes it from its order."""
        entries = self._of_channel[entry.reply.channel]
        del entries[entry]
        self._count -= 1
        if not entries:
            del self._of_channel[entry.reply.channel]

    def closed(self, channel: Channel) -> None:
        """Drop the requests of a connection that has closed."""
        for entry in tuple(self._of_channel.get(channel, ())):
            self._remove(entry)
            entry.reply.drop()

    def release(self, is_wanted: Callable[[Channel, RemotingCommand], bool]) -> list[Reply]:
        """Remove the requests for which ``is_wanted`` returns True; return their replies."""
        released = [entry for entry in self if is_wanted(entry.reply.channel, entry.reply.request)]
        for entry in released:
            self._remove(entry)
            entry.reply.unpark()
        return [entry.reply for entry in released]

    def release_all(self) -> list[Reply]:
        """Remove all requests and return their replies, for a stop."""
        return self.release(lambda *_: True)


@final
class ReplyTasks:
    """Replies whose answer a task of the event loop makes."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """Return the number of tasks that run."""
        return len(self._tasks)

    def start(
        self, reply: Reply, work: Coroutine[Any, Any, _Result], then: Callable[[_Result], object],
    ) -> None:
        """Run ``work`` in a task. When the client reads, send the answer that ``then`` makes of its result."""

        async def run() -> None:
            try:
                result = await work
            except Exception as error:  # noqa: BLE001 - the outermost step of a request: log, answer
                reply.fail(error)
            except asyncio.CancelledError:
                reply.drop()
                raise
            else:
                reply.finish_when_reading(partial(then, result))

        assert self._loop is not None, "nothing waits without an event loop"
        task = self._loop.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self, patience_s: float = 0) -> None:
        """Wait for the tasks for `patience_s` seconds, then cancel those that still run."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=patience_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)


def in_turns(
    loop: asyncio.AbstractEventLoop, reply_of: Callable[[], Reply], steps: Iterator[object],
    then: Callable[[], _Result],
) -> _Result | None:
    """Run all steps, then return the result of ``then``; None if the reply that ``reply_of`` makes has it later.

    Work that is not done after `TURN_S` continues in the next turn, unless the connection has closed. An error
    of a step is raised in the first turn, and sent as the answer in later turns.
    """
    if _run_some(loop, steps):
        return then()
    reply = reply_of().park()

    def go_on() -> None:
        if reply.channel.closed:
            reply.drop()
            return
        try:
            is_done = _run_some(loop, steps)
        except Exception as error:  # noqa: BLE001 - the outermost step of a request that works on
            reply.fail(error)
            return
        if is_done:
            reply.finish(then)
        else:
            loop.call_soon(go_on)

    loop.call_soon(go_on)
    return None


def _run_some(loop: asyncio.AbstractEventLoop, steps: Iterator[object]) -> bool:
    """Run steps for `TURN_S`; return whether all are done."""
    until = loop.time() + TURN_S if loop.is_running() else float("inf")
    return all(loop.time() <= until for _ in steps)
