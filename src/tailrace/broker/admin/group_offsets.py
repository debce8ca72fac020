"""Offsets and permissions of groups, for admin tools: requests 222, 308, 314, 353 and 402.

After a reset (request 222: mqadmin resetOffsetByTime, skipAccumulatedMessage) the new offsets are valid immediately if
the group has no member. A running member receives its new offset with its next pull of the queue (PULL_OFFSET_MOVED);
until then the broker ignores the member's commits. With useServerSideResetOffset=false the broker changes no offset
itself but sends the offsets to the members (request 220), as brokers before 5.0 do.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, final

from tailrace.auth.accesses import group_access
from tailrace.auth.check import AccessControl
from tailrace.broker.clients.client_manager import ConsumerManager
from tailrace.broker.consumers.offsets import push_reset
from tailrace.config import BrokerConfig
from tailrace.errors import RefusalError
from tailrace.formats import fastjson
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests.consumer_headers import (
    CloneGroupOffsetRequestHeader,
    QueryCorrectionOffsetHeader,
    ResetOffsetRequestHeader,
    UpdateGroupForbiddenRequestHeader,
)
from tailrace.formats.requests.table import Action
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.message_request_mode import MessageRequestModeManager
from tailrace.node.message_store import MessageStore
from tailrace.node.subscription_group import (
    OFFSETS_OF_BROKER,
    SubscriptionGroupManager,
    validate_group,
)
from tailrace.remoting import Channel
from tailrace.requests.processor import RequestProcessor, answers, serves
from tailrace.requests.reply import Answer
from tailrace.requests.worker import RequestWorker

__all__ = ["GroupOffsetsProcessor"]

LONG_MAX: Final = (1 << 63) - 1


@final
class GroupOffsetsProcessor(RequestProcessor):
    """Compares, copies and resets offsets of groups, and sets which topics a group may read."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, store: MessageStore, config: BrokerConfig, worker: RequestWorker,
        groups: SubscriptionGroupManager, offsets: ConsumerOffsetManager, consumers: ConsumerManager,
        modes: MessageRequestModeManager, control: AccessControl | None,
    ) -> None:
        self._loop, self._store, self._config, self._worker = loop, store, config, worker
        self._groups, self._offsets, self._consumers, self._modes = groups, offsets, consumers, modes
        self._control, self._topics = control, store.topics

    @answers(RequestCode.QUERY_CORRECTION_OFFSET, in_thread=True)
    def correction_offset(self, header: QueryCorrectionOffsetHeader) -> dict[str, Any]:
        """Return for each queue of a topic the least offset of its groups: request 308.

        It is 2^63 - 1 if the compared group has a lower offset than all others. Groups in ``filterGroups`` are
        left out. RocketMQ also deletes their offsets on all topics, which is not done here.
        """
        offsets = self._offsets
        topic, filtered = header.topic, set((header.filter_groups or "").split(","))
        least: dict[int, int] = {}
        for known, group, queue_id, offset in offsets.entries():
            if known != topic or group in filtered:
                continue
            if offset >= self._store.queue_of(topic, queue_id).min:
                least[queue_id] = min(offset, least.get(queue_id, LONG_MAX))
        for queue_id, offset in least.items():
            compared = offsets.query(header.compare_group, topic, queue_id)
            if 0 <= compared < offset:
                least[queue_id] = LONG_MAX
        return {"correctionOffsets": {str(queue_id): offset for queue_id, offset in least.items()}}

    @serves(RequestCode.CLONE_GROUP_OFFSET)
    def clone_offset(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Copy the offsets of a group to another one: request 314. They are durable before the answer.

        Without ``topic`` the offsets on all topics are copied. Without ``offline`` the topics are left out to
        which the source group no longer subscribes. A user also needs Get or Sub on the source group.
        """
        if (control := self._control) is not None:
            source = request.read(CloneGroupOffsetRequestHeader).src_group
            control.require(channel, request, group_access(source, Action.GET | Action.SUB))
        return self._worker.in_thread(self._copy)(channel, request)

    def _copy(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = request.read(CloneGroupOffsetRequestHeader)
        for name in (header.src_group, header.dest_group):
            if reason := validate_group(name):
                raise RefusalError(ResponseCode.INVALID_PARAMETER, reason)
        _check_not_of_broker(header.dest_group)
        self._check_writable()
        topic = (header.topic or "").strip()
        topics = [topic] if topic else self._offsets.topics_of(header.src_group)
        topics = [name for name in topics if self._topics.select(name) is not None]
        info = self._consumers.find(header.src_group)
        if not header.offline and info is not None and info.subscriptions:
            topics = [name for name in topics if name in info.subscriptions]
        self._offsets.clone(header.src_group, header.dest_group, topics)
        return request.answer()

    @serves(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, in_thread=True)
    def forbidden(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Return whether a group may read a topic, after a change if ``readable`` is given: request 353."""
        header = request.read(UpdateGroupForbiddenRequestHeader)
        group, topic = header.group, header.topic
        if header.readable is not None:
            self._check_writable()
            if not header.readable and self._groups.select(group) is None:
                raise RefusalError(
                    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group}")
            if not header.readable and self._topics.select(topic) is None:
                raise RefusalError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
            self._groups.set_readable(group, topic, readable=header.readable)
        return request.answer(remark="", body=fastjson.dumps({
            "group": group, "readable": not self._groups.is_read_forbidden(group, topic), "topic": topic}))

    @answers(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, in_thread=True)
    def request_modes(self) -> dict[str, Any]:
        """Return the content of ``messageRequestMode.json``: request 402."""
        return {name: member for name, member in self._modes.to_json().items() if name != "dataVersion"}

    def _check_writable(self) -> None:
        if reason := self._store.read_only:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, reason)

    @serves(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, in_thread=True)
    def reset_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Reset to a given offset, or to that of a time: request 222. A time below 0 means the end of the queue."""
        header = request.read(ResetOffsetRequestHeader)
        offsets = self.planned(header)
        if self._config.use_server_side_reset_offset:
            self._offsets.assign_reset(header.group, header.topic, offsets)
        else:
            push_reset(
                self._loop, self._consumers, self._config.broker_name, request, header, offsets)
        return request.answer(body=b'{"offsetTable":%b}' % fastjson.object_keyed([
            ({"brokerName": self._config.broker_name, "queueId": number, "topic": header.topic}, offset)
            for number, offset in offsets.items()]))

    def planned(self, header: ResetOffsetRequestHeader) -> dict[int, int]:
        """Return the offset of each queue that request 222 would set now. Raises RefusalError if it would be refused.
        """
        topic, group, queue_id = header.topic, header.group, header.queue_id
        _check_not_of_broker(group)
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

    def _at(self, topic: str, queue_id: int, timestamp: int) -> int:
        if timestamp < 0:
            return self._store.queue_of(topic, queue_id).max
        return max(0, self._store.queue_of(topic, queue_id).by_time(timestamp))


def _check_not_of_broker(group: str) -> None:
    if group in OFFSETS_OF_BROKER:
        raise RefusalError(
            ResponseCode.INVALID_PARAMETER, f"The offsets of group[{group}] are the progress of the broker.")
