"""An asyncio loop in a thread, for blocking faces of asynchronous code."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar, final

from tailrace.errors import RemotingError

__all__ = ["EventLoopThread"]

_T = TypeVar("_T")


@final
class EventLoopThread:
    """Runs coroutines for threads that wait; ``close`` ends the loop and the thread."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self.closed = False
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine in the loop and wait for its result."""
        try:
            return self.submit(coroutine).result()
        except CancelledError:
            raise RemotingError("the client is closed") from None

    def submit(self, coroutine: Coroutine[Any, Any, _T]) -> Any:
        """Start a coroutine in the loop; a ``concurrent.futures.Future`` of its result."""
        with self._lock:  # or it could come behind the last turn of the loop, and never run
            if not self.closed:
                return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        coroutine.close()
        raise RemotingError("the client is closed")

    def close(self) -> None:
        """Cancel what runs, stop the loop and wait for the thread; whoever waits gets an error."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
