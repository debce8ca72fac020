"""Turns of connections that have sent many requests together.

The event loop serves the first of several requests when they arrive, and the next ones for as long as the slice of
time allows that all such connections share. The others wait, and their connection is not read. The connections that
wait take turns: the event loop serves one of them for a slice, then everything else that is ready, then the next one.
A slice is long while nothing else happens, so that a client alone loses nothing, and short otherwise.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, final

from tailrace.env.clock import SystemClock
from tailrace.env.supervision import caught

__all__ = ["LONG_NS", "QUIET_NS", "SHORT_NS", "TakesTurns", "Turns"]

LONG_NS: Final = 400_000
SHORT_NS: Final = 250_000
QUIET_NS: Final = 50_000
"""Nothing else happened if the event loop was back after this time."""


class TakesTurns(Protocol):
    """A connection whose requests wait."""

    closed: bool

    def take_turn(self, ends_at: int) -> None:
        """Serve requests until the time ``ends_at``."""
        ...


@final
class Turns:
    """The connections that wait for a turn. Times are of ``now``, in nanoseconds."""

    def __init__(self, now: Callable[[], int] = SystemClock.monotonic_ns) -> None:
        self.now = now
        self._waiting: deque[TakesTurns] = deque()
        self.open = False
        """True from `begin` until `end`."""
        self._began = self._ended = self._spent = 0

    def begin(self) -> int:
        """Return until when more of the requests may be served that have arrived together; then call `end`."""
        self.open = True
        now = self._began = self.now()
        self._spent = max(0, self._spent - (now - self._ended))
        return now + (SHORT_NS if self._waiting else LONG_NS) - self._spent

    def end(self) -> None:
        """Count the time since `begin`."""
        self.open = False
        self._ended = self.now()
        self._spent += self._ended - self._began

    def wait(self, connection: TakesTurns) -> None:
        """Call `TakesTurns.take_turn` of a connection when it is its turn."""
        self._waiting.append(connection)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        connection = self._waiting[0]
        now = self._began = self.now()
        is_quiet = now - self._ended < QUIET_NS
        if not connection.closed:
            with caught("turns of connections"):
                connection.take_turn(now + (LONG_NS if is_quiet else SHORT_NS))
        self._waiting.popleft()
        self._spent = 0
        self.end()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._turn)
