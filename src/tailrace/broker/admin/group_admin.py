"""Offsets and permissions of groups, for admin tools: requests 308, 314, 353 and 402."""

from __future__ import annotations

from typing import Final, final

from tailrace.auth.accesses import group_access
from tailrace.auth.check import AccessControl
from tailrace.broker.clients.client_manager import ConsumerManager
from tailrace.errors import RefusalError
from tailrace.formats import fastjson
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests.consumer_headers import (
    CloneGroupOffsetRequestHeader,
    QueryCorrectionOffsetHeader,
    UpdateGroupForbiddenRequestHeader,
)
from tailrace.formats.requests.table import Action
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.message_request_mode import MessageRequestModeManager
from tailrace.node.message_store import MessageStore
from tailrace.node.subscription_group import SubscriptionGroupManager, validate_group
from tailrace.remoting import Channel, RemotingServer
from tailrace.requests.reply import Answer
from tailrace.requests.worker import RequestWorker

__all__ = ["GroupAdminProcessor"]

LONG_MAX: Final = (1 << 63) - 1


@final
class GroupAdminProcessor:
    """Compares and copies offsets of groups, and sets which topics a group may read."""

    def __init__(
        self, store: MessageStore, worker: RequestWorker, groups: SubscriptionGroupManager,
        offsets: ConsumerOffsetManager, consumers: ConsumerManager, modes: MessageRequestModeManager,
        control: AccessControl | None,
    ) -> None:
        self._store, self._worker, self._groups, self._offsets = store, worker, groups, offsets
        self._consumers, self._control = consumers, control
        self._topics = store.topics
        self._modes = modes
        self._clone = worker.in_thread(self._copy)

    def register(self, server: RemotingServer) -> None:
        """Register the requests that this processor serves."""
        slow = self._worker.in_thread
        server.register(slow(self.correction_offset), RequestCode.QUERY_CORRECTION_OFFSET)
        server.register(self.clone_offset, RequestCode.CLONE_GROUP_OFFSET)
        server.register(slow(self.forbidden), RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN)
        server.register(slow(self.request_modes), RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)

    def correction_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return for each queue of a topic the least offset of its groups: request 308.

        It is 2^63 - 1 if the compared group has a lower offset than all others. Groups in ``filterGroups`` are
        left out. RocketMQ also deletes their offsets on all topics, which is not done here.
        """
        header, offsets = request.read(QueryCorrectionOffsetHeader), self._offsets
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
        return request.answer(body=fastjson.dumps(
            {"correctionOffsets": {str(queue_id): offset for queue_id, offset in least.items()}}))

    def clone_offset(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Copy the offsets of a group to another one: request 314. They are durable before the answer.

        Without ``topic`` the offsets on all topics are copied. Without ``offline`` the topics are left out to
        which the source group no longer subscribes. A user also needs Get or Sub on the source group.
        """
        if (control := self._control) is not None:
            source = request.read(CloneGroupOffsetRequestHeader).src_group
            control.require(channel, request, group_access(source, Action.GET | Action.SUB))
        return self._clone(channel, request)

    def _copy(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = request.read(CloneGroupOffsetRequestHeader)
        for name in (header.src_group, header.dest_group):
            if reason := validate_group(name):
                raise RefusalError(ResponseCode.INVALID_PARAMETER, reason)
        self._check_writable()
        topic = (header.topic or "").strip()
        topics = [topic] if topic else self._offsets.topics_of(header.src_group)
        topics = [name for name in topics if self._topics.select(name) is not None]
        info = self._consumers.find(header.src_group)
        if not header.offline and info is not None and info.subscriptions:
            topics = [name for name in topics if name in info.subscriptions]
        self._offsets.clone(header.src_group, header.dest_group, topics)
        return request.answer()

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

    def request_modes(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return the content of ``messageRequestMode.json``: request 402."""
        value = self._modes.to_json()
        value.pop("dataVersion", None)
        return request.answer(body=fastjson.dumps_large(value))

    def _check_writable(self) -> None:
        if reason := self._store.read_only:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, reason)
