"""Setting a group's offsets by hand: request 222 (mqadmin resetOffsetByTime, skipAccumulatedMessage).

The offsets hold at once for a group that is not running. A running member is told with its next
pull of the queue (PULL_OFFSET_MOVED), and until then what it commits itself is passed over; so it
needs no request of the broker to its clients (useServerSideResetOffset of the original).
"""

from __future__ import annotations

from typing import final

from tailrace.broker.context import BrokerContext
from tailrace.formats import fastjson
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.remoting import Channel, RemotingServer

__all__ = ["ResetOffsetProcessor"]


@final
class ResetOffsetProcessor:
    """Resets the offsets of one queue or of all queues of a topic."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    def register(self, server: RemotingServer) -> None:
        """Take over the code of this processor."""
        server.register(self._broker.worker.in_thread(self.reset_offset), RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)

    def reset_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """To the offset that is named, or to that of a time, below 0 the end: request 222."""
        ext, broker = request.ext, self._broker
        topic, group, timestamp = ext["topic"], ext["group"], int(ext["timestamp"])
        queue_id = int(ext.get("queueId") or -1)
        config = broker.topics.select(topic)
        if config is None:
            return request.answer(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} does not exist")
        # A group of a client without heartbeats has nothing but its offsets.
        if broker.groups.select(group) is None and topic not in broker.offsets.topics_of(group):
            return request.answer(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} does not exist")
        if queue_id >= config.read_queue_nums:
            return request.answer(
                ResponseCode.INVALID_PARAMETER,
                f"queueId {queue_id} is not below readQueueNums {config.read_queue_nums}")
        asked = int(ext.get("offset") or -1)
        if queue_id < 0:
            offsets = {q: self._at(topic, q, timestamp) for q in range(config.read_queue_nums)}
        elif asked == -1:
            offsets = {queue_id: self._at(topic, queue_id, timestamp)}
        else:
            low, high = self._bounds(topic, queue_id)
            if not low <= asked <= high:
                return request.answer(
                    ResponseCode.SYSTEM_ERROR,
                    f"Target offset {asked} not in consume queue range [{low}-{high}]")
            offsets = {queue_id: asked}
        if not offsets:
            return request.answer(ResponseCode.SYSTEM_ERROR, "No queues to reset.")
        broker.offsets.assign_reset(group, topic, offsets)
        name = broker.config.broker_name
        table = fastjson.object_keyed([
            ({"brokerName": name, "queueId": number, "topic": topic}, offset)
            for number, offset in offsets.items()])
        return request.answer(body=b'{"offsetTable":%b}' % table)

    def _bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        store = self._broker.store
        return (
            max(0, store.min_offset_in_queue(topic, queue_id)),
            max(0, store.max_offset_in_queue(topic, queue_id)))

    def _at(self, topic: str, queue_id: int, timestamp: int) -> int:
        if timestamp < 0:
            return self._bounds(topic, queue_id)[1]
        return max(0, self._broker.store.get_offset_in_queue_by_time(topic, queue_id, timestamp))
