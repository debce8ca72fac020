"""Changes of topics, groups and other state files that requests ask for, answered once they are durable.

All changes that come while a file is written go into its next write together. If the event loop does not run, a change
is answered in the same call, because no other request waits then.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar, final

from tailrace.errors import RefusalError
from tailrace.formats.remoting import RemotingCommand, ResponseCode
from tailrace.node.config_manager import ConfigManager
from tailrace.remoting import Channel
from tailrace.remoting.server import failure_of
from tailrace.requests.caller import Caller, RemotingCaller
from tailrace.requests.executors import BoundedExecutor
from tailrace.requests.reply import Answer, Failure, ReplyTasks, WaitingRequests
from tailrace.requests.worker import WAITING_BYTES_MAX, RequestWorker

__all__ = ["Change", "ConfigChanges", "MissingConfigError", "NotPreparedError", "creates_missing"]

CHANGES_WAITING_MAX: Final = 10_000
"""Number of requests that may wait for changes, such as a burst of sends to a new topic. RocketMQ
allows as many waiting sends (sendThreadPoolQueueCapacity)."""
ROUNDS_MAX: Final = 4
"""Number of times that a request is served again after missing topics or groups were created."""
_Result = TypeVar("_Result")


class Change(NamedTuple):
    """A change for `ConfigManager.submit`; ``also`` is run with it, ``creates`` names what it may create."""

    manager: ConfigManager[Any, Any]
    edit: Callable[[Any], Any]
    also: Callable[[], None] | None = None
    creates: Sequence[str] = ()


class _Creations(Protocol):
    """Says what users may create, see `tailrace.broker.core.creations`."""

    def check(self, channel: Channel, request: RemotingCommand, change: Change) -> None:
        """Raise RefusalError if a user may not create the topics or groups that a request lacks."""
        ...

    def bounded(self, request: RemotingCommand, change: Change) -> Change:
        """Return a change that fails if its topics or groups are too many for the user of a request."""
        ...


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
class ConfigChanges:
    """Applies the changes of state files that requests ask for; the files are written in other threads."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop | None, worker: RequestWorker | None = None,
        files: BoundedExecutor | None = None, creations: _Creations | None = None,
    ) -> None:
        """``worker`` runs the work of `NotPreparedError`, ``files`` the writes; ``creations`` bounds users, if any."""
        self._loop = loop
        self._files = files or BoundedExecutor("state-files", 2, CHANGES_WAITING_MAX)
        self._worker = RequestWorker(loop) if worker is None else worker
        self._creations = creations
        self._writing: dict[ConfigManager[Any, Any], asyncio.Future[None]] = {}
        self._write_again: set[ConfigManager[Any, Any]] = set()
        self._tasks = ReplyTasks(loop)
        self._bounds = WaitingRequests(
            "changes of topics and groups", CHANGES_WAITING_MAX, CHANGES_WAITING_MAX, WAITING_BYTES_MAX)

    @property
    def pending(self) -> int:
        """Number of requests that are not answered yet."""
        return len(self._tasks)

    def apply(
        self, channel: Channel, request: RemotingCommand, changes: Sequence[Change], then: Callable[[], Answer],
        failure: Failure = failure_of,
    ) -> Answer:
        """Make the changes, and answer with the result of ``then`` once they are durable.

        Returns None when the answer comes later. A change that fails is answered with what ``failure`` makes of its
        error. Raises RefusalError if too many changes wait.
        """
        return self._apply(RemotingCaller(channel, request), changes, then, failure)

    def _apply(
        self, caller: Caller, changes: Sequence[Change], then: Callable[[], _Result], failure: Failure
    ) -> _Result | None:
        if self._creations is not None:
            changes = [self._creations.bounded(caller.request, change) for change in changes]
        if self._loop is None or not self._loop.is_running():
            for change in changes:
                change.manager.change(change.edit, change.also)
            return then()
        reply = caller.reply(failure).park(self._bounds, held=False)
        futures = [change.manager.submit(change.edit, change.also) for change in changes]
        for manager in dict.fromkeys(change.manager for change in changes):
            self._write_soon(self._loop, manager)

        async def written() -> None:
            for future in futures:
                await asyncio.wrap_future(future)

        self._tasks.start(reply, written(), lambda _: then())
        return None

    def serve(
        self, caller: Caller, step: Callable[[], _Result], rounds: int = ROUNDS_MAX,
        failure: Failure = failure_of,
    ) -> _Result | None:
        """Return the result of ``step``. If it lacks a topic, a group or prepared work, `provide` that first.

        Returns None if the caller's reply gets the result later.
        """
        try:
            return step()
        except (MissingConfigError, NotPreparedError) as missing:
            if rounds < 1:
                raise
            return self.provide(caller, missing, step, rounds, failure)

    def provide(
        self, caller: Caller, missing: MissingConfigError | NotPreparedError, step: Callable[[], _Result],
        rounds: int = ROUNDS_MAX, failure: Failure = failure_of,
    ) -> _Result | None:
        """Create or prepare what is missing, then serve the request again with ``step``, at most ``rounds`` times.

        ``failure`` makes the answer for the error of a creation. Raises RefusalError if the user may not create them.
        """
        again = partial(self.serve, caller, step, rounds - 1, failure)
        if isinstance(missing, MissingConfigError):
            if self._creations is not None:
                for change in missing.changes:
                    self._creations.check(caller.channel, caller.request, change)
            return self._apply(caller, missing.changes, again, failure)
        if self._loop is None or not self._loop.is_running():
            missing.work()
            return again()
        self._worker.submit(caller.reply(), missing.work, lambda _: again())
        return None

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
        return self.changes.serve(
            RemotingCaller(channel, request), functools.partial(method, self, channel, request))

    return serve
