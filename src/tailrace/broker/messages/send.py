"""Sends: requests 10, 310 and 320 (SendMessageProcessor)."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import partial
from typing import Final, final

import orjson

from tailrace.broker.messages.service import MessageService
from tailrace.broker.statistics.traffic import Traffic
from tailrace.errors import RefusalError
from tailrace.formats.remoting import (
    BINARY_HEAD,
    INT32,
    MQ_VERSION,
    PREFIX,
    RESPONSE_FLAG,
    RemotingCommand,
    RequestCode,
    SerializeType,
    encode,
)
from tailrace.formats.requests.message_headers import (
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from tailrace.kernels import header as header_kernel
from tailrace.model import PutMessageResult
from tailrace.remoting import Channel
from tailrace.remoting.server import failure_of
from tailrace.requests.caller import RemotingCaller
from tailrace.requests.config_changes import ConfigChanges, MissingConfigError
from tailrace.requests.processor import RequestProcessor, serves
from tailrace.requests.reply import Reply

__all__ = ["SendMessageProcessor"]


@final
class SendMessageProcessor(RequestProcessor):
    """The remoting edge of `MessageService`: reads the headers of sends, and encodes the answers."""

    def __init__(self, messages: MessageService, changes: ConfigChanges, traffic: Traffic) -> None:
        self.messages = messages
        self._changes = changes
        self._counted = traffic.sends
        self._common_ext = self.messages.common_ext
        self._tail = b"".join(
            _field(name, value.encode()) for name, value in self._common_ext.items()
        )
        self.msg_id_prefix = b""
        """The encoded address of the store, in hexadecimal, with which message ids begin."""

    def set_store_host(self, store_host: bytes) -> None:
        """Set the encoded address with which message ids begin."""
        self.msg_id_prefix = store_host.hex().upper().encode()

    @serves(RequestCode.SEND_MESSAGE)
    def send(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | bytes | None:
        """Store a message of a request with long field names: request 10."""
        self._counted["ordinary"] += 1
        return self._send(channel, request, request.read(SendMessageRequestHeader))

    @serves(RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
    def send_v2(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | bytes | None:
        """Store a message or a batch of a request with short field names: requests 310 and 320."""
        self._counted["ordinary"] += 1
        return self._send(channel, request, request.read(SendMessageRequestHeaderV2))

    def _send(
        self, channel: Channel, request: RemotingCommand, header: SendMessageRequestHeader
    ) -> RemotingCommand | bytes | None:
        messages = self.messages
        batch = header.batch or request.code == RequestCode.SEND_BATCH_MESSAGE
        caller = RemotingCaller(channel, request)
        try:
            sent = messages.send(header, request.body, caller, batch=batch)
        except RefusalError as refusal:
            return request.answer(refusal.code, refusal.remark, dict(self._common_ext))
        except MissingConfigError as missing:
            return self._changes.provide(
                caller, missing, partial(self._send, channel, request, header), failure=self._not_created)
        result, unique_key = sent.result, sent.unique_key
        if request.is_oneway:
            messages.took(sent)
            return None
        if sent.is_inner_batch:
            answer = self._inner_answer(request, result, unique_key)
        elif batch:
            answer = self.batch_answer(request.serialize_type, request.opaque, result)
        elif request.serialize_type in (SerializeType.ROCKETMQ, SerializeType.JSON):
            answer = self.answer(request.serialize_type, request.opaque, result, unique_key)
        else:
            answer = request.answer(ext=self._answer_header(result, unique_key))
        if sent.until:
            messages.durable.add(
                Reply(channel, request), answer if isinstance(answer, bytes) else encode(answer), sent.until,
                partial(messages.took, sent))
            return None
        messages.took(sent)
        return answer

    def _not_created(self, channel: Channel, request: RemotingCommand, error: Exception) -> RemotingCommand:
        """Count a send whose topic could not be created, and return the answer."""
        self.messages.not_created(error)
        return failure_of(channel, request, error)

    def answer(self, serialize_type: int, opaque: int, result: PutMessageResult, unique_key: str) -> bytes:
        """Return the encoded answer to a message that is stored."""
        if serialize_type == SerializeType.ROCKETMQ:
            key = unique_key.encode()
            return self._binary_frame(
                opaque, b"%b%016X" % (self.msg_id_prefix, result.phy_offset), result,
                b"\0\x0dtransactionId%b%b" % (INT32.pack(len(key)), key), result.recall_handle)
        more = {"recallHandle": result.recall_handle} if result.recall_handle else {}
        return self._json_frame(
            opaque, b"%b%016X" % (self.msg_id_prefix, result.phy_offset), result, {"transactionId": unique_key}, more)

    def batch_answer(self, serialize_type: int, opaque: int, result: PutMessageResult) -> bytes:
        """Return the encoded answer to a batch that is stored."""
        msg_ids = header_kernel.message_ids(self.msg_id_prefix, result.phy_offsets)
        if serialize_type == SerializeType.ROCKETMQ:
            return self._binary_frame(opaque, msg_ids, result, b"")
        return self._json_frame(opaque, msg_ids, result, {}, {})

    def _json_frame(
        self, opaque: int, msg_id: bytes, result: PutMessageResult, before: Mapping[str, str], after: Mapping[str, str],
    ) -> bytes:
        """Return an answer; ``before`` and ``after`` are fields around those that each answer has."""
        header = orjson.dumps({
            "code": 0, "flag": RESPONSE_FLAG, "language": "JAVA", "opaque": opaque,
            "serializeTypeCurrentRPC": "JSON", "version": MQ_VERSION,
            "extFields": {
                "msgId": msg_id.decode(), "queueId": str(result.queue_id), "queueOffset": str(result.queue_offset),
                **before, **self._common_ext, **after,
            }})
        return PREFIX.pack(4 + len(header), len(header)) + header

    def _binary_frame(
        self, opaque: int, msg_id: bytes, result: PutMessageResult, more: bytes, recall_handle: str = ""
    ) -> bytes:
        queue_id, offset = b"%d" % result.queue_id, b"%d" % result.queue_offset
        fields = b"\0\5msgId%b%b\0\7queueId%b%b\0\x0bqueueOffset%b%b%b%b" % (
            INT32.pack(len(msg_id)), msg_id, INT32.pack(len(queue_id)), queue_id,
            INT32.pack(len(offset)), offset, more, self._tail,
        )
        if recall_handle:
            handle = recall_handle.encode()
            fields += b"\0\x0crecallHandle%b%b" % (INT32.pack(len(handle)), handle)
        header = 21 + len(fields)
        return b"".join((
            _BINARY_START.pack(
                4 + header, 0x1000000 | header, 0, 0, MQ_VERSION, opaque, RESPONSE_FLAG, 0,
                len(fields),
            ),
            fields,
        ))

    def _answer_header(
        self, result: PutMessageResult, unique_key: str, batch_key: str | None = None
    ) -> SendMessageResponseHeader:
        return SendMessageResponseHeader(
            f"{self.msg_id_prefix.decode()}{result.phy_offset:016X}", result.queue_id, result.queue_offset, unique_key,
            batch_key, result.recall_handle or None)

    def _inner_answer(
        self, request: RemotingCommand, result: PutMessageResult, unique_key: str
    ) -> bytes | RemotingCommand:
        return request.answer(ext={
            **self._answer_header(result, unique_key, unique_key).to_ext(), **self._common_ext})


_BINARY_START: Final = struct.Struct(PREFIX.format + BINARY_HEAD.struct.format[1:] + "i")


def _field(name: str, value: bytes) -> bytes:
    raw = name.encode()
    return len(raw).to_bytes(2, "big") + raw + INT32.pack(len(value)) + value
