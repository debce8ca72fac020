"""Names below a store root (RocketMQ's StorePathConfigHelper and UtilAll.offset2FileName)."""

from __future__ import annotations

from typing import Final

__all__ = [
    "ABORT", "BATCHCONSUMEQUEUE", "CHECKPOINT", "COMMITLOG", "CONFIG", "CONSUMEQUEUE", "FLUSHED", "FORCED_DELETIONS",
    "GEOMETRY", "INDEX", "LOCK", "MIN_OFFSETS", "OWN", "PROGRESS", "QUARANTINE", "SEGMENT_TRASH", "SERVE",
    "SETTINGS", "STAGING",
    "TIMERCHECK", "TIMERLOG", "TIMERMETRICS", "TIMERWHEEL", "TRANSACTIONMETRICS", "TRASH",
    "file_name_to_offset",
    "is_number", "offset_to_file_name",
]

COMMITLOG: Final = "commitlog"
CONSUMEQUEUE: Final = "consumequeue"
BATCHCONSUMEQUEUE: Final = "batchconsumequeue"
"""Queues of topics with ``queue.type=BatchCQ``."""
INDEX: Final = "index"
CHECKPOINT: Final = "checkpoint"
ABORT: Final = "abort"
LOCK: Final = "lock"
CONFIG: Final = "config"
TIMERWHEEL: Final = "timerwheel"
TIMERLOG: Final = "timerlog"
TIMERCHECK: Final = "timercheck"
"""Below ``config``."""
TIMERMETRICS: Final = "timermetrics"
"""Below ``config``."""
TRANSACTIONMETRICS: Final = "transactionMetrics"
"""Below ``config``."""
MIN_OFFSETS: Final = "tailrace-min-offsets.json"
"""Below ``config``: state of ours."""
OWN: Final = "tailrace"
"""Our own hints and evidence; nothing in it is needed to open a store."""
QUARANTINE: Final = "tailrace/quarantine"
FLUSHED: Final = "tailrace/flushed"
SERVE: Final = "tailrace/serve.json"
PROGRESS: Final = "tailrace/progress"
GEOMETRY: Final = "tailrace/geometry.json"
SETTINGS: Final = "tailrace/settings.json"
STAGING: Final = "tailrace/staging"
TRASH: Final = "tailrace/trash"
FORCED_DELETIONS: Final = "tailrace/forced-deletions.jsonl"
SEGMENT_TRASH: Final = ".tailrace-trash"
"""The same inside a directory of segments on another device. With its dot it sorts before every
segment: a Java broker deletes or refuses what follows a last file of length zero."""

_DIGITS: Final = 20
_OFFSET_MAX: Final = (1 << 63) - 1


def offset_to_file_name(offset: int) -> str:
    """A segment file's name: its first byte's position as 20 decimal digits."""
    return f"{offset:0{_DIGITS}d}"


def is_number(name: str) -> bool:
    """Return whether a name has only ASCII digits; ``str.isdigit`` is also true for others."""
    return name.isascii() and name.isdigit()


def file_name_to_offset(name: str) -> int | None:
    """Return the position that a segment file's name says, None if it is not such a name.

    20 digits can say more than a position can be: those names are not names of segment files either.
    """
    if len(name) != _DIGITS or not name.isascii() or not name.isdigit():
        return None
    offset = int(name)
    return offset if offset <= _OFFSET_MAX else None
