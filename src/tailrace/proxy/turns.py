"""Turns of users whose calls arrive together.

gRPC's library gives calls to this program one after the other, in the order of their arrival. Without turns, a user
with hundreds of calls would keep all other users waiting. So while several users call, the calls of a user with very
many wait until no other call arrives. Then a few calls of each user begin. A user alone never waits.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import Final, final

__all__ = ["CallTurns"]

CALLS: Final = 4
"""Calls of a user that begin without waiting, in `TURN_S` or in a turn."""
TURN_S: Final = 0.02
"""Longest time until the next turn."""
ROUNDS, QUIET_S = 16, 0.0005
"""No call waits in gRPC's queue if none came for this number of rounds of the event loop, and for this time."""
RECENT_S: Final = 0.5
"""A user counts as one that calls for this time, and at most for twice as long."""


@final
class CallTurns:
    """Calls that wait for their turn, by user. Used in the thread of the event loop."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._begun: Counter[str] = Counter()
        """Calls of each user that began since the last turn."""
        self._last = self._turned = 0.0
        """Time of the last call, and of the last turn."""
        self._rounds = 0
        self._recent: set[str] = set()
        self._before: set[str] = set()
        self._since = 0.0

    async def wait(self, user: str) -> None:
        """Return when a call of a user may begin. ``user`` names who takes turns with others."""
        loop = asyncio.get_running_loop()
        now = self._last = loop.time()
        self._rounds = 0
        if now - self._since >= RECENT_S:
            self._before = self._recent if now - self._since < 2 * RECENT_S else set()
            self._recent, self._since = set(), now
        self._recent.add(user)
        if not self._waiting:
            if self._before <= {user} and self._recent <= {user}:
                return  # there is no other caller
            if now - self._turned >= TURN_S:
                self._begun.clear()
                self._turned = now
        if user not in self._waiting and self._begun[user] < CALLS:
            self._begun[user] += 1
            return
        if not self._waiting:
            loop.call_soon(self._round)
        turn = loop.create_future()
        self._waiting.setdefault(user, deque()).append(turn)
        await turn

    def _round(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._rounds += 1
        if (self._rounds >= ROUNDS and now - self._last >= QUIET_S) or now - self._turned >= TURN_S:
            self._turn(now)
        if self._waiting:
            loop.call_soon(self._round)

    def _turn(self, now: float) -> None:
        self._begun.clear()
        self._rounds, self._last, self._turned = 0, now, now
        for user, calls in list(self._waiting.items()):
            while calls and self._begun[user] < CALLS:
                turn = calls.popleft()
                if not turn.done():  # it was cancelled
                    turn.set_result(None)
                    self._begun[user] += 1
            if not calls:
                del self._waiting[user]
