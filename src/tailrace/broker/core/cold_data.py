"""Limits on how much a consumer group reads from the disk (ColdDataCgCtrService).

With ``coldDataFlowControlEnable`` the bytes that pulls of a group read from the disk are counted in periods
of `PERIOD_MS`. A group that has read its threshold in a period, or reads while all groups together have read
``globalColdReadThreshold``, gets less from the disk until the period ends. Messages in the page cache
are not limited. `PullMessageProcessor` decides what "less" means for a pull.

A threshold of one group (request 2001) counts instead of ``cgColdReadThreshold`` and lasts until the broker
stops, as in RocketMQ. All methods are called on the event loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, final

from tailrace import events
from tailrace.config import BrokerConfig
from tailrace.env.clock import Clock
from tailrace.env.owner import ThreadOwner
from tailrace.errors import RefusalError
from tailrace.formats.names import SYSTEM_GROUP_PREFIX
from tailrace.formats.remoting import ResponseCode
from tailrace.logs import get_logger
from tailrace.node.subscription_group import validate_group

__all__ = ["ColdDataFlowControl"]

_log = get_logger(__name__)

PERIOD_MS: Final = 5_000
FORGET_MS: Final = 60_000
"""A group that has read nothing from the disk for this long is not shown any more."""
THRESHOLDS_MAX: Final = 10_000
"""Prefix of the groups that are never limited."""


@dataclass(slots=True)
class _Reads:
    """Reads of a group from the disk in this period (AccAndTimeStamp)."""

    created_ms: int
    last_ms: int = 0
    size: int = 0
    logged: bool = False
    """True if the log line about the limited group was written in this period."""


@final
class ColdDataFlowControl:
    """Counts cold reads by group, and reports which groups have reached their limit."""

    def __init__(self, clock: Clock, config: BrokerConfig) -> None:
        self._clock = clock
        self._owner = ThreadOwner("ColdDataFlowControl")
        self._config = config
        self._begun_ms = clock.now_ms()
        self._reads: dict[str, _Reads] = {}
        self._all = 0
        self.thresholds: dict[str, int] = {}
        """Bytes in a period, for groups with a threshold of their own."""

    def count(self, group: str, size: int) -> None:
        """Note that a group has read ``size`` bytes from the disk."""
        now_ms = self._roll()
        reads = self._reads.setdefault(group, _Reads(now_ms))
        reads.last_ms = now_ms
        reads.size += size
        self._all += size

    def is_over(self, group: str) -> bool:
        """Return whether a group has read as much as it may in this period."""
        if not self._config.cold_data_flow_control_enable or group.startswith(SYSTEM_GROUP_PREFIX):
            return False
        self._roll()
        reads = self._reads.get(group)
        threshold = self._threshold(group)
        if reads is None or (
            reads.size < threshold and self._all < self._config.global_cold_read_threshold
        ):
            return False
        if not reads.logged:
            reads.logged = True
            events.GROUP_READS_LESS_FROM_THE_DISK.log(
                _log, group=group, bytes=reads.size, threshold=threshold, all_bytes=self._all)
        return True

    def set_thresholds(self, values: dict[str, str]) -> None:
        """Set thresholds, in bytes, of groups. Raises RefusalError if one is invalid; then nothing changes."""
        found: dict[str, int] = {}
        for group, text in values.items():
            if reason := validate_group(group):
                raise RefusalError(ResponseCode.INVALID_PARAMETER, reason)
            try:
                found[group] = int(text)
            except ValueError:
                raise RefusalError(
                    ResponseCode.INVALID_PARAMETER,
                    f"the threshold of group {group[:120]} is not a whole number: {text[:40]!r}") from None
            if not 0 <= found[group] < 1 << 63:
                raise RefusalError(
                    ResponseCode.INVALID_PARAMETER,
                    f"the threshold of group {group[:120]} is outside 0 to 2^63 - 1: {text[:40]}")
        if len(self.thresholds | found) > THRESHOLDS_MAX:
            raise RefusalError(
                ResponseCode.INVALID_PARAMETER,
                f"{len(self.thresholds)} groups have a threshold, the limit is {THRESHOLDS_MAX}; remove some first")
        self.thresholds.update(found)

    def to_json(self) -> dict[str, Any]:
        """Return thresholds and what was read in this period, by RocketMQ's names."""
        self._roll()
        return {
            "runtimeTable": {
                group: {"coldAcc": r.size, "createTimeMills": r.created_ms, "lastColdReadTimeMills": r.last_ms}
                for group, r in self._reads.items()},
            "configTable": dict(self.thresholds),
            "cgColdReadThreshold": self._config.cg_cold_read_threshold,
            "globalColdReadThreshold": self._config.global_cold_read_threshold, "globalAcc": self._all,
            "coldDataFlowControlEnable": self._config.cold_data_flow_control_enable}

    def _threshold(self, group: str) -> int:
        return self.thresholds.get(group, self._config.cg_cold_read_threshold)

    def _roll(self) -> int:
        """Begin a new period if the last one is over; return the time, epoch ms."""
        self._owner.check()
        now_ms = self._clock.now_ms()
        if 0 <= now_ms - self._begun_ms < PERIOD_MS:
            return now_ms
        self._begun_ms = now_ms
        self._all = 0
        self._reads = {
            group: _Reads(r.created_ms, r.last_ms) for group, r in self._reads.items()
            if now_ms - r.last_ms < FORGET_MS}
        return now_ms
