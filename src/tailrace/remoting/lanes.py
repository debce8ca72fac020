"""Lanes: compiled code that serves plain frames before a request is made of them, and their rests.

A look at a frame that is not plain costs up to a tenth of its service, that at a pull which finds no message more. So
after `REST` frames in a row that a lane has left, it looks at one of `EVERY` frames of the connection only, until it
serves one again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, final

from tailrace.env.clock import SystemClock
from tailrace.env.supervision import caught

if TYPE_CHECKING:
    from tailrace.remoting.server import Channel

__all__ = ["EVERY", "LONG_NS", "QUIET_NS", "REST", "SHORT_NS", "Lane", "LaneLooks", "TakesTurns", "Turns"]

REST: Final = 16
EVERY: Final = 64


class Lane(Protocol):
    """Serves frames at the start of some bytes without making requests of them, if it can."""

    def take(self, channel: Channel, data: bytes, pos: int, room: int) -> tuple[int, bytes]:
        """Serve frames of ``data`` from ``pos``. Return the position after them, and about ``room`` bytes of answers.

        The processor of its code serves the frame at that position, which is ``pos`` if the lane serves nothing.
        """
        ...


@final
class LaneLooks:
    """Lets the lanes look at the frames of one connection. ``rest``: after how many frames left in a row they rest."""

    __slots__ = ("_misses", "_rest")

    def __init__(self, rest: int) -> None:
        self._misses: dict[Lane, int] = {}
        self._rest = rest

    def take(self, lane: Lane, channel: Channel, data: bytes, pos: int, room: int) -> tuple[int, bytes]:
        """Return what ``Lane.take`` returns, or ``pos`` if the lane rests."""
        misses = self._misses.get(lane, 0)
        if misses >= self._rest and misses % EVERY:
            self._misses[lane] = misses + 1
            return pos, b""
        end, answers = lane.take(channel, data, pos, room)
        if end == pos:
            self._misses[lane] = misses + 1
        elif misses:
            self._misses[lane] = 0
        return end, answers


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
