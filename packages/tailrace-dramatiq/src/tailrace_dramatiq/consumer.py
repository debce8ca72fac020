"""The messages of a Dramatiq queue, popped from its topic and acknowledged one by one."""

from __future__ import annotations

import asyncio
import enum
import queue
from collections.abc import Iterable
from typing import Any, Final, final

import dramatiq
from dramatiq.errors import DecodeError

from tailrace.client.listening import RetryLater
from tailrace.client.pop_groups import ensure_topic, pop_mode
from tailrace.client.push_consumer import AsyncPushConsumer
from tailrace.env.clock import Clock, SystemClock
from tailrace.events.declaration import event
from tailrace.logs import get_logger
from tailrace.model import MessageExt
from tailrace_dramatiq.connection import Clients
from tailrace_dramatiq.delays import at_its_time, left_ms

__all__ = ["Delivery", "QueueConsumer"]

_log = get_logger("tailrace.frameworks.dramatiq.consumer")  # below "tailrace", which programs configure

NOT_OF_DRAMATIQ: Final = event(
    "error", "message is not one of Dramatiq, it becomes a dead letter", "topic queue offset reason",
    "Another program sends to this topic.", do="Stop that program.")

SOON_S: Final = 1.0
"""Seconds until a message that a worker gives back can be popped again."""
CLOSE_S: Final = 1.0
"""Seconds that a close waits for acknowledgements; the tasks have ended before the close."""
UNDER_WAY_S: Final = 0.1
"""Seconds that a close waits for answers to pops under way, so that their messages are also given back."""
FOREVER_S: Final = 1e9
"""Time limit of a listener that is never reached, because Dramatiq's TimeLimit ends tasks."""
MANY: Final = 1_000_000_000
"""Limit of deliveries that is never reached, because Dramatiq decides which message is a dead letter."""
PULL_MAX: Final = 32
"""Messages of one pop, a limit of RocketMQ."""


class Outcome(enum.Enum):
    """How a delivery ends."""

    DONE = "acknowledge it"
    AGAIN = "give it back"
    DEAD = "make it a dead letter"


class Delivery(dramatiq.MessageProxy):
    """A message that this process has until it acknowledges it, gives it back or makes it a dead letter."""

    def __init__(self, message: dramatiq.Message[Any], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(message)
        self.retry_not_stored = False
        """True if the retry of the task could not be stored. An acknowledgement would then lose the task."""
        self.outcome: asyncio.Future[Outcome] = loop.create_future()
        self._loop = loop

    def end(self, outcome: Outcome) -> None:
        """End the delivery; only the first call has an effect. Any thread may call this."""
        if self._loop.is_closed():
            return  # the consumer is closed, so the message is delivered again
        self._loop.call_soon_threadsafe(self._end, outcome)

    def _end(self, outcome: Outcome) -> None:
        if not self.outcome.done():
            self.outcome.set_result(outcome)


@final
class QueueConsumer(dramatiq.Consumer):
    """Iterates over the messages of one queue, with up to ``prefetch`` of them at a time."""

    def __init__(
        self, clients: Clients, topic: str, *, prefetch: int, timeout_ms: int, topic_queues: int, invisible_s: float,
        clock: Clock | None = None,
    ) -> None:
        """Join the group of the topic. Raises ConnectionClosed if no broker can be reached, or another StoreError."""
        self._clients = clients
        self._topic = topic
        self._timeout_s = timeout_ms / 1000
        self._clock = clock or SystemClock()
        self._arrived: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
        self._closing = False
        self.open = 0
        """Number of deliveries that have not ended."""
        target = clients.target
        self._push = AsyncPushConsumer(
            topic, self._listen, namesrv=target.namesrv, broker=target.broker, topics=topic, start="first",
            client_rebalance=False, pop_invisible_s=invisible_s, concurrency=prefetch, max_cached_messages=prefetch,
            # Few at a time: no other worker gets a popped message that waits for a free thread of this process.
            pull_batch=min(PULL_MAX, max(1, prefetch // 4)), max_reconsume_times=MANY, consume_timeout_s=FOREVER_S,
            close_timeout_s=CLOSE_S, timeout_ms=target.timeout_ms, tls=target.tls or False,
            credentials=target.credentials)
        clients.run(self._start(topic_queues))

    async def _start(self, topic_queues: int) -> None:
        target = self._clients.target
        await ensure_topic(self._clients.producer, target, self._topic, topic_queues)
        await pop_mode(target, self._topic, self._topic)
        await self._push.start()

    async def _listen(self, message: MessageExt) -> None:
        """Pass a message to the worker threads, and wait until its delivery ends."""
        if self._closing:
            raise RetryLater(after_s=SOON_S)
        if left_ms(message, self._clock) > 0:
            await self._clients.producer.send(at_its_time(message, self._clock))
            return
        try:
            delivery = Delivery(dramatiq.Message.decode(message.body), asyncio.get_running_loop())
        except DecodeError as error:
            NOT_OF_DRAMATIQ.log(
                _log, topic=message.topic, queue=message.queue_id, offset=message.queue_offset,
                reason=repr(error.error))
            raise RetryLater(delay_level=-1) from None
        self.open += 1
        try:
            self._arrived.put(delivery)
            outcome = await delivery.outcome
        finally:
            self.open -= 1
        if outcome is Outcome.DEAD:
            raise RetryLater(delay_level=-1)
        if outcome is Outcome.AGAIN:
            raise RetryLater(after_s=SOON_S)

    def __next__(self) -> dramatiq.MessageProxy | None:
        """Return the next message, None if none came in time."""
        try:
            return self._arrived.get(timeout=self._timeout_s)
        except queue.Empty:
            return None

    def ack(self, message: dramatiq.MessageProxy) -> None:
        """Acknowledge a message; if its retry could not be stored, it is delivered again."""
        if isinstance(message, Delivery):
            message.end(Outcome.AGAIN if message.retry_not_stored else Outcome.DONE)

    def nack(self, message: dramatiq.MessageProxy) -> None:
        """Make a message a dead letter."""
        if isinstance(message, Delivery):
            message.end(Outcome.DEAD)

    def requeue(self, messages: Iterable[dramatiq.MessageProxy]) -> None:
        """Give messages back, when the worker stops; another worker gets them after a second."""
        self._take_no_more()
        for message in messages:
            if isinstance(message, Delivery):
                message.end(Outcome.AGAIN)

    def _take_no_more(self) -> None:
        """Start no further pop: its messages could not be given back, and would wait for their invisible time."""
        if not self._closing:
            self._closing = True
            self._clients.run(self._hold())

    async def _hold(self) -> None:
        await self._push.pause()
        await asyncio.sleep(UNDER_WAY_S)

    def close(self) -> None:
        """Give back the messages that no worker thread has taken, and leave the group.

        A task that still runs is delivered again when its invisible time ends.
        """
        self._take_no_more()
        while True:
            try:
                self._arrived.get_nowait().end(Outcome.AGAIN)
            except queue.Empty:
                break
        self._clients.run(self._push.close())
