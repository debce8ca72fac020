"""Answers of the HTTP port that are made in threads, so that many requests cost as much as a few.

`SharedTexts` makes the text of ``/metrics`` for all scrapers together: one text at a time, which is shared for a second
and for at least three times as long as it took. `PageTurns` makes pages of the console: one of each kind at a time, in
at most two threads. A request that finds too many others waiting, or that waits too long, is refused.
`Pace` limits what scrapers that read without a pause cost the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, final

from tailrace.errors import RefusalError
from tailrace.formats.remoting import ResponseCode
from tailrace.requests.executors import BoundedExecutor

__all__ = ["PAGE_S", "SHARED_S", "Pace", "PageTurns", "SharedTexts"]

SHARED_S: Final = 1.0
"""Seconds that a text is shared after it was made."""
REST: Final = 3
"""A text is shared for at least this many times the time that it took, so that the thread rests in between."""
BYTES_A_SECOND: Final = 32 << 20
"""Bytes that all connections are sent in a second: ten texts of 1,500 topics."""
PAGE_THREADS: Final = 2
PAGES_WAITING_MAX: Final = 16
"""Requests for pages that may wait for their turn."""
PAGE_S: Final = 20.0
"""Seconds that a request waits for its page."""


@final
class SharedTexts:
    """Texts by name, for example by format; ``make`` is called in a thread."""

    def __init__(self, make: Callable[[str], bytes], shared_s: float = SHARED_S) -> None:
        """A text is shared for ``shared_s`` seconds or longer; 0: only by requests that wait for it."""
        self.executor = BoundedExecutor("metrics", 1, 1)
        self._make = make
        self._shared_s = shared_s
        self._texts: dict[str, asyncio.Future[bytes]] = {}
        self._until: dict[str, float] = {}

    def forget(self) -> None:
        """Have the next requests get new texts, because the state has changed."""
        self._texts.clear()
        self._until.clear()

    async def get(self, name: str) -> bytes:
        """Return the text that is shared now, or a new one. Raises what ``make`` raises, for all that waited."""
        loop = asyncio.get_running_loop()
        future = self._texts.get(name)
        if future is None or loop.time() >= self._until.get(name, loop.time() + 1):
            self._until.pop(name, None)
            future = self._texts[name] = self._started(name, loop)
        return await asyncio.shield(future)

    def _started(self, name: str, loop: asyncio.AbstractEventLoop) -> asyncio.Future[bytes]:
        since = loop.time()
        future = self.executor.run(self._make, name)

        def drop(future: asyncio.Future[bytes]) -> None:
            if self._texts.get(name) is future:
                del self._texts[name]

        def done(future: asyncio.Future[bytes]) -> None:
            if not future.cancelled():
                future.exception()  # a request that has left does not ask for it
            if self._texts.get(name) is future:
                shared_s = max(self._shared_s, REST * (loop.time() - since)) if self._shared_s else 0.0
                self._until[name] = loop.time() + shared_s
                loop.call_later(shared_s, drop, future)

        future.add_done_callback(done)
        return future


@final
class Pace:
    """Limits the bytes a second of all answers together, because the event loop writes them."""

    def __init__(self, bytes_a_second: int = BYTES_A_SECOND) -> None:
        self._rate = bytes_a_second
        self._free_s = 0.0

    async def wait(self, size: int) -> float:
        """Wait until ``size`` bytes may be written. Return the seconds that this took."""
        now = asyncio.get_running_loop().time()
        since = max(now, self._free_s)
        self._free_s = since + size / self._rate
        if since <= now:
            return 0.0
        await asyncio.sleep(since - now)
        return since - now


@final
class PageTurns:
    """Makes pages in threads, one of each kind at a time."""

    def __init__(self, seconds: float = PAGE_S) -> None:
        """A request waits at most ``seconds`` for its page."""
        self.executor = BoundedExecutor("console", PAGE_THREADS, 0)
        self._seconds = seconds
        self._waiting = 0
        self._running: dict[str, asyncio.Future[bytes]] = {}

    async def make(self, kind: str, page: Callable[[], bytes]) -> bytes:
        """Return the page that ``page`` returns.

        Raises RefusalError (SYSTEM_BUSY) if too many requests wait, and TimeoutError if it takes too long; the thread
        then ends the page, and no other one of its kind is made before that.
        """
        if self._waiting >= PAGES_WAITING_MAX:
            self.executor.refused += 1
            raise RefusalError(
                ResponseCode.SYSTEM_BUSY, f"{self._waiting} requests for pages wait already; try again later")
        async with asyncio.timeout(self._seconds):
            self._waiting += 1
            try:
                while kind in self._running or len(self._running) >= PAGE_THREADS:
                    await asyncio.wait(tuple(self._running.values()), return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._waiting -= 1
            return await asyncio.shield(self._started(kind, page))

    def _started(self, kind: str, page: Callable[[], bytes]) -> asyncio.Future[bytes]:
        future = self.executor.run(page)
        self._running[kind] = future

        def done(future: asyncio.Future[bytes]) -> None:
            del self._running[kind]
            if not future.cancelled():
                future.exception()  # a request that has left does not ask for it

        future.add_done_callback(done)
        return future
