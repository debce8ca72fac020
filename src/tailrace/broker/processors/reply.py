"""Request-reply: requests 324 and 325, a reply to the producer that waits for it (ReplyMessageProcessor).

A reply is checked as a send. Request 326 pushes it to the producer whose client id is in the property
REPLY_TO_CLIENT. When that producer has answered, or has not in time, the reply is stored in its topic
(storeReplyMessageEnable), and the sender is told whether the push succeeded.

A reply without REPLY_TO_CLIENT, or to a producer that is not connected, is refused and not stored. The
reference answers the same and stores it, once for each retry of the sender.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, NamedTuple, final

from tailrace.broker.answers_later import Answer, MissingConfigError, answer_failure, size_of
from tailrace.broker.context import BrokerContext
from tailrace.broker.durable_answers import DurableAnswers, when_durable
from tailrace.broker.processors.send import (
    BUSY,
    PROPERTIES_MAX,
    V1_NAMES,
    RefusalError,
    SendMessageProcessor,
    plain_sys_flag,
)
from tailrace.broker.traffic import message_type
from tailrace.errors import RemotingConnectError, RemotingTimeoutError
from tailrace.formats.commitlog import decode_properties, encode_properties
from tailrace.formats.remoting import MQ_VERSION, RemotingCommand, RequestCode, ResponseCode
from tailrace.logs import get_logger
from tailrace.model import MessageExtBrokerInner
from tailrace.remoting import Channel, RemotingServer

__all__ = ["ReplyMessageProcessor"]

_log = get_logger(__name__)

PUSH_TIMEOUT_MS: Final = 10_000
"""How long a push waits for the producer, as in the reference (Broker2Client.callClient)."""
PUSHES_MAX: Final = 10_000
"""Pushes under way; the reference's replyThreadPoolQueueCapacity."""
PUSHES_OF_CHANNEL_MAX: Final = 1_000
"""Pushes under way to one producer: one that does not answer takes no room from the others."""
BYTES_MAX: Final = 64 << 20
"""Bytes of the pushes under way, fields of their headers included."""
BYTES_OF_CHANNEL_MAX: Final = 16 << 20
"""Bytes of the pushes under way to one producer, beside a single one."""
STOP_S: Final = 1.0
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
LONG_NAMES: Final = {short: name for name, short in V1_NAMES.items()}
REQUIRED: Final = "abcdefgh"
NUMBERS: Final = {
    "d": (-(1 << 31), 1 << 31), "e": (-(1 << 31), 1 << 31), "f": (0, 1 << 31), "g": (-(1 << 63), 1 << 63),
    "h": (-(1 << 31), 1 << 31), "j": (-(1 << 31), 1 << 31),
}
"""Fields of a send that are numbers: the least, and the end of the range."""


class _Push(NamedTuple):
    """A reply on its way to a producer."""

    client_id: str
    producer: Channel
    command: RemotingCommand
    message: MessageExtBrokerInner
    """What is stored afterwards."""


@dataclass(slots=True)
class _UnderWay:
    count: int = 0
    size_bytes: int = 0


@final
class ReplyMessageProcessor:
    """Pushes replies to producers and stores them.

    With ``durable`` the answer to a reply that was pushed waits until the reply is durable, too.
    """

    def __init__(
        self, broker: BrokerContext, send: SendMessageProcessor, durable: DurableAnswers | None = None
    ) -> None:
        self._broker = broker
        self._send = send
        self._durable = durable
        self._tasks: set[asyncio.Task[None]] = set()
        self._size_bytes = 0
        self._under_way: dict[Channel, _UnderWay] = {}
        config = broker.config
        self._common_ext = {
            "MSG_REGION": config.region_id, "TRACE_ON": "true" if config.trace_on else "false"}

    def register(self, server: RemotingServer) -> None:
        """Take over the codes of this processor."""
        server.register(self.reply, RequestCode.SEND_REPLY_MESSAGE)
        server.register(self.reply_v2, RequestCode.SEND_REPLY_MESSAGE_V2)

    @property
    def pending(self) -> int:
        """Number of replies that are not answered yet."""
        return len(self._tasks)

    async def stop(self) -> None:
        """End the pushes that are under way; their connections are closed before."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=STOP_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def reply(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Request 324: the same with long names."""
        return self._reply(
            channel, request, {V1_NAMES.get(name, name): value for name, value in request.ext.items()})

    def reply_v2(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Request 325: answer once the producer has got the reply, or could not get it."""
        return self._reply(channel, request, request.ext)

    def _reply(self, channel: Channel, request: RemotingCommand, ext: dict[str, str]) -> Answer:
        try:
            push = self._checked(channel, request, ext)
        except RefusalError as refusal:
            return request.answer(refusal.code, refusal.remark, dict(self._common_ext))
        except MissingConfigError as missing:
            return self._broker.changes.serve_again(
                channel, request, missing,
                lambda channel, request: self._reply(channel, request, ext))
        self._count(push.producer, 1, size_of(request))
        task = self._broker.loop.create_task(self._push_and_store(channel, request, push))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return None

    def _checked(self, channel: Channel, request: RemotingCommand, ext: dict[str, str]) -> _Push:
        """Return what to push and to store; raises like `SendMessageProcessor.place`."""
        if self._durable is not None and self._durable.full:
            raise RefusalError(ResponseCode.SYSTEM_BUSY, BUSY)
        numbers = _numbers(ext)
        # The reference stores a reply without its flags: no reader could decompress its body.
        sys_flag = plain_sys_flag(numbers["f"])
        if not request.body:
            raise RefusalError(ResponseCode.MESSAGE_ILLEGAL, "the message body is empty")
        properties, stored = self._properties(ext.get("i") or "")
        client_id = properties.get(REPLY_TO_CLIENT)
        if client_id is None:
            _log.warning("reply refused peer=%s reason=%s", channel.peer, f"no {REPLY_TO_CLIENT}")
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR, f"reply message properties[{REPLY_TO_CLIENT}] is null")
        config, queue_id = self._send.place(channel, ext)
        producer = self._broker.producers.find_channel(client_id)
        if producer is None:
            remark = f"push reply message fail, channel of <{client_id}> not found."
            _log.warning("reply refused peer=%s reason=%s", channel.peer, remark)
            raise RefusalError(ResponseCode.SYSTEM_ERROR, remark)
        self._refuse_many(producer, client_id, size_of(request))
        message = MessageExtBrokerInner(
            config.topic_name, queue_id, request.body, stored, numbers["h"], sys_flag, numbers["g"],
            channel.born_host, numbers.get("j", 0), 0, properties.get("WAIT") != "false")
        properties[PUSH_REPLY_TIME] = str(self._broker.clock.now_ms())
        return _Push(client_id, producer, RemotingCommand(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
            self._push_header(channel, ext, numbers, encode_properties(properties).decode()),
            request.body, version=MQ_VERSION), message)

    def _properties(self, text: str) -> tuple[dict[str, str], bytes]:
        """Return the properties of a reply with those that the broker sets, also as they are stored."""
        size = len(text)
        if size <= PROPERTIES_MAX:
            properties = {**decode_properties(text.encode()), **self._common_ext}
            stored = encode_properties(properties)
            size = len(stored)
            if size <= PROPERTIES_MAX:
                return properties, stored
        raise RefusalError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the properties take {size} bytes, over the limit of {PROPERTIES_MAX}")

    def _push_header(
        self, channel: Channel, ext: dict[str, str], numbers: dict[str, int], properties: str
    ) -> dict[str, str]:
        """Return the fields of a ReplyMessageRequestHeader."""
        return {
            "producerGroup": ext["a"], "topic": ext["b"], "defaultTopic": ext["c"],
            **{LONG_NAMES[short]: str(number) for short, number in numbers.items()},
            "properties": properties, "unitMode": "true" if ext.get("k") == "true" else "false",
            "bornHost": channel.peer, "storeHost": self._broker.address,
            "storeTimestamp": str(self._broker.clock.now_ms()),
        }

    def _refuse_many(self, producer: Channel, client_id: str, size_bytes: int) -> None:
        mine = self._under_way.get(producer)
        if mine is not None and (
            mine.count >= PUSHES_OF_CHANNEL_MAX or mine.size_bytes + size_bytes > BYTES_OF_CHANNEL_MAX
        ):
            raise RefusalError(
                ResponseCode.SYSTEM_BUSY, f"{mine.count} replies of {mine.size_bytes} bytes wait for "
                f"<{client_id}> already; try again later")
        if len(self._tasks) >= PUSHES_MAX or self._size_bytes + size_bytes > BYTES_MAX:
            raise RefusalError(
                ResponseCode.SYSTEM_BUSY, f"{len(self._tasks)} replies of {self._size_bytes} bytes wait "
                "for their producers already; try again later")

    def _count(self, producer: Channel, count: int, size_bytes: int) -> None:
        """Count a push that begins, or with negative numbers one that has ended."""
        mine = self._under_way.setdefault(producer, _UnderWay())
        mine.count += count
        mine.size_bytes += size_bytes
        self._size_bytes += size_bytes
        if not mine.count:
            del self._under_way[producer]

    async def _push_and_store(self, channel: Channel, request: RemotingCommand, push: _Push) -> None:
        try:
            ok = await self._push(push)
            answer = self._store(channel, request, push, ok=ok)
            if answer is not None:
                channel.answer(request, answer)
        except Exception as error:  # noqa: BLE001 - the outermost step of a request: log, answer
            answer_failure(channel, request, error)
        finally:
            self._count(push.producer, -1, -size_of(request))

    async def _push(self, push: _Push) -> bool:
        try:
            answer = await push.producer.request(push.command, PUSH_TIMEOUT_MS)
        except (RemotingTimeoutError, RemotingConnectError) as error:
            reason = str(error)
        else:
            if answer.code == ResponseCode.SUCCESS:
                return True
            reason = f"code {answer.code} {answer.remark or ''}"
        _log.warning(
            "reply not pushed client=%s peer=%s reason=%s", push.client_id, push.producer.peer, reason)
        return False

    def _store(
        self, channel: Channel, request: RemotingCommand, push: _Push, *, ok: bool
    ) -> RemotingCommand | None:
        """Store the reply and return the answer; None if the answer goes out once the reply is durable.

        The answer is about the push: a reply that was pushed and cannot be stored is a success without
        a place (msgId 0), as in the reference.
        """
        message, until = push.message, 0
        place = {"msgId": "0", "queueId": str(message.queue_id), "queueOffset": "0"} if ok else {}
        # The topic may have been deleted in the meantime.
        if self._broker.config.store_reply_message_enable and self._broker.topics.select(message.topic):
            store = self._broker.store
            result = store.put_inner(message)
            if result.status.appended and result.until >= 0:
                until = result.until
                kind = message_type(message.properties.decode())
                self._broker.traffic.take_in(
                    message.topic, kind, result.msg_num, until - result.phy_offset)
                place = {
                    "msgId": f"{store.store_host.hex().upper()}{result.phy_offset:016X}",
                    "queueId": str(result.queue_id), "queueOffset": str(result.queue_offset)}
            else:
                _log.warning(
                    "reply not stored topic=%s status=%s reason=%s", message.topic, result.status.name,
                    result.remark)
        ext = {**place, **self._common_ext}
        if not ok:
            return request.answer(
                ResponseCode.SYSTEM_ERROR, f"push reply message to {push.client_id}fail.", ext)
        answer = request.answer(ext=ext)
        if not until or not message.wait_store_msg_ok:
            return answer
        return when_durable(self._durable, channel, request, answer, until)


def _numbers(ext: dict[str, str]) -> dict[str, int]:
    """Return the numbers among the fields of a send, by short name; raises RefusalError for a bad field."""
    for short in REQUIRED:
        if short not in ext:
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR, f"the custom field <{LONG_NAMES[short]}> is null")
    numbers: dict[str, int] = {}
    for short, (least, end) in NUMBERS.items():
        text = ext.get(short)
        if not text and short not in REQUIRED:
            continue
        try:
            number = int(text or "")
        except ValueError:
            number = end
        if not least <= number < end:
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR,
                f"the custom field <{LONG_NAMES[short]}> is not a number from {least} to {end - 1}: "
                f"{(text or '')[:40]!r}")
        numbers[short] = number
    return numbers
