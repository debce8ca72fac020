"""Look-ups in the store: requests 12, 33 and 29 to 32."""

from __future__ import annotations

import sys
from typing import Final, final

from tailrace.broker.context import BrokerContext
from tailrace.formats.remoting import FRAME_MAX, RemotingCommand, RequestCode, ResponseCode
from tailrace.model import BoundaryType
from tailrace.remoting import Channel, RemotingServer

__all__ = ["QueryProcessor"]

UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
BODY_MAX: Final = FRAME_MAX - 64 * 1024
"""What fits into a frame beside its header."""


@final
class QueryProcessor:
    """Answers questions about what is stored, and where."""

    def __init__(self, broker: BrokerContext) -> None:
        self._store = broker.store
        self._in_thread = broker.worker.in_thread

    def register(self, server: RemotingServer) -> None:
        """Take over the codes of this processor."""
        server.register(self._in_thread(self.query_message), RequestCode.QUERY_MESSAGE)
        server.register(self.view_message, RequestCode.VIEW_MESSAGE_BY_ID)
        server.register(self._in_thread(self.search_offset), RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
        server.register(self.max_offset, RequestCode.GET_MAX_OFFSET)
        server.register(self.min_offset, RequestCode.GET_MIN_OFFSET)
        server.register(self.earliest_store_time, RequestCode.GET_EARLIEST_MSG_STORETIME)

    def query_message(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Messages by key: request 12."""
        ext = request.ext
        config = self._store.config
        max_num = max(0, int(ext["maxNum"]))
        if ext.get(UNIQUE_KEY_QUERY) == "true":
            max_num = config.default_query_max_num
        max_num = min(max_num, config.max_msgs_num_batch)
        end = int(ext["endTimestamp"])
        records = self._store.query_records(
            ext["topic"], ext["key"], max_num, int(ext["beginTimestamp"]),
            end if end >= 0 else sys.maxsize,
        )
        # A longer frame would be refused by every client: the newest that fit are the answer.
        room = BODY_MAX
        for place in range(len(records) - 1, -1, -1):
            room -= len(records[place])
            if room < 0:
                records = records[place + 1 :]
                break
        stats = self._store.stats()
        answer_ext = {
            "indexLastUpdateTimestamp": str(stats.get("indexLastUpdateTimestamp", 0)),
            "indexLastUpdatePhyoffset": str(stats.get("indexLastUpdatePhyoffset", 0)),
        }
        if not records:
            return request.answer(
                ResponseCode.QUERY_NOT_FOUND,
                "can not find message, maybe time range not correct", answer_ext,
            )
        return request.answer(ext=answer_ext, body=b"".join(records))

    def view_message(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """The message at a physical offset: request 33."""
        offset = int(request.ext["offset"])
        record = self._store.select_record(offset)
        if record is None:
            return request.answer(
                ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}"
            )
        return request.answer(body=bytes(record))

    def search_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """The queue offset at a time: request 29."""
        ext = request.ext
        boundary = BoundaryType.LOWER
        if ext.get("boundaryType", "").upper() == "UPPER":
            boundary = BoundaryType.UPPER
        offset = self._store.get_offset_in_queue_by_time(
            ext["topic"], int(ext["queueId"]), int(ext["timestamp"]), boundary
        )
        return request.answer(ext={"offset": str(offset)})

    def max_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """The end of a queue: request 30."""
        ext = request.ext
        offset = self._store.max_offset_in_queue(
            ext["topic"], int(ext["queueId"]), committed=ext.get("committed") != "false")
        return request.answer(ext={"offset": str(max(0, offset))})

    def min_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """The begin of a queue: request 31."""
        ext = request.ext
        offset = self._store.min_offset_in_queue(ext["topic"], int(ext["queueId"]))
        return request.answer(ext={"offset": str(max(0, offset))})

    def earliest_store_time(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """The store time of the first message of a queue: request 32; -1 when it is empty."""
        topic, queue_id = request.ext["topic"], int(request.ext["queueId"])
        first = self._store.min_offset_in_queue(topic, queue_id)
        timestamp = -1
        if self._store.max_offset_in_queue(topic, queue_id) > max(0, first):
            timestamp = self._store.get_message_store_timestamp(topic, queue_id, max(0, first))
        return request.answer(ext={"timestamp": str(timestamp)})
