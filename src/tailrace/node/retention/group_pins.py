"""Pins of consumer groups: messages that a listed group has not consumed are not deleted by age.

The offsets of the group that checks transactions pin pending half messages and the operations on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import final

from tailrace.formats.names import TRANSACTION_GROUP
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.store.retention.pins import Pin, PinKind

__all__ = ["GroupPins"]

PositionOf = Callable[[str, int, int], int]


@final
class GroupPins:
    """Pin source over the committed offsets of the groups that ``pinGroups`` lists.

    ``queues_of`` returns the queue ids of a topic. ``position_of`` returns the position of the first
    message of a queue from an offset onwards, or -1. A group pins messages of the topics for which it has
    committed an offset. A queue of such a topic without a committed offset counts as not consumed.
    """

    def __init__(
        self, groups: str, offsets: ConsumerOffsetManager, queues_of: Callable[[str], list[int]],
        position_of: PositionOf,
    ) -> None:
        self._groups = [group.strip() for group in groups.split(";") if group.strip()]
        self._offsets = offsets
        self._queues_of = queues_of
        self._position_of = position_of

    def without_offsets(self) -> list[str]:
        """Return listed groups that pin nothing: they have committed no offset, or are misspelt."""
        return [group for group in self._groups if not self._offsets.topics_of(group)]

    def __call__(self) -> Iterator[Pin]:
        """Yield a pin for each group, at the least position that it needs."""
        for group in (*self._groups, TRANSACTION_GROUP):
            least: tuple[int, str] | None = None
            for topic in self._offsets.topics_of(group):
                for queue_id in self._queues_of(topic):
                    offset = max(self._offsets.query(group, topic, queue_id), 0)
                    position = self._position_of(topic, queue_id, offset)
                    if position >= 0 and (least is None or position < least[0]):
                        least = position, f"{group} at {topic}/{queue_id} offset {offset}"
            if least is not None:
                yield Pin(PinKind.GROUP, *least)
