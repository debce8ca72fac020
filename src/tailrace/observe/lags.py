"""The lag of consumer groups: one row for each queue that a group has consumed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from tailrace.broker.core.context import BrokerContext
from tailrace.formats.lite import parent_of
from tailrace.requests.executors import in_steps, no_pause

__all__ = ["QueueLag", "queue_lags"]

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


def queue_lags(
    broker: BrokerContext, entries: Iterable[tuple[str, str, int, int]] | None = None,
    pause: Callable[[], None] = no_pause, step: int = STEP,
) -> Iterator[QueueLag]:
    """Yield the lag of each group on each queue that it has consumed and whose topic still exists.

    ``entries`` are those of the committed offsets; None means all. ``pause`` is called after each ``step`` queues.
    """
    store, offsets = broker.store, broker.offsets
    for topic, group, queue_id, consumed in in_steps(offsets.entries() if entries is None else entries, step, pause):
        config = broker.topics.select(topic)
        until = store.queue_of(topic, queue_id).max
        # A queue that the topic has lost counts while it holds messages.
        if config is None or consumed < 0 or not (0 <= queue_id < config.read_queue_nums or until):
            continue
        at = min(max(consumed, store.queue_of(topic, queue_id).min), until)
        handed_out = min(max(at, offsets.query_pull(group, topic, queue_id)), until)
        popped = broker.pop_metrics.in_flight(topic, group, queue_id)
        yield QueueLag(
            topic, group, queue_id, at, max(at - popped, 0) if popped else at, handed_out, until)
