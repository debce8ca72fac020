"""Publishers: decorated functions and persistent publisher objects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, final

from faststream._internal.endpoint.publisher import PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream.response.publish_type import PublishType

from tailrace.client.send_result import SendResult
from tailrace.model import MessageExt
from tailrace.spellings import Duration, Time
from tailrace_faststream.config import RocketmqPublisherConfig
from tailrace_faststream.message import RocketmqMessage
from tailrace_faststream.response import RocketmqPublishCommand

__all__ = ["ReplyPublisher", "RocketmqPublisher"]


@final
class ReplyPublisher(FakePublisher):
    """Publishes the result of a handler: as the reply to a request, or to the topic ``reply_to``."""

    def __init__(self, producer: Any, topic: str, request: MessageExt | None) -> None:
        super().__init__(producer=producer)
        self._topic = topic
        self._request = request

    def patch_command(self, cmd: Any) -> RocketmqPublishCommand:
        """Direct a command."""
        made = RocketmqPublishCommand.from_cmd(super().patch_command(cmd))
        made.destination = self._topic
        made.request = self._request
        return made


class RocketmqPublisher(PublisherUsecase):
    """Publishes to one topic."""

    _outer_config: Any

    def __init__(self, config: RocketmqPublisherConfig, specification: Any) -> None:
        super().__init__(config, specification)
        self._topic = config.topic
        self.tags = config.tags
        self.headers = config.headers
        self.reply_to = config.reply_to

    @property
    def topic(self) -> str:
        """The topic, with the prefixes of routers."""
        return f"{self._outer_config.prefix}{self._topic}"

    async def publish(
        self, message: Any, topic: str = "", *, tags: str | None = None, keys: Sequence[str] = (),
        delay: Duration | None = None, deliver_at: Time | None = None, ordering_key: str | None = None,
        headers: dict[str, str] | None = None, correlation_id: str | None = None, reply_to: str = "",
    ) -> SendResult:
        """Store a message; the arguments are those of `RocketmqBroker.publish`."""
        cmd = RocketmqPublishCommand(
            message, topic=topic or self.topic, tags=tags or self.tags, keys=keys, delay=delay, deliver_at=deliver_at,
            ordering_key=ordering_key, headers={**self.headers, **(headers or {})},
            correlation_id=correlation_id or self._outer_config.id_generator(), reply_to=reply_to or self.reply_to)
        sent: SendResult = await self._basic_publish(
            cmd, producer=self._outer_config.producer, _extra_middlewares=())
        return sent

    async def _publish(self, cmd: Any, *, _extra_middlewares: Iterable[Any]) -> None:
        """Publish the result of a handler."""
        made = RocketmqPublishCommand.from_cmd(cmd)
        made.destination = self.topic
        made.tags = made.tags or self.tags
        made.reply_to = made.reply_to or self.reply_to
        made.add_headers(self.headers, override=False)
        await self._basic_publish(
            made, producer=self._outer_config.producer, _extra_middlewares=_extra_middlewares)

    async def request(
        self, message: Any, topic: str = "", *, tags: str | None = None, keys: Sequence[str] = (),
        headers: dict[str, str] | None = None, correlation_id: str | None = None, timeout: Duration = 3.0,  # noqa: ASYNC109
    ) -> RocketmqMessage:
        """Send a request and wait up to ``timeout`` seconds for its reply; as `RocketmqBroker.request`."""
        cmd = RocketmqPublishCommand(
            message, topic=topic or self.topic, publish_type=PublishType.REQUEST, tags=tags or self.tags, keys=keys,
            headers={**self.headers, **(headers or {})},
            correlation_id=correlation_id or self._outer_config.id_generator(), timeout=timeout)
        reply: RocketmqMessage = await self._basic_request(cmd, producer=self._outer_config.producer)
        return reply
