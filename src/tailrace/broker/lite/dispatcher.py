"""Which Lite topics have messages for which client (LiteEventDispatcher).

It is used on the event loop; only `arriving` is called by other threads.

An event is the name of a queue that has messages. It is noted for one member of each group, which takes it with its
next pop. An event that a member does not take in time goes to another member. If a member has too many events, all its
Lite topics are looked at later: a full dispatch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, final

from tailrace import events
from tailrace.broker.lite.registry import ClientGroup, LiteSubscriptionRegistry, end_of, lite_queues
from tailrace.config import BrokerConfig
from tailrace.env.callbacks import Callbacks
from tailrace.env.clock import Clock
from tailrace.env.entropy import Entropy
from tailrace.env.supervision import caught
from tailrace.formats.commitlog import LMQ_QUEUE_ID
from tailrace.formats.lite import LITE_PREFIX
from tailrace.logs import get_logger
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.message_store import MessageStore
from tailrace.node.subscription_group import SubscriptionGroupManager
from tailrace.requests.executors import Executors, LoopMailbox

__all__ = ["LiteEventDispatcher"]

_log = get_logger(__name__)
_NAME: Final = "LiteEventDispatcher"
INACTIVE_MS: Final = 10_000
"""A client with events that has not popped for this long loses them to another one."""
LONG_POLLING_MS: Final = 35_000
"""A client that has not popped for this long has gone."""
AVOIDED_MS: Final = 10_000
"""For how long a client that has lost its events gets none if another one can."""
ACTIVE_MS: Final = 5_000
LOW_WATER: Final = 0.2
AFTER_JOIN_MS: Final = 5_000
"""Until a group that gets all Lite topics is looked at after a member has joined."""
DELAY_MIN_MS: Final = 50
SPREAD_MS: Final = 15_000
WOKEN_EVERY: Final = 10


@dataclass(slots=True)
class _Events:
    """The queues with messages that a client has not fetched yet."""

    group: str
    most: int
    accessed_ms: int
    queues: dict[str, None] = field(default_factory=dict)

    def offer(self, queue: str) -> bool:
        """Note a queue; return whether there was room."""
        if queue not in self.queues and len(self.queues) >= self.most:
            return False
        self.queues[queue] = None
        return True

    def may_be_gone(self, now: int) -> bool:
        """Return whether the client has not popped for too long."""
        idle = now - self.accessed_ms
        return idle > LONG_POLLING_MS or (bool(self.queues) and idle > INACTIVE_MS)


class _Later(NamedTuple):
    at_ms: int
    group: str
    client_id: str
    """Empty for a group that gets all Lite topics."""


@final
class LiteEventDispatcher:
    """Notes events, and has the pops woken that wait for them."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, entropy: Entropy, store: MessageStore,
        config: BrokerConfig, executors: Executors, groups: SubscriptionGroupManager, offsets: ConsumerOffsetManager,
        registry: LiteSubscriptionRegistry,
    ) -> None:
        self._loop, self._clock, self._entropy, self._config = loop, clock, entropy, config
        self._executors, self._groups, self._offsets, self._store = executors, groups, offsets, store
        self._registry = registry
        self.noted = Callbacks[[str, str]]()
        """Gets client id and group when a client has an event for which its pop may wait."""
        self._events: dict[str, _Events] = {}
        self._later: dict[tuple[str, str], _Later] = {}
        """Full dispatches that are due, by group and client."""
        self._avoided: dict[str, int] = {}
        """Clients that have lost their events, with the time until which others come first."""
        self._arrived: LoopMailbox[str] = LoopMailbox(loop, self._arrivals)
        self._tasks: set[asyncio.Task[None]] = set()
        registry.registered.add(self._registered)
        registry.left.add(self._left)

    def __len__(self) -> int:
        """Return the number of clients with a table of events."""
        return len(self._events)

    # -- arrivals

    def arriving(
        self, topic: str, queue_id: int, next_offset: int, tags_codes: Sequence[int], size: int
    ) -> None:
        """Note messages that have become readable; called from any thread."""
        if queue_id == LMQ_QUEUE_ID and topic.startswith(LITE_PREFIX) and self._registry.has_subscribers(topic):
            self._arrived.put(topic)

    def _arrivals(self, queues: list[str]) -> None:
        for queue in dict.fromkeys(queues):
            with caught(_NAME):
                self.dispatch(queue)

    # -- events

    def dispatch(self, queue: str, group: str | None = None, but: str = "") -> None:
        """Note that a queue has messages, for one member of each group, or of one group; not ``but`` if possible."""
        for members in self._registry.members(queue, group).values():
            self._to_one(queue, members, but)

    def next_event(self, client_id: str) -> str | None:
        """Return a queue that has messages for a client, and drop the event; None without one."""
        events = self._events.get(client_id)
        if events is None:
            return None
        events.accessed_ms = self._clock.now_ms()
        if not events.queues:
            return None
        queue = next(iter(events.queues))
        del events.queues[queue]
        return queue

    def put_back(self, client_id: str, group: str, queue: str) -> None:
        """Note an event again that could not be served; there is room, because it was just taken."""
        self._events_of(client_id, group).offer(queue)

    def has_events(self, client_id: str) -> bool:
        """Return whether there are queues with messages for a client."""
        events = self._events.get(client_id)
        return events is not None and bool(events.queues)

    def accessed_ms(self, client_id: str) -> int:
        """Return when a client has popped last; -1 if no event was noted for it."""
        events = self._events.get(client_id)
        return -1 if events is None else events.accessed_ms

    def _to_one(self, queue: str, members: list[ClientGroup], but: str) -> bool:
        """Note an event for one of these members of a group; return whether one had room."""
        if not members:
            return True
        group, now = members[0].group, self._clock.now_ms()
        config = self._groups.select(group)
        wildcard = config is not None and config.is_lite_wildcard
        first = self._entropy.randrange(len(members)) if len(members) > 1 else 0
        others: list[ClientGroup] = []
        for member in (*members[first:], *members[:first]):
            avoided = self._avoided.get(member.client_id, 0) > now
            if member.client_id == but or avoided:
                if not (avoided and wildcard and member.client_id != but):  # a group may have very many members
                    others.append(member)
            elif self._offer(queue, member, schedule=not wildcard):
                return True
        if any(self._offer(queue, member, schedule=not wildcard) for member in others):
            return True
        if wildcard:
            self._schedule(group, "", self._config.lite_event_full_dispatch_delay_time_for_wildcard_group)
        return False

    def _offer(self, queue: str, member: ClientGroup, *, schedule: bool) -> bool:
        if self._events_of(*member).offer(queue):
            self.noted(*member)
            return True
        if schedule:
            spread = self._avoided.get(member.client_id, 0) > self._clock.now_ms()
            self._schedule(
                member.group, member.client_id, self._config.lite_event_full_dispatch_delay_time
                + (self._entropy.randrange(SPREAD_MS) if spread else 0))
        return False

    def _events_of(self, client_id: str, group: str) -> _Events:
        events = self._events.get(client_id)
        if events is None:
            config = self._groups.select(group)
            most = config.lite_events_max if config is not None else -1
            events = self._events[client_id] = _Events(
                group, most if most > 0 else self._config.max_client_event_count, self._clock.now_ms())
        return events

    def _registered(self, member: ClientGroup, queue: str) -> None:
        config = self._groups.select(member.group)
        if config is not None and config.is_lite_wildcard:
            self._schedule(member.group, "", AFTER_JOIN_MS)
        elif end_of(self._store, queue) > 0:
            self.dispatch(queue, member.group)

    def _left(self, client_id: str) -> None:
        events = self._events.pop(client_id, None)
        for queue in events.queues if events is not None else ():
            assert events is not None
            self.dispatch(queue, events.group, client_id)

    # -- full dispatches

    def _schedule(self, group: str, client_id: str, delay_ms: int) -> None:
        at_ms = self._clock.now_ms() + max(DELAY_MIN_MS, delay_ms)
        self._later.setdefault((group, client_id), _Later(at_ms, group, client_id))

    def scan(self) -> None:
        """Give the events of clients that have gone to others, then run the full dispatches that are due."""
        now = self._clock.now_ms()
        self._avoided = {client_id: until for client_id, until in self._avoided.items() if until > now}
        for client_id, held in tuple(self._events.items()):
            if not held.may_be_gone(now):
                continue
            del self._events[client_id]
            if held.queues:
                events.LITE_EVENTS_GO_TO_ANOTHER_CLIENT.log(
                    _log, client=client_id, group=held.group, count=len(held.queues))
                self._avoided[client_id] = now + AVOIDED_MS
            for queue in held.queues:
                with caught(_NAME):
                    self.dispatch(queue, held.group, client_id)
        for later in [later for later in self._later.values() if later.at_ms <= now]:
            del self._later[later.group, later.client_id]
            with caught(_NAME):
                if later.client_id:
                    self.look_for_client(later.client_id, later.group)
                else:
                    self.look_for_group(later.group)

    def look_for_client(self, client_id: str, group: str) -> None:
        """Note an event for each Lite topic of a client that has messages: a full dispatch."""
        mine = self._registry.of_client(client_id)
        if mine is None or mine.group != group or not mine.queues:
            return
        delay = self._config.lite_event_full_dispatch_delay_time
        now, events = self._clock.now_ms(), self._events_of(client_id, group)
        active = now - events.accessed_ms < ACTIVE_MS
        if events.may_be_gone(now) or len(events.queues) >= LOW_WATER * events.most:
            self._schedule(group, client_id, delay + (0 if active else self._entropy.randrange(SPREAD_MS)))
            return
        count = 0
        for queue in sorted(mine.queues):
            if not self._has_messages(group, queue):
                continue
            if not events.offer(queue):
                self._schedule(group, client_id, delay + (0 if active else self._entropy.randrange(SPREAD_MS)))
                break
            if count % WOKEN_EVERY == 0:
                self.noted(client_id, group)
            count += 1
        if events.queues:
            self.noted(client_id, group)

    def look_for_group(self, group: str) -> None:
        """Look for messages of all Lite topics of a group: a full dispatch for each of its clients."""
        config = self._groups.select(group)
        if config is None or not config.is_lite_wildcard:
            for client_id in self._registry.clients_of(group):
                self.look_for_client(client_id, group)
            return
        if self._registry.wildcard_members(config.lite_bind_topic, group):
            task = self._loop.create_task(self._look_at_all(group, config.lite_bind_topic))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _look_at_all(self, group: str, topic: str) -> None:
        """Note events for all Lite topics of a parent topic that have messages. A thread finds them."""
        with caught(_NAME):
            found = await self._executors.look_ups.run(self._with_messages, group, topic)
            for queue in found:
                if not self._to_one(queue, self._registry.wildcard_members(topic, group), ""):
                    return  # no member has room; there is another full dispatch later

    def _with_messages(self, group: str, topic: str) -> list[str]:
        return [queue.name for queue in lite_queues(self._store, topic) if self._has_messages(group, queue.name)]

    def _has_messages(self, group: str, queue: str) -> bool:
        end = end_of(self._store, queue)
        return end > 0 and self._offsets.query(group, queue, LMQ_QUEUE_ID) < end

    async def stop(self) -> None:
        """Wait for the search that runs."""
        if self._tasks:
            await asyncio.wait(set(self._tasks))
