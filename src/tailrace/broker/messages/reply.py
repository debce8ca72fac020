"""Request-reply: requests 324 and 325, a reply to the producer that waits for it (ReplyMessageProcessor).

A reply is checked like a send. The broker pushes it with request 326 to the producer whose client id is in the
property REPLY_TO_CLIENT. After the producer's answer, or a timeout, the broker stores the reply in its topic
(storeReplyMessageEnable) and reports to the sender whether the push succeeded.

A reply without REPLY_TO_CLIENT, or to a producer that is not connected, is refused and not stored.
RocketMQ gives the same answer but stores the reply, once for each retry of the sender. With users a reply needs a
question that its user may consume (`AskedQuestions`).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final, NamedTuple, final

from tailrace import events
from tailrace.broker.clients.client_manager import ProducerManager
from tailrace.broker.core.addresses import Addresses
from tailrace.broker.messages.sent_properties import NamedProperties
from tailrace.broker.messages.service import BUSY, MessageService, plain_sys_flag
from tailrace.broker.statistics.traffic import Traffic, message_type
from tailrace.config import BrokerConfig
from tailrace.env.clock import Clock
from tailrace.errors import RefusalError, RemotingConnectError, RemotingTimeoutError
from tailrace.formats.commitlog import MAX_PROPERTIES_LENGTH, decode_properties
from tailrace.formats.names import MSG_REGION, PUSH_REPLY_TIME, REPLY_TO_CLIENT, TRACE_ON, WAIT
from tailrace.formats.remoting import MQ_VERSION, RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests.message_headers import (
    ReplyMessageRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
)
from tailrace.kernels.properties import encode_properties
from tailrace.logs import get_logger
from tailrace.model import MessageExtBrokerInner
from tailrace.node.message_store import MessageStore
from tailrace.remoting import Channel
from tailrace.requests.caller import RemotingCaller
from tailrace.requests.config_changes import ConfigChanges, MissingConfigError
from tailrace.requests.durable_answers import DurableAnswers, when_durable
from tailrace.requests.processor import RequestProcessor, serves
from tailrace.requests.reply import Answer, Reply, ReplyTasks, WaitingRequests, as_it_is
from tailrace.store.append import kind_of
from tailrace.store.refused_puts import FLOW_CONTROL

__all__ = ["ReplyMessageProcessor"]

_log = get_logger(__name__)

PUSH_TIMEOUT_MS: Final = 10_000
"""Longest wait of a push for its producer, as in RocketMQ (Broker2Client.callClient)."""
PUSHES_MAX: Final = 10_000
"""Number of pushes under way, as in RocketMQ (replyThreadPoolQueueCapacity)."""
PUSHES_OF_CHANNEL_MAX: Final = 1_000
"""Number of pushes under way to one producer, so that a producer that does not answer cannot use all of them."""
BYTES_MAX: Final = 64 << 20
"""Bytes of memory that the pushes under way take."""
BYTES_OF_CHANNEL_MAX: Final = 16 << 20
"""Bytes of the pushes under way to one producer, if there is more than one."""
STOP_S: Final = 1.0


class _Push(NamedTuple):
    """A reply on its way to a producer."""

    client_id: str
    producer: Channel
    command: RemotingCommand
    message: MessageExtBrokerInner
    """The message that is stored after the push."""


@final
class ReplyMessageProcessor(RequestProcessor):
    """Pushes replies to producers and stores them.

    With ``durable`` the answer to a pushed reply also waits until the stored reply is durable.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, store: MessageStore, config: BrokerConfig,
        addresses: Addresses, producers: ProducerManager, changes: ConfigChanges, traffic: Traffic,
        named: NamedProperties | None, messages: MessageService, durable: DurableAnswers | None = None,
    ) -> None:
        self._clock, self._store, self._config, self._addresses = clock, store, config, addresses
        self._producers, self._changes, self._traffic, self._named = producers, changes, traffic, named
        self._topics = store.topics
        self._messages, self._durable = messages, durable
        self._tasks = ReplyTasks(loop)
        self._under_way = WaitingRequests(
            "replies", PUSHES_MAX, PUSHES_OF_CHANNEL_MAX, BYTES_MAX, BYTES_OF_CHANNEL_MAX)
        """Pushes under way, counted for the connections of their producers."""
        self._common_ext = {
            MSG_REGION: config.region_id, TRACE_ON: "true" if config.trace_on else "false"}

    @property
    def pending(self) -> int:
        """Number of replies that are not answered yet."""
        return len(self._tasks)

    async def stop(self) -> None:
        """End the pushes that are under way. Their connections have been closed before."""
        await self._tasks.stop(STOP_S)

    @serves(RequestCode.SEND_REPLY_MESSAGE)
    def reply(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Push and store a reply with long field names: request 324."""
        return self._reply(channel, request, request.read(SendMessageRequestHeader))

    @serves(RequestCode.SEND_REPLY_MESSAGE_V2)
    def reply_v2(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Push and store a reply with short field names: request 325. The answer comes after the push."""
        return self._reply(channel, request, request.read(SendMessageRequestHeaderV2))

    def _reply(
        self, channel: Channel, request: RemotingCommand, header: SendMessageRequestHeader
    ) -> Answer:
        try:
            push = self._checked(channel, request, header)
            reply = Reply(channel, request).park(self._under_way, push.producer, held=False)
        except RefusalError as refusal:
            return request.answer(refusal.code, refusal.remark, dict(self._common_ext))
        except MissingConfigError as missing:
            return self._changes.provide(
                RemotingCaller(channel, request), missing, partial(self._reply, channel, request, header))
        self._tasks.start(reply, self._push_and_store(channel, request, push), as_it_is)
        return None

    def _checked(
        self, channel: Channel, request: RemotingCommand, header: SendMessageRequestHeader
    ) -> _Push:
        """Return the reply to push and to store. Raises RefusalError or MissingConfigError."""
        if self._durable is not None and self._durable.full:
            self._store.refused_puts.count(FLOW_CONTROL, BUSY)
            raise RefusalError(ResponseCode.SYSTEM_BUSY, BUSY)
        # With its flags, unlike in RocketMQ, so that readers can decompress the stored body.
        sys_flag = plain_sys_flag(header.sys_flag)
        if not request.body:
            raise RefusalError(ResponseCode.MESSAGE_ILLEGAL, "the message body is empty")
        properties, stored = self._properties(header.properties or "")
        client_id = properties.get(REPLY_TO_CLIENT)
        if client_id is None:
            events.REPLY_REFUSED.log(_log, peer=channel.peer, reason=f"no {REPLY_TO_CLIENT}")
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR, f"reply message properties[{REPLY_TO_CLIENT}] is null")
        if self._named is not None:
            self._named.check_reply(channel, request, header.topic, header.properties or "", properties)
        config, queue_id = self._messages.place(header)
        producer = self._producers.find_channel(client_id)
        if producer is None:
            remark = f"push reply message fail, channel of <{client_id}> not found."
            events.REPLY_REFUSED.log(_log, peer=channel.peer, reason=remark)
            raise RefusalError(ResponseCode.SYSTEM_ERROR, remark)
        message = MessageExtBrokerInner(
            config.topic_name, queue_id, request.body, stored, header.flag, sys_flag,
            header.born_timestamp, channel.born_host, header.reconsume_times or 0, 0,
            properties.get(WAIT) != "false")
        properties[PUSH_REPLY_TIME] = str(self._clock.now_ms())
        return _Push(client_id, producer, RemotingCommand(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
            self._push_header(channel, header, encode_properties(properties).decode()).to_ext(),
            request.body, version=MQ_VERSION), message)

    def _properties(self, text: str) -> tuple[dict[str, str], bytes]:
        """Return the properties of a reply with those that the broker sets, as a dict and encoded."""
        size = len(text)
        if size <= MAX_PROPERTIES_LENGTH:
            properties = {**decode_properties(text.encode()), **self._common_ext}
            stored = encode_properties(properties)
            size = len(stored)
            if size <= MAX_PROPERTIES_LENGTH:
                return properties, stored
        raise RefusalError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the properties take {size} bytes, over the limit of {MAX_PROPERTIES_LENGTH}")

    def _push_header(
        self, channel: Channel, header: SendMessageRequestHeader, properties: str
    ) -> ReplyMessageRequestHeader:
        return ReplyMessageRequestHeader(
            header.producer_group, header.topic, header.default_topic, header.default_topic_queue_nums,
            header.queue_id, header.sys_flag, header.born_timestamp, header.flag,
            born_host=channel.peer, store_host=self._addresses.broker,
            store_timestamp=self._clock.now_ms(), properties=properties,
            reconsume_times=header.reconsume_times, unit_mode=bool(header.unit_mode))

    async def _push_and_store(self, channel: Channel, request: RemotingCommand, push: _Push) -> RemotingCommand | None:
        return self._put(channel, request, push, ok=await self._push(push))

    async def _push(self, push: _Push) -> bool:
        try:
            answer = await push.producer.request(push.command, PUSH_TIMEOUT_MS)
        except (RemotingTimeoutError, RemotingConnectError) as error:
            reason = str(error)
        else:
            if answer.code == ResponseCode.SUCCESS:
                return True
            reason = f"code {answer.code} {answer.remark or ''}"
        events.REPLY_NOT_PUSHED.log(_log, client=push.client_id, peer=push.producer.peer, reason=reason)
        return False

    def _put(
        self, channel: Channel, request: RemotingCommand, push: _Push, *, ok: bool
    ) -> RemotingCommand | None:
        """Store the reply and return the answer; None if the answer is sent when the reply is durable.

        The answer reports the push. If the push succeeded and the reply cannot be stored, the answer is a
        success with msgId 0, as in RocketMQ.
        """
        message, until = push.message, 0
        place = {"msgId": "0", "queueId": str(message.queue_id), "queueOffset": "0"} if ok else {}
        # The topic may have been deleted in the meantime.
        if self._config.store_reply_message_enable and self._topics.select(message.topic):
            store = self._store
            kind = message_type(kind_of(message), message.properties)
            result = store.put_inner(message)
            if result.status.appended and result.until >= 0:
                until = result.until
                self._traffic.take_in(
                    message.topic, kind, result.msg_num, until - result.phy_offset)
                place = {
                    "msgId": f"{store.inner.store_host.hex().upper()}{result.phy_offset:016X}",
                    "queueId": str(result.queue_id), "queueOffset": str(result.queue_offset)}
            else:
                events.REPLY_NOT_STORED.log(_log, topic=message.topic, status=result.status.name, reason=result.remark)
        ext = {**place, **self._common_ext}
        if not ok:
            return request.answer(
                ResponseCode.SYSTEM_ERROR, f"push reply message to {push.client_id}fail.", ext)
        answer = request.answer(ext=ext)
        if not until or not message.wait_store_msg_ok:
            return answer
        return when_durable(self._durable, channel, request, answer, until, names_slaves=True)
