"""Consumption of messages that were pulled or popped: call of the listener, retry, dead letter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from tailrace import events
from tailrace.client.assigned_queues import AssignedQueues
from tailrace.client.broker_calls import BrokerCalls
from tailrace.client.failures import Failures
from tailrace.client.group_member import GroupMember, MemberSettings
from tailrace.client.listening import ListenerCalls, RetryLater, key_of
from tailrace.client.pop_queues import Popping, PopQueue, retry_delay_s
from tailrace.client.process_queue import ProcessQueue
from tailrace.client.producer import AsyncProducer, send_again
from tailrace.client.routes import MessageQueue
from tailrace.client.running_info import ConsumeRates
from tailrace.client.telemetry import Telemetry
from tailrace.client.trace import MessageTrace
from tailrace.env.clock import Clock
from tailrace.errors import MessageIllegalError, RemotingError
from tailrace.formats.names import RETRY_GROUP_TOPIC_PREFIX
from tailrace.logs import get_logger
from tailrace.model import MessageExt

__all__ = ["RETRIES", "Consuming", "Retries"]

_log = get_logger(__name__)

RETRIES: Final = 16
"""Number of deliveries after the first one, before a message becomes a dead letter."""
SEND_BACK_AGAIN_S: Final = 5.0
"""Seconds until a message that could not be sent back is consumed again locally; doubled with each try."""
SEND_BACK_AGAIN_MAX_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Retries:
    """Settings of retries. Without ``most`` the default number of retries is used."""

    most: int | None
    suspend_s: float
    timeout_s: float | None
    batch: int = 1
    """Number of messages of one call of the listener."""


@final
class Consuming:
    """The workers of a push consumer."""

    def __init__(
        self, queues: AssignedQueues, member: GroupMember, calls: BrokerCalls, popping: Popping,
        producer: AsyncProducer, listener: ListenerCalls, rates: ConsumeRates, trace: MessageTrace | None,
        telemetry: Telemetry | None, settings: MemberSettings, retries: Retries, clock: Clock, failures: Failures,
    ) -> None:
        self._failures = failures
        self._queues = queues
        self._member = member
        self._calls = calls
        self._popping = popping
        self._producer = producer
        self._listener = listener
        self._rates = rates
        self._trace = trace
        self._telemetry = telemetry
        self._settings = settings
        self._retries = retries
        self._clock = clock
        self._group = calls.group
        self._most = RETRIES if retries.most is None else retries.most
        self._refused: dict[tuple[MessageQueue, int], int] = {}
        """Number of failed send-backs of a message, by queue and offset."""

    async def work(self) -> None:
        """Take messages and consume them until the queues are stopped."""
        more = self._retries.batch - 1
        while (found := await self._queues.take()) is not None:
            one, message = found
            messages = [message, *self._queues.take_more(one, more)] if more else [message]
            left = list(messages)
            try:
                await self._consume(one, messages, left)
            except Exception as error:  # noqa: BLE001 - or the worker would be gone
                events.MESSAGE_NOT_CONSUMED.log(
                    _log, group=self._group, topic=message.topic, queue=message.queue_id, offset=message.queue_offset,
                    reason=repr(error))
                self._queues.put_back(one, left, SEND_BACK_AGAIN_S)

    async def _consume(self, one: ProcessQueue, messages: list[MessageExt], left: list[MessageExt]) -> None:
        """Consume messages of a queue; ``left`` are those that are neither done nor put back."""
        if isinstance(one, PopQueue):
            await self._consume_popped(one, messages, left)
            return
        if self._settings.in_order and not await self._member.has_lock(one):
            self._queues.put_back(one, messages, self._retries.suspend_s)
            left.clear()
            return
        # If the broker keeps refusing a message, the listener is not called for it without end.
        given_up = [m for m in messages if self._tries(one, m) > self._most] if self._refused else []
        if given_up and len(given_up) < len(messages):
            self._queues.put_back(one, [m for m in messages if m not in given_up], 0.0)
            left[:] = messages = given_up
        later = RetryLater() if given_up else await self._outcome(messages)
        failed = messages if later is None else messages[later.consumed :]
        for message in messages if later is None else messages[: later.consumed]:
            self._done(one, message, left)
        if later is None:
            return
        if self._settings.in_order:
            await self._suspend(one, failed, later, left)
            return
        for message in failed:
            if self._settings.broadcasting:
                events.MESSAGE_OF_A_BROADCASTING_CONSUMER_IS_DROPPED_AFTER_A_FAILURE.log(
                    _log, group=self._group, topic=message.topic, queue=message.queue_id, offset=message.queue_offset,
                    key=key_of(message))
                self._done(one, message, left)
            elif one.dropped:  # the next member consumes it
                self._done(one, message, left, consumed=False)
            elif await self._send_back(one, message, later.delay_level, self._most):
                self._done(one, message, left)
            else:
                message.reconsume_times += 1
                left.remove(message)
                self._queues.put_back(one, [message], self._refusal_s(one, message))

    async def _consume_popped(self, one: PopQueue, messages: list[MessageExt], left: list[MessageExt]) -> None:
        """Call the listener, then acknowledge the messages, retry them or make them dead letters, as in RocketMQ."""
        ready = []
        for message in messages:
            if self._popping.left_ms(message) > 0:
                ready.append(message)
                continue
            events.POPPED_MESSAGE_WAITED_TOO_LONG.log(
                _log, group=self._group, topic=message.topic, queue=message.queue_id, offset=message.queue_offset)
            self._done(one, message, left, consumed=False)
        if not ready:
            return
        keeping = self._popping.keep(one.queue, ready)
        try:
            later = await self._outcome(ready)
        finally:
            await keeping.end()
        for number, message in enumerate(ready):
            consumed = later is None or number < later.consumed
            if later is not None and not consumed:
                consumed = await self._pop_later(one, message, later)
            self._done(one, message, left, consumed=consumed)

    async def _pop_later(self, one: PopQueue, message: MessageExt, later: RetryLater) -> bool:
        """Have a popped message redelivered later; return True if it became a dead letter."""
        dead = later.delay_level < 0 or message.reconsume_times >= self._most
        if dead and await self._send_back(one, message, -1, self._most):
            return True
        delay_s = retry_delay_s(message, max(0, later.delay_level)) if later.after_s is None else later.after_s
        try:
            await self._popping.change(one.queue, message, round(delay_s * 1000))
        except RemotingError as error:
            events.DELAY_OF_A_RETRY_NOT_SET.log(
                _log, group=self._group, topic=message.topic, queue=message.queue_id, offset=message.queue_offset,
                key=key_of(message), reason=error)
            self._failures.report("retry", error, topic=message.topic, messages=[message])
        return False

    def _done(
        self, one: ProcessQueue, message: MessageExt, left: list[MessageExt], *, consumed: bool = True
    ) -> None:
        if self._refused:
            self._refused.pop((one.queue, message.queue_offset), None)
        self._queues.done(one, message, consumed=consumed)
        if left[0] is message:
            del left[0]
        else:
            left.remove(message)

    def _tries(self, one: ProcessQueue, message: MessageExt) -> int:
        return self._refused.get((one.queue, message.queue_offset), 0)

    def _refusal_s(self, one: ProcessQueue, message: MessageExt) -> float:
        """Count a message that could not be sent back; return the time until the next try."""
        tries = self._refused[one.queue, message.queue_offset] = self._tries(one, message) + 1
        if tries == self._most + 1:
            events.MESSAGE_CAN_BE_NEITHER_CONSUMED_NOR_SENT_BACK.log(
                _log, group=self._group, topic=message.topic, broker=one.queue.broker_name, queue=message.queue_id,
                offset=message.queue_offset, key=key_of(message), tries=tries)
            self._failures.report(
                "retry", RemotingError(f"the message can be neither consumed nor sent back after {tries} tries"),
                topic=message.topic, messages=[message])
        return min(SEND_BACK_AGAIN_S * 2.0 ** min(tries - 1, 10), SEND_BACK_AGAIN_MAX_S)

    async def _outcome(self, messages: list[MessageExt]) -> RetryLater | None:
        began_ns = self._clock.monotonic_ns()
        traced = [self._trace.consuming(message) for message in messages] if self._trace is not None else []
        if self._telemetry is None:
            later = await self._listener.outcome(messages, self._retries.timeout_s)
        else:
            with self._telemetry.processing(messages, self._group) as labels:
                later = await self._listener.outcome(messages, self._retries.timeout_s)
                if later is not None:
                    labels["error.type"] = "retry"
        if self._trace is not None:
            for number, (message, begun) in enumerate(zip(messages, traced, strict=True)):
                if begun is not None:
                    self._trace.consumed(message, begun, ok=later is None or number < later.consumed)
        took_ms = (self._clock.monotonic_ns() - began_ns) // 1_000_000
        for number, message in enumerate(messages):
            self._rates.add(message.topic, took_ms, ok=later is None or number < later.consumed)
        return later

    async def _suspend(
        self, one: ProcessQueue, messages: list[MessageExt], later: RetryLater, left: list[MessageExt]
    ) -> None:
        """Deliver messages again before those after them; one that was delivered too often becomes a dead letter."""
        most = self._retries.most
        wait_s = self._retries.suspend_s if later.after_s is None else later.after_s
        again = []
        for message in messages:
            dead = later.delay_level < 0 or (most is not None and message.reconsume_times >= most)
            if dead and (self._settings.broadcasting or await self._send_back(one, message, -1, most or 0)):
                self._done(one, message, left)
                continue
            message.reconsume_times += 1
            again.append(message)
            if dead:
                wait_s = max(wait_s, self._refusal_s(one, message))
        left.clear()
        if again:
            self._queues.put_back(one, again, wait_s)

    async def _send_back(self, one: ProcessQueue, message: MessageExt, level: int, most: int) -> bool:
        """Have a message delivered again later; return False if that is refused in both ways of RocketMQ."""
        try:
            await self._calls.send_back(one.queue, message, level, most)
        except RemotingError as error:
            if one.dropped:  # the next member gets it
                return False
            first = error
        else:
            self._note_dead(message, level, most)
            return True
        times = most + 1 if level < 0 else message.reconsume_times + 1
        try:
            await send_again(self._producer, message, f"{RETRY_GROUP_TOPIC_PREFIX}{self._group}", times, most)
        except (RemotingError, MessageIllegalError) as error:
            events.MESSAGE_NOT_SENT_BACK_CONSUMED_AGAIN_HERE.log(
                _log, group=self._group, topic=message.topic, queue=message.queue_id, offset=message.queue_offset,
                key=key_of(message), reason=first, then=error)
            self._failures.report("retry", error, topic=message.topic, messages=[message])
            return False
        events.MESSAGE_NOT_SENT_BACK_SENT_AS_A_NEW_ONE.log(
            _log, group=self._group, topic=message.topic, queue=message.queue_id, offset=message.queue_offset,
            key=key_of(message), reason=first)
        self._note_dead(message, level, most)
        return True

    def _note_dead(self, message: MessageExt, level: int, most: int) -> None:
        """Log that a message that was sent back is a dead letter, if the broker makes it one."""
        if level >= 0 and message.reconsume_times < most:
            return
        events.MESSAGE_IS_A_DEAD_LETTER.log(
            _log, group=self._group, topic=message.topic, queue=message.queue_id, offset=message.queue_offset,
            key=key_of(message), deliveries=message.reconsume_times + 1)
        self._failures.report(
            "dead letter", MessageIllegalError("message", f"is a dead letter after {message.reconsume_times + 1} "
                                               "deliveries"), topic=message.topic, messages=[message])
