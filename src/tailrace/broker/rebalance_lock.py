"""Which client may consume a queue in order: locks with a term (requests 41 and 42)."""

from __future__ import annotations

from typing import Any, Final

from tailrace.env.clock import Clock
from tailrace.errors import StoreError

__all__ = ["RebalanceLockManager"]

LOCK_NS: Final = 60_000_000_000
LOCKS_MAX: Final = 100_000
"""Queues that may be locked at a time, of all groups together."""
Queue = tuple[str, str, int]
"""Topic, broker name, queue id."""


def queue_of(value: dict[str, Any]) -> Queue:
    """The key of a MessageQueue in JSON."""
    return str(value["topic"]), str(value["brokerName"]), int(value["queueId"])


class RebalanceLockManager:
    """Locks of queues by group; one that is not renewed for 60 s is free."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._locks: dict[str, dict[Queue, tuple[str, int]]] = {}
        self._count = 0

    def try_lock(
        self, group: str, client_id: str, queues: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Lock or renew what nobody else holds; the queues that ``client_id`` now has.

        Raises StoreError when there would be too many locks; then nothing is locked.
        """
        now = self._clock.monotonic_ns()
        taken = []
        # All keys first: a queue that cannot be read locks none of the others.
        keys = [(queue_of(value), value) for value in queues]
        held = self._locks.get(group, {})
        if self._count + sum(key not in held for key, _ in keys) > LOCKS_MAX:
            raise StoreError(f"{self._count} queues are locked, the limit is {LOCKS_MAX}")
        for key, value in keys:
            holder, since = held.get(key, (client_id, now))
            if holder == client_id or now - since > LOCK_NS:
                self._count += key not in held
                held[key] = client_id, now
                taken.append(value)
        if held:
            self._locks[group] = held
        return taken

    def is_locked(self, group: str) -> bool:
        """Whether a member of the group holds a queue (not isLockAllExpired)."""
        limit = self._clock.monotonic_ns() - LOCK_NS
        return any(since >= limit for _, since in self._locks.get(group, {}).values())

    def expire(self) -> None:
        """Forget locks that nobody has renewed for their term."""
        limit = self._clock.monotonic_ns() - LOCK_NS
        for group, held in list(self._locks.items()):
            for key in [key for key, (_, since) in held.items() if since < limit]:
                self._free(group, key)

    def unlock(self, group: str, client_id: str, queues: list[dict[str, Any]]) -> None:
        """Free what ``client_id`` holds of ``queues``."""
        for key in [queue_of(value) for value in queues]:
            if self._locks.get(group, {}).get(key, ("", 0))[0] == client_id:
                self._free(group, key)

    def _free(self, group: str, key: Queue) -> None:
        del self._locks[group][key]
        self._count -= 1
        if not self._locks[group]:
            del self._locks[group]
