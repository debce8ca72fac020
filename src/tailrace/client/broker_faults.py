"""Avoidance of brokers that are slow or cannot be reached, for a time (MQFaultStrategy)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from tailrace.client.routes import MessageQueue
from tailrace.env.clock import Clock

__all__ = ["BrokerFaults"]

_AVOIDED_MS: Final = ((15_000, 30_000), (5_000, 10_000), (3_000, 6_000), (1_800, 5_000), (550, 2_000))
"""If an answer takes at least the first number, its broker is avoided for the second, as in RocketMQ."""
UNREACHABLE_MS: Final = 10_000
"""Time with which a missing answer is counted."""


@final
class BrokerFaults:
    """Times until which brokers are avoided."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[str, int] = {}

    def note(self, broker_name: str, took_ms: float, *, reached: bool = True) -> None:
        """Note the time that an answer took; ``reached`` is False if no answer came."""
        counted = took_ms if reached else UNREACHABLE_MS
        for least, avoided in _AVOIDED_MS:
            if counted >= least:
                self._until[broker_name] = self._clock.monotonic_ns() + avoided * 1_000_000
                return
        self._until.pop(broker_name, None)

    def usable(self, queues: Sequence[MessageQueue]) -> Sequence[MessageQueue]:
        """Return the queues whose brokers are not avoided; all of them if all are avoided."""
        if not self._until:
            return queues
        now = self._clock.monotonic_ns()
        avoided = {name for name, until in self._until.items() if until > now}
        return [queue for queue in queues if queue.broker_name not in avoided] or queues
