"""Numbers of pending half messages by topic, in the file ``config/transactionMetrics`` (TransactionMetrics).

    {"dataVersion":{"counter":1,"stateVersion":0,"timestamp":1},"transactionCount":{"T":{"count":1,"timeStamp":1}}}

The file is written periodically, so after a kill its counts may be wrong, as with a Java broker.
"""

from __future__ import annotations

from typing import Any, final

from tailrace.env.clock import Clock
from tailrace.env.filesystem import FileSystem
from tailrace.formats import fastjson, filenames
from tailrace.metrics import FINISH_LATENCY, Histogram
from tailrace.node.config_manager import ConfigManager, Owned, number_of

__all__ = ["TransactionMetrics"]


@final
class TransactionMetrics(ConfigManager[str, tuple[int, int]]):
    """Counts of pending half messages, and of those committed and rolled back since the start.

    `persist_if_changed` is called at intervals.
    """

    owned = Owned.BY_STEP
    dumps = staticmethod(fastjson.dumps)

    def __init__(self, clock: Clock, file_system: FileSystem, config_dir: str) -> None:
        super().__init__(file_system, config_dir, filenames.TRANSACTIONMETRICS)
        self._clock = clock
        self.committed: dict[str, int] = {}
        """Number of committed messages by topic, since the start."""
        self.rolled_back: dict[str, int] = {}
        self.latencies: dict[str, Histogram] = {}
        """Seconds from send to commit, by topic."""

    def add(self, topic: str, count: int) -> None:
        """Add new half messages of a topic to its count, or with a negative number remove settled ones."""
        known = self._table.get(topic, (0, 0))[0]
        self.data_version.next(self._clock.now_ms())
        self._table[topic] = max(0, known + count), self.data_version.timestamp
        self._dirty = True

    def settled(self, topic: str, stored_ms: int, *, commit: bool) -> None:
        """Count a half message that was committed or rolled back."""
        self.add(topic, -1)
        done = self.committed if commit else self.rolled_back
        done[topic] = done.get(topic, 0) + 1
        if commit:
            seconds = max(0, self._clock.now_ms() - stored_ms) // 1000
            self.latencies.setdefault(topic, Histogram(FINISH_LATENCY)).add(seconds)

    def counts(self) -> dict[str, int]:
        """Return the number of pending half messages by topic."""
        return {topic: count for topic, (count, _) in list(self._table.items())}

    def forget(self, topics: set[str]) -> None:
        """Drop the counts of topics that were deleted."""
        for topic in topics:
            for table in (self.committed, self.rolled_back, self.latencies):
                table.pop(topic, None)
            if self._table.pop(topic, None) is not None:
                self._dirty = True

    def _decode(self, value: dict[str, Any]) -> None:
        found = value.pop("transactionCount", None)
        self._table = {
            str(topic): (number_of(entry.get("count"), 0), number_of(entry.get("timeStamp"), 0))
            for topic, entry in (found if isinstance(found, dict) else {}).items() if isinstance(entry, dict)}

    def _encode(self, table: dict[str, tuple[int, int]]) -> dict[str, Any]:
        return {"transactionCount": {
            topic: {"count": count, "timeStamp": changed} for topic, (count, changed) in table.items()}}
