"""From a command of FastStream to a message, and to the broker."""

from __future__ import annotations

import dataclasses
from typing import Any, final

from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.exceptions import IncorrectState

from tailrace.client.arguments import in_s
from tailrace.client.producer import AsyncProducer
from tailrace.client.request_reply import reply_to
from tailrace.client.send_result import SendResult
from tailrace.errors import MessageIllegalError
from tailrace.model import Message
from tailrace_faststream.message import (
    CONTENT_TYPE,
    CORRELATION_ID,
    REPLY_TO,
    RESERVED,
    Incoming,
    decode,
    parse,
)
from tailrace_faststream.response import RocketmqPublishCommand

__all__ = ["BaseProducer", "RocketmqProducer"]


class BaseProducer(ProducerProto[RocketmqPublishCommand]):
    """Encodes messages."""

    def __init__(self, parser: Any = None, decoder: Any = None) -> None:
        self._parser: Any = ParserComposition(parser, parse)
        self._decoder: Any = ParserComposition(decoder, decode)
        self.serializer: Any = None
        self.codec: Any = DefaultCodec()

    async def encoded(self, cmd: RocketmqPublishCommand) -> Message:
        """Return the message of a command. Raises MessageIllegalError for headers that RocketMQ uses."""
        return await self._encoded(cmd, cmd.body)

    async def encoded_batch(self, cmd: RocketmqPublishCommand) -> list[Message]:
        """Return the messages of a batch, with equal headers. Raises MessageIllegalError."""
        return [await self._encoded(cmd, body) for body in cmd.batch_bodies]

    async def _encoded(self, cmd: RocketmqPublishCommand, body: Any) -> Message:
        body, content_type = await self.codec.encode(body, self.serializer)
        headers = {name: str(value) for name, value in (cmd.headers or {}).items()}
        if taken := sorted(RESERVED & headers.keys()):
            raise MessageIllegalError("headers", f"{', '.join(taken)}: RocketMQ uses properties of this name")
        for name, value in (
            (CONTENT_TYPE, content_type), (CORRELATION_ID, cmd.correlation_id), (REPLY_TO, cmd.reply_to),
        ):
            if value:
                headers.setdefault(name, value)
        return Message(
            topic=cmd.destination, body=body, tags=cmd.tags, keys=cmd.keys, properties=headers, delay=cmd.delay,
            deliver_at=cmd.deliver_at)


@final
class RocketmqProducer(BaseProducer):
    """Sends with a client of the event loop in which the broker was connected."""

    def __init__(self, parser: Any = None, decoder: Any = None) -> None:
        super().__init__(parser, decoder)
        self._client: AsyncProducer | None = None

    def connect(self, client: AsyncProducer, serializer: Any, codec: Any) -> None:
        """Send with a client from now on."""
        self._client = client
        self.serializer = serializer
        self.codec = codec or DefaultCodec()

    def disconnect(self) -> None:
        """Send no more."""
        self._client = None

    @property
    def client(self) -> AsyncProducer:
        """The client. Raises IncorrectState before the connect."""
        if self._client is None:
            raise IncorrectState("the broker is not connected; use it as a context manager, or call connect or start")
        return self._client

    async def publish(self, cmd: RocketmqPublishCommand) -> SendResult:
        """Store a message, or send a reply, and return where it is. Raises StoreError."""
        message = await self.encoded(cmd)
        if cmd.request is not None:
            if message.tags or message.keys or message.delay or message.deliver_at or cmd.ordering_key:
                raise MessageIllegalError("reply", "tags, keys, delay and ordering_key are not for replies")
            reply = reply_to(cmd.request, message.body)
            return await self.client.send(
                dataclasses.replace(reply, properties={**message.properties, **reply.properties}))
        return await self.client.send(message, ordering_key=cmd.ordering_key)

    async def publish_batch(self, cmd: RocketmqPublishCommand) -> SendResult:
        """Store messages in one request, all or none, and return where the first one is. Raises StoreError."""
        return await self.client.send_batch(await self.encoded_batch(cmd))

    async def request(self, cmd: RocketmqPublishCommand) -> Incoming:
        """Send a request and return its reply. Raises RequestTimeoutError if none came, or another StoreError."""
        message = await self.encoded(cmd)
        timeout_ms = max(1, round(in_s("timeout", cmd.timeout) * 1000))
        return Incoming(await self.client.request(message, timeout_ms=timeout_ms))
