"""Delays of any length, although brokers limit the delay of a timer message."""

from __future__ import annotations

import dataclasses
from typing import Final

from tailrace.env.clock import Clock
from tailrace.model import Message, MessageExt

__all__ = ["DUE", "STEP_MS", "at_its_time", "later", "left_ms"]

DUE: Final = "DRAMATIQ_DUE"
"""Property of a message that goes through several timers: when it is due at last, in ms since 1970."""
STEP_MS: Final = 86_400_000
"""Longest delay of one timer message: brokers allow three days by default (timerMaxDelaySec)."""


def later(message: Message, due_ms: int, clock: Clock) -> Message:
    """Return a message that is delivered at a time, or at a step on the way there."""
    left = due_ms - clock.now_ms()
    if left <= 0:
        return message
    if left <= STEP_MS:
        return dataclasses.replace(message, deliver_at=due_ms)
    return dataclasses.replace(
        message, deliver_at=clock.now_ms() + STEP_MS, properties={**message.properties, DUE: str(due_ms)})


def left_ms(message: MessageExt, clock: Clock) -> int:
    """Return the time until a message that was delivered at a step is due; 0 if it is due."""
    due = message.properties.get(DUE, "")
    return max(0, int(due) - clock.now_ms()) if due.isdecimal() else 0


def at_its_time(message: MessageExt, clock: Clock) -> Message:
    """Return a copy of a message that is not due yet, for the next step."""
    copy = Message(topic=message.topic, body=message.body, tags=message.tags, keys=message.keys)
    return later(copy, int(message.properties[DUE]), clock)
