"""The ConsumeQueue unit (RocketMQ's ConsumeQueue.java): unit ``i`` is at byte ``20 * i``."""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from tailrace.formats._layout import Layout

__all__ = ["CQ_UNIT", "PRE_BLANK", "PRE_BLANK_SIZE", "CqUnit"]


class CqUnit(NamedTuple):
    """Where a message of a queue is."""

    phy_offset: Annotated[int, "q", "i8", "position of the record in the CommitLog"]
    size: Annotated[int, "i", "i4", "bytes of the record"]
    tags_code: Annotated[
        int, "q", "i8", "Java hash of the tag, 0 without one; deliver time in SCHEDULE_TOPIC_XXXX"
    ]


CQ_UNIT: Final = Layout(CqUnit, size=20)
PRE_BLANK_SIZE: Final = 0x7FFFFFFF
PRE_BLANK: Final = CQ_UNIT.pack(0, PRE_BLANK_SIZE, 0)
"""Fills the first file of a queue that starts above offset 0, up to its first unit."""
