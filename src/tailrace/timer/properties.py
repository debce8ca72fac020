"""Names of a timer message's properties (RocketMQ's MessageConst) and what they say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

__all__ = [
    "DELIVER_PROPERTIES", "PARKED_TOPIC", "TIMER_TOPIC", "Identity", "delete_keys", "due_ms",
    "identity_of", "named_by", "out_ms", "put_back_properties", "slot_ms",
]

TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
"""Where timer messages wait; queue 0 is its only one."""
PARKED_TOPIC: Final = "%DLQ%TAILRACE_TIMER"
"""Where timers go that the log will never take under their own topic."""
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
DELIVER_PROPERTIES: Final = (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)
"""What a producer sets, the first one found counts."""
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
TIMER_DEL_UNIQKEY: Final = "TIMER_DEL_UNIQKEY"
TIMER_PARKED_REASON: Final = "TIMER_PARKED_REASON"
DELAY: Final = "DELAY"
"""The delay level."""
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QID: Final = "REAL_QID"
UNIQ_KEY: Final = "UNIQ_KEY"


class Identity(NamedTuple):
    """What makes two records the same timer."""

    real_topic: str
    unique_key: str
    out_ms: int


def out_ms(properties: Mapping[str, str]) -> int | None:
    """The slot time of a timer message, ms, or None when it has none that is a number."""
    try:
        return int(properties[TIMER_OUT_MS])
    except (KeyError, ValueError):
        return None


def slot_ms(due: int, precision_ms: int) -> int:
    """The slot time of what is due then: a whole multiple goes into the slot before."""
    return (due - 1) // precision_ms * precision_ms


def identity_of(properties: Mapping[str, str], out: int) -> Identity | None:
    """A timer's identity; None without a unique key."""
    unique_key = properties.get(UNIQ_KEY)
    return Identity(properties.get(REAL_TOPIC, ""), unique_key, out) if unique_key else None


def delete_keys(topic: str, unique_key: str, *, append_topic: bool) -> tuple[str, ...]:
    """What requests to delete a timer say, one request each (RocketMQ's buildDeleteKey).

    Releases up to 5.3 compare ``topic+key``, 5.5.0 the bare key or, with
    appendTopicForTimerDeleteKey, ``topic+key``. Each of them ignores the other form.
    """
    whole = f"{topic}+{unique_key}"
    return (whole,) if append_topic else (whole, unique_key)


def named_by(properties: Mapping[str, str], out: int) -> tuple[Identity, ...]:
    """The timers that a request to delete names, in whichever form its key is.

    Only a timer of the request's own topic: a producer may know, or guess, the keys of other topics.
    """
    topic, key = properties.get(REAL_TOPIC, ""), properties.get(TIMER_DEL_UNIQKEY, "")
    keys = dict.fromkeys((key, key.removeprefix(f"{topic}+")))
    return tuple(Identity(topic, name, out) for name in keys)


def due_ms(properties: Mapping[str, str], out: int, store_timestamp: int, grain_ms: int) -> int:
    """The millisecond at which a timer is due.

    The slot time was rounded down from it, so it is in ``(out, out + grain]``. Within that the
    producer's own property says; a delay counts from the store time of the first record, so a
    timer that is rolled gets its delivery time as a property. When nothing says, it is the end: late
    by a part of a slot, never early.
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
    """Properties of a message that leaves the wheel; everything it had stays on it.

    ``roll_due_ms`` is the due time of one that goes back to the timer topic.
    """
    made = dict(properties)
    made[TIMER_ENQUEUE_MS] = str(enqueue_ms)
    if roll_due_ms is not None:
        made.setdefault(TIMER_DELIVER_MS, str(roll_due_ms))
        try:
            times = int(made.get(TIMER_ROLL_TIMES, "0"))
        except ValueError:
            times = 0
        made[TIMER_ROLL_TIMES] = str(times + 1)
    made[TIMER_DEQUEUE_MS] = str(dequeue_ms)
    return made
