"""How long topics keep their messages: attributes in, logical minimum offsets and needs out.

A topic may keep its messages shorter or longer than ``fileReservedTime``:

    reserve.time     hours (RocketMQ's name); -1: not set
    retention.ms     milliseconds, wins over reserve.time; -1: as long as there is room
    retention.bytes  bytes of records that a queue keeps at most; -1: any

What a queue lets go is below its logical minimum offset: still in the log, but not shown. A CommitLog
file goes when no topic needs a message of it any more: ``TopicNeeds`` tells store.retention.

``config/tailrace-min-offsets.json`` holds the logical minima, each with a position of the log: the
messages that were let go are all before it. So a queue that was deleted and begun again by somebody
who does not know this file, or that lost its end in a power failure, hides nothing new. A deleted
topic is noted there, too, until its messages have left the log: queues that are built anew from the log
must not bring it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from tailrace.config import whole_number
from tailrace.env.filesystem import FileSystem
from tailrace.env.whole_files import read_if_there
from tailrace.formats import fastjson, filenames
from tailrace.formats.consumequeue import PRE_BLANK_SIZE, CqUnit

__all__ = [
    "DELETED", "NOWHERE", "RESERVE_TIME", "RETENTION_BYTES", "RETENTION_MS", "LogicalMin",
    "TopicLimits", "TopicNeeds", "decode_deleted", "decode_minima", "encode_minima", "is_deleted",
    "read_deleted", "read_minima", "topic_limits",
]

RESERVE_TIME: Final = "reserve.time"
RETENTION_MS: Final = "retention.ms"
RETENTION_BYTES: Final = "retention.bytes"
NOWHERE: Final = (1 << 63) - 1
"""A position that no file reaches."""
_HOUR_MS: Final = 3_600_000
_MINIMA: Final = "minOffsets"
DELETED: Final = "deletedTopics"

QueueKey = tuple[str, int]


class TopicLimits(NamedTuple):
    """What the attributes of a topic ask for; None: nothing."""

    keep_ms: int | None = None
    """-1: as long as there is room."""
    keep_bytes: int | None = None
    rule: str = ""
    """The attribute that tells the time, with its value."""


class LogicalMin(NamedTuple):
    """What a queue has let go: messages below an offset, all before a position of the log."""

    offset: int
    phy_offset: int


class TopicNeeds(NamedTuple):
    """Which part of the log topics need."""

    own_from: int = NOWHERE
    """First position that a topic with a time of its own keeps."""
    own_holder: str = ""
    default_from: int = NOWHERE
    """First message of the topics for which ``fileReservedTime`` counts."""


def topic_limits(attributes: Mapping[str, str]) -> TopicLimits:
    """The limits that attributes ask for. Raises ValueError that names what is no number."""
    hours = _number(attributes, RESERVE_TIME)
    keep_ms = _number(attributes, RETENTION_MS)
    rule = ""
    if keep_ms is not None:
        rule = f"{RETENTION_MS}={keep_ms}"
    elif hours is not None and hours >= 0:
        keep_ms, rule = hours * _HOUR_MS, f"{RESERVE_TIME}={hours}"
    keep_bytes = _number(attributes, RETENTION_BYTES)
    return TopicLimits(
        keep_ms, keep_bytes if keep_bytes is not None and keep_bytes >= 0 else None, rule)


def _number(attributes: Mapping[str, str], name: str) -> int | None:
    text = attributes.get(name)
    if text is None:
        return None
    value = -1 if text == "-1" else whole_number(text)
    if value is None:
        raise ValueError(f"{name}={text} is not a whole number from -1 onwards")
    return value


def encode_minima(minima: Mapping[QueueKey, LogicalMin]) -> dict[str, Any]:
    """Members of the state file."""
    found: dict[str, dict[str, list[int]]] = {}
    for (topic, queue_id), low in sorted(minima.items()):
        found.setdefault(topic, {})[str(queue_id)] = list(low)
    return {_MINIMA: found}


def decode_minima(value: dict[str, Any]) -> dict[QueueKey, LogicalMin]:
    """What ``encode_minima`` wrote, taken out of ``value``; what is not of its form is left out."""
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
    """Deleted topics and the position of the log that all their messages are before."""
    table = value.pop(DELETED, None)
    return {
        str(topic): place for topic, place in (table if isinstance(table, dict) else {}).items()
        if isinstance(place, int) and place >= 0}


def read_minima(file_system: FileSystem, root: str) -> dict[QueueKey, LogicalMin]:
    """The logical minima of a directory, for those who only read it."""
    return decode_minima(_read_state(file_system, root))


def read_deleted(file_system: FileSystem, root: str) -> dict[str, int]:
    """The deleted topics of a directory whose messages may still be in the log."""
    return decode_deleted(_read_state(file_system, root))


def is_deleted(deleted: Mapping[str, int], topic: str, last: CqUnit) -> bool:
    """Whether a queue that ends in a unit holds only messages from before its topic was deleted."""
    return last.size != PRE_BLANK_SIZE and last.phy_offset < deleted.get(topic, -1)


def _read_state(file_system: FileSystem, root: str) -> dict[str, Any]:
    """The state file, or its backup."""
    path = f"{root}/{filenames.CONFIG}/{filenames.MIN_OFFSETS}"
    for name in (path, f"{path}.bak"):
        try:
            value = fastjson.loads(read_if_there(file_system, name) or b"")
        except ValueError:
            continue
        if isinstance(value, dict):
            return value
    return {}
