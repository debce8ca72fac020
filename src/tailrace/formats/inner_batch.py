"""Inner batches: a record of a topic with ``queue.type=BatchCQ`` whose body has several messages.

The body has the form of a batch request. The property INNER_NUM is the number of messages, INNER_BASE the queue
offset of the first one; the other messages have the queue offsets after it. Keys, tag and other properties of the
record belong to the whole batch.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from tailrace.errors import MessageIllegalError
from tailrace.formats.commitlog import CRC_MASK, SysFlag, decode_batch, decode_properties
from tailrace.formats.names import INNER_BASE, INNER_NUM
from tailrace.model import MessageExt

__all__ = [
    "INNER_BASE_LENGTH", "INNER_BATCH_BITS", "INNER_NUM_MAX", "MIN_ITEM_LENGTH", "inner_num", "unwrapped",
]

INNER_NUM_MAX: Final = 32767
INNER_BASE_LENGTH: Final = len(INNER_BASE) + 1 + 19 + 1
INNER_BATCH_BITS: Final = SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP
MIN_ITEM_LENGTH: Final = 22
"""Length of a message of a batch with an empty body and no properties."""


def inner_num(properties: bytes) -> int:
    """Return the number of messages of an inner batch from the stored properties of its record.

    Return 1 if the properties have no valid number, as RocketMQ does.
    """
    found = decode_properties(properties)
    count = found.get(INNER_NUM, "")
    if not (count.isascii() and count.isdigit() and len(count) <= 5) or not "0" <= found.get(INNER_BASE, "")[:1] <= "9":
        return 1
    return int(count) if 1 <= int(count) <= INNER_NUM_MAX else 1


def unwrapped(message: MessageExt) -> Iterator[MessageExt]:
    """Yield the messages of a record: itself, or those of an inner batch.

    They have the position, hosts and times of the record, and properties of their own. A record whose body
    is not a batch is returned unchanged.
    """
    if message.sys_flag & INNER_BATCH_BITS != INNER_BATCH_BITS:
        yield message
        return
    try:
        items = decode_batch(message.body)
    except MessageIllegalError:
        yield message
        return
    for number, (flag, body, properties) in enumerate(items):
        yield replace(
            message, queue_offset=message.queue_offset + number, flag=flag, body=body,
            body_crc=zlib.crc32(body) & CRC_MASK, properties=decode_properties(properties))
