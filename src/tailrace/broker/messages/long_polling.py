"""Long polling: pulls that found no message are held until one arrives (PullRequestHoldService).

Pulls are held by queue. A held pull runs again when a message arrives whose tag matches, when its deadline
has passed, when its queue has grown, which is checked every 5 s, or when its queue can no longer be read, because its
topic was deleted or changed. The second run always answers, with or without messages.

The dispatch thread reports arrivals; everything else runs on the event loop. After a pull is held, the end
of its queue is compared once more, so a message that arrived in between is not missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, final

from tailrace.broker.messages.waiters import LongPolling, Waiter
from tailrace.env.supervision import caught
from tailrace.requests.mailbox import LoopMailbox
from tailrace.requests.reply import Answer, Reply

__all__ = ["HeldPull", "PullRequestHoldService"]

_NAME: Final = "PullRequestHoldService"
LEAST_S: Final = 0.2
"""Least time that a pull is held, so that a client which asks for less does not pull in a loop."""
RECHECK_S: Final = 5.0
"""Time between two checks whether queues have grown."""


@dataclass(slots=True, eq=False)
class HeldPull(Waiter):
    """A pull that waits for a message at ``offset``, or after it. Its key is its topic and queue."""

    offset: int
    looked: int = field(init=False)
    """Offset up to which no message matches its property filter."""

    def __post_init__(self) -> None:
        self.looked = self.offset


@final
class PullRequestHoldService(LongPolling[HeldPull]):
    """Holds pulls until they can be answered.

    The broker passes in four functions: ``max_offset(topic, queue_id)``, ``run_again(pull)``,
    ``has_match(pull)``, which is called for pulls with a property filter when their queue has grown, and
    ``is_gone(topic, queue_id)``, which is called for each queue when topics have changed.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        max_offset: Callable[[str, int], int],
        run_again: Callable[[HeldPull], Answer],
        has_match: Callable[[HeldPull], bool],
        is_gone: Callable[[str, int], bool],
    ) -> None:
        super().__init__(loop, run_again, one_by_one=False, is_gone=is_gone)
        self._max_offset = max_offset
        self._has_match = has_match
        self._arrived: LoopMailbox[tuple[tuple[str, int], int, Sequence[int]]] = LoopMailbox(loop, self._arrivals)
        self._timer: asyncio.TimerHandle | None = None

    def hold(self, pull: HeldPull, seconds: float) -> None:
        """Hold a pull for a number of seconds; it may run again in the next turn."""
        if self._timer is None:
            self._timer = self._loop.call_later(RECHECK_S, self._recheck)
        # A message that arrived after the pull's read was reported before the pull was held. Its tag is unknown.
        self.poll(pull, max(seconds, LEAST_S) * 1000, lambda: self._max_offset(*pull.key) > pull.offset)

    def arriving(
        self, topic: str, queue_id: int, next_offset: int, tags_codes: Sequence[int], size: int
    ) -> None:
        """Report that messages have become readable. Any thread may call this."""
        key = topic, queue_id
        if key in self._of_key:
            self._arrived.put((key, next_offset, tags_codes))

    def release_all(self) -> list[Reply]:
        """Drop all held pulls and return their replies, for a stop."""
        if self._timer is not None:
            self._timer.cancel()
        return super().release_all()

    def _arrivals(self, arrived: list[tuple[tuple[str, int], int, Sequence[int]]]) -> None:
        is_idle = not self._ready
        for key, next_offset, tags_codes in arrived:
            for pull in tuple(self._of_key.get(key, ())):
                if next_offset > pull.looked and pull.wanted.matches_codes(tags_codes) and (
                    pull.wanted.properties is None or self._may_match(partial(self._has_match, pull))
                ):
                    self._make_ready(pull)
        if is_idle:
            self._serve()  # in this turn, because their consumers wait for it

    def _recheck(self) -> None:
        self._timer = None
        for key in tuple(self._of_key):
            with caught(_NAME):
                end = self._max_offset(*key)
                for pull in [pull for pull in self._of_key[key] if end > pull.offset]:
                    self.wake(pull)
        if self._count:
            self._timer = self._loop.call_later(RECHECK_S, self._recheck)
