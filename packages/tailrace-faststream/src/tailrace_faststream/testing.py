"""The test broker: messages go from publishers to handlers in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final
from unittest.mock import AsyncMock

import anyio
from faststream._internal.testing.broker import TestBroker, change_producer
from faststream.exceptions import FeatureNotSupportedException, SubscriberNotFound

from tailrace.client.arguments import in_s
from tailrace.client.send_result import SendResult
from tailrace.formats.names import KEYS, TAGS, UNIQ_KEY
from tailrace.model import Message, MessageExt, refuse_conflicts
from tailrace_faststream.broker import RocketmqBroker
from tailrace_faststream.message import Incoming
from tailrace_faststream.producer import BaseProducer
from tailrace_faststream.publisher import RocketmqPublisher
from tailrace_faststream.response import RocketmqPublishCommand
from tailrace_faststream.subscriber import RocketmqSubscriber

__all__ = ["TestRocketmqBroker"]


class TestRocketmqBroker(TestBroker[RocketmqBroker, Any], broker=RocketmqBroker):
    """Runs handlers in memory, as the test brokers of FastStream do.

    Topics, groups and tags choose the handlers. Delays, retries and dead letters need a real broker: a delayed message
    is handled immediately, and an exception of a handler is raised by ``publish``.
    """

    @contextmanager
    def _patch_producer(self, broker: RocketmqBroker) -> Iterator[None]:
        with change_producer(broker.config.broker_config, _MemoryProducer(broker, self.brokers)):
            yield

    async def _fake_connect(self, broker: RocketmqBroker, *args: Any, **kwargs: Any) -> Any:
        return AsyncMock()

    def create_publisher_fake_subscriber(
        self, broker: RocketmqBroker, publisher: RocketmqPublisher
    ) -> tuple[RocketmqSubscriber, bool]:
        """Return a subscriber of a publisher's topic, and whether it is one of the program."""
        for one in _subscribers(self.brokers):
            if one.topic == publisher.topic:
                return one, True
        return broker.subscriber(publisher.topic, group="TEST", persistent=False), False


def _subscribers(brokers: Sequence[RocketmqBroker]) -> Iterator[RocketmqSubscriber]:
    for broker in brokers:
        for one in broker.subscribers:
            assert isinstance(one, RocketmqSubscriber)
            yield one


@final
class _MemoryProducer(BaseProducer):
    """Calls the handlers."""

    def __init__(self, broker: RocketmqBroker, brokers: Sequence[RocketmqBroker]) -> None:
        super().__init__(broker._parser, broker._decoder)
        self._brokers = brokers
        self._count = 0
        config = broker.config.broker_config
        self.serializer = config.fd_config._serializer
        self.codec = config.broker_codec or self.codec

    async def publish(self, cmd: RocketmqPublishCommand) -> SendResult:
        """Call one handler of each group that takes the message."""
        return await self._publish([await self.encoded(cmd)])

    async def publish_batch(self, cmd: RocketmqPublishCommand) -> SendResult:
        """Call one handler of each group: of a batch subscriber once, of others for each message."""
        return await self._publish(await self.encoded_batch(cmd))

    async def _publish(self, messages: Sequence[Message]) -> SendResult:
        stored = [self._stored(message) for message in messages]
        for one in self._wanting(stored[0][0]):
            calls = [[found for found, _ in stored]] if one.batch else [[found] for found, _ in stored]
            for call in calls:
                await one.process_message(Incoming(*call))
        return stored[0][1]

    async def request(self, cmd: RocketmqPublishCommand) -> Incoming:
        """Return the result of the handler."""
        message = await self.encoded(cmd)
        stored, _ = self._stored(message)
        for one in self._wanting(stored):
            with anyio.fail_after(in_s("timeout", cmd.timeout)):
                result = await one.process_message(Incoming(stored))
            reply = RocketmqPublishCommand.from_cmd(result.as_publish_command())
            return Incoming(self._stored(await self.encoded(reply))[0])
        raise SubscriberNotFound(f"no handler of topic {cmd.destination} takes the request")

    def _wanting(self, stored: MessageExt) -> list[RocketmqSubscriber]:
        found: dict[str, RocketmqSubscriber] = {}
        for one in _subscribers(self._brokers):
            if one.topic != stored.topic or not one.calls:
                continue
            if one.filter.is_sql:
                raise FeatureNotSupportedException("the test broker does not evaluate sql; use a real broker")
            if one.filter.keep([stored]):
                found.setdefault(one.group, one)
        return list(found.values())

    def _stored(self, message: Message) -> tuple[MessageExt, SendResult]:
        refuse_conflicts(message)
        self._count += 1
        number, key = self._count, f"{self._count:032X}"
        properties = {**message.properties, UNIQ_KEY: key}
        if message.tags:
            properties[TAGS] = message.tags
        if message.keys:
            properties[KEYS] = " ".join(message.keys)
        stored = MessageExt(
            message.topic, 0, number, 0, len(message.body), bytes(message.body), message.flag, 0, 0, 0, ("", 0), 0,
            ("", 0), 0, 0, properties, key)
        return stored, SendResult("SEND_OK", "test", 0, number, key, key)
