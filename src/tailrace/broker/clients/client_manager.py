"""The connected producers and consumers, as their heartbeats describe them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, final

from tailrace import events
from tailrace.auth.check import AccessControl
from tailrace.broker.clients.rebalance_lock import RebalanceLockManager
from tailrace.env.callbacks import Callbacks
from tailrace.env.clock import Clock
from tailrace.env.owner import ThreadOwner
from tailrace.errors import RefusalError, StoreError
from tailrace.filters.subscriptions import TAG, SubscriptionData
from tailrace.formats.remoting import LANGUAGES, RemotingCommand, RequestCode, sender_of
from tailrace.formats.requests.consumer_headers import NotifyConsumerIdsChangedRequestHeader
from tailrace.logs import get_logger
from tailrace.remoting import Channel

__all__ = [
    "ClientIds", "ClientInfo", "ConnectedClients", "ConsumerGroupInfo", "ConsumerManager", "ProducerManager",
    "SubscriptionListener",
]

_log = get_logger(__name__)

BROADCASTING: Final = "BROADCASTING"
UNKNOWN_FINGERPRINT: Final = 0
LOGGED_MAX: Final = 20
"""If a closed connection was in more groups than this, one log line reports them together."""
TEXT_MAX: Final = 200
"""Number of characters of an expression in a line of the log."""
GROUPS_OF_CHANNEL_MAX: Final = 1_000
"""Number of consumer groups that one connection may be in, and of producer groups."""


@dataclass(slots=True)
class ClientInfo:
    """A client on a connection."""

    client_id: str
    language: int
    version: int
    channel: Channel
    last_update_ns: int = 0
    last_update_ms: int = 0
    fingerprint: int = UNKNOWN_FINGERPRINT
    """Fingerprint of the subscriptions in its last complete heartbeat; 0 if it has sent none."""
    subscriptions: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Type and text of its expressions by topic, as in its last complete heartbeat."""

    def to_json(self) -> dict[str, Any]:
        """Return the connection by RocketMQ's names, as mqadmin reads it."""
        return {
            "clientAddr": self.channel.peer,
            "clientId": self.client_id,
            "language": LANGUAGES[self.language] if self.language < len(LANGUAGES) else "OTHER",
            "version": self.version,
        }


@dataclass(slots=True)
class ConsumerGroupInfo:
    """A group with its members."""

    group: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    members: dict[Channel, ClientInfo] = field(default_factory=dict)
    told: dict[str, frozenset[tuple[str, str] | None]] = field(default_factory=dict)
    """Topics to which members have different subscriptions, with the pair that was logged last."""

    @property
    def broadcasting(self) -> bool:
        """Whether each member gets every message."""
        return self.message_model == BROADCASTING

    def client_ids(self) -> list[str]:
        """Return the client ids of the members, each once."""
        return list(dict.fromkeys(m.client_id for m in self.members.values()))

    def take_subscriptions(self, member: ClientInfo, wanted: Iterable[SubscriptionData]) -> bool:
        """Replace the subscriptions of the group with those of a member; return whether a topic was added or removed.

        Of two expressions for a topic that of the higher version counts, as in RocketMQ. But if a member has changed
        its own expression, the new one counts, because its version is lower only if the clock of the client has
        stepped back. Members that differ are logged.
        """
        changed = False
        kept: dict[str, SubscriptionData] = {}
        before, member.subscriptions = member.subscriptions, {}
        for new in wanted:
            old = self.subscriptions.get(new.topic)
            member.subscriptions[new.topic] = new.wants
            if old is None:
                changed = True
                events.SUBSCRIPTION_ADDED.log(_log, group=self.group, topic=new.topic)
            elif old.wants != new.wants:
                takes = new.sub_version > old.sub_version or before.get(new.topic, new.wants) != new.wants
                if takes:
                    events.SUBSCRIPTION_CHANGED.log(
                        _log, group=self.group, topic=new.topic, subscription=_text(new.wants), before=_text(old.wants))
                self._differ(member, new.topic, new if takes else old)
                kept[new.topic] = new if takes else old
                continue
            kept[new.topic] = new if old is None or new.sub_version > old.sub_version else old
        for topic in self.subscriptions.keys() - kept.keys():
            changed = True
            self._differ(member, topic, None)
            events.SUBSCRIPTION_REMOVED.log(_log, group=self.group, topic=topic)
        for topic in kept.keys() - self.subscriptions.keys():
            self._differ(member, topic, kept[topic])
        self.subscriptions = kept
        return changed

    def _differ(self, member: ClientInfo, topic: str, counts: SubscriptionData | None) -> None:
        """Log if another member has another subscription to a topic; ``counts`` is that of the group from now on.

        The same pair of subscriptions is logged once.
        """
        mine = member.subscriptions.get(topic)
        for other in self.members.values():
            if other is member or not other.subscriptions or (theirs := other.subscriptions.get(topic)) == mine:
                continue
            pair = frozenset((mine, theirs))
            if self.told.get(topic) != pair:
                self.told[topic] = pair
                events.MEMBERS_HAVE_DIFFERENT_SUBSCRIPTIONS.log(
                    _log, group=self.group, topic=topic, client=member.client_id, subscription=_text(mine),
                    other_client=other.client_id, other_subscription=_text(theirs),
                    counts=_text(None if counts is None else counts.wants))
            return
        self.told.pop(topic, None)


def _text(wants: tuple[str, str] | None) -> str:
    """Return an expression for a line of the log; "-" without a subscription."""
    if wants is None:
        return "-"
    kind, text = wants
    return text[:TEXT_MAX] if kind == TAG else f"{kind[:TEXT_MAX]} {text[:TEXT_MAX]}"


class SubscriptionListener(Protocol):
    """Is called when a heartbeat brings subscriptions, and when a group has no member any more."""

    def registered(self, group: str, subscriptions: Iterable[SubscriptionData]) -> None:
        """Take note of all subscriptions of a group."""
        ...

    def gone(self, group: str) -> None:
        """Take note that a group has no member any more."""
        ...


class ConsumerManager:
    """Consumer groups that have a live member. The thread of the event loop constructs it and changes it.

    ``notify_enabled(group)`` returns whether the members of a group are notified of changes (request 40).
    """

    def __init__(
        self, clock: Clock, expired_ms: int, notify_enabled: Callable[[str], bool],
        listener: SubscriptionListener,
    ) -> None:
        self._clock = clock
        self._expired_ns = expired_ms * 1_000_000
        self._notify_enabled = notify_enabled
        self._listener = listener
        self._owner = ThreadOwner("ConsumerManager")
        self._groups: dict[str, ConsumerGroupInfo] = {}
        self._joined: dict[Channel, set[str]] = {}
        self._changed = Callbacks[[]]()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` when a group has other subscriptions or another message model, or no member any more."""
        self._changed.add(listener)

    def groups(self) -> list[ConsumerGroupInfo]:
        """All live groups."""
        return list(self._groups.values())

    def find(self, group: str) -> ConsumerGroupInfo | None:
        """Return the group, or None if it has no live member."""
        return self._groups.get(group)

    def find_client(self, group: str, client_id: str) -> ClientInfo | None:
        """Return a member by its client id; None if the group has no such member."""
        info = self._groups.get(group)
        if info is not None:
            for member in info.members.values():
                if member.client_id == client_id:
                    return member
        return None

    def member(self, group: str, channel: Channel, client_id: str) -> ClientInfo | None:
        """Return a member by its connection, or if that is not known by its client id on another connection."""
        info = self._groups.get(group)
        found = info.members.get(channel) if info is not None else None
        if found is not None and found.client_id == client_id:
            return found
        return self.find_client(group, client_id)

    def ask_for_subscriptions(self, group: str, channel: Channel) -> None:
        """Have a member send its subscriptions again.

        Its fingerprint is forgotten, so its next heartbeat without subscriptions is answered with "changed".

        The reason is a race in Java clients: while one heartbeat is under way, a rebalance drops the heartbeat
        that would carry the new subscription versions. All later heartbeats leave the subscriptions out, so
        without this call every pull would be refused as not latest.
        """
        info = self._groups.get(group)
        member = info.members.get(channel) if info is not None else None
        if member is not None:
            member.fingerprint = UNKNOWN_FINGERPRINT

    def groups_of(self, topic: str) -> list[str]:
        """Return the live groups that subscribe to a topic."""
        return [g.group for g in list(self._groups.values()) if topic in g.subscriptions]

    def register(
        self, channel: Channel, request: RemotingCommand, client_id: str, data: dict[str, Any],
        *, keep_subscriptions: bool = False,
    ) -> bool:
        """Register one consumer group of a heartbeat; return whether its members or subscriptions changed."""
        self._owner.check()
        group = str(data["groupName"])
        joined = self._joined.setdefault(channel, set())
        _check_groups(joined, group)
        joined.add(group)
        info = self._groups.get(group)
        if info is None:
            info = self._groups[group] = ConsumerGroupInfo(group)
        before = info.message_model, info.subscriptions
        info.consume_type = str(data.get("consumeType") or info.consume_type)
        info.message_model = str(data.get("messageModel") or info.message_model)
        info.consume_from_where = str(data.get("consumeFromWhere") or info.consume_from_where)
        member = info.members.get(channel)
        changed = member is None or member.client_id != client_id
        if member is None or changed:
            member = ClientInfo(client_id, request.language, request.version, channel)
            info.members[channel] = member
            events.CONSUMER_REGISTERED.log(_log, group=group, client=client_id, peer=channel.peer)
        self._touch(member)
        if not keep_subscriptions:
            wanted = [SubscriptionData.from_json(s) for s in data.get("subscriptionDataSet") or ()]
            changed |= info.take_subscriptions(member, wanted)
            self._listener.registered(group, info.subscriptions.values())
        if before != (info.message_model, info.subscriptions):
            self._changed()
        if changed:
            self._notify(info)
        return changed

    def joined(self, channel: Channel) -> list[ConsumerGroupInfo]:
        """Return the groups that a connection is a member of."""
        return [self._groups[group] for group in self._joined.get(channel, ())]

    def leave(self, channel: Channel, group: str) -> None:
        """Remove a member by its connection."""
        self._remove(self._groups[group], [channel])

    def unregister(self, channel: Channel, group: str, client_id: str) -> None:
        """Remove a member that leaves its group."""
        info = self._groups.get(group)
        member = info.members.get(channel) if info is not None else None
        if info is not None and member is not None and member.client_id == client_id:
            self._remove(info, [channel])

    def closed(self, channel: Channel) -> None:
        """Remove the members on a connection that has closed."""
        joined = list(self._joined.get(channel, ()))
        many = len(joined) > LOGGED_MAX
        if many:
            events.CONSUMERS_UNREGISTERED.log(_log, peer=channel.peer, groups=len(joined))
        for group in joined:
            self._remove(self._groups[group], [channel], quiet=many)

    def expire(self) -> None:
        """Forget members without a heartbeat for too long, and close their connections."""
        limit = self._clock.monotonic_ns() - self._expired_ns
        for info in list(self._groups.values()):
            gone = [c for c, m in info.members.items() if m.last_update_ns < limit]
            if gone:
                self._remove(info, gone)
                for channel in gone:
                    events.CONSUMER_EXPIRED.log(_log, group=info.group, peer=channel.peer)
                    channel.close()

    def _touch(self, member: ClientInfo) -> None:
        member.last_update_ns = self._clock.monotonic_ns()
        member.last_update_ms = self._clock.now_ms()

    def _remove(
        self, info: ConsumerGroupInfo, channels: list[Channel], *, quiet: bool = False
    ) -> None:
        self._owner.check()
        for channel in channels:
            member = info.members.pop(channel)
            joined = self._joined[channel]
            joined.discard(info.group)
            if not joined:
                del self._joined[channel]
            if not quiet:
                events.CONSUMER_UNREGISTERED.log(_log, group=info.group, client=member.client_id, peer=channel.peer)
        if not info.members:
            del self._groups[info.group]
            self._listener.gone(info.group)
            self._changed()
        else:
            self._notify(info)

    def _notify(self, info: ConsumerGroupInfo) -> None:
        if info.broadcasting or not self._notify_enabled(info.group):
            return
        notice = RemotingCommand(
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
            NotifyConsumerIdsChangedRequestHeader(info.group).to_ext())
        for channel in list(info.members):
            channel.request_oneway(notice)


class ProducerManager:
    """Producer groups that have a live member. The thread of the event loop constructs it and changes it."""

    def __init__(self, clock: Clock, expired_ms: int) -> None:
        self._clock = clock
        self._expired_ns = expired_ms * 1_000_000
        self._owner = ThreadOwner("ProducerManager")
        self._groups: dict[str, dict[Channel, ClientInfo]] = {}
        self._joined: dict[Channel, set[str]] = {}
        self._turn = 0
        self._clients: dict[str, Counter[Channel]] = {}
        """By client id: its connections, the latest last, each with its number of groups."""

    def groups(self) -> dict[str, list[ClientInfo]]:
        """Return the members of each group."""
        return {
            group: list(members.values()) for group, members in list(self._groups.items())}

    def members(self, group: str) -> list[ClientInfo]:
        """Return the members of a group; empty if it has no member."""
        return list(self._groups.get(group, {}).values())

    def find_channel(self, client_id: str) -> Channel | None:
        """Return the latest connection over which a client has joined a producer group."""
        channels = self._clients.get(client_id)
        return next(reversed(channels)) if channels else None

    def available_channel(self, group: str, may: Callable[[ClientInfo], bool] = lambda _: True) -> Channel | None:
        """Return a connection of a member that reads its answers and may be asked, the members in turn.

        Return None if there is no such member.
        """
        channels = [
            channel for channel, member in self._groups.get(group, {}).items()
            if not channel.closed and not channel.paused and may(member)]
        self._turn += 1
        return channels[self._turn % len(channels)] if channels else None

    def register(
        self, channel: Channel, request: RemotingCommand, client_id: str, group: str
    ) -> None:
        """Register one producer group of a heartbeat."""
        self._owner.check()
        joined = self._joined.setdefault(channel, set())
        _check_groups(joined, group)
        joined.add(group)
        members = self._groups.setdefault(group, {})
        member = members.get(channel)
        if member is None:
            member = ClientInfo(client_id, request.language, request.version, channel)
            members[channel] = member
            self._clients.setdefault(client_id, Counter())[channel] += 1
        member.last_update_ns = self._clock.monotonic_ns()
        member.last_update_ms = self._clock.now_ms()

    def unregister(self, channel: Channel, group: str) -> None:
        """Remove a member that leaves its group."""
        self._owner.check()
        members = self._groups.get(group)
        member = members.pop(channel, None) if members is not None else None
        if member is not None:
            channels = self._clients[member.client_id]
            channels[channel] -= 1
            if not channels[channel]:
                del channels[channel]
            if not channels:
                del self._clients[member.client_id]
            joined = self._joined[channel]
            joined.discard(group)
            if not joined:
                del self._joined[channel]
            if not members:
                del self._groups[group]

    def closed(self, channel: Channel) -> None:
        """Remove the members on a connection that has closed."""
        for group in list(self._joined.get(channel, ())):
            self.unregister(channel, group)

    def expire(self) -> None:
        """Forget members without a heartbeat for too long, and close their connections."""
        limit = self._clock.monotonic_ns() - self._expired_ns
        for group, members in list(self._groups.items()):
            for channel, member in list(members.items()):
                if member.last_update_ns < limit:
                    self.unregister(channel, group)
                    channel.close()


def _check_groups(joined: set[str], group: str) -> None:
    if group not in joined and len(joined) >= GROUPS_OF_CHANNEL_MAX:
        raise StoreError(
            f"a connection is in {len(joined)} groups, the limit is {GROUPS_OF_CHANNEL_MAX}; use "
            "another connection")


@final
class ConnectedClients:
    """The members of groups, whose their client ids are, and the queues that they have locked."""

    def __init__(
        self, consumers: ConsumerManager, producers: ProducerManager, locks: RebalanceLockManager, ids: ClientIds
    ) -> None:
        self.consumers, self.producers = consumers, producers
        self.locks = locks
        self.ids = ids

    def closed(self, channel: Channel) -> None:
        """Forget a connection that has closed."""
        for part in (self.consumers, self.producers, self.ids):
            part.closed(channel)


OF_CHANNEL_MAX: Final = 100
"""Number of client ids that one connection may hold."""
SHOWN_MAX: Final = 200
"""Number of characters of a client id in a remark."""


@dataclass(slots=True)
class _Owner:
    user: str
    holders: set[object] = field(default_factory=set)


@final
class ClientIds:
    """The owners of client ids. ``control`` checks requests; None if clients need no user."""

    def __init__(self, control: AccessControl | None) -> None:
        self._control = control
        self._thread = ThreadOwner("ClientIds")
        self._owners: dict[str, _Owner] = {}
        self._held: dict[Channel, set[str]] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def user_of(self, client_id: str) -> str | None:
        """Return the user to whom a client id belongs; None if no client has the id."""
        owner = self._owners.get(client_id)
        return None if owner is None else owner.user

    def check(self, channel: Channel, request: RemotingCommand, client_id: str) -> None:
        """Raise RefusalError if a client id belongs to another user than the one that sent a request."""
        if client_id in self._owners:
            self._check(sender_of(request), request.code, channel, client_id)

    def claim(self, channel: Channel, request: RemotingCommand, client_id: str) -> None:
        """Give a client id to the user that sent a request, until the connection closes. Raises RefusalError."""
        if self._control is not None:
            self.claim_as(sender_of(request), request.code, channel, client_id)

    def claim_as(self, user: str, call: int | str, channel: Channel, client_id: str) -> None:
        """Give a client id to a user that another protocol has proven, until the connection closes.

        Raises RefusalError if the client id belongs to another user.
        """
        self._check(user, call, channel, client_id)
        held = self._held.get(channel)
        if channel.closed or (held is not None and client_id in held):
            return  # nothing would release the id of a connection that has closed
        if held is None:
            held = self._held[channel] = set()
        if len(held) >= OF_CHANNEL_MAX:
            raise StoreError(
                f"a connection has {len(held)} client ids, the limit is {OF_CHANNEL_MAX}; use another connection")
        held.add(client_id)
        self._hold(client_id, user, channel)

    def claim_for(self, holder: object, channel: Channel, request: RemotingCommand, client_id: str) -> None:
        """Give a client id to the user that sent a request, until ``holder`` releases it. Raises RefusalError."""
        if self._control is not None:
            self.check(channel, request, client_id)
            self._hold(client_id, sender_of(request), holder)

    def closed(self, channel: Channel) -> None:
        """Release the client ids of a connection that has closed."""
        for client_id in self._held.pop(channel, ()):
            self.release(channel, client_id)

    def release(self, holder: object, client_id: str) -> None:
        """Note that a holder does not use a client id any more."""
        self._thread.check()
        owner = self._owners.get(client_id)
        if owner is not None:
            owner.holders.discard(holder)
            if not owner.holders:
                del self._owners[client_id]

    def _check(self, user: str, call: int | str, channel: Channel, client_id: str) -> None:
        if (owner := self.user_of(client_id)) is not None and owner != user:
            raise self.refusal(channel.peer_ip, call, user, client_id)

    def refusal(self, address: str, call: int | str, user: str, client_id: str) -> RefusalError:
        """Count and log the use of another user's client id, and return the error to raise."""
        control, remark = self._control, f"client {client_id[:SHOWN_MAX]} is one of another user"
        assert control is not None, "without users no client id has an owner"
        return control.refusal(address, call, "permission", user, remark)

    def _hold(self, client_id: str, user: str, holder: object) -> None:
        self._thread.check()
        owner = self._owners.get(client_id)
        if owner is None:
            owner = self._owners[client_id] = _Owner(user)
        owner.holders.add(holder)
