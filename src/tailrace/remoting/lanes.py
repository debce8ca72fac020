"""Lanes: compiled code that serves plain frames before a request is made of them, and their rests.

A look at a frame that is not plain costs up to a tenth of its service, that at a pull which finds no message more. So
after `REST` frames in a row that a lane has left, it looks at one of `EVERY` frames of the connection only, until it
serves one again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, final

if TYPE_CHECKING:
    from tailrace.remoting.server import Channel

__all__ = ["EVERY", "REST", "Lane", "LaneLooks"]

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
