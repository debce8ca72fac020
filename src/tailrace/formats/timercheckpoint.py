"""``config/timercheck`` (RocketMQ's TimerCheckpoint.java): 4096 bytes, seven fields, then zeros.

It has no checksum, so it is only a hint: recovery is right even if it is missing, old or damaged.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from tailrace.formats._layout import Layout

__all__ = ["TIMER_CHECKPOINT", "TIMER_CHECKPOINT_FILE_SIZE", "TimerCheckpointFields"]


class TimerCheckpointFields(NamedTuple):
    """Durable positions of the timer services."""

    last_read_time_ms: Annotated[int, "q", "i8", "slots before this time are delivered, ms"]
    last_timer_log_flush_pos: Annotated[int, "q", "i8", "timer log position that is flushed"]
    last_timer_queue_offset: Annotated[
        int, "q", "i8", "offset of the timer queue up to which messages are in the wheel"]
    master_timer_queue_offset: Annotated[int, "q", "i8", "the same, as the master says"]
    state_version: Annotated[int, "q", "i8", "DataVersion: state machine version"]
    timestamp: Annotated[int, "q", "i8", "DataVersion: time of the last change, ms"]
    counter: Annotated[int, "q", "i8", "DataVersion: number of changes"]


TIMER_CHECKPOINT: Final = Layout(TimerCheckpointFields, size=56)
TIMER_CHECKPOINT_FILE_SIZE: Final = 4096
