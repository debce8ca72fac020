"""Pins of delay levels: a message that waits in a level is not deleted by age."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

from tailrace.store.retention.pins import Pin, PinKind
from tailrace.timer.schedule_message_service import ScheduleMessageService

__all__ = ["LevelPins"]


@final
class LevelPins:
    """Pin source of the delay levels.

    A level is delivered in the order of the log, so its first message has the least position.
    """

    def __init__(self, schedule: ScheduleMessageService) -> None:
        self._schedule = schedule

    def __call__(self) -> Iterator[Pin]:
        """Yield a pin for each level that has a message, at the least position that it needs."""
        for level in self._schedule.levels:
            position = self._schedule.first_pending(level)
            if position >= 0:
                yield Pin(PinKind.TIMER, position, f"of delay level {level}")
