"""Bytes of the messages of a queue, estimated from its last units, so that the answer does not read the queue."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from tailrace.formats.consumequeue import PRE_BLANK_SIZE
from tailrace.store.consume_queue import ConsumeQueue

__all__ = ["QueueSize", "queue_size"]

_LOOK: Final = 1024
"""Number of units that are looked at: 20 KiB of a queue."""


class QueueSize(NamedTuple):
    """Bytes of the records of a queue."""

    size_bytes: int
    is_exact: bool
    """False if the size is that of the last messages, times the number of all."""


def queue_size(queue: ConsumeQueue, low: int) -> QueueSize:
    """Return the size of the messages from ``low`` to the end of a queue."""
    high = queue.max_offset
    first = max(low, high - _LOOK)
    size = messages = 0
    for _, units in queue.runs(first, high):
        written = units[units["size"] != PRE_BLANK_SIZE]
        records = written[np.unique(written["phy_offset"], return_index=True)[1]]  # a batch has several messages
        size, messages = size + int(records["size"].sum()), messages + len(written)
    if not messages:
        return QueueSize(0, is_exact=True)
    return QueueSize(size * (high - low) // messages if first > low else size, first == low)
