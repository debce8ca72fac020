"""Sending of one request: encoding, choice of the queue, and retries on other queues and brokers."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar, final

from tailrace.client.broker_faults import BrokerFaults
from tailrace.client.compression import Compressor, compressor_of
from tailrace.client.instance import InstanceShare
from tailrace.client.routes import DEFAULT_QUEUES, MessageQueue, Route
from tailrace.client.send_result import SendResult
from tailrace.env.clock import Clock
from tailrace.env.entropy import SystemEntropy
from tailrace.errors import (
    DeliveryTimeoutError,
    MessageIllegalError,
    RemotingCommandError,
    RemotingConnectError,
    RemotingError,
    RemotingTimeoutError,
)
from tailrace.formats.commitlog import java_string_hash
from tailrace.formats.names import AUTO_CREATE_TOPIC_KEY_TOPIC, MSG_REGION, TRACE_ON, UNIQ_KEY
from tailrace.formats.remoting import RemotingCommand, ResponseCode
from tailrace.formats.requests.message_headers import (
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from tailrace.kernels.properties import message_properties
from tailrace.model import Message, refuse_conflicts

__all__ = ["QueueSelector", "Sender", "Tries", "by_key"]

_T = TypeVar("_T")
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


PAUSE_S: Final = 0.1
"""Longest pause after the first try of a send with a delivery timeout, in seconds; doubled with each try."""
PAUSE_MAX_S: Final = 5.0


@final
@dataclasses.dataclass(slots=True)
class Tries:
    """The tries of one send."""

    began_ns: int
    count: int = 0
    broker: str = ""
    """Broker to which the try sends, once it was chosen."""
    avoid: str = ""
    """Broker of the last try."""
    may_be_stored: bool = False
    """True if a broker may have stored the message without an answer."""

    def next(self) -> Tries:
        """Return the tries of the next request of the same send, in the rest of its time."""
        return Tries(self.began_ns)


@final
class Sender:
    """The common part of all sends of a producer."""

    def __init__(
        self, share: InstanceShare, group: str, timeout_ms: int, retries: int, clock: Clock, *,
        compression: str | None, compress_over: int, avoid_slow_brokers: bool, delivery_ms: int | None = None,
    ) -> None:
        self._delivery_ms = delivery_ms
        self._share = share
        self._group = group
        self._timeout_ms = timeout_ms
        self._retries = retries
        self._clock = clock
        # A random start, so that programs that send only one message do not all use the first queue.
        self._turn = itertools.count(SystemEntropy().randrange(1 << 16))
        self._ids = itertools.count()
        self._id_base = f"{os.getpid() & 0xFFFF:04X}{SystemEntropy().u64():016X}"
        self._compress: Compressor | None = None
        self._compressed_flag = 0
        if compression:
            self._compress, self._compressed_flag = compressor_of(compression)
        self._compress_over = compress_over
        self._faults = BrokerFaults(clock) if avoid_slow_brokers else None

    def compresses(self, message: Message) -> bool:
        """Return whether the body of a message is compressed."""
        return self._compress is not None and len(message.body) >= self._compress_over

    def body_of(self, message: Message, header: SendMessageRequestHeader) -> bytes:
        """Return the body to send, compressed if that makes it shorter, and note that in the header."""
        if self._compress is None or len(message.body) < self._compress_over:
            return message.body
        shorter = self._compress(message.body)
        if len(shorter) >= len(message.body):
            return message.body
        header.sys_flag |= self._compressed_flag
        return shorter

    def properties(self, message: Message, **more: str) -> tuple[str, bytes]:
        """Return unique key and stored properties. Raises MessageIllegalError if they cannot be stored."""
        refuse_conflicts(message)
        if more:
            message = dataclasses.replace(message, properties={**message.properties, **more})
        unique_key = message.properties.get(UNIQ_KEY) or f"{self._id_base}{next(self._ids) & 0xFFFFFFFFFFFF:012X}"
        return unique_key, message_properties(message, unique_key)

    def header_of(self, topic: str, flag: int, properties: str) -> SendMessageRequestHeader:
        """Return the header of a send; its queue is set when a queue was chosen."""
        return SendMessageRequestHeaderV2(
            self._group, topic, AUTO_CREATE_TOPIC_KEY_TOPIC, DEFAULT_QUEUES, 0, 0, self._clock.now_ms(), flag,
            properties, reconsume_times=0, unit_mode=False, batch=False)

    def choose(
        self, route: Route, message: Message, queue_id: int | None, selector: QueueSelector | None,
        avoid: str,
    ) -> MessageQueue:
        """Return the queue of a message, if there is a choice on another broker than ``avoid``."""
        queues: Sequence[MessageQueue] = route.write_queues
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
        if self._faults is not None:
            queues = self._faults.usable(queues)
        others = [queue for queue in queues if queue.broker_name != avoid] if avoid else queues
        others = others or queues
        return others[next(self._turn) % len(others)]

    async def send(
        self, code: int, message: Message, header: SendMessageRequestHeader, body: bytes, unique_key: str,
        queue_id: int | None, selector: QueueSelector | None, tries: Tries | None = None,
    ) -> SendResult:
        """Send a request; after a temporary failure try again as `until_done` does. Raises RemotingError."""
        async def step(tries: Tries) -> tuple[RemotingCommand, MessageQueue]:
            return await self._try(code, message, header, body, queue_id, selector, tries)

        answer, queue = await self.until_done(message.topic, step, tries)
        place = answer.read(SendMessageResponseHeader)  # outside of the tries: the message is stored
        return SendResult(
            _STORED[ResponseCode(answer.code)], queue.broker_name, place.queue_id,
            place.queue_offset, unique_key, place.msg_id, place.recall_handle or "",
            answer.ext.get(MSG_REGION, "") if answer.ext.get(TRACE_ON) != "false" else "")

    def tries(self) -> Tries:
        """Return the tries of a send that begins now."""
        return Tries(self._clock.monotonic_ns())

    async def route(self, topic: str) -> Route:
        """Return the route of a topic to send to; after a temporary failure try again as `until_done` does."""
        return await self.until_done(topic, lambda tries: self.route_once(topic, tries))

    async def until_done(
        self, topic: str, step: Callable[[Tries], Awaitable[_T]], tries: Tries | None = None
    ) -> _T:
        """Return the result of ``step``; after a temporary failure it is run again.

        Without a delivery timeout it is run up to ``retries`` more times, without a pause. With one it is run until
        that time is over, with pauses that grow and are random, and then DeliveryTimeoutError is raised.
        """
        tries = tries or self.tries()
        last: RemotingError | None = None
        while last is None or await self._wait(tries):
            tries.count += 1
            tries.broker = ""
            try:
                return await step(tries)
            except RemotingCommandError as error:
                if error.code not in _RETRIED:
                    raise
                tries.may_be_stored |= error.code == ResponseCode.SYSTEM_ERROR
                last = error
            except RemotingError as error:
                if self._share.closed:
                    raise
                tries.may_be_stored |= bool(tries.broker) and not isinstance(error, RemotingConnectError)
                last = error
            tries.avoid = tries.broker  # retry on another broker if the topic has one
            self._share.instance.routes.forget(topic)
        last = await self._share.instance.routes.explained(topic, last)
        if self._delivery_ms is None:
            raise last
        raise DeliveryTimeoutError(
            topic, self._tried_ms(tries), tries.count, last, may_be_stored=tries.may_be_stored) from last

    def _tried_ms(self, tries: Tries) -> int:
        return (self._clock.monotonic_ns() - tries.began_ns) // 1_000_000

    async def _wait(self, tries: Tries) -> bool:
        """Wait until the next try; return False if the time is over."""
        if self._delivery_ms is None:
            return tries.count <= self._retries
        left_s = (self._delivery_ms - self._tried_ms(tries)) / 1000
        if left_s < 2 * PAUSE_S:
            return False
        longest_s = min(PAUSE_S * 2.0 ** min(tries.count - 1, 10), PAUSE_MAX_S)
        # Random, so that many producers do not all send at the moment at which a broker is back.
        pause_s = longest_s * (0.5 + SystemEntropy().randrange(1 << 16) / (1 << 17))
        await asyncio.sleep(min(pause_s, left_s - PAUSE_S))
        return True

    def _limit_ms(self, tries: Tries) -> int:
        """Return the time for the next request of a try."""
        if self._delivery_ms is None:
            return self._timeout_ms
        return max(1, min(self._timeout_ms, self._delivery_ms - self._tried_ms(tries)))

    async def route_once(self, topic: str, tries: Tries) -> Route:
        """Return the route of a topic to send to, in one try."""
        routes = self._share.instance.routes
        if self._delivery_ms is None:
            return await routes.of(topic, for_write=True)
        limit_ms = max(1, self._delivery_ms - self._tried_ms(tries))
        try:
            async with asyncio.timeout(limit_ms / 1000):
                return await routes.of(topic, for_write=True)
        except TimeoutError:
            raise RemotingTimeoutError("the name server", limit_ms) from None

    async def _try(
        self, code: int, message: Message, header: SendMessageRequestHeader, body: bytes,
        queue_id: int | None, selector: QueueSelector | None, tries: Tries,
    ) -> tuple[RemotingCommand, MessageQueue]:
        began_ns = self._clock.monotonic_ns()
        try:
            route = await self.route_once(message.topic, tries)
            queue = self.choose(route, message, queue_id, selector, tries.avoid)
            tries.broker = queue.broker_name
            header.queue_id = queue.queue_id
            address = route.addresses[queue.broker_name]
            answer = await self._share.instance.remoting.invoke(
                address, code, header.to_ext(), body, timeout_ms=self._limit_ms(tries))
        except RemotingCommandError:
            raise
        except RemotingError:
            self._note(tries.broker, began_ns, reached=False)
            raise
        self._note(queue.broker_name, began_ns)
        if answer.code not in _STORED:
            raise RemotingCommandError(answer.code, answer.remark or "", address)
        return answer, queue

    def _note(self, broker_name: str, began_ns: int, *, reached: bool = True) -> None:
        if self._faults is not None and broker_name:
            self._faults.note(broker_name, (self._clock.monotonic_ns() - began_ns) / 1e6, reached=reached)


def by_key(ordering_key: str) -> QueueSelector:
    """Return the selector of RocketMQ's SelectMessageQueueByHash."""
    number = java_string_hash(ordering_key)
    # Java's remainder has the sign of the number, of which the absolute value is taken.
    return lambda queues, message: queues[abs(number) % len(queues)]
