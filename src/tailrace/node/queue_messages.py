"""The messages of a queue one after the other, for ``MessageStore.read``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from tailrace.formats.commitlog import LMQ_PREFIX, decode_message
from tailrace.formats.message_fields import decode_when_used
from tailrace.model import GetMessageResult, MessageExt

__all__ = ["READ_BYTES", "messages_of"]

READ_BYTES: Final = 1 << 20
_READ_COUNT: Final = 32


def messages_of(
    get: Callable[[int, int], GetMessageResult], topic: str, offset: int, until: int, count: int
) -> Iterator[MessageExt]:
    """Yield at most ``count`` messages with queue offsets from ``offset`` on, read below ``until``.

    ``get`` takes an offset and the number of messages to read. A message is decoded when its fields are
    used. Not so for an LMQ queue: the topics of its records are verified by no checksum.
    """
    decode = decode_message if topic.startswith(LMQ_PREFIX) else decode_when_used
    while offset < until and count > 0:
        result = get(offset, min(_READ_COUNT, count))
        for data in result.records:
            count -= 1
            yield decode(data)
        if result.next_begin_offset <= offset:
            return
        offset = result.next_begin_offset
