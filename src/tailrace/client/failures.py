"""Failures of a consumer, and the function of the program that is called with them."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Literal, final

from tailrace import events
from tailrace.logs import get_logger
from tailrace.model import MessageExt

__all__ = ["ConsumerFailure", "Failures", "OnError", "Tried"]

_log = get_logger(__name__)

WAITING_MAX: Final = 1_000
"""Number of failures that wait for a call. Further ones are only logged."""
Tried = Literal[
    "acknowledge", "commit", "connect", "dead letter", "listener", "lock", "pull", "rebalance", "retry", "topic"]
"""What a consumer has tried. ``dead letter``: a message was retried as often as allowed and is a dead letter now."""


@final
@dataclass(frozen=True, slots=True)
class ConsumerFailure:
    """What went wrong in a push consumer; ``on_error`` is called with it."""

    error: BaseException
    """The exception of the listener, or that of the request to a server."""
    tried: Tried
    group: str
    topic: str = ""
    """Empty if the failure concerns all topics."""
    messages: tuple[MessageExt, ...] = ()
    """The messages concerned: of a listener with ``batch_size``, all messages of its call."""


OnError = Callable[[ConsumerFailure], Awaitable[None] | None]


@final
class Failures:
    """Calls ``on_error`` with one failure after the other: a coroutine function in the loop, others in one thread."""

    def __init__(self, on_error: OnError | None, group: str) -> None:
        self._on_error: Callable[[ConsumerFailure], Any] | None = on_error
        self._group = group
        self.thread_prefix = f"tailrace-{group}-{id(self):x}"
        """Names of the threads of the consumer begin with it, also those of its listener."""
        self._is_async = inspect.iscoroutinefunction(on_error) or inspect.iscoroutinefunction(
            type(on_error).__call__)
        self._pool = None if on_error is None or self._is_async else ThreadPoolExecutor(1, self.thread_prefix)
        self._waiting: deque[ConsumerFailure] = deque()
        self._full = False
        self.task: asyncio.Task[None] | None = None
        """The task that runs ``on_error``, while failures wait."""

    def report(
        self, tried: Tried, error: BaseException, *, topic: str = "", messages: Iterable[MessageExt] = ()
    ) -> None:
        """Have ``on_error`` called with a failure, which the caller has logged. Call it in the event loop."""
        if self._on_error is None:
            return
        if len(self._waiting) >= WAITING_MAX:
            if not self._full:
                self._full = True
                events.FAILURES_ARE_ONLY_LOGGED.log(_log, group=self._group, waiting=WAITING_MAX)
            return
        self._waiting.append(ConsumerFailure(error, tried, self._group, topic, tuple(messages)))
        if self.task is None:
            self.task = asyncio.create_task(self._call_all())

    async def _call_all(self) -> None:
        try:
            while self._waiting:
                await self._call(self._waiting.popleft())
            self._full = False
        finally:
            self.task = None

    async def _call(self, failure: ConsumerFailure) -> None:
        assert self._on_error is not None
        task = asyncio.current_task()
        try:
            if self._pool is None:
                found = self._on_error(failure)
            else:
                found = await asyncio.get_running_loop().run_in_executor(
                    self._pool, contextvars.copy_context().run, self._on_error, failure)
            if inspect.isawaitable(found):
                await found
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            events.ON_ERROR_FAILED.log(
                _log, group=self._group, tried=failure.tried, reason=repr(error), exc_info=error)

    async def close(self, timeout_s: float) -> None:
        """Wait for the calls that are due; those that are not made in ``timeout_s`` seconds are left out."""
        if self.task is not None:
            task = self.task
            await asyncio.wait({task}, timeout=timeout_s)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
