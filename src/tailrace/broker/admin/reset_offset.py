"""Reset of a group's offsets: request 222 (mqadmin resetOffsetByTime, skipAccumulatedMessage).

If the group has no member, the new offsets are valid immediately. A running member receives its new offset with
its next pull of the queue (PULL_OFFSET_MOVED); until then the broker ignores the member's commits. With
useServerSideResetOffset=false the broker changes no offset itself but sends the offsets to the members
(request 220), as brokers before 5.0 do.
"""

from __future__ import annotations

from typing import final

from tailrace.broker.consumers.client_offsets import push_reset
from tailrace.broker.core.context import BrokerContext
from tailrace.errors import RefusalError
from tailrace.formats import fastjson
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests.consumer_headers import ResetOffsetRequestHeader
from tailrace.remoting import Channel, RemotingServer

__all__ = ["ResetOffsetProcessor"]


@final
class ResetOffsetProcessor:
    """Resets the offsets of one queue or of all queues of a topic."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    def register(self, server: RemotingServer) -> None:
        """Register the requests that this processor serves."""
        server.register(self._broker.worker.in_thread(self.reset_offset), RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)

    def reset_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Reset to a given offset, or to that of a time: request 222. A time below 0 means the end of the queue."""
        header, broker = request.read(ResetOffsetRequestHeader), self._broker
        offsets = self.planned(header)
        if broker.config.use_server_side_reset_offset:
            broker.offsets.assign_reset(header.group, header.topic, offsets)
        else:
            push_reset(broker, request, header, offsets)
        return self._answer(request, header.topic, offsets)

    def planned(self, header: ResetOffsetRequestHeader) -> dict[int, int]:
        """Return the offset of each queue that request 222 would set now. Raises RefusalError if it would be refused.
        """
        broker = self._broker
        topic, group, queue_id = header.topic, header.group, header.queue_id
        config = broker.topics.select(topic)
        if config is None:
            raise RefusalError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} does not exist")
        if not broker.config.use_server_side_reset_offset:
            return self._pushed(header, config.write_queue_nums)
        # The group of a client without heartbeats is not in the table of groups; it only has offsets.
        if broker.groups.select(group) is None and topic not in broker.offsets.topics_of(group):
            raise RefusalError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} does not exist")
        left_over = [
            queue.queue_id for queue in broker.store.left_over_queues({topic: config.read_queue_nums}).get(topic, ())]
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
            low, high = self._broker.store.queue_of(topic, queue_id).bounds
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
            consumed = self._broker.offsets.query(group, topic, queue_id)
            if consumed == -1:
                raise RefusalError(
                    ResponseCode.SYSTEM_ERROR,
                    f"The consumer group <{group}> not exist: it has no offset of queue {queue_id} of {topic}")
            found = self._at(topic, queue_id, header.timestamp)
            offsets[queue_id] = found if header.is_force else min(found, consumed)
        return offsets

    def _answer(self, request: RemotingCommand, topic: str, offsets: dict[int, int]) -> RemotingCommand:
        name = self._broker.config.broker_name
        table = fastjson.object_keyed([
            ({"brokerName": name, "queueId": number, "topic": topic}, offset)
            for number, offset in offsets.items()])
        return request.answer(body=b'{"offsetTable":%b}' % table)

    def _at(self, topic: str, queue_id: int, timestamp: int) -> int:
        if timestamp < 0:
            return self._broker.store.queue_of(topic, queue_id).max
        return max(0, self._broker.store.queue_of(topic, queue_id).by_time(timestamp))
