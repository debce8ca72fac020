"""A stopped slave before its promotion: what it lacks, and whether its master is still there.

A promotion changes two settings, brokerRole and brokerId. The next start makes the rest from the log: offsets that are
past the end of their queue are lowered, and timers, messages of delay levels and POP checkpoints that the old master
has delivered are found by their records. The first bytes of a record whose end never came go to quarantine.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from tailrace.config import BrokerRole, StoreConfig
from tailrace.env.filesystem import FileSystem
from tailrace.ha.known_master import KnownMaster, read_known_master
from tailrace.node.serve_hint import locked_error
from tailrace.remoting.client import split_address
from tailrace.store.directory import DirectoryState, StoreDirectory

__all__ = ["Standing", "is_listening", "standing_of"]

_CONNECT_S: Final = 3.0


class Standing(NamedTuple):
    """What a slave has, and what it knows of its master."""

    end: int
    """End of its log: the position after its last whole record."""
    known: KnownMaster | None
    """The last answer of its master; None if it never had one."""

    @property
    def lacks(self) -> int | None:
        """Number of bytes that the master had when it was asked last, and that the slave lacks; None if not known."""
        return None if self.known is None else max(0, self.known.end - self.end)

    @property
    def role(self) -> BrokerRole:
        """The role that the master had; ASYNC_MASTER if it is not known."""
        role = "" if self.known is None else self.known.role
        return BrokerRole.SYNC_MASTER if role == BrokerRole.SYNC_MASTER.value else BrokerRole.ASYNC_MASTER

    def sentence(self) -> str:
        """Return what the slave lacks, as a part of a sentence."""
        if self.known is None:
            return "what it lacks is not known, because it never had an answer of its master"
        if self.lacks:
            return f"without {self.lacks} bytes of its master, and without what the master got after its last answer"
        return "with all that its master had at its last answer, and without what the master got later"


def standing_of(file_system: FileSystem, root: str, config: StoreConfig) -> Standing:
    """Return what the slave at ``root`` has; nothing there changes.

    Raises StoreLockedError if a process has it open, NotAStoreError, CorruptionError or OSError.
    """
    found = StoreDirectory(root, config=config, file_system=file_system)
    if found.state in {DirectoryState.LIVE, DirectoryState.LIVE_JAVA}:
        raise locked_error(file_system, root)
    return Standing(found.max_phy_offset, read_known_master(file_system, root))


async def is_listening(address: str) -> bool:
    """Return whether a process listens at the address of a broker, whatever it would answer."""
    place = split_address(address)
    if place is None:
        return False
    try:
        async with asyncio.timeout(_CONNECT_S):
            _, writer = await asyncio.open_connection(*place)
    except (OSError, TimeoutError):
        return False
    writer.transport.abort()
    return True
