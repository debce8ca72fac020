"""What has gone in and out since the start, by topic: the counters behind ``/metrics``.

Everything is counted on the event loop and read from anywhere; a reader may see a message counted
whose bytes are not yet.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Final, final

from tailrace.metrics import MESSAGE_SIZE

__all__ = ["NORMAL", "Flow", "Traffic", "message_type"]

_BUCKETS: Final = MESSAGE_SIZE.buckets
NORMAL: Final = "normal"
# In the order that the reference asks (BrokerMetricsManager.getMessageType).
_TYPES: Final = (
    ("TRAN_MSG\x01true\x02", "transaction"), ("__SHARDINGKEY\x01", "fifo"), ("DELAY\x01", "delay"),
    ("TIMER_DEL", "delay"),
)


@final
class Flow:
    """Messages and bytes; ``sizes`` counts messages by bucket, the last one being all above."""

    __slots__ = ("messages", "sizes", "throughput")

    def __init__(self) -> None:
        self.messages = 0
        self.throughput = 0
        self.sizes = [0] * (len(_BUCKETS) + 1)


def message_type(properties: str) -> str:
    """normal, fifo, delay or transaction, by a message's stored properties."""
    for sign, kind in _TYPES:
        if sign in properties:
            return kind
    return NORMAL


@final
class Traffic:
    """Counters by topic and message type, by topic and group, and dead letters by group."""

    def __init__(self) -> None:
        self.came_in: dict[tuple[str, str], Flow] = {}
        self.went_out: dict[tuple[str, str], Flow] = {}
        self.dead_letters: Counter[str] = Counter()

    def take_in(self, topic: str, kind: str, count: int, size: int) -> None:
        """Count ``count`` stored messages of together ``size`` bytes."""
        key = topic, kind
        flow = self.came_in.get(key)
        if flow is None:
            flow = self.came_in[key] = Flow()
        flow.messages += count
        flow.throughput += size
        flow.sizes[bisect_left(_BUCKETS, size // count)] += count

    def hand_out(self, topic: str, group: str, count: int, size: int) -> None:
        """Count messages handed to a consumer."""
        key = topic, group
        flow = self.went_out.get(key)
        if flow is None:
            flow = self.went_out[key] = Flow()
        flow.messages += count
        flow.throughput += size

    def forget_topic(self, topic: str) -> None:
        """Drop what was counted of a topic that is deleted."""
        for table in (self.came_in, self.went_out):
            for key in [key for key in list(table) if key[0] == topic]:
                table.pop(key, None)

    def forget_group(self, group: str) -> None:
        """Drop what was counted of a group that is deleted."""
        for key in [key for key in list(self.went_out) if key[1] == group]:
            self.went_out.pop(key, None)
        self.dead_letters.pop(group, None)
