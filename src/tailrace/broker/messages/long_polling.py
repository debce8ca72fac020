"""Long polling: pulls that found no message are held until one arrives (PullRequestHoldService).

Pulls are held by queue. A held pull runs again when a message arrives whose tag matches, when its deadline
has passed, when its queue has grown, which is checked every 5 s, or when its queue can no longer be read, because its
topic was deleted or changed. The second run always answers, with or without messages.

The dispatch thread reports arrivals; everything else runs on the event loop. After a pull is held, the end
of its queue is compared once more, so a message that arrived in between is not missed.
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar, final

from tailrace.broker.messages.pulls import Pull
from tailrace.env.supervision import caught, failed
from tailrace.filters.message_filters import MessageFilter
from tailrace.requests.executors import LoopMailbox
from tailrace.requests.reply import Reply, Waiters

__all__ = ["HeldPull", "LongPolling", "PollResult", "PullRequestHoldService", "Waiter"]

SERVED_AT_ONCE: Final = 64
"""Number of woken requests that run in one turn of the event loop."""
Key = tuple[Any, ...]


class PollResult(enum.Enum):
    """Result of `LongPolling.poll`: held, refused because too many are held, or out of time."""

    WAITS = 0
    FULL = 1
    TIMEOUT = 2


@dataclass(slots=True, eq=False)
class Waiter:
    """A request that waits under ``key`` for messages that match ``wanted``."""

    reply: Reply
    key: Key
    wanted: MessageFilter
    timer: asyncio.TimerHandle | None = field(init=False, default=None)
    """Wakes it when its time is over; None when it does not wait any more."""
    has_expired: bool = field(init=False, default=False)
    """True if its time is over, so that it was not woken for a message."""


_Waiter = TypeVar("_Waiter", bound=Waiter)


class LongPolling(Waiters[_Waiter]):
    """Requests that wait until they are woken or their time is over. Then they run again, and may wait again."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, run_again: Callable[[_Waiter], object], of_key_max: float = float("inf"),
        all_max: float = float("inf"), *, on_wait: Callable[[], object], one_by_one: bool = True,
        last_first: bool = False, is_gone: Callable[..., bool] | None = None,
    ) -> None:
        """``run_again`` returns the result of a woken request, or None after it has made it wait again.

        At most ``of_key_max`` requests wait under one key. With ``one_by_one`` one request is woken for an event, the
        first that waits or the last; if it cannot be answered now, another one is woken in its place. ``is_gone`` is
        called with each key when topics have changed, and returns whether no message can arrive for it. ``on_wait`` is
        called after a request has begun to wait.
        """
        super().__init__()
        self._on_wait = on_wait
        self._loop = loop
        self._run_again = run_again
        self._is_gone = is_gone
        self._changed: LoopMailbox[None] = LoopMailbox(loop, self._wake_gone)
        self._of_key_max, self._all_max = of_key_max, all_max
        self._one_by_one, self._last_first = one_by_one, last_first
        self._of_key: dict[Key, dict[_Waiter, None]] = {}
        self._ready: deque[_Waiter] = deque()

    def __iter__(self) -> Iterator[_Waiter]:
        yield from super().__iter__()
        yield from self._ready

    def polling_num(self, key: Key) -> int:
        """Return the number of requests that wait under a key."""
        return len(self._of_key.get(key, ()))

    def poll(self, waiter: _Waiter, left_ms: float, has_grown: Callable[[], bool]) -> PollResult:
        """Have a request wait for an event for ``left_ms``. It may run again in the next turn.

        ``has_grown`` returns whether a message has arrived since the request read its queues.
        """
        if self._count >= self._all_max:
            return PollResult.FULL
        if left_ms <= 0:
            return PollResult.TIMEOUT
        if self.polling_num(waiter.key) >= self._of_key_max:
            return PollResult.FULL
        self._add(waiter)
        waiter.timer = self._loop.call_later(left_ms / 1000, self._expire, waiter)
        self._on_wait()
        if has_grown():
            self.wake(waiter)
        return PollResult.WAITS

    def _add(self, entry: _Waiter) -> None:
        super()._add(entry)
        self._of_key.setdefault(entry.key, {})[entry] = None

    def _remove(self, entry: _Waiter) -> None:
        if entry.timer is None:
            self._ready.remove(entry)
        else:
            self._leave(entry)

    def _leave(self, waiter: _Waiter) -> None:
        """Remove a request that waits under its key."""
        assert waiter.timer is not None
        waiter.timer.cancel()
        waiter.timer = None
        super()._remove(waiter)
        waiters = self._of_key[waiter.key]
        del waiters[waiter]
        if not waiters:
            del self._of_key[waiter.key]

    def notify(self, key: Key, is_wanted: Callable[[_Waiter], bool] | None = None) -> bool:
        """Wake one request of a key, for which ``is_wanted`` returns True; return whether there was one.

        Requests of closed connections are passed over.
        """
        waiters = self._of_key.get(key, {})
        for waiter in reversed(waiters) if self._last_first else waiters:
            if not waiter.reply.channel.closed and (is_wanted is None or is_wanted(waiter)):
                self.wake(waiter)
                return True
        return False

    def topics_changed(self) -> None:
        """Run the requests again whose topic or queue is gone. Any thread may call this."""
        if self._count:
            self._changed.put(None)

    def _wake_gone(self, _: list[None]) -> None:
        for key in [key for key in self._of_key if self._is_gone is not None and self._is_gone(*key)]:
            for waiter in tuple(self._of_key[key]):
                self.wake(waiter)

    def wake(self, waiter: _Waiter) -> None:
        """Run a request again, in the next turn of the event loop."""
        if not self._ready:
            self._loop.call_soon(self._serve)
        self._make_ready(waiter)

    def _make_ready(self, waiter: _Waiter) -> None:
        self._leave(waiter)
        self._ready.append(waiter)

    def _expire(self, waiter: _Waiter) -> None:
        waiter.has_expired = True
        self.wake(waiter)

    def _may_match(self, look: Callable[[], bool]) -> bool:
        """Return whether a request runs again. If ``look`` fails it does, because it filters itself."""
        try:
            return look()
        except Exception:  # noqa: BLE001 - the other requests are looked at
            failed(type(self).__name__)
            return True

    def _serve(self) -> None:
        for _ in range(min(SERVED_AT_ONCE, len(self._ready))):
            waiter = self._ready.popleft()
            reply = waiter.reply
            try:
                if self._one_by_one and not waiter.has_expired and (
                    reply.channel.closed or not reply.channel.is_reading()
                ):  # it would run when its client reads again, and the message would wait for that
                    self.notify(waiter.key)
                reply.finish_when_reading(partial(self._run_again, waiter))
            except Exception:  # noqa: BLE001 - or the requests after it would wait for ever
                failed(type(self).__name__)
        if self._ready:
            self._loop.call_soon(self._serve)


_NAME: Final = "PullRequestHoldService"
LEAST_S: Final = 0.2
"""Least time that a pull is held, so that a client which asks for less does not pull in a loop."""
RECHECK_S: Final = 5.0
"""Time between two checks whether queues have grown."""


@dataclass(slots=True, eq=False)
class HeldPull(Waiter):
    """A pull that waits for a message at ``offset``, or after it. Its key is its topic and queue."""

    offset: int
    pull: Pull
    looked: int = field(init=False)
    """Offset up to which no message matches its property filter."""

    def __post_init__(self) -> None:
        self.looked = self.offset


@final
class PullRequestHoldService(LongPolling[HeldPull]):
    """Holds pulls until they can be answered.

    The broker passes in five functions: ``max_offset(topic, queue_id)``, ``run_again(pull)``,
    ``has_match(pull)``, which is called for pulls with a property filter when their queue has grown,
    ``is_gone(topic, queue_id)``, which is called for each queue when topics have changed, and ``on_wait()``, see
    `LongPolling`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        max_offset: Callable[[str, int], int],
        run_again: Callable[[HeldPull], object],
        has_match: Callable[[HeldPull], bool],
        is_gone: Callable[[str, int], bool],
        on_wait: Callable[[], object],
    ) -> None:
        super().__init__(loop, run_again, on_wait=on_wait, one_by_one=False, is_gone=is_gone)
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
