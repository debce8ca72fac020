"""The Dramatiq broker."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from typing import Any, Final, final

import dramatiq
from dramatiq.errors import QueueJoinTimeout, QueueNotFound

from tailrace.auth.signature import Credentials
from tailrace.client.arguments import in_ms, in_s
from tailrace.client.credentials import credentials_of
from tailrace.client.instance import Target
from tailrace.env.clock import Clock, SystemClock
from tailrace.errors import ConfigError
from tailrace.model import Message
from tailrace.remoting.tls import TlsOptions, options_of
from tailrace.spellings import Duration
from tailrace_dramatiq.connection import Connection
from tailrace_dramatiq.consumer import Delivery, QueueConsumer
from tailrace_dramatiq.delays import later
from tailrace_dramatiq.waiting import PendingMessages, Sent

__all__ = ["DramatiqBroker"]

_TOPIC: Final = re.compile(r"[%|a-zA-Z0-9_-]{1,127}")
"""What RocketMQ allows as the name of a topic."""
GROUP_MAX: Final = 120
"""Characters of a group, as RocketMQ's clients check it; the group has the name of the topic."""
JOIN_INTERVAL_S: Final = 0.1
JOIN_TIMES: Final = 3
"""How often in a row `join` finds a queue empty before it returns."""


@final
class DramatiqBroker(dramatiq.Broker):
    """Has the tasks of Dramatiq stored and delivered by RocketMQ or Tailrace.

    Each Dramatiq queue is a topic, ``topic_prefix`` and the name of the queue, which is consumed in mode POP by a
    group of the same name. Delivery is at least once. docs/how-to/programs/frameworks.md describes the arguments.
    """

    def __init__(
        self, *, namesrv: str = "", broker: str = "", middleware: Sequence[dramatiq.Middleware] | None = None,
        topic_prefix: str = "dramatiq_", topic_queues: int = 4, invisible_s: Duration = 60.0,
        timeout_ms: Duration = 3000, retries: int = 2, tls: bool | TlsOptions = False,
        credentials: Credentials | str | None = None, clock: Clock | None = None,
    ) -> None:
        """Set it up; nothing is sent before the first message or worker.

        ``namesrv`` is one or more name servers, separated by ``;``. ``broker`` names one broker instead.
        ``middleware`` as for every Dramatiq broker. ``topic_queues`` is the number of queues on each broker of a
        topic that is created. A task of a worker that died is delivered again after ``invisible_s`` (5 to 300 s).
        ``timeout_ms`` limits each request, ``retries`` is the number of further tries of a send. ``tls`` and
        ``credentials`` are those of a `Producer`. Raises ConfigError.
        """
        problems = []
        invisible_s, timeout_ms = in_s("invisible_s", invisible_s), round(in_ms("timeout_ms", timeout_ms))
        if not 5 <= invisible_s <= 300:
            problems.append(f"invisible_s={invisible_s!r} is not from 5 to 300")
        problems += [f"{name}={value!r} is not above 0" for name, value in (
            ("topic_queues", topic_queues), ("timeout_ms", timeout_ms)) if not value > 0]
        if problems:
            raise ConfigError(*problems)
        super().__init__(None if middleware is None else list(middleware))
        self._clock = clock or SystemClock()
        self._prefix = topic_prefix
        self._topic_queues = topic_queues
        self._invisible_s = invisible_s
        self._connection = Connection(
            Target(namesrv, broker, timeout_ms, tls=options_of(tls), credentials=credentials_of(credentials)), retries)
        self._waiting: dict[str, PendingMessages] = {}
        self._consumers: dict[str, QueueConsumer] = {}

    def close(self) -> None:
        """Close the connections of this process."""
        self._connection.close()

    def topic_of(self, queue_name: str) -> str:
        """Return the topic of a queue, which is also the name of its consumer group.

        Raises ConfigError if RocketMQ does not allow the name.
        """
        topic = f"{self._prefix}{queue_name}"
        if not _TOPIC.fullmatch(topic) or len(topic) > GROUP_MAX:
            raise ConfigError(
                f"queue {queue_name!r} would be the topic {topic!r}: RocketMQ allows up to {GROUP_MAX} letters, digits "
                "and any of _ - % |; give the actors another queue_name")
        return topic

    def declare_queue(self, queue_name: str) -> None:
        """Declare a queue; its topic is created by the first consumer, or by the first message if brokers allow it.

        There are no delay queues: the broker keeps a delayed message until it is due.
        """
        if queue_name in self.queues:
            return
        topic = self.topic_of(queue_name)
        self.emit_before("declare_queue", queue_name)
        self.queues[queue_name] = topic
        self._waiting[queue_name] = PendingMessages(topic, self._clock)
        self.emit_after("declare_queue", queue_name)

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 5000) -> dramatiq.Consumer:
        """Return a consumer of a queue that has up to ``prefetch`` messages and waits up to ``timeout`` ms for one.

        Raises QueueNotFound, ConnectionClosed if no broker can be reached, or another RemotingError.
        """
        consumer = self._consumers[queue_name] = QueueConsumer(
            self._connection.clients, self._topic(queue_name), prefetch=prefetch, timeout_ms=timeout,
            topic_queues=self._topic_queues, invisible_s=self._invisible_s)
        return consumer

    def enqueue(self, message: dramatiq.Message[Any], *, delay: int | None = None) -> dramatiq.Message[Any]:
        """Store a message, to be delivered after ``delay`` ms, and return it.

        Raises QueueNotFound, ConnectionClosed if no broker can be reached, another RemotingError, and ConfigError for
        the option ``broker_priority``.
        """
        topic = self._topic(message.queue_name)
        if message.options.get("broker_priority") is not None:
            raise ConfigError("broker_priority is an option of RabbitMQ; RocketMQ delivers the messages of a queue in "
                              "the order of their arrival")
        due_ms = None if delay is None else self._clock.now_ms() + delay
        self.emit_before("enqueue", message, delay)
        stored = Message(topic=topic, body=message.encode(), tags=message.actor_name, keys=[message.message_id])
        if due_ms is not None:
            stored = later(stored, due_ms, self._clock)
        clients = self._connection.clients
        try:
            sent = clients.run(clients.producer.send(stored))
        except Exception:
            if isinstance(message, Delivery):  # a retry, whose failure Dramatiq only logs
                message.retry_not_stored = True
            raise
        if due_ms is not None:
            self._waiting[message.queue_name].delayed(Sent(due_ms, sent.msg_id, sent.recall_handle))
        self.emit_after("enqueue", message, delay)
        return message

    def flush(self, queue_name: str) -> None:
        """Drop the messages that wait in a queue, and those that are delayed and that this object has sent.

        Tasks that run are not ended. It is meant for tests.
        """
        self._topic(queue_name)
        clients = self._connection.clients
        clients.run(self._waiting[queue_name].drop(clients))

    def flush_all(self) -> None:
        """Drop the messages of all queues that are declared, as `flush`."""
        for queue_name in self.queues:
            self.flush(queue_name)

    def join(self, queue_name: str, *, timeout: int | None = None) -> None:
        """Wait until a queue is empty and its tasks have ended, for up to ``timeout`` ms; meant for tests.

        It waits for delayed messages that this object has sent (the last 1,000 of them), and for tasks that run in
        this process. Raises QueueJoinTimeout, QueueNotFound, or RemotingError.
        """
        self._topic(queue_name)
        waiting = self._waiting[queue_name]
        clients = self._connection.clients
        end_ns = None if timeout is None else self._clock.monotonic_ns() + timeout * 1_000_000
        empty = 0
        while True:
            consumer = self._consumers.get(queue_name)
            busy = consumer is not None and consumer.open > 0
            empty = 0 if busy or not clients.run(waiting.is_empty(clients)) else empty + 1
            if empty >= JOIN_TIMES:
                return
            if end_ns is not None and self._clock.monotonic_ns() >= end_ns:
                raise QueueJoinTimeout(queue_name)
            threading.Event().wait(JOIN_INTERVAL_S)

    def _topic(self, queue_name: str) -> str:
        try:
            return str(self.queues[queue_name])
        except KeyError:
            raise QueueNotFound(queue_name) from None
