"""Pulls that found nothing and wait for a message: RocketMQ's PullRequestHoldService.

A pull is held by queue. An arrival in that queue whose tag the pull wants, its deadline, or a look
every 5 s at queues that have grown runs it again; that second run answers whatever it finds.

Arrivals come from the thread that builds the queues, everything else runs on the event loop. A pull
that parks looks at the end of its queue once more afterwards, so no arrival falls in between.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, final

from tailrace.broker.filters.message_filters import MessageFilter
from tailrace.broker.waiting import memory_of
from tailrace.formats.remoting import RemotingCommand
from tailrace.remoting import Channel

__all__ = ["HeldPull", "PullRequestHoldService"]

TICK_S: Final = 0.2
RECHECK_S: Final = 5.0


@dataclass(slots=True, eq=False)
class HeldPull:
    """A pull that waits for a message that ``wanted`` keeps."""

    channel: Channel
    request: RemotingCommand
    topic: str
    queue_id: int
    offset: int
    deadline: float
    wanted: MessageFilter
    looked: int = field(init=False)
    """Offset up to which its property filter keeps no message."""
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.looked = self.offset
        self.size = memory_of(self.request)


@final
class PullRequestHoldService:
    """Holds pulls.

    ``max_offset(topic, queue_id)``, ``run_again(pull)`` and ``has_match(pull)`` are the broker's; the
    last one is called for pulls with a property filter when their queue has grown.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        max_offset: Callable[[str, int], int],
        run_again: Callable[[HeldPull], None],
        has_match: Callable[[HeldPull], bool],
    ) -> None:
        self._loop = loop
        self._max_offset = max_offset
        self._run_again = run_again
        self._has_match = has_match
        self._held: dict[tuple[str, int], list[HeldPull]] = {}
        self._arrived: deque[tuple[tuple[str, int], int, Sequence[int]]] = deque()
        self._drain_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._next_recheck = 0.0

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))

    def hold(self, pull: HeldPull) -> None:
        """Park a pull; it may run again before this returns."""
        key = pull.topic, pull.queue_id
        self._held.setdefault(key, []).append(pull)
        pull.channel.hold(1, pull.size)
        if self._timer is None:
            self._next_recheck = self._loop.time() + RECHECK_S
            self._timer = self._loop.call_later(TICK_S, self._tick)
        # What arrived since the pull looked was told to nobody who waits, whatever its tag is.
        if self._max_offset(*key) > pull.offset:
            self._wake(key, [pull])

    def arriving(
        self, topic: str, queue_id: int, next_offset: int, tags_codes: Sequence[int], size: int
    ) -> None:
        """Hear of messages that have become visible; from any thread."""
        key = topic, queue_id
        if key not in self._held:
            return
        self._arrived.append((key, next_offset, tags_codes))
        if not self._drain_scheduled:
            self._drain_scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:  # the loop has been closed: nobody waits any more
                self._arrived.clear()

    def release_all(self) -> list[HeldPull]:
        """Give up all pulls, for shutting down."""
        if self._timer is not None:
            self._timer.cancel()
        held = [pull for pulls in self._held.values() for pull in pulls]
        for pull in held:
            pull.channel.hold(-1, -pull.size)
        self._held.clear()
        return held

    def _drain(self) -> None:
        self._drain_scheduled = False
        arrived = self._arrived
        while arrived:
            key, next_offset, tags_codes = arrived.popleft()
            pulls = self._held.get(key)
            if pulls is not None:
                self._wake(
                    key,
                    [
                        p for p in pulls
                        if next_offset > p.looked and p.wanted.matches_codes(tags_codes)
                        and (p.wanted.properties is None or self._has_match(p))
                    ],
                )

    def _wake(self, key: tuple[str, int], pulls: list[HeldPull]) -> None:
        if not pulls:
            return
        woken = set(pulls)
        left = [p for p in self._held[key] if p not in woken]
        if left:
            self._held[key] = left
        else:
            del self._held[key]
        for pull in pulls:
            pull.channel.when_reading(partial(self._answer, pull))

    def _answer(self, pull: HeldPull) -> None:
        pull.channel.hold(-1, -pull.size)
        self._run_again(pull)

    def _tick(self) -> None:
        self._timer = None
        now = self._loop.time()
        recheck = now >= self._next_recheck
        if recheck:
            self._next_recheck = now + RECHECK_S
        for key in list(self._held):
            grown = self._max_offset(*key) if recheck else -1
            self._wake(
                key,
                [
                    p for p in self._held[key]
                    if p.deadline <= now or grown > p.offset or p.channel.closed
                ],
            )
        if self._held and self._timer is None:
            self._timer = self._loop.call_later(TICK_S, self._tick)
