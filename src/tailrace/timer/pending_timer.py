"""A message that waits for its time, or was parked. An open store, a directory and ``tailrace timers`` show it so."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from tailrace.formats.names import (
    DELAY,
    REAL_QID,
    REAL_TOPIC,
    TIMER_OUT_MS,
    TIMER_ROLL_TIMES,
    UNIQ_KEY,
)
from tailrace.model import MessageExt
from tailrace.timer.properties import TIMER_PARKED_REASON, due_ms

__all__ = [
    "OVERDUE", "PARKED", "PENDING", "UNREADABLE", "PendingTimer", "parked_timer", "pending_timer", "unreadable_timer",
]

PENDING: Final = "pending"
OVERDUE: Final = "overdue"
"""A pending timer whose time has passed: a server delivers it after its start, or within a second."""
PARKED: Final = "parked"
UNREADABLE: Final = "unreadable"


class PendingTimer(NamedTuple):
    """A timer, or a message of a delay level, that is not delivered yet, or that was parked."""

    due_ms: int
    topic: str
    queue_id: int
    uniq_key: str
    keys: str
    phy_offset: int
    rounds: int
    """Number of times that a far timer was put on the timer topic again."""
    level: int
    """Its delay level, 0 for a timer."""
    timer_log_pos: int = -1
    """Position of its unit in the timer log; -1 if it has none, or if the log was not searched."""
    state: str = PENDING
    """``pending``; ``parked`` if it is in ``%DLQ%TAILRACE_TIMER`` and is not delivered; ``unreadable`` if its record
    cannot be read at the moment, so that only position, level and about the due time are known."""
    reason: str = ""
    """Why it was parked, or cannot be read."""

    def is_overdue(self, now_ms: int) -> bool:
        """Return whether it is pending although its time has passed."""
        return self.state == PENDING and self.due_ms <= now_ms

    def line(self, now_ms: int) -> dict[str, Any]:
        """Return the line of ``tailrace timers --json``, where a pending timer can be ``overdue``."""
        return {"timer": {
            "dueMs": self.due_ms, "topic": self.topic, "queueId": self.queue_id,
            "uniqKey": self.uniq_key, "keys": self.keys, "physicalOffset": self.phy_offset,
            "timerLogPos": self.timer_log_pos, "roll": self.rounds,
            "state": OVERDUE if self.is_overdue(now_ms) else self.state,
            **({"reason": self.reason} if self.reason else {}),
        }}


def pending_timer(
    message: MessageExt, due_ms: int, *, level: int = 0, timer_log_pos: int = -1
) -> PendingTimer:
    """Return the pending timer of a message on the timer topic, or in a delay level."""
    properties = message.properties
    return PendingTimer(
        due_ms, properties.get(REAL_TOPIC, ""), _number(properties.get(REAL_QID)),
        properties.get(UNIQ_KEY, ""), properties.get("KEYS", ""), message.phy_offset,
        0 if level else _number(properties.get(TIMER_ROLL_TIMES)), level, timer_log_pos)


def unreadable_timer(phy_offset: int, due_ms: int, error: OSError, *, level: int = 0) -> PendingTimer:
    """Return the form of a message that cannot be read."""
    return PendingTimer(due_ms, "", 0, "", "", phy_offset, 0, level, state=UNREADABLE, reason=str(error))


def parked_timer(message: MessageExt, grain_ms: int) -> PendingTimer:
    """Return the form of a message in the topic of parked messages.

    Its due time is that of a timer, or else the time at which it was parked.
    """
    properties = message.properties
    try:
        due = due_ms(properties, int(properties[TIMER_OUT_MS]), message.store_timestamp, grain_ms)
    except (KeyError, ValueError):
        due = message.store_timestamp
    level = 0 if TIMER_OUT_MS in properties else _number(properties.get(DELAY))
    return pending_timer(message, due, level=level)._replace(
        state=PARKED, reason=properties.get(TIMER_PARKED_REASON, ""))


def _number(text: str | None) -> int:
    try:
        return int(text or 0)
    except ValueError:
        return 0
