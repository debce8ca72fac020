"""Sends as the send lane of a broker serves them, over a simulated store: frames in, records and answers out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, final

import orjson

from tailrace.formats.names import AUTO_CREATE_TOPIC_KEY_TOPIC
from tailrace.formats.remoting import RemotingCommand, RequestCode, encode
from tailrace.formats.requests.message_headers import (
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
)
from tailrace.kernels.send_lane import PlainSends, PlainTopic
from tailrace.kernels.shared.constants import SENDS_MAX
from tailrace.model import MessageExtBrokerInner, PutMessageResult, PutMessageStatus
from tailrace.node.message_store import MessageStore

__all__ = ["SimSends"]

_PREFIX: Final = bytes(8)
_PARTS: Final = (
    _PREFIX + b'{"opaque":', b',"place":["', b'","', b'","', b'","', b'"]}')
"""Around opaque, position in hexadecimal, queue id, queue offset and unique key of an answer."""
_BATCH_PARTS: Final = *_PARTS[:4], _PARTS[5]
"""The same of an answer to a batch, which has the positions of its messages with commas between them, and no key."""
_SHORT: Final = dict(zip(
    SendMessageRequestHeader.__struct_encode_fields__, SendMessageRequestHeaderV2.__struct_encode_fields__,
    strict=True))
_ROOM: Final = 1 << 20
"""Bytes of answers of one call, more than any has."""


@final
class SimSends:
    """The send lane of one store; it has proven all topics.

    ``in_lane`` is the number of messages that it has put.
    """

    def __init__(self, store: MessageStore, topics: dict[str, int]) -> None:
        """``topics`` has the number of queues of each topic."""
        tail = store.inner.commit_log.tail
        self._store, self._version = store, object()
        self._sends = PlainSends(
            b"", b"UNIQ_KEY\x01", store.inner.store_host, tail.plain_size, tail.plain_size, tail.plain_size,
            store.inner.commit_log.rules.appends_crc,
            {name.encode(): PlainTopic(name, queues, self._version) for name, queues in topics.items()},
            (_PARTS, _PARTS), (_BATCH_PARTS, _BATCH_PARTS), b"")
        self.in_lane = 0

    def put(self, messages: Sequence[MessageExtBrokerInner]) -> Iterator[list[PutMessageResult]]:
        """Put messages of one topic that arrive together, and yield the results of each call of the lane.

        A message that the lane leaves is put by itself, as the ordinary path of a broker does.
        """
        frames = [_frame(message, number) for number, message in enumerate(messages)]
        data, done, at = b"".join(frames), 0, 0
        while done < len(frames):
            found = self._in_lane(messages[done].topic, data, at)
            self.in_lane += len(found)
            yield found or [self._store.put_inner(messages[done])]
            for frame in frames[done : done + max(len(found), 1)]:
                at += len(frame)
                done += 1

    def put_batch(self, message: MessageExtBrokerInner) -> PutMessageResult | None:
        """Put a batch; ``message`` has its body. Return None if the lane leaves it."""
        found = self._in_lane(message.topic, _frame(message, 0, RequestCode.SEND_BATCH_MESSAGE), 0)
        self.in_lane += len(found)
        return found[0] if found else None

    def _in_lane(self, topic: str, data: bytes, at: int) -> list[PutMessageResult]:
        sends = self._sends
        if not sends.read(data, at, self._store.inner.store_host, SENDS_MAX, _ROOM, self._version, 0):
            return []
        try:
            result = self._store.inner.append_some(
                [(topic, queue_id) for queue_id in sends.queues], sends.messages, sends.bound, sends.write, sends.puts)
            return list(_results(sends.answers(sends.puts(result.msg_num)), result.until))
        finally:
            sends.end()


def _frame(
    message: MessageExtBrokerInner, opaque: int, code: int = RequestCode.SEND_MESSAGE,
) -> bytes:
    fields = {
        "producerGroup": "g", "topic": message.topic, "defaultTopic": AUTO_CREATE_TOPIC_KEY_TOPIC,
        "defaultTopicQueueNums": "4", "queueId": str(message.queue_id), "sysFlag": "0",
        "bornTimestamp": str(message.born_timestamp), "flag": "0", "properties": message.properties.decode(),
    }
    if code == RequestCode.SEND_BATCH_MESSAGE:
        fields = {_SHORT[name]: value for name, value in fields.items()}
    return encode(RemotingCommand(code, fields, message.body, opaque=opaque))


def _results(answers: bytes, until: int) -> Iterator[PutMessageResult]:
    """Yield what the answers say."""
    at = 0
    while at < len(answers):
        end = at + 4 + int.from_bytes(answers[at : at + 4], "big")
        places, queue_id, queue_offset, *_ = orjson.loads(answers[at + len(_PREFIX) : end])["place"]
        found = [int(place, 16) for place in places.split(",")]
        yield PutMessageResult(
            PutMessageStatus.PUT_OK, found[0], until, int(queue_id), int(queue_offset), msg_num=len(found),
            phy_offsets=found)
        at = end
