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

from tailrace.broker.filters.message_filters import MessageFilter
from tailrace.broker.mailbox import LoopMailbox
from tailrace.broker.reply import Answer, Reply
from tailrace.env.supervision import caught, failed
from tailrace.formats.remoting import RemotingCommand
from tailrace.remoting import Channel

__all__ = ["HeldPull", "PullRequestHoldService"]

_NAME: Final = "PullRequestHoldService"
TICK_S: Final = 0.2
"""Time between two checks of the deadlines."""
RECHECK_S: Final = 5.0
"""Time between two checks whether queues have grown."""
_Arrival = tuple[tuple[str, int], int, Sequence[int]]


@dataclass(slots=True, eq=False)
class HeldPull:
    """A pull that waits for a message that matches ``wanted``. ``deadline`` is a time of the event loop."""

    reply: Reply
    topic: str
    queue_id: int
    offset: int
    deadline: float
    wanted: MessageFilter
    looked: int = field(init=False)
    """Offset up to which no message matches its property filter."""

    def __post_init__(self) -> None:
        self.looked = self.offset


@final
class PullRequestHoldService:
    """Holds pulls until they can be answered.

    The broker passes in four functions: ``max_offset(topic, queue_id)``, ``run_again(pull)``,
    ``has_match(pull)``, which is called for pulls with a property filter when their queue has grown, and
    ``is_readable(topic, queue_id)``, which is called for each queue when topics have changed.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        max_offset: Callable[[str, int], int],
        run_again: Callable[[HeldPull], Answer],
        has_match: Callable[[HeldPull], bool],
        is_readable: Callable[[str, int], bool],
    ) -> None:
        self._loop = loop
        self._max_offset = max_offset
        self._run_again = run_again
        self._has_match = has_match
        self._is_readable = is_readable
        self._changed: LoopMailbox[None] = LoopMailbox(loop, self._check)
        self._held: dict[tuple[str, int], list[HeldPull]] = {}
        self._arrived: LoopMailbox[_Arrival] = LoopMailbox(loop, self._arrivals)
        self._timer: asyncio.TimerHandle | None = None
        self._next_recheck = 0.0

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))

    def hold(self, pull: HeldPull) -> None:
        """Hold a pull; it may run again before this call returns."""
        key = pull.topic, pull.queue_id
        self._held.setdefault(key, []).append(pull)
        pull.reply.park()
        if self._timer is None:
            self._next_recheck = self._loop.time() + RECHECK_S
            self._timer = self._loop.call_later(TICK_S, self._tick)
        # A message that arrived after the pull's read was reported before the pull was held. Its tag is unknown.
        if self._max_offset(*key) > pull.offset:
            self._wake(key, [pull])

    def arriving(
        self, topic: str, queue_id: int, next_offset: int, tags_codes: Sequence[int], size: int
    ) -> None:
        """Report that messages have become readable. Any thread may call this."""
        key = topic, queue_id
        if key in self._held:
            self._arrived.put((key, next_offset, tags_codes))

    def topics_changed(self) -> None:
        """Run the pulls of queues again that can no longer be read. Any thread may call this."""
        if self._held:
            self._changed.put(None)

    def release(self, is_wanted: Callable[[Channel, RemotingCommand], bool]) -> list[Reply]:
        """Drop the held pulls for which ``is_wanted`` returns True; return their replies."""
        found: list[Reply] = []
        for key, pulls in list(self._held.items()):
            wanted = {pull for pull in pulls if is_wanted(pull.reply.channel, pull.reply.request)}
            found += [pull.reply for pull in wanted]
            if kept := [pull for pull in pulls if pull not in wanted]:
                self._held[key] = kept
            else:
                del self._held[key]
        for reply in found:
            reply.unpark()
        return found

    def release_all(self) -> list[Reply]:
        """Drop all held pulls and return their replies, for a stop."""
        if self._timer is not None:
            self._timer.cancel()
        return self.release(lambda *_: True)

    def _check(self, _: list[None]) -> None:
        for key in [key for key in self._held if not self._is_readable(*key)]:
            self._wake(key, self._held.get(key, []))

    def _arrivals(self, arrived: list[_Arrival]) -> None:
        for key, next_offset, tags_codes in arrived:
            pulls = self._held.get(key)
            if pulls is not None:
                self._wake(
                    key,
                    [
                        p for p in pulls
                        if next_offset > p.looked and p.wanted.matches_codes(tags_codes)
                        and (p.wanted.properties is None or self._may_match(p))
                    ],
                )

    def _may_match(self, pull: HeldPull) -> bool:
        """Return whether a pull runs again. If the look fails it does, and is answered with the error."""
        try:
            return self._has_match(pull)
        except Exception:  # noqa: BLE001 - the other pulls are looked at
            failed(_NAME)
            return True

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
            try:
                pull.reply.finish_when_reading(partial(self._run_again, pull))
            except Exception:  # noqa: BLE001 - the other pulls are answered
                failed(_NAME)

    def _tick(self) -> None:
        self._timer = None
        now = self._loop.time()
        recheck = now >= self._next_recheck
        if recheck:
            self._next_recheck = now + RECHECK_S
        for key in list(self._held):
            with caught(_NAME):
                grown = self._max_offset(*key) if recheck else -1
                self._wake(
                    key,
                    [
                        p for p in self._held[key]
                        if p.deadline <= now or grown > p.offset or p.reply.channel.closed
                    ],
                )
        if self._held and self._timer is None:
            self._timer = self._loop.call_later(TICK_S, self._tick)
