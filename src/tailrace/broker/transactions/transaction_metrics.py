"""Numbers of pending half messages by topic, in the file ``config/transactionMetrics`` (TransactionMetrics).

    {"dataVersion":{"counter":1,"stateVersion":0,"timestamp":1},"transactionCount":{"T":{"count":1,"timeStamp":1}}}

The file is written periodically, so after a kill its counts may be wrong, as with a Java broker.
"""

from __future__ import annotations

from typing import Any, Final, final

from tailrace.env.clock import Clock
from tailrace.env.filesystem import FileSystem
from tailrace.formats import fastjson, filenames
from tailrace.metrics import FINISH_LATENCY
from tailrace.node.config_manager import read_config, write_config

__all__ = ["TransactionMetrics"]

_BUCKETS_S: Final = FINISH_LATENCY.buckets


@final
class TransactionMetrics:
    """Counts of pending half messages, and of those committed and rolled back since the start.

    The event loop changes them; another thread writes the file, from a copy.
    """

    def __init__(self, clock: Clock, file_system: FileSystem, config_dir: str) -> None:
        self._clock = clock
        self._file_system = file_system
        self._config_dir = config_dir
        self._table: dict[str, tuple[int, int]] = {}
        self._counter = self._timestamp = 0
        self._dirty = False
        self.committed: dict[str, int] = {}
        """Number of committed messages by topic, since the start."""
        self.rolled_back: dict[str, int] = {}
        self.latencies: dict[str, list[int]] = {}
        """By topic: for each bucket the number of committed messages, by the seconds since they were sent."""
        self.latency_sums: dict[str, int] = {}

    def add(self, topic: str, count: int) -> None:
        """Add new half messages of a topic to its count, or with a negative number remove settled ones."""
        known = self._table.get(topic, (0, 0))[0]
        self._timestamp = self._clock.now_ms()
        self._table[topic] = max(0, known + count), self._timestamp
        self._counter += 1
        self._dirty = True

    def settled(self, topic: str, stored_ms: int, *, commit: bool) -> None:
        """Count a half message that was committed or rolled back."""
        self.add(topic, -1)
        done = self.committed if commit else self.rolled_back
        done[topic] = done.get(topic, 0) + 1
        if commit:
            seconds = max(0, self._clock.now_ms() - stored_ms) // 1000
            counts = self.latencies.setdefault(topic, [0] * (len(_BUCKETS_S) + 1))
            counts[sum(bound < seconds for bound in _BUCKETS_S)] += 1
            self.latency_sums[topic] = self.latency_sums.get(topic, 0) + seconds

    def counts(self) -> dict[str, int]:
        """Return the number of pending half messages by topic."""
        return {topic: count for topic, (count, _) in list(self._table.items())}

    def forget_topic(self, topic: str) -> None:
        """Drop the counts of a topic that is deleted."""
        for table in (self.committed, self.rolled_back, self.latency_sums):
            table.pop(topic, None)
        self.latencies.pop(topic, None)
        if self._table.pop(topic, None) is not None:
            self._dirty = True

    def load(self) -> None:
        """Read the file. Invalid members are ignored."""
        value = read_config(self._file_system, f"{self._config_dir}/{filenames.TRANSACTIONMETRICS}") or {}
        version = value.get("dataVersion")
        if isinstance(version, dict):
            self._counter, self._timestamp = _number(version.get("counter")), _number(version.get("timestamp"))
        table = value.get("transactionCount")
        for topic, entry in table.items() if isinstance(table, dict) else ():
            if isinstance(entry, dict):
                self._table[str(topic)] = _number(entry.get("count")), _number(entry.get("timeStamp"))

    def persist(self) -> None:
        """Write the file if a count has changed. Raises OSError or FatalStorageError."""
        if not self._dirty:
            return
        self._dirty = False  # before the copy, so that a change during the write sets it again
        try:
            write_config(
                self._file_system, self._config_dir, filenames.TRANSACTIONMETRICS, self._encode())
        except BaseException:
            self._dirty = True
            raise

    def _encode(self) -> bytes:
        return fastjson.dumps({
            "dataVersion": {
                "counter": self._counter, "stateVersion": 0, "timestamp": self._timestamp},
            "transactionCount": {
                topic: {"count": count, "timeStamp": changed}
                for topic, (count, changed) in list(self._table.items())},
        })


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0
