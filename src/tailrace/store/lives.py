"""The lives of topics: which messages belong to a life that was deleted, and where queues begin again.

A record's position in the log says to which life it belongs. Invariants:
  D5  A queue offset of a topic is never used twice: after a deletion a queue continues at the start of a file.
  D6  A record before the position of its topic's deletion gets no unit, live and in every recovery.
A deletion gives a topic one `Ended`: the position of the log that all messages of the ended life are before, and for
each queue the offset at which its next life begins. If a reader still has an offset of the ended life, it is below the
least offset of the queue: the result of its read is "too small", and it continues at the first message of the new life.

A life begins at the start of a queue file, so its first file needs no pre-blank units and a Java broker reads it.
``config/tailrace-min-offsets.json`` keeps the table (``store.retention.min_offsets``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, final

import numpy as np

from tailrace.formats.consumequeue import PRE_BLANK_SIZE, CqUnit
from tailrace.formats.names import LMQ_PREFIX
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.store.queue_search import first_at, message_from

__all__ = ["MOST_ENDED", "Ended", "EndedLives", "begin_after", "end_of_life", "has_ended", "last_message", "undone"]

MOST_ENDED: Final = 10_000
"""Number of deleted topics that are remembered at most; LMQ queues are not counted."""
_LOOK: Final = 4096


class Ended(NamedTuple):
    """The end of a topic's life."""

    position: int
    """All messages of the ended life are before this position of the log; 0 if none ended here."""
    begins: Mapping[int, int]
    """By queue id the offset at which the next life begins; 0 for a queue that is missing."""


@final
class EndedLives:
    """The topics that were deleted. Any thread may read; one thread at a time changes it."""

    def __init__(self, units_per_file: int) -> None:
        self._units_per_file = units_per_file
        self.table: dict[str, Ended] = {}
        self.until = 0
        """All messages of ended lives are before this position of the log."""
        self.is_lowered = False
        """True if the table must be written, because a position was after the end of the log."""

    def load(self, table: Mapping[str, Ended]) -> None:
        """Set the table."""
        self.table = dict(table)
        self._find_until()

    def lower(self, log_end: int) -> None:
        """Lower positions after ``log_end``, the end of the log.

        The end of the log is lost, and the last messages of the ended lives with it. New messages get these positions,
        and they belong to the new life.
        """
        for topic, ended in self.table.items():
            if ended.position > log_end:
                self.table[topic] = ended._replace(position=log_end)
                self.is_lowered = True
        self._find_until()

    def _find_until(self) -> None:
        self.until = max((ended.position for ended in list(self.table.values())), default=0)

    def deleted_up_to(self, topic: str) -> int:
        """Return the position of the log before which all messages of the topic belong to an ended life; 0 if none."""
        ended = self.table.get(topic)
        return ended.position if ended is not None else 0

    def begins(self, topic: str) -> Mapping[int, int]:
        """Return by queue id the offset at which the present life begins; empty for the first life."""
        ended = self.table.get(topic)
        return ended.begins if ended is not None else {}

    def begin(self, topic: str, queue_id: int) -> int:
        """Return the offset at which the present life of a queue begins; 0 for the first life."""
        return self.begins(topic).get(queue_id, 0)

    def next_begin(self, topic: str, queue_id: int, end: int) -> int:
        """Return where the next life of a queue begins that ends at ``end``: at the start of a file.

        A queue without a message in its present life stays where it begins.
        """
        begin = self.begin(topic, queue_id)
        return begin if end <= begin else begin_after(end, self._units_per_file)

    def end(self, ended: Mapping[str, Ended]) -> None:
        """Add topics that were deleted, after the deletion is durable."""
        self.table.update(ended)
        self._find_until()

    def forget(self, topics: Iterable[str]) -> None:
        """Forget deletions."""
        for topic in topics:
            self.table.pop(topic, None)
        self._find_until()

    def superfluous(self, log_begin: int) -> list[str]:
        """Return the topics whose deletion need not be remembered; ``log_begin`` is the first position of the log.

        That of an LMQ queue is needed until its last message has left the log. Of other topics ``MOST_ENDED`` are
        remembered, and the oldest deletions are forgotten first. One at position 0 was not deleted: a queue of it has
        no message and does not begin at 0 (`slave_lives.begin_queues`).
        """
        ends = [(ended.position, topic) for topic, ended in list(self.table.items())]
        gone = [topic for position, topic in ends if topic.startswith(LMQ_PREFIX) and position <= log_begin]
        others = sorted(end for end in ends if end[0] and not end[1].startswith(LMQ_PREFIX))
        return gone + [topic for _, topic in others[: max(len(others) - MOST_ENDED, 0)]]


def undone(own: Mapping[str, Ended], masters: Mapping[str, Ended], log_begin: int) -> list[str]:
    """Return the topics whose life has ended in ``own``, but not with the master of this log.

    The slave of a former master was promoted before it had copied these deletions. ``log_begin`` is the first position
    of the master's log. A master forgets deletions of messages before it, and the oldest ones of `MOST_ENDED`.
    """
    ends = {topic: one.position for topic, one in masters.items() if one.position}
    least = min(ends.values()) if len(ends) >= MOST_ENDED else 0
    return sorted(
        topic for topic, one in own.items() if one.position > max(ends.get(topic, 0), log_begin, least))


def begin_after(end: int, units_per_file: int) -> int:
    """Return the first offset, from ``end`` onwards, that is the start of a queue file."""
    return -(-end // units_per_file) * units_per_file


def has_ended(queue: ConsumeQueue, ended: Ended, queue_id: int) -> bool:
    """Return True if a queue has only messages of the ended life, or has no message and ends before the new life.

    A queue that a Java broker began again at 0 has messages after the deletion, so it is not one that has ended.
    """
    last = last_message(queue)
    return last.phy_offset < ended.position if last is not None else (
        queue.max_offset <= ended.begins.get(queue_id, 0))


def end_of_life(queue: ConsumeQueue, ended: Ended) -> int:
    """Return the offset of the queue's first message of the new life; 0 if it has no message of the ended one.

    A queue has messages of both lives if a program that does not know of the deletion has built it from the log.
    """
    first = message_from(queue, queue.first_offset)
    if first is None or not 0 <= first.phy_offset < ended.position:
        return 0
    return first_at(queue, queue.first_offset, ended.position)


def last_message(queue: ConsumeQueue) -> CqUnit | None:
    """Return the unit of the last message of a queue, None without a message."""
    high, low = queue.max_offset, queue.first_offset
    while high > low:
        start = max(low, high - _LOOK)
        found = [CqUnit(*units[real[-1]].tolist()) for _, units in queue.runs(start, high)
                 if len(real := np.flatnonzero(units["size"] != PRE_BLANK_SIZE))]
        if found:
            return found[-1]
        high = start
    return None
