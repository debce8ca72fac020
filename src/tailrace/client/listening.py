"""Calling the listener of a push consumer, and what its result means."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import final

from tailrace.logs import get_logger
from tailrace.model import MessageExt

__all__ = ["Listener", "ListenerCalls", "RetryLater"]

_log = get_logger(__name__)

Listener = Callable[[MessageExt], Awaitable[bool | None] | bool | None]
"""None or True: the message is consumed. False or an exception: it is delivered again later."""


@final
class RetryLater(Exception):  # noqa: N818 - a decision of the listener, not an error
    """Raised by a listener that wants a message again later; no error is logged.

    ``delay_level`` is a delay level of the broker, 0 for the next longer one with each delivery, and -1 for a
    dead letter now. ``after_s`` is for a queue that is consumed in order: the seconds until the next try.
    """

    def __init__(self, delay_level: int = 0, *, after_s: float | None = None) -> None:
        self.delay_level = delay_level
        self.after_s = after_s
        super().__init__(f"delay_level={delay_level} after_s={after_s}")


@final
class ListenerCalls:
    """Calls a listener: a coroutine function in the event loop, another one in a thread."""

    def __init__(self, listener: Listener, group: str, threads: int) -> None:
        self._listener = listener
        self._group = group
        # An object with an asynchronous __call__ counts as a coroutine function, too.
        self.is_async = inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(
            type(listener).__call__)
        self.thread_prefix = f"tailrace-{group}-{id(self):x}"
        self._pool = None if self.is_async else ThreadPoolExecutor(threads, self.thread_prefix)

    def close(self) -> None:
        """Start no further call."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    async def result(self, message: MessageExt) -> bool | None:
        """Return the listener's result. Raises what the listener raises, or TypeError for another result."""
        if self._pool is None:
            found = self._listener(message)
        else:
            found = await asyncio.get_running_loop().run_in_executor(self._pool, self._listener, message)
        if inspect.isawaitable(found):
            found = await found
        if found is None or isinstance(found, bool):
            return found
        raise TypeError(f"a listener returns None, True or False, not {found!r}")

    async def outcome(self, message: MessageExt, offset: int, timeout_s: float | None) -> RetryLater | None:
        """Call the listener; return None for a consumed message, or how to retry. Failures are logged here."""
        task = asyncio.current_task()
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                return None if await self.result(message) is not False else RetryLater()
        except RetryLater as later:
            return later
        except asyncio.CancelledError:
            if task is not None and task.cancelling():
                raise
            reason: BaseException = asyncio.CancelledError("the listener was cancelled")
        except BaseException as error:  # noqa: BLE001 - the program's own function; SystemExit of one, too
            reason = error
            if limit.expired():
                _log.error("listener takes too long, the message is delivered again group=%s topic=%s queue=%d "
                           "offset=%d key=%s seconds=%s", self._group, message.topic, message.queue_id, offset,
                           key_of(message), timeout_s)
                return RetryLater()
        _log.error("listener failed, the message is delivered again group=%s topic=%s queue=%d offset=%d key=%s "
                   "reason=%r", self._group, message.topic, message.queue_id, offset, key_of(message), reason,
                   exc_info=reason)
        return RetryLater()


def key_of(message: MessageExt) -> str:
    """Return the keys of a message, else its unique key."""
    return " ".join(message.keys) or message.unique_key or ""
