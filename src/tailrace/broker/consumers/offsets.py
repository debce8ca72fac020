"""Committed offsets of groups: requests 14 and 15."""

from __future__ import annotations

from typing import Final, final

from tailrace.broker.consumers.consumer_checks import NAME_MAX
from tailrace.broker.static_topics.logical_requests import LogicalQueueRequests
from tailrace.errors import RefusalError
from tailrace.formats.commitlog import decode_message
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests.consumer_headers import (
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.message_store import MessageStore
from tailrace.node.subscription_group import SubscriptionGroupManager
from tailrace.remoting import Channel, RemotingServer
from tailrace.requests.reply import Answer
from tailrace.requests.worker import RequestWorker

__all__ = ["ConsumerOffsetsProcessor"]

# As in RocketMQ, a new group reads a queue from its beginning while the first message is young enough to be
# in memory. The limit is 40 % of the 24 GiB of memory that RocketMQ assumes if it cannot measure it.
IN_MEMORY_BYTES: Final = 24 * 1024**3 * 4 // 10


@final
class ConsumerOffsetsProcessor:
    """Returns and commits offsets."""

    def __init__(
        self, store: MessageStore, groups: SubscriptionGroupManager, offsets: ConsumerOffsetManager,
        worker: RequestWorker, logical_queues: LogicalQueueRequests,
    ) -> None:
        self._store, self._groups, self._offsets, self._worker = store, groups, offsets, worker
        self._logical_queues = logical_queues
        self._topics = store.topics

    def register(self, server: RemotingServer) -> None:
        """Register the requests that this processor serves."""
        of_queue, code = self._logical_queues.of, RequestCode
        server.register(
            of_queue(code.QUERY_CONSUMER_OFFSET, self.query_offset, self._query_offset), code.QUERY_CONSUMER_OFFSET)
        server.register(
            of_queue(code.UPDATE_CONSUMER_OFFSET, self.update_offset), code.UPDATE_CONSUMER_OFFSET)

    def _query_offset(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Serve request 14, in a thread if the first message of the queue is needed and not in memory."""
        header, store = request.read(QueryConsumerOffsetRequestHeader), self._store
        topic, queue_id = header.topic, header.queue_id
        if (
            header.set_zero_if_not_found is False
            or store.max_phy_offset - store.min_phy_offset <= IN_MEMORY_BYTES
            or self._offsets.query(header.consumer_group, topic, queue_id) >= 0
            or not store.get_message(
                topic, queue_id, store.queue_of(topic, queue_id).min, 1, only_cached=True).is_cold
        ):
            return self.query_offset(channel, request)
        return self._worker.in_thread(self.query_offset)(channel, request)

    def query_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return the committed offset of a group: request 14."""
        header = request.read(QueryConsumerOffsetRequestHeader)
        topic, queue_id = header.topic, header.queue_id
        offset = self._offsets.query(header.consumer_group, topic, queue_id)
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
            offset = self._store.queue_of(topic, queue_id).min
        return request.answer(ext=QueryConsumerOffsetResponseHeader(offset))

    def _is_young(self, topic: str, queue_id: int) -> bool:
        """Return True if a queue still has the first message of its life, and that one was stored not long ago."""
        store = self._store
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
        if self._groups.select(group) is None:
            raise RefusalError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group[:NAME_MAX]} not exist!"
            )
        config = self._topics.select(topic)
        if config is None:
            raise RefusalError(
                ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic[:NAME_MAX]} not exist!"
            )
        queues = max(config.read_queue_nums, config.write_queue_nums)
        if queue_id < 0 or (queue_id >= queues and self._store.queue_of(topic, queue_id).max <= 0):
            raise RefusalError(ResponseCode.INVALID_PARAMETER, f"topic {topic} has no queue {queue_id}")
        if self._offsets.is_reset(group, topic, queue_id):
            return request.answer(ResponseCode.SUCCESS, "Offset has been previously reset")
        self._offsets.commit(group, topic, queue_id, header.commit_offset)
        return request.answer()
