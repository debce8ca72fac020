"""Properties of a message that is stored again: for a retry, as a dead letter, among the parked ones.

A copy has more properties than its message, such as its original topic and its group, and a record has room for
32,767 bytes. So a send may have fewer bytes (`SENT_PROPERTIES_MAX`), and a message of an older release or of a Java
broker that is longer loses properties in its copy (`fitting`); otherwise it could never be retried.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tailrace.formats import names as N
from tailrace.formats.commitlog import CRC_PROPERTY_LENGTH, MAX_PROPERTIES_LENGTH, MAX_TOPIC_LENGTH

__all__ = ["COPY_ROOM", "LEFT_OUT", "SENT_PROPERTIES_MAX", "fitting", "room_to_wait"]

COPY_ROOM: Final = 1024
"""Upper bound of the bytes that all copies of a message add: two names of topics and one of a group, the id of the
original message, the queue, level and times of a delay, and the checksum."""
SENT_PROPERTIES_MAX: Final = MAX_PROPERTIES_LENGTH - COPY_ROOM
"""Largest size of the properties of a message that is sent, in bytes."""
LEFT_OUT: Final = "TAILRACE_LEFT_OUT"
"""Property of a copy: names of the properties of its message that it does not have, separated by commas."""
_NAMES_MAX: Final = 200
_MARK_MAX: Final = len(LEFT_OUT) + 2 + _NAMES_MAX
_FIRST: Final = frozenset({N.MSG_REGION, N.TRACE_ON, N.CLUSTER, N.TRACE_CONTEXT})
"""Properties that a broker adds for traces. A copy does without them before it does without one of the producer."""
_LAST: Final = (N.UNIQ_KEY, N.TAGS, N.KEYS)
"""Properties of the producer that filters and look-ups use, in the order in which a copy keeps them."""


def room_to_wait(topic: str) -> int:
    """Return the bytes that a message for this topic needs in addition while it waits at a delay level."""
    return len("REAL_TOPIC..") + min(len(topic.encode()), MAX_TOPIC_LENGTH) + len("REAL_QID..2147483647")


def fitting(
    properties: Mapping[str, str], keep: frozenset[str] | set[str], room: int = 0
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the properties of a copy that fit a record, and the names of the producer's that do not.

    Those in ``keep`` are never left out. ``room`` is the number of bytes that something else adds later. The largest
    properties are left out first, and those that filters and look-ups use last. A copy without some of the producer's
    properties has their names in `LEFT_OUT`.
    """
    sizes = {name: len(name.encode()) + len(value.encode()) + 2 for name, value in properties.items()}
    over = sum(sizes.values()) + room + CRC_PROPERTY_LENGTH + 1 - MAX_PROPERTIES_LENGTH
    if over <= 0:
        return dict(properties), ()

    def rank(name: str) -> tuple[int, int]:
        if name in _FIRST:
            return -1, 0
        return (len(_LAST) - _LAST.index(name) if name in _LAST else 0), -sizes[name]

    made = dict(properties)
    left_out: list[str] = []
    for name in sorted((name for name in properties if name not in keep), key=rank):
        if over <= 0:
            break
        if name not in _FIRST and not left_out:
            over += _MARK_MAX
        over -= sizes[name]
        del made[name]
        if name not in _FIRST:
            left_out.append(name)
    if left_out:
        names = ",".join(left_out).encode()[:_NAMES_MAX].decode(errors="ignore")
        made[LEFT_OUT] = names
    return made, tuple(left_out)
