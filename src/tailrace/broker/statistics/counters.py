"""Counts by statistic and key that only request 315 reads.

Keys are RocketMQ's (BrokerStatsManager): parts separated by ``@``.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Final, final

from tailrace import events
from tailrace.logs import get_logger

__all__ = ["Counters", "Flow"]

_log = get_logger(__name__)
COUNTERS_MAX: Final = 5_000
"""Number of keys of one statistic; the samples of a key take about 4 KiB after a day."""
KEY_MAX: Final = 600
"""Longest key, in characters."""
_PLACES: Final[Mapping[str, tuple[int, int | None]]] = {
    "QUEUE_PUT": (0, None), "GROUP_GET_LATENCY": (-2, -1),
    "TOPIC_PUT_LATENCY": (1, None), "GROUP_ACK": (0, 1), "GROUP_CK": (0, 1),
}
"""Places of topic and group among the parts of a key, by statistic."""


class Flow:
    """Sums of messages and bytes since the start, and the number of ``times`` that something was added."""

    __slots__ = ("messages", "throughput", "times")

    def __init__(self) -> None:
        self.messages = 0
        self.throughput = 0
        self.times = 0

    def add(self, count: int, size: int, times: int = 1) -> None:
        """Add ``count`` messages with a total of ``size`` bytes."""
        self.messages += count
        self.throughput += size
        self.times += times


@final
class Counters:
    """Flows by statistic and key. Only one thread at a time may add to a key; keys may be dropped at any time."""

    def __init__(self, most: int = COUNTERS_MAX) -> None:
        self._most = most
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        """Held while a key is added or dropped."""
        self._named = False
        self.flows: dict[tuple[str, str], Flow] = {}

    def add(self, name: str, key: str, value: int, size: int = 0, times: int = 1) -> None:
        """Add a value to a statistic; latencies are in ms.

        A new key is not counted if it is longer than `KEY_MAX` or if the statistic is full.
        """
        flow = self.flows.get((name, key))
        if flow is None:
            with self._lock:
                flow = self._new(name, key)
            if flow is None:
                return
        flow.add(value, size, times)

    def _new(self, name: str, key: str) -> Flow | None:
        """Return the flow of a new key; None if there is no room for it."""
        if self._counts[name] >= self._most or len(key) > KEY_MAX:
            if not self._named:
                self._named = True
                events.STATISTICS_ARE_FULL.log(_log, name=name, key=key[:KEY_MAX], limit=self._most)
            return None
        found = self.flows.get((name, key))
        if found is None:
            found = self.flows[name, key] = Flow()
            self._counts[name] += 1
        return found

    def forget(self, key: tuple[str, str]) -> None:
        """Drop a count that is idle."""
        with self._lock:
            if self.flows.pop(key, None) is not None:
                self._counts[key[0]] -= 1
                self._named = False

    def forget_deleted(self, topics: set[str], groups: set[str]) -> None:
        """Drop the counts of topics and groups that were deleted."""
        for key in list(self.flows):
            topic, group = _PLACES.get(key[0], (None, None))
            names = key[1].split("@")
            if (topic is not None and names[topic] in topics) or (group is not None and names[group] in groups):
                self.forget(key)
