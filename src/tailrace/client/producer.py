"""Producers."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import itertools
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Final, Self, final

from tailrace.client.instance import InstanceShare, Target
from tailrace.client.routes import (
    AUTO_CREATE_TOPIC,
    DEFAULT_QUEUES,
    MessageQueue,
    Route,
    Routes,
)
from tailrace.client.send_result import SendResult
from tailrace.client.transactions import (
    CheckTransaction,
    Decision,
    Transactions,
    TransactionSendResult,
    checked_decision,
)
from tailrace.env.clock import Clock, SystemClock
from tailrace.env.entropy import SystemEntropy
from tailrace.env.loop_thread import EventLoopThread
from tailrace.errors import (
    MessageIllegalError,
    RemotingCommandError,
    RemotingError,
)
from tailrace.formats.commitlog import SysFlag, encode_batch
from tailrace.formats.remoting import RequestCode, ResponseCode
from tailrace.formats.requests.broker_headers import CreateTopicRequestHeader
from tailrace.formats.requests.message_headers import (
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from tailrace.kernels.properties import encode_properties
from tailrace.model import Message, whole_ms
from tailrace.remoting.client import RemotingClient

__all__ = ["AsyncProducer", "Producer", "QueueSelector"]

QueueSelector = Callable[[Sequence[MessageQueue], Message], MessageQueue]
_STORED: Final = {
    ResponseCode.SUCCESS: "SEND_OK",
    ResponseCode.FLUSH_DISK_TIMEOUT: "FLUSH_DISK_TIMEOUT",
    ResponseCode.FLUSH_SLAVE_TIMEOUT: "FLUSH_SLAVE_TIMEOUT",
    ResponseCode.SLAVE_NOT_AVAILABLE: "SLAVE_NOT_AVAILABLE",
}
_RETRIED: Final = frozenset({
    ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR,
    ResponseCode.SYSTEM_BUSY, ResponseCode.GO_AWAY,
})
_SEPARATORS: Final = frozenset("\x01\x02")


@final
class AsyncProducer:
    """Sends messages; use it in one event loop, as an asynchronous context manager."""

    def __init__(
        self, *, namesrv: str = "", broker: str = "", group: str = "DEFAULT_PRODUCER",
        timeout_ms: int = 3000, retries: int = 2, check: CheckTransaction | None = None,
        clock: Clock | None = None,
    ) -> None:
        """``check`` decides about half messages that a broker asks for, see ``send_in_transaction``."""
        self._group = group
        self._timeout_ms = timeout_ms
        self._retries = retries
        self._clock = clock or SystemClock()
        self._share = InstanceShare(
            Target(namesrv, broker, timeout_ms, clock), None if check is None else (group, False))
        # Programs that send one message each must not all take the first queue.
        self._turn = itertools.count(SystemEntropy().randrange(1 << 16))
        self._ids = itertools.count()
        self._id_base = f"{os.getpid() & 0xFFFF:04X}{SystemEntropy().u64():016X}"
        self._transactions = None if check is None else Transactions(
            self._share, group, check, timeout_ms)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections that no other client of this event loop uses."""
        if self._transactions is not None:
            await self._transactions.close()
        await self._share.close()

    @property
    def _routes(self) -> Routes:
        return self._share.instance.routes

    @property
    def _remoting(self) -> RemotingClient:
        return self._share.instance.remoting

    async def send(
        self, message: Message, *, queue_id: int | None = None, selector: QueueSelector | None = None
    ) -> SendResult:
        """Send one message and wait until it is stored.

        Queues take turns unless ``queue_id`` or ``selector`` says which. A send that fails for a
        reason that may pass is tried again, on another queue when it may choose: a message can then
        be stored twice, under the same ``msg_id``. Raises MessageIllegalError, RemotingCommandError
        (the broker's refusal) or another RemotingError.
        """
        unique_key, properties = self._properties(message)
        header = self._header(message.topic, message.flag, properties.decode())
        return await self._send(
            RequestCode.SEND_MESSAGE_V2, message, header, message.body, unique_key, queue_id, selector)

    async def send_in_transaction(
        self, message: Message, local: Callable[[Message], Decision | Awaitable[Decision]], *,
        queue_id: int | None = None, selector: QueueSelector | None = None,
    ) -> TransactionSendResult:
        """Store a half message, call ``local``, and commit or roll back as it decides.

        ``local`` does the program's own part, such as a database transaction, and returns True to commit,
        False to roll back, None if it does not know yet; it may be a coroutine function. A plain one holds
        the event loop. When it returns None or raises, when this process dies or the broker cannot be
        reached, the half message stays pending, and the broker asks ``check`` of a producer of this group.
        Consumers see the message once it is committed.

        Raises what ``send`` and ``local`` raise, ValueError for a producer without ``check``, and
        MessageIllegalError for a message that is to be delivered later.
        """
        transactions = self._transactions
        if transactions is None:
            raise ValueError("a producer that sends in transactions needs the argument check")
        if message.deliver_at is not None or message.delay is not None or message.delay_level:
            raise MessageIllegalError("delay", "a message of a transaction cannot be delayed")
        route = await self._routes.of(message.topic, for_write=True)
        await transactions.join(message.topic, set(route.addresses.values()))
        unique_key, stored = self._properties(message, TRAN_MSG="true", PGROUP=self._group)
        header = self._header(message.topic, message.flag, stored.decode())
        header.sys_flag = int(SysFlag.TRANSACTION_PREPARED)
        sent = await self._send(
            RequestCode.SEND_MESSAGE_V2, message, header, message.body, unique_key, queue_id, selector)
        found = local(message)
        decision = checked_decision(await found if inspect.isawaitable(found) else found)
        route = await self._routes.of(message.topic, for_write=True)
        await transactions.end(route.addresses[sent.broker_name], sent, decision)
        return TransactionSendResult(**dataclasses.asdict(sent), decision=decision)

    async def send_batch(
        self, messages: Sequence[Message], *, queue_id: int | None = None
    ) -> SendResult:
        """Send messages of one topic to one queue in one request; all are stored, or none."""
        if not messages:
            raise MessageIllegalError("batch", "has no message")
        topic = messages[0].topic
        items, keys = [], []
        for message in messages:
            if message.topic != topic:
                raise MessageIllegalError("batch", f"has topics {topic} and {message.topic}")
            if message.deliver_at is not None or message.delay is not None or message.delay_level:
                raise MessageIllegalError("delay", "a message of a batch cannot be delayed")
            unique_key, properties = self._properties(message)
            keys.append(unique_key)
            items.append((message.flag, message.body, properties))
        header = self._header(topic, 0, "")
        header.batch = True
        return await self._send(
            RequestCode.SEND_BATCH_MESSAGE, messages[0], header, encode_batch(items), ",".join(keys),
            queue_id, None)

    async def send_oneway(self, message: Message, *, queue_id: int | None = None) -> None:
        """Send without an answer: it may be lost, and nobody is told."""
        _, properties = self._properties(message)
        header = self._header(message.topic, message.flag, properties.decode())
        route = await self._routes.of(message.topic, for_write=True)
        queue = self._choose(route, message, queue_id, None, "")
        header.queue_id = queue.queue_id
        await self._remoting.invoke_oneway(
            route.addresses[queue.broker_name], RequestCode.SEND_MESSAGE_V2, header.to_ext(), message.body)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Queues that can be written."""
        return list((await self._routes.of(topic, for_write=True)).write_queues)

    async def create_topic(
        self, topic: str, queues: int = DEFAULT_QUEUES, attributes: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic on every broker that is known, or change its queues and attributes."""
        route = await self._routes.of(topic, for_write=True)
        header = CreateTopicRequestHeader(
            topic, AUTO_CREATE_TOPIC, queues, queues, 6, "SINGLE_TAG", topic_sys_flag=0,
            attributes=",".join(f"+{k}={v}" for k, v in attributes.items()) if attributes else None)
        for address in sorted(set(route.addresses.values())):
            answer = await self._remoting.invoke(
                address, RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext(), timeout_ms=self._timeout_ms)
            if answer.code != ResponseCode.SUCCESS:
                raise RemotingCommandError(answer.code, answer.remark or "", address)
        self._routes.forget(topic)

    def _properties(self, message: Message, **more: str) -> tuple[str, bytes]:
        properties = {**message.properties, **more}
        if message.tags:
            properties["TAGS"] = message.tags
        if message.keys:
            if isinstance(message.keys, str) or any(not k or " " in k for k in message.keys):
                raise MessageIllegalError("keys", f"{message.keys!r} is no list of words")
            properties["KEYS"] = " ".join(message.keys)
        unique_key = properties.setdefault(
            "UNIQ_KEY", f"{self._id_base}{next(self._ids) & 0xFFFFFFFFFFFF:012X}")
        if message.deliver_at is not None:
            properties["TIMER_DELIVER_MS"] = str(whole_ms("deliver_at", message.deliver_at))
        if message.delay is not None:
            properties["TIMER_DELAY_MS"] = str(whole_ms("delay", message.delay, 1000))
        if message.delay_level:
            properties["DELAY"] = str(message.delay_level)
        properties["WAIT"] = "true" if message.wait_store_msg_ok else "false"
        for name, value in properties.items():
            if not name or not value or _SEPARATORS & set(name) or _SEPARATORS & set(value):
                raise MessageIllegalError(
                    "properties", f"{name!r}: name and value must not be empty nor hold 0x01 or 0x02")
        return unique_key, encode_properties(properties)

    def _header(self, topic: str, flag: int, properties: str) -> SendMessageRequestHeader:
        """Return the header of a send; its queue is set when a queue was chosen."""
        return SendMessageRequestHeaderV2(
            self._group, topic, AUTO_CREATE_TOPIC, DEFAULT_QUEUES, 0, 0, self._clock.now_ms(), flag,
            properties, reconsume_times=0, unit_mode=False, batch=False)

    def _choose(
        self, route: Route, message: Message, queue_id: int | None, selector: QueueSelector | None,
        avoid: str,
    ) -> MessageQueue:
        queues = route.write_queues
        if not queues:
            raise RemotingCommandError(
                ResponseCode.TOPIC_NOT_EXIST, f"no writable queue of topic {message.topic}")
        if selector is not None:
            return selector(queues, message)
        if queue_id is not None:
            for queue in queues:
                if queue.queue_id == queue_id:
                    return queue
            raise MessageIllegalError(
                "queueId", f"{queue_id}, topic {message.topic} has {len(queues)} writable queues")
        others = [queue for queue in queues if queue.broker_name != avoid] or list(queues)
        return others[next(self._turn) % len(others)]

    async def _send(
        self, code: int, message: Message, header: SendMessageRequestHeader, body: bytes, unique_key: str,
        queue_id: int | None, selector: QueueSelector | None,
    ) -> SendResult:
        last: RemotingError | None = None
        avoid = ""
        for _ in range(self._retries + 1):
            failed = ""
            try:
                route = await self._routes.of(message.topic, for_write=True)
                queue = self._choose(route, message, queue_id, selector, avoid)
                failed = queue.broker_name
                header.queue_id = queue.queue_id
                address = route.addresses[queue.broker_name]
                answer = await self._remoting.invoke(
                    address, code, header.to_ext(), body, timeout_ms=self._timeout_ms)
                if answer.code not in _STORED:
                    raise RemotingCommandError(answer.code, answer.remark or "", address)
            except RemotingCommandError as error:
                if error.code not in _RETRIED:
                    raise
                last = error
            except RemotingError as error:
                last = error
            else:
                place = answer.read(SendMessageResponseHeader)
                return SendResult(
                    _STORED[ResponseCode(answer.code)], queue.broker_name, place.queue_id,
                    place.queue_offset, unique_key, place.msg_id)
            avoid = failed  # another broker, where the topic has one
            self._routes.forget(message.topic)
        assert last is not None
        raise last


@final
class Producer:
    """The blocking face of ``AsyncProducer``; any thread may call it."""

    def __init__(
        self, *, namesrv: str = "", broker: str = "", group: str = "DEFAULT_PRODUCER",
        timeout_ms: int = 3000, retries: int = 2, check: CheckTransaction | None = None,
        clock: Clock | None = None,
    ) -> None:
        """As ``AsyncProducer``."""
        self._producer = AsyncProducer(
            namesrv=namesrv, broker=broker, group=group, timeout_ms=timeout_ms, retries=retries, check=check,
            clock=clock)
        self._loop = EventLoopThread()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close what no other client of the process uses; a second call does nothing."""
        if not self._loop.closed:
            self._loop.run(self._producer.close())
            self._loop.close()

    def send(
        self, message: Message, *, queue_id: int | None = None, selector: QueueSelector | None = None
    ) -> SendResult:
        """As ``AsyncProducer.send``."""
        return self._loop.run(self._producer.send(message, queue_id=queue_id, selector=selector))

    def send_in_transaction(
        self, message: Message, local: Callable[[Message], Decision], *, queue_id: int | None = None,
        selector: QueueSelector | None = None,
    ) -> TransactionSendResult:
        """As ``AsyncProducer.send_in_transaction``; ``local`` is called in a thread of its own."""
        return self._loop.run(self._producer.send_in_transaction(
            message, lambda half: asyncio.to_thread(local, half), queue_id=queue_id, selector=selector))

    def send_async(self, message: Message, *, queue_id: int | None = None) -> Future[SendResult]:
        """Start a send; the future has its result or error."""
        return self._loop.submit(self._producer.send(message, queue_id=queue_id))

    def send_oneway(self, message: Message, *, queue_id: int | None = None) -> None:
        """As ``AsyncProducer.send_oneway``."""
        self._loop.run(self._producer.send_oneway(message, queue_id=queue_id))

    def send_batch(
        self, messages: Sequence[Message], *, queue_id: int | None = None
    ) -> SendResult:
        """As ``AsyncProducer.send_batch``."""
        return self._loop.run(self._producer.send_batch(messages, queue_id=queue_id))

    def queues(self, topic: str) -> list[MessageQueue]:
        """As ``AsyncProducer.queues``."""
        return self._loop.run(self._producer.queues(topic))

    def create_topic(
        self, topic: str, queues: int = DEFAULT_QUEUES, attributes: Mapping[str, str] | None = None
    ) -> None:
        """As ``AsyncProducer.create_topic``."""
        self._loop.run(self._producer.create_topic(topic, queues, attributes))
