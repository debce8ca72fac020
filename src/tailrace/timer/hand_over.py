"""The new form of a message of a delay level whose CommitLog file must be deleted before it is due.

The deliver time of a message in a level is its store time plus the delay, so the same record at the end of the
log would be late by the time that it has waited already. It becomes a timer message with the same deliver time
instead, as if its producer had set that. Without the timer wheel it is put into the shortest level that lasts at
least as long as the time left: it is late by the difference, never early.
"""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.formats.names import DELAY, TIMER_DELIVER_MS, TIMER_OUT_MS, TIMER_TOPIC
from tailrace.model import MessageExt, MessageExtBrokerInner
from tailrace.store.dispatch import SCHEDULE_TOPIC
from tailrace.timer.parking import inner_message
from tailrace.timer.properties import DELIVER_PROPERTIES, slot_ms

__all__ = ["as_delayed", "as_timer"]


def as_timer(message: MessageExt, due_ms: int, precision_ms: int) -> MessageExtBrokerInner:
    """Return a timer message that is due at the given time; it has ``REAL_TOPIC`` and ``REAL_QID`` already.

    The level is removed: otherwise a Java broker would put the message there again when it is delivered.
    """
    dropped = (DELAY, *DELIVER_PROPERTIES)
    properties = {name: text for name, text in message.properties.items() if name not in dropped}
    properties[TIMER_DELIVER_MS] = str(due_ms)
    properties[TIMER_OUT_MS] = str(slot_ms(due_ms, precision_ms))
    return inner_message(message, TIMER_TOPIC, 0, properties)


def as_delayed(message: MessageExt, left_ms: int, levels: Sequence[int]) -> MessageExtBrokerInner:
    """Return the message for the level whose delay fits best; ``levels`` are delays in ms, at least one long enough."""
    _, level = min((delay, number) for number, delay in enumerate(levels, 1) if delay >= left_ms)
    return inner_message(
        message, SCHEDULE_TOPIC, level - 1, {**message.properties, DELAY: str(level)})
