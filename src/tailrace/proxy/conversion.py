"""Stored messages as messages of the protocol (GrpcConverter)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from tailrace import events
from tailrace.config import whole_number
from tailrace.errors import CorruptionError
from tailrace.formats import names as N
from tailrace.formats.commitlog import SysFlag, decompress_body
from tailrace.logs import get_logger
from tailrace.model import MessageExt
from tailrace.proxy.protocol import definition, resource, timestamp
from tailrace.remoting.addresses import address_text

__all__ = ["message_type_of", "to_message"]

_log = get_logger(__name__)
_GZIP: Final = b"\x1f\x8b"
PLAIN_MAX: Final = 32 << 20
"""Bytes of a body that is decompressed here."""

_Types = definition.MessageType
# An attribute of an enum of protobuf takes most of a microsecond.
_TRANSACTION, _DELAY, _FIFO = _Types.TRANSACTION, _Types.DELAY, _Types.FIFO
_PRIORITY, _LITE, _NORMAL = _Types.PRIORITY, _Types.LITE, _Types.NORMAL
_MD5, _IDENTITY, _GZIPPED = definition.DigestType.MD5, definition.Encoding.IDENTITY, definition.Encoding.GZIP


def message_type_of(properties: Mapping[str, str]) -> Any:
    """Return the type of a message: its properties decide, in this order (TopicMessageType)."""
    if properties.get(N.TRAN_MSG, "").lower() == "true":
        return _TRANSACTION
    if (N.DELAY in properties or N.TIMER_DELIVER_MS in properties or N.TIMER_DELAY_SEC in properties
            or N.TIMER_DELAY_MS in properties):
        return _DELAY
    if N.SHARDING_KEY in properties:
        return _FIFO
    if N.PRIORITY in properties:
        return _PRIORITY
    if N.LITE_TOPIC in properties:
        return _LITE
    return _NORMAL


def to_message(message: MessageExt, topic: str, handle: str = "") -> Any:
    """Return a stored message as clients get it; ``handle`` is its receipt handle, if it was received."""
    properties = message.properties
    body, encoding = _body_of(message)
    system = definition.SystemProperties(
        keys=properties[N.KEYS].split(" ") if N.KEYS in properties else (),
        message_id=properties.get(N.UNIQ_KEY) or message.msg_id,
        body_digest=definition.Digest(
            type=_MD5,
            checksum=hashlib.md5(body, usedforsecurity=False).hexdigest().upper()),
        body_encoding=encoding,
        message_type=message_type_of(properties),
        born_timestamp=timestamp(message.born_timestamp),
        born_host=properties.get("__BORNHOST", "").strip() or message.born_host[0],
        store_timestamp=timestamp(message.store_timestamp),
        store_host=address_text(*message.store_host),
        queue_id=message.queue_id, queue_offset=message.queue_offset, delivery_attempt=message.reconsume_times + 1)
    if handle:
        system.receipt_handle = handle
    _set_optional(system, properties)
    user = {name: value for name, value in properties.items() if name not in N.SYSTEM_PROPERTIES}
    return definition.Message(topic=resource(topic), user_properties=user, system_properties=system, body=body)


def _body_of(message: MessageExt) -> tuple[bytes, Any]:
    """Return the body and its encoding.

    Clients of gRPC read gzip only, so what a client of the remoting protocol compressed otherwise is sent plain.
    """
    if not message.sys_flag & SysFlag.COMPRESSED:
        return message.body, _IDENTITY
    if not message.body.startswith(_GZIP):
        try:
            return decompress_body(message.body, message.sys_flag, PLAIN_MAX), _IDENTITY
        except CorruptionError as error:
            events.BODY_SENT_AS_IT_IS_STORED.log(
                _log, topic=message.topic, queue=message.queue_id, offset=message.queue_offset, reason=error)
    return message.body, _GZIPPED


def _set_optional(system: Any, properties: Mapping[str, str]) -> None:
    for name, field in (
        (N.TAGS, "tag"), (N.SHARDING_KEY, "message_group"), (N.LITE_TOPIC, "lite_topic"),
        (N.TRACE_CONTEXT, "trace_context"),
    ):
        value = properties.get(name)
        if value is not None:
            setattr(system, field, value)
    deliver_ms = whole_number(properties.get(N.TIMER_DELIVER_MS, ""))
    if deliver_ms is not None:
        system.delivery_timestamp.CopyFrom(timestamp(deliver_ms))
    priority = whole_number(properties.get(N.PRIORITY, ""))
    if priority is not None and priority < 1 << 31:
        system.priority = priority
    topic, message_id = properties.get(N.DLQ_ORIGIN_TOPIC), properties.get(N.DLQ_ORIGIN_MESSAGE_ID)
    if topic is not None and message_id is not None:
        system.dead_letter_queue.topic, system.dead_letter_queue.message_id = topic, message_id
