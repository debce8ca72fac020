"""Reasons why a store may not be written (RocketMQ's RunningFlags). They are kept in memory only."""

from __future__ import annotations

from typing import final

__all__ = ["RunningFlags"]

NOT_READABLE = 1
NOT_WRITEABLE = 2
WRITE_LOGICS_QUEUE_ERROR = 4
DISK_FULL = 16
FOLLOWS = 256
"""Only the replication from a master appends. Not a flag of RocketMQ, which looks at the role instead."""


@final
class RunningFlags:
    """A set of flags, each with a sentence that says what happened."""

    def __init__(self) -> None:
        self.bits = 0
        self._reasons: dict[int, str] = {}
        self.full_directories: tuple[str, ...] = ()
        """CommitLog directories that are too full for new files."""

    def set(self, flag: int, reason: str) -> None:
        """Set a flag. If it is set already, its first sentence stays."""
        self._reasons.setdefault(flag, reason)
        self.bits |= flag

    def clear(self, flag: int) -> None:
        """Clear a flag and its sentence."""
        self._reasons.pop(flag, None)
        self.bits &= ~flag

    @property
    def reason(self) -> str:
        """All sentences, separated by semicolons."""
        return "; ".join(self._reasons.values())

    def is_sound(self) -> bool:
        """Return True if files may be changed: messages may be put, or could be if the disk was not full or if this
        was not a slave."""
        return not self.bits & ~(NOT_READABLE | DISK_FULL | FOLLOWS)

    def is_writeable(self, *, though_full: bool = False) -> bool:
        """Return True if messages may be put; with ``though_full`` also on a disk above its warning level."""
        return not self.bits & ~(NOT_READABLE | (DISK_FULL if though_full else 0))
