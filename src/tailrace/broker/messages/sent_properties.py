"""Properties of a sent message that name queues, topics, groups or clients, and what their user may name.

Access control has checked the topic to which a message is sent. These properties lead it, or what follows from it, to
others:

- INNER_MULTI_DISPATCH gives the message a place in LMQ queues. The user needs Pub on each, and for the queue of a Lite
  topic on its parent topic.
- RETRY_TOPIC is the topic from which a retried message comes. The user needs Pub or Sub on it.
- ORIGIN_GROUP is the group to which a message of a retry topic belongs. The user needs Sub on it.
- PGROUP is the producer group that is asked about a half message. A group whose members are all of other users is
  refused, unless it has the name of the topic, as gRPC clients call theirs.
- REPLY_TO_CLIENT is the client that gets the reply, see `tailrace.broker.messages.sent_properties`.

The members of a batch cannot name LMQ queues, and their other properties lead nowhere: a reply needs a question that
was noted, and RETRY_TOPIC counts in retry topics only, which take no batches. Other properties, such as REAL_TOPIC, are
overwritten by the broker. The kind of a message (``kernels.shared.kinds``) tells whether it has such properties.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, NamedTuple, final

from tailrace.auth.accesses import TOPIC, Access, group_access, topic_access
from tailrace.auth.check import AccessControl
from tailrace.broker.clients.client_manager import ConnectedClients
from tailrace.broker.core.name_servers import NameServers
from tailrace.broker.transactions.half_messages import FreshHalf
from tailrace.config import BrokerConfig, whole_number
from tailrace.env.clock import Clock
from tailrace.env.owner import ThreadOwner
from tailrace.formats import names as N
from tailrace.formats.commitlog import LMQ_DISPATCH_SEPARATOR, decode_properties
from tailrace.formats.names import CORRELATION_ID, REPLY_TO_CLIENT, TTL
from tailrace.formats.remoting import RemotingCommand, sender_of
from tailrace.formats.requests.table import Action
from tailrace.model import MessageExtBrokerInner
from tailrace.remoting import Channel

__all__ = ["AskedQuestions", "NamedProperties"]


@final
class NamedProperties:
    """Checks what users name in properties. It exists only with users."""

    def __init__(self, control: AccessControl, clients: ConnectedClients, asked: AskedQuestions) -> None:
        self._control, self._clients, self._asked = control, clients, asked

    def check(
        self, channel: Channel, request: RemotingCommand, properties: str, message: MessageExtBrokerInner,
        half: FreshHalf | None,
    ) -> None:
        """Raise RefusalError if the user of a message may not name what its properties name.

        ``properties`` are those that the client sent.
        """
        topic = message.topic if half is None else half.committed.topic
        is_named = self._check_named(channel, request, topic, properties)
        if N.REPLY_TO_CLIENT in properties and topic[0] != "%":
            self._asked.note(channel, request, topic, properties)
        if half is not None:
            if half.group != topic:
                self._check_producers(channel, request, half.group)
        elif not is_named and topic.startswith(N.RETRY_GROUP_TOPIC_PREFIX) and "_" in topic and "+" not in topic:
            # A name with several users: without an owner the message would belong to all of them.
            message.properties += b"%b\x01%b\x02" % (
                N.ORIGIN_GROUP.encode(), topic.removeprefix(N.RETRY_GROUP_TOPIC_PREFIX).encode())

    def check_reply(
        self, channel: Channel, request: RemotingCommand, topic: str, properties: str, decoded: dict[str, str]
    ) -> None:
        """Raise RefusalError if a user may not send a reply with these properties, also given decoded, to a topic."""
        self._asked.check_reply(self._control, channel, request, decoded)
        self._check_named(channel, request, topic, properties)

    def _check_named(self, channel: Channel, request: RemotingCommand, topic: str, properties: str) -> bool:
        """Raise RefusalError if a user may not name queues, topics and groups in properties of a message to a topic.

        Return whether they name any.
        """
        is_retry = topic.startswith(N.RETRY_GROUP_TOPIC_PREFIX)
        if not is_retry and N.RETRY_TOPIC not in properties and N.INNER_MULTI_DISPATCH not in properties:
            return False
        accesses = list(_named(properties, is_retry=is_retry))
        if accesses:
            self._control.require(channel, request, *accesses)
        return bool(accesses)

    def _check_producers(self, channel: Channel, request: RemotingCommand, group: str) -> None:
        """Raise RefusalError if a producer group has members and all of them are clients of other users."""
        control, user, members = self._control, sender_of(request), self._clients.producers.members(group)
        if not members or control.needs_no_permission(request) or any(
            self._clients.ids.user_of(member.client_id) == user for member in members
        ):
            return
        raise control.refusal(
            channel.peer_ip, request.code, "permission", user,
            f"the producers of group {group[:200]} are of other users")


def _named(properties: str, *, is_retry: bool) -> Iterator[Access]:
    """Yield the accesses to what properties name; each property counts, even if it is there twice."""
    for text in properties.split("\x02"):
        name, _, value = text.partition("\x01")
        if name == N.INNER_MULTI_DISPATCH:
            for queue in value.split(LMQ_DISPATCH_SEPARATOR):
                if queue.strip():
                    yield topic_access(queue, Action.PUB)
        elif name == N.RETRY_TOPIC and value:
            yield topic_access(value, Action.PUB | Action.SUB)
        elif name == N.ORIGIN_GROUP and value and is_retry:
            yield group_access(value, Action.SUB)


GRACE_MS: Final = 10_000
"""For this time after its TTL a question may be replied to: the replier gets no error for a late reply."""
TTL_MAX_MS: Final = 600_000
CLIENT_ID_MAX: Final = 255
CORRELATION_MAX: Final = 64
"""Characters of a client id and of a correlation id (a UUID in Java) of which a question is kept."""
OF_USER_MAX: Final = 20_000
"""Number of questions of one user that are kept; then the oldest one is forgotten."""


class _Question(NamedTuple):
    topic: str
    until_ms: int


@final
class AskedQuestions:
    """The latest questions of each user, by client id and correlation id."""

    def __init__(
        self, clock: Clock, config: BrokerConfig, clients: ConnectedClients, name_servers: NameServers,
    ) -> None:
        self._clock, self._config, self._clients, self._name_servers = clock, config, clients, name_servers
        self._owner = ThreadOwner("AskedQuestions")
        self._of_user: dict[str, OrderedDict[tuple[str, str], _Question]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._of_user.values()))

    def note(self, channel: Channel, request: RemotingCommand, topic: str, properties: str) -> None:
        """Note a message that asks for a reply. Raises RefusalError if the reply would go to another user's client."""
        self._owner.check()
        found = decode_properties(properties.encode())
        client_id, correlation = found.get(REPLY_TO_CLIENT, ""), found.get(CORRELATION_ID, "")
        if not client_id:
            return
        self._clients.ids.check(channel, request, client_id)
        ttl_ms = whole_number(found.get(TTL, ""))
        if ttl_ms is None or len(client_id) > CLIENT_ID_MAX or len(correlation) > CORRELATION_MAX:
            return
        now = self._clock.now_ms()
        mine = self._of_user.setdefault(sender_of(request), OrderedDict())
        mine[client_id, correlation] = _Question(topic, now + min(max(0, ttl_ms), TTL_MAX_MS) + GRACE_MS)
        mine.move_to_end((client_id, correlation))
        if len(mine) > OF_USER_MAX:
            mine.popitem(last=False)

    def expire(self) -> None:
        """Forget the questions whose time is over."""
        self._owner.check()
        now = self._clock.now_ms()
        for user, mine in list(self._of_user.items()):
            for key in [key for key, question in mine.items() if question.until_ms < now]:
                del mine[key]
            if not mine:
                del self._of_user[user]

    def check_reply(
        self, control: AccessControl, channel: Channel, request: RemotingCommand, properties: dict[str, str]
    ) -> None:
        """Raise RefusalError unless the user that sent a reply may send it to the client that it names.

        The refusal does not say whether there is such a client.
        """
        user, client_id = sender_of(request), properties[REPLY_TO_CLIENT]
        if control.needs_no_permission(request):
            return
        owner = self._clients.ids.user_of(client_id)
        if owner is not None and (owner == user or self._may_reply(control, channel, user, owner, properties)):
            return
        raise control.refusal(
            channel.peer_ip, request.code, "permission", user,
            f"User:{user} may not reply to client {client_id[:CLIENT_ID_MAX]}: it has not asked a question on a topic "
            "that the user may consume.")

    def _may_reply(
        self, control: AccessControl, channel: Channel, user: str, owner: str, properties: dict[str, str]
    ) -> bool:
        client_id = properties[REPLY_TO_CLIENT]
        questions = self._of_user.get(owner)
        question = None if questions is None else questions.get((client_id, properties.get(CORRELATION_ID, "")))
        if question is not None and question.until_ms >= self._clock.now_ms():
            return control.permits(user, channel.peer_ip, Access(TOPIC, question.topic, Action.SUB))
        producer = self._clients.producers.find_channel(client_id)
        return producer is not None and self._has_other_brokers() and control.share_topic(
            owner, producer.peer_ip, user, channel.peer_ip)

    def _has_other_brokers(self) -> bool:
        """Return whether another broker may have stored a question of a client of this one."""
        route = self._name_servers.route(f"{self._config.broker_cluster_name}_REPLY_TOPIC") or {}
        names = {data["brokerName"] for data in route.get("queueDatas", ())}
        return bool(self._name_servers.states()) or len(names) > 1
