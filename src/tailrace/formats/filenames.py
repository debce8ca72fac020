"""Names below a store root (RocketMQ's StorePathConfigHelper and UtilAll.offset2FileName)."""

from __future__ import annotations

from typing import Final

__all__ = [
    "ABORT", "BATCHCONSUMEQUEUE", "CHECKPOINT", "COMMITLOG", "COMPACTING", "COMPACTION", "COMPACTION_CQ",
    "COMPACTION_LOG", "COMPACTION_POSITIONS", "COMPACTION_REPLACE", "CONFIG", "CONSUMEQUEUE", "FLUSHED",
    "FORCED_DELETIONS", "ACLS", "FORMAT", "INDEX", "LOCK", "MASTER", "MIN_OFFSETS", "OLD_FORMAT", "OWN", "PROGRESS",
    "QUARANTINE", "REPLACED", "SEGMENT_TRASH", "SERVE", "STAGING", "TIMERCHECK", "TIMERLOG", "TIMERMETRICS",
    "TIMERWHEEL",
    "TRANSACTIONMETRICS", "TRASH", "USERS", "WALL_TIMES", "file_name_to_offset", "is_index_name", "is_number",
    "offset_to_file_name",
]

COMMITLOG: Final = "commitlog"
CONSUMEQUEUE: Final = "consumequeue"
BATCHCONSUMEQUEUE: Final = "batchconsumequeue"
"""Queues of topics with ``queue.type=BatchCQ``."""
COMPACTION: Final = "compaction"
COMPACTION_LOG: Final = "compaction/compactionLog"
COMPACTION_CQ: Final = "compaction/compactionCq"
COMPACTION_POSITIONS: Final = "compaction/position-checkpoint"
COMPACTING: Final = "compacting"
"""Below the directory of a queue: files that a compaction writes."""
COMPACTION_REPLACE: Final = "tailrace-replace.json"
"""In the directory of a queue, while compacted files replace the old ones. A Java broker does not start then."""
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
USERS: Final = "tailrace-users.json"
ACLS: Final = "tailrace-acls.json"
"""Below ``config``: users with their passwords, and their permissions."""
MIN_OFFSETS: Final = "tailrace-min-offsets.json"
"""Below ``config``; Java brokers do not use it."""
OWN: Final = "tailrace"
"""Directory of Tailrace's own hints and of the quarantine; no file in it is needed to open a store."""
QUARANTINE: Final = "tailrace/quarantine"
FLUSHED: Final = "tailrace/flushed"
SERVE: Final = "tailrace/serve.json"
PROGRESS: Final = "tailrace/progress"
FORMAT: Final = "tailrace/format.json"
OLD_FORMAT: Final = ("tailrace/geometry.json", "tailrace/settings.json", "tailrace/timer.json")
"""Files of earlier releases that ``FORMAT`` has replaced."""
STAGING: Final = "tailrace/staging"
TRASH: Final = "tailrace/trash"
WALL_TIMES: Final = "tailrace/wall-times.json"
MASTER: Final = "tailrace/master.json"
"""On a slave: its master, and the end of the master's log when it was asked last."""
REPLACED: Final = "tailrace/replaced"
"""On a slave: stores that were moved aside before a new copy, by time."""
FORCED_DELETIONS: Final = "tailrace/forced-deletions.jsonl"
SEGMENT_TRASH: Final = ".tailrace-trash"
"""Trash inside a directory of segments on another device. Its dot sorts it before every segment, because a
Java broker deletes or refuses names that follow a last file of length zero."""

_DIGITS: Final = 20
_INDEX_DIGITS: Final = 17
_OFFSET_MAX: Final = (1 << 63) - 1


def offset_to_file_name(offset: int) -> str:
    """Return the name of a segment file: the position of its first byte as 20 decimal digits."""
    return f"{offset:0{_DIGITS}d}"


def is_number(name: str) -> bool:
    """Return True if a name has only ASCII digits. ``str.isdigit`` is also true for other digits."""
    return name.isascii() and name.isdigit()


def is_index_name(name: str) -> bool:
    """Return True for the name of an index file: 17 digits, the time of its creation."""
    return len(name) == _INDEX_DIGITS and is_number(name)


def file_name_to_offset(name: str) -> int | None:
    """Return the position in the name of a segment file, None for any other name.

    A name of 20 digits above 2^63 - 1 is not the name of a segment file either.
    """
    if len(name) != _DIGITS or not name.isascii() or not name.isdigit():
        return None
    offset = int(name)
    return offset if offset <= _OFFSET_MAX else None
