"""Subscribers: members of a consumer group."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from faststream._internal.endpoint.subscriber import SubscriberUsecase
from faststream.exceptions import FeatureNotSupportedException

from tailrace.client.listening import RetryLater
from tailrace.client.pop_groups import ensure_topic, pop_mode
from tailrace.client.push_consumer import AsyncPushConsumer
from tailrace.client.subscription import Sql, Subscription
from tailrace.formats.names import REPLY_TO_CLIENT
from tailrace.model import MessageExt
from tailrace_faststream.config import RocketmqSubscriberConfig
from tailrace_faststream.message import (
    Incoming,
    decode,
    decode_batch,
    parse,
    parse_batch,
)
from tailrace_faststream.publisher import ReplyPublisher

__all__ = ["RocketmqSubscriber"]

FOREVER_S: Final = 1e9
"""A handler limits its time by itself."""


class RocketmqSubscriber(SubscriberUsecase[Incoming]):
    """Has the messages of a topic delivered to a handler.

    Messages are popped and acknowledged one by one. With ``in_order`` they are pulled, each queue by one member under a
    lock of the broker.
    """

    _outer_config: Any

    def __init__(self, config: RocketmqSubscriberConfig, specification: Any, calls: Any) -> None:
        config.parser = parse_batch if config.batch else parse
        config.decoder = decode_batch if config.batch else decode
        super().__init__(config, specification, calls)
        self._config = config
        self.group = config.group
        self.batch = config.batch
        self.filter = Subscription.of(config.topic, config.tags, config.sql)
        self._push: AsyncPushConsumer | None = None
        self._room = asyncio.Semaphore(config.max_workers)
        self._running: set[asyncio.Task[Any]] = set()

    @property
    def topic(self) -> str:
        """The topic, with the prefixes of routers."""
        return f"{self._outer_config.prefix}{self._config.topic}"

    async def start(self) -> None:
        """Join the group. Raises RemotingError if no broker can be reached."""
        await super().start()
        self._post_start()
        if not self.calls or self._push is not None:
            return
        config, outer = self._config, self._outer_config
        target = outer.servers
        topics = {self.topic: Sql(config.sql) if config.sql else config.tags}
        self._room = asyncio.Semaphore(config.max_workers)
        at_a_time = config.max_workers * (config.max_records if config.batch else 1)
        self._push = AsyncPushConsumer(
            config.group, self._listen_to_batch if config.batch else self._listen,
            batch_size=config.max_records if config.batch else None, namesrv=target.namesrv, broker=target.broker,
            topics=topics, start=config.start, in_order=config.in_order, client_rebalance=config.in_order,
            concurrency=config.max_workers,
            max_cached_messages=1_000 if config.in_order else max(2, at_a_time),
            pull_batch=32 if config.in_order or config.batch else min(32, max(1, config.max_workers // 2)),
            max_reconsume_times=config.max_reconsume_times, pop_invisible_s=config.invisible_s,
            consume_timeout_s=FOREVER_S, timeout_ms=target.timeout_ms, tls=target.tls or False,
            credentials=target.credentials, telemetry=outer.telemetry,
            close_timeout_s=FOREVER_S if outer.graceful_timeout is None else outer.graceful_timeout)
        try:
            await ensure_topic(outer.producer.client, target, self.topic, config.topic_queues)
            if not config.in_order:
                await pop_mode(target, self.topic, config.group)
            await self._push.start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Take no more messages, wait for handlers up to the broker's ``graceful_timeout``, and leave the group."""
        push, self._push = self._push, None
        if push is not None:
            await push.close()
        late = self._running - {asyncio.current_task()}
        if late:  # they have acknowledged early, or need more than the timeout; FastStream would block the event loop
            _, late = await asyncio.wait(late, timeout=self._outer_config.graceful_timeout)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        await super().stop()

    async def _listen(self, message: MessageExt) -> None:
        await self._handle(Incoming(message))

    async def _listen_to_batch(self, messages: list[MessageExt]) -> None:
        await self._handle(Incoming(*messages))

    async def _handle(self, incoming: Incoming) -> None:
        """Have messages handled; return or raise what becomes of them as soon as the handler has settled them."""
        await self._room.acquire()  # an acknowledgement may come before the end of a handler
        task = asyncio.create_task(self.consume(incoming))
        self._running.add(task)
        task.add_done_callback(self._ended)
        await asyncio.wait((task, incoming.settled), return_when=asyncio.FIRST_COMPLETED)
        if not incoming.settled.done():
            raise RetryLater  # neither acknowledged nor refused
        outcome = incoming.settled.result()
        if outcome is not None:
            raise outcome

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        self._room.release()

    def _make_response_publisher(self, message: Any) -> Sequence[ReplyPublisher]:
        request = message.raw_message.message
        asked = REPLY_TO_CLIENT in request.properties
        return (ReplyPublisher(
            self._outer_config.producer, "" if asked else message.reply_to, request if asked else None),)

    def get_log_context(self, message: Any) -> dict[str, str]:
        """Return the columns of a log line."""
        return {"topic": self.topic, "group": self.group, "message_id": getattr(message, "message_id", "")}

    async def get_one(self, *, timeout: float = 5.0) -> Any:  # noqa: ASYNC109 - FastStream's name
        """Refuse it."""
        raise FeatureNotSupportedException("a RocketMQ subscriber has no get_one; use tailrace.AsyncPullConsumer")

    def __aiter__(self) -> AsyncIterator[Any]:
        """Refuse it."""
        raise FeatureNotSupportedException("a RocketMQ subscriber is no iterator; use tailrace.AsyncPullConsumer")
