"""The messages that wait in a queue, for ``join`` and ``flush``, which tests use."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple, final

from tailrace.client.pull_consumer import AsyncPullConsumer
from tailrace.client.routes import MessageQueue
from tailrace.env.clock import Clock
from tailrace.errors import RemotingCommandError
from tailrace.formats.pop import pop_retry_topics
from tailrace.formats.remoting import ResponseCode
from tailrace_dramatiq.connection import Clients

__all__ = ["Sent", "PendingMessages"]

DELAYED_MAX: Final = 1_000
"""Delayed messages that are remembered."""


class Sent(NamedTuple):
    """A delayed message that this process has sent."""

    due_ms: int
    msg_id: str
    recall_handle: str


@final
class PendingMessages:
    """The messages of one topic that its group has not popped, and delayed ones."""

    def __init__(self, topic: str, clock: Clock) -> None:
        self._topic = topic
        self._clock = clock
        self._delayed: deque[Sent] = deque(maxlen=DELAYED_MAX)

    def delayed(self, sent: Sent) -> None:
        """Remember a delayed message; the oldest is forgotten."""
        self._delayed.append(sent)

    async def is_empty(self, clients: Clients) -> bool:
        """Return whether no message waits: neither for a pop nor for its time."""
        async with clients.reader(self._topic) as reader:
            for sent in list(self._delayed):
                if sent.due_ms > self._clock.now_ms() or not await reader.query(self._topic, sent.msg_id):
                    return False
                self._delayed.remove(sent)
            for topic in self._topics():
                for queue, end in await _ends(reader, topic):
                    committed = await reader.committed(queue)
                    first = await reader.min_offset(queue) if committed is None else committed
                    if first < end:
                        return False
        return True

    async def drop(self, clients: Clients) -> None:
        """Set the group to the end of all queues, and recall delayed messages."""
        while self._delayed:
            sent = self._delayed.popleft()
            if sent.due_ms > self._clock.now_ms() and sent.recall_handle:
                try:
                    await clients.producer.recall(self._topic, sent.recall_handle)
                except RemotingCommandError:
                    continue  # it is delivered in this moment
        async with clients.reader(self._topic) as reader:
            for topic in self._topics():
                for queue, end in await _ends(reader, topic):
                    await reader.commit(queue, end)

    def _topics(self) -> tuple[str, ...]:
        topic = group = self._topic
        return topic, *pop_retry_topics(topic, group)


async def _ends(reader: AsyncPullConsumer, topic: str) -> list[tuple[MessageQueue, int]]:
    """Return the queues of a topic with the offset that the next message gets; none if there is no such topic."""
    try:
        return [(queue, await reader.max_offset(queue)) for queue in await reader.queues(topic)]
    except RemotingCommandError as error:
        if error.code != ResponseCode.TOPIC_NOT_EXIST:
            raise
        return []
