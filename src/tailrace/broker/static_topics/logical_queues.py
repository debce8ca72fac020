"""Translation of logical to physical queues in sends and pulls, and back in their answers.

The processors check `StaticTopics.table` first and use this module only for topics with a mapping. A logical queue
consists of parts (items); each is a physical queue of a broker.

A pull is answered from the part that has its offset. At the end of a part the answer is PULL_RETRY_IMMEDIATELY with
the start of the next part, so a consumer skips the offsets between two parts. Messages carry physical queues and
offsets; a client adds the field ``offsetDelta`` to their offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, final

import msgspec

from tailrace.broker.static_topics.forwarder import Forwarder
from tailrace.errors import RefusalError
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode, sender_of
from tailrace.formats.requests.broker_headers import (
    GetMaxOffsetResponseHeader,
    SearchOffsetResponseHeader,
)
from tailrace.formats.requests.consumer_headers import (
    QueryConsumerOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from tailrace.formats.requests.custom_header import CustomHeader, Int32
from tailrace.formats.requests.message_headers import (
    PullMessageRequestHeader,
    SendMessageRequestHeader,
)
from tailrace.model import PutMessageResult
from tailrace.node.topic_queue_mapping import (
    LogicQueueMappingItem,
    TopicQueueMappingDetail,
    TopicQueueMappingManager,
    find_item,
)
from tailrace.remoting import Channel
from tailrace.requests.caller import Caller
from tailrace.requests.executors import BoundedExecutor
from tailrace.requests.reply import Answer, Reply, Serve

__all__ = ["PHYSICAL", "LogicalPull", "LogicalQueue", "LogicalQueueRequests", "LogicalSend", "Place", "StaticTopics"]

PHYSICAL: Final = {"lo": "false"}
"""The field of a request that names physical queues, such as one that another broker passes on."""


class TopicQueueRequestHeader(CustomHeader):
    """The common fields of requests about a queue."""

    topic: str
    queue_id: Int32
    lo: bool | None = None
    """False if the queue and the offsets are physical."""


@dataclass(frozen=True, slots=True)
class LogicalQueue:
    """A logical queue that this broker leads (TopicQueueMappingContext)."""

    detail: TopicQueueMappingDetail
    queue_id: int

    @property
    def items(self) -> tuple[LogicQueueMappingItem, ...]:
        """Its parts, oldest first; at least one."""
        return self.detail.hosted_queues[self.queue_id]

    @property
    def leader(self) -> LogicQueueMappingItem:
        """The newest part, to which messages are sent."""
        return self.items[-1]

    @property
    def decided(self) -> list[LogicQueueMappingItem]:
        """The parts whose logical offsets are known. Raises RefusalError if no part has one yet."""
        found = [item for item in self.items if item.is_decided]
        if not found:
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR,
                f"{self.detail.topic}-{self.queue_id} has no logical offset yet: its remapping is not complete")
        return found

    def item_of(self, offset: int) -> LogicQueueMappingItem:
        """Return the part with a logical offset; the first part for an earlier offset. Raises RefusalError."""
        return find_item(self.items, offset) or self.decided[0]

    def next_after(self, item: LogicQueueMappingItem) -> LogicQueueMappingItem | None:
        """Return the decided part after another one; None after the last."""
        return next((other for other in self.items if other.gen > item.gen and other.is_decided), None)


@dataclass(frozen=True, slots=True)
class LogicalSend:
    """A send to a logical queue; ``header`` names the physical one."""

    queue: LogicalQueue
    header: SendMessageRequestHeader

    def answer_of(self, result: PutMessageResult, *, is_elsewhere: bool) -> PutMessageResult:
        """Return the result of a put with the logical queue and offset, for the answer.

        A half message or a timer message ``is_elsewhere``: it has an offset of a system topic, which is not
        changed. The offset is -1 while the logical offset of the part is not decided.
        """
        item = self.queue.leader
        offset = result.queue_offset
        if not is_elsewhere:
            offset = item.logical(offset) if item.is_decided else -1
        return msgspec.structs.replace(result, queue_id=self.queue.queue_id, queue_offset=offset)


class Place(NamedTuple):
    """Logical offsets in the answer to a pull: the next one to pull, and the bounds of the queue."""

    next_begin: int
    low: int
    high: int
    delta: int
    """Number that a client adds to the offsets of messages, which are physical."""


@dataclass(frozen=True, slots=True)
class LogicalPull:
    """A pull from the part ``item`` of a logical queue; ``header`` has physical numbers."""

    queue: LogicalQueue
    item: LogicQueueMappingItem
    header: PullMessageRequestHeader

    def answered(
        self, code: ResponseCode, offset: int, next_begin: int, low: int, high: int
    ) -> tuple[ResponseCode, Place]:
        """Return code and place of the answer. The arguments are physical; ``offset`` is where the pull began."""
        item = self.item
        if code is not ResponseCode.SUCCESS:
            if offset < low:
                # Before the first part the messages are deleted. A gap between two parts is skipped silently.
                is_first = item is self.queue.decided[0]
                code = ResponseCode.PULL_OFFSET_MOVED if is_first else ResponseCode.PULL_RETRY_IMMEDIATELY
                next_begin = low
            elif offset >= high and item is not self.queue.leader:
                following = self.queue.next_after(item)
                if following is None:  # the next part has messages, but its logical offsets are not known yet
                    code = ResponseCode.PULL_NOT_FOUND
                else:
                    item, code = following, ResponseCode.PULL_RETRY_IMMEDIATELY
                    next_begin = low = high = item.start_offset
        if item.is_closed:
            next_begin = min(next_begin, item.end_offset)
        return code, self._logical(item, next_begin, low, high)

    def moved(self, offset: int, low: int, high: int) -> Place:
        """Return the place of a pull whose offset was reset to a physical one."""
        return self._logical(self.item, offset, low, high)

    def _logical(self, item: LogicQueueMappingItem, next_begin: int, low: int, high: int) -> Place:
        end = self.queue.leader.max_logical_offset
        return Place(
            item.logical(next_begin), item.logical(low), max(item.logical(high), end),
            item.logic_offset - item.start_offset)


@final
class StaticTopics:
    """Finds the logical queues of requests, in the live table of mappings."""

    def __init__(self, mappings: TopicQueueMappingManager, broker_name: str) -> None:
        self.table = mappings.table
        """Mappings by topic; empty on most brokers."""
        self.broker_name = broker_name
        self._turn = 0

    def queue(self, topic: str, queue_id: int) -> LogicalQueue | None:
        """Return a logical queue; None for a topic without a mapping.

        Raises RefusalError (NOT_LEADER_FOR_QUEUE) if another broker leads the queue.
        """
        detail = self.table.get(topic)
        if detail is None:
            return None
        if not detail.leads(queue_id) or detail.bname != self.broker_name:
            raise RefusalError(
                ResponseCode.NOT_LEADER_FOR_QUEUE,
                f"{topic}-{queue_id} does not exist or is led by another broker than {self.broker_name}")
        return LogicalQueue(detail, queue_id)

    def of_request(self, request: RemotingCommand) -> LogicalQueue | None:
        """Return the logical queue of a request; None if its queue is a physical one. Raises RefusalError."""
        header = request.read(TopicQueueRequestHeader)
        return None if header.lo is False else self.queue(header.topic, header.queue_id)

    def for_send(self, caller: Caller, header: SendMessageRequestHeader) -> LogicalSend | None:
        """Return a send to a logical queue; None for a topic without a mapping. Raises RefusalError.

        A negative queue number means any queue that this broker leads.
        """
        if header.topic not in self.table or caller.request.ext.get("lo") == PHYSICAL["lo"]:
            return None
        queue_id = header.queue_id
        if queue_id < 0:
            detail = self.table[header.topic]
            led = [number for number in detail.hosted_queues if detail.leads(number)]
            self._turn += 1
            queue_id = led[self._turn % len(led)] if led else queue_id
        queue = self.queue(header.topic, queue_id)
        if queue is None:  # its topic was deleted in the meantime
            return None
        return LogicalSend(queue, msgspec.structs.replace(header, queue_id=queue.leader.queue_id))

    def for_pull(self, caller: Caller, header: PullMessageRequestHeader, offset: int) -> LogicalPull | None:
        """Return a pull from a logical queue at a logical offset; None for a topic without a mapping.

        The offset to commit is kept only if it is in the same part as the pull. Raises RefusalError.
        """
        if header.topic not in self.table:
            return None
        queue = self.of_request(caller.request)
        if queue is None:
            return None
        item = queue.item_of(offset)
        in_part = header.commit_offset >= 0 and queue.item_of(header.commit_offset) is item
        most = header.max_msg_nums
        return LogicalPull(queue, item, msgspec.structs.replace(
            header, commit_offset=max(0, item.physical(header.commit_offset)) if in_part else -1,
            queue_id=item.queue_id, queue_offset=item.physical(offset),
            max_msg_nums=min(most, item.end_offset - item.start_offset) if item.is_closed else most))


_FROM_THE_DISK: Final = frozenset({
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, RequestCode.GET_EARLIEST_MSG_STORETIME, RequestCode.QUERY_CONSUMER_OFFSET})
"""Requests that may read old messages."""
_NOT_FOUND: Final = "Not found, maybe this group consumer boot first"


class _Forwarded(NamedTuple):
    """A request about a logical queue, and ``ask``, which sends it to the broker of a part of the queue."""

    request: RemotingCommand
    queue: LogicalQueue
    ask: Callable[..., Coroutine[Any, Any, RemotingCommand]]
    """Takes a part and changed fields, and optionally another request code. Raises RefusalError."""


@final
class LogicalQueueRequests:
    """Serves requests that name logical queues; `of` wraps the functions that serve physical ones."""

    def __init__(
        self, look_ups: BoundedExecutor, static_topics: StaticTopics, forwarder: Forwarder
    ) -> None:
        self._look_ups = look_ups
        self.static_topics = static_topics
        self.forwarder = forwarder
        self._physical: dict[int, Serve] = {}
        self._steps: dict[int, Callable[[_Forwarded], Coroutine[Any, Any, RemotingCommand]]] = {
            RequestCode.QUERY_CONSUMER_OFFSET: self._query_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._update_offset,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self._search_offset,
            RequestCode.GET_MAX_OFFSET: self._max_offset,
            RequestCode.GET_MIN_OFFSET: self._min_offset,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self._earliest,
        }

    def of(self, code: RequestCode, physical: Serve, serve: Serve | None = None) -> Serve:
        """Return a processor for requests that name a logical or a physical queue.

        ``physical`` serves a physical queue and returns the answer. ``serve``, if given, serves topics without a
        mapping.
        """
        plain, step, table = serve or physical, self._steps[code], self.static_topics.table
        self._physical[code] = physical

        def served(channel: Channel, request: RemotingCommand) -> Answer:
            if not table:
                return plain(channel, request)
            queue = self.static_topics.of_request(request)
            if queue is None:
                return plain(channel, request)
            forwarded = _Forwarded(request, queue, partial(self._ask, channel, request, queue))
            self.forwarder.defer(Reply(channel, request), partial(step, forwarded))
            return None

        return served

    async def _ask(
        self, channel: Channel, request: RemotingCommand, queue: LogicalQueue, item: LogicQueueMappingItem,
        code: int = 0, **fields: str,
    ) -> RemotingCommand:
        code = code or request.code
        ext = {**request.ext, "queueId": str(item.queue_id), **PHYSICAL, **fields}
        if item.bname != self.static_topics.broker_name:
            answer = await self.forwarder.ask(item.bname, queue.detail.topic, code, ext)
        else:
            asked = RemotingCommand(
                code, ext, request.body, opaque=request.opaque, flag=request.flag, language=request.language,
                version=request.version, serialize_type=request.serialize_type)
            asked.sender = sender_of(request)
            found = await self._look_ups.run(self._physical[code], channel, asked) if (
                code in _FROM_THE_DISK
            ) else self._physical[code](channel, asked)
            assert isinstance(found, RemotingCommand)
            answer = found
        if answer.code != ResponseCode.SUCCESS:
            raise RefusalError(answer.code, answer.remark or "", dict(answer.ext))
        return answer

    async def _max_offset(self, forwarded: _Forwarded) -> RemotingCommand:
        item = forwarded.queue.decided[-1]
        answer = await forwarded.ask(item)
        return _with_offset(forwarded, item.logical(_offset_in(answer)))

    async def _min_offset(self, forwarded: _Forwarded) -> RemotingCommand:
        item = forwarded.queue.decided[0]
        answer = await forwarded.ask(item)
        return _with_offset(forwarded, item.logical(_offset_in(answer)))

    async def _earliest(self, forwarded: _Forwarded) -> RemotingCommand:
        """Return the store time of the first message in the oldest part with a message; -1 without a message."""
        answer = None
        for item in forwarded.queue.decided:
            answer = await forwarded.ask(item)
            if answer.ext.get("timestamp", "-1") != "-1":
                break
        assert answer is not None
        return forwarded.request.answer(ext={"timestamp": answer.ext.get("timestamp", "-1")})

    async def _search_offset(self, forwarded: _Forwarded) -> RemotingCommand:
        """Return the offset of the time in the oldest part that has it; the end of the queue if no part has it."""
        offset = -1
        for item in forwarded.queue.decided:
            found = _offset_in(await forwarded.ask(item))
            offset = item.logical(found)
            until = _offset_in(await forwarded.ask(item, RequestCode.GET_MAX_OFFSET))
            if found < until and not (item.is_closed and found >= item.end_offset):
                break
        return forwarded.request.answer(ext=SearchOffsetResponseHeader(offset))

    async def _query_offset(self, forwarded: _Forwarded) -> RemotingCommand:
        """Return the offset of a group, from the newest part in which the group has one."""
        items = forwarded.queue.items
        if len(items) == 1 and items[0].logic_offset == 0:
            answer = await forwarded.ask(items[0])
            return _with_offset(forwarded, _offset_in(answer))
        for item in reversed(items):
            try:
                answer = await forwarded.ask(item, setZeroIfNotFound="false")
            except RefusalError as refusal:
                if refusal.code != ResponseCode.QUERY_NOT_FOUND:
                    raise
                continue
            if item.is_decided:
                return forwarded.request.answer(
                    ext=QueryConsumerOffsetResponseHeader(item.logical(_offset_in(answer))))
        raise RefusalError(ResponseCode.QUERY_NOT_FOUND, _NOT_FOUND)

    async def _update_offset(self, forwarded: _Forwarded) -> RemotingCommand:
        offset = forwarded.request.read(UpdateConsumerOffsetRequestHeader).commit_offset
        item = forwarded.queue.item_of(offset)
        answer = await forwarded.ask(item, commitOffset=str(item.physical(offset)))
        return forwarded.request.answer(remark=answer.remark)


def _offset_in(answer: RemotingCommand) -> int:
    """Return the offset in an answer. Raises RefusalError."""
    return answer.read(GetMaxOffsetResponseHeader).offset


def _with_offset(forwarded: _Forwarded, offset: int) -> RemotingCommand:
    return forwarded.request.answer(ext=GetMaxOffsetResponseHeader(offset))
