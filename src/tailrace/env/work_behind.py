"""Working behind: calls are made in another thread, in their order, while who asked goes on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import final

__all__ = ["WorkBehind"]


@final
class WorkBehind:
    """A thread that makes calls; after one that raised it makes none any more."""

    def __init__(self, depth: int) -> None:
        self._waiting: queue.Queue[Callable[[], None] | None] = queue.Queue(depth)
        self._failed: BaseException | None = None
        self._asked = 0
        self.done = 0
        """How many of the calls that were asked for are over."""
        self._thread = threading.Thread(target=self._run, name="work-behind", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (call := self._waiting.get()) is not None:
            if self._failed is None:
                try:
                    call()
                except BaseException as error:  # noqa: BLE001 - handed over to who asked
                    self._failed = error
            self.done += 1
            self._waiting.task_done()

    def ask(self, call: Callable[[], None]) -> int:
        """Have a call made; its number, from 0 on. Waits while ``depth`` calls are waiting.

        Raises what an earlier call raised; this one is not made then.
        """
        if self._failed is not None:
            raise self._failed
        self._waiting.put(call)
        self._asked += 1
        return self._asked - 1

    def wait(self) -> None:
        """Return when all calls are over. Raises what one of them raised."""
        self._waiting.join()
        if self._failed is not None:
            raise self._failed

    def close(self) -> None:
        """Make the calls that are waiting and end the thread; raises nothing."""
        self._waiting.put(None)
        self._thread.join()
