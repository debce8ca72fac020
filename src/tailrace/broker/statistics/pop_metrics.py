"""Counts of POP consumption: messages in flight, and records written to and read from the revive topic."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Final, NamedTuple, final

__all__ = ["ACK", "CHECKPOINT", "PopMetrics", "ReviveProgress"]

CHECKPOINT: Final = "CK"
ACK: Final = "ACK"
_Key = tuple[str, str, int]


class ReviveProgress(NamedTuple):
    """Lag of the revive service on a revive queue."""

    lag: int
    """Number of records that are not finished."""
    latency_ms: int
    """Age of the oldest of these records."""


@final
class PopMetrics:
    """Counts since the start. The event loop and the revive thread add to them.

    In flight are the messages that were popped since the start and neither acknowledged nor put into the retry
    topic. A second acknowledgement of a message is counted again, as in RocketMQ, so the number may be too low,
    but not below 0. Messages popped in order are not counted, because the group's offset stays before them.
    """

    def __init__(self, started_ms: int) -> None:
        self._started_ms = started_ms
        self._lock = threading.Lock()
        self._in_flight: dict[_Key, int] = {}
        self.records_put: Counter[tuple[str, ...]] = Counter()
        """Records that were put for the revive topic, by the labels of the metric, as in the next two tables."""
        self.records_read: Counter[tuple[str, ...]] = Counter()
        self.retries: Counter[tuple[str, ...]] = Counter()
        self.stopped: set[_Key] = set()
        """Queues that are not popped because too many of their messages are in flight."""

    # -- in flight

    def popped(self, topic: str, group: str, queue_id: int, count: int) -> None:
        """Count messages that were popped."""
        if count > 0:
            with self._lock:
                key = topic, group, queue_id
                self._in_flight[key] = self._in_flight.get(key, 0) + count

    def settled(self, topic: str, group: str, queue_id: int, count: int, pop_time: int) -> None:
        """Count messages that were acknowledged or put into the retry topic, if they were popped since the start."""
        if pop_time < self._started_ms:
            return
        key = topic, group, queue_id
        with self._lock:
            left = self._in_flight.get(key, 0) - count
            if left > 0:
                self._in_flight[key] = left
            else:
                self._in_flight.pop(key, None)

    def reset(self, topic: str, group: str, queue_id: int) -> None:
        """Drop the count of a queue whose offset was reset."""
        with self._lock:
            self._in_flight.pop((topic, group, queue_id), None)

    def in_flight(self, topic: str, group: str, queue_id: int) -> int:
        """Return the number of messages of a queue that a group has in flight."""
        return self._in_flight.get((topic, group, queue_id), 0)

    # -- the revive topic

    def put(self, group: str, topic: str, kind: str, status: str) -> None:
        """Count a record that was put for the revive topic."""
        with self._lock:
            self.records_put[group, topic, kind, status] += 1

    def got(self, group: str, topic: str, queue_id: int, kind: str) -> None:
        """Count a record that was read from the revive topic."""
        with self._lock:
            self.records_read[group, topic, str(queue_id), kind] += 1

    def retried(self, group: str, topic: str, status: str) -> None:
        """Count a message that was put into a retry topic."""
        with self._lock:
            self.retries[group, topic, status] += 1

    # -- deletions

    def forget_deleted(self, topics: set[str], groups: set[str]) -> None:
        """Drop the counts of topics and groups that were deleted."""
        def stays(group: str, topic: str) -> bool:
            return group not in groups and topic not in topics

        with self._lock:
            self._in_flight = {k: n for k, n in self._in_flight.items() if stays(k[1], k[0])}
            self.stopped = {k for k in self.stopped if stays(k[1], k[0])}
            self.records_put = Counter({k: n for k, n in self.records_put.items() if stays(k[0], k[1])})
            self.records_read = Counter({k: n for k, n in self.records_read.items() if stays(k[0], k[1])})
            self.retries = Counter({k: n for k, n in self.retries.items() if stays(k[0], k[1])})
