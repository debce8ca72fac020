"""Options of the job that archives segments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tailrace.errors import ConfigError

__all__ = ["ArchiveOptions"]

_LEAST_PIECE: Final = 1 << 16
_MOST_PIECE: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveOptions:
    """Options of the job: a file holds ``piece_bytes`` of the log, and ``at_once`` segments are planned together.

    With ``lag_ms`` a step also archives what is synced of the segment that is still written, if its oldest message is
    older than half of this time. 0 leaves that segment out.
    """

    piece_bytes: int = 64 << 20
    at_once: int = 2
    verify: bool = True
    lag_ms: int = 0
    tables: tuple[str, str] = ("", "")
    """Catalogue and namespace of the tables to which the segments are added afterwards."""

    def check(self) -> None:
        """Raise ConfigError for invalid values."""
        if not _LEAST_PIECE <= self.piece_bytes <= _MOST_PIECE:
            raise ConfigError(
                f"piece_bytes={self.piece_bytes} is not between {_LEAST_PIECE} and {_MOST_PIECE}")
        if self.at_once < 1:
            raise ConfigError(f"at_once={self.at_once} is not at least 1")
