"""Messages, results and status values. This module does not know file formats and does no I/O."""

from __future__ import annotations

import array
import enum
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final

import msgspec

from tailrace.errors import MessageIllegalError
from tailrace.spellings import duration_ms, time_ms

__all__ = [
    "BoundaryType",
    "GetMessageResult",
    "GetMessageStatus",
    "Message",
    "MessageExt",
    "MessageExtBrokerInner",
    "PutMessageResult",
    "PutMessageStatus",
    "create_message_id",
    "decode_message_id",
    "refuse_conflicts",
    "whole_ms",
]

SHOWN_MAX: Final = 64
"""Number of bytes of a body that the text of a message shows."""


def whole_ms(field: str, value: float | str | timedelta | datetime, factor: int = 1) -> int:
    """Return a time of a message in whole ms; ``factor`` is the number of ms in the unit of a number.

    A text or timedelta is read by `tailrace.spellings`: as a time if the factor is 1, else as a duration. Raises
    MessageIllegalError for another value, a negative one, nan and infinity.
    """
    try:
        if isinstance(value, str | datetime | timedelta):
            read: Callable[[Any, str], int] = time_ms if factor == 1 else duration_ms
            return read(value, field)
        found = round(value * factor) if factor != 1 else int(value)
    except (ValueError, OverflowError, TypeError) as error:
        text = str(error).removeprefix(f"{field} ") if isinstance(value, str | datetime | timedelta) else (
            f"{value!r} is not a finite number")
        raise MessageIllegalError(field, text) from None
    if found < 0:
        raise MessageIllegalError(field, f"{value!r} is negative")
    if factor == 1 and type(value) is float and value < _SECONDS_UNTIL:
        raise MessageIllegalError(field, f"{value!r} looks like seconds; give milliseconds, a datetime or ISO 8601")
    return found


_SECONDS_UNTIL: Final = 1e11
"""A time that is a float below this was made of ``time.time()``, which is in seconds."""
_OF_FIELDS: Final = (
    ("TAGS", "tags"), ("KEYS", "keys"), ("DELAY", "delay_level"), ("TIMER_DELAY_MS", "delay"),
    ("TIMER_DELIVER_MS", "deliver_at"))
"""(property, field of a message that is stored in it)."""
_STORED_NAMES: Final = frozenset(name for name, _ in _OF_FIELDS)


def refuse_conflicts(message: Message) -> None:
    """Raise MessageIllegalError if a message has contradictory fields, or a field of a wrong type or out of range."""
    if not _is_plain(message):
        _refuse_conflicts(message)


def _refuse_conflicts(message: Message) -> None:
    flag: Any = message.flag
    level: Any = message.delay_level
    if not isinstance(flag, int) or not -1 << 31 <= flag < 1 << 31:
        raise MessageIllegalError("flag", f"must be a whole number of 32 bits, not {flag!r}")
    if not isinstance(level, int) or not 0 <= level < 1 << 31:
        raise MessageIllegalError("delay_level", f"must be a whole number from 0 on, not {level!r}")
    if not isinstance(message.body, bytes | bytearray | memoryview):
        raise MessageIllegalError(
            "body", f"must be bytes, not {type(message.body).__name__}; encode a text first: body=text.encode()")
    tags: Any = message.tags
    keys: Any = message.keys
    properties: Mapping[Any, Any] = message.properties
    if tags is not None and not isinstance(tags, str):
        raise MessageIllegalError("tags", f"is one text, not {tags!r}")
    if keys and (isinstance(keys, str) or not all(isinstance(key, str) for key in keys)):
        instead = f"; write keys=[{keys!r}]" if isinstance(keys, str) else ""
        raise MessageIllegalError("keys", f"must be a list of strings, not {keys!r}{instead}")
    if (message.delay is not None) + (message.deliver_at is not None) + (level > 0) > 1:
        given = [name for name in ("delay", "deliver_at") if getattr(message, name) is not None]
        given += ["delay_level"] if level > 0 else []
        raise MessageIllegalError("delay", f"{' and '.join(given)} are given; give one of them")
    if message.delay is not None:
        whole_ms("delay", message.delay, 1000)
    elif message.deliver_at is not None:
        whole_ms("deliver_at", message.deliver_at)
    if not properties:
        return
    for name, value in properties.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise MessageIllegalError("properties", f"{name!r}: {value!r}: names and values are texts; use str()")
    for name, of_field in _OF_FIELDS:
        if name in properties and getattr(message, of_field):
            raise MessageIllegalError(
                "properties",
                f"{name} is the stored form of the field {of_field}, and both are given; give only the field")


def _is_plain(message: Message) -> bool:
    """Return True for a message with only a body, a tag, keys and properties that nothing speaks against.

    Most messages are such, and the checks of the others cost more.
    """
    tags, keys, properties = message.tags, message.keys, message.properties
    return (
        type(message.body) is bytes and (tags is None or type(tags) is str)
        and message.flag == 0 == message.delay_level and type(message.flag) is type(message.delay_level) is int
        and message.deliver_at is None and message.delay is None
        and (not keys or (type(keys) is tuple and len(keys) == 1 and type(keys[0]) is str) or _are_texts(keys))
        and (not properties or _are_plain(properties)))


def _are_texts(keys: Any) -> bool:
    """Return True for a list or tuple of texts."""
    if type(keys) is not list and type(keys) is not tuple:
        return False
    for key in keys:  # noqa: SIM110 - faster than all()
        if type(key) is not str:
            return False
    return True


def _are_plain(properties: Mapping[Any, Any]) -> bool:
    """Return True for texts that are not the stored form of a field."""
    for name, value in properties.items():
        if type(name) is not str or type(value) is not str:
            return False
    return _STORED_NAMES.isdisjoint(properties)


class PutMessageStatus(enum.Enum):
    """The result of a put. The first four mean that the message is in the log."""

    PUT_OK = 0
    FLUSH_DISK_TIMEOUT = 1
    FLUSH_SLAVE_TIMEOUT = 2
    SLAVE_NOT_AVAILABLE = 3
    SERVICE_NOT_AVAILABLE = 4
    CREATE_MAPPED_FILE_FAILED = 5
    MESSAGE_ILLEGAL = 6
    PROPERTIES_SIZE_EXCEEDED = 7
    OS_PAGE_CACHE_BUSY = 8
    UNKNOWN_ERROR = 9
    WHEEL_TIMER_FLOW_CONTROL = 10
    WHEEL_TIMER_MSG_ILLEGAL = 11
    WHEEL_TIMER_NOT_ENABLE = 12
    LMQ_CONSUME_QUEUE_NUM_EXCEEDED = 13

    def __init__(self, number: int) -> None:
        self.appended = number <= 3
        """True if the message is in the log."""


class GetMessageStatus(enum.Enum):
    """The status of a read of a queue (RocketMQ's GetMessageStatus)."""

    FOUND = 0
    NO_MATCHED_MESSAGE = 1
    MESSAGE_WAS_REMOVING = 2
    OFFSET_FOUND_NULL = 3
    OFFSET_OVERFLOW_BADLY = 4
    OFFSET_OVERFLOW_ONE = 5
    OFFSET_TOO_SMALL = 6
    NO_MATCHED_LOGIC_QUEUE = 7
    NO_MESSAGE_IN_QUEUE = 8
    OFFSET_RESET = 9


class BoundaryType(enum.Enum):
    """Result of a search by time: LOWER is the first message stored at the time or later, UPPER the last one
    stored at the time or earlier."""

    LOWER = "LOWER"
    UPPER = "UPPER"


def _text_of(one: Any, values: Mapping[str, Any]) -> str:
    """Return the text of an object with these values, with the beginning of long bytes."""
    parts = []
    for name, value in values.items():
        is_long = isinstance(value, bytes | bytearray | memoryview) and len(value) > SHOWN_MAX
        text = f"{bytes(value[:SHOWN_MAX])!r}... ({len(value):,} bytes)" if is_long else repr(value)
        parts.append(f"{name}={text}")
    return f"{type(one).__name__}({', '.join(parts)})"


class Message(msgspec.Struct, kw_only=True, gc=False):
    """A message as a program writes it.

    A key must not contain a blank, because the stored form separates keys by blanks. ``properties``
    are for the program; ``tags`` and ``keys`` have their own fields. Give at most one of
    ``deliver_at`` (a datetime, a text of ISO 8601, or milliseconds since 1970), ``delay`` (seconds, a timedelta, or
    a text such as ``5s``) and ``delay_level`` (1, 2, ..., see the setting ``messageDelayLevel``) to have the message
    delivered later. The fields are then in milliseconds and seconds. ``dataclasses.replace`` makes a changed copy.

    Raises MessageIllegalError for a field of a wrong type or out of range, and for contradictory fields.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    topic: str
    body: bytes
    tags: str | None = None
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = msgspec.field(default_factory=dict)
    flag: int = 0
    wait_store_msg_ok: bool = True
    deliver_at: int | str | datetime | None = None
    delay: float | str | timedelta | None = None
    delay_level: int = 0

    def __post_init__(self) -> None:
        if _is_plain(self):
            return
        _refuse_conflicts(self)
        if isinstance(self.delay, str | timedelta):
            self.delay = whole_ms("delay", self.delay, 1000) / 1000
        elif self.deliver_at is not None:
            self.deliver_at = whole_ms("deliver_at", self.deliver_at)

    def __repr__(self) -> str:
        return _text_of(self, {
            one.name: value for one in msgspec.structs.fields(self)
            if (value := getattr(self, one.name)) != (
                {} if one.default_factory is not msgspec.NODEFAULT else one.default)})


# A Struct is made in a third of the time of a dataclass. For the functions of ``dataclasses`` it still is one.
dataclass(init=False, repr=False, eq=False, match_args=False)(Message)


class MessageExtBrokerInner(msgspec.Struct, gc=False):
    """A message as the store puts it: queue chosen, properties encoded.

    ``properties`` are the stored bytes (``name 0x01 value 0x02`` repeated). Hosts are raw: 4 or 16
    bytes of address and 4 bytes of port, big-endian.
    """

    topic: str
    queue_id: int
    body: bytes
    properties: bytes = b""
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: bytes = b"\x7f\x00\x00\x01\x00\x00\x00\x00"
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    wait_store_msg_ok: bool = True
    is_copy: bool = False
    """True for a copy of a stored message. maxMessageSize, which may have been larger then, does not apply to it."""
    kind: int = -1
    """What ``store.append.kind_of`` found in the properties, -1 if it was not asked. An extra flag costs only time."""


@functools.lru_cache(maxsize=64)
def _hexadecimal(raw: bytes) -> str:
    return raw.hex().upper()


def create_message_id(store_host: bytes, phy_offset: int) -> str:
    """Return the broker's id of a message: store host and position in upper-case hexadecimal."""
    return f"{_hexadecimal(store_host)}{phy_offset & 0xFFFFFFFFFFFFFFFF:016X}"


def decode_message_id(msg_id: Any) -> tuple[bytes, int]:
    """Return store host and position in a message id. Raises MessageIllegalError."""
    if not isinstance(msg_id, str):
        raise MessageIllegalError("msgId", f"is a text, not {msg_id!r}")
    if len(msg_id) not in {32, 56}:
        raise MessageIllegalError("msgId", f"{msg_id!r} has {len(msg_id)} characters, not 32 or 56")
    try:
        raw = bytes.fromhex(msg_id)
    except ValueError as error:
        raise MessageIllegalError("msgId", f"{msg_id!r} is not hexadecimal") from error
    return raw[:-8], int.from_bytes(raw[-8:], "big", signed=True)


class PutMessageResult(msgspec.Struct, gc=False):
    """The result of a put.

    ``phy_offset`` and ``queue_offset`` are the places of the first message, ``phy_offsets`` those of
    every message of a batch. ``until`` is the end of the last one. All are -1 or empty if nothing was
    appended. ``remark`` names the cause of a refusal and its limit.
    """

    status: PutMessageStatus
    phy_offset: int = -1
    until: int = -1
    queue_id: int = -1
    queue_offset: int = -1
    store_timestamp: int = 0
    msg_num: int = 0
    phy_offsets: Sequence[int] = ()
    remark: str = ""
    store_host: bytes = b""
    """Address and port of the broker in the records, 8 or 20 bytes; empty if nothing was appended."""
    recall_handle: str = ""
    """The handle that cancels a timer message, for ``MessageStore.recall``."""

    @property
    def msg_id(self) -> str:
        """The broker's id of the first message, made of store host and position; "" if nothing was appended."""
        return create_message_id(self.store_host, self.phy_offset) if self.store_host else ""

    @property
    def ok(self) -> bool:
        """True if the message is in the log and, under SYNC_FLUSH, durable."""
        return self.status is PutMessageStatus.PUT_OK


class DecodedWhenUsed:
    """Base of messages whose fields are decoded from a stored record when they are first used."""

    __slots__ = ("_record",)
    _record: bytes
    decoders: ClassVar[dict[str, Callable[[bytes], Any]]] = {}
    """Functions that decode a field, by its name; ``formats.message_fields`` sets them."""

    def __getattr__(self, name: str) -> Any:
        decode = self.decoders.get(name)
        if decode is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        value = decode(self._record)
        setattr(self, name, value)
        return value

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, one.name) for one in fields(self))  # type: ignore[arg-type]


@dataclass(slots=True)
class MessageExt(DecodedWhenUsed):
    """A stored message. Bit 0 of ``sys_flag`` is set if ``body`` is compressed."""

    topic: str
    queue_id: int
    queue_offset: int
    phy_offset: int
    store_size: int
    body: bytes
    flag: int
    sys_flag: int
    body_crc: int
    born_timestamp: int
    born_host: tuple[str, int]
    store_timestamp: int
    store_host: tuple[str, int]
    reconsume_times: int
    prepared_transaction_offset: int
    properties: dict[str, str] = field(default_factory=dict)
    msg_id: str = ""

    @property
    def tags(self) -> str | None:
        """The tag, or None."""
        return self.properties.get("TAGS")

    @property
    def keys(self) -> list[str]:
        """The keys by which the message can be found."""
        return self.properties.get("KEYS", "").split()

    @property
    def unique_key(self) -> str | None:
        """The unique key that the producer's client gave the message, or None."""
        return self.properties.get("UNIQ_KEY")

    def __repr__(self) -> str:
        return _text_of(self, {one.name: getattr(self, one.name) for one in fields(self)})


def places_of(records: Iterable[bytes], queue_offsets: Iterable[int]) -> bytes:
    """Return ``GetMessageResult.places`` of ``records`` that follow each other."""
    ends = itertools.accumulate(map(len, records))
    return array.array("q", itertools.chain.from_iterable(zip(ends, queue_offsets, strict=True))).tobytes()


class GetMessageResult(msgspec.Struct, gc=False):
    """Result of a read of a queue. ``data`` holds the stored records one after the other."""

    status: GetMessageStatus
    next_begin_offset: int = 0
    min_offset: int = 0
    max_offset: int = 0
    data: bytes = b""
    """The records as they are stored; a pull sends these bytes."""
    record_count: int = 0
    """Number of records in ``data``."""
    places: bytes = b""
    """Two native 64-bit numbers per record: its end in ``data`` and its queue offset.

    Kept as bytes, because few callers need Python objects.
    """
    is_cold: bool = False
    """True if nothing was read because the next message is not in the page cache."""
    inner_messages: int = 0
    """Number of messages of inner batches, without the first one of each record."""

    def __repr__(self) -> str:
        return _text_of(self, {name: getattr(self, name) for name in self.__struct_fields__})

    @property
    def message_count(self) -> int:
        """Number of messages that were found; each message of an inner batch counts."""
        return self.record_count + self.inner_messages

    @property
    def ends(self) -> list[int]:
        """The end of each record in ``data``; a new list at each call."""
        return memoryview(self.places).cast("q").tolist()[::2]

    @property
    def queue_offsets(self) -> list[int]:
        """The queue offset of each record; a new list at each call."""
        return memoryview(self.places).cast("q").tolist()[1::2]

    @property
    def records(self) -> list[bytes]:
        """One bytes object per record; a new list at each call."""
        ends = self.ends
        return [self.data[start:end] for start, end in zip((0, *ends), ends, strict=False)]
