"""ReceiveMessage: messages for a time, with long polling (ReceiveMessageActivity)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, final

from tailrace import events
from tailrace.broker.core.context import BrokerContext
from tailrace.broker.pop.fields import not_poppable
from tailrace.filters.subscriptions import SubscriptionData
from tailrace.formats import names as N
from tailrace.formats.commitlog import LMQ_QUEUE_ID, decode_message
from tailrace.formats.pop import ExtraInfo, retry_flag
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests.custom_header import CustomHeader
from tailrace.formats.requests.message_headers import (
    PopLiteMessageRequestHeader,
    PopLiteMessageResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from tailrace.logs import get_logger
from tailrace.model import MessageExt
from tailrace.proxy import limits
from tailrace.proxy.caller import Caller
from tailrace.proxy.clients import LITE, Client, Clients
from tailrace.proxy.conversion import to_message
from tailrace.proxy.popped import PoppedMessages
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
from tailrace.proxy.settings import check_settings, filter_data, merged
from tailrace.proxy.validation import check_group, check_invisible_time, check_topic

__all__ = ["ReceiveMessageActivity"]

_log = get_logger(__name__)
ALL_QUEUES: Final = -1
REQUEST_TIMEOUT_S: Final = 3
"""Of a client that has not sent its settings."""
FROM_END: Final = 1
POLLING_TIME_SINCE: Final = "5.0.3"
"""Clients before this version do not know ILLEGAL_POLLING_TIME."""
_NOTHING: Final = frozenset({ResponseCode.PULL_NOT_FOUND, ResponseCode.POLLING_TIMEOUT})


class _Popped(NamedTuple):
    message: MessageExt
    handle: ReceiptHandle
    lite_topic: str = ""


@final
class ReceiveMessageActivity:
    """Pops for clients and streams what it gets."""

    def __init__(
        self, broker: BrokerContext, clients: Clients, popped: PoppedMessages, renewals: Renewals
    ) -> None:
        self._broker = broker
        self._clients = clients
        self._popped = popped
        self._renewals = renewals
        self._tasks: set[asyncio.Task[None]] = set()

    async def receive(self, request: Any, context: Any, caller: Caller) -> None:
        """Send a status, the messages, and the time. Raises GrpcError before anything was sent."""
        client = self._clients.find(caller.client_id)
        if client is None:
            client = await self._took_from_request(caller, request)
        settings = merged(self._broker, client.settings)
        poll_ms = _poll_ms(request, context, settings, caller)
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
        now = self._broker.clock.now_ms()
        if client.is_lite:
            if len(client.renewed) > limits.MAX_LITE_RENEWED:
                raise GrpcError(
                    Code.FORBIDDEN, f"The client [{client.client_id}] has too many unacked messages. Unacked count: "
                    f"{len(client.renewed)}")
            answer = await self._pop(caller, group, topic, RequestCode.POP_LITE_MESSAGE, PopLiteMessageRequestHeader(
                client.client_id, group, topic, batch, invisible_ms, poll_ms, now, attempt))
        else:
            answer = await self._pop(caller, group, topic, RequestCode.POP_MESSAGE, PopMessageRequestHeader(
                group, topic, ALL_QUEUES, batch, invisible_ms, poll_ms, now, FROM_END, wanted.expression_type,
                wanted.sub_string, settings.subscription.fifo, attempt))
        if answer.code == ResponseCode.POLLING_FULL:
            await self._end(context, status(Code.TOO_MANY_REQUESTS, "polling full"))
        elif answer.code in _NOTHING:
            await self._end(context, status(Code.MESSAGE_NOT_FOUND, "no new message"))
        elif answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED:
            raise GrpcError(Code.ILLEGAL_FILTER_EXPRESSION, answer.remark or "the expression cannot be read")
        elif answer.code != ResponseCode.SUCCESS:
            raise of_refusal(answer)
        else:
            found = self._found(answer, is_lite=client.is_lite)
            kept = self._keep(client, group, topic, wanted, settings.backoff_policy.max_attempts, found)
            await self._send(context, request, client, group, topic, kept)

    async def _took_from_request(self, caller: Caller, request: Any) -> Client:
        """Register a client that has sent no settings since the server started, with those that its request implies.

        The Python client sends its settings again up to five minutes after it has connected again.
        """
        kind = definition.ClientType.PUSH_CONSUMER if request.auto_renew else definition.ClientType.SIMPLE_CONSUMER
        group = self._broker.groups.select(check_group(request.group))
        if group is not None and group.lite_bind_topic:
            kind = LITE
        settings = definition.Settings(client_type=kind)
        settings.request_timeout.seconds = REQUEST_TIMEOUT_S
        settings.subscription.group.CopyFrom(request.group)
        settings.subscription.subscriptions.add(
            topic=request.message_queue.topic, expression=request.filter_expression)
        check_settings(self._broker, settings)
        self._check_queues(check_topic(request.message_queue.topic))
        return await self._clients.take(caller, settings, has_stream=False)

    def _check_queues(self, topic: str) -> None:
        config = self._broker.topics.select(topic)
        if config is None:
            raise GrpcError(Code.TOPIC_NOT_FOUND, f"topic {topic} does not exist")
        if not config.readable or config.read_queue_nums <= 0:
            raise GrpcError(Code.FORBIDDEN, "no readable queue")
        if config.has_batch_queues:
            raise GrpcError(Code.FORBIDDEN, not_poppable(topic))

    async def _pop(
        self, caller: Caller, group: str, topic: str, code: RequestCode, header: CustomHeader
    ) -> RemotingCommand:
        """Pop over a connection of its own: once it closes, no message is handed out to a client that has gone."""
        connection = self._clients.connect(caller)
        future = connection.call(code, header)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                answer = future.result()  # it came in the same turn of the loop
                if answer.code == ResponseCode.SUCCESS:
                    found = self._found(answer, is_lite=code is RequestCode.POP_LITE_MESSAGE)
                    self._later(self._give_back(group, topic, found))
            raise
        finally:
            connection.close()

    # -- what a pop has found

    def _found(self, answer: RemotingCommand, *, is_lite: bool) -> list[_Popped]:
        """Return the messages of an answer with their receipts."""
        if is_lite:
            return self._found_lite(answer)
        header = answer.read(PopMessageResponseHeader)
        starts, counts = _starts(header.start_offset_info), _counts(header.order_count_info)
        broker_name = self._broker.config.broker_name
        found = []
        for record in _records(answer.body):
            message = decode_message(record)
            text = message.properties.get(N.POP_CK)
            if text is not None:
                receipt = ExtraInfo.decode(text)
            else:
                flag, queue_id, offset = retry_flag(message.topic), message.queue_id, message.queue_offset
                receipt = ExtraInfo(
                    starts.setdefault((flag, queue_id), offset), header.pop_time, header.invisible_time,
                    header.revive_qid, flag, broker_name, queue_id, offset)
                count = counts.get((flag, f"qo{queue_id}%{offset}"), counts.get((flag, str(queue_id)), 0))
                message.reconsume_times = count or message.reconsume_times
            message.properties.setdefault(N.FIRST_POP_TIME, str(header.pop_time))
            found.append(_Popped(message, ReceiptHandle(receipt, message.phy_offset)))
        return found

    def _found_lite(self, answer: RemotingCommand) -> list[_Popped]:
        """Return the messages of an answer to a pop of Lite topics, each with its place in its Lite topic."""
        header, found = answer.read(PopLiteMessageResponseHeader), []
        counts = (header.order_count_info or "").split(";")
        for number, record in enumerate(_records(answer.body)):
            message = decode_message(record)
            message.queue_offset = int(message.properties[N.INNER_MULTI_QUEUE_OFFSET])
            message.reconsume_times = int(counts[number])
            message.properties.setdefault(N.FIRST_POP_TIME, str(header.pop_time))
            receipt = ExtraInfo(
                0, header.pop_time, header.invisible_time, header.revive_qid, "0", self._broker.config.broker_name,
                LMQ_QUEUE_ID, message.queue_offset)
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

        task = self._broker.loop.create_task(run())
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
            delivery_timestamp=timestamp(self._broker.clock.now_ms())))


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


def _records(body: bytes) -> Iterable[bytes]:
    at = 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        yield body[at : at + size]
        at += size


def _starts(text: str | None) -> dict[tuple[str, int], int]:
    """Return the first offset of each queue, by its retry flag and number."""
    parts = [part.split(" ") for part in (text or "").split(";") if part]
    return {(flag, int(queue_id)): int(start) for flag, queue_id, start in parts}


def _counts(text: str | None) -> dict[tuple[str, str], int]:
    """Return how often messages of an orderly pop were popped before, by retry flag and place."""
    parts = [part.split(" ") for part in (text or "").split(";") if part]
    return {(flag, place): int(count) for flag, place, count in parts}
