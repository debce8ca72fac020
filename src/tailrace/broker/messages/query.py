"""Queries of messages and offsets: requests 12 (by key), 33 (by position) and 29 to 32 (offsets of queues)."""

from __future__ import annotations

import sys
from typing import Final, final

from tailrace.broker.messages.records import Records, real_topic_of
from tailrace.broker.static_topics.logical_queues import LogicalQueueRequests
from tailrace.errors import CorruptionError, RefusalError
from tailrace.formats.commitlog import LMQ_DISPATCH_SEPARATOR, decode_message
from tailrace.formats.lite import lite_queue
from tailrace.formats.names import INNER_MULTI_DISPATCH, LMQ_PREFIX
from tailrace.formats.remoting import FRAME_MAX, RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests.broker_headers import (
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
)
from tailrace.formats.requests.message_headers import (
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    ViewMessageRequestHeader,
)
from tailrace.formats.requests.table import Action
from tailrace.ha.comparison import ALSO_RELEASED
from tailrace.model import BoundaryType, MessageExt
from tailrace.node.message_store import MessageStore
from tailrace.remoting import Channel, RemotingServer
from tailrace.requests.processor import RequestProcessor, answers, serves
from tailrace.requests.worker import RequestWorker

__all__ = ["QueryProcessor"]

UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
BODY_MAX: Final = FRAME_MAX - 64 * 1024
"""Largest body, in bytes, that fits into a frame with its header."""
DISPATCH_MS: Final = 1_000
"""How long a look-up by key waits for the index, in ms: a send is answered before its message is dispatched."""


@final
class QueryProcessor(RequestProcessor):
    """Returns stored messages and the offsets of queues."""

    def __init__(
        self, store: MessageStore, worker: RequestWorker, logical_queues: LogicalQueueRequests, records: Records,
    ) -> None:
        self._records, self._store, self._worker, self._logical_queues = records, store, worker, logical_queues

    def register(self, server: RemotingServer) -> None:
        """Have a server pass the requests to their methods, those that name logical queues by way of their parts."""
        super().register(server)
        server.register(self._records.first(self.view_message, _place_of_view), RequestCode.VIEW_MESSAGE_BY_ID)
        for code, physical in {
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search_offset, RequestCode.GET_MAX_OFFSET: self.max_offset,
            RequestCode.GET_MIN_OFFSET: self.min_offset,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest_store_time,
        }.items():
            server.register(self._logical_queues.of(code, physical, server.processors[code]), code)

    @serves(RequestCode.QUERY_MESSAGE, in_thread=True)
    def query_message(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return messages with a key: request 12."""
        header = request.read(QueryMessageRequestHeader)
        config = self._store.config
        max_num = max(0, header.max_num)
        if request.ext.get(UNIQUE_KEY_QUERY) == "true":
            max_num = config.default_query_max_num
        max_num = min(max_num, config.max_msgs_num_batch)
        self._store.wait_dispatched(DISPATCH_MS)  # a message is found as soon as its send is answered
        records = self._store.query_records(
            header.topic, header.key, max_num, header.begin_timestamp,
            header.end_timestamp if header.end_timestamp >= 0 else sys.maxsize,
        )
        # Clients refuse a longer frame, so only the newest messages that fit are returned.
        room = BODY_MAX
        for place in range(len(records) - 1, -1, -1):
            room -= len(records[place])
            if room < 0:
                records = records[place + 1 :]
                break
        stats = self._store.stats()
        answer_ext = QueryMessageResponseHeader(
            stats.get("indexLastUpdateTimestamp", 0), stats.get("indexLastUpdatePhyoffset", 0)).to_ext()
        if not records:
            raise RefusalError(
                ResponseCode.QUERY_NOT_FOUND,
                "can not find message, maybe time range not correct", answer_ext,
            )
        return request.answer(ext=answer_ext, body=b"".join(records))

    def view_message(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return the message at a physical offset: request 33. If the request names a topic, it must be the message's.

        Brokers that compare their logs ask for the record, also of a topic that was deleted.
        """
        header = request.read(ViewMessageRequestHeader)
        offset, topic = header.offset, (header.topic or "").strip()
        record = self._store.select_record(offset, also_released=request.ext.get(ALSO_RELEASED) == "true")
        message, error = None, None
        if record is not None and (topic or self._records.are_checked):
            try:
                message = decode_message(bytes(record))
            except CorruptionError as found:
                error = found
        self._records.require_record(channel, request, message, Action.GET)
        if record is None:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
        if topic and message is None:
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR, f"decode message by the offset failed: {error}") from error
        if topic and message is not None and not _is_of(topic, message):
            raise RefusalError(ResponseCode.NO_PERMISSION, "The topic does not match the message")
        return request.answer(body=bytes(record))

    @answers(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, in_thread=True)
    def search_offset(self, header: SearchOffsetRequestHeader) -> SearchOffsetResponseHeader:
        """Return the queue offset of the message at a store time: request 29."""
        is_upper = (header.boundary_type or "").upper() == "UPPER"
        boundary = BoundaryType.UPPER if is_upper else BoundaryType.LOWER
        topic = lite_queue(header.topic, header.lite_topic) if header.lite_topic else header.topic
        queue = self._store.queue_of(topic, header.queue_id)
        return SearchOffsetResponseHeader(queue.by_time(header.timestamp, boundary))

    @answers(RequestCode.GET_MAX_OFFSET)
    def max_offset(self, header: GetMaxOffsetRequestHeader) -> GetMaxOffsetResponseHeader:
        """Return the end offset of a queue: request 30."""
        queue = self._store.queue_of(header.topic, header.queue_id)
        return GetMaxOffsetResponseHeader(max(0, queue.max if header.committed else queue.next))

    @answers(RequestCode.GET_MIN_OFFSET)
    def min_offset(self, header: GetMinOffsetRequestHeader) -> GetMinOffsetResponseHeader:
        """Return the least offset of a queue: request 31."""
        queue = self._store.queue_of(header.topic, header.queue_id)
        offset = queue.min
        if not offset and self._store.topics.has_batch_queues(header.topic) and queue.max <= 0:
            offset = -1  # as BatchConsumeQueue returns for a queue that has never had a message
        return GetMinOffsetResponseHeader(offset)

    @answers(RequestCode.GET_EARLIEST_MSG_STORETIME, in_thread=True)  # the oldest record is seldom in memory
    def earliest_store_time(
        self, header: GetEarliestMsgStoretimeRequestHeader
    ) -> GetEarliestMsgStoretimeResponseHeader:
        """Return the store time of the first message of a queue: request 32; -1 if the queue is empty."""
        queue = self._store.queue_of(header.topic, header.queue_id)
        first = max(0, queue.min)
        return GetEarliestMsgStoretimeResponseHeader(queue.store_timestamp(first) if queue.max > first else -1)


def _place_of_view(request: RemotingCommand) -> int:
    return request.read(ViewMessageRequestHeader).offset


def _is_of(topic: str, message: MessageExt) -> bool:
    """Return whether a message is one of a topic, or has a place in it if it is an LMQ."""
    return topic == real_topic_of(message) or (topic.startswith(LMQ_PREFIX) and topic in message.properties.get(
        INNER_MULTI_DISPATCH, "").split(LMQ_DISPATCH_SEPARATOR))
