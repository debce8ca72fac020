"""The lag of consumer groups: one row for each queue that a group has consumed, and the sums of the rows.

Requests 208 and 317, from which ``mqadmin consumerProgress`` makes its table, metrics and the console read it here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar, final

from tailrace.broker.statistics.pop_metrics import PopMetrics
from tailrace.env.pauses import in_steps, no_pause
from tailrace.formats.lite import parent_of
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.message_store import MessageStore
from tailrace.store.queue_reader import QueueReader

__all__ = ["ConsumerLags", "Lag", "QueueLag"]

STEP: Final = 128
"""Queues between two pauses, which take 1 to 2 ms."""


class QueueLag(NamedTuple):
    """A queue that a group has consumed. All positions are queue offsets."""

    topic: str
    group: str
    queue_id: int
    committed: int
    """The next offset, within what the queue has."""
    first: int
    """The first message that is not processed: before ``committed`` if messages were popped and not acknowledged."""
    handed_out: int
    """End of the messages that were sent to consumers."""
    until: int
    """End of the queue."""

    @property
    def pair(self) -> tuple[str, str]:
        """Group and topic under which the queue is summed: for a Lite topic its parent, as they may be very many."""
        return self.group, parent_of(self.topic) or self.topic

    @property
    def behind(self) -> int:
        """Number of messages that are not processed."""
        return self.until - self.first


@dataclass(slots=True)
class Lag:
    """Sum of the lags of a group on queues."""

    behind: int = 0
    """Messages that are not processed."""
    in_flight: int = 0
    """Messages of these that were sent to consumers."""
    ready: int = 0
    """Messages of these that wait to be sent."""
    queues: int = 0
    """Queues that the group has consumed."""

    def count(self, queue: QueueLag) -> None:
        """Add a queue."""
        self.behind += queue.behind
        self.in_flight += queue.handed_out - queue.first
        self.ready += queue.until - queue.handed_out
        self.queues += 1


_Lag = TypeVar("_Lag", bound=Lag)


@final
class ConsumerLags:
    """What groups have not consumed. Any thread may use it."""

    def __init__(self, store: MessageStore, offsets: ConsumerOffsetManager, pop_metrics: PopMetrics) -> None:
        self._store, self._offsets, self._pop_metrics = store, offsets, pop_metrics

    def of(self, group: str, queue: QueueReader, consumed: int) -> QueueLag:
        """Return the lag of a group that has committed the offset ``consumed`` of a queue; -1 if it has committed none.

        An offset before the first message counts as that of the first message: messages have expired, or the offset
        is one of a topic that was deleted and made again. An offset after the end counts as the end.
        """
        topic, queue_id = queue.topic, queue.queue_id
        low, until = queue.bounds
        at = min(max(consumed, low), until)
        popped = self._pop_metrics.in_flight(topic, group, queue_id)
        handed_out = min(max(at, self._offsets.query_pull(group, topic, queue_id)), until)
        return QueueLag(topic, group, queue_id, at, max(at - popped, 0) if popped else at, handed_out, until)

    def queues(
        self, entries: Iterable[tuple[str, str, int, int]] | None = None, pause: Callable[[], None] = no_pause,
        step: int = STEP,
    ) -> Iterator[QueueLag]:
        """Yield the lag of each group on each queue that it has consumed and whose topic still exists.

        ``entries`` are those of the committed offsets; None means all. ``pause`` is called after each ``step`` queues.
        """
        for entry in in_steps(self._offsets.entries() if entries is None else entries, step, pause):
            topic, group, queue_id, consumed = entry
            config = self._store.topics.select(topic)
            if config is None or consumed < 0:
                continue
            queue = self._store.queue_of(topic, queue_id)
            # A queue that the topic has lost counts while it holds messages.
            if 0 <= queue_id < config.read_queue_nums or queue.max:
                yield self.of(group, queue, consumed)

    def sums(
        self, make: Callable[[], _Lag], pause: Callable[[], None] = no_pause, step: int = STEP
    ) -> dict[tuple[str, str], _Lag]:
        """Return the lag of each group on each topic that it has consumed and that still exists.

        ``make`` returns the sum of no queues; for ``pause`` and ``step`` see `queues`.
        """
        found: dict[tuple[str, str], _Lag] = {}
        for queue in self.queues(pause=pause, step=step):
            if (lag := found.get(queue.pair)) is None:
                lag = found[queue.pair] = make()
            lag.count(queue)
        return found
