"""The messages that handlers get, and the calls that acknowledge, repeat or reject them."""

from __future__ import annotations

import asyncio
from typing import Any, Final, final

from faststream.message import StreamMessage, decode_message

from tailrace.client.listening import RetryLater
from tailrace.formats import names as N
from tailrace.model import MessageExt
from tailrace.spellings import Duration

__all__ = ["CONTENT_TYPE", "CORRELATION_ID", "REPLY_TO", "RESERVED", "Incoming", "RocketmqMessage",
           "decode", "decode_batch", "parse", "parse_batch"]

CONTENT_TYPE: Final = "content-type"
CORRELATION_ID: Final = "correlation_id"
REPLY_TO: Final = "reply_to"
RESERVED: Final = N.SYSTEM_PROPERTIES | {
    N.SHARDING_KEY, N.START_DELIVER_TIME, N.TRANSACTION_ID, N.INNER_BASE, N.INNER_MULTI_DISPATCH, N.INNER_NUM,
    "PROPERTY_FORWARD_QUEUE_ID", "REDIRECT", "TIMER_ROLL_LABEL", N.TRANSACTION_CHECK_TIMES,
}
"""Properties that RocketMQ and its clients use; they cannot be headers."""
_OWN: Final = RESERVED | {CONTENT_TYPE, CORRELATION_ID, REPLY_TO}
"""Properties that a handler does not get as headers."""


@final
class Incoming:
    """Messages of one call of a handler, and their outcome: the result of ``settled`` is None if they are consumed."""

    def __init__(self, message: MessageExt, *others: MessageExt) -> None:
        self.message = message
        self.messages = (message, *others)
        """More than one only in a batch."""
        self.settled: asyncio.Future[RetryLater | None] = asyncio.get_running_loop().create_future()

    def settle(self, outcome: RetryLater | None) -> None:
        """Set the outcome of the messages; only the first call has an effect."""
        if not self.settled.done():
            self.settled.set_result(outcome)


class RocketmqMessage(StreamMessage[Incoming]):
    """A message with RocketMQ's fields in ``message``."""

    @property
    def message(self) -> MessageExt:
        """The stored message: topic, tags, keys, queue, offset, number of deliveries before this one.

        It is the first one of a batch.
        """
        return self.raw_message.message

    @property
    def messages(self) -> tuple[MessageExt, ...]:
        """All stored messages of the call."""
        return self.raw_message.messages

    async def ack(self) -> None:
        """Acknowledge the message: it is consumed."""
        self.raw_message.settle(None)
        await super().ack()

    async def nack(self, delay: Duration | None = None) -> None:
        """Deliver the message again after ``delay``; without ``delay`` the time grows with each delivery.

        ``delay`` is in seconds, a timedelta or a text such as ``5m``. After ``max_reconsume_times`` deliveries the
        message becomes a dead letter. Raises ValueError for a negative delay.
        """
        if isinstance(delay, int | float) and not delay >= 0:
            raise ValueError(f"delay={delay!r} must be a number of seconds, 0 or more")
        self.raw_message.settle(RetryLater(after_s=delay))
        await super().nack()

    async def reject(self) -> None:
        """Make the message a dead letter of the group now."""
        self.raw_message.settle(RetryLater(delay_level=-1))
        await super().reject()


async def parse(raw: Incoming) -> RocketmqMessage:
    """Return the message that FastStream's handlers, filters and middlewares see."""
    properties = raw.message.properties
    return RocketmqMessage(
        raw, raw.message.body, headers=_headers(raw.message),
        reply_to=properties.get(N.REPLY_TO_CLIENT) or properties.get(REPLY_TO, ""),
        content_type=properties.get(CONTENT_TYPE),
        correlation_id=properties.get(CORRELATION_ID) or properties.get(N.CORRELATION_ID),
        message_id=raw.message.unique_key or raw.message.msg_id or None)


def _headers(message: MessageExt) -> dict[str, str]:
    return {name: value for name, value in message.properties.items() if name not in _OWN}


async def parse_batch(raw: Incoming) -> RocketmqMessage:
    """Return the message of a batch: bodies and headers of all its messages, the rest of the first one."""
    first = await parse(raw)
    return RocketmqMessage(
        raw, [one.body for one in raw.messages], headers=first.headers,
        batch_headers=[_headers(one) for one in raw.messages], content_type=first.content_type,
        correlation_id=first.correlation_id, message_id=first.message_id)


async def decode_batch(message: StreamMessage[Incoming]) -> Any:
    """Return the decoded bodies, each by its own content type.

    FastStream recognizes a batch by the name of this function.
    """
    return [decode_message(await parse(Incoming(one))) for one in message.raw_message.messages]


async def decode(message: StreamMessage[Any]) -> Any:
    """Return the decoded body."""
    return decode_message(message)
