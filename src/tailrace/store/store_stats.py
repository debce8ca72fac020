"""Counters of a store (RocketMQ's StoreStatsService)."""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any, Final, final

from tailrace import events
from tailrace.env.clock import Clock
from tailrace.logs import get_logger
from tailrace.model import GetMessageResult
from tailrace.store.append import PutCounts

__all__ = ["StoreStatsService"]

_log = get_logger(__name__)
_NAMES: Final = (
    "<=0ms", "0~10ms", "10~50ms", "50~100ms", "100~200ms", "200~500ms", "500ms~1s", "1~2s",
    "2~3s", "3~4s", "4~5s", "5~10s", "10s~",
)


@final
class StoreStatsService:
    """Plain counters, sampled each second for rates over 10, 60 and 600 seconds."""

    def __init__(self, clock: Clock, puts: PutCounts) -> None:
        self._clock, self._puts = clock, puts
        self.boot_timestamp = clock.now_ms()
        self.get_found_times = 0
        self.get_miss_times = 0
        self.get_transferred = 0
        self._samples: deque[tuple[int, int, int, int, int]] = deque(maxlen=601)
        self._printed_ns = clock.monotonic_ns()
        self._printed = (0, 0, 0)

    def found(self, messages: int) -> None:
        """Count one read that has found messages."""
        self.get_found_times += 1
        self.get_transferred += messages

    def get_done(self, result: GetMessageResult) -> None:
        """Count one read; one that is only put off until its messages are in memory is not one."""
        if result.record_count:  # as `found`, because a call costs a hundredth of a read
            self.get_found_times += 1
            self.get_transferred += result.record_count + result.inner_messages
        elif not result.is_cold:
            self.get_miss_times += 1

    def sample(self) -> None:
        """Take one sample, and log a line once a minute."""
        now = self._clock.monotonic_ns()
        self._samples.append(
            (now, self._puts.times, self.get_found_times, self.get_miss_times, self.get_transferred))
        if now - self._printed_ns >= 60_000_000_000:
            self._printed_ns = now
            figures = (self._puts.times, self.get_found_times, self._puts.failed_times)
            if figures == self._printed:
                return  # nothing has happened since the last line
            self._printed = figures
            events.STORETPS.log(
                _log, put_tps=self.rates(1), get_found_tps=self.rates(2), get_miss_tps=self.rates(3),
                put_failed=self._puts.failed_times, put_max_ms=self._puts.time_max_ms)

    def history(self) -> list[tuple[float, float]]:
        """Return puts and messages read a second, for each sample of the last ten minutes, oldest first."""
        samples = list(self._samples)
        return [
            ((b[1] - a[1]) * 1e9 / (b[0] - a[0]), (b[4] - a[4]) * 1e9 / (b[0] - a[0]))
            for a, b in itertools.pairwise(samples) if b[0] > a[0]]

    def rates(self, column: int) -> list[float]:
        """Events a second over the last 10, 60 and 600 seconds, as far as they were sampled."""
        samples = self._samples
        if len(samples) < 2:
            return []
        last = samples[-1]
        found: list[float] = []
        for seconds in (10, 60, 600):
            if len(samples) > seconds or not found:
                first = samples[-min(seconds + 1, len(samples))]
                found.append((last[column] - first[column]) * 1e9 / max(1, last[0] - first[0]))
        return found

    def as_dict(self) -> dict[str, Any]:
        """Everything, for people and for request 28."""
        return {
            "bootTimestamp": self.boot_timestamp,
            "runtimeMs": self._clock.now_ms() - self.boot_timestamp,
            "putMessageTimesTotal": self._puts.times,
            "putMessageFailedTimes": self._puts.failed_times,
            "putMessageSizeTotal": self._puts.size,
            "putMessageAverageSize": self._puts.size / self._puts.times if self._puts.times else 0.0,
            "putMessageEntireTimeMax": self._puts.time_max_ms,
            "putMessageDistributeTime": dict(zip(_NAMES, self._puts.distribution, strict=True)),
            "getMessageFoundTimes": self.get_found_times,
            "getMessageMissTimes": self.get_miss_times,
            "getMessageTransferredMsgCount": self.get_transferred,
            "putTps": self.rates(1),
            "getFoundTps": self.rates(2),
            "getMissTps": self.rates(3),
            "getTransferredTps": self.rates(4),
        }
