"""Push consumers: members of a group that have messages delivered to a function."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from typing import Any, Final, Self, final

from tailrace.client.allocation import Strategy, strategy_of
from tailrace.client.assigned_queues import AssignedQueues, Limits
from tailrace.client.broker_calls import BrokerCalls, decode_one
from tailrace.client.group_member import RETRY_PREFIX, GroupMember, MemberSettings, Start
from tailrace.client.instance import InstanceShare, Target
from tailrace.client.listening import Listener, ListenerCalls, RetryLater, key_of
from tailrace.client.offset_store import BrokerOffsets, FileOffsets, OffsetStore
from tailrace.client.process_queue import ProcessQueue
from tailrace.client.routes import MessageQueue
from tailrace.client.running_info import ConsumeRates, running_info
from tailrace.client.subscription import Sql, Subscription, Topics, expressions
from tailrace.env.clock import Clock, SystemClock
from tailrace.env.loop_thread import EventLoopThread
from tailrace.errors import ConfigError, RemotingCommandError, RemotingError
from tailrace.formats import fastjson
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests.consumer_headers import GetConsumerRunningInfoRequestHeader
from tailrace.logs import get_logger
from tailrace.model import MessageExt

__all__ = ["AsyncPushConsumer", "PushConsumer"]

_log = get_logger(__name__)

RETRIES: Final = 16
"""Deliveries after the first one, before a message is a dead letter."""
SEND_BACK_AGAIN_S: Final = 5.0
"""Until a message that could not be sent back is consumed again here."""


@final
class AsyncPushConsumer:
    """Calls ``listener`` for each message of the queues that this member of ``group`` has.

    Use it in one event loop, as an asynchronous context manager, or with `start` and `close`. The listener is
    a plain function, which runs in threads, or a coroutine function. When it returns, the message is consumed;
    when it raises or returns False, the message is delivered again. Delivery is at least once.
    """

    def __init__(
        self, group: str, listener: Listener, *, namesrv: str = "", broker: str = "", topics: Topics = (),
        start: str = "last", start_time_ms: int | None = None, in_order: bool = False,
        broadcasting: bool = False, offset_file: str = "", concurrency: int = 20, auto_commit: bool = True,
        commit_interval_s: float = 1.0, max_reconsume_times: int | None = None, suspend_s: float = 1.0,
        consume_timeout_s: float = 900.0, max_cached_messages: int = 1_000, max_cached_bytes: int = 64 << 20,
        pull_batch: int = 32, strategy: Strategy | str = "AVG", timeout_ms: int = 3000,
        close_timeout_s: float = 30.0, clock: Clock | None = None,
    ) -> None:
        """Set it up; nothing is sent before `start`. docs/how-to/consume.md describes the arguments."""
        _check(group, listener, start, concurrency=concurrency, max_cached_messages=max_cached_messages,
               max_cached_bytes=max_cached_bytes, pull_batch=pull_batch, commit_interval_s=commit_interval_s,
               offset_file=offset_file, broadcasting=broadcasting)
        self._group = group
        self._clock = clock or SystemClock()
        self._share = InstanceShare(Target(namesrv, broker, timeout_ms, clock), (group, True))
        self._wanted: dict[str, Subscription] = {}
        self._version = self._clock.now_ms()
        for topic, expression in expressions(topics):
            self._want(topic, expression)
        self._limits = Limits(max_cached_messages, max_cached_bytes, pull_batch)
        self._settings = MemberSettings(
            strategy_of(strategy), Start(start, start_time_ms), in_order, broadcasting, False, auto_commit,
            commit_interval_s)
        self._offset_file = offset_file
        self._concurrency = concurrency
        self._most = max_reconsume_times
        self._suspend_s = suspend_s
        self._consume_timeout_s = None if in_order else consume_timeout_s
        self._close_timeout_s = close_timeout_s
        self.calls_of_listener = ListenerCalls(listener, group, concurrency)
        self._rates = ConsumeRates(self._clock)
        self._started_ms = 0
        self._workers: set[asyncio.Task[None]] = set()
        self._offsets: OffsetStore | None = None
        self._closing = False
        self._ended = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- life

    async def start(self) -> None:
        """Join the group; on return the member has its first queues.

        Raises RemotingError if no broker can be reached, RemotingCommandError for an expression of SQL92 that
        cannot be compiled, ConfigError or StoreLockedError for a broadcasting consumer without a file of its own.
        """
        if self._workers:
            return
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise

    async def _start(self) -> None:
        settings = self._settings
        calls = self._calls = BrokerCalls(self._share.instance, self._group)
        retry_topic = "" if settings.broadcasting else f"{RETRY_PREFIX}{self._group}"
        if retry_topic:
            self._want(retry_topic, "*")
        for one in self._wanted.values():
            await self._check_filter(one)
        offsets: OffsetStore
        offsets = self._offsets = FileOffsets(self._offset_file) if settings.broadcasting else BrokerOffsets(calls)
        self._queues = AssignedQueues(
            calls, offsets, self._wanted, self._limits, self._clock, in_order=settings.in_order,
            auto_commit=settings.auto_commit, retry_topic=retry_topic,
            commit_in_pulls=not settings.broadcasting, register=self._register)
        self._member = GroupMember(calls, self._queues, offsets, self._wanted, settings, {
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info})
        self._started_ms = self._clock.now_ms()
        self._workers = {asyncio.create_task(self._work()) for _ in range(self._concurrency)}
        await self._member.start()
        _log.info("consumer started group=%s client=%s", self._group, self._share.instance.client_id)

    async def _register(self) -> None:
        await self._member.register()

    async def close(self) -> None:
        """Take no more messages, wait for running listeners, commit, and leave the group.

        Listeners that need more than ``close_timeout_s`` are left alone; their messages are delivered again.
        A second call does nothing.
        """
        if asyncio.current_task() in self._workers:
            raise RuntimeError("a listener cannot close its consumer; set an event that the main program waits for")
        if self._closing:
            await self._ended.wait()
            return
        self._closing = True
        try:
            await self._close()
        finally:
            self.calls_of_listener.close()
            if self._offsets is not None:
                self._offsets.close()
            await self._share.close()
            self._ended.set()

    async def _close(self) -> None:
        if not self._workers:
            return
        await self._member.stop()
        self._queues.stop()
        _, late = await asyncio.wait(self._workers, timeout=self._close_timeout_s)
        for task in late:
            task.cancel()
        if late:
            _log.warning("consumer closed before its listeners ended group=%s listeners=%d", self._group, len(late))
        await asyncio.gather(*late, return_exceptions=True)
        await self._member.leave()
        _log.info("consumer closed group=%s", self._group)

    async def wait(self) -> None:
        """Wait until the consumer is closed."""
        await self._ended.wait()

    # --- what is consumed

    async def subscribe(self, topic: str, tags: str = "*", sql: str = "") -> None:
        """Consume a topic, too, or with another expression. All members of a group have to subscribe to the same."""
        one = Subscription.of(topic, tags, sql)
        if self._workers:
            await self._check_filter(one)
        self._want(topic, Sql(sql) if sql else tags)
        if self._workers:
            await self._member.subscriptions_changed()

    async def unsubscribe(self, topic: str) -> None:
        """Consume a topic no more."""
        self._wanted.pop(topic, None)
        if self._workers:
            await self._member.subscriptions_changed()

    async def assignment(self) -> list[MessageQueue]:
        """Return the queues that this member has, without those of messages that are delivered again."""
        return sorted(one.queue for one in self._assigned())

    async def positions(self) -> dict[MessageQueue, int]:
        """Return the offset of the first message of each queue that is not consumed."""
        return {one.queue: one.commit_offset for one in self._assigned()}

    async def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Deliver no messages of these queues, or of none; calls that run go on."""
        self._running_queues().pause(queues)

    async def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Deliver again what `pause` has held back."""
        self._running_queues().resume(queues)

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at an offset of a queue, which is committed, too. Raises ValueError if another member has it."""
        one = self._running_queues().find(queue)
        if one is None or one.dropped:
            raise ValueError(f"{queue} is not assigned to this member; see assignment()")
        await self._queues.restart(one, offset)

    async def seek_to_time(self, topic: str, timestamp_ms: int) -> None:
        """Go on at the first message stored at or after a time, in the queues of a topic that this member has."""
        for queue in await self.assignment():
            if queue.topic == topic:
                await self.seek(queue, await self._calls.offset_by_time(queue, timestamp_ms))

    async def commit(self) -> None:
        """Commit now what is consumed. Raises RemotingError if a broker does not take it."""
        failed = await self._running_queues().commit()
        if failed:
            queue, error = next(iter(failed.items()))
            raise RemotingError(f"offsets of {len(failed)} queues are not committed, {queue}: {error}")

    def _running_queues(self) -> AssignedQueues:
        if not self._workers or self._closing:
            raise RemotingError("the consumer is closed" if self._closing else "the consumer is not started")
        return self._queues

    def _assigned(self) -> list[ProcessQueue]:
        return [one for one in self._running_queues().all()
                if not one.dropped and not one.queue.topic.startswith(RETRY_PREFIX)]

    def _want(self, topic: str, expression: str | Sql) -> None:
        self._version = max(self._version + 1, self._clock.now_ms())
        one = Subscription.of(topic, sql=expression.expression) if isinstance(expression, Sql) else (
            Subscription.of(topic, expression))
        one.version = self._version
        self._wanted[topic] = one

    async def _check_filter(self, one: Subscription) -> None:
        if not one.is_sql:
            return
        try:
            await BrokerCalls(self._share.instance, self._group).check_filter(one)
        except RemotingCommandError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise

    # --- listeners

    async def _work(self) -> None:
        while (found := await self._queues.take()) is not None:
            one, message = found
            try:
                await self._consume(one, message)
            except Exception as error:  # noqa: BLE001 - or the worker would be gone
                _log.error("message not consumed, tried again group=%s topic=%s queue=%d offset=%d reason=%r",
                           self._group, message.topic, message.queue_id, message.queue_offset, error)
                self._queues.put_back(one, message, SEND_BACK_AGAIN_S)

    async def _consume(self, one: ProcessQueue, message: MessageExt) -> None:
        if self._settings.in_order and not await self._member.has_lock(one):
            self._queues.put_back(one, message, self._suspend_s)
            return
        later = await self._outcome(message)
        if later is None:
            self._queues.done(one, message)
        elif self._settings.in_order:
            await self._suspend(one, message, later)
        elif self._settings.broadcasting:
            _log.warning("message of a broadcasting consumer is dropped after a failure group=%s topic=%s queue=%d "
                         "offset=%d key=%s", self._group, message.topic, message.queue_id, message.queue_offset,
                         key_of(message))
            self._queues.done(one, message)
        elif one.dropped:  # the next member consumes it
            self._queues.done(one, message, consumed=False)
        elif await self._send_back(one, message, later.delay_level, RETRIES if self._most is None else self._most):
            self._queues.done(one, message)
        else:
            message.reconsume_times += 1
            self._queues.put_back(one, message, SEND_BACK_AGAIN_S)

    async def _outcome(self, message: MessageExt) -> RetryLater | None:
        began_ns = self._clock.monotonic_ns()
        later = await self.calls_of_listener.outcome(message, message.queue_offset, self._consume_timeout_s)
        took_ms = (self._clock.monotonic_ns() - began_ns) // 1_000_000
        self._rates.add(message.topic, took_ms, ok=later is None)
        return later

    async def _suspend(self, one: ProcessQueue, message: MessageExt, later: RetryLater) -> None:
        """Deliver a message again before those after it, or make it a dead letter after too many deliveries."""
        dead = later.delay_level < 0 or (self._most is not None and message.reconsume_times >= self._most)
        if dead and (self._settings.broadcasting or await self._send_back(one, message, -1, self._most or 0)):
            self._queues.done(one, message)
            return
        message.reconsume_times += 1
        self._queues.put_back(one, message, self._suspend_s if later.after_s is None else later.after_s)

    async def _send_back(self, one: ProcessQueue, message: MessageExt, level: int, most: int) -> bool:
        try:
            await self._calls.send_back(one.queue, message, level, most)
        except RemotingError as error:
            _log.warning("message not sent back, consumed again here group=%s topic=%s queue=%d offset=%d key=%s "
                         "reason=%s", self._group, message.topic, message.queue_id, message.queue_offset,
                         key_of(message), error)
            return False
        return True

    # --- requests of brokers

    async def _consume_directly(self, request: RemotingCommand) -> RemotingCommand:
        """Call the listener for a message that an administrator has chosen: request 309."""
        message = decode_one(request.body)
        if message.topic == f"{RETRY_PREFIX}{self._group}":
            message.topic = message.properties.get("RETRY_TOPIC", message.topic)
        began_ns = self._clock.monotonic_ns()
        result, remark = "CR_SUCCESS", None
        try:
            if await self.calls_of_listener.result(message) is False:
                result = "CR_LATER"
        except RetryLater:
            result = "CR_LATER"
        except Exception as error:  # noqa: BLE001 - of the program's own function; the administrator sees it
            result, remark = "CR_THROW_EXCEPTION", f"{type(error).__name__}: {error}"
        return request.answer(body=fastjson.dumps({
            "autoCommit": True, "consumeResult": result, "order": self._settings.in_order, "remark": remark,
            "spentTimeMills": (self._clock.monotonic_ns() - began_ns) // 1_000_000}))

    async def _running_info(self, request: RemotingCommand) -> RemotingCommand:
        """Tell an administrator about this consumer: request 307."""
        header = request.read(GetConsumerRunningInfoRequestHeader)
        settings = self._settings
        properties = {
            "PROP_CLIENT_VERSION": "V5_3_3", "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_CONSUMEORDERLY": str(settings.in_order).lower(),
            "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
            "PROP_NAMESERVER_ADDR": self._share.instance.target.namesrv,
            "PROP_THREADPOOL_CORE_SIZE": str(self._concurrency),
            "messageModel": "BROADCASTING" if settings.broadcasting else "CLUSTERING",
            "consumeFromWhere": settings.start.name}
        return request.answer(body=running_info(
            properties, self._wanted.values(), self._queues.all(), self._rates, in_order=settings.in_order,
            stacks=header.jstack_enable))


def _check(group: str, listener: object, start: str, **values: Any) -> None:
    """Raise ConfigError with all problems of the arguments."""
    problems = []
    if not group:
        problems.append("group is empty; name the group whose members share the messages")
    if not callable(listener):
        problems.append(f"listener={listener!r} is not a function")
    if start not in {"first", "last"}:
        problems.append(f"start={start!r} is neither 'first' nor 'last'; for a time use start_time_ms")
    offset_file, broadcasting = values.pop("offset_file"), values.pop("broadcasting")
    problems += [f"{name}={value!r} is not above 0" for name, value in values.items() if not value > 0]
    if broadcasting != bool(offset_file):
        problems.append(
            "a broadcasting consumer keeps its offsets in a file of its own: name it in offset_file" if broadcasting
            else "offset_file is for broadcasting=True; other offsets are on the brokers")
    if problems:
        raise ConfigError(*problems)


@final
class PushConsumer:
    """The blocking face of ``AsyncPushConsumer``; any thread may call it, except a listener's `close`."""

    def __init__(
        self, group: str, listener: Listener, *, namesrv: str = "", broker: str = "", topics: Topics = (),
        start: str = "last", start_time_ms: int | None = None, in_order: bool = False,
        broadcasting: bool = False, offset_file: str = "", concurrency: int = 20, auto_commit: bool = True,
        commit_interval_s: float = 1.0, max_reconsume_times: int | None = None, suspend_s: float = 1.0,
        consume_timeout_s: float = 900.0, max_cached_messages: int = 1_000, max_cached_bytes: int = 64 << 20,
        pull_batch: int = 32, strategy: Strategy | str = "AVG", timeout_ms: int = 3000,
        close_timeout_s: float = 30.0, clock: Clock | None = None,
    ) -> None:
        """As ``AsyncPushConsumer``."""
        self._consumer = AsyncPushConsumer(
            group, listener, namesrv=namesrv, broker=broker, topics=topics, start=start,
            start_time_ms=start_time_ms, in_order=in_order, broadcasting=broadcasting, offset_file=offset_file,
            concurrency=concurrency, auto_commit=auto_commit, commit_interval_s=commit_interval_s,
            max_reconsume_times=max_reconsume_times, suspend_s=suspend_s, consume_timeout_s=consume_timeout_s,
            max_cached_messages=max_cached_messages, max_cached_bytes=max_cached_bytes, pull_batch=pull_batch,
            strategy=strategy, timeout_ms=timeout_ms, close_timeout_s=close_timeout_s, clock=clock)
        self._loop = EventLoopThread()
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """As ``AsyncPushConsumer.start``."""
        try:
            self._loop.run(self._consumer.start())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """As ``AsyncPushConsumer.close``."""
        if threading.current_thread().name.startswith(self._consumer.calls_of_listener.thread_prefix):
            raise RuntimeError("a listener cannot close its consumer; set an event that the main program waits for")
        if not self._loop.closed:
            self._loop.run(self._consumer.close())
            self._loop.close()
            self._ended.set()

    def wait(self) -> None:
        """As ``AsyncPushConsumer.wait``."""
        self._ended.wait()

    def subscribe(self, topic: str, tags: str = "*", sql: str = "") -> None:
        """As ``AsyncPushConsumer.subscribe``."""
        self._loop.run(self._consumer.subscribe(topic, tags, sql))

    def unsubscribe(self, topic: str) -> None:
        """As ``AsyncPushConsumer.unsubscribe``."""
        self._loop.run(self._consumer.unsubscribe(topic))

    def assignment(self) -> list[MessageQueue]:
        """As ``AsyncPushConsumer.assignment``."""
        return self._loop.run(self._consumer.assignment())

    def positions(self) -> dict[MessageQueue, int]:
        """As ``AsyncPushConsumer.positions``."""
        return self._loop.run(self._consumer.positions())

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """As ``AsyncPushConsumer.pause``."""
        self._loop.run(self._consumer.pause(queues))

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """As ``AsyncPushConsumer.resume``."""
        self._loop.run(self._consumer.resume(queues))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """As ``AsyncPushConsumer.seek``."""
        self._loop.run(self._consumer.seek(queue, offset))

    def seek_to_time(self, topic: str, timestamp_ms: int) -> None:
        """As ``AsyncPushConsumer.seek_to_time``."""
        self._loop.run(self._consumer.seek_to_time(topic, timestamp_ms))

    def commit(self) -> None:
        """As ``AsyncPushConsumer.commit``."""
        self._loop.run(self._consumer.commit())
