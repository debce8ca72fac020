"""Requests about offsets of logical queues, and of groups in them: requests 14, 15 and 29 to 32.

Each request is sent with physical numbers to the broker that has the part of the queue, which may be this one.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, NamedTuple, final

from tailrace.broker.static_topics.forwarder import Forwarder
from tailrace.broker.static_topics.logical_queues import PHYSICAL, LogicalQueue, StaticTopics
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
from tailrace.node.topic_queue_mapping import LogicQueueMappingItem
from tailrace.remoting import Channel
from tailrace.requests.executors import BoundedExecutor
from tailrace.requests.reply import Answer, Serve

__all__ = ["LogicalQueueRequests"]

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
            self.forwarder.defer(channel, request, partial(step, forwarded))
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
