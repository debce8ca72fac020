"""Long polling of pops and notifications: those that found nothing wait for a message (PopLongPollingService).

Requests wait by topic, group and queue; queue -1 means all queues. A message that arrives in the topic, or in a
POP retry topic of the group, wakes one request of each group. A woken request runs again, and waits again if
it finds nothing. When its time is over, it is answered.

The dispatch thread reports arrivals; everything else runs on the event loop. After a request is held, the counts
of arrived messages are compared once more, so that an arrival in between is not missed.
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, final

from tailrace.broker.filters.message_filters import MessageFilter
from tailrace.broker.mailbox import LoopMailbox
from tailrace.broker.reply import Reply, Serve
from tailrace.env.clock import Clock
from tailrace.env.supervision import caught, failed
from tailrace.formats.pop import pop_retry_topics
from tailrace.formats.remoting import RemotingCommand
from tailrace.model import GetMessageStatus
from tailrace.node.message_store import MessageStore
from tailrace.remoting import Channel

__all__ = ["ALL_QUEUES", "Arrival", "PollResult", "PopLongPollingService", "Waiting", "has_match"]

_NAME: Final = "PopLongPollingService"
ALL_QUEUES: Final = -1
EARLY_MS: Final = 50
"""Time before its deadline at which a request is answered, so that the client receives the answer in time."""
EVALUATED_MAX: Final = 8
"""Number of expressions that are evaluated for one arrival and the requests of one group and queue."""
SERVED_AT_ONCE: Final = 64
"""Number of woken requests that run in one turn of the event loop."""


class Arrival(NamedTuple):
    """Messages that became readable in a queue: the offset after the last one, and their tags codes."""

    topic: str
    queue_id: int
    next_offset: int
    codes: Sequence[int]


def has_match(store: MessageStore, wanted: MessageFilter, arrival: Arrival) -> bool:
    """Return whether one of the messages matches the property filter, or may match because it is not cached."""
    result = store.get_message(
        arrival.topic, arrival.queue_id, arrival.next_offset - len(arrival.codes), 1, max_bytes=1,
        property_filter=wanted.properties, only_cached=True)
    return result.is_cold or result.status is not GetMessageStatus.NO_MATCHED_MESSAGE or (
        result.next_begin_offset < arrival.next_offset)


class PollResult(enum.Enum):
    """Result of `PopLongPollingService.poll`: held, refused because too many are held, or out of time."""

    WAITS = 0
    FULL = 1
    TIMEOUT = 2


@dataclass(slots=True, eq=False)
class Waiting:
    """A request that waits for messages that match ``wanted``."""

    reply: Reply
    topic: str
    group: str
    queue_id: int
    wanted: MessageFilter
    timer: asyncio.TimerHandle | None = None
    has_expired: bool = False
    """True if its time is over, so that it was not woken for a message."""


@final
class PopLongPollingService:
    """Holds requests. ``run_again(channel, request)`` returns the answer of a woken request, or holds it again."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, of_key_max: int, all_max: int,
        run_again: Serve, *, notify_last: bool = False,
        has_match: Callable[[MessageFilter, Arrival], bool],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._of_key_max = of_key_max
        self._all_max = all_max
        self._run_again = run_again
        self._notify_last = notify_last
        self._has_match = has_match
        self._count = 0
        self._held: dict[str, dict[str, dict[int, dict[Waiting, None]]]] = {}
        """Requests by topic, group and queue, in the order of their arrival."""
        self._retries: dict[str, dict[tuple[str, str], None]] = {}
        """For each retry topic that held requests also read: topics and groups of these requests."""
        self._arrived: LoopMailbox[Arrival] = LoopMailbox(loop, self._arrivals)
        self._ready: deque[Waiting] = deque()

    def __len__(self) -> int:
        return self._count

    def polling_num(self, topic: str, group: str, queue_id: int) -> int:
        """Return the number of requests that wait for a queue."""
        return len(self._held.get(topic, {}).get(group, {}).get(queue_id, ()))

    def poll(self, waiting: Waiting, until_ms: int, has_grown: Callable[[], bool]) -> PollResult:
        """Hold a request until a message arrives or until ``until_ms``. It may run again in the next turn.

        ``has_grown`` returns whether a message has arrived since the request read its queues.
        """
        left_ms = until_ms - EARLY_MS - self._clock.now_ms()
        if self._count >= self._all_max:
            return PollResult.FULL
        if left_ms <= 0:
            return PollResult.TIMEOUT
        of_key = self._held.setdefault(waiting.topic, {}).setdefault(waiting.group, {}).setdefault(
            waiting.queue_id, {})
        if len(of_key) >= self._of_key_max:
            return PollResult.FULL
        of_key[waiting] = None
        self._count += 1
        for retry in pop_retry_topics(waiting.topic, waiting.group):
            self._retries.setdefault(retry, {})[waiting.topic, waiting.group] = None
        waiting.reply.park()
        waiting.timer = self._loop.call_later(left_ms / 1000, self._expire, waiting)
        if has_grown():
            self._wake(waiting)
        return PollResult.WAITS

    def notify(
        self, topic: str, group: str, queue_id: int, arrival: Arrival | None = None
    ) -> bool:
        """Wake one request that waits for a queue and matches one of the messages; return whether there was one.

        Requests of closed connections are passed over. After `EVALUATED_MAX` expressions the next request is woken
        without an evaluation, because it filters itself when it runs.
        """
        of_key = self._held.get(topic, {}).get(group, {}).get(queue_id, {})
        evaluated = 0
        for waiting in reversed(of_key) if self._notify_last else of_key:
            wanted = waiting.wanted
            if waiting.reply.channel.closed:
                continue
            if arrival is not None and not wanted.matches_codes(arrival.codes):
                continue
            if arrival is not None and wanted.properties is not None and evaluated < EVALUATED_MAX:
                evaluated += 1
                if not self._may_match(wanted, arrival):
                    continue
            self._wake(waiting)
            return True
        return False

    def _may_match(self, wanted: MessageFilter, arrival: Arrival) -> bool:
        """Return whether a request runs again. If the look fails it does, because it filters itself."""
        try:
            return self._has_match(wanted, arrival)
        except Exception:  # noqa: BLE001 - the other requests are looked at
            failed(_NAME)
            return True

    def notify_free(self, topic: str, group: str, queue_id: int) -> None:
        """Wake one request that waits for all queues; if no request does, one that waits for this queue."""
        if not self.notify(topic, group, ALL_QUEUES):
            self.notify(topic, group, queue_id)

    def arriving(
        self, topic: str, queue_id: int, next_offset: int, tags_codes: Sequence[int], size: int
    ) -> None:
        """Note messages that have become readable; called from any thread."""
        if topic in self._held or topic in self._retries:
            self._arrived.put(Arrival(topic, queue_id, next_offset, tags_codes))

    def wake_topics(self, is_gone: Callable[[str], bool]) -> None:
        """Run all requests for topics again that cannot be popped any more."""
        gone = set(filter(is_gone, self._held))
        for waiting in self._all() if gone else ():
            if waiting.topic in gone:
                self._wake(waiting)

    def release(self, is_wanted: Callable[[Channel, RemotingCommand], bool]) -> list[Reply]:
        """Drop the requests for which ``is_wanted`` returns True; return their replies."""
        held = [waiting for waiting in self._all() if is_wanted(waiting.reply.channel, waiting.reply.request)]
        for waiting in held:
            self._forget(waiting)
        ready = {waiting for waiting in self._ready if is_wanted(waiting.reply.channel, waiting.reply.request)}
        for waiting in ready:
            self._ready.remove(waiting)
        held += ready
        for waiting in held:
            waiting.reply.unpark()
        return [waiting.reply for waiting in held]

    def release_all(self) -> list[Reply]:
        """Drop all requests and return their replies, for a stop."""
        return self.release(lambda *_: True)

    def drop_closed(self) -> None:
        """Drop the requests of connections that have closed; called periodically."""
        for waiting in self._all():
            if waiting.reply.channel.closed:
                self._forget(waiting)
                waiting.reply.drop()

    def _all(self) -> list[Waiting]:
        return [
            waiting for groups in self._held.values() for queues in groups.values()
            for of_key in queues.values() for waiting in of_key]

    def _arrivals(self, arrived: list[Arrival]) -> None:
        for arrival in arrived:
            with caught(_NAME):  # the other arrivals wake their requests
                self._notify_all(arrival)

    def _notify_all(self, arrival: Arrival) -> None:
        """Wake one request of each group that waits for the messages of an arrival."""
        topic, queue_id = arrival.topic, arrival.queue_id
        for pair in tuple(self._retries.get(topic, ())):  # the name may be that of several pairs
            for queue in (ALL_QUEUES, *self._held.get(pair[0], {}).get(pair[1], ())):
                if self.notify(*pair, queue):
                    break
        for group in tuple(self._held.get(topic, ())):
            self.notify(topic, group, ALL_QUEUES, arrival)
            self.notify(topic, group, queue_id, arrival)

    def _expire(self, waiting: Waiting) -> None:
        waiting.has_expired = True
        self._wake(waiting)

    def _wake(self, waiting: Waiting) -> None:
        self._forget(waiting)
        if not self._ready:
            self._loop.call_soon(self._serve)
        self._ready.append(waiting)

    def _serve(self) -> None:
        for _ in range(min(SERVED_AT_ONCE, len(self._ready))):
            waiting = self._ready.popleft()
            try:
                reply = waiting.reply
                if reply.channel.closed:
                    reply.drop()
                    self._pass_on(waiting)
                else:
                    if not reply.channel.is_reading():
                        self._pass_on(waiting)
                    reply.finish_when_reading(partial(self._run_again, reply.channel, reply.request))
            except Exception:  # noqa: BLE001 - or the requests after it would wait for ever
                failed(_NAME)
        if self._ready:
            self._loop.call_soon(self._serve)

    def _pass_on(self, waiting: Waiting) -> None:
        """Wake another request in place of one that cannot take messages now.

        A client that does not read its answers runs its request later; the message would wait for that.
        """
        if not waiting.has_expired:
            self.notify(waiting.topic, waiting.group, waiting.queue_id)

    def _forget(self, waiting: Waiting) -> None:
        topic, group = waiting.topic, waiting.group
        groups = self._held[topic]
        queues = groups[group]
        del queues[waiting.queue_id][waiting]
        self._count -= 1
        if waiting.timer is not None:
            waiting.timer.cancel()
        if not queues[waiting.queue_id]:
            del queues[waiting.queue_id]
        if not queues:
            del groups[group]
            for retry in pop_retry_topics(topic, group):
                pairs = self._retries[retry]
                del pairs[topic, group]
                if not pairs:
                    del self._retries[retry]
        if not groups:
            del self._held[topic]
