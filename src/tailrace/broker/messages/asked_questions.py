"""Questions of clients that wait for a reply: who may reply to which client.

A message with the property REPLY_TO_CLIENT is a question of that client. A reply may come from any user that may
consume the topic of the question, so the broker keeps the latest questions of each user.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple, final

from tailrace.auth.accesses import TOPIC, Access
from tailrace.auth.check import AccessControl
from tailrace.broker.clients.client_manager import ConnectedClients
from tailrace.broker.core.name_servers import NameServers
from tailrace.config import BrokerConfig, whole_number
from tailrace.env.clock import Clock
from tailrace.env.owner import ThreadOwner
from tailrace.formats.commitlog import decode_properties
from tailrace.formats.names import CORRELATION_ID, REPLY_TO_CLIENT, TTL
from tailrace.formats.remoting import RemotingCommand, sender_of
from tailrace.formats.requests.table import Action
from tailrace.remoting import Channel

__all__ = ["AskedQuestions"]

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
