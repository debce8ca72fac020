"""Producers: sending of single messages, batches, requests and transactional messages."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, Self, final

from tailrace.auth.signature import Credentials
from tailrace.client.arguments import Duration, check_group, in_ms, in_s, not_above_zero
from tailrace.client.batching import Batches, BatchItem, BatchKey
from tailrace.client.blocking import arguments_of, blocking
from tailrace.client.credentials import credentials_of
from tailrace.client.instance import InstanceShare, Target
from tailrace.client.pending import Pending, ThreadLimit, Turns
from tailrace.client.request_reply import Requests, is_reply, reply_to
from tailrace.client.routes import DEFAULT_QUEUES, MessageQueue, Routes, topic_header
from tailrace.client.send_result import SendResult
from tailrace.client.sender import QueueSelector, Sender, Tries, by_key
from tailrace.client.telemetry import Telemetry
from tailrace.client.trace import TRACE_GROUP, MessageTrace
from tailrace.client.transactions import (
    CheckTransaction,
    Decision,
    Transactions,
    TransactionSendResult,
    called_in_thread,
    checked_decision,
)
from tailrace.env.clock import Clock, SystemClock
from tailrace.env.loop_thread import EventLoopThread
from tailrace.errors import (
    ConfigError,
    MessageIllegalError,
    RemotingCommandError,
    RemotingError,
    RemotingTimeoutError,
    RequestTimeoutError,
)
from tailrace.formats import names as N
from tailrace.formats.commitlog import SysFlag, encode_batch
from tailrace.formats.copied_properties import COPY_ROOM, fitting
from tailrace.formats.recall_handle import parse_handle
from tailrace.formats.remoting import RequestCode, ResponseCode
from tailrace.formats.requests.message_headers import (
    RecallMessageRequestHeader,
    RecallMessageResponseHeader,
)
from tailrace.model import Message, MessageExt
from tailrace.remoting.client import RemotingClient
from tailrace.remoting.tls import TlsOptions, options_of

__all__ = ["AsyncProducer", "Producer", "QueueSelector", "send_again"]

_OF_BROKERS: Final = frozenset({N.TRAN_MSG, N.WAIT, N.MIN_OFFSET, N.MAX_OFFSET, N.POP_CK, N.FIRST_POP_TIME})
"""Properties that a message loses when a consumer sends it again."""
_KEPT: Final = frozenset({N.ORIGIN_MESSAGE_ID, N.RETRY_TOPIC, N.DELAY})
RETRY_ROOM: Final = COPY_ROOM // 2
"""Bytes that a broker adds to a message that is sent to a retry topic."""
FIRST_RETRY_LEVEL: Final = 3
"""Delay level of the first retry."""


@final
class AsyncProducer:
    """Sends messages; use it in one event loop, as an asynchronous context manager."""

    def __init__(
        self, namesrv: str = "", *, broker: str = "", group: str = "DEFAULT_PRODUCER",
        timeout_ms: Duration = 3000, retries: int = 2, delivery_timeout: Duration | None = None,
        check: CheckTransaction | None = None,
        compression: str | None = None, compress_over: int = 4096, avoid_slow_brokers: bool = False,
        linger_ms: Duration = 0.0, batch_bytes: int = 32 << 10, max_pending_bytes: int = 32 << 20,
        trace: bool = False, trace_topic: str = N.TRACE_TOPIC, telemetry: Telemetry | None = None,
        tls: bool | TlsOptions = False, credentials: Credentials | str | None = None, clock: Clock | None = None,
    ) -> None:
        """Set up the producer; nothing is sent before the first call.

        docs/how-to/programs/send.md describes the arguments.

        ``namesrv`` is one or more name servers, separated by ``;``. ``broker`` names one broker instead.
        Durations are ms, or a text or timedelta such as ``"5s"``. ``timeout_ms`` limits each request. ``retries`` is
        the number of further tries of a send, without a pause. With ``delivery_timeout``, in seconds or such as
        ``"30s"``, a send is tried again for that time instead, with growing pauses; then DeliveryTimeoutError is
        raised. Its message may be stored, or stored twice.
        ``check`` decides about half messages that are pending, see ``send_in_transaction``.
        ``tls`` is True for TLS with the CAs of this machine, or TlsOptions. ``credentials`` are those of a user,
        or the path of a file with them; without them those of the environment.
        """
        check_group(group)
        if check is not None and not callable(check):
            raise ConfigError(f"check={check!r} is not a function")
        timeout_ms, linger_ms = round(in_ms("timeout_ms", timeout_ms)), in_ms("linger_ms", linger_ms)
        delivery_ms = None if delivery_timeout is None else round(in_s("delivery_timeout", delivery_timeout) * 1_000)
        _check(retries, timeout_ms=timeout_ms, compress_over=compress_over, batch_bytes=batch_bytes,
               max_pending_bytes=max_pending_bytes, delivery_timeout=1 if delivery_ms is None else delivery_ms)
        self._group = group
        self._timeout_ms = timeout_ms
        self._clock = clock or SystemClock()
        credentials = credentials_of(credentials)
        self._share = InstanceShare(
            Target(namesrv, broker, timeout_ms, clock, options_of(tls), credentials),
            None if check is None else (group, False))
        self._sender = Sender(
            self._share, group, timeout_ms, retries, self._clock, compression=compression,
            compress_over=compress_over, avoid_slow_brokers=avoid_slow_brokers,
            delivery_ms=delivery_ms)
        self._telemetry = telemetry
        self._tracer: AsyncProducer | None = None
        self._trace: MessageTrace | None = None
        if trace:
            self._tracer = AsyncProducer(
                namesrv=namesrv, broker=broker, group=TRACE_GROUP, timeout_ms=timeout_ms, tls=tls,
                credentials=credentials,
                clock=clock)
            self._trace = MessageTrace(self._tracer.send, group, self._clock, trace_topic)
        self._transactions = None if check is None else Transactions(
            self._share, group, check, timeout_ms, self._trace)
        self._requests = Requests(self._share, group, self._clock)
        self._batches = Batches(self._send_items, linger_ms / 1000, batch_bytes) if linger_ms > 0 else None
        self._batch_bytes = batch_bytes
        self._pending = Pending(max_pending_bytes)
        self._turns = Turns()
        self._under_way = 0
        self._idle = asyncio.Event()
        """Set when the last call of `send` that is under way ends."""
        self._closing = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Wait for calls of `send` that are under way, and close connections that no other client of the loop uses."""
        self._closing = True
        if self._batches is not None:
            await self._batches.flush()
        while self._under_way:
            self._idle.clear()
            await self._idle.wait()
        await self._requests.close()
        if self._trace is not None and self._tracer is not None:
            await self._trace.close()
            await self._tracer.close()
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
        self, message: Message, *, queue_id: int | None = None, selector: QueueSelector | None = None,
        ordering_key: str | None = None,
    ) -> SendResult:
        """Send one message and wait until it is stored.

        The queues are used in turn, unless ``queue_id`` or ``selector`` chooses one. Messages with the same
        ``ordering_key`` go to one queue, in the order of the calls: each is sent after the previous one is stored. A
        send that fails for a temporary reason is retried, on another queue if possible. A message may then be stored
        twice, with the same ``msg_id``. Raises MessageIllegalError, RemotingCommandError (the broker's refusal) or
        another RemotingError.
        """
        if not isinstance(message, Message):
            raise TypeError(f"message is a Message(topic=..., body=...), not {message!r}")
        if ordering_key is not None:
            if queue_id is not None or selector is not None:
                raise MessageIllegalError("ordering_key", "is given with queue_id or selector; give one of them")
            message = dataclasses.replace(message, properties={**message.properties, N.SHARDING_KEY: ordering_key})
        if self._closing:
            raise RemotingError("the client is closed")
        self._under_way += 1
        try:
            if self._telemetry is None:
                return await self._send_now(message, queue_id, selector, ordering_key)
            with self._telemetry.sending([message], self._group) as ([one], span):
                result = await self._send_now(one, queue_id, selector, ordering_key)
                self._telemetry.stored(span, result)
                return result
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    async def _send_now(
        self, message: Message, queue_id: int | None, selector: QueueSelector | None, ordering_key: str | None
    ) -> SendResult:
        if self._batches is not None and self._may_wait(message):
            return await self._send_in_batch(self._batches, message, queue_id, selector, ordering_key)
        if ordering_key is None:
            return await self._send_one(message, {}, queue_id, selector)
        async with self._turns.of((message.topic, ordering_key)):
            return await self._send_one(message, {}, None, by_key(ordering_key))

    def _may_wait(self, message: Message) -> bool:
        """Return whether a message may be part of a batch."""
        body: Any = message.body
        return isinstance(body, bytes | bytearray) and not (
            message.deliver_at is not None or message.delay is not None or message.delay_level
            or is_reply(message) or N.PRIORITY in message.properties or len(message.body) >= self._batch_bytes
            or self._sender.compresses(message))

    async def _send_in_batch(
        self, batches: Batches, message: Message, queue_id: int | None, selector: QueueSelector | None,
        ordering_key: str | None,
    ) -> SendResult:
        unique_key, properties = self._sender.properties(message)
        item = BatchItem(message.flag, message.body, properties, unique_key)
        size = len(message.body) + len(properties)
        began_ms = self._clock.now_ms()
        if selector is None and ordering_key is None:
            if not self._pending.try_enter(size):
                await self._pending.enter(size)
            future = batches.add(BatchKey(message.topic, queue_id), item)
        else:
            future = await self._add_to_chosen(batches, message, item, size, selector, ordering_key)
        try:
            result = await future
        finally:
            self._pending.leave(size)
        if self._trace is not None:
            await self._traced(message, result, began_ms)
        return result

    async def _add_to_chosen(
        self, batches: Batches, message: Message, item: BatchItem, size: int, selector: QueueSelector | None,
        ordering_key: str | None,
    ) -> asyncio.Future[SendResult]:
        """Add a message to the batch of its queue; those of a key in the order of the calls."""
        turn = contextlib.nullcontext() if ordering_key is None else self._turns.of((message.topic, ordering_key))
        async with turn:
            chosen_by = selector if ordering_key is None else by_key(ordering_key)
            route = await self._sender.route(message.topic)
            chosen = self._sender.choose(route, message, None, chosen_by, "")
            await self._pending.enter(size)
            return batches.add(BatchKey(message.topic, chosen.queue_id, ordering_key is not None), item)

    async def _traced(self, message: Message, result: SendResult, began_ms: int, *, half: bool = False) -> None:
        if self._trace is not None:
            self._trace.sent(
                message, result, await self._address(message.topic, result.broker_name), began_ms, half=half)

    async def _address(self, topic: str, broker_name: str) -> str:
        """Return the address of a broker that has stored a message; "" if it cannot be found out now."""
        with contextlib.suppress(RemotingError):
            return (await self._routes.of(topic, for_write=True)).addresses.get(broker_name, "")
        return ""

    async def _send_items(self, key: BatchKey, items: list[BatchItem]) -> SendResult:
        if len(items) == 1:
            one = items[0]
            return await self._send_encoded(
                key.topic, one.body, one.properties, key.queue_id, one.unique_key, one.flag)
        return await self._send_together(key.topic, items, key.queue_id)

    async def _send_together(
        self, topic: str, items: Sequence[BatchItem], queue_id: int | None
    ) -> SendResult:
        return await self._send_encoded(
            topic, encode_batch(item[:3] for item in items), None, queue_id,
            ",".join(item.unique_key for item in items))

    async def send_encoded(
        self, topic: str, body: bytes, properties: bytes | None = None, *, queue_id: int | None = None
    ) -> SendResult:
        """Send a message that is encoded already: its body and stored properties, or the body of a batch request.

        They are not checked. ``msg_id`` of the result is empty. There is neither a trace nor telemetry.
        """
        return await self._send_encoded(topic, body, properties, queue_id)

    async def _send_encoded(
        self, topic: str, body: bytes, properties: bytes | None, queue_id: int | None, unique_key: str = "",
        flag: int = 0,
    ) -> SendResult:
        header = self._sender.header_of(topic, flag, (properties or b"").decode())
        header.batch = properties is None
        code = RequestCode.SEND_BATCH_MESSAGE if header.batch else RequestCode.SEND_MESSAGE_V2
        return await self._sender.send(
            code, Message(topic=topic, body=b""), header, body, unique_key, queue_id, None)

    async def recall(self, topic: str, recall_handle: str) -> str:
        """Delete a timer message before it is due, by the ``recall_handle`` of its `SendResult`.

        Returns the ``msg_id`` of the message. If it is due at this moment, it may still be delivered. Raises
        MessageIllegalError for what is not a handle, and RemotingCommandError if the broker refuses: the message was
        due, or it was recalled already (a Java broker accepts a second recall).
        """
        handle = parse_handle(recall_handle)
        address = (await self._routes.of(topic, for_write=True)).addresses.get(handle.broker_name)
        if address is None:
            raise RemotingCommandError(ResponseCode.TOPIC_NOT_EXIST, f"no broker {handle.broker_name} has {topic}")
        answer = await self._remoting.invoke(
            address, RequestCode.RECALL_MESSAGE,
            RecallMessageRequestHeader(topic, recall_handle, self._group).to_ext(), timeout_ms=self._timeout_ms)
        if answer.code != ResponseCode.SUCCESS:
            due = handle.timestamp_ms <= self._clock.now_ms() and "is delivered" not in (answer.remark or "")
            raise RemotingCommandError(
                answer.code, (answer.remark or "") + ("; the message was due and is delivered" if due else ""), address)
        msg_id = answer.read(RecallMessageResponseHeader).msg_id
        if self._trace is not None and (region := answer.ext.get(N.MSG_REGION)):
            self._trace.recalled(topic, msg_id, region)
        return msg_id

    async def request(
        self, message: Message, *, timeout_ms: Duration = 3000, queue_id: int | None = None,
        selector: QueueSelector | None = None,
    ) -> MessageExt:
        """Send a message and wait up to ``timeout_ms`` for the reply of one of its consumers.

        A consumer answers with `reply`. Raises RequestTimeoutError if no reply came, RemotingTimeoutError if the
        message could not be sent in this time, and what `send` raises.
        """
        timeout_ms = round(in_ms("timeout_ms", timeout_ms))
        properties, reply = self._requests.open(timeout_ms)
        sent = False
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                route = await self._routes.of(message.topic, for_write=True)
                await self._requests.join(message.topic, set(route.addresses.values()))
                await self._observed("request", message, properties, queue_id, selector)
                sent = True
                return await reply
        except TimeoutError:
            if sent:
                raise RequestTimeoutError(message.topic, timeout_ms) from None
            raise RemotingTimeoutError(f"the broker of topic {message.topic}", timeout_ms) from None
        finally:
            self._requests.forget(properties)

    async def reply(self, request: MessageExt, body: bytes) -> SendResult:
        """Answer a message that was sent with `request`; the broker pushes ``body`` to the program that waits.

        Raises MessageIllegalError for any other message, and RemotingCommandError if the broker does not find the
        producer, for example because it has ended.
        """
        return await self._observed("reply", reply_to(request, body), {}, None, None)

    async def _observed(
        self, operation: str, message: Message, more: Mapping[str, str], queue_id: int | None,
        selector: QueueSelector | None,
    ) -> SendResult:
        if self._telemetry is None:
            return await self._send_one(message, more, queue_id, selector)
        with self._telemetry.sending([message], self._group, operation) as ([one], span):
            result = await self._send_one(one, more, queue_id, selector)
            self._telemetry.stored(span, result)
            return result

    async def _send_one(
        self, message: Message, more: Mapping[str, str], queue_id: int | None, selector: QueueSelector | None,
        reconsumed: tuple[int, int] | None = None,
    ) -> SendResult:
        unique_key, properties = self._sender.properties(message, **more)
        header = self._sender.header_of(message.topic, message.flag, properties.decode())
        if reconsumed is not None:
            header.reconsume_times, header.max_reconsume_times = reconsumed
        code = RequestCode.SEND_REPLY_MESSAGE_V2 if is_reply(message) else RequestCode.SEND_MESSAGE_V2
        body = self._sender.body_of(message, header)
        size = len(body)
        began_ms = self._clock.now_ms()
        await self._pending.enter(size)
        try:
            result = await self._sender.send(code, message, header, body, unique_key, queue_id, selector)
        finally:
            self._pending.leave(size)
        await self._traced(message, result, began_ms)
        return result

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
        tries = self._sender.tries()

        async def join(tries: Tries) -> None:
            route = await self._sender.route_once(message.topic, tries)
            await transactions.join(message.topic, set(route.addresses.values()))

        await self._sender.until_done(message.topic, join, tries)
        if self._telemetry is None:
            sent = await self._send_half(message, queue_id, selector, tries)
        else:
            with self._telemetry.sending([message], self._group, "send_in_transaction") as ([one], span):
                sent = await self._send_half(one, queue_id, selector, tries)
                self._telemetry.stored(span, sent)
        found = local(message)
        decision = checked_decision(await found if inspect.isawaitable(found) else found)
        await transactions.end(await self._address(message.topic, sent.broker_name), message, sent, decision)
        return TransactionSendResult(**dataclasses.asdict(sent), decision=decision)

    async def _send_half(
        self, message: Message, queue_id: int | None, selector: QueueSelector | None, tries: Tries
    ) -> SendResult:
        unique_key, stored = self._sender.properties(message, TRAN_MSG="true", PGROUP=self._group)
        header = self._sender.header_of(message.topic, message.flag, stored.decode())
        header.sys_flag = int(SysFlag.TRANSACTION_PREPARED)
        body = self._sender.body_of(message, header)
        began_ms = self._clock.now_ms()
        sent = await self._sender.send(
            RequestCode.SEND_MESSAGE_V2, message, header, body, unique_key, queue_id, selector, tries.next())
        await self._traced(message, sent, began_ms, half=True)
        return sent

    async def send_batch(
        self, messages: Sequence[Message], *, queue_id: int | None = None
    ) -> SendResult:
        """Send messages of one topic to one queue in one request; all are stored, or none."""
        if isinstance(messages, Message | str):
            raise TypeError(f"messages is a list of Message; write send_batch([...]), not {messages!r}")
        if not messages:
            raise MessageIllegalError("batch", "has no message")
        if self._telemetry is None:
            return await self._send_batch(messages, queue_id)
        with self._telemetry.sending(messages, self._group) as (carriers, _):
            return await self._send_batch(carriers, queue_id)

    async def _send_batch(self, messages: Sequence[Message], queue_id: int | None) -> SendResult:
        topic = messages[0].topic
        items = []
        for message in messages:
            if message.topic != topic:
                raise MessageIllegalError("batch", f"has topics {topic} and {message.topic}")
            if message.deliver_at is not None or message.delay is not None or message.delay_level:
                raise MessageIllegalError("delay", "a message of a batch cannot be delayed")
            unique_key, properties = self._sender.properties(message)
            items.append(BatchItem(message.flag, message.body, properties, unique_key))
        began_ms = self._clock.now_ms()
        result = await self._send_together(topic, items, queue_id)
        if self._trace is not None:
            ids = result.offset_msg_id.split(",")
            for number, (message, item) in enumerate(zip(messages, items, strict=True)):
                stored = dataclasses.replace(
                    result, msg_id=item.unique_key, offset_msg_id=ids[number] if number < len(ids) else "")
                await self._traced(message, stored, began_ms)
        return result

    async def send_oneway(self, message: Message, *, queue_id: int | None = None) -> None:
        """Send without waiting for an answer. The loss of the message is not reported.

        Raises RemotingTimeoutError if the broker does not read earlier messages within ``timeout_ms``.
        """
        if self._telemetry is None:
            await self._send_oneway(message, queue_id)
            return
        with self._telemetry.sending([message], self._group) as ([one], _):
            await self._send_oneway(one, queue_id)

    async def _send_oneway(self, message: Message, queue_id: int | None) -> None:
        _, properties = self._sender.properties(message)
        header = self._sender.header_of(message.topic, message.flag, properties.decode())
        route = await self._routes.of(message.topic, for_write=True)
        queue = self._sender.choose(route, message, queue_id, None, "")
        header.queue_id = queue.queue_id
        body = self._sender.body_of(message, header)
        await self._remoting.invoke_oneway(
            route.addresses[queue.broker_name], RequestCode.SEND_MESSAGE_V2, header.to_ext(), body,
            timeout_ms=self._timeout_ms)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic that can be written."""
        return list((await self._routes.of(topic, for_write=True)).write_queues)

    async def create_topic(
        self, topic: str, queues: int = DEFAULT_QUEUES, attributes: Mapping[str, str] | None = None
    ) -> list[str]:
        """Create a topic on every broker that is known, or change its queues and attributes.

        Return notes of the brokers: with fewer queues than before, how many messages are in those that are no longer
        read. A Java broker gives no notes.
        """
        addresses = await self._routes.brokers(topic)
        header = topic_header(topic, queues, attributes or {})
        notes = []
        for address in addresses:
            answer = await self._remoting.ask(
                address, RequestCode.UPDATE_AND_CREATE_TOPIC, header, timeout_ms=self._timeout_ms)
            if answer.remark:
                notes.append(answer.remark)
        self._routes.forget(topic)
        return notes


def _check(retries: Any, **values: float) -> None:
    """Raise ConfigError that names all numbers that are not above 0."""
    problems = not_above_zero(**values)
    if not isinstance(retries, int) or retries < 0:
        problems.append(f"retries={retries!r} is not a whole number from 0 on")
    if problems:
        raise ConfigError(*problems)


async def send_again(
    producer: AsyncProducer, message: MessageExt, retry_topic: str, reconsume_times: int, most: int
) -> None:
    """Send a message to the retry topic of a group, because its broker has refused to take it back.

    The broker makes it a dead letter if ``reconsume_times`` is above ``most``. Raises what ``send`` raises.
    """
    kept = {name: value for name, value in message.properties.items() if name not in _OF_BROKERS}
    properties, _ = fitting({
        N.ORIGIN_MESSAGE_ID: message.msg_id, **kept, N.RETRY_TOPIC: message.topic,
        N.DELAY: str(FIRST_RETRY_LEVEL + message.reconsume_times)}, _KEPT, RETRY_ROOM)
    copy = Message(topic=retry_topic, body=message.body, flag=message.flag, properties=properties)
    await producer._send_one(copy, {}, None, None, (reconsume_times, most))


@final
class Producer:
    """Sends messages. It blocks, and any thread may call it."""

    @arguments_of(AsyncProducer.__init__)
    def __init__(self, *args: Any, **options: Any) -> None:
        self._awaited = AsyncProducer(*args, **options)
        self._room = ThreadLimit(self._awaited._pending.most)
        self._loop = EventLoopThread()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Wait for sends that are under way, and close connections that no other client of the process uses.

        A second call does nothing.
        """
        if not self._loop.closed:
            self._loop.run(self._awaited.close())
            self._loop.close()

    send = blocking(AsyncProducer.send)
    request = blocking(AsyncProducer.request)
    reply = blocking(AsyncProducer.reply)
    recall = blocking(AsyncProducer.recall)
    send_batch = blocking(AsyncProducer.send_batch)
    send_encoded = blocking(AsyncProducer.send_encoded)
    send_oneway = blocking(AsyncProducer.send_oneway)
    queues = blocking(AsyncProducer.queues)
    create_topic = blocking(AsyncProducer.create_topic)

    def send_in_transaction(
        self, message: Message, local: Callable[[Message], Decision | Awaitable[Decision]], *,
        queue_id: int | None = None, selector: QueueSelector | None = None,
    ) -> TransactionSendResult:
        """As ``AsyncProducer.send_in_transaction``; a plain ``local`` is called in a thread of its own."""
        return self._loop.run(self._awaited.send_in_transaction(
            message, lambda half: called_in_thread(local, half), queue_id=queue_id, selector=selector))

    def send_async(
        self, message: Message, *, queue_id: int | None = None, selector: QueueSelector | None = None,
        ordering_key: str | None = None,
    ) -> Future[SendResult]:
        """Start a send; the future has its result or error.

        Blocks while `max_pending_bytes` are sent and not answered.
        """
        body: Any = message.body
        size = len(body) if isinstance(body, bytes | bytearray | memoryview) else 0
        self._room.enter(size)
        try:
            future = self._loop.submit(self._awaited.send(
                message, queue_id=queue_id, selector=selector, ordering_key=ordering_key))
        except BaseException:
            self._room.leave(size)
            raise
        future.add_done_callback(lambda _: self._room.leave(size))
        return future
