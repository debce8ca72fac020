"""Requests of admin tools about topics and consumer groups (AdminBrokerProcessor, first half)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, final

from tailrace import events
from tailrace.auth.accesses import topic_access
from tailrace.auth.check import AccessControl
from tailrace.broker.admin.pages import groups_page, topics_page
from tailrace.broker.admin.shapes import check_shape, unreadable_by_java
from tailrace.broker.clients.client_manager import ConsumerManager
from tailrace.broker.consumers.lags import ConsumerLags
from tailrace.broker.core.addresses import Addresses
from tailrace.broker.core.creations import Creations
from tailrace.broker.core.deletion import BrokerState, deleted_answer
from tailrace.broker.static_topics.logical_queues import StaticTopics
from tailrace.broker.statistics.broker_stats import BrokerStatsManager
from tailrace.config import BrokerConfig
from tailrace.env.clock import Clock
from tailrace.errors import RefusalError
from tailrace.formats import fastjson
from tailrace.formats.commitlog import LMQ_QUEUE_ID
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests import consumer_headers
from tailrace.formats.requests.broker_headers import (
    CreateTopicRequestHeader,
    DeleteTopicRequestHeader,
    GetAllTopicConfigRequestHeader,
    GetTopicConfigRequestHeader,
    GetTopicStatsInfoRequestHeader,
)
from tailrace.formats.requests.table import Action
from tailrace.logs import get_logger
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.left_over_queues import LeftOverQueue, log_left_over, not_consumed
from tailrace.node.message_store import MessageStore
from tailrace.node.subscription_group import (
    SubscriptionGroupConfig,
    SubscriptionGroupManager,
    merged_group_attributes,
    validate_group,
)
from tailrace.node.topic_config import (
    DELETING,
    LITE_WITHOUT_LMQ,
    TopicConfig,
    TopicConfigManager,
    merged_attributes,
    validate_topic,
)
from tailrace.remoting import Channel, RemotingServer
from tailrace.requests.bodies import json_object, objects_in, texts_in
from tailrace.requests.config_changes import Change, ConfigChanges, creates_missing
from tailrace.requests.reply import Answer, Reply, in_turns
from tailrace.requests.worker import RequestWorker

__all__ = ["AdminTopicsProcessor", "check_topic_name"]

_log = get_logger(__name__)

LIST_MAX: Final = 1_000
"""Number of topics or groups that one request may change."""


@final
class AdminTopicsProcessor:
    """Creates, changes, returns and deletes topics and groups, and returns how far groups have consumed."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, store: MessageStore, config: BrokerConfig,
        addresses: Addresses, control: AccessControl | None, changes: ConfigChanges, worker: RequestWorker,
        creations: Creations, groups: SubscriptionGroupManager, offsets: ConsumerOffsetManager,
        consumers: ConsumerManager, static_topics: StaticTopics, stats: BrokerStatsManager, lags: ConsumerLags,
        state: BrokerState,
    ) -> None:
        self._loop, self._clock, self._store, self._config = loop, clock, store, config
        self._addresses, self._control, self._worker = addresses, control, worker
        self._creations, self._groups, self._offsets, self._consumers = creations, groups, offsets, consumers
        self._static_topics, self._stats, self._lags, self._state = static_topics, stats, lags, state
        self._topics = store.topics
        self.changes = changes

    def register(self, server: RemotingServer) -> None:
        """Register the requests that this processor serves."""
        code = RequestCode
        changes = {
            code.UPDATE_AND_CREATE_TOPIC: self.update_topic,
            code.UPDATE_AND_CREATE_TOPIC_LIST: self.update_topics,
            code.DELETE_TOPIC_IN_BROKER: self.delete_topic,
            code.DELETE_TOPIC_IN_BROKER_LIST: self.delete_topics,
            code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.update_group,
            code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self.update_groups,
            code.DELETE_SUBSCRIPTIONGROUP: self.delete_group,
            code.DELETE_SUBSCRIPTION_GROUP_LIST: self.delete_groups,
        }
        for number, change in changes.items():
            server.register(self.refuse if self._store.read_only else change, number)
        slow = self._worker.in_thread
        server.register(slow(self.all_topics), code.GET_ALL_TOPIC_CONFIG)
        server.register(self.topic, code.GET_TOPIC_CONFIG)
        server.register(slow(self.topic_stats), code.GET_TOPIC_STATS_INFO)
        server.register(slow(self.system_topics), code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
        server.register(slow(self.all_groups), code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        server.register(self.group, code.GET_SUBSCRIPTIONGROUP_CONFIG)
        server.register(slow(self.consume_stats), code.GET_CONSUME_STATS)
        server.register(slow(self.broker_consume_stats), code.GET_BROKER_CONSUME_STATS)
        server.register(slow(self.consume_time_span), code.QUERY_CONSUME_TIME_SPAN)
        server.register(slow(self.groups_of_topic), code.QUERY_TOPIC_CONSUME_BY_WHO)
        server.register(slow(self.topics_of_group), code.QUERY_TOPICS_BY_CONSUMER)
        server.register(self.subscription_of_group, code.QUERY_SUBSCRIPTION_BY_CONSUMER)

    def refuse(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Refuse a change, because the store is read-only and the change would not be written."""
        raise RefusalError(ResponseCode.SYSTEM_ERROR, self._store.read_only)

    # --- topics

    def update_topic(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Create or change a topic: request 17."""
        first, merged = self.planned_topic(channel, request)
        return self._put_topics(channel, request, [(first.topic_name, merged)])

    def planned_topic(
        self, channel: Channel, request: RemotingCommand
    ) -> tuple[TopicConfig, Callable[[TopicConfig | None], TopicConfig]]:
        """Return the topic that request 17 would make now, and the function that makes it from the present one.

        Raises RefusalError if the request would be refused.
        """
        header = request.read(CreateTopicRequestHeader)
        name = header.topic
        check_topic_name(self._topics, name)
        self._check_lmq(name)
        config = TopicConfig(
            topic_name=name,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=header.topic_filter_type or "SINGLE_TAG",
            topic_sys_flag=header.topic_sys_flag or 0,
            order=header.order,
        )
        changes = header.attributes or ""

        def merged(present: TopicConfig | None) -> TopicConfig:
            return replace(
                config, extra=present.extra if present else {}, attributes=merged_attributes(
                    present.attributes if present else {}, changes, creating=present is None))

        try:
            first = merged(self._topics.select(name))
        except ValueError as error:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        check_shape(first)
        self._check_type(first, changes)
        self._check_retention(channel, request, first)
        return first, merged

    def update_topics(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Create or change several topics: request 18. Either all of them change or none."""
        configs: list[TopicConfig] = []

        def merged(config: TopicConfig, present: TopicConfig | None) -> TopicConfig:
            changes = ",".join(  # in the form of request 17: +name=value, or -name
                f"{k}={v}" if k.startswith("+") else k for k, v in config.attributes.items())
            return replace(config, attributes=merged_attributes(
                present.attributes if present else {}, changes, creating=present is None))

        def check(value: dict[str, Any]) -> None:
            config = TopicConfig.from_json(value)
            try:
                first = merged(config, self._topics.select(config.topic_name))
            except ValueError as error:
                raise RefusalError(
                    ResponseCode.SYSTEM_ERROR, f"{config.topic_name}: {error}") from error
            check_topic_name(self._topics, config.topic_name)
            self._check_lmq(config.topic_name)
            check_shape(first)
            self._check_type(first, ",".join(config.attributes))
            self._check_retention(channel, request, first)
            configs.append(config)

        return in_turns(
            self._loop, partial(Reply, channel, request),
            map(check, objects_in(json_object(request), "topicConfigList", LIST_MAX)),
            lambda: self._put_topics(
                channel, request, [(config.topic_name, partial(merged, config)) for config in configs]))

    def _put_topics(
        self, channel: Channel, request: RemotingCommand,
        made: list[tuple[str, Callable[[TopicConfig | None], TopicConfig]]],
    ) -> Answer:
        """Create or change topics.

        ``made`` has for each topic a function that returns the new topic from the present one. The function
        runs when the change is applied, so two requests that run together keep each other's attributes.
        """
        topics = self._topics
        before = {name: config.read_queue_nums for name, _ in made if (config := topics.select(name)) is not None}

        def changed() -> Answer:
            fewer = {name: config.read_queue_nums for name, queues in before.items()
                     if (config := topics.select(name)) is not None and config.read_queue_nums < queues}
            if not fewer:
                return request.answer()
            return self._worker.in_thread(partial(self._left_over, fewer))(channel, request)

        change = Change(topics, lambda draft: topics.put_all(
            draft, [merged(draft.get(name)) for name, merged in made]), creates=[name for name, _ in made])
        return self.changes.apply(channel, request, [change], changed)

    def _left_over(self, fewer: dict[str, int], channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return the answer for topics with these numbers of queues to read; it notes messages in their other queues.
        """
        found = self._store.left_over_queues(fewer)
        waiting = not_consumed(self._offsets, found)
        notes = [log_left_over(name, fewer[name], left, waiting[name]) for name, left in found.items()]
        return request.answer(remark="; ".join(notes) or None)

    def _check_lmq(self, name: str) -> None:
        """Raise RefusalError if a name is that of an LMQ. RocketMQ ignores the change and answers success."""
        if self._topics.is_lmq(name):
            raise RefusalError(
                ResponseCode.INVALID_PARAMETER,
                f"The topic[{name}] is an LMQ queue: it exists without a config, with one queue.")

    def _check_retention(self, channel: Channel, request: RemotingCommand, config: TopicConfig) -> None:
        """Raise RefusalError if a change decides which messages of a topic are deleted, and its user may not Delete."""
        control, present = self._control, self._topics.select(config.topic_name)
        if control is not None and present is not None and any(
            config.attributes.get(name) != present.attributes.get(name) for name in DELETING
        ):
            control.require(channel, request, topic_access(config.topic_name, Action.DELETE))

    def _check_type(self, config: TopicConfig, changes: str) -> None:
        """Raise RefusalError if a change of attributes makes a topic of a type that is not supported.

        A topic of Lite topics is made also while the settings that it needs are off, as in RocketMQ: its sends are
        refused, and a warning says so.
        """
        unsupported = self._topics.unsupported_type(config) if changes else ""
        if unsupported == LITE_WITHOUT_LMQ:
            events.SENDS_TO_A_LITE_TOPIC_ARE_REFUSED.log(_log, topic=config.topic_name)
        elif unsupported:
            raise RefusalError(
                ResponseCode.INVALID_PARAMETER,
                f"The topic[{config.topic_name}] has {unsupported}, which is not supported.")

    def delete_topic(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Delete a topic with its queues: request 215.

        Everything that belongs to the topic is deleted with it (``node.deletion``), durably before the answer.
        If a file cannot be written, the others are restored.
        """
        return self._delete_topics(channel, request, [request.read(DeleteTopicRequestHeader).topic])

    def delete_topics(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Delete several topics with their queues: request 5002. Either all of them are deleted or none.

        A topic that is named twice is deleted once.
        """
        names = texts_in(json_object(request) if request.body else {}, "topicList", LIST_MAX)
        if not names:
            raise RefusalError(ResponseCode.INVALID_PARAMETER, "The specified topic list is blank.")
        return self._delete_topics(channel, request, names)

    def _delete_topics(self, channel: Channel, request: RemotingCommand, names: list[str]) -> Answer:
        for name in names:
            self._check_deletable(name)

        def delete(channel: Channel, request: RemotingCommand) -> RemotingCommand:
            return deleted_answer(request, self._store.delete_topics(dict.fromkeys(names), missing_ok=True))

        return self._worker.in_thread(delete)(channel, request)

    def _check_deletable(self, name: str) -> None:
        """Raise RefusalError for a topic that the broker needs, and for a name that no topic has or can have.

        Every topic that exists can be deleted, also one whose name cannot be given to a new topic: the topic of a Java
        broker, an LMQ queue, or the retry topic of a group and a topic with long names.
        """
        if not name.strip() and name not in self._topics.table:
            raise RefusalError(ResponseCode.INVALID_PARAMETER, "The specified topic is blank.")
        if self._topics.is_of_broker(name):
            raise RefusalError(
                ResponseCode.INVALID_PARAMETER, f"The topic[{name}] is conflict with system topic.")
        queue = self._store.queue_of(name, LMQ_QUEUE_ID)
        known = name in self._topics.table or (self._topics.is_lmq(name) and queue.max > queue.begin_of_life)
        if not known and (reason := validate_topic(name)):
            raise RefusalError(ResponseCode.INVALID_PARAMETER, reason)

    def all_topics(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return all topics, or a page of them: request 21."""
        ext, body = topics_page(self._topics, request.read(GetAllTopicConfigRequestHeader))
        return request.answer(ext=ext, body=fastjson.dumps_large(body))

    def topic(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return a topic, and with ``lo`` its mapping as well: request 351."""
        header = request.read(GetTopicConfigRequestHeader)
        name = header.topic
        config = self._topics.select(name)
        if config is None:
            raise RefusalError(
                ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {name}")
        found = config.to_json()
        if header.lo and (detail := self._topics.mappings.table.get(name)) is not None:
            found["mappingDetail"] = detail.to_json()
        return request.answer(body=fastjson.dumps(found))

    def topic_stats(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return the offsets and times of the queues of a topic: request 202.

        The members ``sizeBytes`` and ``sizeIsExact`` are Tailrace's; a Java client skips them.
        """
        name = request.read(GetTopicStatsInfoRequestHeader).topic
        config = self._topics.select(name)
        if config is None:
            raise RefusalError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
        entries, size, is_exact = [], 0, True
        for queue_id in self._queue_ids(name, max(config.read_queue_nums, config.write_queue_nums)):
            first, until = self._store.queue_of(name, queue_id).bounds
            timestamp = 0
            if until > 0:
                timestamp = max(
                    0, self._store.queue_of(name, queue_id).store_timestamp(until - 1)
                )
            entries.append((
                self._queue(name, queue_id),
                {"lastUpdateTimestamp": timestamp, "maxOffset": until, "minOffset": first},
            ))
            found = self._store.queue_size(name, queue_id)
            size, is_exact = size + found.size_bytes, is_exact and found.is_exact
        table = fastjson.object_keyed(entries)
        rate, exact = map(fastjson.dumps, (self._stats.topic_put_tps(name), is_exact))
        return request.answer(body=b'{"offsetTable":%b,"topicPutTps":%b,"sizeBytes":%d,"sizeIsExact":%b}' % (
            table, rate, size, exact))

    def system_topics(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return the names of the system topics: request 305."""
        names = self._topics.system_topic_names()
        return request.answer(body=fastjson.dumps({"topicList": names}))

    def _queue_ids(self, topic: str, count: int) -> list[int]:
        """Return the numbers below ``count``, and those of further queues of a topic that hold messages."""
        return [*range(count), *(
            queue.queue_id for queue in self._store.left_over_queues({topic: count}).get(topic, ()))]

    def _queue(self, topic: str, queue_id: int) -> dict[str, Any]:
        return {
            "brokerName": self._config.broker_name, "queueId": queue_id, "topic": topic,
        }

    # --- groups

    def update_group(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Create or change a group: request 200."""
        return self._update_groups(channel, request, [json_object(request)])

    def update_groups(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Create or change several groups: request 225. Either all of them change or none."""
        values = objects_in(json_object(request), "groupConfigList", LIST_MAX)
        return self._update_groups(channel, request, values)

    def _update_groups(
        self, channel: Channel, request: RemotingCommand, values: list[dict[str, Any]]
    ) -> Answer:
        groups, configs = self._groups, list[SubscriptionGroupConfig]()

        def check(value: dict[str, Any]) -> None:
            config = SubscriptionGroupConfig.from_json(value)
            if reason := validate_group(config.group_name) or unreadable_by_java(config):
                raise RefusalError(ResponseCode.INVALID_PARAMETER, reason)
            if groups.is_lmq(config.group_name):  # RocketMQ ignores the change
                raise RefusalError(
                    ResponseCode.INVALID_PARAMETER,
                    f"The group[{config.group_name}] is an LMQ group: it exists without a config.")
            try:
                _merged_group(config, groups.select(config.group_name))
            except ValueError as error:
                raise RefusalError(
                    ResponseCode.SYSTEM_ERROR, f"{config.group_name}: {error}") from error
            configs.append(config)

        def apply() -> Answer:
            change = Change(groups, lambda draft: groups.put_all(
                draft, [_merged_group(config, draft.get(config.group_name)) for config in configs]),
                creates=[config.group_name for config in configs])
            return self.changes.apply(channel, request, [change], request.answer)

        return in_turns(self._loop, partial(Reply, channel, request), map(check, values), apply)

    def all_groups(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return all groups, or a page of them: request 201."""
        ext, body = groups_page(self._groups, request.read(consumer_headers.GetAllSubscriptionGroupRequestHeader))
        return request.answer(ext=ext, body=fastjson.dumps_large(body))

    @creates_missing
    def group(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Return a group: request 352. A missing group is created if that is allowed."""
        name = request.read(consumer_headers.GetSubscriptionGroupConfigRequestHeader).group
        config = self._creations.group(name)
        if config is None:
            raise RefusalError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {name}",
            )
        return request.answer(body=fastjson.dumps(config.to_json()))

    def delete_group(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Delete a group with its retry topics and dead letters: request 207.

        With ``cleanOffset``, or if it is a Lite group, its offsets are deleted as well.
        """
        header = request.read(consumer_headers.DeleteSubscriptionGroupRequestHeader)
        return self._delete_groups(channel, request, [header.group_name], clean=header.clean_offset)

    def delete_groups(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Delete several groups as request 207 does: request 5003. Either all of them are deleted or none."""
        body = json_object(request) if request.body else {}
        names = texts_in(body, "groupNameList", LIST_MAX)
        if not names:
            raise RefusalError(ResponseCode.INVALID_PARAMETER, "The specified group name list is blank.")
        if not all(name.strip() for name in names):
            raise RefusalError(ResponseCode.INVALID_PARAMETER, "The specified group name is blank.")
        return self._delete_groups(channel, request, names, clean=body.get("cleanOffset") is True)

    def _delete_groups(
        self, channel: Channel, request: RemotingCommand, names: list[str], *, clean: bool
    ) -> Answer:
        groups = dict.fromkeys(names)

        def delete(channel: Channel, request: RemotingCommand) -> RemotingCommand:
            configs = {name: self._groups.select(name) for name in groups}
            kept = [name for name, config in configs.items() if not (
                clean or (config is not None and config.lite_bind_topic))]
            done = self._state.delete_groups(set(groups), offsets=groups.keys() - set(kept))
            return deleted_answer(
                request, done, f"the offsets of {', '.join(kept)}, because cleanOffset is false" if kept else "")

        return self._worker.in_thread(delete)(channel, request)

    # --- what was consumed

    def consume_stats(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return the offsets of a group and the ends of the queues, from which tools compute its lag: request 208."""
        header = request.read(consumer_headers.GetConsumeStatsRequestHeader)
        group, named = header.consumer_group, (header.topic_list or "").split(";")
        topics = [topic for topic in dict.fromkeys(named) if topic]
        if not topics:
            topics = [header.topic] if header.topic else self._offsets.topics_of(group)
            info = self._consumers.find(group)
            if info is not None and info.subscriptions:  # topics that it no longer subscribes to are no lag
                topics = [topic for topic in topics if topic in info.subscriptions]
        static, left_over = self._static_topics.table, self._left_over_of(topics)
        entries = [
            e for name in topics
            for e in self._consumed(group, name, left_over.get(name, ()), is_static=name in static)]
        rate = sum(self._stats.group_get_tps(group, name) for name in topics)
        return request.answer(
            body=b'{"consumeTps":%b,"offsetTable":%b}'
            % (fastjson.dumps(float(rate)), fastjson.object_keyed(entries))
        )

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

    def broker_consume_stats(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return the offsets of every group on every topic: request 317."""
        parts, total, inflight = [], 0, 0
        ordered = request.read(consumer_headers.GetConsumeStatsInBrokerHeader).is_order
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
                rate = fastjson.dumps(self._stats.group_get_tps(group, topic))
                tables.append(b'{"consumeTps":%b,"offsetTable":%b}' % (rate, fastjson.object_keyed(entries)))
            parts.append(b"{%b:[%b]}" % (fastjson.dumps(group), b",".join(tables)))
        return request.answer(
            body=b'{"brokerAddr":%b,"consumeStatsList":[%b],"totalDiff":%d,"totalInflightDiff":%d}'
            % (fastjson.dumps(self._addresses.broker), b",".join(parts), total, inflight)
        )

    def _is_ordered(self, topic: str) -> bool:
        config = self._topics.select(topic)
        return config is not None and config.order

    def consume_time_span(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return store times for each queue: of its first, its last and the group's last message: request 303."""
        header = request.read(consumer_headers.QueryConsumeTimeSpanRequestHeader)
        topic, group = header.topic, header.group
        config = self._topics.select(topic)
        if config is None:
            raise RefusalError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
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
        return request.answer(body=fastjson.dumps({"consumeTimeSpanSet": spans}))

    def _stored_at(self, topic: str, queue_id: int, offset: int) -> int:
        first, until = self._store.queue_of(topic, queue_id).bounds
        if not first <= offset < until:
            return -1
        stored: int = self._store.queue_of(topic, queue_id).store_timestamp(offset)
        return stored

    def groups_of_topic(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return the groups that consume a topic: request 300."""
        topic = request.read(consumer_headers.QueryTopicConsumeByWhoRequestHeader).topic
        groups = set(self._consumers.groups_of(topic))
        groups |= set(self._offsets.groups_of(topic))
        return request.answer(body=fastjson.dumps({"groupList": sorted(groups)}))

    def topics_of_group(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return the topics that a group has consumed: request 343."""
        group = request.read(consumer_headers.QueryTopicsByConsumerRequestHeader).group
        names = self._offsets.topics_of(group)
        return request.answer(body=fastjson.dumps({"topicList": names}))

    def subscription_of_group(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return the subscription of a live group to a topic: request 345."""
        header = request.read(consumer_headers.QuerySubscriptionByConsumerRequestHeader)
        group, topic = header.group, header.topic or ""
        body: dict[str, Any] = {"group": group, "topic": topic}
        info = self._consumers.find(group)
        if info is not None and topic in info.subscriptions:
            body["subscriptionData"] = info.subscriptions[topic].to_json()
        return request.answer(body=fastjson.dumps(body))


def check_topic_name(topics: TopicConfigManager, name: str) -> None:
    """Raise RefusalError if a name is invalid or the name of a system topic."""
    if reason := validate_topic(name):
        raise RefusalError(ResponseCode.INVALID_PARAMETER, reason)
    if topics.is_system_topic(name):
        raise RefusalError(
            ResponseCode.INVALID_PARAMETER, f"The topic[{name}] is conflict with system topic.")


def _merged_group(
    config: SubscriptionGroupConfig, present: SubscriptionGroupConfig | None
) -> SubscriptionGroupConfig:
    """Return a group after its changes of attributes. Raises ValueError if a change is invalid."""
    return replace(config, attributes=merged_group_attributes(
        present.attributes if present else {}, config.attributes, creating=present is None))
