"""The queues of Lite topics in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tailrace.formats.commitlog import LMQ_QUEUE_ID
from tailrace.formats.lite import LITE_PREFIX, parent_prefix

if TYPE_CHECKING:
    from tailrace.node.message_store import MessageStore

__all__ = ["LiteQueue", "end_of", "lite_queues"]


class LiteQueue(NamedTuple):
    """The queue of a Lite topic, with the offset of its first message and the one after its last message."""

    name: str
    start: int
    end: int


def lite_queues(store: MessageStore, parent: str | None = None) -> list[LiteQueue]:
    """Return the queues of the Lite topics of a parent topic, or of all. Takes time that grows with the queues."""
    prefix = LITE_PREFIX if parent is None else parent_prefix(parent)
    return [
        LiteQueue(topic, start, end) for topic, queue_id, start, end in store.queues()
        if queue_id == LMQ_QUEUE_ID and topic.startswith(prefix)]


def end_of(store: MessageStore, queue: str) -> int:
    """Return the offset after the last message of a queue; 0 if there is no such queue."""
    return store.queue_of(queue, LMQ_QUEUE_ID).max
