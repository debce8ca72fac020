"""Decode single fields of a stored record, for messages whose fields are decoded when they are first used.

The record must be verified before, because lengths are not checked here (``commitlog.decode_message`` checks them).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from tailrace.formats.commitlog import (
    MESSAGE_HEAD,
    MESSAGE_MAGIC_V2,
    SysFlag,
    decode_properties,
    unpack_host,
)
from tailrace.model import DecodedWhenUsed, MessageExt, create_message_id

__all__ = ["body_of", "decode_when_used", "stored_properties"]

_Field = Callable[[bytes], Any]
_COUNTS: Final = struct.Struct(">iqi")
_SIZE: Final = struct.Struct(">i")
_TIME: Final = struct.Struct(">q")
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


_sys_flag: Final = _head("sys_flag")
_LOW_FLAGS: Final = MESSAGE_HEAD.offsets["sys_flag"] + 3  # the byte with the bits for both hosts
_BORN_AT: Final = MESSAGE_HEAD.size


def _store_time_at(record: bytes) -> int:
    return _BORN_AT + (20 if record[_LOW_FLAGS] & SysFlag.BORNHOST_V6 else 8)


def _store_host(record: bytes) -> bytes:
    at = _store_time_at(record) + _TIME.size
    return record[at : at + (20 if record[_LOW_FLAGS] & SysFlag.STOREHOST_V6 else 8)]


def _counts_at(record: bytes) -> int:
    """Return the index of the body head: reconsume times, offset of the prepared message, length of the body."""
    flags = record[_LOW_FLAGS]
    return _BORN_AT + _TIME.size + (20 if flags & SysFlag.BORNHOST_V6 else 8) + (
        20 if flags & SysFlag.STOREHOST_V6 else 8)


def body_of(record: bytes) -> bytes:
    """Return the body of a verified record."""
    at = _counts_at(record) + _COUNTS.size
    return record[at : at + _SIZE.unpack_from(record, at - _SIZE.size)[0]]


def _topic_at(record: bytes) -> tuple[int, int]:
    """Return start and end of the topic."""
    at = _counts_at(record) + _COUNTS.size
    at += _SIZE.unpack_from(record, at - _SIZE.size)[0]
    if _magic(record) == MESSAGE_MAGIC_V2:
        return at + 2, at + 2 + (record[at] << 8 | record[at + 1])
    return at + 1, at + 1 + record[at]


def _topic(record: bytes) -> str:
    start, end = _topic_at(record)
    return record[start:end].decode()


def stored_properties(record: bytes) -> bytes:
    """Return the properties of a verified record as they are stored."""
    return record[_topic_at(record)[1] + 2 :]  # after their length field, up to the end of the record


def _properties(record: bytes) -> dict[str, str]:
    return decode_properties(stored_properties(record))


_magic: Final = _head("magic")
_phy_offset: Final = _head("phy_offset")
DecodedWhenUsed.decoders = {
    "topic": _topic,
    "queue_id": _head("queue_id"),
    "queue_offset": _head("queue_offset"),
    "phy_offset": _phy_offset,
    "store_size": _head("total_size"),
    "body": body_of,
    "flag": _head("flag"),
    "sys_flag": _sys_flag,
    "body_crc": _head("body_crc"),
    "born_timestamp": _head("born_timestamp"),
    "born_host": lambda record: unpack_host(record[_BORN_AT : _store_time_at(record)]),
    "store_timestamp": lambda record: _TIME.unpack_from(record, _store_time_at(record))[0],
    "store_host": lambda record: unpack_host(_store_host(record)),
    "reconsume_times": lambda record: _COUNTS.unpack_from(record, _counts_at(record))[0],
    "prepared_transaction_offset": lambda record: _COUNTS.unpack_from(record, _counts_at(record))[1],
    "properties": _properties,
    "msg_id": lambda record: create_message_id(_store_host(record), _phy_offset(record)),
}
