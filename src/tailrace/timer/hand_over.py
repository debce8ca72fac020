"""What a message of a delay level becomes when its CommitLog file must go before it is due.

The deliver time of a level's message is its store time and the level's delay, so the same record at the
end of the log would be late by what it has waited already. It becomes a timer message of the same
moment instead, as if its producer had named that. Without the timer wheel it goes to the least level
that lasts as long as what is left: late by the difference, never early.
"""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.model import MessageExt, MessageExtBrokerInner
from tailrace.store.dispatch import SCHEDULE_TOPIC
from tailrace.timer.parking import inner_message
from tailrace.timer.properties import (
    DELAY,
    DELIVER_PROPERTIES,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    TIMER_TOPIC,
    slot_ms,
)

__all__ = ["as_delayed", "as_timer"]


def as_timer(message: MessageExt, due_ms: int, precision_ms: int) -> MessageExtBrokerInner:
    """A timer message that is due then; ``REAL_TOPIC`` and ``REAL_QID`` are there already.

    Without its level: a Java broker would send it back there when it is delivered.
    """
    dropped = (DELAY, *DELIVER_PROPERTIES)
    properties = {name: text for name, text in message.properties.items() if name not in dropped}
    properties[TIMER_DELIVER_MS] = str(due_ms)
    properties[TIMER_OUT_MS] = str(slot_ms(due_ms, precision_ms))
    return inner_message(message, TIMER_TOPIC, 0, properties)


def as_delayed(message: MessageExt, left_ms: int, levels: Sequence[int]) -> MessageExtBrokerInner:
    """The message on the level whose delay fits best; ``levels`` are delays in ms, one not below."""
    _, level = min((delay, number) for number, delay in enumerate(levels, 1) if delay >= left_ms)
    return inner_message(
        message, SCHEDULE_TOPIC, level - 1, {**message.properties, DELAY: str(level)})
