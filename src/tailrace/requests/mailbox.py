"""Items that other threads leave for the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar, final

__all__ = ["LoopMailbox"]

T = TypeVar("T")


@final
class LoopMailbox(Generic[T]):
    """Takes items from any thread. ``take`` is called on the event loop with the items that have come, oldest first."""

    def __init__(self, loop: asyncio.AbstractEventLoop, take: Callable[[list[T]], None]) -> None:
        self._loop = loop
        self._take = take
        self._items: deque[T] = deque()
        self._is_scheduled = False

    def put(self, item: T) -> None:
        """Leave an item; any thread may call this. After the loop has been closed nothing happens."""
        self._items.append(item)
        if not self._is_scheduled:
            self._is_scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:  # the loop has been closed, and the connections with it
                self._items.clear()

    def _drain(self) -> None:
        self._is_scheduled = False  # before the items are taken: a later one is taken in this call or in the next
        items = []
        while self._items:
            items.append(self._items.popleft())
        self._take(items)
