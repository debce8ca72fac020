"""Back-pressure: a limit of the bytes that a producer has sent without an answer."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncGenerator
from typing import final

__all__ = ["Pending", "ThreadLimit", "Turns"]


@final
class Pending:
    """Room for a number of bytes. A message larger than the limit is sent alone; waiting messages keep their order."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def _fits(self, size: int) -> bool:
        return not self.bytes or self.bytes + size <= self.most

    def try_enter(self, size: int) -> bool:
        """Reserve room if enough is free; return whether it was."""
        if self._waiting or (self.bytes and self.bytes + size > self.most):
            return False
        self.bytes += size
        return True

    async def enter(self, size: int) -> None:
        """Wait for room, and take it."""
        if self.try_enter(size):
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(size)
            else:
                turn.cancel()
                self._next()
            raise

    def leave(self, size: int) -> None:
        """Give room back."""
        self.bytes -= size
        self._next()

    def _next(self) -> None:
        while self._waiting:
            size, turn = self._waiting[0]
            if not turn.cancelled():
                if not self._fits(size):
                    return
                self.bytes += size
                turn.set_result(None)
            self._waiting.popleft()


@final
class ThreadLimit:
    """The same for threads: `enter` blocks."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._bytes = 0
        self._changed = threading.Condition()

    def enter(self, size: int) -> None:
        """Wait for room, and take it."""
        with self._changed:
            self._changed.wait_for(lambda: not self._bytes or self._bytes + size <= self._most)
            self._bytes += size

    def leave(self, size: int) -> None:
        """Give room back."""
        with self._changed:
            self._bytes -= size
            self._changed.notify_all()


@final
class Turns:
    """One at a time for each key, in the order of their calls."""

    def __init__(self) -> None:
        self._locks: dict[object, tuple[asyncio.Lock, list[None]]] = {}

    @contextlib.asynccontextmanager
    async def of(self, key: object) -> AsyncGenerator[None]:
        """Wait for the turn of this call."""
        lock, users = self._locks.setdefault(key, (asyncio.Lock(), []))
        users.append(None)
        try:
            async with lock:
                yield
        finally:
            users.pop()
            if not users:
                del self._locks[key]
