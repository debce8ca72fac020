"""Which clients subscribe to which Lite topics (LiteSubscriptionRegistryImpl). Used on the event loop only.

Changes with many Lite topics are iterators: the event loop takes some steps of them in a turn (`in_turns`), and serves
other requests between the turns. Each step leaves all tables complete, and a change ends if its client is removed.

A member of a group with ``lite.sub.wildcard`` gets the messages of all Lite topics of its parent topic. It is in the
tables with one queue ``TOPIC@GROUP``, which does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, final

from tailrace import events
from tailrace.broker.clients.client_manager import ClientIds
from tailrace.broker.core.name_servers import NameServers
from tailrace.config import BrokerConfig
from tailrace.env.callbacks import Callbacks
from tailrace.env.clock import Clock
from tailrace.errors import RefusalError
from tailrace.formats.commitlog import LMQ_QUEUE_ID, java_string_hash
from tailrace.formats.lite import (
    LITE_PREFIX,
    consistent_hash,
    lite_topic_of,
    parent_of,
    parent_prefix,
)
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests.message_headers import NotifyUnsubscribeLiteRequestHeader
from tailrace.logs import get_logger
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.consumer_order_info import ConsumerOrderInfoManager
from tailrace.node.message_store import MessageStore
from tailrace.node.subscription_group import SubscriptionGroupManager
from tailrace.remoting import Channel

__all__ = [
    "Claim", "ClientGroup", "LiteQueue", "LiteSubscription", "LiteSubscriptionRegistry", "end_of", "is_mine",
    "lite_queues", "shards",
]

_log = get_logger(__name__)
PERM_WRITE: Final = 2
OF_CLIENT_MAX: Final = 10_000
"""Lite topics of a client. When it goes they are forgotten in one step of the event loop, about 1 us each."""
Claim = Callable[[], None]
"""Gives a client id to the user that sent the request, before its first subscription is visible; or RefusalError."""
Offsets = Callable[[str], int | None]
"""Returns the offset at which a group reads a queue after a subscription; None: where it is."""


class ClientGroup(NamedTuple):
    """A client as a member of a group."""

    client_id: str
    group: str


@dataclass(slots=True)
class LiteSubscription:
    """The Lite topics of a client."""

    group: str
    topic: str
    updated_ms: int
    queues: set[str] = field(default_factory=set)


@final
class LiteSubscriptionRegistry:
    """The subscriptions, by client and by queue. ``order`` has the messages that groups have popped."""

    def __init__(
        self, clock: Clock, store: MessageStore, config: BrokerConfig, groups: SubscriptionGroupManager,
        offsets: ConsumerOffsetManager, client_ids: ClientIds, name_servers: NameServers,
        order: ConsumerOrderInfoManager,
    ) -> None:
        self._clock, self._store, self._config, self._groups = clock, store, config, groups
        self._offsets, self._client_ids, self._name_servers, self._order = offsets, client_ids, name_servers, order
        self._channels: dict[str, Channel] = {}
        self._clients: dict[str, LiteSubscription] = {}
        self._of_queue: dict[str, dict[ClientGroup, None]] = {}
        self._wildcards: dict[str, set[str]] = {}
        """Groups with ``lite.sub.wildcard`` that have members, by parent topic."""
        self._evicted: dict[str, set[str]] = {}
        """Queues that clients of exclusive groups have lost to another member and still believe to have, by client."""
        self.count = 0
        """Number of pairs of a client and a queue."""
        self.registered = Callbacks[[ClientGroup, str]]()
        """Gets a member and a queue that may have messages for it."""
        self.left = Callbacks[[str]]()
        """Gets the id of a client that has no Lite topics any more."""

    # -- changes

    def add(
        self, channel: Channel, client_id: str, group: str, topic: str, queues: Iterable[str], claim: Claim,
        offset_of: Offsets,
    ) -> Iterator[None]:
        """Subscribe a client to further Lite topics, one in a step. Raises RefusalError."""
        config = self._groups.select(group)
        if config is not None and config.is_lite_wildcard:
            raise RefusalError(
                ResponseCode.ILLEGAL_OPERATION, "subscribe lite operation is not supported for this group")
        wanted: dict[str, None] = {}
        yield from self._take_mine(topic, queues, wanted)
        self._check_room(client_id, wanted)
        if not wanted and client_id not in self._clients:
            return
        claim()
        mine = self._subscription(channel, client_id, group, topic)
        member = ClientGroup(client_id, group)
        exclusive = config is not None and config.is_lite_exclusive
        for queue in wanted:
            if self._clients.get(client_id) is not mine:
                return
            if exclusive:
                self._exclude_others(member, queue)
                self._evicted.get(client_id, set()).discard(queue)
            if (offset := offset_of(queue)) is not None:
                self._reset(member, queue, offset)
                if queue in mine.queues:  # it has subscribed before, and there may be messages again
                    self.registered(member, queue)
            self._join(mine, member, queue)
            yield

    def add_all(
        self, channel: Channel, client_id: str, group: str, topic: str, queues: Iterable[str], claim: Claim
    ) -> Iterator[None]:
        """Make these the only Lite topics of a client, one in a step. Raises RefusalError.

        Of an exclusive group a client does not get back what another member has taken: the notification may not have
        reached it, so it is repeated.
        """
        config = self._groups.select(group)
        wanted: dict[str, None] = {}
        wildcard = config is not None and config.is_lite_wildcard
        if wildcard:
            wanted[f"{topic}@{group}"] = None
        else:
            yield from self._take_mine(topic, queues, wanted)
        self._check_room(client_id, wanted)
        if not wanted and client_id not in self._clients:
            return
        claim()
        mine = self._subscription(channel, client_id, group, topic)
        member = ClientGroup(client_id, group)
        for queue in mine.queues - wanted.keys():
            if self._clients.get(client_id) is not mine:
                return
            self._leave(mine, member, queue)
            yield
        for queue in sorted(wanted):
            if self._clients.get(client_id) is not mine:
                return
            if self.is_evicted(client_id, queue):
                self._notify(member, queue)
            else:
                self._join(mine, member, queue)
                if wildcard:
                    self._wildcards.setdefault(topic, set()).add(group)
            yield
        self._forget_evictions(client_id, self._evicted.get(client_id, set()) & wanted.keys())

    def remove(self, client_id: str, group: str, queues: Iterable[str]) -> Iterator[None]:
        """End the subscriptions of a client to some Lite topics, one in a step."""
        mine = self._clients.get(client_id)
        if mine is None:
            return
        mine.updated_ms = self._clock.now_ms()
        member, config = ClientGroup(client_id, mine.group), self._groups.select(group)
        from_start = config is not None and config.is_set("lite.sub.reset.offset.unsubscribe")
        for queue in queues:
            if self._clients.get(client_id) is not mine:
                return
            self._evicted.get(client_id, set()).discard(queue)
            if self._leave(mine, member, queue) and from_start:
                self._reset(member, queue, 0)
            yield

    def remove_all(self, client_id: str) -> None:
        """Forget a client."""
        self._client_ids.release(self, client_id)
        self._channels.pop(client_id, None)
        self._evicted.pop(client_id, None)
        mine = self._clients.pop(client_id, None)
        if mine is None:
            return
        for queue in tuple(mine.queues):
            self._leave(mine, ClientGroup(client_id, mine.group), queue)
        self.left(client_id)

    def forget_clients(self, has_left: Callable[[Channel], bool]) -> None:
        """Forget the clients for whose last connection ``has_left`` returns True."""
        for client_id in [client_id for client_id, channel in self._channels.items() if has_left(channel)]:
            self.remove_all(client_id)

    def forget_queues(self, queues: Iterable[str]) -> None:
        """Forget the subscriptions to queues that are deleted. Clients that still want them subscribe again."""
        queues = set(queues)
        for client_id, lost in tuple(self._evicted.items()):
            self._forget_evictions(client_id, lost - queues)
        for queue in queues:
            for member in self._of_queue.pop(queue, ()):
                self.count -= 1
                mine = self._clients.get(member.client_id)
                if mine is not None:
                    mine.queues.discard(queue)

    def expire(self) -> None:
        """Forget the clients that have not renewed their subscriptions in time."""
        limit = self._clock.now_ms() - self._config.lite_subscription_check_timeout_mills
        for client_id, mine in tuple(self._clients.items()):
            if mine.updated_ms < limit:
                events.LITE_SUBSCRIPTIONS_EXPIRED.log(
                    _log, client=client_id, group=mine.group, topic=mine.topic, count=len(mine.queues))
                self.remove_all(client_id)

    # -- questions

    def of_client(self, client_id: str) -> LiteSubscription | None:
        """Return the subscriptions of a client, or None."""
        return self._clients.get(client_id)

    def clients_of(self, group: str) -> list[str]:
        """Return the clients of a group."""
        return [client_id for client_id, mine in self._clients.items() if mine.group == group]

    def wildcard_members(self, topic: str, group: str) -> list[ClientGroup]:
        """Return the members of a group that get the messages of all Lite topics."""
        return list(self._of_queue.get(f"{topic}@{group}", ()))

    def members(self, queue: str, group: str | None = None) -> dict[str, list[ClientGroup]]:
        """Return the subscribers to a queue by their groups: those of one group, or of all."""
        found: dict[str, list[ClientGroup]] = {}
        for member in self._of_queue.get(queue, ()):
            if group in {None, member.group}:
                found.setdefault(member.group, []).append(member)
        topic = parent_of(queue)
        for wildcard in self._wildcards.get(topic, ()):
            if group in {None, wildcard}:
                found.setdefault(wildcard, self.wildcard_members(topic, wildcard))
        return found

    def is_evicted(self, client_id: str, queue: str) -> bool:
        """Return whether another member of an exclusive group has taken a queue from a client."""
        return bool(self._evicted) and queue in self._evicted.get(client_id, ())

    def has_subscribers(self, queue: str) -> bool:
        """Return whether a queue has a subscriber; called from any thread."""
        return queue in self._of_queue or (bool(self._wildcards) and parent_of(queue) in self._wildcards)

    # -- parts

    def _take_mine(self, topic: str, queues: Iterable[str], mine: dict[str, None]) -> Iterator[None]:
        """Put the Lite topics of this broker into ``mine``: by their names, or because they have messages here."""
        own, brokers = self._config.broker_name, shards(self._name_servers, topic)
        if set(brokers) <= {own}:
            mine.update(dict.fromkeys(queues))
            return
        for queue in queues:
            if is_mine(own, brokers, queue) or end_of(self._store, queue) > 0:
                mine[queue] = None
            yield

    def _check_room(self, client_id: str, queues: Iterable[str]) -> None:
        mine = self._clients.get(client_id)
        known = mine.queues if mine is not None else set[str]()
        more = sum(queue not in known for queue in queues)
        if len(known) + more > OF_CLIENT_MAX:
            raise RefusalError(
                ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
                f"a client may subscribe to at most {OF_CLIENT_MAX} Lite topics")
        limit = self._config.max_lite_subscription_count
        if self.count + more > limit:
            raise RefusalError(
                ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
                f"lite subscription quota exceeded {limit} (maxLiteSubscriptionCount)")

    def _subscription(self, channel: Channel, client_id: str, group: str, topic: str) -> LiteSubscription:
        now, mine = self._clock.now_ms(), self._clients.get(client_id)
        if mine is not None and (mine.group, mine.topic) != (group, topic):
            raise RefusalError(
                ResponseCode.ILLEGAL_OPERATION,
                f"client {client_id} is a member of group {mine.group} for topic {mine.topic}")
        if mine is None:
            mine = self._clients[client_id] = LiteSubscription(group, topic, now)
        mine.updated_ms = now
        self._channels[client_id] = channel
        return mine

    def _join(self, mine: LiteSubscription, member: ClientGroup, queue: str) -> None:
        if member in self._of_queue.get(queue, ()):
            return
        self._check_room(member.client_id, (queue,))  # others may have subscribed since the first step
        mine.queues.add(queue)
        self._of_queue.setdefault(queue, {})[member] = None
        self.count += 1
        self.registered(member, queue)

    def _leave(self, mine: LiteSubscription, member: ClientGroup, queue: str) -> bool:
        mine.queues.discard(queue)
        members = self._of_queue.get(queue, {})
        if member not in members:
            return False
        del members[member]
        self.count -= 1
        if not members:
            del self._of_queue[queue]
            if queue == f"{mine.topic}@{mine.group}" and (groups := self._wildcards.get(mine.topic)) is not None:
                groups.discard(mine.group)
                if not groups:
                    del self._wildcards[mine.topic]
        return True

    def _exclude_others(self, member: ClientGroup, queue: str) -> None:
        """End the subscriptions of the other members of a group, and say so to them."""
        config = self._groups.select(member.group)
        from_start = config is not None and config.is_set("lite.sub.reset.offset.exclusive")
        for other in tuple(self._of_queue.get(queue, ())):
            if other.group != member.group or other == member:
                continue
            theirs = self._clients.get(other.client_id)
            if theirs is None:
                continue
            self._leave(theirs, other, queue)
            lost = self._evicted.setdefault(other.client_id, set())
            if len(lost) < OF_CLIENT_MAX:
                lost.add(queue)
            if from_start:
                self._reset(other, queue, 0)
            self._notify(other, queue)

    def _forget_evictions(self, client_id: str, but: set[str]) -> None:
        if but:
            self._evicted[client_id] = but
        else:
            self._evicted.pop(client_id, None)

    def _notify(self, member: ClientGroup, queue: str) -> None:
        channel = self._channels.get(member.client_id)
        if channel is None or channel.closed:
            return  # the client learns it when it subscribes again
        channel.request_oneway(RemotingCommand(
            RequestCode.NOTIFY_UNSUBSCRIBE_LITE, NotifyUnsubscribeLiteRequestHeader(
                lite_topic_of(queue), member.group, member.client_id).to_ext()))

    def _reset(self, member: ClientGroup, queue: str, offset: int) -> None:
        """Have a group read a queue from an offset. Receipts that its members have are no longer valid."""
        events.LITE_OFFSET_RESET.log(_log, group=member.group, topic=queue, offset=offset, client=member.client_id)
        self._offsets.commit(member.group, queue, LMQ_QUEUE_ID, offset)
        self._order.clear(queue, member.group, LMQ_QUEUE_ID)


def shards(name_servers: NameServers, topic: str) -> list[str]:
    """Return the brokers among which producers share out the Lite topics of a topic: a name for each of its queues."""
    route = name_servers.route(topic)
    return [
        data["brokerName"] for data in sorted((route or {}).get("queueDatas", ()), key=lambda data: data["brokerName"])
        if data["perm"] & PERM_WRITE for _ in range(data.get("writeQueueNums", 0))]


def is_mine(own: str, brokers: list[str], queue: str) -> bool:
    """Return whether producers send the messages of a Lite topic to the broker ``own`` (LiteShardingImpl)."""
    name = lite_topic_of(queue)
    return not (brokers and name) or brokers[consistent_hash(java_string_hash(name), len(brokers))] == own


class LiteQueue(NamedTuple):
    """The queue of a Lite topic, with the offset of its first message and the one after its last message."""

    name: str
    start: int
    end: int


def lite_queues(store: MessageStore, parent: str | None = None) -> list[LiteQueue]:
    """Return the queues of the Lite topics of a parent topic, or of all. Takes time that grows with the queues."""
    prefix = LITE_PREFIX if parent is None else parent_prefix(parent)
    return [
        LiteQueue(topic, start, end) for topic, queue_id, start, end in store.queues()
        if queue_id == LMQ_QUEUE_ID and topic.startswith(prefix)]


def end_of(store: MessageStore, queue: str) -> int:
    """Return the offset after the last message of a queue; 0 if there is no such queue."""
    return store.queue_of(queue, LMQ_QUEUE_ID).max
