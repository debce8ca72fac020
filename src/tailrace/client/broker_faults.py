"""Which brokers a producer avoids for a while: those that are slow or cannot be reached (MQFaultStrategy)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from tailrace.client.routes import MessageQueue
from tailrace.env.clock import Clock

__all__ = ["BrokerFaults"]

_AVOIDED_MS: Final = ((15_000, 30_000), (5_000, 10_000), (3_000, 6_000), (1_800, 5_000), (550, 2_000))
"""An answer that takes as long as the first number has its broker avoided as long as the second; as the reference."""
UNREACHABLE_MS: Final = 10_000
"""What an answer that did not come counts as."""


@final
class BrokerFaults:
    """How long each broker is avoided."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[str, int] = {}

    def note(self, broker_name: str, took_ms: float, *, reached: bool = True) -> None:
        """Note how long an answer took, or that none came."""
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
