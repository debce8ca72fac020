"""Read the messages of a queue one after the other, for ``MessageStore.read``."""

from __future__ import annotations

import itertools
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
    get: Callable[[int, int], GetMessageResult], topic: str, offset: int, until: int, count: int, *,
    has_batches: bool = False,
) -> Iterator[MessageExt]:
    """Yield at most ``count`` messages with queue offsets in [``offset``, ``until``).

    ``get`` takes an offset and the number of messages to read. The fields of a message are decoded when they are
    first used; messages of an LMQ queue are decoded immediately, because no checksum covers the topics of their
    records. With ``has_batches`` the messages of inner batches are yielded instead of their records.
    """
    if has_batches:
        found = (one for one in _inner_messages(get, offset, until) if offset <= one.queue_offset < until)
        yield from itertools.islice(found, max(count, 0))
        return
    decode = decode_message if topic.startswith(LMQ_PREFIX) else decode_when_used
    while offset < until and count > 0:
        result = get(offset, min(_READ_COUNT, count))
        for data in result.records:
            count -= 1
            yield decode(data)
        if result.next_begin_offset <= offset:
            return
        offset = result.next_begin_offset


def _inner_messages(
    get: Callable[[int, int], GetMessageResult], offset: int, until: int
) -> Iterator[MessageExt]:
    while offset < until:
        result = get(offset, _READ_COUNT)
        for data in result.records:
            yield from unwrapped(decode_message(data))
        if result.next_begin_offset <= offset:
            return
        offset = result.next_begin_offset
