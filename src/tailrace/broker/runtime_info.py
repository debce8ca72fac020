"""Figures of a running broker, under the names that ``mqadmin`` reads (request 28)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final, final

from tailrace.broker.context import BrokerContext
from tailrace.formats.remoting import MQ_VERSION

__all__ = ["RuntimeInfo"]

SAMPLE_S: Final = 10
WINDOWS: Final = (1, 6, 60)
"""Samples back: 10, 60 and 600 seconds."""
COUNTERS: Final = ("put", "found", "miss", "transferred")
POOLS: Final = ("send", "pull", "litePull", "query", "ack", "EndTransaction")
CAPACITIES: Final = {
    "send": 10_000, "pull": 100_000, "litePull": 100_000, "query": 20_000, "ack": 100_000,
    "EndTransaction": 100_000,
}


@final
class RuntimeInfo:
    """Rates from samples of the store's counters, taken by `sample` every 10 s."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self._samples: deque[tuple[int, tuple[int, ...]]] = deque(maxlen=WINDOWS[-1] + 1)
        self.sample()

    def sample(self) -> None:
        """Remember where the counters stand."""
        self._samples.append((
            self._broker.clock.monotonic_ns(), _counters(self._broker.store.stats())
        ))

    def table(self) -> dict[str, str]:
        """All figures, as text."""
        broker, store = self._broker, self._broker.store
        stats = store.stats()
        now = broker.clock.now_ms()
        put, found, miss, transferred = self._rates(stats)
        total = " ".join(
            f"{float(a) + float(b)}" for a, b in zip(found.split(), miss.split(), strict=True)
        )
        figures: dict[str, Any] = {
            "brokerVersionDesc": "V5_3_3", "brokerVersion": MQ_VERSION, "brokerActive": "true",
            "putTps": put, "getFoundTps": found, "getMissTps": miss,
            "getTransferredTps": transferred, "getTotalTps": f"{total} ",
            "bootTimestamp": broker.boot_ms, "startAcceptSendRequestTimeStamp": 0,
            "runtime": _duration(now - broker.boot_ms),
            "earliestMessageTimeStamp": store.earliest_message_time(),
            "commitLogMinOffset": store.min_phy_offset, "commitLogMaxOffset": store.max_phy_offset,
            "dispatchBehindBytes": store.dispatch_behind_bytes,
            "remainHowManyDataToFlush": f"{stats.get('flush_behind_bytes', 0)} B",
            "putMessageDistributeTime": stats.get("put_message_distribute_time", ""),
            "putMessageTimesTotal": _counters(stats)[0],
            "pageCacheLockTimeMills": 0, "commitLogDiskRatio": stats.get("disk_ratio", 0.0),
            "consumeQueueDiskRatio": stats.get("disk_ratio", 0.0),
            "commitLogDirCapacity": stats.get("disk_capacity", "Total : 0 B, Free : 0 B."),
            "timerReadBehind": 0, "timerOffsetBehind": 0, "timerCongestNum": 0,
            "timerEnqueueTps": 0.0, "timerDequeueTps": 0.0,
        }
        for kind, value in (("Put", _counters(stats)[0]), ("Get", _counters(stats)[1])):
            figures[f"msg{kind}TotalYesterdayMorning"] = 0
            figures[f"msg{kind}TotalTodayMorning"] = 0
            figures[f"msg{kind}TotalTodayNow"] = value
        for pool in POOLS:
            figures[f"{pool}ThreadPoolQueueSize"] = 0
            figures[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = 0
            figures[f"{pool}ThreadPoolQueueCapacity"] = CAPACITIES[pool]
        return {name: str(value) for name, value in figures.items()}

    def _rates(self, stats: Mapping[str, Any]) -> list[str]:
        now, current = self._broker.clock.monotonic_ns(), _counters(stats)
        rates = []
        for i in range(len(COUNTERS)):
            parts = []
            for back in WINDOWS:
                if back > len(self._samples):
                    break
                then, values = self._samples[-back]
                seconds = max(1, now - then) / 1e9
                parts.append(f"{(current[i] - values[i]) / seconds:.4f}")
            rates.append("".join(f"{p} " for p in parts or ["0.0"]))
        return rates


def _counters(stats: Mapping[str, Any]) -> tuple[int, int, int, int]:
    return (
        int(stats.get("put_message_times_total", 0)),
        int(stats.get("get_message_times_total_found", 0)),
        int(stats.get("get_message_times_total_miss", 0)),
        int(stats.get("get_message_transferred_msg_count", 0)),
    )


def _duration(ms: int) -> str:
    seconds = ms // 1000
    return (
        f"[ {seconds // 86400} days, {seconds // 3600 % 24} hours, {seconds // 60 % 60} minutes, "
        f"{seconds % 60} seconds ]"
    )
