"""Locks of queues for orderly consumption (requests 41 and 42).

Only the client that has locked a queue consumes it in order. A lock expires 60 s after its last renewal. It outlives
its connection, so that a client that connects again keeps its queues.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from tailrace.env.clock import Clock
from tailrace.env.owner import ThreadOwner
from tailrace.errors import StoreError
from tailrace.remoting import Channel

__all__ = ["RebalanceLockManager"]

LOCK_NS: Final = 60_000_000_000
LOCKS_MAX: Final = 100_000
"""Number of queues that all groups together may have locked."""
LOCKED_CHARS_MAX: Final = 8_000_000
"""Characters of the names in all these locks."""
Queue = tuple[str, str, int]
"""Topic, broker name and queue id."""


class _Lock(NamedTuple):
    client_id: str
    since_ns: int
    channel: Channel | None
    """The connection of the last renewal."""


def queue_of(value: dict[str, Any]) -> Queue:
    """Return the key of a MessageQueue in JSON."""
    return str(value["topic"]), str(value["brokerName"]), int(value["queueId"])


class RebalanceLockManager:
    """Locks of queues by group. A lock that has expired counts as free.

    The thread of the event loop constructs it and changes it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._owner = ThreadOwner("RebalanceLockManager")
        self._locks: dict[str, dict[Queue, _Lock]] = {}
        self._count = self._chars = 0

    def try_lock(
        self, group: str, client_id: str, queues: list[dict[str, Any]], channel: Channel | None = None,
    ) -> list[dict[str, Any]]:
        """Lock, or renew the lock of, the queues that no other client holds; return those queues.

        ``channel`` is the connection of the client, for `release`.

        Raises StoreError if there would be more than `LOCKS_MAX` locks, or more than `LOCKED_CHARS_MAX` characters in
        them; then nothing is locked.
        """
        self._owner.check()
        now = self._clock.monotonic_ns()
        taken = []
        # All keys first, so that a request with an invalid queue locks nothing.
        keys = [(queue_of(value), value) for value in queues]
        held = self._locks.get(group, {})
        if self._count + sum(key not in held for key, _ in keys) > LOCKS_MAX:
            raise StoreError(f"{self._count} queues are locked, the limit is {LOCKS_MAX}")
        if self._chars + sum(_chars(key, client_id) for key, _ in keys if key not in held) > LOCKED_CHARS_MAX:
            raise StoreError(
                f"the names of {self._count} locked queues have {self._chars} characters, "
                f"the limit is {LOCKED_CHARS_MAX}")
        for key, value in keys:
            lock = held.get(key)
            if lock is None or lock.client_id == client_id or now - lock.since_ns > LOCK_NS:
                if lock is None:
                    self._count += 1
                    self._chars += _chars(key, client_id)
                else:
                    self._chars += len(client_id) - len(lock.client_id)
                held[key] = _Lock(client_id, now, channel)
                taken.append(value)
        if held:
            self._locks[group] = held
        return taken

    def is_locked(self, group: str) -> bool:
        """Return whether a member of the group holds a lock (isLockAllExpired, negated)."""
        limit = self._clock.monotonic_ns() - LOCK_NS
        return any(lock.since_ns >= limit for lock in self._locks.get(group, {}).values())

    def expire(self) -> None:
        """Remove the locks that have expired."""
        limit = self._clock.monotonic_ns() - LOCK_NS
        for group, held in list(self._locks.items()):
            for key in [key for key, lock in held.items() if lock.since_ns < limit]:
                self._free(group, key)

    def release(self, is_wanted: Callable[[Channel | None, str, str], bool]) -> None:
        """Release the locks for whose connection, group and topic ``is_wanted`` returns True."""
        for group, held in list(self._locks.items()):
            for key in [key for key, lock in held.items() if is_wanted(lock.channel, group, key[0])]:
                self._free(group, key)

    def unlock(self, group: str, client_id: str, queues: list[dict[str, Any]]) -> None:
        """Release the locks that ``client_id`` holds on ``queues``."""
        for key in [queue_of(value) for value in queues]:
            lock = self._locks.get(group, {}).get(key)
            if lock is not None and lock.client_id == client_id:
                self._free(group, key)

    def _free(self, group: str, key: Queue) -> None:
        self._owner.check()
        self._count -= 1
        self._chars -= _chars(key, self._locks[group].pop(key).client_id)
        if not self._locks[group]:
            del self._locks[group]


def _chars(queue: Queue, client_id: str) -> int:
    return len(queue[0]) + len(queue[1]) + len(client_id)
