"""Request-reply: a message that is answered by one of its consumers.

The message names the client id of its producer. A consumer sends the reply with request 325 to a broker, which
pushes it (request 326) on the producer's connection. The heartbeats of the producer make that connection known.
"""

from __future__ import annotations

import asyncio
from typing import Final, final

from tailrace import events
from tailrace.client.broker_calls import MAX_BODY
from tailrace.client.instance import InstanceShare
from tailrace.client.producer_member import ProducerMember
from tailrace.env.clock import Clock
from tailrace.env.entropy import SystemEntropy
from tailrace.errors import CorruptionError, MessageIllegalError, RefusalError
from tailrace.formats import names as N
from tailrace.formats.commitlog import decode_properties, decompress_body
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests.message_headers import ReplyMessageRequestHeader
from tailrace.logs import get_logger
from tailrace.model import Message, MessageExt
from tailrace.remoting.client import split_address

__all__ = ["Requests", "is_reply", "reply_to"]

_log = get_logger(__name__)

_REPLY: Final = {N.MSG_TYPE: "reply"}


def reply_to(request: MessageExt, body: bytes) -> Message:
    """Return the message that answers a request. Raises MessageIllegalError for a message that is not a request."""
    found = {name: request.properties.get(name) for name in (N.CLUSTER, N.CORRELATION_ID, N.REPLY_TO_CLIENT, N.TTL)}
    missing = [name for name, value in found.items() if not value]
    if missing:
        raise MessageIllegalError(
            "properties", f"{', '.join(missing)} missing: the message was not sent with Producer.request")
    cluster = found.pop(N.CLUSTER)
    return Message(
        topic=f"{cluster}_REPLY_TOPIC", body=body,
        properties={**_REPLY, **{name: value for name, value in found.items() if value}})


def is_reply(message: Message) -> bool:
    """Return whether a message answers a request; it is then sent with request 325."""
    return message.properties.get(N.MSG_TYPE) == "reply"


@final
class Requests(ProducerMember):
    """Requests of one producer that wait for their replies."""

    def __init__(self, share: InstanceShare, group: str, clock: Clock) -> None:
        super().__init__(share, group)
        self._clock = clock

    @property
    def _waiting(self) -> dict[str, asyncio.Future[MessageExt]]:
        """Requests of all producers of the instance, because a push does not name the producer."""
        return self._share.instance.awaited_replies

    def open(self, timeout_ms: int) -> tuple[dict[str, str], asyncio.Future[MessageExt]]:
        """Return the properties of a new request, and the future of its reply; the caller calls `forget`."""
        name = f"{SystemEntropy().u64():016x}{SystemEntropy().u64():016x}"
        future = self._waiting[name] = asyncio.get_running_loop().create_future()
        return {
            N.CORRELATION_ID: name, N.REPLY_TO_CLIENT: self._share.instance.client_id, N.TTL: str(timeout_ms)}, future

    def forget(self, properties: dict[str, str]) -> None:
        """Stop waiting for the reply to a request."""
        self._waiting.pop(properties[N.CORRELATION_ID], None)

    def wants(self, request: RemotingCommand) -> bool:
        """Return whether a request is the push of a reply."""
        return request.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT

    async def serve(self, address: str, request: RemotingCommand) -> RemotingCommand | None:
        """Pass a reply to the call that waits for it."""
        try:
            message = self._message(request)
        except (RefusalError, CorruptionError) as error:
            events.REPLY_CANNOT_BE_READ.log(_log, broker=address, reason=error)
            return request.answer(ResponseCode.SYSTEM_ERROR, "process reply message fail")
        correlation = message.properties.get(N.CORRELATION_ID, "")
        future = self._waiting.pop(correlation, None)
        if future is None or future.done():
            events.REPLY_CAME_AFTER_ITS_REQUEST_HAD_ENDED.log(_log, broker=address, correlation=correlation)
        else:
            future.set_result(message)
        return request.answer()

    def _message(self, request: RemotingCommand) -> MessageExt:
        header = request.read(ReplyMessageRequestHeader)
        properties = decode_properties((header.properties or "").encode())
        properties[N.ARRIVE_TIME] = str(self._clock.now_ms())
        return MessageExt(
            topic=header.topic, queue_id=header.queue_id, queue_offset=-1, phy_offset=-1, store_size=0,
            body=decompress_body(request.body, header.sys_flag, MAX_BODY), flag=header.flag, sys_flag=header.sys_flag,
            body_crc=0, born_timestamp=header.born_timestamp, born_host=_host(header.born_host),
            store_timestamp=header.store_timestamp, store_host=_host(header.store_host),
            reconsume_times=header.reconsume_times or 0, prepared_transaction_offset=0, properties=properties)


def _host(text: str) -> tuple[str, int]:
    return split_address(text.lstrip("/")) or ("", 0)
