"""Names of Lite topics: each is an LMQ queue ``%LMQ%$PARENT$NAME`` of a parent topic of ``message.type=LITE``."""

from __future__ import annotations

import re
from typing import Final

from tailrace.formats.names import LMQ_PREFIX

__all__ = [
    "LITE_PREFIX", "consistent_hash", "is_lite_name", "is_lite_queue", "lite_queue", "lite_topic_of",
    "parent_of", "parent_prefix",
]

SEPARATOR: Final = "$"
LITE_PREFIX: Final = f"{LMQ_PREFIX}{SEPARATOR}"
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]+")
_MASK: Final = (1 << 64) - 1
_TWO_31: Final = float(1 << 31)


def is_lite_name(name: str) -> bool:
    """Return whether a Lite topic may have this name: letters, digits, ``-`` and ``_``."""
    return _NAME.fullmatch(name) is not None


def lite_queue(parent: str, name: str) -> str:
    """Return the LMQ queue of a Lite topic."""
    return f"{LITE_PREFIX}{parent}{SEPARATOR}{name}"


def parent_prefix(parent: str) -> str:
    """Return the text with which the queues of all Lite topics of a parent topic begin."""
    return f"{LITE_PREFIX}{parent}{SEPARATOR}"


def is_lite_queue(topic: str) -> bool:
    """Return whether a topic has the prefix of the queues of Lite topics."""
    return topic.startswith(LITE_PREFIX)


def parent_of(queue: str) -> str:
    """Return the parent topic of the queue of a Lite topic; "" for any other topic."""
    return _parts(queue)[0]


def lite_topic_of(queue: str) -> str:
    """Return the name of the Lite topic of a queue; "" for any other topic."""
    return _parts(queue)[1]


def _parts(queue: str) -> tuple[str, str]:
    if not queue.startswith(LITE_PREFIX):
        return "", ""
    parent, _, name = queue[len(LITE_PREFIX):].partition(SEPARATOR)
    return (parent, name) if parent and name and SEPARATOR not in name else ("", "")


def consistent_hash(value: int, buckets: int) -> int:
    """Return the bucket of a number, as Guava's Hashing.consistentHash: few numbers move when buckets are added.

    Message groups and Lite topics choose their queue, and so their broker, by the hash code of their name.
    """
    state, found = value & _MASK, 0
    while True:
        state = (2862933555777941757 * state + 1) & _MASK
        step = (found + 1) / (((state >> 33) + 1) / _TWO_31)
        if step >= buckets:
            return found
        found = int(step)
