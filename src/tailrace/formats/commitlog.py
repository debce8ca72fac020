"""The CommitLog record (RocketMQ's MessageExtEncoder and MessageDecoder), batches, ids, properties.

``RECORD`` declares the parts of a record in order. The numbers in the kernels are generated from it
(``kernels/shared/layouts.py``). This module decodes one record at a time.
"""

from __future__ import annotations

import functools
import ipaddress
import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Annotated, Final, NamedTuple

from tailrace.errors import (
    BadMagicError,
    CorruptionError,
    ImpossibleLengthError,
    MessageIllegalError,
)
from tailrace.formats._layout import Layout
from tailrace.formats.names import CRC_PROPERTY
from tailrace.model import MessageExt, create_message_id

__all__ = [
    "BATCH_ITEM", "BLANK", "BLANK_MAGIC", "BODY_HEAD", "CRC_PROPERTY_LENGTH",
    "END_FILE_MIN_BLANK_LENGTH", "HOST_V4_LENGTH", "HOST_V6_LENGTH",
    "LMQ_DISPATCH_SEPARATOR", "LMQ_QUEUE_ID",
    "MAX_PROPERTIES_LENGTH", "MAX_TOPIC_LENGTH", "MAX_TOPIC_LENGTH_V1",
    "MESSAGE_HEAD", "MESSAGE_MAGIC_START", "MESSAGE_MAGIC_V1",
    "MESSAGE_MAGIC_V2", "MIN_RECORD_LENGTH", "PLAUSIBLE_LENGTH", "RECORD", "STORE_TIME_HEAD",
    "STORE_TIME_LENGTH", "Blank",
    "BatchItem", "BodyHead", "MessageHead", "RecordPart", "SysFlag",
    "decode_batch", "decode_message",
    "decode_properties", "decompress_body", "encode_batch", "is_damaged_header", "sizes_inside",
    "fixed_parts", "java_string_hash", "pack_host", "plausible_size",
    "record_size", "store_timestamp_of", "tags_code", "text_parts", "unpack_host",
]

MESSAGE_MAGIC_V1: Final = 0xDAA320A7
MESSAGE_MAGIC_V2: Final = 0xDAA320AB
"""Version 2 has a topic length of two bytes."""
_MAGIC_V2: Final = MESSAGE_MAGIC_V2.to_bytes(4, "big")
MESSAGE_MAGIC_START: Final = MESSAGE_MAGIC_V1.to_bytes(4, "big")[:3]
"""First bytes of both magic numbers, at byte 4 of a record."""
BLANK_MAGIC: Final = 0xCBD43194
END_FILE_MIN_BLANK_LENGTH: Final = 8
"""Bytes that stay free in every file for the blank record that ends it."""
MAX_PROPERTIES_LENGTH: Final = 32767
MAX_TOPIC_LENGTH_V1: Final = 127
MAX_TOPIC_LENGTH: Final = 255
NAME_VALUE_SEPARATOR: Final = "\x01"
PROPERTY_SEPARATOR: Final = "\x02"
CRC_PROPERTY_LENGTH: Final = len(CRC_PROPERTY) + 1 + 10 + 1
CRC_MASK: Final = 0x7FFFFFFF
LMQ_QUEUE_ID: Final = 0
LMQ_DISPATCH_SEPARATOR: Final = ","


class MessageHead(NamedTuple):
    """The first part of a record, with fields at fixed positions."""

    total_size: Annotated[int, "i", "i4", "bytes of the record, this field included"]
    magic: Annotated[int, "I", "u4", "0xDAA320A7 (version 1) or 0xDAA320AB (version 2)"]
    body_crc: Annotated[int, "i", "i4", "CRC-32 of the body, upper bit cleared"]
    queue_id: Annotated[int, "i", "i4", "queue of the topic"]
    flag: Annotated[int, "i", "i4", "number that the producer may use freely"]
    queue_offset: Annotated[int, "q", "i8", "number of the message in its queue"]
    phy_offset: Annotated[int, "q", "i8", "position of this record in the CommitLog"]
    sys_flag: Annotated[int, "i", "i4", "bits of SysFlag"]
    born_timestamp: Annotated[int, "q", "i8", "the producer's time, ms"]


class BodyHead(NamedTuple):
    """The part of a record between store host and body."""

    reconsume_times: Annotated[int, "i", "i4", "how often consumers have sent the message back"]
    prepared_transaction_offset: Annotated[
        int, "q", "i8", "position of the half message, in a committed message of a transaction"
    ]
    body_length: Annotated[int, "i", "i4", "bytes of the body"]


class Blank(NamedTuple):
    """The record that ends a file."""

    total_size: Annotated[int, "i", "i4", "bytes up to the end of the file"]
    magic: Annotated[int, "I", "u4", "0xCBD43194"]


MESSAGE_HEAD: Final = Layout(MessageHead, size=48)
BODY_HEAD: Final = Layout(BodyHead, size=16)
BLANK: Final = Layout(Blank, size=8)
HOST_V4_LENGTH: Final = 8
"""Bytes of a host, address and port, with an IPv4 address."""
HOST_V6_LENGTH: Final = 20
STORE_TIME_LENGTH: Final = 8
PROPERTIES_LENGTH_LENGTH: Final = 2


class RecordPart(NamedTuple):
    """A part of a record. ``sizes`` are its possible lengths in bytes, () if a length field has the length."""

    name: str
    sizes: tuple[int, ...]
    about: str


RECORD: Final = (
    RecordPart("head", (MESSAGE_HEAD.size,), "the fixed head, below"),
    RecordPart("born_host", (HOST_V4_LENGTH, HOST_V6_LENGTH),
               "address and port of the producer; an IPv6 address when sys_flag has BORNHOST_V6 (0x10)"),
    RecordPart("store_timestamp", (STORE_TIME_LENGTH,), "the broker's time, ms"),
    RecordPart("store_host", (HOST_V4_LENGTH, HOST_V6_LENGTH),
               "address and port of the broker; an IPv6 address when sys_flag has STOREHOST_V6 (0x20)"),
    RecordPart("body_head", (BODY_HEAD.size,), "below"),
    RecordPart("body", (), "as many bytes as body_length says"),
    RecordPart("topic_length", (1, 2), "two bytes in version 2"),
    RecordPart("topic", (), "UTF-8"),
    RecordPart("properties_length", (PROPERTIES_LENGTH_LENGTH,), "at most 32767"),
    RecordPart("properties", (), "name 0x01 value 0x02, repeated; the last one may be `__CRC32#`, a checksum of all "
               "bytes of the record before it, in ten digits, the least significant first"),
)
"""The parts of a record, in order."""
MIN_RECORD_LENGTH: Final = sum(part.sizes[0] for part in RECORD if part.sizes)
"""Length of a version 1 record with IPv4 hosts and empty body, topic and properties."""
PLAUSIBLE_LENGTH: Final = MESSAGE_HEAD.offsets["sys_flag"]
"""Number of bytes of a record header that ``plausible_size`` needs: length, magic and position."""
STORE_TIME_HEAD: Final = MESSAGE_HEAD.size + HOST_V6_LENGTH + STORE_TIME_LENGTH
"""Number of bytes of a record that always include its store time, for IPv4 and IPv6 born hosts."""


class BatchItem(NamedTuple):
    """Head of a message in the body of a batch request. Body, a length of two bytes and properties follow."""

    size: Annotated[int, "i", "i4", "bytes of the message with this head"]
    magic: Annotated[int, "i", "i4", "0"]
    body_crc: Annotated[int, "i", "i4", "0"]
    flag: Annotated[int, "i", "i4", "the flag that the program sets"]
    body_length: Annotated[int, "i", "i4", "bytes of the body"]


BATCH_ITEM: Final = Layout(BatchItem, size=20)


class SysFlag:
    """Bits of a record's system flag (RocketMQ's MessageSysFlag)."""

    COMPRESSED: Final = 0x1
    MULTI_TAGS: Final = 0x2
    TRANSACTION_MASK: Final = 0xC
    TRANSACTION_PREPARED: Final = 0x4
    TRANSACTION_COMMIT: Final = 0x8
    TRANSACTION_ROLLBACK: Final = 0xC
    BORNHOST_V6: Final = 0x10
    STOREHOST_V6: Final = 0x20
    NEED_UNWRAP: Final = 0x40
    INNER_BATCH: Final = 0x80
    COMPRESSION_MASK: Final = 0x700
    COMPRESSION_LZ4: Final = 0x100
    COMPRESSION_ZSTD: Final = 0x200
    COMPRESSION_ZLIB: Final = 0x300


def record_size(hosts: int, body: int, topic: int, properties: int) -> int:
    """Return the length of a record from the lengths of both hosts together, body, topic and properties.

    A topic of more than 127 bytes makes it a version 2 record.
    """
    return (
        MIN_RECORD_LENGTH - 2 * HOST_V4_LENGTH + hosts + body + topic + (topic > MAX_TOPIC_LENGTH_V1)
        + properties)


def store_timestamp_of(head: bytes) -> int | None:
    """Return the store time in ms from the first STORE_TIME_HEAD bytes of a record; None for fewer bytes."""
    if len(head) < STORE_TIME_HEAD:
        return None
    at = fixed_parts(head)[0]
    return int.from_bytes(head[at : at + STORE_TIME_LENGTH], "big", signed=True)


_HOST_LENGTHS: Final = (HOST_V4_LENGTH, HOST_V6_LENGTH)
_LOW_FLAGS: Final = MESSAGE_HEAD.offsets["sys_flag"] + 3
"""The byte with the flags of both hosts, which are bits 4 and 5."""
_FIXED_PARTS: Final = tuple(
    (MESSAGE_HEAD.size + born, MESSAGE_HEAD.size + born + STORE_TIME_LENGTH,
     MESSAGE_HEAD.size + born + STORE_TIME_LENGTH + store)
    for store in _HOST_LENGTHS for born in _HOST_LENGTHS)


def fixed_parts(record: bytes | memoryview) -> tuple[int, int, int]:
    """Return the starts of store time, store host and body head of a record. Only its fixed head is read."""
    return _FIXED_PARTS[record[_LOW_FLAGS] >> 4 & 3]


def text_parts(record: bytes) -> tuple[int, int, int, int]:
    """Return start and end of the body of a record, and start and end of its topic.

    The properties follow after a length of two bytes. The lengths are not compared with that of the record.
    Raises struct.error for a record without a whole body head.
    """
    at = fixed_parts(record)[2]
    body = at + BODY_HEAD.size
    body_end = body + BODY_HEAD.struct.unpack_from(record, at)[2]
    topic = body_end + (2 if record[4:8] == _MAGIC_V2 else 1)
    return body, body_end, topic, topic + int.from_bytes(record[body_end:topic], "big")


def java_string_hash(text: str) -> int:
    """Return Java's ``String.hashCode``: a polynomial with factor 31 over UTF-16 units, in signed 32 bits."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for i in range(0, len(units), 2):
        value = (value * 31 + (units[i] << 8 | units[i + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def tags_code(tags: str | None) -> int:
    """Return the tags code in a queue unit for a tag; 0 without a tag."""
    return java_string_hash(tags) if tags else 0


def decode_properties(data: bytes) -> dict[str, str]:
    """Decode stored properties. Invalid parts are skipped; the last value of a repeated name counts."""
    found: dict[str, str] = {}
    for piece in data.decode("utf-8", "replace").split(PROPERTY_SEPARATOR):
        name, separator, value = piece.partition(NAME_VALUE_SEPARATOR)
        if separator and name and value:
            found[name] = value
    return found


@functools.lru_cache(maxsize=4096)  # few hosts, many messages
def pack_host(ip: str, port: int) -> bytes:
    """Return the stored form of a host: address, then a port of four bytes."""
    return ipaddress.ip_address(ip).packed + port.to_bytes(4, "big")


@functools.lru_cache(maxsize=4096)
def unpack_host(raw: bytes) -> tuple[str, int]:
    """Return address and port of a stored host of 8 or 20 bytes."""
    return str(ipaddress.ip_address(raw[:-4])), int.from_bytes(raw[-4:], "big", signed=True)


def plausible_size(head: bytes | memoryview, phy_offset: int) -> int:
    """Return the length in a record header, 0 if the header is not one of a record at ``phy_offset``.

    ``head`` has the first PLAUSIBLE_LENGTH bytes of the record; with fewer bytes the result is 0.
    """
    if len(head) < PLAUSIBLE_LENGTH:
        return 0
    size = int.from_bytes(head[:4], "big", signed=True)
    magic = int.from_bytes(head[4:8], "big")
    position = int.from_bytes(head[MESSAGE_HEAD.offsets["phy_offset"] : PLAUSIBLE_LENGTH], "big", signed=True)
    is_right = magic in {MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2} and position == phy_offset
    return size if is_right and size >= MIN_RECORD_LENGTH else 0


def sizes_inside(record: bytes | memoryview) -> Iterator[int]:
    """Yield the length of a record by the lengths inside of it, for both versions; none if they do not fit in.

    If the length at the start of a record is damaged, one of them is right.
    """
    if len(record) < MIN_RECORD_LENGTH:
        return
    at = fixed_parts(record)[2] + BODY_HEAD.size
    body = int.from_bytes(record[at - 4 : at], "big", signed=True)
    for width in (1, 2):
        topic_at = at + body + width
        topic = int.from_bytes(record[topic_at - width : topic_at], "big")
        end = topic_at + topic + PROPERTIES_LENGTH_LENGTH
        if body >= 0 and end <= len(record):
            yield end + int.from_bytes(record[end - PROPERTIES_LENGTH_LENGTH : end], "big")


def is_damaged_header(head: bytes | memoryview, phy_offset: int, *, length_is_right: bool) -> bool:
    """Return True if damaged bytes are the header of a record at ``phy_offset``.

    They are if they have that position, or the magic and a length of which the caller knows that it is right.
    ``head`` has the first PLAUSIBLE_LENGTH bytes of the record; with fewer bytes the result is False.
    """
    if len(head) < PLAUSIBLE_LENGTH:
        return False
    magic = int.from_bytes(head[4:8], "big")
    position = int.from_bytes(head[MESSAGE_HEAD.offsets["phy_offset"] : PLAUSIBLE_LENGTH], "big", signed=True)
    return position == phy_offset or (length_is_right and magic in {MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2})


def decode_message(record: bytes | bytearray | memoryview, *, path: str = "") -> MessageExt:
    """Decode one stored record.

    Raises BadMagicError, ImpossibleLengthError or CorruptionError if the bytes are not a record. Checksums are
    not verified.
    """
    record = bytes(record)
    if len(record) < MIN_RECORD_LENGTH:
        raise ImpossibleLengthError(
            "record too short", path=path, expected=f">={MIN_RECORD_LENGTH}", actual=len(record))
    head = MESSAGE_HEAD.unpack_from(record)
    if head.magic not in {MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2}:
        raise BadMagicError(
            "not a message record", path=path, phy_offset=head.phy_offset,
            expected=f"{MESSAGE_MAGIC_V1:#x} or {MESSAGE_MAGIC_V2:#x}", actual=f"{head.magic:#x}")
    try:
        return _decode_variable_part(record, head)
    except UnicodeDecodeError as error:
        raise CorruptionError("topic is not UTF-8", path=path, phy_offset=head.phy_offset) from error
    except (struct.error, ValueError, IndexError) as error:
        raise ImpossibleLengthError(
            f"record lengths do not add up: {error}", path=path, phy_offset=head.phy_offset,
            expected=head.total_size, actual=len(record)) from error


def _decode_variable_part(record: bytes, head: MessageHead) -> MessageExt:
    time_at, store_host_at, body_head_at = fixed_parts(record)
    reconsume_times, prepared, body_length = BODY_HEAD.struct.unpack_from(record, body_head_at)
    body_at, body_end, topic_at, topic_end = text_parts(record)
    (properties_length,) = struct.unpack_from(">h", record, topic_end)
    at = topic_end + PROPERTIES_LENGTH_LENGTH
    whole = at + properties_length == head.total_size <= len(record)
    if min(body_length, properties_length) < 0 or not whole:
        raise ValueError(f"{at + properties_length} bytes are used")
    store_host = record[store_host_at:body_head_at]
    return MessageExt(
        topic=record[topic_at:topic_end].decode(),
        queue_id=head.queue_id,
        queue_offset=head.queue_offset,
        phy_offset=head.phy_offset,
        store_size=head.total_size,
        body=record[body_at:body_end],
        flag=head.flag,
        sys_flag=head.sys_flag,
        body_crc=head.body_crc,
        born_timestamp=head.born_timestamp,
        born_host=unpack_host(record[MESSAGE_HEAD.size : time_at]),
        store_timestamp=int.from_bytes(record[time_at:store_host_at], "big", signed=True),
        store_host=unpack_host(store_host),
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared,
        properties=decode_properties(record[at : at + properties_length]),
        msg_id=create_message_id(store_host, head.phy_offset),
    )


def encode_batch(items: Iterable[tuple[int, bytes, bytes]]) -> bytes:
    """Return the body of a batch request from (flag, body, stored properties) of each message."""
    parts: list[bytes] = []
    pack, head = BATCH_ITEM.struct.pack, BATCH_ITEM.size + 2
    for flag, body, properties in items:
        length = len(properties)
        parts += (
            pack(head + len(body) + length, 0, 0, flag, len(body)), body, length.to_bytes(2, "big"), properties)
    return b"".join(parts)


def decode_batch(data: bytes) -> list[tuple[int, bytes, bytes]]:
    """Return (flag, body, stored properties) of each message of a batch. Raises MessageIllegalError."""
    items: list[tuple[int, bytes, bytes]] = []
    at = 0
    while at < len(data):
        try:
            size, _magic, _crc, flag, body_length = BATCH_ITEM.unpack_from(data, at)
            body_at = at + BATCH_ITEM.size
            (properties_length,) = struct.unpack_from(">h", data, body_at + max(body_length, 0))
        except struct.error:
            raise MessageIllegalError("batch", f"item {len(items)} at byte {at} is cut off") from None
        used = BATCH_ITEM.size + body_length + 2 + properties_length
        if min(body_length, properties_length) < 0 or used != size or at + size > len(data):
            raise MessageIllegalError(
                "batch", f"lengths of item {len(items)} at byte {at} do not add up: {size}")
        properties_at = body_at + body_length + 2
        items.append((flag, data[body_at : body_at + body_length], data[properties_at : at + size]))
        at += size
    return items


def decompress_body(body: bytes, sys_flag: int, max_size: int) -> bytes:
    """Return the body as the producer wrote it, decompressed.

    Raises CorruptionError if it cannot be decompressed or has more than ``max_size`` bytes.
    """
    if not sys_flag & SysFlag.COMPRESSED:
        return body
    kind = sys_flag & SysFlag.COMPRESSION_MASK
    try:
        if kind in {0, SysFlag.COMPRESSION_ZLIB}:
            # gRPC producers write gzip under the same bits: 47 accepts both headers.
            engine = zlib.decompressobj(47)
            plain = engine.decompress(body, max_size)
            if engine.unconsumed_tail or not engine.eof:
                raise CorruptionError(
                    "compressed body is cut off or grows beyond the limit", expected=max_size)
            return plain
        if kind == SysFlag.COMPRESSION_LZ4:
            return _decompress_lz4(body, max_size)
        if kind == SysFlag.COMPRESSION_ZSTD:
            return _decompress_zstd(body, max_size)
    except (zlib.error, RuntimeError, EOFError) as error:
        raise CorruptionError(f"body does not decompress: {error}") from error
    raise CorruptionError("unknown compression type", actual=f"{kind:#x}")


def _decompress_lz4(body: bytes, max_size: int) -> bytes:
    try:
        from lz4.frame import LZ4FrameDecompressor  # noqa: PLC0415 - an optional package
    except ImportError:
        raise CorruptionError("an LZ4 body needs the package lz4 (tailrace[compression])") from None
    engine = LZ4FrameDecompressor()
    plain = bytes(engine.decompress(body, max_size))
    if not engine.eof:
        raise CorruptionError("LZ4 body is cut off or grows beyond the limit", expected=max_size)
    return plain


def _decompress_zstd(body: bytes, max_size: int) -> bytes:
    try:
        import zstandard  # noqa: PLC0415 - an optional package
    except ImportError:
        raise CorruptionError(
            "a ZSTD body needs the package zstandard (tailrace[compression])") from None
    try:
        with zstandard.ZstdDecompressor().stream_reader(body) as reader:
            plain = bytes(reader.read(max_size + 1))
    except zstandard.ZstdError as error:
        raise CorruptionError(f"body does not decompress: {error}") from error
    if len(plain) > max_size:
        raise CorruptionError("ZSTD body grows beyond the limit", expected=max_size)
    return plain
