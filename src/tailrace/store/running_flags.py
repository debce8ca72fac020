"""Why a store may not be written (RocketMQ's RunningFlags), kept in memory only."""

from __future__ import annotations

from typing import final

__all__ = ["RunningFlags"]

NOT_READABLE = 1
NOT_WRITEABLE = 2
WRITE_LOGICS_QUEUE_ERROR = 4
WRITE_INDEX_FILE_ERROR = 8
DISK_FULL = 16


@final
class RunningFlags:
    """A set of reasons, each with the sentence that says what happened."""

    def __init__(self) -> None:
        self.bits = 0
        self._reasons: dict[int, str] = {}

    def set(self, flag: int, reason: str) -> None:
        """Note a reason; the first sentence for a flag stays."""
        self._reasons.setdefault(flag, reason)
        self.bits |= flag

    def clear(self, flag: int) -> None:
        """Drop a reason."""
        self._reasons.pop(flag, None)
        self.bits &= ~flag

    @property
    def reason(self) -> str:
        """All sentences."""
        return "; ".join(self._reasons.values())

    def is_writeable(self, *, though_full: bool = False) -> bool:
        """Whether messages may be put; ``though_full`` also on a disk above its warning level."""
        return not self.bits & ~(NOT_READABLE | (DISK_FULL if though_full else 0))

    def is_readable(self) -> bool:
        """Whether messages may be read."""
        return not self.bits & NOT_READABLE
