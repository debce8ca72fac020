"""Who may change the routes of a name server: the second check of requests that name brokers and topics.

A broker belongs to the user that has registered it, until it has no member any more. Other users do not change or
remove it; a super user may, and takes over the name of a broker that a user without this right has registered. A user
that registers a topic gets a share of what is sent to it, so it needs the permissions to send to it and to consume it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, Protocol, final

from tailrace.auth.accesses import CLUSTER, Access, topic_access
from tailrace.auth.check import AccessControl
from tailrace.errors import RefusalError, StoreError
from tailrace.formats.remoting import RemotingCommand, sender_of
from tailrace.formats.requests.table import Action
from tailrace.remoting import Channel

__all__ = ["RouteRights"]

SHOWN_MAX: Final = 255
BROKERS_OF_USER_MAX: Final = 100
TOPICS_OF_USER_MAX: Final = 50_000
"""Brokers and topics that a user may register who is not a super user, so that there is room for those of others."""


class OwnedBroker(Protocol):
    """A registered broker. ``user`` is None for the broker of this process."""

    name: str
    cluster: str
    user: str | None
    topics: Mapping[str, Any]


@final
class RouteRights:
    """Checks requests of users. With ``needs_topics`` off a user with Update on a cluster registers any topic."""

    def __init__(self, control: AccessControl, *, needs_topics: bool) -> None:
        self._control = control
        self._needs_topics = needs_topics

    def check_owner(
        self, channel: Channel, request: RemotingCommand, broker: OwnedBroker | None, cluster: str
    ) -> None:
        """Raise RefusalError unless a request may change a broker as one of this cluster."""
        control = self._control
        if broker is None or control.needs_no_permission(request):
            return
        user = sender_of(request)
        if (broker.user, broker.cluster) != (user, cluster):
            raise self._refusal(
                channel, request,
                f"User:{user} may not change broker {broker.name[:SHOWN_MAX]}, which another user has registered."
                if broker.user != user else
                f"broker {broker.name[:SHOWN_MAX]} is registered in another cluster than {cluster[:SHOWN_MAX]}")

    def check_cluster(self, channel: Channel, request: RemotingCommand, cluster: str) -> None:
        """Raise RefusalError unless the user may update a cluster whose broker a request names."""
        self._control.require(channel, request, Access(CLUSTER, cluster, Action.UPDATE))

    def check_topics(self, channel: Channel, request: RemotingCommand, topics: Iterable[str]) -> None:
        """Raise RefusalError unless the user may send to topics and consume them."""
        if self._needs_topics and not self._control.needs_no_permission(request):
            self._control.require(channel, request, *(
                topic_access(topic, action) for topic in topics for action in (Action.PUB, Action.SUB)))

    def check_room(
        self, request: RemotingCommand, brokers: Iterable[OwnedBroker], name: str, topics: Collection[str]
    ) -> None:
        """Raise StoreError if a user would have too many brokers or topics. ``name`` is the broker that registers."""
        if self._control.needs_no_permission(request):
            return
        user = sender_of(request)
        mine = {broker.name: broker for broker in brokers if broker.user == user}
        known = mine.pop(name, None)
        if len(mine) >= BROKERS_OF_USER_MAX:
            raise StoreError(f"user {user} has registered {len(mine)} brokers, the limit is {BROKERS_OF_USER_MAX}")
        own = len(topics) if known is None else len({*known.topics, *topics})
        if (count := sum(len(broker.topics) for broker in mine.values()) + own) > TOPICS_OF_USER_MAX:
            raise StoreError(
                f"broker {name} of user {user} has {count} topics with those of its other brokers, the limit is "
                f"{TOPICS_OF_USER_MAX}")

    def takes_over(self, request: RemotingCommand, broker: OwnedBroker) -> bool:
        """Return whether a super user registers a broker whose name another user has registered before."""
        user, control = sender_of(request), self._control
        return broker.user not in {None, user} and control.is_super(user) and not control.is_super(broker.user or "")

    def _refusal(self, channel: Channel, request: RemotingCommand, remark: str) -> RefusalError:
        return self._control.refusal(channel.peer_ip, request.code, "permission", sender_of(request), remark)
