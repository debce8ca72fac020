"""The state file ``config/tailrace-min-offsets.json``: logical minimum offsets, and deleted topics.

Each logical minimum has a position of the log: all released messages of the queue are before it. So the
file hides nothing new from a queue that was deleted and started again by a program that does not know
this file, or that lost its end in a power failure.

A deleted topic is in the file with the end of its life (``store.lives``): ``deletedTopics`` has the position of
the log that all its messages are before, and ``nextOffsets`` where each of its queues begins again. So queues that
are rebuilt from the log do not bring it back. A file of an earlier release has no ``nextOffsets``; then queues begin
again at 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from tailrace.env.filesystem import FileSystem
from tailrace.env.whole_files import read_if_there
from tailrace.formats import fastjson, filenames
from tailrace.store.lives import Ended

__all__ = [
    "LogicalMin", "decode_ended", "decode_minima", "encode_ended", "encode_minima", "read_ended", "read_minima",
]

_MINIMA: Final = "minOffsets"
_DELETED: Final = "deletedTopics"
_BEGINS: Final = "nextOffsets"

QueueKey = tuple[str, int]


class LogicalMin(NamedTuple):
    """A queue has released its messages below ``offset``; all of them are before ``phy_offset`` in the log."""

    offset: int
    phy_offset: int


def encode_minima(minima: Mapping[QueueKey, LogicalMin]) -> dict[str, Any]:
    """Return the logical minima as members of the state file."""
    return {_MINIMA: fastjson.nested((topic, str(queue), list(low)) for (topic, queue), low in sorted(minima.items()))}


def decode_minima(value: dict[str, Any]) -> dict[QueueKey, LogicalMin]:
    """Remove from ``value`` what ``encode_minima`` wrote and return it, without entries of another form."""
    return {
        (topic, int(queue)): LogicalMin(*low) for topic, queue, low in fastjson.pairs_of(value.pop(_MINIMA, None))
        if filenames.is_number(queue) and isinstance(low, list) and len(low) == 2 and all(map(_is_place, low))}


def encode_ended(ended: Mapping[str, Ended]) -> dict[str, Any]:
    """Return the deleted topics as members of the state file."""
    found = sorted(ended.items())
    return {
        _DELETED: {topic: one.position for topic, one in found},
        _BEGINS: fastjson.nested(
            (topic, str(queue_id), offset) for topic, one in found for queue_id, offset in sorted(one.begins.items()))}


def decode_ended(value: dict[str, Any]) -> dict[str, Ended]:
    """Remove from ``value`` what ``encode_ended`` wrote and return it, without entries of another form."""
    positions, begins = value.pop(_DELETED, None), dict[str, dict[int, int]]()
    for topic, queue, offset in fastjson.pairs_of(value.pop(_BEGINS, None)):
        if filenames.is_number(queue) and _is_place(offset):
            begins.setdefault(topic, {})[int(queue)] = offset
    return {
        str(topic): Ended(place, begins.get(str(topic), {}))
        for topic, place in (positions if isinstance(positions, dict) else {}).items() if _is_place(place)}


def _is_place(value: Any) -> bool:
    return isinstance(value, int) and value >= 0


def read_minima(file_system: FileSystem, root: str) -> dict[QueueKey, LogicalMin]:
    """Return the logical minima of a directory that is only read."""
    return decode_minima(_read_state(file_system, root))


def read_ended(file_system: FileSystem, root: str) -> dict[str, Ended]:
    """Return the deleted topics of a directory."""
    return decode_ended(_read_state(file_system, root))


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
