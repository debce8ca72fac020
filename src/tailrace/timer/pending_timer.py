"""A message that waits for its time. An open store, a directory and ``tailrace timers`` show it in this form."""

from __future__ import annotations

from typing import Any, NamedTuple

from tailrace.model import MessageExt
from tailrace.timer.properties import REAL_QID, REAL_TOPIC, TIMER_ROLL_TIMES, UNIQ_KEY

__all__ = ["PendingTimer", "pending_timer"]


class PendingTimer(NamedTuple):
    """A timer, or a message of a delay level, that is not delivered yet."""

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

    def line(self) -> dict[str, Any]:
        """Return the line of ``tailrace timers --json``."""
        return {"timer": {
            "dueMs": self.due_ms, "topic": self.topic, "queueId": self.queue_id,
            "uniqKey": self.uniq_key, "keys": self.keys, "physicalOffset": self.phy_offset,
            "timerLogPos": self.timer_log_pos, "roll": self.rounds, "state": "pending",
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


def _number(text: str | None) -> int:
    try:
        return int(text or 0)
    except ValueError:
        return 0
