"""Which queues a member of a group consumes, when the broker decides: requests 400 and 401.

A client with ``clientRebalance=false`` asks for its queues every 20 s and after each change of its
group. Clients of 5.5.0 fall back to their own allocation if the first answer is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar, final

from tailrace.broker.answers_later import Answer, Change, creates_missing
from tailrace.broker.client_manager import BROADCASTING
from tailrace.broker.context import BrokerContext
from tailrace.broker.processors._bodies import json_object
from tailrace.errors import StoreError
from tailrace.formats import fastjson
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.logs import get_logger
from tailrace.node.message_request_mode import PULL, MessageRequestModeManager
from tailrace.node.topic_config import PERM_READ, RETRY_GROUP_TOPIC_PREFIX
from tailrace.remoting import Channel, RemotingServer

__all__ = ["QueryAssignmentProcessor", "allocate_averagely", "allocate_by_circle"]

_log = get_logger(__name__)
QUEUES_MAX: Final = 100_000
"""Queues of a topic, of all brokers together."""
T = TypeVar("T")


def allocate_averagely(queues: Sequence[T], place: int, members: int) -> Sequence[T]:
    """Consecutive queues for the member at ``place``; the first members get one more each."""
    share, left = divmod(len(queues), members)
    if not share:
        return queues[place : place + 1]
    first = place * share + min(place, left)
    return queues[first : first + share + (place < left)]


def allocate_by_circle(queues: Sequence[T], place: int, members: int) -> Sequence[T]:
    """Every ``members``-th queue, starting with the one at ``place``."""
    return queues[place::members]


_Queues = Sequence[tuple[str, int]]
_Allocate = Callable[[_Queues, int, int], _Queues]
STRATEGIES: Final[dict[str, _Allocate]] = {
    "AVG": allocate_averagely, "AVG_BY_CIRCLE": allocate_by_circle,
}


@final
class QueryAssignmentProcessor:
    """Allocates queues among the members of a group, always to be pulled."""

    def __init__(self, broker: BrokerContext, modes: MessageRequestModeManager) -> None:
        self._broker = broker
        self.changes = broker.changes
        self._modes = modes
        self._named: set[tuple[str, str]] = set()

    def register(self, server: RemotingServer) -> None:
        """Take over the codes of this processor."""
        server.register(self.query, RequestCode.QUERY_ASSIGNMENT)
        server.register(self.set_mode, RequestCode.SET_MESSAGE_REQUEST_MODE)

    def query(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Queues of a member: request 400.

        An answer without ``messageQueueAssignments`` leaves the queues of the client as they are: the
        topic or the group is not known yet. An empty list takes all queues from it.
        """
        body = json_object(request)
        topic, group = str(body["topic"]), str(body["consumerGroup"])
        strategy = str(body.get("strategyName") or "AVG")
        broadcast = body.get("messageModel") == BROADCASTING
        allocate = STRATEGIES.get(strategy)
        if allocate is None and not broadcast:
            # The reference answers success without queues, and the client consumes nothing.
            return request.answer(
                ResponseCode.INVALID_PARAMETER,
                f"unsupported strategy [{strategy}]; known are {', '.join(STRATEGIES)}")
        queues = self._queues(topic)
        if queues is not None and allocate is not None and not broadcast:
            queues = self._share(group, str(body.get("clientId") or ""), queues, allocate)
        if queues is None:
            return request.answer(body=b"{}")
        self._name_pop(topic, group)
        return request.answer(body=fastjson.dumps({"messageQueueAssignments": [
            {"messageQueue": {"brokerName": name, "queueId": queue_id, "topic": topic}, "mode": PULL}
            for name, queue_id in queues
        ]}))

    def _queues(self, topic: str) -> _Queues | None:
        """(broker, queue id) of every readable queue, sorted; None if no broker has the topic.

        Raises StoreError if there are too many.
        """
        route = self._broker.route(topic)
        if route is None:
            return None
        total = sum(max(0, data["readQueueNums"]) for data in route["queueDatas"])
        if total > QUEUES_MAX:  # another broker may have registered any number
            raise StoreError(f"topic {topic} has {total} queues, the limit is {QUEUES_MAX}")
        return sorted(
            (str(data["brokerName"]), queue_id) for data in route["queueDatas"]
            if data["perm"] & PERM_READ for queue_id in range(data["readQueueNums"]))

    def _share(
        self, group: str, client_id: str, queues: _Queues, allocate: _Allocate
    ) -> _Queues | None:
        info = self._broker.consumers.find(group)
        if info is None:
            return None
        members = sorted(info.client_ids())
        if client_id not in members:
            return []
        return allocate(queues, members.index(client_id), len(members))

    def _name_pop(self, topic: str, group: str) -> None:
        if self._modes.mode(topic, group) != PULL and (topic, group) not in self._named:
            self._named.add((topic, group))
            _log.warning(
                "group pulls although its mode is POP, which is not supported group=%s topic=%s file=%s",
                group, topic, self._modes.path)

    @creates_missing
    def set_mode(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Set how a group gets the messages of a topic: request 401; only PULL is served."""
        body, broker = json_object(request), self._broker
        topic, group = str(body["topic"]), str(body["consumerGroup"])
        if topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
            return request.answer(
                ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        if broker.topics.select(topic) is None:
            return request.answer(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        if broker.group(group) is None:
            return request.answer(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist")
        if (mode := body.get("mode") or PULL) != PULL:
            return request.answer(
                ResponseCode.NO_PERMISSION, f"mode {mode} is not supported; known is {PULL}")
        if broker.store.read_only:
            return request.answer(ResponseCode.SYSTEM_ERROR, broker.store.read_only)
        change = Change(self._modes, self._modes.pulling(topic, group))
        return self.changes.apply(channel, request, [change], request.answer)
