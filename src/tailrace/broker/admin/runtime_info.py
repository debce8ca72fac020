"""Figures of a running broker, under the names that ``mqadmin`` reads (request 28)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from typing import Any, Final, final

from tailrace import __version__
from tailrace.broker.statistics.broker_stats import BrokerStatsManager
from tailrace.broker.statistics.traffic import Traffic
from tailrace.env.clock import Clock
from tailrace.formats.filenames import CONSUMEQUEUE
from tailrace.node.message_store import MessageStore
from tailrace.spellings import size_text
from tailrace.store.append import PUT_LIMITS_MS
from tailrace.store.log_paths import log_paths
from tailrace.store.retention.disk_check import measure
from tailrace.store.retention.disk_state import PathUsage

__all__ = ["RuntimeInfo"]

NO_POOL: Final = 0x7FFFFFFF
"""Number of free buffers that RocketMQ reports without a pool (transientStorePoolEnable=false)."""
CAPACITIES: Final = {
    "send": 10_000, "pull": 100_000, "litePull": 100_000, "query": 20_000, "ack": 100_000,
    "EndTransaction": 100_000,
}


_STATISTICS: Final = (
    "putMessageTimesTotal", "putMessageFailedTimes", "putMessageSizeTotal", "putMessageAverageSize",
    "putMessageEntireTimeMax", "dispatchBehindBytes", "timerOffsetBehind",
)
"""Statistics of the store that have the same name here."""
_RATES: Final = ("putTps", "getFoundTps", "getMissTps", "getTransferredTps")
"""Such statistics with rates of several times."""


@final
class RuntimeInfo:
    """Returns statistics of the store and the broker under the names that admin tools read."""

    def __init__(
        self, clock: Clock, store: MessageStore, stats: BrokerStatsManager, traffic: Traffic, boot_ms: int,
    ) -> None:
        self._clock, self._store, self._stats, self._traffic = clock, store, stats, traffic
        self._boot_ms = boot_ms

    def table(self) -> dict[str, str]:
        """Return all figures as text."""
        store = self._store
        stats = store.stats()
        days = self._stats.day_totals()
        distribution = stats.get("putMessageDistributeTime", {})
        *logs, queues = measure(
            store.file_system, log_paths(store.config, store.path).all, f"{store.path}/{CONSUMEQUEUE}",
            store.retention.trash.bytes_of)
        roomiest = min(logs, key=lambda usage: usage.percent)  # the path of which the ratio is shown
        figures: dict[str, Any] = {
            "brokerVersionDesc": "V5_3_3", "tailraceVersion": __version__, "brokerActive": "true",
            **({"readOnly": store.read_only} if store.read_only else {}),
            **{name: stats.get(name, 0) for name in _STATISTICS},
            **{name: _rates(stats.get(name, ())) for name in _RATES},
            "getTotalTps": _rates(a + b for a, b in zip_longest(
                stats.get("getFoundTps", ()), stats.get("getMissTps", ()), fillvalue=0.0)),
            "bootTimestamp": self._boot_ms, "startAcceptSendRequestTimeStamp": 0,
            "runtime": _duration(self._clock.now_ms() - self._boot_ms),
            "earliestMessageTimeStamp": store.earliest_message_time(),
            "commitLogMinOffset": store.min_phy_offset, "commitLogMaxOffset": store.max_phy_offset,
            "dispatchMaxBuffer": 0, "remainHowManyDataToFlush": size_text(stats.get("flushBehindBytes", 0)),
            "remainTransientStoreBufferNumbs": NO_POOL,
            "putMessageDistributeTime": "".join(f"[{k}]:{v} " for k, v in distribution.items()),
            "putLatency99": f"{_percentile(distribution.values(), 0.99):.2f}",
            "putLatency999": f"{_percentile(distribution.values(), 0.999):.2f}",
            "getMessageEntireTimeMax": self._traffic.get_time_max_ns // 1_000_000,
            "pageCacheLockTimeMills": 0,
            "commitLogDiskRatio": _ratio(roomiest), "consumeQueueDiskRatio": _ratio(queues),
            "commitLogDirCapacity": f"Total : {size_text(roomiest.total)}, Free : {size_text(roomiest.usable)}.",
            "timerReadBehind": stats.get("timerReadBehindMs", 0), "timerCongestNum": stats.get("timerPending", 0),
            "timerEnqueueTps": 0.0, "timerDequeueTps": 0.0,
        }
        for place, kind in enumerate(("Put", "Get")):
            figures[f"msg{kind}TotalYesterdayMorning"] = days.yesterday_morning[place]
            figures[f"msg{kind}TotalTodayMorning"] = days.today_morning[place]
            figures[f"msg{kind}TotalTodayNow"] = days.now[place]
        for usage in logs:
            figures[f"commitLogDiskRatio_{usage.path}"] = _ratio(usage)
        for level, offset, until in store.timer_services.schedule.progress():
            figures[f"scheduleMessageOffset_{level}"] = f"{offset},{until}"
        for pool, capacity in CAPACITIES.items():
            figures[f"{pool}ThreadPoolQueueSize"] = 0
            figures[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = 0
            figures[f"{pool}ThreadPoolQueueCapacity"] = capacity
        # RocketMQ has other names for the pool of transactions, and fewer figures.
        figures["EndTransactionQueueSize"] = figures.pop("EndTransactionThreadPoolQueueSize")
        del figures["EndTransactionThreadPoolQueueHeadWaitTimeMills"]
        return {name: str(value) for name, value in figures.items()}


def _ratio(usage: PathUsage) -> float:
    """Return the used part of a partition; -1.0 if it could not be measured."""
    return usage.percent / 100 if usage.percent >= 0 else -1.0


def _percentile(counts: Iterable[int], part: float) -> float:
    """Return the time in ms that this share of the puts did not exceed, interpolated linearly within a range."""
    counts = list(counts)
    place, before = part * sum(counts), 0
    for low, high, count in zip((0, *PUT_LIMITS_MS), (*PUT_LIMITS_MS, PUT_LIMITS_MS[-1]), counts, strict=False):
        if count and place <= before + count:
            return low + (high - low) * (place - before) / count
        before += count
    return 0.0


def _rates(values: Iterable[float]) -> str:
    """Return the rates over 10, 60 and 600 seconds that exist, each followed by a blank."""
    return "".join(f"{value:.4f} " for value in values) or "0.0 "


def _duration(ms: int) -> str:
    seconds = ms // 1000
    return (
        f"[ {seconds // 86400} days, {seconds // 3600 % 24} hours, {seconds // 60 % 60} minutes, "
        f"{seconds % 60} seconds ]"
    )
