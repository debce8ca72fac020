"""Decode single fields of a stored record, for messages whose fields are decoded when they are first used.

The record must be verified before, because lengths are not checked here (``commitlog.decode_message`` checks them).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from tailrace.formats.commitlog import (
    BODY_HEAD,
    MESSAGE_HEAD,
    PROPERTIES_LENGTH_LENGTH,
    decode_properties,
    fixed_parts,
    text_parts,
    unpack_host,
)
from tailrace.model import DecodedWhenUsed, MessageExt, create_message_id

__all__ = ["body_of", "decode_when_used", "stored_properties"]

_Field = Callable[[bytes], Any]
_new: Final = MessageExt.__new__


def decode_when_used(record: bytes) -> MessageExt:
    """Return the message of a verified record; ``record`` has no bytes after it.

    A field is decoded when it is first used; the message keeps the record.
    """
    message = _new(MessageExt)
    message._record = record  # type: ignore[misc]  # a slot of the base class
    return message


def _head(name: str) -> _Field:
    read = struct.Struct(">" + MESSAGE_HEAD.fields[name].struct_code).unpack_from
    at = MESSAGE_HEAD.offsets[name]
    return lambda record: read(record, at)[0]


def body_of(record: bytes) -> bytes:
    """Return the body of a verified record."""
    at = fixed_parts(record)[2]
    start = at + BODY_HEAD.size
    return record[start : start + _counts(record, at)[2]]


def _topic(record: bytes) -> str:
    _, _, start, end = text_parts(record)
    return record[start:end].decode()


def stored_properties(record: bytes) -> bytes:
    """Return the properties of a verified record as they are stored."""
    return record[text_parts(record)[3] + PROPERTIES_LENGTH_LENGTH :]


def _store_time(record: bytes) -> int:
    at, end, _ = fixed_parts(record)
    return int.from_bytes(record[at:end], "big", signed=True)


def _store_host(record: bytes) -> bytes:
    _, at, end = fixed_parts(record)
    return record[at:end]


_counts: Final = BODY_HEAD.struct.unpack_from
_phy_offset: Final = _head("phy_offset")
DecodedWhenUsed.decoders = {
    "topic": _topic,
    "queue_id": _head("queue_id"),
    "queue_offset": _head("queue_offset"),
    "phy_offset": _phy_offset,
    "store_size": _head("total_size"),
    "body": body_of,
    "flag": _head("flag"),
    "sys_flag": _head("sys_flag"),
    "body_crc": _head("body_crc"),
    "born_timestamp": _head("born_timestamp"),
    "born_host": lambda record: unpack_host(record[MESSAGE_HEAD.size : fixed_parts(record)[0]]),
    "store_timestamp": _store_time,
    "store_host": lambda record: unpack_host(_store_host(record)),
    "reconsume_times": lambda record: _counts(record, fixed_parts(record)[2])[0],
    "prepared_transaction_offset": lambda record: _counts(record, fixed_parts(record)[2])[1],
    "properties": lambda record: decode_properties(stored_properties(record)),
    "msg_id": lambda record: create_message_id(_store_host(record), _phy_offset(record)),
}
