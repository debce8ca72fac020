"""Requests of admin tools about topics (AdminBrokerProcessor): 17, 18, 21, 215, 305, 351, 513 and 5002."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final, final

from tailrace import events
from tailrace.auth.accesses import topic_access
from tailrace.auth.check import AccessControl
from tailrace.broker.admin.shapes import check_shape, page_of
from tailrace.broker.core.deletion import deleted_answer
from tailrace.config import BrokerConfig
from tailrace.errors import RefusalError
from tailrace.formats import fastjson
from tailrace.formats.commitlog import LMQ_QUEUE_ID
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests.broker_headers import (
    CreateTopicRequestHeader,
    DeleteTopicRequestHeader,
    GetAllTopicConfigRequestHeader,
    GetTopicConfigRequestHeader,
)
from tailrace.formats.requests.table import Action
from tailrace.logs import get_logger
from tailrace.node.config_manager import Draft
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.left_over_queues import log_left_over, not_consumed
from tailrace.node.message_store import MessageStore
from tailrace.node.topic_config import (
    DELETING,
    LITE_WITHOUT_LMQ,
    TopicConfig,
    merged_attributes,
    validate_topic,
)
from tailrace.node.topic_queue_mapping import TopicQueueMappingDetail
from tailrace.remoting import Channel
from tailrace.requests.bodies import json_object, objects_in, texts_in
from tailrace.requests.config_changes import Change, ConfigChanges
from tailrace.requests.processor import RequestProcessor, answers, serves
from tailrace.requests.reply import Answer, Reply, in_turns
from tailrace.requests.worker import RequestWorker

__all__ = ["LIST_MAX", "TopicsProcessor"]

_log = get_logger(__name__)

LIST_MAX: Final = 1_000
"""Number of topics or groups that one request may change."""


@final
class TopicsProcessor(RequestProcessor):
    """Creates, changes, returns and deletes topics, also those with logical queues."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, store: MessageStore, config: BrokerConfig,
        control: AccessControl | None, changes: ConfigChanges, worker: RequestWorker, offsets: ConsumerOffsetManager,
    ) -> None:
        self._loop, self._store, self._config, self._control = loop, store, config, control
        self.changes, self._worker, self._offsets = changes, worker, offsets
        self._topics = store.topics

    @serves(RequestCode.UPDATE_AND_CREATE_TOPIC, writes=True)
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
        self._check_name(name)
        config, changes = _config_of(header), header.attributes or ""

        def merged(present: TopicConfig | None) -> TopicConfig:
            return replace(
                config, extra=present.extra if present else {}, attributes=merged_attributes(
                    present.attributes if present else {}, changes, creating=present is None))

        try:
            first = merged(self._topics.select(name))
        except ValueError as error:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        self._check(channel, request, first, changes)
        return first, merged

    @serves(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, writes=True)
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
            self._check_name(config.topic_name)
            self._check(channel, request, first, ",".join(config.attributes))
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

    @serves(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, writes=True)
    def update_static_topic(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Create or change a topic and its mapping: request 513. Both are durable before the answer, or neither."""
        header = request.read(CreateTopicRequestHeader)
        name = header.topic
        self._check_own(name)
        detail = self._mapping(request, name)
        topics, mappings = self._topics, self._topics.mappings
        config = _config_of(header)
        check_shape(config)

        def put(draft: Draft[str, TopicConfig]) -> None:
            if (present := draft.get(name)) is not None:
                config.attributes, config.extra = present.attributes, present.extra
            topics.put_all(draft, [config])

        def set_mapping() -> None:
            try:
                mappings.change(mappings.setting(detail, force=header.force))
            except ValueError as error:
                raise RefusalError(ResponseCode.SYSTEM_ERROR, str(error)) from error

        def answer() -> RemotingCommand:
            events.STATIC_TOPIC_SET.log(
                _log, topic=name, epoch=detail.epoch, queues=detail.total_queues, led=len(detail.info()["currIdMap"]))
            return request.answer()

        return self.changes.apply(channel, request, [Change(topics, put, set_mapping, [name])], answer)

    def _mapping(self, request: RemotingCommand, topic: str) -> TopicQueueMappingDetail:
        """Return the mapping in the body. Raises RefusalError if this broker cannot have it."""
        try:
            detail = TopicQueueMappingDetail.from_json(json_object(request), topic)
        except ValueError as error:
            raise RefusalError(ResponseCode.INVALID_PARAMETER, f"the mapping of topic {topic}: {error}") from error
        reason, own = "", self._config.broker_name
        if detail.topic != topic:
            reason = f"the mapping is of topic {detail.topic[:255]}, the request of {topic}"
        elif detail.bname != own:
            reason = f"the mapping is of broker {detail.bname[:255]}, this one is {own}"
        elif self._topics.has_batch_queues(topic):
            reason = f"topic {topic} has batch queues, which cannot be parts of logical queues"
        if reason:
            raise RefusalError(ResponseCode.INVALID_PARAMETER, reason)
        return detail

    def _check_name(self, name: str) -> None:
        """Raise RefusalError if a name is invalid or that of a system topic or an LMQ.

        RocketMQ ignores the change of an LMQ and answers success.
        """
        self._check_own(name)
        if self._topics.is_lmq(name):
            raise RefusalError(
                ResponseCode.INVALID_PARAMETER,
                f"The topic[{name}] is an LMQ queue: it exists without a config, with one queue.")

    def _check_own(self, name: str) -> None:
        """Raise RefusalError if a name is invalid or the name of a system topic."""
        if reason := validate_topic(name):
            raise RefusalError(ResponseCode.INVALID_PARAMETER, reason)
        if self._topics.is_system_topic(name):
            raise RefusalError(
                ResponseCode.INVALID_PARAMETER, f"The topic[{name}] is conflict with system topic.")

    def _check(self, channel: Channel, request: RemotingCommand, config: TopicConfig, changes: str) -> None:
        """Raise RefusalError if a topic cannot be so, or its user may not make it so; ``changes`` of attributes.

        A change that decides which messages of a topic are deleted needs Delete on it.
        """
        check_shape(config)
        self._check_type(config, changes)
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

    @serves(RequestCode.DELETE_TOPIC_IN_BROKER, writes=True)
    def delete_topic(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Delete a topic with its queues: request 215.

        Everything that belongs to the topic is deleted with it (``node.deletion``), durably before the answer.
        If a file cannot be written, the others are restored.
        """
        return self._delete_topics(channel, request, [request.read(DeleteTopicRequestHeader).topic])

    @serves(RequestCode.DELETE_TOPIC_IN_BROKER_LIST, writes=True)
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

    @serves(RequestCode.GET_ALL_TOPIC_CONFIG, in_thread=True)
    def all_topics(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return all topics, or a page of them: request 21."""
        header, mappings = request.read(GetAllTopicConfigRequestHeader), self._topics.mappings
        found = self._topics.to_json()
        table = found["topicConfigTable"]
        page = page_of(table, header.topic_seq, header.max_topic_num, header.data_version, found["dataVersion"])
        return request.answer(ext={"totalTopicNum": str(len(table))}, body=fastjson.dumps_large({
            **found, "topicConfigTable": page,
            "mappingDataVersion": mappings.data_version.to_json(),
            "topicQueueMappingDetailMap": {
                name: detail.to_json() for name, detail in list(mappings.table.items()) if name in page},
            "topicQueueMappingInfoMap": {},
        }))

    @answers(RequestCode.GET_TOPIC_CONFIG)
    def topic(self, header: GetTopicConfigRequestHeader) -> dict[str, Any]:
        """Return a topic, and with ``lo`` its mapping as well: request 351."""
        config = self._topics.select(header.topic)
        if config is None:
            raise RefusalError(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {header.topic}")
        found = config.to_json()
        if header.lo and (detail := self._topics.mappings.table.get(header.topic)) is not None:
            found["mappingDetail"] = detail.to_json()
        return found

    @answers(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, in_thread=True)
    def system_topics(self) -> dict[str, Any]:
        """Return the names of the system topics: request 305."""
        return {"topicList": self._topics.system_topic_names()}


def _config_of(header: CreateTopicRequestHeader) -> TopicConfig:
    """Return the topic that a request names, without its attributes."""
    return TopicConfig(
        topic_name=header.topic, read_queue_nums=header.read_queue_nums, write_queue_nums=header.write_queue_nums,
        perm=header.perm, topic_filter_type=header.topic_filter_type or "SINGLE_TAG",
        topic_sys_flag=header.topic_sys_flag or 0, order=header.order)
