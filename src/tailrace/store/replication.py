"""What the copies of the log on slaves have, for the puts and the dispatch that wait for it.

`tailrace.ha` reports each change. The store itself counts as one copy.

Invariants:
  RP1  ``replicated_where`` never decreases while the number of copies that are needed stays the same.
  RP2  A position that a connection reports counts only up to the bytes that the store has (H2); `tailrace.ha` closes
       a connection that reports more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, final

from tailrace.config import BrokerRole, FlushDiskType, StoreConfig
from tailrace.model import PutMessageStatus

__all__ = ["ALL", "LogSender", "Replication"]

ALL: Final = (1 << 63) - 1
"""Position of a log of which nothing waits for a copy."""


_UNREPLICATED: Final = (PutMessageStatus.FLUSH_SLAVE_TIMEOUT.name, PutMessageStatus.SLAVE_NOT_AVAILABLE.name)


class LogSender(Protocol):
    """Sends the log to slaves."""

    def wake(self) -> None:
        """Send bytes that can be sent now; any thread may call this, and it returns immediately."""
        ...


@final
class Replication:
    """Positions of copies. One thread at a time may call `update`; any thread may read."""

    def __init__(self, config: StoreConfig) -> None:
        self._config = config
        self.is_sync: Final = config.broker_role is BrokerRole.SYNC_MASTER
        self.waits: Final = config.replicas_needed > 1
        """True if an acknowledgement waits for copies."""
        self.sends_synced_only: Final = (
            config.flush_disk_type is FlushDiskType.SYNC_FLUSH and not config.ha_send_unsynced)
        self.in_sync = 1
        """Number of copies that are in sync, this store included."""
        self.senders: list[LogSender] = []
        """Woken when bytes can be sent."""
        self.unreplicated = dict.fromkeys(_UNREPLICATED, 0)
        """Number of puts that were answered before enough slaves had them, by status."""
        self._have: list[int] = []
        """The position that this many slaves have: one slave, two, and so on."""

    @property
    def needed(self) -> int:
        """Number of copies that acknowledge a put, this store included."""
        config = self._config
        if not config.enable_auto_in_sync_replicas:
            return config.replicas_needed
        return max(min(config.replicas_needed, self.in_sync), config.min_in_sync_replicas)

    @property
    def replicated_where(self) -> int:
        """Position up to which enough copies have the log; `ALL` if none but this store is needed."""
        if not self.waits:
            return ALL
        slaves, have = self.needed - 1, self._have
        if slaves < 1:
            return ALL
        return have[slaves - 1] if slaves <= len(have) else 0

    @property
    def is_hopeless(self) -> bool:
        """True if fewer copies are in sync than a put needs, so that it is not worth waiting."""
        return self.in_sync < self.needed

    @property
    def refusal(self) -> str:
        """Reason why messages that wait for copies are refused now; empty if they are not."""
        least = self._config.min_in_sync_replicas
        if not self.is_sync or self.in_sync >= least:
            return ""
        return (
            f"in-sync replicas not enough: {self.in_sync} of minInSyncReplicas={least}, this broker included")

    def update(self, in_sync: int, positions: Sequence[int]) -> None:
        """Take the positions that slaves have, one for each, and the number of slaves that are in sync."""
        self.in_sync = 1 + in_sync
        self._have = [
            max(position, before) for position, before in zip(
                sorted(positions, reverse=True), [*self._have, *[0] * len(positions)], strict=False)
        ] + self._have[len(positions):]

    def wake(self) -> None:
        """Have the senders send what is new."""
        for sender in self.senders:
            sender.wake()
