"""The state file ``config/tailrace-min-offsets.json``: logical minimum offsets, and deleted topics.

Each logical minimum has a position of the log: all released messages of the queue are before it. So the
file hides nothing new from a queue that was deleted and started again by a program that does not know
this file, or that lost its end in a power failure.

A deleted topic is in the file until its messages have left the log, so that queues which are rebuilt from
the log do not bring it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from tailrace.env.filesystem import FileSystem
from tailrace.env.whole_files import read_if_there
from tailrace.formats import fastjson, filenames
from tailrace.formats.consumequeue import PRE_BLANK_SIZE, CqUnit

__all__ = [
    "DELETED", "LogicalMin", "decode_deleted", "decode_minima", "encode_minima", "is_deleted",
    "read_deleted", "read_minima",
]

_MINIMA: Final = "minOffsets"
DELETED: Final = "deletedTopics"

QueueKey = tuple[str, int]


class LogicalMin(NamedTuple):
    """A queue has released its messages below ``offset``; all of them are before ``phy_offset`` in the log."""

    offset: int
    phy_offset: int


def encode_minima(minima: Mapping[QueueKey, LogicalMin]) -> dict[str, Any]:
    """Return the logical minima as members of the state file."""
    found: dict[str, dict[str, list[int]]] = {}
    for (topic, queue_id), low in sorted(minima.items()):
        found.setdefault(topic, {})[str(queue_id)] = list(low)
    return {_MINIMA: found}


def decode_minima(value: dict[str, Any]) -> dict[QueueKey, LogicalMin]:
    """Remove from ``value`` what ``encode_minima`` wrote and return it, without entries of another form."""
    found = {}
    table = value.pop(_MINIMA, None)
    for topic, queues in (table if isinstance(table, dict) else {}).items():
        for queue, low in (queues if isinstance(queues, dict) else {}).items():
            if filenames.is_number(str(queue)) and isinstance(low, list) and len(low) == 2 and all(
                isinstance(number, int) and number >= 0 for number in low
            ):
                found[str(topic), int(queue)] = LogicalMin(*low)
    return found


def decode_deleted(value: dict[str, Any]) -> dict[str, int]:
    """Remove the deleted topics from ``value``; return for each the position that all its messages are before."""
    table = value.pop(DELETED, None)
    return {
        str(topic): place for topic, place in (table if isinstance(table, dict) else {}).items()
        if isinstance(place, int) and place >= 0}


def read_minima(file_system: FileSystem, root: str) -> dict[QueueKey, LogicalMin]:
    """Return the logical minima of a directory that is only read."""
    return decode_minima(_read_state(file_system, root))


def read_deleted(file_system: FileSystem, root: str) -> dict[str, int]:
    """Return the deleted topics of a directory whose messages may still be in the log."""
    return decode_deleted(_read_state(file_system, root))


def is_deleted(deleted: Mapping[str, int], topic: str, last: CqUnit) -> bool:
    """Return True if a queue with the last unit ``last`` has only messages from before its topic was deleted."""
    return last.size != PRE_BLANK_SIZE and last.phy_offset < deleted.get(topic, -1)


def _read_state(file_system: FileSystem, root: str) -> dict[str, Any]:
    """Return the state file, or its backup if the file cannot be read, or nothing."""
    path = f"{root}/{filenames.CONFIG}/{filenames.MIN_OFFSETS}"
    for name in (path, f"{path}.bak"):
        try:
            value = fastjson.loads(read_if_there(file_system, name) or b"")
        except ValueError:
            continue
        if isinstance(value, dict):
            return value
    return {}
