"""Formats of POP consumption: checkpoints, acknowledgements, receipts, names of topics.

A checkpoint says which messages of a queue were popped together and until when they are invisible. It waits as a
timer and is delivered to the revive topic one second before that time. An acknowledgement is delivered there at
that time. So the revive service reads a checkpoint before its acknowledgements. Bodies are the JSON that fastjson
makes of PopCheckPoint, AckMsg and BatchAckMsg.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from sys import intern
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from tailrace.formats import fastjson
from tailrace.formats.names import (
    RETRY_GROUP_TOPIC_PREFIX,
    SYSTEM_GROUP_PREFIX,
    SYSTEM_TOPIC_PREFIX,
)
from tailrace.formats.requests.custom_header import Int64

__all__ = [
    "ACK_TAG", "BATCH_ACK_TAG", "CK_TAG", "ORDER_REVIVE_QUEUE", "POP_MAX", "REVIVE_GROUP", "Ack", "ExtraInfo",
    "PopCheckPoint", "ack_offsets", "is_pop_retry_topic_v2", "is_retry_topic_of",
    "msg_offset_info", "normal_topic", "order_count", "pop_retry_topic", "pop_retry_topics",
    "queue_offset_order_count", "real_topic", "retry_flag", "retry_owner", "retry_topic_users", "revive_topic",
    "start_offset_info",
]

CK_TAG: Final = "ck"
ACK_TAG: Final = "ack"
BATCH_ACK_TAG: Final = "bAck"
REVIVE_GROUP: Final = f"{SYSTEM_GROUP_PREFIX}REVIVE_GROUP"
"""Group whose offsets are those up to which the queues of the revive topic are processed."""
ORDER_REVIVE_QUEUE: Final = 999
"""Revive queue in the receipts of orderly pops, which have no checkpoint."""
POP_MAX: Final = 32
"""Greatest number of messages of a pop; a checkpoint has a bit for each."""
BIT_SET_MAX: Final = 8 * 1024
"""Greatest length of the bit set of a batch acknowledgement, in bytes."""
_NORMAL, _RETRY_V1, _RETRY_V2 = "0", "1", "2"
_INT64: Final = 1 << 63
_DIGITS_MAX: Final = 20
_PLAIN_RECEIPT: Final = re.compile(
    r"([0-9]{1,18}) ([0-9]{1,18}) ([0-9]{1,18}) ([0-9]{1,9}) ([012]) ([!-~]+) ([0-9]{1,9}) ([0-9]{1,18})")
"""A receipt whose fields are in their ranges, as correct clients send it."""


def revive_topic(cluster: str) -> str:
    """Return the topic of checkpoints and acknowledgements of a cluster."""
    return f"{SYSTEM_TOPIC_PREFIX}REVIVE_LOG_{cluster}"


def pop_retry_topic(topic: str, group: str, *, v2: bool = False) -> str:
    """Return the topic to which messages of ``topic`` return that ``group`` has not acknowledged."""
    return f"{RETRY_GROUP_TOPIC_PREFIX}{group}{'+' if v2 else '_'}{topic}"


def pop_retry_topics(topic: str, group: str) -> tuple[str, str]:
    """Return both forms of the POP retry topic of a topic and a group: with ``_``, and with ``+``."""
    return pop_retry_topic(topic, group), pop_retry_topic(topic, group, v2=True)


def retry_topic_users(name: str) -> Iterator[tuple[str, str]]:
    """Yield each (group, topic) whose POP retry topic may have this name, and (group, "") for a group that pulls it.

    The form with ``_`` may have several users: ``%RETRY%g_a_x`` is the topic of group ``g_a`` with topic ``x``, of
    group ``g`` with topic ``a_x``, and of group ``g_a_x`` itself. Whether they exist is not looked up.
    """
    if not name.startswith(RETRY_GROUP_TOPIC_PREFIX):
        return
    rest = name[len(RETRY_GROUP_TOPIC_PREFIX):]
    has_plus = "+" in rest
    if rest and not has_plus:
        yield rest, ""
    for at, character in enumerate(rest):
        if character not in "_+" or not 0 < at < len(rest) - 1:
            continue
        # Only the name of another retry topic has a "+" itself.
        if character == "+" or not has_plus or rest.startswith(RETRY_GROUP_TOPIC_PREFIX, at + 1):
            yield rest[:at], rest[at + 1 :]
        if character == "+":
            return


def is_retry_topic_of(name: str, group: str) -> bool:
    """Return True if a topic is the retry topic of a group, or one of its POP retry topics."""
    return name.startswith(RETRY_GROUP_TOPIC_PREFIX) and name.startswith(group, len(RETRY_GROUP_TOPIC_PREFIX)) and (
        name[len(RETRY_GROUP_TOPIC_PREFIX) + len(group):][:1] in {"", "_", "+"})


def retry_owner(name: str, origin_group: str | None, real_topic: str | None, retry_topic: str | None) -> str | None:
    """Return the group to which a message in a retry topic belongs, None if the message does not say.

    The arguments after ``name`` are the message's properties ORIGIN_GROUP, REAL_TOPIC and RETRY_TOPIC. A message
    that was sent back comes through the delay levels, so REAL_TOPIC names its retry topic; one that was popped has
    the group of the pop. Brokers before RocketMQ 5.2 do not write that group.
    """
    rest = name[len(RETRY_GROUP_TOPIC_PREFIX):]
    group, plus, _ = rest.partition("+")
    if plus:
        return group
    if real_topic != name and origin_group and rest.startswith(f"{origin_group}_"):
        return origin_group
    is_classic = real_topic == name or origin_group == rest or retry_topic is not None
    return rest if is_classic else None


def is_pop_retry_topic_v2(topic: str) -> bool:
    """Return True if a topic is a POP retry topic of the second form."""
    return topic.startswith(RETRY_GROUP_TOPIC_PREFIX) and "+" in topic


def normal_topic(topic: str, group: str) -> str:
    """Return the topic to which a POP retry topic of ``group`` belongs. Return other topics unchanged."""
    for separator in ("+", "_"):
        prefix = f"{RETRY_GROUP_TOPIC_PREFIX}{group}{separator}"
        if topic.startswith(prefix):
            return topic[len(prefix):]
    return topic


def retry_flag(topic: str) -> str:
    """Return the kind of a topic in receipts and answers: "0" normal, "1" and "2" the two forms of retry topics."""
    if is_pop_retry_topic_v2(topic):
        return _RETRY_V2
    return _RETRY_V1 if topic.startswith(RETRY_GROUP_TOPIC_PREFIX) else _NORMAL


def real_topic(topic: str, group: str, flag: str) -> str:
    """Return the topic of a receipt. Raises ValueError for an unknown flag."""
    if flag == _NORMAL:
        return topic
    if flag not in {_RETRY_V1, _RETRY_V2}:
        raise ValueError(f"retry flag {flag!r} is not 0, 1 or 2")
    return pop_retry_topic(topic, group, v2=flag == _RETRY_V2)


class ExtraInfo(NamedTuple):
    """A receipt: identifies a popped message in requests of clients (POP_CK, and ``extraInfo`` of requests)."""

    start_offset: int
    pop_time: int
    invisible_time: int
    revive_queue_id: int
    flag: str
    broker_name: str
    queue_id: int
    queue_offset: int

    def encode(self) -> str:
        """Return the receipt as clients send it."""
        return " ".join(map(str, self))

    @property
    def is_order(self) -> bool:
        """True if the message was popped in order; such a pop has no checkpoint."""
        return self.revive_queue_id == ORDER_REVIVE_QUEUE

    @classmethod
    def decode(cls, text: str) -> ExtraInfo:
        """Decode a receipt. Older clients do not send the last two fields. Raises ValueError."""
        if found := _PLAIN_RECEIPT.fullmatch(text):
            start, pop_time, invisible, revive_queue, flag, name, queue_id, offset = found.groups()
            return cls(int(start), int(pop_time), int(invisible), int(revive_queue), flag, name, int(queue_id),
                       int(offset))
        parts = text.split(" ")
        if len(parts) < 6:
            raise ValueError(f"extraInfo has {len(parts)} fields, at least 6 are needed: {text[:100]!r}")
        numbers = [_number(part, text) for part in (*parts[:4], *parts[6:8])] + [-1, -1]
        if parts[4] not in {_NORMAL, _RETRY_V1, _RETRY_V2}:
            raise ValueError(f"extraInfo has the retry flag {parts[4][:20]!r}, known are 0, 1 and 2")
        if not parts[5].isprintable():
            raise ValueError(f"extraInfo has a broker name that cannot be printed: {text[:100]!r}")
        if numbers[1] < 0 or numbers[2] < 0 or numbers[1] + numbers[2] >= _INT64:
            raise ValueError(f"extraInfo has a time that is out of its range: {text[:100]!r}")
        start, pop_time, invisible, revive_queue, queue_id, offset, *_ = numbers
        return cls(start, pop_time, invisible, revive_queue, parts[4], parts[5], queue_id, offset)


def _number(text: str, whole: str) -> int:
    is_number = len(text) <= _DIGITS_MAX and text.isascii() and text.removeprefix("-").isdecimal()
    if not is_number or not -_INT64 <= int(text) < _INT64:
        raise ValueError(f"extraInfo has {text[:40]!r} where a number belongs: {whole[:100]!r}")
    return int(text)


def start_offset_info(topic: str, queue_id: int, offset: int) -> str:
    """Return the part of ``startOffsetInfo`` for one queue; parts are joined by ``;``."""
    return f"{retry_flag(topic)} {queue_id} {offset}"


def msg_offset_info(topic: str, queue_id: int, offsets: Iterable[int]) -> str:
    """Return the part of ``msgOffsetInfo`` for one queue."""
    return f"{retry_flag(topic)} {queue_id} {','.join(map(str, offsets))}"


def order_count(topic: str, queue_id: int, count: int) -> str:
    """Return the part of ``orderCountInfo`` for one queue: how often its messages were popped before."""
    return f"{retry_flag(topic)} {queue_id} {count}"


def queue_offset_order_count(topic: str, queue_id: int, offset: int, count: int) -> str:
    """Return the part of ``orderCountInfo`` for one message."""
    return f"{retry_flag(topic)} qo{queue_id}%{offset} {count}"


@dataclass(slots=True)
class PopCheckPoint:
    """Messages that were popped together from one queue."""

    start_offset: int
    pop_time: int
    invisible_time: int
    queue_id: int
    topic: str
    group: str
    broker_name: str
    diffs: Sequence[int]
    """Offset of each message minus ``start_offset``; empty in checkpoints of old brokers."""
    num: int = 0
    bit_map: int = 0
    """A bit for each message that is acknowledged."""
    re_put_times: str | None = None
    suspend: bool = False
    """True if the message is delivered again without counting a delivery."""

    @property
    def revive_time(self) -> int:
        """Time at which the messages are visible again, in ms."""
        return self.pop_time + self.invisible_time

    @property
    def unique_key(self) -> str:
        """The unique key of its message."""
        return (f"{self.topic}@{self.queue_id}@{self.start_offset}@{self.group}@{self.pop_time}@"
                f"{self.broker_name}@{CK_TAG}")

    @property
    def merge_key(self) -> tuple[object, ...]:
        """Key by which acknowledgements name their checkpoint."""
        return self.topic, self.group, self.queue_id, self.start_offset, self.pop_time, self.broker_name

    def index_of(self, offset: int) -> int:
        """Return the index of a message, -1 if it does not belong to this checkpoint."""
        diff = offset - self.start_offset
        if not self.diffs:
            return diff if 0 <= diff < self.num else -1
        return self.diffs.index(diff) if diff in self.diffs else -1

    def acknowledge(self, offsets: Iterable[int]) -> None:
        """Set the bits of acknowledged messages. Offsets of other messages are ignored."""
        for offset in offsets:
            place = self.index_of(offset)
            if place >= 0:
                self.bit_map |= 1 << place

    def unacknowledged(self) -> list[int]:
        """Return the queue offsets of the messages without an acknowledgement."""
        diffs = self.diffs or range(self.num)
        return [self.start_offset + diff for i, diff in enumerate(diffs[:self.num]) if not self.bit_map >> i & 1]

    def encode(self) -> bytes:
        """Return the body of its message."""
        made: dict[str, Any] = {
            "bm": 0, "bn": self.broker_name, "c": self.group, "d": list(self.diffs), "it": self.invisible_time,
            "n": self.num, "pt": self.pop_time, "q": self.queue_id, "reviveTime": self.revive_time, "ro": 0,
            "so": self.start_offset, "sp": self.suspend, "t": self.topic,
        }
        if self.re_put_times is not None:
            made["rp"] = self.re_put_times
        return fastjson.dumps(made)

    @classmethod
    def decode(cls, body: bytes, own_broker: str) -> PopCheckPoint:
        """Decode the body of a checkpoint. Raises ValueError."""
        plain = _plain(_CHECKPOINT, body)
        if plain is not None and 0 <= plain.n <= POP_MAX and plain.n <= len(plain.d) and plain.t and plain.c:
            return cls(
                plain.so, plain.pt, plain.it, plain.q, intern(plain.t), intern(plain.c),
                intern(plain.bn or own_broker), _diffs(plain.d), plain.n, plain.bm & 0xFFFFFFFF, plain.rp, plain.sp)
        value = _object(body)
        diffs = value.get("d") or []
        num, bits = _integer(value, "n"), _integer(value, "bm")
        if not isinstance(diffs, list) or not all(isinstance(diff, int) for diff in diffs):
            raise ValueError("d is not a list of numbers")
        if not 0 <= num <= POP_MAX or (diffs and len(diffs) < num):
            raise ValueError(f"a checkpoint of {num} messages has {len(diffs)} offsets")
        times = value.get("rp")
        return cls(
            _integer(value, "so"), _integer(value, "pt"), _integer(value, "it"), _integer(value, "q"),
            _text(value, "t"), _text(value, "c"), str(value.get("bn") or own_broker), tuple(diffs), num,
            bits & 0xFFFFFFFF, None if times is None else str(times), bool(value.get("sp")))


@dataclass(slots=True)
class Ack:
    """An acknowledgement of one message, or with ``batch`` of several of one checkpoint."""

    offsets: Sequence[int]
    start_offset: int
    pop_time: int
    queue_id: int
    topic: str
    group: str
    broker_name: str
    batch: bool = False

    @property
    def tag(self) -> str:
        """The tag of its message."""
        return BATCH_ACK_TAG if self.batch else ACK_TAG

    @property
    def unique_key(self) -> str:
        """The unique key of its message.

        RocketMQ uses one key for all batches of a checkpoint, so the timers would drop a second one as a copy.
        """
        if self.batch:
            return f"{self.topic}@{self.queue_id}@{list(self.offsets)}@{self.group}@{self.pop_time}@{BATCH_ACK_TAG}"
        return (f"{self.topic}@{self.queue_id}@{self._offset}@{self.group}@{self.pop_time}@"
                f"{self.broker_name}@{ACK_TAG}")

    @property
    def merge_key(self) -> tuple[object, ...]:
        """The key of its checkpoint."""
        return self.topic, self.group, self.queue_id, self.start_offset, self.pop_time, self.broker_name

    @property
    def _offset(self) -> int:
        return -1 if self.batch else self.offsets[0]

    def encode(self) -> bytes:
        """Return the body of its message."""
        made: dict[str, Any] = {
            "ao": self._offset, "bn": self.broker_name, "c": self.group, "pt": self.pop_time, "q": self.queue_id,
            "so": self.start_offset, "t": self.topic,
        }
        if self.batch:
            made["aol"] = list(self.offsets)
        return fastjson.dumps(made)

    @classmethod
    def decode(cls, body: bytes, own_broker: str, *, batch: bool) -> Ack:
        """Decode the body of an acknowledgement, also with the long names of old brokers. Raises ValueError."""
        plain = _plain(_ACK, body)
        if plain is not None and (plain.aol is not None) is batch and plain.t and plain.c:
            return cls(
                plain.aol if plain.aol is not None else (plain.ao,), plain.so, plain.pt, plain.q, plain.t, plain.c,
                plain.bn or own_broker, batch)
        value = _object(body)
        offsets: Any = [_integer(value, "ao", "ackOffset")]
        if batch:
            offsets = value.get("aol", value.get("ackOffsetList"))
            if not isinstance(offsets, list) or not all(isinstance(offset, int) for offset in offsets):
                raise ValueError("aol is not a list of numbers")
        return cls(
            tuple(offsets), _integer(value, "so", "startOffset"), _integer(value, "pt", "popTime"),
            _integer(value, "q", "queueId"), _text(value, "t", "topic"), _text(value, "c", "consumerGroup"),
            str(value.get("bn") or value.get("brokerName") or own_broker), batch)


class _CheckpointBody(msgspec.Struct, gc=False):
    """A checkpoint as present brokers write it. Other bodies are decoded member by member."""

    so: Int64
    pt: Int64
    it: Int64
    q: Int64
    t: str
    c: str
    d: list[Int64]
    n: Int64
    bn: str | None = None
    bm: Int64 = 0
    sp: bool = False
    rp: str | None = None


class _AckBody(msgspec.Struct, gc=False):
    """An acknowledgement as present brokers write it."""

    ao: Int64
    so: Int64
    pt: Int64
    q: Int64
    t: str
    c: str
    bn: str | None = None
    aol: tuple[Int64, ...] | None = None


_CHECKPOINT: Final = msgspec.json.Decoder(_CheckpointBody)
_ACK: Final = msgspec.json.Decoder(_AckBody)
_Body = TypeVar("_Body")


def _plain(decoder: msgspec.json.Decoder[_Body], body: bytes) -> _Body | None:
    """Decode a body of the usual form. Return None for another form, or for a body with a fastjson reference."""
    try:
        return None if b"$ref" in body else decoder.decode(body)
    except msgspec.MsgspecError:
        return None


_IN_A_ROW: Final = tuple(tuple(range(count)) for count in range(POP_MAX + 1))


def _diffs(diffs: list[int]) -> tuple[int, ...]:
    """Return differences as a tuple. For consecutive messages all checkpoints share one tuple."""
    made = tuple(diffs)
    return _IN_A_ROW[len(made)] if len(made) <= POP_MAX and made == _IN_A_ROW[len(made)] else made


def ack_offsets(start_offset: int, bit_set: str) -> list[int]:
    """Return the offsets that a Java BitSet in base64 names. Raises ValueError."""
    try:
        raw = base64.b64decode(bit_set, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"the bit set is not base64: {bit_set[:40]!r}") from error
    if len(raw) > BIT_SET_MAX:
        raise ValueError(f"the bit set has {len(raw)} bytes, over the limit of {BIT_SET_MAX}")
    offsets = [
        start_offset + 8 * place + bit for place, byte in enumerate(raw) if byte
        for bit in range(8) if byte >> bit & 1]
    if len(offsets) > POP_MAX:
        raise ValueError(f"the bit set names {len(offsets)} messages, a pop has {POP_MAX} at most")
    return offsets


def _object(body: bytes) -> Mapping[str, Any]:
    value = fastjson.loads(body)
    if not isinstance(value, dict):
        raise ValueError("the body is not a JSON object")  # noqa: TRY004 - about a text, as the other errors
    return value


def _integer(value: Mapping[str, Any], *names: str) -> int:
    found = next((value[name] for name in names if name in value), 0)
    if isinstance(found, bool) or not isinstance(found, int) or not -_INT64 <= found < _INT64:
        raise ValueError(f"{names[0]} is not a number: {str(found)[:40]!r}")
    return found


def _text(value: Mapping[str, Any], *names: str) -> str:
    found = next((value[name] for name in names if name in value), None)
    if not isinstance(found, str) or not found:
        raise ValueError(f"{names[0]} is missing or not text")
    return found
