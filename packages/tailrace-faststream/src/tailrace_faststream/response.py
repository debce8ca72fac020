"""What is published: by a call, or as the result of a handler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from faststream.response import PublishCommand, Response
from faststream.response.publish_type import PublishType
from faststream.response.response import BatchPublishCommand

from tailrace.model import MessageExt
from tailrace.spellings import Duration, Time

__all__ = ["RocketmqPublishCommand", "RocketmqResponse"]


class RocketmqResponse(Response):
    """The result of a handler with RocketMQ's options for its message."""

    def __init__(
        self, body: Any, *, headers: dict[str, Any] | None = None, correlation_id: str | None = None,
        tags: str | None = None, keys: Sequence[str] = (), delay: Duration | None = None,
        ordering_key: str | None = None,
    ) -> None:
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        self.tags = tags
        self.keys = keys
        self.delay = delay
        self.ordering_key = ordering_key

    def as_publish_command(self) -> PublishCommand:
        """Return the command that publishes it."""
        return RocketmqPublishCommand(
            self.body, headers=self.headers, correlation_id=self.correlation_id, tags=self.tags, keys=self.keys,
            delay=self.delay, ordering_key=self.ordering_key)


class RocketmqPublishCommand(BatchPublishCommand):
    """A message, or the messages of a batch, on the way to the producer; middlewares may change them."""

    def __init__(
        self, body: Any, *bodies: Any, topic: str = "", publish_type: PublishType = PublishType.PUBLISH,
        reply_to: str = "", headers: dict[str, Any] | None = None, correlation_id: str | None = None,
        tags: str | None = None, keys: Sequence[str] = (), delay: Duration | None = None,
        deliver_at: Time | None = None, ordering_key: str | None = None, timeout: Duration = 3.0,
        request: MessageExt | None = None,
    ) -> None:
        super().__init__(
            body, *bodies, _publish_type=publish_type, reply_to=reply_to, destination=topic,
            correlation_id=correlation_id, headers=dict(headers or {}))
        self.tags = tags
        self.keys = keys
        self.delay = delay
        self.deliver_at = deliver_at
        self.ordering_key = ordering_key
        self.timeout = timeout
        self.request = request
        """The message that this one answers, if it was sent with ``request``."""

    @classmethod
    def from_cmd(cls, cmd: PublishCommand, *, batch: bool = False) -> RocketmqPublishCommand:
        """Return a command of this class."""
        if isinstance(cmd, cls):
            return cmd
        return cls(
            cmd.body, topic=cmd.destination, publish_type=cmd.publish_type, reply_to=cmd.reply_to, headers=cmd.headers,
            correlation_id=cmd.correlation_id)
