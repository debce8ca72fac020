"""Requests that are answered later, so that the event loop serves the others in the meantime.

`RequestWorker` runs requests whose work grows with their input or with the store, in one thread.
`ConfigChanges` answers requests that change topics, groups or other state files once the change is
durable: all changes that come while a file is written go into its next write together.

If the event loop does not run, both answer in the same call, because no other request waits then.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar, final

from tailrace import events
from tailrace.broker.executors import BoundedExecutor
from tailrace.broker.waiting import WaitingRequests, memory_of
from tailrace.env.supervision import failed
from tailrace.errors import RefusalError, StoreError
from tailrace.formats.remoting import RemotingCommand, ResponseCode
from tailrace.formats.requests.table import ADMINISTRATION
from tailrace.logs import get_logger
from tailrace.node.config_manager import ConfigManager
from tailrace.remoting import Channel

__all__ = [
    "Answer", "Change", "ConfigChanges", "MissingConfigError", "NotPreparedError", "RequestWorker", "Serve",
    "answer_failure", "creates_missing", "failure_of", "finish",
]

_log = get_logger(__name__)

WAITING_MAX: Final = 2_000
"""Number of requests of all connections that may wait for the thread of `RequestWorker`."""
CHANGES_WAITING_MAX: Final = 10_000
"""Number of requests that may wait for changes, such as a burst of sends to a new topic. RocketMQ
allows as many waiting sends (sendThreadPoolQueueCapacity)."""
WAITING_OF_CHANNEL_MAX: Final = 200
"""Number of requests of one connection that may wait."""
WAITING_BYTES_MAX: Final = 64 << 20
"""Bytes of memory that the waiting requests may take together."""
ROUNDS_MAX: Final = 4
"""Number of times that a request is served again after missing topics or groups were created."""

Answer = RemotingCommand | bytes | None
Serve = Callable[[Channel, RemotingCommand], Answer]
_Requests = deque[tuple[RemotingCommand, Serve]]


class Change(NamedTuple):
    """A change for `ConfigManager.submit`; ``also`` is run with it, ``creates`` names what it may create."""

    manager: ConfigManager[Any, Any]
    edit: Callable[[Any], Any]
    also: Callable[[], None] | None = None
    creates: Sequence[str] = ()


class _Creations(Protocol):
    """Says what users may create, see `tailrace.broker.creations`."""

    def check(self, channel: Channel, request: RemotingCommand, change: Change) -> None:
        """Raise RefusalError if a user may not create the topics or groups that a request lacks."""
        ...

    def bounded(self, request: RemotingCommand, change: Change) -> Change:
        """Return a change that fails if its topics or groups are too many for the user of a request."""
        ...


def _nothing(_: Exception) -> None:
    pass


class MissingConfigError(Exception):
    """A request needs topics or groups that do not exist; they are created and the request is served again.

    Whoever raises it has done nothing yet that must not be done twice.
    """

    def __init__(self, *changes: Change) -> None:
        assert all(change.creates for change in changes), "access control checks what is created"
        self.changes = changes
        super().__init__("a topic or group was removed again while it was created")


class NotPreparedError(RefusalError):
    """A request needs ``work`` that would hold the event loop; a thread does it, then the request is served again.

    The code that raises this error has done nothing yet that must not be done twice. If the work has been
    undone each time before the request is served again, this error is the answer.
    """

    def __init__(self, remark: str, work: Callable[[], None]) -> None:
        self.work = work
        super().__init__(ResponseCode.SYSTEM_BUSY, remark)


@final
class RequestWorker:
    """Serves requests one at a time in a thread, the connections in turn.

    Requests of a client that does not read its answers wait until it does.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None, executor: BoundedExecutor | None = None) -> None:
        self._loop = loop
        self._executor = executor or BoundedExecutor("requests", 1, 0)
        self._waiting: dict[Channel, _Requests] = {}
        self._unread: dict[Channel, _Requests] = {}
        """Requests of clients that do not read their answers at the moment."""
        self._bounds = WaitingRequests("requests", WAITING_MAX, WAITING_OF_CHANNEL_MAX, WAITING_BYTES_MAX)
        self._task: asyncio.Task[None] | None = None

    @property
    def pending(self) -> int:
        """Number of requests that are not answered yet."""
        return self._bounds.count

    def in_thread(self, serve: Serve) -> Serve:
        """Return a processor that queues requests, so that ``serve`` runs in the thread of this worker."""

        @functools.wraps(serve)
        def queue(channel: Channel, request: RemotingCommand) -> Answer:
            if self._loop is None or not self._loop.is_running():
                return serve(channel, request)
            self._forget_closed()
            self._bounds.add(channel, memory_of(request))
            if channel in self._unread:
                self._unread[channel].append((request, serve))
                return None
            self._waiting.setdefault(channel, deque()).append((request, serve))
            self._start(self._loop)
            return None

        return queue

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._task is None:
            self._task = loop.create_task(self._work(loop))

    def _go_on(self, channel: Channel, loop: asyncio.AbstractEventLoop) -> None:
        """Serve the requests of a client that reads again."""
        if (queue := self._unread.pop(channel, None)) is not None:
            self._waiting[channel] = queue
            self._start(loop)

    def _forget_closed(self) -> None:
        for channel in [channel for channel in self._unread if channel.closed]:
            self._drop(channel, self._unread.pop(channel))

    def _drop(self, channel: Channel, queue: _Requests) -> None:
        for request, _ in queue:
            self._bounds.remove(channel, memory_of(request))

    async def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            channel = next(iter(self._waiting))
            queue = self._waiting.pop(channel)
            if not channel.closed and not channel.is_reading():
                self._unread[channel] = queue
                channel.when_reading(functools.partial(self._go_on, channel, loop))
                continue
            request, serve = queue.popleft()
            if queue:
                self._waiting[channel] = queue  # after the other connections
            try:
                if not channel.closed:
                    answer = await self._executor.run(serve, channel, request)
                    _send(channel, request, answer)
            except Exception as error:  # noqa: BLE001 - the outermost step of a request: log, answer
                answer_failure(channel, request, error)
            finally:
                self._bounds.remove(channel, memory_of(request))
        self._task = None

    async def stop(self) -> None:
        """Drop the requests that wait, and wait for the one that is being served."""
        for waiting in (self._waiting, self._unread):
            for channel, queue in waiting.items():
                self._drop(channel, queue)
            waiting.clear()
        if self._task is not None:
            await self._task


@final
class ConfigChanges:
    """Applies the changes of state files that requests ask for; the files are written in other threads."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop | None, worker: RequestWorker | None = None,
        files: BoundedExecutor | None = None,
    ) -> None:
        """``worker`` runs the work of `NotPreparedError`, ``files`` the writes."""
        self._loop = loop
        self._files = files or BoundedExecutor("state-files", 2, CHANGES_WAITING_MAX)
        self._worker = worker or RequestWorker(loop)
        self.creations: _Creations | None = None
        """Checks what users create; None: everything may be created."""
        self._writing: dict[ConfigManager[Any, Any], asyncio.Future[None]] = {}
        self._write_again: set[ConfigManager[Any, Any]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._bounds = WaitingRequests(
            "changes of topics and groups", CHANGES_WAITING_MAX, CHANGES_WAITING_MAX, WAITING_BYTES_MAX)

    @property
    def pending(self) -> int:
        """Number of requests that are not answered yet."""
        return len(self._tasks)

    def apply(
        self, channel: Channel, request: RemotingCommand, changes: Sequence[Change],
        then: Callable[[], Answer], on_failure: Callable[[Exception], None] = _nothing,
    ) -> Answer:
        """Make the changes, and answer with the result of ``then`` once they are durable.

        Returns None when the answer comes later. A change that fails is answered with its error, which ``on_failure``
        gets as well.
        Raises RefusalError if too many changes wait.
        """
        if self.creations is not None:
            changes = [self.creations.bounded(request, change) for change in changes]
        if self._loop is None or not self._loop.is_running():
            for change in changes:
                change.manager.change(change.edit, change.also)
            return then()
        size = memory_of(request)
        self._bounds.add(channel, size)
        futures = [change.manager.submit(change.edit, change.also) for change in changes]
        for manager in dict.fromkeys(change.manager for change in changes):
            self._write_soon(self._loop, manager)

        async def answer() -> None:
            try:
                for future in futures:
                    await asyncio.wrap_future(future)
                _finish_when_reading(channel, request, then)
            except Exception as error:  # noqa: BLE001 - the outermost step of a request: log, answer
                on_failure(error)
                answer_failure(channel, request, error)
            finally:
                self._bounds.remove(channel, size)

        task = self._loop.create_task(answer())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return None

    def serve(self, channel: Channel, request: RemotingCommand, step: Serve) -> Answer:
        """Return the answer of ``step``. If it lacks a topic, a group or prepared work, provide that first."""
        try:
            return step(channel, request)
        except (MissingConfigError, NotPreparedError) as missing:
            return self.serve_again(channel, request, missing, step)

    def serve_again(
        self, channel: Channel, request: RemotingCommand, missing: MissingConfigError | NotPreparedError,
        serve: Serve, rounds: int = ROUNDS_MAX, on_failure: Callable[[Exception], None] = _nothing,
    ) -> Answer:
        """Create or prepare what is missing, then serve the request again, at most ``rounds`` times.

        ``on_failure`` gets the error of a creation that fails. Raises RefusalError if the user may not create them.
        """

        def again() -> Answer:
            try:
                return serve(channel, request)
            except (MissingConfigError, NotPreparedError) as still:
                if rounds <= 1:
                    raise
                return self.serve_again(channel, request, still, serve, rounds - 1, on_failure)

        if isinstance(missing, MissingConfigError):
            if self.creations is not None:
                for change in missing.changes:
                    self.creations.check(channel, request, change)
            return self.apply(channel, request, missing.changes, again, on_failure)
        return self._prepare(channel, request, missing, again)

    def _prepare(
        self, channel: Channel, request: RemotingCommand, missing: NotPreparedError, then: Callable[[], Answer]
    ) -> Answer:
        """Run the work of a request in the thread of the worker, then answer with the result of ``then``."""
        loop = self._loop
        if loop is None or not loop.is_running():
            missing.work()
            return then()

        def work(channel: Channel, request: RemotingCommand) -> None:
            missing.work()
            loop.call_soon_threadsafe(_finish_when_reading, channel, request, then)

        return self._worker.in_thread(work)(channel, request)

    async def stop(self) -> None:
        """Wait for the files that are being written."""
        while self._writing:
            await asyncio.wait(self._writing.values())

    def _write_soon(
        self, loop: asyncio.AbstractEventLoop, manager: ConfigManager[Any, Any]
    ) -> None:
        """Write the queued changes of a manager in a thread; one thread at a time writes for a manager.

        There are few threads, and with more than one for a manager a disk that hangs would block all of them.
        """
        if manager in self._writing:
            self._write_again.add(manager)
            return

        def written(_: asyncio.Future[None]) -> None:
            del self._writing[manager]
            if manager in self._write_again:
                self._write_again.discard(manager)
                self._write_soon(loop, manager)

        future = self._writing[manager] = self._files.run(manager.write_queued)
        future.add_done_callback(written)


class _Processor(Protocol):
    @property
    def changes(self) -> ConfigChanges: ...


P = TypeVar("P", bound=_Processor)


def creates_missing(
    method: Callable[[P, Channel, RemotingCommand], Answer]
) -> Callable[[P, Channel, RemotingCommand], Answer]:
    """Decorate a processor: topics and groups that its request lacks are created, then it runs again."""

    @functools.wraps(method)
    def serve(self: P, channel: Channel, request: RemotingCommand) -> Answer:
        return self.changes.serve(channel, request, functools.partial(method, self))

    return serve


def _finish_when_reading(channel: Channel, request: RemotingCommand, then: Callable[[], Answer]) -> None:
    """Make an answer when the client reads, because many pulls may wait for one new group.

    The answer to a request of administration is made now, even if the client has gone: it is recorded when it is made.
    """
    if request.code in ADMINISTRATION:
        finish(channel, request, then)
    else:
        channel.when_reading(functools.partial(finish, channel, request, then))


def finish(channel: Channel, request: RemotingCommand, then: Callable[[], Answer]) -> None:
    """Send the answer of ``then``, or its error."""
    try:
        _send(channel, request, then())
    except Exception as error:  # noqa: BLE001 - the outermost step of a request: log, answer
        answer_failure(channel, request, error)


def _send(channel: Channel, request: RemotingCommand, answer: Answer) -> None:
    if isinstance(answer, bytes):
        if not request.is_oneway:
            channel.write(answer)
    elif answer is not None:
        channel.answer(request, answer)


def answer_failure(channel: Channel, request: RemotingCommand, error: Exception) -> None:
    """Log the error of a request, and send it as the answer. Close the connection if that is not possible."""
    try:
        channel.answer(request, failure_of(channel, request, error))
    except Exception:  # noqa: BLE001 - the caller continues with other requests
        failed("answer_failure")
        channel.close()


def failure_of(channel: Channel, request: RemotingCommand, error: Exception) -> RemotingCommand:
    """Log the error of a request, and return it as an answer."""
    if isinstance(error, RefusalError):
        return request.refused(error)
    events.REQUEST_FAILED.log(
        _log, code=request.code, peer=channel.peer, reason=repr(error),
        exc_info=not isinstance(error, ValueError | StoreError | OSError))
    text = str(error)
    if not isinstance(error, StoreError | OSError):
        text = f"{type(error).__name__}: {text}"
    return request.answer(ResponseCode.SYSTEM_ERROR, text)
