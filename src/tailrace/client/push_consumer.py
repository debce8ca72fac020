"""Push consumers: members of a group that have messages delivered to a function."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from typing import Any, Final, Self, final

from tailrace import events
from tailrace.auth.signature import Credentials
from tailrace.client.allocation import Strategy, strategy_of
from tailrace.client.arguments import Duration, Time, in_ms, in_s, in_time_ms, not_above_zero
from tailrace.client.assigned_queues import AssignedQueues, Limits
from tailrace.client.blocking import arguments_of, blocking
from tailrace.client.broker_calls import BrokerCalls, decode_one
from tailrace.client.consuming import Consuming, Retries
from tailrace.client.credentials import credentials_of
from tailrace.client.failures import Failures, OnError
from tailrace.client.group_member import GroupMember, MemberSettings, Start
from tailrace.client.instance import InstanceShare, Target
from tailrace.client.listening import BatchListener, Listener, ListenerCalls, RetryLater
from tailrace.client.offset_store import BrokerOffsets, FileOffsets, OffsetStore
from tailrace.client.pop_queues import Popping, PopQueue
from tailrace.client.process_queue import ProcessQueue
from tailrace.client.producer import AsyncProducer
from tailrace.client.routes import MessageQueue
from tailrace.client.running_info import ConsumeRates, running_info
from tailrace.client.send_result import SendResult
from tailrace.client.subscription import Subscription, Topics, subscriptions
from tailrace.client.telemetry import Telemetry
from tailrace.client.trace import MessageTrace
from tailrace.env.clock import Clock, SystemClock
from tailrace.env.loop_thread import EventLoopThread
from tailrace.errors import ConfigError, RemotingCommandError, RemotingError
from tailrace.formats import fastjson
from tailrace.formats.names import RETRY_GROUP_TOPIC_PREFIX, RETRY_TOPIC, TRACE_TOPIC
from tailrace.formats.pop import POP_MAX
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests.consumer_headers import GetConsumerRunningInfoRequestHeader
from tailrace.logs import get_logger
from tailrace.model import MessageExt
from tailrace.remoting.tls import TlsOptions, options_of

__all__ = ["AsyncPushConsumer", "PushConsumer"]

_log = get_logger(__name__)

INNER_PRODUCER: Final = "CLIENT_INNER_PRODUCER"
"""Group of what a consumer sends itself, as in RocketMQ."""
_CLOSED_BY_ITSELF: Final = (
    "a listener or on_error cannot close its consumer; set an event that the main program waits for")
POP_INVISIBLE_MIN_S: Final = 5.0
POP_INVISIBLE_MAX_S: Final = 300.0
"""Limits of RocketMQ."""


@final
class AsyncPushConsumer:
    """Calls ``listener`` for each message of the queues that this member of ``group`` has.

    Use it in one event loop, as an asynchronous context manager, or with `start` and `close`. The listener is
    a plain function, which runs in threads, or a coroutine function; with ``batch_size`` it gets a list of messages.
    When it returns, the message is consumed; when it raises or returns False, the message is delivered again. Delivery
    is at least once.
    """

    def __init__(
        self, group: str, listener: Listener | BatchListener, *, namesrv: str = "", broker: str = "",
        topics: Topics = (),
        start: str = "last", start_time_ms: Time | None = None, in_order: bool = False,
        broadcasting: bool = False, offset_file: str = "", concurrency: int = 20,
        batch_size: int | None = None, auto_commit: bool = True,
        commit_interval_s: Duration = 1.0, max_reconsume_times: int | None = None, suspend_s: Duration = 1.0,
        consume_timeout_s: Duration = 900.0, max_cached_messages: int = 1_000, max_cached_bytes: int = 64 << 20,
        pull_batch: int = 32, strategy: Strategy | str = "AVG", client_rebalance: bool = True,
        pop_invisible_s: Duration = 60.0, timeout_ms: Duration = 3000, close_timeout_s: Duration = 30.0,
        on_error: OnError | None = None,
        trace: bool = False, trace_topic: str = TRACE_TOPIC, telemetry: Telemetry | None = None,
        tls: bool | TlsOptions = False, credentials: Credentials | str | None = None, clock: Clock | None = None,
    ) -> None:
        """Set it up; nothing is sent before `start`. docs/how-to/programs/consume.md describes the arguments.

        A number for a duration is in the unit of its name; a text or timedelta such as ``"5s"`` has its own.
        ``on_error`` is called with a `ConsumerFailure` for each call of the listener that fails and each dead letter,
        and for another failure once until it ends. Each of them was also logged. One call runs at a time: a coroutine
        function in the event loop, a plain function in a thread of its own. If it raises, that is logged, and the
        consumer continues. `start` raises its own errors instead.
        """
        if on_error is not None and not callable(on_error):
            raise ConfigError(f"on_error={on_error!r} is not a function")
        commit_interval_s, suspend_s = in_s("commit_interval_s", commit_interval_s), in_s("suspend_s", suspend_s)
        consume_timeout_s = in_s("consume_timeout_s", consume_timeout_s)
        pop_invisible_s, timeout_ms = in_s("pop_invisible_s", pop_invisible_s), round(in_ms("timeout_ms", timeout_ms))
        start_time_ms = None if start_time_ms is None else in_time_ms("start_time_ms", start_time_ms)
        _check(group, listener, start, concurrency=concurrency, batch_size=1 if batch_size is None else batch_size,
               max_cached_messages=max_cached_messages,
               max_cached_bytes=max_cached_bytes, pull_batch=pull_batch, commit_interval_s=commit_interval_s,
               offset_file=offset_file, broadcasting=broadcasting, max_reconsume_times=max_reconsume_times)
        if not client_rebalance:
            _check_broker_allocates(strategy, in_order=in_order, broadcasting=broadcasting, seconds=pop_invisible_s)
        self._group = group
        self._clock = clock or SystemClock()
        credentials = credentials_of(credentials)
        self._share = InstanceShare(
            Target(namesrv, broker, timeout_ms, clock, options_of(tls), credentials), (group, True))
        self._producer = AsyncProducer(
            namesrv=namesrv, broker=broker, group=INNER_PRODUCER, timeout_ms=timeout_ms, tls=tls,
            credentials=credentials, clock=clock)
        self._trace = MessageTrace(self._producer.send, group, self._clock, trace_topic) if trace else None
        self._telemetry = telemetry
        self._wanted: dict[str, Subscription] = {}
        self._version = self._clock.now_ms()
        for wanted in subscriptions(topics):
            self._want(wanted)
        self._limits = Limits(max_cached_messages, max_cached_bytes, pull_batch)
        self._settings = MemberSettings(
            strategy_of(strategy), Start(start, start_time_ms), in_order, broadcasting, False, auto_commit,
            commit_interval_s, broker_strategy="" if client_rebalance else str(strategy))
        self._pop_invisible_s = pop_invisible_s
        self._offset_file = offset_file
        self._concurrency = concurrency
        self._retries = Retries(
            max_reconsume_times, suspend_s, None if in_order else consume_timeout_s, batch_size or 1)
        self._close_timeout_s = in_s("close_timeout_s", close_timeout_s)
        self._failures = Failures(on_error, group)
        self.calls_of_listener = ListenerCalls(
            listener, group, concurrency, self._failures, in_batches=batch_size is not None)
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
        A consumer that did not start is closed; make a new one to try again.
        """
        if self._closing:
            raise RemotingError("the consumer is closed; make a new one")
        if self._workers:
            return
        try:
            if not self._wanted:
                raise ConfigError(f"{self._group} consumes no topic: write topics='orders', or call subscribe first")
            await self._start()
        except BaseException:
            await self.close()
            raise

    async def _start(self) -> None:
        settings = self._settings
        calls = self._calls = BrokerCalls(self._share.instance, self._group)
        retry_topic = "" if settings.broadcasting else f"{RETRY_GROUP_TOPIC_PREFIX}{self._group}"
        if retry_topic:
            self._want(Subscription(retry_topic))
        for one in self._wanted.values():
            await self._check_filter(one)
        offsets: OffsetStore
        offsets = self._offsets = FileOffsets(self._offset_file) if settings.broadcasting else BrokerOffsets(calls)
        self._popping = Popping(
            calls, self._wanted, self._clock, self._failures, invisible_ms=round(self._pop_invisible_s * 1000),
            batch=min(self._limits.pull, POP_MAX), from_first=settings.start.name == "CONSUME_FROM_FIRST_OFFSET")
        self._queues = AssignedQueues(
            calls, offsets, self._wanted, self._limits, self._clock, in_order=settings.in_order,
            auto_commit=settings.auto_commit, retry_topic=retry_topic,
            commit_in_pulls=not settings.broadcasting, failures=self._failures, popping=self._popping)
        self._member = GroupMember(calls, self._queues, offsets, self._wanted, settings, {
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info}, self._failures)
        self._started_ms = self._clock.now_ms()
        consuming = Consuming(
            self._queues, self._member, calls, self._popping, self._producer, self.calls_of_listener, self._rates,
            self._trace, self._telemetry, settings, self._retries, self._clock, self._failures)
        self._workers = {asyncio.create_task(consuming.work()) for _ in range(self._concurrency)}
        await self._member.start()
        events.CONSUMER_STARTED.log(_log, group=self._group, client=self._share.instance.client_id)

    async def close(self) -> None:
        """Take no more messages, wait for running listeners, commit, and leave the group.

        Listeners that need more than ``close_timeout_s`` are left alone; their messages are delivered again.
        A second call does nothing.
        """
        if asyncio.current_task() in {*self._workers, self._failures.task}:
            raise RuntimeError(_CLOSED_BY_ITSELF)
        if self._closing:
            await self._ended.wait()
            return
        self._closing = True
        try:
            await self._close()
        finally:
            self.calls_of_listener.close()
            await self._failures.close(self._close_timeout_s)
            if self._offsets is not None:
                self._offsets.close()
            if self._trace is not None:
                await self._trace.close()
            await self._producer.close()
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
            events.CONSUMER_CLOSED_BEFORE_ITS_LISTENERS_ENDED.log(_log, group=self._group, listeners=len(late))
        await asyncio.gather(*late, return_exceptions=True)
        await self._member.leave()
        events.CONSUMER_CLOSED.log(_log, group=self._group)

    async def wait(self) -> None:
        """Wait until the consumer is closed."""
        await self._ended.wait()

    # --- what is consumed

    async def subscribe(self, topic: str, tags: str = "*", sql: str = "") -> None:
        """Add a topic, or change the expression of one. All members of a group have to subscribe to the same."""
        one = Subscription.of(topic, tags, sql)
        if self._workers:
            await self._check_filter(one)
        self._want(one)
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
        """Return the offset of the first message of each queue that is not consumed; without queues in mode POP."""
        return {one.queue: one.commit_offset for one in self._assigned() if not isinstance(one, PopQueue)}

    async def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Deliver no messages of these queues, or of none; calls that run continue."""
        self._running_queues().pause(queues)

    async def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Deliver again what `pause` has held back."""
        self._running_queues().resume(queues)

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at an offset of a queue, and commit the offset.

        Raises ValueError if another member has it, or if it is in mode POP.
        """
        await self._queues.restart(self._running_queues().assigned(queue), offset)

    async def seek_to_time(self, topic: str, timestamp_ms: Time) -> None:
        """Continue at the first message stored at or after a time, in the queues of a topic that this member has."""
        timestamp_ms = in_time_ms("timestamp_ms", timestamp_ms)
        for queue in await self.assignment():
            if queue.topic == topic:
                await self.seek(queue, await self._calls.offset_by_time(queue, timestamp_ms))

    async def commit(self) -> None:
        """Commit now what is consumed. Raises RemotingError if a broker does not take it."""
        await self._running_queues().commit_or_raise()

    async def reply(self, message: MessageExt, body: bytes) -> SendResult:
        """Answer a message that was sent with `Producer.request`; its listener may call this."""
        return await self._producer.reply(message, body)

    def _running_queues(self) -> AssignedQueues:
        if not self._workers or self._closing:
            raise RemotingError("the consumer is closed" if self._closing else "the consumer is not started")
        return self._queues

    def _assigned(self) -> list[ProcessQueue]:
        return [one for one in self._running_queues().all()
                if not one.dropped and not one.queue.topic.startswith(RETRY_GROUP_TOPIC_PREFIX)]

    def _want(self, wanted: Subscription) -> None:
        self._version = wanted.version = max(self._version + 1, self._clock.now_ms())
        self._wanted[wanted.topic] = wanted

    async def _check_filter(self, one: Subscription) -> None:
        if not one.is_sql:
            return
        try:
            await BrokerCalls(self._share.instance, self._group).check_filter(one)
        except RemotingCommandError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise

    # --- requests of brokers

    async def _consume_directly(self, request: RemotingCommand) -> RemotingCommand:
        """Call the listener for a message that an administrator has chosen: request 309."""
        message = decode_one(request.body)
        if message.topic == f"{RETRY_GROUP_TOPIC_PREFIX}{self._group}":
            message.topic = message.properties.get(RETRY_TOPIC, message.topic)
        began_ns = self._clock.monotonic_ns()
        result, remark = "CR_SUCCESS", None
        try:
            if await self.calls_of_listener.result([message]) is False:
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


def _check_broker_allocates(strategy: object, *, in_order: bool, broadcasting: bool, seconds: float) -> None:
    """Raise ConfigError for what client_rebalance=False does not go with."""
    problems = []
    if in_order or broadcasting:
        problems.append("client_rebalance=False does not go with in_order or broadcasting")
    if strategy not in {"AVG", "AVG_BY_CIRCLE"}:
        problems.append(f"strategy={strategy!r} is not a strategy of brokers; with client_rebalance=False use AVG or "
                        "AVG_BY_CIRCLE")
    if not POP_INVISIBLE_MIN_S <= seconds <= POP_INVISIBLE_MAX_S:
        problems.append(f"pop_invisible_s={seconds!r} is not from {POP_INVISIBLE_MIN_S} to {POP_INVISIBLE_MAX_S}")
    if problems:
        raise ConfigError(*problems)


def _check(group: str, listener: object, start: str, **values: Any) -> None:
    """Raise ConfigError with all problems of the arguments."""
    problems = []
    if not group:
        problems.append("group is empty; name the group whose members share the messages")
    elif ":" in group:
        problems.append(f"group={group!r} is an address, not a name; write namesrv={group!r} and name the group")
    if not callable(listener):
        problems.append(f"listener={listener!r} is not a function")
    if start not in {"first", "last"}:
        problems.append(f"start={start!r} is neither 'first' nor 'last'; for a time use start_time_ms")
    offset_file, broadcasting = values.pop("offset_file"), values.pop("broadcasting")
    most = values.pop("max_reconsume_times")
    if most is not None and (not isinstance(most, int) or most < 0):
        problems.append(f"max_reconsume_times={most!r} is not a whole number from 0 on")
    problems += not_above_zero(**values)
    if broadcasting != bool(offset_file):
        problems.append(
            "a broadcasting consumer keeps its offsets in a file of its own: name it in offset_file" if broadcasting
            else "offset_file is for broadcasting=True; other offsets are on the brokers")
    if problems:
        raise ConfigError(*problems)


@final
class PushConsumer:
    """Calls ``listener`` for each message of the queues that this member of ``group`` has.

    Any thread may call its methods, but a listener must not call ``close``.
    """

    @arguments_of(AsyncPushConsumer.__init__)
    def __init__(self, *args: Any, **options: Any) -> None:
        self._awaited = AsyncPushConsumer(*args, **options)
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
            self._loop.run(self._awaited.start())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """As ``AsyncPushConsumer.close``."""
        if threading.current_thread().name.startswith(self._awaited.calls_of_listener.thread_prefix):
            raise RuntimeError(_CLOSED_BY_ITSELF)
        if not self._loop.closed:
            self._loop.run(self._awaited.close())
            self._loop.close()
            self._ended.set()

    def wait(self) -> None:
        """As ``AsyncPushConsumer.wait``."""
        self._ended.wait()

    reply = blocking(AsyncPushConsumer.reply)
    subscribe = blocking(AsyncPushConsumer.subscribe)
    unsubscribe = blocking(AsyncPushConsumer.unsubscribe)
    assignment = blocking(AsyncPushConsumer.assignment)
    positions = blocking(AsyncPushConsumer.positions)
    pause = blocking(AsyncPushConsumer.pause)
    resume = blocking(AsyncPushConsumer.resume)
    seek = blocking(AsyncPushConsumer.seek)
    seek_to_time = blocking(AsyncPushConsumer.seek_to_time)
    commit = blocking(AsyncPushConsumer.commit)
