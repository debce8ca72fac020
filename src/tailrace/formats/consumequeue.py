"""Units of queues.

ConsumeQueue (RocketMQ's ConsumeQueue.java): unit ``i`` is at byte ``20 * i``. BatchConsumeQueue
(BatchConsumeQueue.java): a unit has the queue offset of its first message and the number of messages.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from tailrace.formats._layout import Layout

__all__ = [
    "BATCH_CQ_UNIT", "CQ_UNIT", "END_UNIT", "INVALID_POS", "PRE_BLANK", "PRE_BLANK_SIZE", "BatchCqUnit", "CqUnit",
]


class CqUnit(NamedTuple):
    """Position of a message of a queue."""

    phy_offset: Annotated[int, "q", "i8", "position of the record in the CommitLog"]
    size: Annotated[int, "i", "i4", "bytes of the record"]
    tags_code: Annotated[
        int, "q", "i8", "Java hash of the tag, 0 without one; deliver time in SCHEDULE_TOPIC_XXXX"
    ]


CQ_UNIT: Final = Layout(CqUnit, size=20)
PRE_BLANK_SIZE: Final = 0x7FFFFFFF
PRE_BLANK: Final = CQ_UNIT.pack(0, PRE_BLANK_SIZE, 0)
"""Fills the first file of a queue that starts above offset 0, up to its first unit."""


class BatchCqUnit(NamedTuple):
    """Position of the messages of a record: of one message, or of an inner batch."""

    phy_offset: Annotated[int, "q", "i8", "position of the record in the CommitLog"]
    size: Annotated[int, "i", "i4", "bytes of the record"]
    tags_code: Annotated[int, "q", "i8", "Java hash of the tag, 0 without one"]
    store_time: Annotated[int, "q", "i8", "store time of the record in ms"]
    msg_base_offset: Annotated[int, "q", "i8", "queue offset of the first message of the record"]
    batch_size: Annotated[int, "h", "i2", "number of messages of the record"]
    compacted_offset: Annotated[int, "i", "i4", "-1"]
    reserved: Annotated[int, "i", "i4", "0"]


BATCH_CQ_UNIT: Final = Layout(BatchCqUnit, size=46)
INVALID_POS: Final = -1
"""The compacted offset of every unit; only topics with compaction have other values."""
END_UNIT: Final = BATCH_CQ_UNIT.pack(-1, 0, 0, 0, 0, 0, INVALID_POS, 0)
"""Follows the last unit in a full file of a topic with compaction (SparseConsumeQueue.java)."""
