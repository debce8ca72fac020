"""Read the messages of a queue one after the other, for ``MessageStore.read``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from tailrace.formats.commitlog import decode_message
from tailrace.formats.inner_batch import unwrapped
from tailrace.formats.message_fields import decode_when_used
from tailrace.formats.names import LMQ_PREFIX
from tailrace.model import GetMessageResult, MessageExt

__all__ = ["READ_BYTES", "messages_of"]

READ_BYTES: Final = 1 << 20
_READ_COUNT: Final = 32


def messages_of(
    get: Callable[[int, int], GetMessageResult], topic: str, offset: int, until: int, most: int | None, *,
    has_batches: bool = False,
) -> Iterator[MessageExt]:
    """Yield the messages with queue offsets in [``offset``, ``until``).

    ``get`` takes an offset and the number of messages to read, at most ``most`` at a time. The fields of a message are
    decoded when they are first used; messages of an LMQ queue are decoded immediately, because no checksum covers the
    topics of their records. With ``has_batches`` the messages of inner batches are yielded instead of their records.
    """
    decode = decode_message if has_batches or topic.startswith(LMQ_PREFIX) else decode_when_used
    wanted, count = range(offset, until), _READ_COUNT if most is None else min(_READ_COUNT, most)
    while offset < until:
        result = get(offset, min(count, until - offset))
        for message in map(decode, result.records):
            if has_batches:
                yield from (one for one in unwrapped(message) if one.queue_offset in wanted)
            else:
                yield message
        if result.next_begin_offset <= offset:
            return
        offset = result.next_begin_offset
