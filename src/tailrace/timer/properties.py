"""Read the properties of timer messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from tailrace.formats.names import (
    DLQ_GROUP_TOPIC_PREFIX,
    REAL_TOPIC,
    TIMER_DEL_UNIQKEY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS,
    TIMER_OUT_MS,
    TIMER_ROLL_TIMES,
    UNIQ_KEY,
)

__all__ = [
    "DELIVER_PROPERTIES", "PARKED_TOPIC", "Identity", "delete_keys", "due_ms",
    "identity_of", "named_by", "out_ms", "put_back_properties", "slot_ms", "whole_number",
]

PARKED_TOPIC: Final = f"{DLQ_GROUP_TOPIC_PREFIX}TAILRACE_TIMER"
"""Topic of messages that the log always refuses under their own topic, or whose topic was deleted."""
TIMER_PARKED_REASON: Final = "TIMER_PARKED_REASON"
DELIVER_PROPERTIES: Final = (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)
"""Properties that a producer sets; the first one found counts."""


class Identity(NamedTuple):
    """Two records with the same identity are the same timer."""

    real_topic: str
    unique_key: str
    out_ms: int


def whole_number(text: str | None) -> int | None:
    """Return the number in a property, or None if there is no number."""
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None


def out_ms(properties: Mapping[str, str]) -> int | None:
    """Return the slot time of a timer message, ms, or None if it has no valid one."""
    return whole_number(properties.get(TIMER_OUT_MS))


def slot_ms(due: int, precision_ms: int) -> int:
    """Return the slot time for a due time. A multiple of the precision belongs to the slot before."""
    return (due - 1) // precision_ms * precision_ms


def identity_of(properties: Mapping[str, str], out: int) -> Identity | None:
    """Return the identity of a timer, or None without a unique key."""
    unique_key = properties.get(UNIQ_KEY)
    return Identity(properties.get(REAL_TOPIC, ""), unique_key, out) if unique_key else None


def delete_keys(topic: str, unique_key: str, *, append_topic: bool) -> tuple[str, ...]:
    """Return the keys of requests to delete a timer, one request for each key (RocketMQ's buildDeleteKey).

    Releases up to 5.3 compare ``topic+key``, 5.5.0 the bare key or, with
    appendTopicForTimerDeleteKey, ``topic+key``. Each of them ignores the other form.
    """
    whole = f"{topic}+{unique_key}"
    return (whole,) if append_topic else (whole, unique_key)


def named_by(properties: Mapping[str, str], out: int) -> tuple[Identity, ...]:
    """Return the timers that a request to delete names, for both forms of its key.

    Only timers of the topic of the request count: a producer may know, or guess, keys of other topics.
    """
    topic, key = properties.get(REAL_TOPIC, ""), properties.get(TIMER_DEL_UNIQKEY, "")
    keys = dict.fromkeys((key, key.removeprefix(f"{topic}+")))
    return tuple(Identity(topic, name, out) for name in keys)


def due_ms(properties: Mapping[str, str], out: int, store_timestamp: int, grain_ms: int) -> int:
    """Return the millisecond at which a timer is due.

    The slot time was rounded down from it, so it is in ``(out, out + grain]``. If a property of the producer is
    in this range, it counts. A delay counts from the store time of the first record, so a rolled timer gets its
    delivery time as a property. Otherwise the result is the end of the range: late by a part of a slot, never early.
    """
    latest = out + grain_ms
    try:
        if TIMER_ROLL_TIMES in properties and TIMER_DELIVER_MS in properties:
            said = int(properties[TIMER_DELIVER_MS])
        elif TIMER_DELAY_SEC in properties:
            said = store_timestamp + int(properties[TIMER_DELAY_SEC]) * 1000
        elif TIMER_DELAY_MS in properties:
            said = store_timestamp + int(properties[TIMER_DELAY_MS])
        else:
            said = int(properties[TIMER_DELIVER_MS])
    except (KeyError, ValueError):
        return latest
    return said if out < said <= latest else latest


def put_back_properties(
    properties: Mapping[str, str], enqueue_ms: int, dequeue_ms: int, roll_due_ms: int | None
) -> dict[str, str]:
    """Return the properties of a message that leaves the wheel; it keeps all that it had.

    ``roll_due_ms`` is the due time of a message that is put on the timer topic again.
    """
    made = dict(properties)
    made[TIMER_ENQUEUE_MS] = str(enqueue_ms)
    if roll_due_ms is not None:
        made.setdefault(TIMER_DELIVER_MS, str(roll_due_ms))
        made[TIMER_ROLL_TIMES] = str((whole_number(made.get(TIMER_ROLL_TIMES)) or 0) + 1)
    made[TIMER_DEQUEUE_MS] = str(dequeue_ms)
    return made
