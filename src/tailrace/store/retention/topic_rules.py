"""How long topics keep their messages: attributes of topics in, limits and needs out. Nothing here does I/O.

A topic may keep its messages shorter or longer than ``fileReservedTime``:

    reserve.time     hours (RocketMQ's name); -1: not set
    retention.ms     milliseconds, wins over reserve.time; -1: as long as there is room
    retention.bytes  bytes of records that a queue keeps at most; -1: any number

A message that its topic has released is below the logical minimum offset of its queue
(``store.retention.min_offsets``): still in the log, but not shown. A CommitLog file may be deleted when no
topic needs a message of it any more; ``TopicNeeds`` passes that to ``store.retention.rules``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from tailrace.config import LONG_MAX, whole_number

__all__ = [
    "NOWHERE", "RESERVE_TIME", "RETENTION_BYTES", "RETENTION_MS", "TopicLimits", "TopicNeeds", "topic_limits",
    "topic_needs",
]

RESERVE_TIME: Final = "reserve.time"
RETENTION_MS: Final = "retention.ms"
RETENTION_BYTES: Final = "retention.bytes"
NOWHERE: Final = (1 << 63) - 1
"""A position that no file reaches."""
_HOUR_MS: Final = 3_600_000


class TopicLimits(NamedTuple):
    """Limits from the attributes of a topic; None for a limit that is not set."""

    keep_ms: int | None = None
    """-1: as long as there is room."""
    keep_bytes: int | None = None
    rule: str = ""
    """The attribute that sets ``keep_ms``, with its value."""


class TopicNeeds(NamedTuple):
    """Which part of the log the topics need."""

    own_from: int = NOWHERE
    """First position that a topic with a time of its own keeps."""
    own_holder: str = ""
    default_from: int = NOWHERE
    """First message of the topics for which ``fileReservedTime`` counts."""


def topic_limits(attributes: Mapping[str, str]) -> TopicLimits:
    """Return the limits from the attributes of a topic. Raises ValueError naming an invalid number."""
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


def topic_needs(limits: Mapping[str, TopicLimits], firsts: Iterable[tuple[str, int]]) -> TopicNeeds:
    """Return what the topics need. ``firsts`` has the topic and the first position of each queue, or NOWHERE."""
    own_from, holder, default_from = NOWHERE, "", NOWHERE
    for topic, first in firsts:
        limit = limits.get(topic)
        if limit is None or limit.keep_ms is None:
            default_from = min(default_from, first)
        elif first < own_from:
            own_from, holder = first, f"{topic} ({limit.rule})"
    return TopicNeeds(own_from, holder, default_from)


def _number(attributes: Mapping[str, str], name: str) -> int | None:
    text = attributes.get(name)
    if text is None:
        return None
    value = -1 if text == "-1" else whole_number(text)
    if value is None:
        raise ValueError(f"{name}={text} is not a whole number from -1 to {LONG_MAX}")
    return value
