"""Allocation of queues to the members of a group by the broker: requests 400 and 401.

A client with ``clientRebalance=false`` sends request 400 every 20 s and after each change of its group.
Clients of 5.5.0 use their own allocation if the first answer is an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, final

from tailrace.broker.clients.client_manager import BROADCASTING, ConsumerManager
from tailrace.broker.core.creations import Creations
from tailrace.broker.core.name_servers import NameServers
from tailrace.broker.pop.polling import ALL_QUEUES
from tailrace.broker.pop.requests import not_poppable
from tailrace.client.allocation import averagely, in_turn
from tailrace.config import BrokerConfig
from tailrace.errors import StoreError
from tailrace.formats import fastjson
from tailrace.formats.names import RETRY_GROUP_TOPIC_PREFIX
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.node.message_request_mode import POP, PULL, MessageRequestModeManager
from tailrace.node.message_store import MessageStore
from tailrace.node.topic_config import PERM_READ
from tailrace.remoting import Channel
from tailrace.requests.bodies import json_object, number_in, text_in
from tailrace.requests.config_changes import Change, ConfigChanges, creates_missing
from tailrace.requests.processor import RequestProcessor, serves
from tailrace.requests.reply import Answer, Reply, in_turns

__all__ = ["QueryAssignmentProcessor"]

QUEUES_MAX: Final = 100_000
"""Number of queues of a topic on all brokers together."""
STEP: Final = 500
"""Queues that are listed or encoded in a step of the event loop, which takes less than a millisecond."""
_Queues = Sequence[tuple[str, int]]
_Allocate = Callable[[_Queues, int, int], _Queues]
STRATEGIES: Final[dict[str, _Allocate]] = {"AVG": averagely, "AVG_BY_CIRCLE": in_turn}


@final
class QueryAssignmentProcessor(RequestProcessor):
    """Allocates queues to the members of a group, for pull or for POP."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, store: MessageStore, config: BrokerConfig, changes: ConfigChanges,
        creations: Creations, consumers: ConsumerManager, modes: MessageRequestModeManager, name_servers: NameServers,
    ) -> None:
        self._loop = loop
        self._store, self._config, self._creations, self._consumers = store, config, creations, consumers
        self._name_servers = name_servers
        self._topics = store.topics
        self.changes = changes
        self._modes = modes

    @serves(RequestCode.QUERY_ASSIGNMENT)
    def query(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Return the queues of a member: request 400. Many queues take several turns of the event loop.

        If the topic or the group is not known yet, the answer has no ``messageQueueAssignments``, and the client
        keeps its queues. With an empty list the client gives up all queues.
        """
        body = json_object(request)
        topic, group = text_in(body, "topic"), text_in(body, "consumerGroup")
        client_id = str(body.get("clientId") or "")
        strategy = str(body.get("strategyName") or "AVG")
        broadcast = body.get("messageModel") == BROADCASTING
        allocate = averagely if broadcast else STRATEGIES.get(strategy)
        if allocate is None:
            # RocketMQ answers success without queues, and the client consumes nothing.
            return request.answer(
                ResponseCode.INVALID_PARAMETER,
                f"unsupported strategy [{strategy}]; known are {', '.join(STRATEGIES)}")
        readable = self._readable(topic)
        mode, shared = self._mode(topic, group)
        if broadcast:  # each member has all queues, as the only member of a group has
            members, shares = [client_id], None
        else:
            info = self._consumers.find(group)
            members = sorted(info.client_ids()) if info is not None else []
            shares = shared if mode == POP else None
        if readable is None or not members:
            return request.answer(body=b"{}")
        share = partial(_share, members, client_id, allocate, shares)
        parts: list[bytes] = []
        return in_turns(
            self._loop, partial(Reply, channel, request), _encoded(topic, mode, readable, share, parts),
            lambda: request.answer(body=b'{"messageQueueAssignments":[%b]}' % b",".join(parts)))

    def _mode(self, topic: str, group: str) -> tuple[str, int]:
        """Return the mode (pull or POP) of a group on a topic, and popShareQueueNum.

        Topics with batch queues are not popped, even if a Java broker has stored mode POP for them.
        """
        config = self._config
        if self._topics.has_batch_queues(topic):
            return PULL, 0
        found = self._modes.mode(topic, group)
        if found is not None:
            return found
        if topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
            return PULL, 0
        return config.default_message_request_mode, config.default_pop_share_queue_num

    def _readable(self, topic: str) -> Mapping[str, int] | None:
        """Return the numbers of readable queues by broker, sorted; None if no broker has the topic.

        Raises StoreError if there are too many queues.
        """
        route = self._name_servers.route(topic)
        if route is None:
            return None
        total = sum(max(0, data["readQueueNums"]) for data in route["queueDatas"])
        if total > QUEUES_MAX:  # another broker may have registered any number
            raise StoreError(f"topic {topic} has {total} queues, the limit is {QUEUES_MAX}")
        return dict(sorted(
            (str(data["brokerName"]), data["readQueueNums"]) for data in route["queueDatas"]
            if data["perm"] & PERM_READ))

    @serves(RequestCode.SET_MESSAGE_REQUEST_MODE)
    @creates_missing
    def set_mode(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Set the mode (pull or POP) of a group on a topic: request 401."""
        body = json_object(request)
        topic, group = text_in(body, "topic"), text_in(body, "consumerGroup")
        if topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
            return request.answer(
                ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        if self._topics.select(topic) is None:
            return request.answer(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        if self._creations.group(group) is None:
            return request.answer(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist")
        if (mode := body.get("mode") or PULL) not in {PULL, POP}:
            return request.answer(
                ResponseCode.INVALID_PARAMETER, f"mode {str(mode)[:40]} is not supported; known are {PULL} and {POP}")
        if mode == POP and self._topics.has_batch_queues(topic):
            return request.answer(ResponseCode.NO_PERMISSION, not_poppable(topic))
        if self._store.read_only:
            return request.answer(ResponseCode.SYSTEM_ERROR, self._store.read_only)
        shared = number_in(body, "popShareQueueNum")
        change = Change(self._modes, self._modes.setting(
            topic, group, str(mode), shared,
            lambda topic, group: self._topics.select(topic) is not None
            and self._creations.groups.select(group) is not None))
        return self.changes.apply(channel, request, [change], request.answer)


def _encoded(
    topic: str, mode: str, readable: Mapping[str, int], share: Callable[[_Queues], _Queues], parts: list[bytes]
) -> Iterator[None]:
    """Append the text of the queues that ``share`` returns to ``parts``, at most `STEP` queues in a step."""
    queues: list[tuple[str, int]] = []
    for name, count in readable.items():
        for first in range(0, count, STEP):
            queues += [(name, queue_id) for queue_id in range(first, min(first + STEP, count))]
            yield
    mine = share(queues)
    for first in range(0, len(mine), STEP):
        entries: list[dict[str, Any]] = [
            {"messageQueue": {"brokerName": name, "queueId": queue_id, "topic": topic}, "mode": mode}
            for name, queue_id in mine[first : first + STEP]]
        parts.append(fastjson.dumps(entries)[1:-1])
        yield


def _share(
    members: Sequence[str], client_id: str, allocate: _Allocate, shared: int | None, queues: _Queues
) -> _Queues:
    """Return the queues of a member. ``shared`` is popShareQueueNum, None for a group that pulls."""
    if client_id not in members:
        return []
    place = members.index(client_id)
    if shared is None:
        return allocate(queues, place, len(members))
    if shared <= 0 or shared >= len(members) - 1:  # every member pops all queues of each broker
        return [(name, ALL_QUEUES) for name in dict.fromkeys(name for name, _ in queues)]
    if len(members) > len(queues):
        return [queues[place % len(queues)]] if queues else []
    found = [
        queue for following in range(shared + 1)
        for queue in allocate(queues, (place + following) % len(members), len(members))]
    return list(dict.fromkeys(found))
