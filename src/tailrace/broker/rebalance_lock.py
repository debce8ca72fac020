"""Which client may consume a queue in order: locks with a term (requests 41 and 42)."""

from __future__ import annotations

from typing import Any, Final

from tailrace.env.clock import Clock

__all__ = ["RebalanceLockManager"]

LOCK_NS: Final = 60_000_000_000
Queue = tuple[str, str, int]
"""Topic, broker name, queue id."""


def queue_of(value: dict[str, Any]) -> Queue:
    """The key of a MessageQueue in JSON."""
    return str(value["topic"]), str(value["brokerName"]), int(value["queueId"])


class RebalanceLockManager:
    """Locks of queues by group; one that is not renewed for 60 s is free."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._locks: dict[tuple[str, Queue], tuple[str, int]] = {}

    def try_lock(
        self, group: str, client_id: str, queues: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Lock or renew what nobody else holds; the queues that ``client_id`` now has."""
        now = self._clock.monotonic_ns()
        taken = []
        # All keys first: a queue that cannot be read locks none of the others.
        for key, value in [((group, queue_of(value)), value) for value in queues]:
            holder, since = self._locks.get(key, (client_id, now))
            if holder == client_id or now - since > LOCK_NS:
                self._locks[key] = client_id, now
                taken.append(value)
        return taken

    def is_locked(self, group: str) -> bool:
        """Whether a member of the group holds a queue (not isLockAllExpired)."""
        limit = self._clock.monotonic_ns() - LOCK_NS
        return any(held == group and since >= limit for (held, _), (_, since) in self._locks.items())

    def expire(self) -> None:
        """Forget locks that nobody has renewed for their term."""
        limit = self._clock.monotonic_ns() - LOCK_NS
        for key in [key for key, (_, since) in self._locks.items() if since < limit]:
            del self._locks[key]

    def unlock(self, group: str, client_id: str, queues: list[dict[str, Any]]) -> None:
        """Free what ``client_id`` holds of ``queues``."""
        for value in queues:
            key = group, queue_of(value)
            if self._locks.get(key, ("", 0))[0] == client_id:
                del self._locks[key]
