"""Calls of the listener of a push consumer, and the meaning of their results."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, final

from tailrace import events
from tailrace.client.arguments import Duration, in_s
from tailrace.client.failures import Failures
from tailrace.logs import get_logger
from tailrace.model import MessageExt

__all__ = ["BatchListener", "Listener", "ListenerCalls", "RetryLater"]

_log = get_logger(__name__)

Listener = Callable[[MessageExt], Awaitable[bool | None] | bool | None]
"""None or True: the message is consumed. False or an exception: it is delivered again later."""
BatchListener = Callable[[list[MessageExt]], Awaitable[bool | None] | bool | None]
"""The same for all messages of the list; `RetryLater` can say how many of them are consumed."""


@final
class RetryLater(Exception):  # noqa: N818 - a decision of the listener, not an error
    """Raised by a listener to receive a message again later; no error is logged.

    ``delay_level`` is a delay level of the broker; 0 means a longer delay with each delivery, and -1 makes the
    message a dead letter. ``after_s``, for queues that are consumed in order or popped, is the time until the next
    try: seconds, a timedelta or a text such as ``"5m"``. Of a batch the first ``consumed`` messages are consumed, and
    the others are delivered again.
    """

    def __init__(self, delay_level: int = 0, *, after_s: Duration | None = None, consumed: int = 0) -> None:
        if consumed < 0:
            raise ValueError(f"consumed={consumed} is negative")
        self.delay_level = delay_level
        self.after_s = None if after_s is None else in_s("after_s", after_s)
        self.consumed = consumed
        super().__init__(f"delay_level={delay_level} after_s={self.after_s}")


@final
class _Limits:
    """Cancels calls that take too long. One timer serves all calls, because most calls are far shorter."""

    def __init__(self) -> None:
        self._until: dict[asyncio.Task[Any], float] = {}
        self._over: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, task: asyncio.Task[Any], timeout_s: float) -> None:
        """Cancel the task if its call has not ended in time."""
        loop = asyncio.get_running_loop()
        self._until[task] = loop.time() + timeout_s
        if self._timer is None:
            period_s = min(0.5, timeout_s / 10)
            self._timer = loop.call_later(period_s, self._look, loop, period_s)

    def _look(self, loop: asyncio.AbstractEventLoop, period_s: float) -> None:
        now = loop.time()
        for task in [task for task, until in self._until.items() if until <= now]:
            del self._until[task]
            self._over.add(task)
            task.cancel()
        self._timer = loop.call_later(period_s, self._look, loop, period_s) if self._until else None

    def end(self, task: asyncio.Task[Any]) -> bool:
        """Remove a call that has ended; return whether it was cancelled here."""
        self._until.pop(task, None)
        if task not in self._over:
            return False
        self._over.discard(task)
        task.uncancel()
        return True


@final
class ListenerCalls:
    """Calls a listener: a coroutine function in the event loop, a plain function in a thread."""

    def __init__(
        self, listener: Listener | BatchListener, group: str, threads: int, failures: Failures, *,
        in_batches: bool = False,
    ) -> None:
        self._listener: Callable[[Any], Any] = listener
        self._in_batches = in_batches
        self._group = group
        # An object with an asynchronous __call__ also counts as a coroutine function.
        self.is_async = inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(
            type(listener).__call__)
        self.thread_prefix = failures.thread_prefix
        self._failures = failures
        self._limits = _Limits()
        self._pool = None if self.is_async else ThreadPoolExecutor(threads, self.thread_prefix)

    def close(self) -> None:
        """Start no further call."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    async def result(self, messages: list[MessageExt]) -> bool | None:
        """Return the listener's result. Raises the listener's error, or TypeError for an invalid result."""
        given = list(messages) if self._in_batches else messages[0]
        if self._pool is None:
            found = self._listener(given)
        else:
            # With the context of the call: a listener's own spans belong to it.
            found = await asyncio.get_running_loop().run_in_executor(
                self._pool, contextvars.copy_context().run, self._listener, given)
        if inspect.isawaitable(found):
            found = await found
        if found is None or isinstance(found, bool):
            return found
        raise TypeError(f"a listener returns None, True or False, not {found!r}")

    async def outcome(self, messages: list[MessageExt], timeout_s: float | None) -> RetryLater | None:
        """Call the listener; return None for consumed messages, or how to retry. Failures are logged here."""
        message = messages[0]
        task = asyncio.current_task()
        assert task is not None
        if timeout_s is not None:
            self._limits.begin(task, timeout_s)
        try:
            return None if await self.result(messages) is not False else RetryLater()
        except RetryLater as later:
            return later
        except asyncio.CancelledError:
            if self._limits.end(task) and not task.cancelling():
                events.LISTENER_TAKES_TOO_LONG.log(
                    _log, group=self._group, topic=message.topic, queue=message.queue_id, offset=message.queue_offset,
                    key=key_of(message), seconds=timeout_s)
                self._failures.report(
                    "listener", TimeoutError(f"the listener has run for {timeout_s} s"), topic=message.topic,
                    messages=messages)
                return RetryLater()
            if task.cancelling():
                raise
            reason: BaseException = asyncio.CancelledError("the listener was cancelled")
        except BaseException as error:  # noqa: BLE001 - the program's own function, which may raise SystemExit
            reason = error
        finally:
            self._limits.end(task)
        events.LISTENER_FAILED.log(
            _log, group=self._group, topic=message.topic, queue=message.queue_id, offset=message.queue_offset,
            key=key_of(message), reason=repr(reason), exc_info=reason)
        self._failures.report("listener", reason, topic=message.topic, messages=messages)
        return RetryLater()


def key_of(message: MessageExt) -> str:
    """Return the keys of a message, or its unique key if it has no keys."""
    return " ".join(message.keys) or message.unique_key or ""
