"""Heartbeats, members of groups, and their locks of queues: requests 34, 35, 38, 41, 42 and 46."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, final

from tailrace import events
from tailrace.auth.accesses import TOPIC
from tailrace.auth.check import AccessControl
from tailrace.broker.clients.client_manager import ConnectedClients
from tailrace.broker.consumers.consumer_checks import CLIENT_ID_MAX, Heartbeat, read_heartbeat
from tailrace.broker.core.creations import Creations
from tailrace.broker.statistics.traffic import Traffic
from tailrace.config import BrokerConfig
from tailrace.env.clock import Clock
from tailrace.errors import MessageIllegalError, RefusalError
from tailrace.filters.message_filters import MessageFilters
from tailrace.filters.subscriptions import TAG, SubscriptionData
from tailrace.formats import fastjson
from tailrace.formats.names import RETRY_GROUP_TOPIC_PREFIX
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode, sender_of
from tailrace.formats.requests.consumer_headers import (
    GetConsumerListByGroupRequestHeader,
    UnregisterClientRequestHeader,
)
from tailrace.formats.requests.table import Action
from tailrace.logs import get_logger
from tailrace.node.config_manager import ConfigManager
from tailrace.node.subscription_group import SubscriptionGroupConfig, validate_group
from tailrace.remoting import Channel
from tailrace.requests.bodies import (
    json_object,
    number_in,
    object_in,
    objects_in,
    text_in,
)
from tailrace.requests.config_changes import (
    Change,
    ConfigChanges,
    MissingConfigError,
    creates_missing,
)
from tailrace.requests.processor import RequestProcessor, answers, serves
from tailrace.requests.reply import Answer, Reply, in_turns

__all__ = ["ClientManageProcessor"]

_log = get_logger(__name__)

UNIT_SYS_FLAG: Final = 3
Edit = Callable[[Any], Any]


@final
class ClientManageProcessor(RequestProcessor):
    """Serves heartbeats, requests about members, and locks of queues for orderly consumption."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, config: BrokerConfig, creations: Creations,
        changes: ConfigChanges, clients: ConnectedClients, filters: MessageFilters, control: AccessControl | None,
        traffic: Traffic,
    ) -> None:
        self._loop, self._clock, self._config, self._creations = loop, clock, config, creations
        self._clients, self._filters, self._control, self._traffic = clients, filters, control, traffic
        self.changes = changes

    @serves(RequestCode.HEART_BEAT)
    @creates_missing
    def heartbeat(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Register a client's groups: request 34."""
        if channel.closed:  # it closed while its groups were created
            return None
        beat = read_heartbeat(request)
        if (control := self._control) is not None:
            beat = self._admitted(control, channel, request, beat)
        self._check_created(channel, request, beat)
        self._filters.prepare(
            (subscription.get("subString") or "", subscription.get("expressionType") or TAG)
            for consumer in beat.consumers for subscription in consumer.get("subscriptionDataSet") or ())
        for group in beat.producers:
            begun_ns = self._clock.monotonic_ns()
            self._clients.producers.register(channel, request, beat.client_id, group)
            self._registered("PRODUCER_REGISTER_TIME", begun_ns)
        changed: list[bool] = []
        steps = map(changed.append, self._register_consumers(channel, request, beat))
        return in_turns(
            self._loop, partial(Reply, channel, request), steps,
            lambda: _beat_answer(request, sub_changed=any(changed)))

    def _admitted(
        self, control: AccessControl, channel: Channel, request: RemotingCommand, beat: Heartbeat
    ) -> Heartbeat:
        """Return what counts of a user's heartbeat, and give the user the client id. Raises RefusalError.

        Producer groups have no permissions, so those of a user that may not send anything are left out: Java's
        consumers also name one. A heartbeat without groups reserves no client id.
        """
        if beat.producers and not (control.needs_no_permission(request) or control.permits_some(
                sender_of(request), channel.peer_ip, TOPIC, Action.PUB)):
            beat = beat._replace(producers=[])
        if beat.producers or beat.consumers:
            self._clients.ids.claim(channel, request, beat.client_id)
        else:
            self._clients.ids.check(channel, request, beat.client_id)
        return beat

    def _check_created(self, channel: Channel, request: RemotingCommand, beat: Heartbeat) -> None:
        """Raise MissingConfigError for the groups and retry topics that have to be created.

        A group that its user may not create is left out, as one is that no client may create.
        """
        groups, topics = dict[str, Edit](), dict[str, Edit]()
        for consumer in beat.consumers:
            name = consumer["groupName"]
            config = self._creations.groups.select(name)
            if config is None and not (
                self._creations.groups.may_create(name) and self._creations.may_create_group(channel, request, name)
            ):
                events.CONSUMER_GROUP_UNKNOWN.log(_log, group=name, client=beat.client_id)
                continue
            retry_queues = 1 if config is None else config.retry_queue_nums
            if config is None:
                groups[name] = self._creations.groups.creation(SubscriptionGroupConfig(group_name=name))
            # The client pulls the retry topic after this heartbeat, so its route has to exist by then.
            retry_topic = f"{RETRY_GROUP_TOPIC_PREFIX}{name}"
            if retry_queues > 0 and self._creations.topics.select(retry_topic) is None:
                topics[retry_topic] = self._creations.topic_creation(
                    retry_topic, retry_queues, UNIT_SYS_FLAG if consumer.get("unitMode") else 0).edit
        wanted = (self._creations.groups, groups), (self._creations.topics, topics)
        if changes := [_creation(*one) for one in wanted if one[1]]:
            raise MissingConfigError(*changes)

    def _register_consumers(
        self, channel: Channel, request: RemotingCommand, beat: Heartbeat
    ) -> Iterator[bool]:
        """Register one group after the other; yield for each whether the client must send its subscriptions again."""
        consumers, fingerprint = self._clients.consumers, beat.fingerprint
        without = fingerprint != 0 and beat.without_sub
        yield not fingerprint  # as RocketMQ answers heartbeats of version 1
        for consumer in beat.consumers:
            group = consumer["groupName"]
            if self._creations.groups.select(group) is None:
                yield without
                continue
            member = consumers.member(group, channel, beat.client_id)
            known = member is not None and member.fingerprint == fingerprint
            # The client becomes a member in any case. If the answer is "changed", it sends its subscriptions next.
            begun_ns = self._clock.monotonic_ns()
            consumers.register(
                channel, request, beat.client_id, consumer, keep_subscriptions=without)
            self._registered("CONSUMER_REGISTER_TIME", begun_ns)
            member = consumers.member(group, channel, beat.client_id)
            if without and not known:
                yield True
                continue
            if member is not None:
                member.fingerprint = fingerprint
            yield False

    def _registered(self, name: str, begun_ns: int) -> None:
        took_ms = (self._clock.monotonic_ns() - begun_ns) // 1_000_000
        self._traffic.counters.add(name, self._config.broker_cluster_name, took_ms)

    @serves(RequestCode.UNREGISTER_CLIENT)
    def unregister_client(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Remove a client from its groups: request 35."""
        header = request.read(UnregisterClientRequestHeader)
        if header.producer_group:
            self._clients.producers.unregister(channel, header.producer_group)
        if header.consumer_group:
            self._clients.consumers.unregister(channel, header.consumer_group, header.client_id)
        return request.answer()

    @serves(RequestCode.CHECK_CLIENT_CONFIG)
    @creates_missing
    def check_client_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Check that a subscription can be served: request 46."""
        found = object_in(json_object(request), "subscriptionData")
        if (kind := found.get("expressionType") or TAG) != TAG:
            self._filters.compile(SubscriptionData(
                str(found.get("topic", "")), str(found.get("subString") or ""), expression_type=str(kind)))
        return request.answer()

    @answers(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
    def consumer_list(self, header: GetConsumerListByGroupRequestHeader) -> dict[str, Any]:
        """Return the client ids of the members of a group: request 38."""
        info = self._clients.consumers.find(header.consumer_group)
        if info is None:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {header.consumer_group}")
        return {"consumerIdList": info.client_ids()}

    @serves(RequestCode.LOCK_BATCH_MQ)
    def lock_batch(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Lock queues for orderly consumption: request 41. The answer lists the locked queues."""
        def lock(group: str, client_id: str, queues: list[dict[str, Any]]) -> RemotingCommand:
            taken = self._clients.locks.try_lock(group, client_id, queues, channel)
            return request.answer(body=fastjson.dumps({"lockOKMQSet": taken}))

        return self._with_queues(channel, request, lock)

    @serves(RequestCode.UNLOCK_BATCH_MQ)
    def unlock_batch(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Unlock queues: request 42."""
        def unlock(group: str, client_id: str, queues: list[dict[str, Any]]) -> RemotingCommand:
            self._clients.locks.unlock(group, client_id, queues)
            return request.answer()

        return self._with_queues(channel, request, unlock)

    def _with_queues(
        self, channel: Channel, request: RemotingCommand,
        then: Callable[[str, str, list[dict[str, Any]]], RemotingCommand],
    ) -> Answer:
        """Return the answer of ``then`` for group, client id and queues, which are checked before in turns."""
        data = json_object(request)
        group, client_id = text_in(data, "consumerGroup"), text_in(data, "clientId")
        if reason := validate_group(group):
            raise MessageIllegalError("body", f"consumerGroup: {reason}")
        queues = objects_in(data, "mqSet", LOCKED_MAX)

        def answer() -> RemotingCommand:
            self._clients.ids.check(channel, request, client_id)
            return then(group, client_id, queues)

        return in_turns(
            self._loop, partial(Reply, channel, request), _check_queues(client_id, queues), answer)


def _creation(manager: ConfigManager[Any, Any], edits: dict[str, Edit]) -> Change:
    """Return the change that makes several groups or topics, by their names."""
    return Change(manager, lambda draft: [create(draft) for create in edits.values()], creates=list(edits))


def _beat_answer(request: RemotingCommand, *, sub_changed: bool) -> RemotingCommand:
    return request.answer(
        ext={"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true" if sub_changed else "false"})


INT32: Final = 1 << 31
LOCKED_MAX: Final = 5_000
"""Number of queues that one request may lock or unlock."""


def _check_queues(client_id: str, queues: list[dict[str, Any]]) -> Iterator[None]:
    """Check one queue of a request to lock or unlock after the other. Raises MessageIllegalError."""
    for queue in queues:
        names = client_id, text_in(queue, "topic"), text_in(queue, "brokerName")
        if max(map(len, names)) > CLIENT_ID_MAX or not 0 <= number_in(queue, "queueId", -1) < INT32:
            raise MessageIllegalError("body", "mqSet has a queue with a name or number out of range")
        yield
