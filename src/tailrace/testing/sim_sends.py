"""Sends as the send lane of a broker serves them, over a simulated store: frames in, records and answers out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, final

import orjson

from tailrace.formats.names import AUTO_CREATE_TOPIC_KEY_TOPIC
from tailrace.formats.remoting import RemotingCommand, RequestCode, encode
from tailrace.kernels.send_lane import PlainSends, PlainTopic
from tailrace.kernels.shared.constants import SENDS_MAX
from tailrace.model import MessageExtBrokerInner, PutMessageResult, PutMessageStatus
from tailrace.node.message_store import MessageStore

__all__ = ["SimSends"]

_PREFIX: Final = bytes(8)
_PARTS: Final = (
    _PREFIX + b'{"opaque":', b',"place":["', b'","', b'","', b'","', b'"]}')
"""Around opaque, position in hexadecimal, queue id, queue offset and unique key of an answer."""


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
            b"", store.inner.store_host, tail.plain_size, tail.plain_size, store.inner.commit_log.rules.appends_crc,
            {name.encode(): PlainTopic(name, queues, self._version) for name, queues in topics.items()}, _PARTS, _PARTS)
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

    def _in_lane(self, topic: str, data: bytes, at: int) -> list[PutMessageResult]:
        sends = self._sends
        if not sends.read(data, at, self._store.inner.store_host, SENDS_MAX, self._version):
            return []
        try:
            result = self._store.inner.append_some(
                [(topic, queue_id) for queue_id in sends.queues], sends.count, sends.bound, sends.write)
            return list(_results(sends.answers(result.msg_num), result.until))
        finally:
            sends.end()


def _frame(message: MessageExtBrokerInner, opaque: int) -> bytes:
    return encode(RemotingCommand(RequestCode.SEND_MESSAGE, {
        "producerGroup": "g", "topic": message.topic, "defaultTopic": AUTO_CREATE_TOPIC_KEY_TOPIC,
        "defaultTopicQueueNums": "4", "queueId": str(message.queue_id), "sysFlag": "0",
        "bornTimestamp": str(message.born_timestamp), "flag": "0", "properties": message.properties.decode(),
    }, message.body, opaque=opaque))


def _results(answers: bytes, until: int) -> Iterator[PutMessageResult]:
    """Yield what the answers say."""
    at = 0
    while at < len(answers):
        end = at + 4 + int.from_bytes(answers[at : at + 4], "big")
        place, queue_id, queue_offset, _ = orjson.loads(answers[at + len(_PREFIX) : end])["place"]
        yield PutMessageResult(
            PutMessageStatus.PUT_OK, int(place, 16), until, int(queue_id), int(queue_offset), msg_num=1)
        at = end
