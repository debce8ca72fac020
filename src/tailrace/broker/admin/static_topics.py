"""Creation and change of static topics: request 513 (mqadmin updateStaticTopic, remappingStaticTopic)."""

from __future__ import annotations

from typing import final

from tailrace import events
from tailrace.broker.admin.admin_topics import check_topic_name
from tailrace.broker.admin.shapes import check_shape
from tailrace.config import BrokerConfig
from tailrace.errors import RefusalError
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests.broker_headers import CreateTopicRequestHeader
from tailrace.logs import get_logger
from tailrace.node.config_manager import Draft
from tailrace.node.message_store import MessageStore
from tailrace.node.topic_config import TopicConfig
from tailrace.node.topic_queue_mapping import TopicQueueMappingDetail
from tailrace.remoting import Channel, RemotingServer
from tailrace.requests.bodies import json_object
from tailrace.requests.config_changes import Change, ConfigChanges
from tailrace.requests.reply import Answer

__all__ = ["StaticTopicsProcessor"]

_log = get_logger(__name__)


@final
class StaticTopicsProcessor:
    """Creates and changes topics together with the mapping of their logical queues."""

    def __init__(self, store: MessageStore, config: BrokerConfig, changes: ConfigChanges) -> None:
        self._store, self._config, self._changes = store, config, changes
        self._topics = store.topics

    def register(self, server: RemotingServer) -> None:
        """Register the requests that this processor serves."""
        server.register(self.update, RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC)

    def update(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Create or change a topic and its mapping: request 513. Both are durable before the answer, or neither."""
        if self._store.read_only:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, self._store.read_only)
        header = request.read(CreateTopicRequestHeader)
        name = header.topic
        check_topic_name(self._topics, name)
        detail = self._mapping(request, name)
        topics, mappings = self._topics, self._topics.mappings
        config = TopicConfig(
            topic_name=name, read_queue_nums=header.read_queue_nums, write_queue_nums=header.write_queue_nums,
            perm=header.perm, topic_filter_type=header.topic_filter_type or "SINGLE_TAG",
            topic_sys_flag=header.topic_sys_flag or 0, order=header.order)
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

        return self._changes.apply(channel, request, [Change(topics, put, set_mapping, [name])], answer)

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
