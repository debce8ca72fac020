"""Heartbeats, members, offsets and queue locks of clients: requests 34, 35, 46, 38, 14, 15, 41 and 42."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, final

from tailrace import events
from tailrace.auth.accesses import TOPIC
from tailrace.auth.check import AccessControl
from tailrace.broker.consumers.heartbeat import CLIENT_ID_MAX, NAME_MAX, Heartbeat, read_heartbeat
from tailrace.broker.core.context import BrokerContext
from tailrace.errors import MessageIllegalError, RefusalError
from tailrace.filters.subscriptions import TAG, SubscriptionData
from tailrace.formats import fastjson
from tailrace.formats.commitlog import decode_message
from tailrace.formats.names import RETRY_GROUP_TOPIC_PREFIX
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode, sender_of
from tailrace.formats.requests.consumer_headers import (
    GetConsumerListByGroupRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    UnregisterClientRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from tailrace.formats.requests.table import Action
from tailrace.logs import get_logger
from tailrace.node.config_manager import ConfigManager
from tailrace.node.subscription_group import SubscriptionGroupConfig, validate_group
from tailrace.remoting import Channel, RemotingServer
from tailrace.requests.bodies import (
    json_object,
    number_in,
    object_in,
    objects_in,
    text_in,
)
from tailrace.requests.config_changes import Change, MissingConfigError, creates_missing
from tailrace.requests.reply import Answer, Reply, in_turns

__all__ = ["ClientManageProcessor"]

_log = get_logger(__name__)

# As in RocketMQ, a new group reads a queue from its beginning while the first message is young enough to be
# in memory. The limit is 40 % of the 24 GiB of memory that RocketMQ assumes if it cannot measure it.
IN_MEMORY_BYTES: Final = 24 * 1024**3 * 4 // 10
UNIT_SYS_FLAG: Final = 3
INT32 = 1 << 31
Edit = Callable[[Any], Any]
LOCKED_MAX: Final = 5_000
"""Number of queues that one request may lock or unlock."""


@final
class ClientManageProcessor:
    """Serves heartbeats, and requests about members, offsets and queue locks."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self.changes = broker.changes

    def register(self, server: RemotingServer) -> None:
        """Register the requests that this processor serves."""
        server.register(self.heartbeat, RequestCode.HEART_BEAT)
        server.register(self.unregister_client, RequestCode.UNREGISTER_CLIENT)
        server.register(self.check_client_config, RequestCode.CHECK_CLIENT_CONFIG)
        server.register(self.consumer_list, RequestCode.GET_CONSUMER_LIST_BY_GROUP)
        of_queue, code = self._broker.logical_queues.of, RequestCode
        server.register(
            of_queue(code.QUERY_CONSUMER_OFFSET, self.query_offset, self._query_offset), code.QUERY_CONSUMER_OFFSET)
        server.register(
            of_queue(code.UPDATE_CONSUMER_OFFSET, self.update_offset), code.UPDATE_CONSUMER_OFFSET)
        server.register(self.lock_batch, RequestCode.LOCK_BATCH_MQ)
        server.register(self.unlock_batch, RequestCode.UNLOCK_BATCH_MQ)

    @creates_missing
    def heartbeat(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Register a client's groups: request 34."""
        if channel.closed:  # it closed while its groups were created
            return None
        beat = read_heartbeat(request)
        if (control := self._broker.control) is not None:
            beat = self._admitted(control, channel, request, beat)
        self._check_created(channel, request, beat)
        self._broker.filters.prepare(
            (subscription.get("subString") or "", subscription.get("expressionType") or TAG)
            for consumer in beat.consumers for subscription in consumer.get("subscriptionDataSet") or ())
        for group in beat.producers:
            begun_ns = self._broker.clock.monotonic_ns()
            self._broker.producers.register(channel, request, beat.client_id, group)
            self._registered("PRODUCER_REGISTER_TIME", begun_ns)
        changed: list[bool] = []
        steps = map(changed.append, self._register_consumers(channel, request, beat))
        return in_turns(
            self._broker.loop, partial(Reply, channel, request), steps,
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
            self._broker.client_ids.claim(channel, request, beat.client_id)
        else:
            self._broker.client_ids.check(channel, request, beat.client_id)
        return beat

    def _check_created(self, channel: Channel, request: RemotingCommand, beat: Heartbeat) -> None:
        """Raise MissingConfigError for the groups and retry topics that have to be created.

        A group that its user may not create is left out, as one is that no client may create.
        """
        broker, groups, topics = self._broker, dict[str, Edit](), dict[str, Edit]()
        for consumer in beat.consumers:
            name = consumer["groupName"]
            config = broker.groups.select(name)
            if config is None and not (
                broker.groups.may_create(name) and broker.creations.may_create_group(channel, request, name)
            ):
                events.CONSUMER_GROUP_UNKNOWN.log(_log, group=name, client=beat.client_id)
                continue
            retry_queues = 1 if config is None else config.retry_queue_nums
            if config is None:
                groups[name] = broker.groups.creation(SubscriptionGroupConfig(group_name=name))
            # The client pulls the retry topic after this heartbeat, so its route has to exist by then.
            retry_topic = f"{RETRY_GROUP_TOPIC_PREFIX}{name}"
            if retry_queues > 0 and broker.topics.select(retry_topic) is None:
                topics[retry_topic] = broker.topic_creation(
                    retry_topic, retry_queues, UNIT_SYS_FLAG if consumer.get("unitMode") else 0).edit
        if changes := [_creation(*one) for one in ((broker.groups, groups), (broker.topics, topics)) if one[1]]:
            raise MissingConfigError(*changes)

    def _register_consumers(
        self, channel: Channel, request: RemotingCommand, beat: Heartbeat
    ) -> Iterator[bool]:
        """Register one group after the other; yield for each whether the client must send its subscriptions again."""
        consumers, fingerprint = self._broker.consumers, beat.fingerprint
        without = fingerprint != 0 and beat.without_sub
        yield not fingerprint  # as RocketMQ answers heartbeats of version 1
        for consumer in beat.consumers:
            group = consumer["groupName"]
            if self._broker.groups.select(group) is None:
                yield without
                continue
            member = consumers.member(group, channel, beat.client_id)
            known = member is not None and member.fingerprint == fingerprint
            # The client becomes a member in any case. If the answer is "changed", it sends its subscriptions next.
            begun_ns = self._broker.clock.monotonic_ns()
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
        took_ms = (self._broker.clock.monotonic_ns() - begun_ns) // 1_000_000
        self._broker.traffic.counters.add(name, self._broker.config.broker_cluster_name, took_ms)

    def unregister_client(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Remove a client from its groups: request 35."""
        header = request.read(UnregisterClientRequestHeader)
        if header.producer_group:
            self._broker.producers.unregister(channel, header.producer_group)
        if header.consumer_group:
            self._broker.consumers.unregister(channel, header.consumer_group, header.client_id)
        return request.answer()

    @creates_missing
    def check_client_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Check that a subscription can be served: request 46."""
        found = object_in(json_object(request), "subscriptionData")
        if (kind := found.get("expressionType") or TAG) != TAG:
            self._broker.filters.compile(SubscriptionData(
                str(found.get("topic", "")), str(found.get("subString") or ""), expression_type=str(kind)))
        return request.answer()

    def consumer_list(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return the client ids of the members of a group: request 38."""
        group = request.read(GetConsumerListByGroupRequestHeader).consumer_group
        info = self._broker.consumers.find(group)
        if info is None:
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}"
            )
        return request.answer(body=fastjson.dumps({"consumerIdList": info.client_ids()}))

    def _query_offset(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Serve request 14, in a thread if the first message of the queue is needed and not in memory."""
        header, store = request.read(QueryConsumerOffsetRequestHeader), self._broker.store
        topic, queue_id = header.topic, header.queue_id
        if (
            header.set_zero_if_not_found is False
            or store.max_phy_offset - store.min_phy_offset <= IN_MEMORY_BYTES
            or self._broker.offsets.query(header.consumer_group, topic, queue_id) >= 0
            or not store.get_message(
                topic, queue_id, store.queue_of(topic, queue_id).min, 1, only_cached=True).is_cold
        ):
            return self.query_offset(channel, request)
        return self._broker.worker.in_thread(self.query_offset)(channel, request)

    def query_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return the committed offset of a group: request 14."""
        header = request.read(QueryConsumerOffsetRequestHeader)
        topic, queue_id = header.topic, header.queue_id
        offset = self._broker.offsets.query(header.consumer_group, topic, queue_id)
        if offset < 0:
            if header.set_zero_if_not_found is False:
                raise RefusalError(
                    ResponseCode.QUERY_NOT_FOUND,
                    "Not found, do not set to zero, maybe this group boot first",
                )
            if not self._is_young(topic, queue_id):
                raise RefusalError(
                    ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first"
                )
            offset = self._broker.store.queue_of(topic, queue_id).min
        return request.answer(ext=QueryConsumerOffsetResponseHeader(offset))

    def _is_young(self, topic: str, queue_id: int) -> bool:
        """Return True if a queue still has the first message of its life, and that one was stored not long ago."""
        store = self._broker.store
        low = store.queue_of(topic, queue_id).min
        if low > store.queue_of(topic, queue_id).begin_of_life:
            return False
        if store.max_phy_offset - store.min_phy_offset <= IN_MEMORY_BYTES:
            return True
        first = store.get_message(topic, queue_id, low, 1).records
        if not first:
            return True
        behind: int = store.max_phy_offset - decode_message(first[0]).phy_offset
        return behind <= IN_MEMORY_BYTES

    def update_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Commit an offset of a group: request 15."""
        header = request.read(UpdateConsumerOffsetRequestHeader)
        topic, group, queue_id = header.topic, header.consumer_group, header.queue_id
        if self._broker.groups.select(group) is None:
            raise RefusalError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group[:NAME_MAX]} not exist!"
            )
        config = self._broker.topics.select(topic)
        if config is None:
            raise RefusalError(
                ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic[:NAME_MAX]} not exist!"
            )
        queues = max(config.read_queue_nums, config.write_queue_nums)
        if queue_id < 0 or (
            queue_id >= queues and self._broker.store.queue_of(topic, queue_id).max <= 0
        ):
            raise RefusalError(
                ResponseCode.INVALID_PARAMETER, f"topic {topic} has no queue {queue_id}")
        if self._broker.offsets.is_reset(group, topic, queue_id):
            return request.answer(ResponseCode.SUCCESS, "Offset has been previously reset")
        self._broker.offsets.commit(group, topic, queue_id, header.commit_offset)
        return request.answer()

    def lock_batch(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Lock queues for orderly consumption: request 41. The answer lists the locked queues."""
        def lock(group: str, client_id: str, queues: list[dict[str, Any]]) -> RemotingCommand:
            taken = self._broker.locks.try_lock(group, client_id, queues, channel)
            return request.answer(body=fastjson.dumps({"lockOKMQSet": taken}))

        return self._with_queues(channel, request, lock)

    def unlock_batch(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Unlock queues: request 42."""
        def unlock(group: str, client_id: str, queues: list[dict[str, Any]]) -> RemotingCommand:
            self._broker.locks.unlock(group, client_id, queues)
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
            self._broker.client_ids.check(channel, request, client_id)
            return then(group, client_id, queues)

        return in_turns(
            self._broker.loop, partial(Reply, channel, request), _check_queues(client_id, queues), answer)


def _creation(manager: ConfigManager[Any, Any], edits: dict[str, Edit]) -> Change:
    """Return the change that makes several groups or topics, by their names."""
    return Change(manager, lambda draft: [create(draft) for create in edits.values()], creates=list(edits))


def _beat_answer(request: RemotingCommand, *, sub_changed: bool) -> RemotingCommand:
    return request.answer(
        ext={
            "IS_SUPPORT_HEART_BEAT_V2": "true",
            "IS_SUB_CHANGE": "true" if sub_changed else "false",
        }
    )


def _check_queues(client_id: str, queues: list[dict[str, Any]]) -> Iterator[None]:
    """Check one queue of a request to lock or unlock after the other. Raises MessageIllegalError."""
    for queue in queues:
        names = client_id, text_in(queue, "topic"), text_in(queue, "brokerName")
        if max(map(len, names)) > CLIENT_ID_MAX or not 0 <= number_in(queue, "queueId", -1) < INT32:
            raise MessageIllegalError("body", "mqSet has a queue with a name or number out of range")
        yield
