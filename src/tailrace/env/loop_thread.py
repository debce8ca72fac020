"""The event loop thread of a process, for blocking clients of asynchronous code."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar, final

from tailrace.errors import RemotingError

__all__ = ["EventLoopThread"]

_T = TypeVar("_T")


class _Thread:
    """A loop in a thread, with the number of its users."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.users = 0
        self.pid = os.getpid()
        self.thread = threading.Thread(target=self.loop.run_forever, name="tailrace-client", daemon=True)
        self.thread.start()

    def end(self) -> None:
        asyncio.run_coroutine_threadsafe(_cancel_others(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


_lock = threading.Lock()
_current: _Thread | None = None


def _join() -> _Thread:
    global _current  # noqa: PLW0603 - one thread a process; clients on one loop share connections
    with _lock:
        if _current is None or _current.pid != os.getpid():  # a forked child has no such thread
            _current = _Thread()
        _current.users += 1
        return _current


def _leave(thread: _Thread) -> bool:
    """Remove a user. Return True if it was the last one; the caller must then end the thread."""
    global _current  # noqa: PLW0603
    with _lock:
        thread.users -= 1
        if thread.users:
            return False
        if _current is thread:
            _current = None
        return True


@final
class EventLoopThread:
    """A share in the one loop thread of this process, which runs coroutines for threads that wait.

    The first share starts the thread, and the close of the last one ends it.
    """

    def __init__(self) -> None:
        self._thread = _join()
        self._loop = self._thread.loop
        self._lock = threading.Lock()
        self._running: set[Future[Any]] = set()
        self.closed = False

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine in the loop and wait for its result.

        Raises RuntimeError in the loop's own thread, where the wait would never end.
        """
        if threading.current_thread() is self._thread.thread:
            coroutine.close()
            raise RuntimeError(
                "a blocking client is called on the event loop that serves it; in an async function use the "
                "class whose name begins with Async, or asyncio.to_thread")
        future = self.submit(coroutine)
        try:
            return future.result()
        except CancelledError:
            raise RemotingError("the client is closed") from None
        except BaseException:
            future.cancel()  # a wait that is interrupted, as by Ctrl-C, ends the coroutine
            raise

    def submit(self, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Start a coroutine in the loop. Return the future of its result."""
        with self._lock:  # otherwise the loop could end before the coroutine runs
            if not self.closed:
                future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
                self._running.add(future)
                future.add_done_callback(self._running.discard)
                return future
        coroutine.close()
        raise RemotingError("the client is closed")

    def close(self) -> None:
        """Cancel the coroutines of this share; their callers get an error. A second call does nothing."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
        for future in list(self._running):
            future.cancel()
        if _leave(self._thread):
            self._thread.end()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
