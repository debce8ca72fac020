"""The checkpoint file (RocketMQ's StoreCheckpoint.java): 4096 bytes, six fields, then zeros.

It has no checksum, so it is only a hint: recovery is right even if it is missing, old or damaged.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from tailrace.formats._layout import Layout

__all__ = ["CHECKPOINT", "CHECKPOINT_FILE_SIZE", "Checkpoint"]


class Checkpoint(NamedTuple):
    """Up to where log, queues and index are durable."""

    physic_msg_timestamp: Annotated[int, "q", "i8", "store time up to which the log is flushed, ms"]
    logics_msg_timestamp: Annotated[
        int, "q", "i8", "store time up to which queue units are flushed, ms"
    ]
    index_msg_timestamp: Annotated[
        int, "q", "i8", "end time of the last full index file that is flushed, ms"
    ]
    master_flushed_offset: Annotated[int, "q", "i8", "replication; 0 here"]
    confirm_phy_offset: Annotated[int, "q", "i8", "start of the last valid record seen by recovery"]
    logics_physical_offset: Annotated[
        int, "q", "i8", "start of the last record whose queue unit is flushed; since 5.5.0"
    ]


CHECKPOINT: Final = Layout(Checkpoint, size=48)
CHECKPOINT_FILE_SIZE: Final = 4096
