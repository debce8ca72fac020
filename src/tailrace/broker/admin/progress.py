"""How far groups have consumed, and the queues of topics, for admin tools: 202, 208, 300, 303, 317, 343 and 345."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, final

from tailrace.broker.clients.client_manager import ConsumerManager
from tailrace.broker.consumers.lags import ConsumerLags
from tailrace.broker.core.addresses import Addresses
from tailrace.broker.statistics.broker_stats import BrokerStatsManager
from tailrace.config import BrokerConfig
from tailrace.env.clock import Clock
from tailrace.errors import RefusalError
from tailrace.formats import fastjson
from tailrace.formats.remoting import RequestCode, ResponseCode
from tailrace.formats.requests import consumer_headers as headers
from tailrace.formats.requests.broker_headers import GetTopicStatsInfoRequestHeader
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.left_over_queues import LeftOverQueue
from tailrace.node.message_store import MessageStore
from tailrace.node.subscription_group import SubscriptionGroupManager
from tailrace.node.topic_config import TopicConfig
from tailrace.requests.processor import RequestProcessor, answers
from tailrace.requests.worker import RequestWorker

__all__ = ["ProgressProcessor"]


@final
class ProgressProcessor(RequestProcessor):
    """Returns the offsets and times of queues, and of groups on them."""

    def __init__(
        self, clock: Clock, store: MessageStore, config: BrokerConfig, addresses: Addresses, worker: RequestWorker,
        groups: SubscriptionGroupManager, offsets: ConsumerOffsetManager, consumers: ConsumerManager,
        stats: BrokerStatsManager, lags: ConsumerLags,
    ) -> None:
        self._clock, self._store, self._config, self._addresses, self._worker = clock, store, config, addresses, worker
        self._groups, self._offsets, self._consumers, self._stats, self._lags = groups, offsets, consumers, stats, lags
        self._topics = store.topics

    @answers(RequestCode.GET_TOPIC_STATS_INFO, in_thread=True)
    def topic_stats(self, header: GetTopicStatsInfoRequestHeader) -> bytes:
        """Return the offsets and times of the queues of a topic: request 202.

        The members ``sizeBytes`` and ``sizeIsExact`` are Tailrace's; a Java client skips them.
        """
        name = header.topic
        config = self._topic(name)
        entries, size, is_exact = [], 0, True
        for queue_id in self._queue_ids(name, max(config.read_queue_nums, config.write_queue_nums)):
            queue = self._store.queue_of(name, queue_id)
            first, until = queue.kept_min, queue.max
            timestamp = max(0, queue.store_timestamp(until - 1)) if until > 0 else 0
            entries.append((
                self._queue(name, queue_id),
                {"lastUpdateTimestamp": timestamp, "maxOffset": until, "minOffset": first},
            ))
            found = self._store.queue_size(name, queue_id)
            size, is_exact = size + found.size_bytes, is_exact and found.is_exact
        table = fastjson.object_keyed(entries)
        rate, exact = map(fastjson.dumps, (self._stats.topic_put_tps(name), is_exact))
        return b'{"offsetTable":%b,"topicPutTps":%b,"sizeBytes":%d,"sizeIsExact":%b}' % (table, rate, size, exact)

    @answers(RequestCode.GET_CONSUME_STATS, in_thread=True)
    def consume_stats(self, header: headers.GetConsumeStatsRequestHeader) -> bytes:
        """Return the offsets of a group and the ends of the queues, from which tools compute its lag: request 208."""
        group, named = header.consumer_group, (header.topic_list or "").split(";")
        topics = [topic for topic in dict.fromkeys(named) if topic]
        if not topics:
            topics = [header.topic] if header.topic else self._offsets.topics_of(group)
            info = self._consumers.find(group)
            if info is not None and info.subscriptions:  # topics that it no longer subscribes to are no lag
                topics = [topic for topic in topics if topic in info.subscriptions]
        static, left_over = self._topics.mappings.table, self._left_over_of(topics)
        entries = [
            e for name in topics
            for e in self._consumed(group, name, left_over.get(name, ()), is_static=name in static)]
        rate = sum(self._stats.group_get_tps(group, name) for name in topics)
        return _group_stats(float(rate), entries)

    def _left_over_of(self, topics: Iterable[str]) -> dict[str, list[LeftOverQueue]]:
        configs = [(name, self._topics.select(name)) for name in topics]
        return self._store.left_over_queues({
            name: config.read_queue_nums for name, config in configs if config is not None})

    def _consumed(
        self, group: str, topic: str, left_over: Sequence[LeftOverQueue], *, is_static: bool = False
    ) -> list[tuple[dict[str, Any], dict[str, int]]]:
        """Return how far a group has consumed the queues of a topic and those that are ``left_over``."""
        config = self._topics.select(topic)
        if config is None:
            return []
        offsets, entries = self._offsets, []
        for queue_id in [*range(config.read_queue_nums), *(queue.queue_id for queue in left_over)]:
            committed, queue = offsets.query(group, topic, queue_id), self._store.queue_of(topic, queue_id)
            lag = self._lags.of(group, queue, committed)
            if committed < 0 and is_static:  # the group has its offset in another part of the logical queue
                lag = lag._replace(
                    committed=-1, handed_out=min(offsets.query_pull(group, topic, queue_id), lag.until))
            last = max(0, queue.store_timestamp(lag.committed - 1)) if lag.committed > queue.min else 0
            entries.append((self._queue(topic, queue_id), {
                "brokerOffset": lag.until, "consumerOffset": lag.committed, "lastTimestamp": last,
                "pullOffset": lag.handed_out}))
        return entries

    @answers(RequestCode.GET_BROKER_CONSUME_STATS, in_thread=True)
    def broker_consume_stats(self, header: headers.GetConsumeStatsInBrokerHeader) -> bytes:
        """Return the offsets of every group on every topic: request 317."""
        parts, total, inflight = [], 0, 0
        ordered = header.is_order
        known = self._offsets.topics_by_group()
        left_over = self._left_over_of({topic for topics in known.values() for topic in topics})
        for config in self._groups.items():
            group, tables = config.group_name, []
            info = self._consumers.find(group)
            for topic in sorted(known.get(group, ())):
                if info is not None and info.subscriptions and topic not in info.subscriptions:
                    continue
                if ordered and not self._is_ordered(topic):
                    continue
                entries = self._consumed(group, topic, left_over.get(topic, ()))
                total += sum(v["brokerOffset"] - v["consumerOffset"] for _, v in entries)
                inflight += sum(v["pullOffset"] - v["consumerOffset"] for _, v in entries)
                tables.append(_group_stats(self._stats.group_get_tps(group, topic), entries))
            parts.append(b"{%b:[%b]}" % (fastjson.dumps(group), b",".join(tables)))
        return b'{"brokerAddr":%b,"consumeStatsList":[%b],"totalDiff":%d,"totalInflightDiff":%d}' % (
            fastjson.dumps(self._addresses.broker), b",".join(parts), total, inflight)

    def _is_ordered(self, topic: str) -> bool:
        config = self._topics.select(topic)
        return config is not None and config.order

    @answers(RequestCode.QUERY_CONSUME_TIME_SPAN, in_thread=True)
    def consume_time_span(self, header: headers.QueryConsumeTimeSpanRequestHeader) -> dict[str, Any]:
        """Return store times for each queue: of its first, its last and the group's last message: request 303."""
        topic, group = header.topic, header.group
        config = self._topic(topic)
        now_ms, spans = self._clock.now_ms(), []
        for queue_id in self._queue_ids(topic, config.write_queue_nums):
            first, until = self._store.queue_of(topic, queue_id).bounds
            place = max(first, self._offsets.query(group, topic, queue_id))
            oldest = self._stored_at(topic, queue_id, first)
            waiting = self._stored_at(topic, queue_id, place)
            spans.append({
                "messageQueue": self._queue(topic, queue_id),
                "minTimeStamp": oldest,
                "maxTimeStamp": self._stored_at(topic, queue_id, until - 1),
                "consumeTimeStamp":
                    self._stored_at(topic, queue_id, place - 1) if place > first else oldest,
                "delayTime": max(0, now_ms - waiting) if waiting >= 0 else 0,
            })
        return {"consumeTimeSpanSet": spans}

    def _stored_at(self, topic: str, queue_id: int, offset: int) -> int:
        queue = self._store.queue_of(topic, queue_id)
        first, until = queue.bounds
        return queue.store_timestamp(offset) if first <= offset < until else -1

    def _topic(self, name: str) -> TopicConfig:
        config = self._topics.select(name)
        if config is None:
            raise RefusalError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
        return config

    def _queue_ids(self, topic: str, count: int) -> list[int]:
        """Return the numbers below ``count``, and those of further queues of a topic that hold messages."""
        return [*range(count), *(
            queue.queue_id for queue in self._store.left_over_queues({topic: count}).get(topic, ()))]

    def _queue(self, topic: str, queue_id: int) -> dict[str, Any]:
        return {"brokerName": self._config.broker_name, "queueId": queue_id, "topic": topic}

    @answers(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, in_thread=True)
    def groups_of_topic(self, header: headers.QueryTopicConsumeByWhoRequestHeader) -> dict[str, Any]:
        """Return the groups that consume a topic: request 300."""
        return {"groupList": sorted({
            *self._consumers.groups_of(header.topic), *self._offsets.groups_of(header.topic)})}

    @answers(RequestCode.QUERY_TOPICS_BY_CONSUMER, in_thread=True)
    def topics_of_group(self, header: headers.QueryTopicsByConsumerRequestHeader) -> dict[str, Any]:
        """Return the topics that a group has consumed: request 343."""
        return {"topicList": self._offsets.topics_of(header.group)}

    @answers(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER)
    def subscription_of_group(self, header: headers.QuerySubscriptionByConsumerRequestHeader) -> dict[str, Any]:
        """Return the subscription of a live group to a topic: request 345."""
        group, topic = header.group, header.topic or ""
        body: dict[str, Any] = {"group": group, "topic": topic}
        info = self._consumers.find(group)
        if info is not None and topic in info.subscriptions:
            body["subscriptionData"] = info.subscriptions[topic].to_json()
        return body


def _group_stats(rate: float, entries: list[tuple[dict[str, Any], dict[str, int]]]) -> bytes:
    """Return the rate and the offsets of a group as a ConsumeStats."""
    return b'{"consumeTps":%b,"offsetTable":%b}' % (fastjson.dumps(rate), fastjson.object_keyed(entries))
