"""ReceiveMessage: messages for a time, with long polling (ReceiveMessageActivity)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, TypeVar, final

from tailrace import events
from tailrace.broker.lite.pop_lite import LitePopService, LiteRound
from tailrace.broker.pop.pop_message import PopRound, PopService
from tailrace.broker.pop.requests import not_poppable
from tailrace.config import BrokerConfig
from tailrace.env.clock import Clock
from tailrace.errors import RefusalError
from tailrace.filters.subscriptions import SubscriptionData
from tailrace.formats import names as N
from tailrace.formats.commitlog import LMQ_QUEUE_ID, decode_message
from tailrace.formats.pop import ORDER_REVIVE_QUEUE, ExtraInfo, retry_flag
from tailrace.formats.remoting import RequestCode, ResponseCode
from tailrace.formats.requests.message_headers import (
    PopLiteMessageRequestHeader,
    PopMessageRequestHeader,
)
from tailrace.logs import get_logger
from tailrace.model import MessageExt
from tailrace.node.subscription_group import SubscriptionGroupManager
from tailrace.node.topic_config import TopicConfigManager
from tailrace.proxy import limits
from tailrace.proxy.caller import Caller
from tailrace.proxy.clients import LITE, Client, Clients, ServiceCall
from tailrace.proxy.conversion import to_message
from tailrace.proxy.popped import PoppedMessages, settled
from tailrace.proxy.protocol import (
    OK,
    Code,
    GrpcError,
    definition,
    millis,
    of_refusal,
    service,
    status,
    timestamp,
)
from tailrace.proxy.receipts import ReceiptHandle
from tailrace.proxy.renewal import Renewals
from tailrace.proxy.settings import check_settings, filter_data, of_consumer
from tailrace.proxy.validation import check_group, check_invisible_time, check_topic

__all__ = ["ReceiveMessageActivity"]

_log = get_logger(__name__)
ALL_QUEUES: Final = -1
REQUEST_TIMEOUT_S: Final = 3
"""Of a client that has not sent its settings."""
FROM_END: Final = 1
POLLING_TIME_SINCE: Final = "5.0.3"
"""Clients before this version do not know ILLEGAL_POLLING_TIME."""
H = TypeVar("H", PopMessageRequestHeader, PopLiteMessageRequestHeader)
_Round = TypeVar("_Round", PopRound, LiteRound)


class _Popped(NamedTuple):
    message: MessageExt
    handle: ReceiptHandle
    lite_topic: str = ""


@final
class ReceiveMessageActivity:
    """Pops for clients and streams what it gets."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, config: BrokerConfig, topics: TopicConfigManager,
        groups: SubscriptionGroupManager, pops: PopService, lite_pops: LitePopService, clients: Clients,
        popped: PoppedMessages, renewals: Renewals,
    ) -> None:
        self._loop, self._clock, self._config, self._topics = loop, clock, config, topics
        self._groups = groups
        self._pops, self._lite_pops = pops, lite_pops
        self._clients, self._popped, self._renewals = clients, popped, renewals
        self._tasks: set[asyncio.Task[None]] = set()

    async def receive(self, request: Any, context: Any, caller: Caller) -> None:
        """Send a status, the messages, and the time. Raises GrpcError before anything was sent."""
        client = self._clients.find(caller.client_id)
        if client is None:
            client = await self._took_from_request(caller, request)
        is_orderly, max_attempts = of_consumer(self._groups, client.settings)
        poll_ms = _poll_ms(request, context, client.settings, caller)
        topic, group = check_topic(request.message_queue.topic), check_group(request.group)
        invisible_ms = millis(request.invisible_duration)
        if request.auto_renew:
            invisible_ms = limits.DEFAULT_INVISIBLE_TIME_MS
        else:
            check_invisible_time(invisible_ms, limits.MIN_INVISIBLE_TIME_FOR_RECV_MS)
        wanted = filter_data(topic, request.filter_expression)
        self._check_queues(topic)
        if request.batch_size <= 0:
            raise GrpcError(Code.BAD_REQUEST, f"batch_size is {request.batch_size}, it must be 1 or more")
        batch, attempt = min(request.batch_size, limits.RECEIVE_BATCH_SIZE), request.attempt_id or None
        now = self._clock.now_ms()
        if client.is_lite:
            if len(client.renewed) > limits.MAX_LITE_RENEWED:
                raise GrpcError(
                    Code.FORBIDDEN, f"The client [{client.client_id}] has too many unacked messages. Unacked count: "
                    f"{len(client.renewed)}")
            lite = PopLiteMessageRequestHeader(
                client.client_id, group, topic, batch, invisible_ms, poll_ms, now, attempt)
            code, found = await self._pop(
                caller, RequestCode.POP_LITE_MESSAGE, self._lite_pops.pop, self._found_lite, lite)
        else:
            pop = PopMessageRequestHeader(
                group, topic, ALL_QUEUES, batch, invisible_ms, poll_ms, now, FROM_END, wanted.expression_type,
                wanted.sub_string, is_orderly, attempt)
            code, found = await self._pop(caller, RequestCode.POP_MESSAGE, self._pops.pop, self._found, pop)
        if code == ResponseCode.POLLING_FULL:
            await self._end(context, status(Code.TOO_MANY_REQUESTS, "polling full"))
        elif code == ResponseCode.POLLING_TIMEOUT:
            await self._end(context, status(Code.MESSAGE_NOT_FOUND, "no new message"))
        else:
            kept = self._keep(client, group, topic, wanted, max_attempts, found)
            await self._send(context, request, client, group, topic, kept)

    async def _took_from_request(self, caller: Caller, request: Any) -> Client:
        """Register a client that has sent no settings since the server started, with those that its request implies.

        The Python client sends its settings again up to five minutes after it has connected again.
        """
        kind = definition.ClientType.PUSH_CONSUMER if request.auto_renew else definition.ClientType.SIMPLE_CONSUMER
        group = self._groups.select(check_group(request.group))
        if group is not None and group.lite_bind_topic:
            kind = LITE
        settings = definition.Settings(client_type=kind)
        settings.request_timeout.seconds = REQUEST_TIMEOUT_S
        settings.subscription.group.CopyFrom(request.group)
        settings.subscription.subscriptions.add(
            topic=request.message_queue.topic, expression=request.filter_expression)
        check_settings(self._groups, settings)
        self._check_queues(check_topic(request.message_queue.topic))
        return await self._clients.take(caller, settings, has_stream=False)

    def _check_queues(self, topic: str) -> None:
        config = self._topics.select(topic)
        if config is None:
            raise GrpcError(Code.TOPIC_NOT_FOUND, f"topic {topic} does not exist")
        if not config.readable or config.read_queue_nums <= 0:
            raise GrpcError(Code.FORBIDDEN, "no readable queue")
        if config.has_batch_queues:
            raise GrpcError(Code.FORBIDDEN, not_poppable(topic))

    async def _pop(
        self, caller: Caller, code: RequestCode, pop: Callable[[H, ServiceCall], _Round | None],
        messages: Callable[[_Round], list[_Popped]], header: H,
    ) -> tuple[ResponseCode, list[_Popped]]:
        """Return the code of a pop and its messages. Raises GrpcError, and what the service raises.

        A wait for messages ends with the call: no message is handed out to a client that has gone.
        """
        call, popped = ServiceCall(self._clients, caller, code, header, alone=True), None
        try:
            popped = await call.result(pop(header, call))
            await settled(self._popped.sync(popped.until))
            return popped.code, messages(popped)
        except RefusalError as refusal:
            if refusal.code == ResponseCode.POLLING_TIMEOUT:
                return ResponseCode.POLLING_TIMEOUT, []
            if refusal.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED:
                raise GrpcError(
                    Code.ILLEGAL_FILTER_EXPRESSION, refusal.remark or "the expression cannot be read") from None
            raise of_refusal(refusal) from None
        except asyncio.CancelledError:
            if (popped := popped or call.late_result) is not None:
                self._later(self._give_back(header.consumer_group, header.topic, messages(popped)))
            raise
        finally:
            call.close()

    # -- what a pop has found

    def _found(self, popped: PopRound) -> list[_Popped]:
        """Return the messages of a pop with their receipts."""
        found, broker_name = [], self._config.broker_name
        for topic, queue_id, start, result, counts in popped.taken:
            flag = retry_flag(topic)
            for record, offset in zip(result.records, result.queue_offsets, strict=True):
                message = decode_message(record)
                message.reconsume_times = counts.get(offset, 0) or message.reconsume_times
                message.properties.setdefault(N.FIRST_POP_TIME, str(popped.pop_time))
                found.append(_Popped(message, ReceiptHandle(ExtraInfo(
                    start, popped.pop_time, popped.pop.invisible_time, popped.revive_queue_id, flag, broker_name,
                    queue_id, offset), message.phy_offset)))
        return found

    def _found_lite(self, popped: LiteRound) -> list[_Popped]:
        """Return the messages of a pop of Lite topics, each with its place in its Lite topic."""
        found, broker_name = [], self._config.broker_name
        records = [record for result in popped.found for record in result.records]
        for record, count in zip(records, popped.counts, strict=True):
            message = decode_message(record)
            message.queue_offset = int(message.properties[N.INNER_MULTI_QUEUE_OFFSET])
            message.reconsume_times = count
            message.properties.setdefault(N.FIRST_POP_TIME, str(popped.pop_time))
            receipt = ExtraInfo(
                0, popped.pop_time, popped.pop.invisible_time, ORDER_REVIVE_QUEUE, "0", broker_name, LMQ_QUEUE_ID,
                message.queue_offset)
            found.append(_Popped(
                message, ReceiptHandle(receipt, message.phy_offset), message.properties[N.LITE_TOPIC]))
        return found

    def _keep(
        self, client: Client, group: str, topic: str, wanted: SubscriptionData, max_attempts: int,
        found: list[_Popped],
    ) -> list[_Popped]:
        """Return the messages that the client gets.

        The broker compares hashes of tags, so a message with another tag is acknowledged here. One that was
        delivered too often becomes a dead letter.
        """
        kept = []
        for one in found:
            message = one.message
            if wanted.tags and message.tags not in wanted.tags:
                self._later(self._popped.ack(group, topic, one.handle, one.lite_topic))
            elif message.reconsume_times >= max_attempts:
                self._later(self._popped.to_dead_letters(
                    client.caller, group, topic, _id_of(message), one.handle, one.lite_topic))
            else:
                kept.append(one)
        return kept

    def _later(self, work: Any) -> None:
        async def run() -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001 - the message is delivered again, and this says why
                events.RECEIVED_MESSAGE_NOT_SETTLED.log(_log, reason=repr(error))

        task = self._loop.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- the stream

    async def _send(
        self, context: Any, request: Any, client: Client, group: str, topic: str, found: list[_Popped]
    ) -> None:
        if not found:
            await self._end(context, status(Code.MESSAGE_NOT_FOUND, "no match message"))
            return
        sent = 0
        try:
            if client.connection.closed:
                raise GrpcError(Code.MESSAGE_NOT_FOUND, f"The client [{client.client_id}] is disconnected.")
            await context.write(service.ReceiveMessageResponse(status=OK))
            for message, handle, lite_topic in found:
                await context.write(service.ReceiveMessageResponse(
                    message=to_message(message, topic, handle.encode())))
                sent += 1
                if request.auto_renew:
                    self._renewals.add(
                        client, group, topic, _id_of(message), handle, message.reconsume_times, lite_topic)
        except BaseException:
            self._later(self._give_back(group, topic, found[sent:]))
            raise
        await self._end(context)

    async def _give_back(self, group: str, topic: str, found: Iterable[_Popped]) -> None:
        """Have messages delivered again soon that did not reach the client."""
        for one in found:
            await self._popped.change(
                group, topic, one.handle, limits.NACK_INVISIBLE_TIME_MS, one.lite_topic, suspend=True)

    async def _end(self, context: Any, said: Any = None) -> None:
        if said is not None:
            await context.write(service.ReceiveMessageResponse(status=said))
        await context.write(service.ReceiveMessageResponse(
            delivery_timestamp=timestamp(self._clock.now_ms())))


def _poll_ms(request: Any, context: Any, settings: Any, caller: Caller) -> int:
    """Return for how long the broker may hold a request. Raises GrpcError if its deadline is too near."""
    left_s = context.time_remaining()
    left_ms = 1 << 31 if left_s is None else int(left_s * 1000)
    if request.HasField("long_polling_timeout"):
        poll_ms = millis(request.long_polling_timeout)
    else:
        poll_ms = left_ms - millis(settings.request_timeout) // 2
    poll_ms = min(max(poll_ms, limits.MIN_LONG_POLLING_MS), limits.MAX_LONG_POLLING_MS)
    if poll_ms <= left_ms:
        return poll_ms
    if left_ms >= limits.MIN_LONG_POLLING_MS:
        return left_ms
    old = not caller.version or caller.version < POLLING_TIME_SINCE
    raise GrpcError(
        Code.BAD_REQUEST if old else Code.ILLEGAL_POLLING_TIME,
        "The deadline time remaining is not enough for polling, please check network condition")


def _id_of(message: MessageExt) -> str:
    return message.properties.get(N.UNIQ_KEY) or message.msg_id
