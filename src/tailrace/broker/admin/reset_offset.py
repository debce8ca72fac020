"""Reset of a group's offsets: request 222 (mqadmin resetOffsetByTime, skipAccumulatedMessage).

If the group has no member, the new offsets are valid immediately. A running member receives its new offset with
its next pull of the queue (PULL_OFFSET_MOVED); until then the broker ignores the member's commits. With
useServerSideResetOffset=false the broker changes no offset itself but sends the offsets to the members
(request 220), as brokers before 5.0 do.
"""

from __future__ import annotations

import asyncio
from typing import final

from tailrace.broker.clients.client_manager import ConsumerManager
from tailrace.broker.consumers.client_offsets import push_reset
from tailrace.config import BrokerConfig
from tailrace.errors import RefusalError
from tailrace.formats import fastjson
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests.consumer_headers import ResetOffsetRequestHeader
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.message_store import MessageStore
from tailrace.node.subscription_group import SubscriptionGroupManager
from tailrace.remoting import Channel, RemotingServer
from tailrace.requests.worker import RequestWorker

__all__ = ["ResetOffsetProcessor"]


@final
class ResetOffsetProcessor:
    """Resets the offsets of one queue or of all queues of a topic."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, store: MessageStore, config: BrokerConfig, worker: RequestWorker,
        groups: SubscriptionGroupManager, offsets: ConsumerOffsetManager, consumers: ConsumerManager,
    ) -> None:
        self._loop, self._store, self._config, self._worker = loop, store, config, worker
        self._groups, self._offsets, self._consumers = groups, offsets, consumers
        self._topics = store.topics

    def register(self, server: RemotingServer) -> None:
        """Register the requests that this processor serves."""
        server.register(self._worker.in_thread(self.reset_offset), RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)

    def reset_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Reset to a given offset, or to that of a time: request 222. A time below 0 means the end of the queue."""
        header = request.read(ResetOffsetRequestHeader)
        offsets = self.planned(header)
        if self._config.use_server_side_reset_offset:
            self._offsets.assign_reset(header.group, header.topic, offsets)
        else:
            push_reset(
                self._loop, self._consumers, self._config.broker_name, request, header, offsets)
        return self._answer(request, header.topic, offsets)

    def planned(self, header: ResetOffsetRequestHeader) -> dict[int, int]:
        """Return the offset of each queue that request 222 would set now. Raises RefusalError if it would be refused.
        """
        topic, group, queue_id = header.topic, header.group, header.queue_id
        config = self._topics.select(topic)
        if config is None:
            raise RefusalError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} does not exist")
        if not self._config.use_server_side_reset_offset:
            return self._pushed(header, config.write_queue_nums)
        # The group of a client without heartbeats is not in the table of groups; it only has offsets.
        if self._groups.select(group) is None and topic not in self._offsets.topics_of(group):
            raise RefusalError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} does not exist")
        left_over = [
            queue.queue_id for queue in self._store.left_over_queues({topic: config.read_queue_nums}).get(topic, ())]
        if queue_id >= config.read_queue_nums and queue_id not in left_over:
            raise RefusalError(
                ResponseCode.INVALID_PARAMETER,
                f"queueId {queue_id} is not below readQueueNums {config.read_queue_nums}")
        asked = -1 if header.offset is None else header.offset
        if queue_id < 0:
            offsets = {q: self._at(topic, q, header.timestamp) for q in (*range(config.read_queue_nums), *left_over)}
        elif asked == -1:
            offsets = {queue_id: self._at(topic, queue_id, header.timestamp)}
        else:
            low, high = self._store.queue_of(topic, queue_id).bounds
            if not low <= asked <= high:
                raise RefusalError(
                    ResponseCode.SYSTEM_ERROR,
                    f"Target offset {asked} not in consume queue range [{low}-{high}]")
            offsets = {queue_id: asked}
        if not offsets:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, "No queues to reset.")
        return offsets

    def _pushed(self, header: ResetOffsetRequestHeader, queues: int) -> dict[int, int]:
        """Return the offsets that members commit. Without isForce no offset is raised."""
        topic, group, offsets = header.topic, header.group, dict[int, int]()
        for queue_id in range(queues):
            consumed = self._offsets.query(group, topic, queue_id)
            if consumed == -1:
                raise RefusalError(
                    ResponseCode.SYSTEM_ERROR,
                    f"The consumer group <{group}> not exist: it has no offset of queue {queue_id} of {topic}")
            found = self._at(topic, queue_id, header.timestamp)
            offsets[queue_id] = found if header.is_force else min(found, consumed)
        return offsets

    def _answer(self, request: RemotingCommand, topic: str, offsets: dict[int, int]) -> RemotingCommand:
        name = self._config.broker_name
        table = fastjson.object_keyed([
            ({"brokerName": name, "queueId": number, "topic": topic}, offset)
            for number, offset in offsets.items()])
        return request.answer(body=b'{"offsetTable":%b}' % table)

    def _at(self, topic: str, queue_id: int, timestamp: int) -> int:
        if timestamp < 0:
            return self._store.queue_of(topic, queue_id).max
        return max(0, self._store.queue_of(topic, queue_id).by_time(timestamp))
