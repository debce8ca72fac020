"""Properties of a sent message that name queues, topics, groups or clients, and what their user may name.

Access control has checked the topic to which a message is sent. These properties lead it, or what follows from it, to
others:

- INNER_MULTI_DISPATCH gives the message a place in LMQ queues. The user needs Pub on each, and for the queue of a Lite
  topic on its parent topic.
- RETRY_TOPIC is the topic from which a retried message comes. The user needs Pub or Sub on it.
- ORIGIN_GROUP is the group to which a message of a retry topic belongs. The user needs Sub on it.
- PGROUP is the producer group that is asked about a half message. A group whose members are all of other users is
  refused, unless it has the name of the topic, as gRPC clients call theirs.
- REPLY_TO_CLIENT is the client that gets the reply, see `tailrace.broker.messages.asked_questions`.

The members of a batch cannot name LMQ queues, and their other properties lead nowhere: a reply needs a question that
was noted, and RETRY_TOPIC counts in retry topics only, which take no batches. Other properties, such as REAL_TOPIC, are
overwritten by the broker. The kind of a message (``kernels.shared.kinds``) tells whether it has such properties.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

from tailrace.auth.accesses import Access, group_access, topic_access
from tailrace.auth.check import AccessControl
from tailrace.broker.clients.client_manager import ConnectedClients
from tailrace.broker.messages.asked_questions import AskedQuestions
from tailrace.broker.transactions.half_messages import FreshHalf
from tailrace.formats import names as N
from tailrace.formats.commitlog import LMQ_DISPATCH_SEPARATOR
from tailrace.formats.remoting import RemotingCommand, sender_of
from tailrace.formats.requests.table import Action
from tailrace.model import MessageExtBrokerInner
from tailrace.remoting import Channel

__all__ = ["NamedProperties"]


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
