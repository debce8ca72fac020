"""Pending timers by topic (RocketMQ's TimerMetrics), as ``config/timermetrics`` keeps them.

    {"dataVersion":{"counter":2,"stateVersion":0,"timestamp":1},"timingCount":{"T":{"count":2,"timeStamp":1}}}

A unit of the timer log counts from its enqueue until it leaves its slot: 1 for a timer, -1 for a request to
delete, under the real topic of the timer. The file may be older than the timer log, so an open counts again.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from datetime import datetime
from typing import Any, Final, final

import numpy as np

from tailrace.env.clock import Clock
from tailrace.formats import fastjson
from tailrace.formats.commitlog import java_string_hash
from tailrace.formats.timerlog import MAGIC_DELETE
from tailrace.metrics import TIMER_LATENESS
from tailrace.store.retention.rules import is_time_to_delete
from tailrace.timer.arrays import Units, counts

__all__ = ["LATENESS_BUCKETS_MS", "Lateness", "TimerMetrics"]

_APART_MS: Final = 70 * 60 * 1000
LATENESS_BUCKETS_MS: Final = TIMER_LATENESS.buckets
"""Upper bounds of the lateness histogram; one more bucket has the rest."""


@final
class TimerMetrics:
    """Counts pending timers. The caller holds the lock of the timers, except for ``encode`` and ``counts``."""

    def __init__(self, clock: Clock, topic_at: Callable[[int, int], str | None]) -> None:
        self.dirty = False
        self._clock = clock
        self._topic_at = topic_at
        self._table: dict[str, list[int]] = {}
        self._topics: dict[int, list[str]] = {}
        self._counter = 0
        self._timestamp = 0
        self._last_check_ms = clock.now_ms()

    # -- counting

    def add(self, topic: str, count: int, changes: int = 1) -> None:
        """Add to the count of a topic, and ``changes`` to the version."""
        now = self._clock.now_ms()
        entry = self._entry(topic)
        entry[0] += count
        entry[1] = self._timestamp = now
        self._counter += changes
        self.dirty = True

    def _entry(self, topic: str) -> list[int]:
        entry = self._table.get(topic)
        if entry is None:
            entry = self._table[topic] = [0, self._clock.now_ms()]
            self._topics.setdefault(java_string_hash(topic), []).append(topic)
        return entry

    def left(self, units: Units) -> None:
        """Count units that have left their slots."""
        for topic, pending, count in self._by_topic(units, known=True):
            if topic in self._table:
                self.add(topic, -pending, count)

    def remove(self, topics: Iterable[str]) -> None:
        """Forget topics that are deleted (removeTimingCount)."""
        for topic in topics:
            if self._table.pop(topic, None) is not None:
                same = self._topics[topic_hash := java_string_hash(topic)]
                same.remove(topic)
                if not same:
                    del self._topics[topic_hash]
                self.dirty = True

    def counts(self) -> dict[str, int]:
        """Return the number of pending timers by topic."""
        return {topic: entry[0] for topic, entry in list(self._table.items())}

    # -- revision

    def is_time_to_check(self, when: str) -> bool:
        """Return True if a check is due in one of the local hours of ``when``, and note the time of the check."""
        now = self._clock.now_ms()
        hour = datetime.fromtimestamp(now / 1000).hour  # noqa: DTZ006 - local hours
        if now - self._last_check_ms <= _APART_MS or not is_time_to_delete(when, hour):
            return False
        self._last_check_ms = now
        return True

    def revise(self, units: Iterable[Units], small_threshold: int | None = None) -> None:
        """Count again from the units that are pending (checkAndReviseMetrics).

        With a threshold only topics below it are counted, except those with the same hash as a larger topic.
        """
        big = {
            topic for topic, entry in self._table.items()
            if small_threshold is not None and entry[0] >= small_threshold
        }
        kept = {java_string_hash(topic) for topic in big}
        found: Counter[str] = Counter()
        for part in units:
            for topic, pending, _ in self._by_topic(part, kept):
                found[topic] += pending
        now = self._clock.now_ms()
        for topic in {*found, *self._table}:
            if java_string_hash(topic) not in kept and self._entry(topic)[0] != found[topic]:
                self._table[topic][:] = found[topic], now
                self.dirty = True

    def _by_topic(
        self, units: Units, kept: Container[int] = (), *, known: bool = False
    ) -> Iterator[tuple[str, int, int]]:
        """Yield topics, what their units add to the number of timers, and how many units that are.

        Units with a hash of ``kept`` are left out. A hash of no known topic adds the topic. With ``known`` its units
        are of a deleted topic and are not counted.
        """
        kinds = units["topic_hash"].astype(np.int64) * (2 * MAGIC_DELETE) + (units["magic"] & MAGIC_DELETE)
        for kind, count in counts(kinds):
            value, is_delete = divmod(kind, 2 * MAGIC_DELETE)
            if value in kept or (known and value not in self._topics):
                continue
            sign, places = -1 if is_delete else 1, list[tuple[int, int]]()
            if len(self._topics.get(value, ())) != 1:
                places = units[kinds == kind][["phy_offset", "msg_size"]].tolist()
            if value not in self._topics and (topic := self._topic_at(*places[0])) is not None:
                self._entry(topic)
            if len(self._topics.get(value, ())) == 1:
                yield self._topics[value][0], sign * count, count
                continue
            for place in places:  # the messages tell which of several topics it is
                if (topic := self._topic_at(*place)) is not None:
                    yield topic, sign, 1

    # -- the file

    def encode(self) -> bytes:
        """Return the text of the file."""
        return fastjson.dumps({
            "dataVersion": {
                "counter": self._counter, "stateVersion": 0, "timestamp": self._timestamp},
            "timingCount": {
                topic: {"count": entry[0], "timeStamp": entry[1]}
                for topic, entry in list(self._table.items())
            },
        })

    def decode(self, value: dict[str, Any] | None) -> None:
        """Load the members of a file; members of another form are left out."""
        version = (value or {}).get("dataVersion")
        if isinstance(version, dict):
            self._counter = _number(version.get("counter"))
            self._timestamp = _number(version.get("timestamp"))
        table = (value or {}).get("timingCount")
        for topic, entry in table.items() if isinstance(table, dict) else ():
            if isinstance(entry, dict):
                self._entry(str(topic))[:] = (
                    _number(entry.get("count")), _number(entry.get("timeStamp")))


@final
class Lateness:
    """A histogram of put time minus due time."""

    __slots__ = ("counts", "sum_ms")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENESS_BUCKETS_MS) + 1)
        self.sum_ms = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the counts by upper bound, with all above in the last one, and the sum, ms."""
        return {"counts": list(self.counts), "sumMs": self.sum_ms}

    def add(self, late_ms: int, count: int = 1) -> None:
        """Count messages that are so late."""
        self.counts[bisect.bisect_left(LATENESS_BUCKETS_MS, late_ms)] += count
        self.sum_ms += late_ms * count


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0
