"""Requests of admin tools about Lite topics: 200074 to 200079 (LiteManagerProcessor)."""

from __future__ import annotations

from heapq import nlargest, nsmallest
from typing import Any, Final, NamedTuple, final

from tailrace.auth.accesses import TOPIC, Access
from tailrace.broker.consumers.consumer_checks import no_group
from tailrace.broker.core.name_servers import NameServers
from tailrace.broker.lite.dispatcher import LiteEventDispatcher
from tailrace.broker.lite.registry import (
    LiteSubscriptionRegistry,
    end_of,
    is_mine,
    lite_queues,
    shards,
)
from tailrace.broker.messages.records import Records
from tailrace.config import BrokerConfig
from tailrace.errors import RefusalError
from tailrace.formats import fastjson
from tailrace.formats.commitlog import LMQ_QUEUE_ID
from tailrace.formats.lite import is_lite_queue, lite_queue, lite_topic_of, parent_of
from tailrace.formats.names import LMQ_PREFIX
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests.broker_headers import (
    GetLiteClientInfoRequestHeader,
    GetLiteGroupInfoRequestHeader,
    GetLiteTopicInfoRequestHeader,
    GetParentTopicInfoRequestHeader,
    TriggerLiteDispatchRequestHeader,
)
from tailrace.formats.requests.table import Action
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.consumer_order_info import ConsumerOrderInfoManager
from tailrace.node.message_store import MessageStore
from tailrace.node.subscription_group import SubscriptionGroupConfig, SubscriptionGroupManager
from tailrace.node.topic_config import TopicConfig
from tailrace.remoting import Channel
from tailrace.requests.processor import RequestProcessor, answers, serves
from tailrace.requests.worker import RequestWorker

__all__ = ["LiteManagerProcessor"]

NAMES_MAX: Final = 10_000
"""Greatest number of Lite topics in an answer."""
ALL_CLIENTS: Final = "*"


class _Lag(NamedTuple):
    """What a group has not consumed of a Lite topic."""

    name: str
    behind: int
    oldest_ms: int

    def to_json(self) -> dict[str, Any]:
        return {"earliestUnconsumedTimestamp": self.oldest_ms, "lagCount": self.behind, "liteTopic": self.name}


@final
class LiteManagerProcessor(RequestProcessor):
    """Returns what a broker knows of Lite topics, their groups and clients."""

    def __init__(
        self, store: MessageStore, config: BrokerConfig, worker: RequestWorker, groups: SubscriptionGroupManager,
        offsets: ConsumerOffsetManager, name_servers: NameServers, records: Records, registry: LiteSubscriptionRegistry,
        dispatcher: LiteEventDispatcher, order: ConsumerOrderInfoManager,
    ) -> None:
        self._config, self._worker, self._groups, self._offsets = config, worker, groups, offsets
        self._name_servers, self._records = name_servers, records
        self._topics = store.topics
        self._store, self._registry, self._dispatcher, self._order = store, registry, dispatcher, order

    @answers(RequestCode.GET_BROKER_LITE_INFO, in_thread=True)
    def broker_info(self) -> dict[str, Any]:
        """Return numbers of queues, subscriptions and events, the parent topics and the groups: request 200074."""
        topics = {topic for topic, *_ in self._store.queues()}
        return {
            "cqTableSize": len(topics), "currentLmqNum": sum(topic.startswith(LMQ_PREFIX) for topic in topics),
            "eventMapSize": len(self._dispatcher), "groupMeta": self._bound_groups(),
            "liteSubscriptionCount": self._registry.count,
            "maxLmqNum": self._store.config.max_lmq_consume_queue_num,
            "offsetTableSize": len({entry[:2] for entry in self._offsets.entries()}),
            "orderInfoCount": len(self._order), "storeType": "default",
            "topicMeta": {
                topic.topic_name: topic.lite_expiration_min for topic in self._topics.items() if topic.is_lite},
        }

    @answers(RequestCode.GET_PARENT_TOPIC_INFO, in_thread=True)
    def parent_info(self, header: GetParentTopicInfoRequestHeader) -> dict[str, Any]:
        """Return the expiration, the groups and the number of Lite topics of a parent topic: request 200075."""
        topic = self._parent(header.topic)
        name = topic.topic_name
        body: dict[str, Any] = {
            "liteTopicCount": len(lite_queues(self._store, name)),
            "lmqNum": sum(queue.startswith(LMQ_PREFIX) for queue, *_ in self._store.queues()),
            "topic": name, "ttl": topic.lite_expiration_min,
        }
        if groups := self._bound_groups().get(name):
            body["groups"] = groups
        return body

    @answers(RequestCode.GET_LITE_TOPIC_INFO)
    def topic_info(self, header: GetLiteTopicInfoRequestHeader) -> dict[str, Any]:
        """Return the offsets and the subscribers of a Lite topic: request 200076."""
        parent = self._parent(header.parent_topic).topic_name
        queue = lite_queue(parent, header.lite_topic)
        start, end = 0, end_of(self._store, queue)
        stored_ms = 0
        if end > 0:
            start = self._store.queue_of(queue, LMQ_QUEUE_ID).min
            stored_ms = self._store.queue_of(queue, LMQ_QUEUE_ID).store_timestamp(end - 1)
        return {
            "liteTopic": header.lite_topic, "parentTopic": parent,
            "shardingToBroker": is_mine(self._config.broker_name, shards(self._name_servers, parent), queue),
            "subscriber": self._subscribers(queue),
            "topicOffset": {"lastUpdateTimestamp": stored_ms, "maxOffset": end, "minOffset": start}}

    @answers(RequestCode.GET_LITE_CLIENT_INFO)
    def client_info(self, header: GetLiteClientInfoRequestHeader) -> dict[str, Any]:
        """Return the Lite topics of a client: request 200077."""
        if header.max_count <= 0:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, "[maxCount] field invalid")
        parent = self._parent(header.parent_topic).topic_name
        group = self._groups.select(header.group)
        if group is None:
            raise no_group(header.group)
        if group.lite_bind_topic != parent:
            raise RefusalError(
                ResponseCode.INVALID_PARAMETER, f"Subscription [{header.group}]-[{parent}] not match.")
        mine = self._registry.of_client(header.client_id)
        if mine is not None and mine.group != header.group:
            mine = None
        body: dict[str, Any] = {
            "clientId": header.client_id, "group": header.group,
            "lastAccessTime": -1 if mine is None else self._dispatcher.accessed_ms(header.client_id),
            "lastConsumeTime": 0,
            "liteTopicCount": -1 if mine is None else len(mine.queues), "parentTopic": parent,
        }
        if mine is not None:
            body["liteTopicSet"] = sorted(mine.queues)[: min(header.max_count, NAMES_MAX)]
        return body

    @serves(RequestCode.GET_LITE_GROUP_INFO, in_thread=True)
    def group_info(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return what a group has not consumed of its Lite topics, or of one of them: request 200078.

        A group may be bound to a parent topic of others, so the user also needs a permission for that topic.
        """
        header = request.read(GetLiteGroupInfoRequestHeader)
        topic = self._lite_group(header.group).lite_bind_topic
        self._records.require(channel, request, Access(TOPIC, topic, Action.GET | Action.SUB))
        body: dict[str, Any] = {"group": header.group, "parentTopic": topic}
        if header.lite_topic:
            return request.answer(body=fastjson.dumps({
                **body, "liteTopic": header.lite_topic,
                **self._one_lag(header.group, lite_queue(topic, header.lite_topic))}))
        lags, most = self._lags(header.group, topic), min(max(0, header.top_k), NAMES_MAX)
        oldest = nsmallest(most, (lag for lag in lags if lag.oldest_ms > 0), key=lambda lag: lag.oldest_ms)
        return request.answer(body=fastjson.dumps({
            **body, "totalLagCount": sum(lag.behind for lag in lags),
            "earliestUnconsumedTimestamp": oldest[0].oldest_ms if oldest else -1,
            "lagCountTopK": [lag.to_json() for lag in nlargest(most, lags, key=lambda lag: lag.behind)],
            "lagTimestampTopK": [lag.to_json() for lag in oldest]}))

    @answers(RequestCode.TRIGGER_LITE_DISPATCH)
    def trigger(self, header: TriggerLiteDispatchRequestHeader) -> None:
        """Look for messages of all Lite topics of a group, or of one of its clients: request 200079."""
        self._lite_group(header.group)
        if header.client_id:
            self._dispatcher.look_for_client(header.client_id, header.group)
        else:
            self._dispatcher.look_for_group(header.group)

    # -- parts

    def _parent(self, name: str) -> TopicConfig:
        topic = self._topics.select(name)
        if topic is None:
            raise RefusalError(ResponseCode.TOPIC_NOT_EXIST, f"Topic [{name}] not exist.")
        if not topic.is_lite:
            raise RefusalError(ResponseCode.INVALID_PARAMETER, f"Topic [{name}] type not match.")
        return topic

    def _lite_group(self, name: str) -> SubscriptionGroupConfig:
        group = self._groups.select(name)
        if group is None:
            raise RefusalError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group [{name}] not exist.")
        if not group.lite_bind_topic:
            raise RefusalError(ResponseCode.INVALID_PARAMETER, f"Group [{name}] is not a LITE group.")
        return group

    def _bound_groups(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for group in self._groups.items():
            if topic := group.lite_bind_topic:
                found.setdefault(topic, []).append(group.group_name)
        return found

    def _subscribers(self, queue: str) -> list[dict[str, str]]:
        found = []
        for name, members in self._registry.members(queue).items():
            group = self._groups.select(name)
            if group is not None and group.is_lite_wildcard:
                found.append({"clientId": ALL_CLIENTS, "group": name})
            else:
                found += [{"clientId": member.client_id, "group": name} for member in members]
        return found

    def _lags(self, group: str, topic: str) -> list[_Lag]:
        found = []
        for queue, name, _, offset in self._offsets.entries():
            if name != group or offset < 0 or not is_lite_queue(queue) or parent_of(queue) != topic:
                continue
            count = end_of(self._store, queue) - offset
            if count > 0:
                found.append(_Lag(
                    lite_topic_of(queue), count,
                    self._store.queue_of(queue, LMQ_QUEUE_ID).store_timestamp(offset)))
        return found

    def _one_lag(self, group: str, queue: str) -> dict[str, Any]:
        end = end_of(self._store, queue)
        if end <= 0:
            return {"earliestUnconsumedTimestamp": -1, "totalLagCount": -1}
        offset = self._offsets.query(group, queue, LMQ_QUEUE_ID)
        if offset < 0:
            return {"earliestUnconsumedTimestamp": -1, "totalLagCount": 0}
        stored_ms = self._store.queue_of(queue, LMQ_QUEUE_ID).store_timestamp
        return {
            "earliestUnconsumedTimestamp": stored_ms(offset) if offset < end else -1,
            "liteTopicOffsetWrapper": {
                "brokerOffset": end, "consumerOffset": offset,
                "lastTimestamp": stored_ms(offset - 1) if offset > 0 else 0, "pullOffset": 0},
            "totalLagCount": max(end - offset, 0)}
