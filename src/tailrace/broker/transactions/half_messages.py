"""Stored form of half messages, their copies, committed messages and operations (TransactionalMessageBridge)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from tailrace.config import whole_number
from tailrace.errors import RefusalError
from tailrace.formats import names as N
from tailrace.formats.commitlog import (
    END_FILE_MIN_BLANK_LENGTH,
    MAX_PROPERTIES_LENGTH,
    SysFlag,
    decode_properties,
    record_size,
)
from tailrace.formats.remoting import ResponseCode
from tailrace.kernels.properties import encode_properties
from tailrace.kernels.record import encode
from tailrace.kernels.shared import constants as C
from tailrace.model import MessageExt, MessageExtBrokerInner
from tailrace.store.append import kind_of
from tailrace.timer.parking import inner_message

__all__ = [
    "QUEUE_ID", "check_times",
    "committed_message", "given_up_message", "immunity_ms", "is_half", "make_half",
    "operation_message", "real_queue_id", "record_for_producer", "renewed_message", "settled_offsets",
    "transactional_properties",
]

QUEUE_ID: Final = 0
"""The only queue that a broker uses of the half topic, and of the topic of operations."""
REMOVE_TAG: Final = "d"
CHECKS_ROOM: Final = 48
"""Bytes of properties that are left free for later copies of a half message, which have a number of checks."""
FRESH_ROOM: Final = 500
"""Bytes of memory that a half message takes in addition to its body and properties."""
_TRANSACTION_ID: Final = N.TRANSACTION_ID.encode()
_HALF: Final = f"%b{N.REAL_TOPIC}\x01%b\x02{N.REAL_QID}\x01%d\x02".encode()
_HOSTS: Final = SysFlag.BORNHOST_V6 | SysFlag.STOREHOST_V6


def transactional_properties(stored: bytes, reconsume_times: int) -> dict[str, str] | None:
    """Return the properties of a message of the kind HALF if it is sent as a half message, else None.

    A message that a consumer sends back keeps TRAN_MSG but is an ordinary message.
    """
    properties = decode_properties(stored)
    if properties.get(N.TRAN_MSG, "").lower() != "true":
        return None
    if reconsume_times > 0 and (whole_number(properties.get(N.DELAY, "")) or 0) > 0:
        return None
    return properties


class FreshHalf(NamedTuple):
    """A half message that this process has put, with all that is needed to settle it without a read of the log."""

    committed: MessageExtBrokerInner
    """The message for consumers; its prepared_transaction_offset is set after the half message is put."""
    group: str
    unique_key: str | None
    immunity: str | None
    stored_ms: int = 0
    """Time of the broker's clock at which it was put."""

    @property
    def size(self) -> int:
        """Bytes of memory, estimated."""
        return len(self.committed.body) + len(self.committed.properties) + FRESH_ROOM


def make_half(
    message: MessageExtBrokerInner, properties: dict[str, str], *, multi_dispatch: bool
) -> FreshHalf:
    """Change a message of a producer, which has these properties, into its half message.

    Raises RefusalError if the message has properties that a transactional message cannot have.
    """
    if not properties.get(N.PGROUP):
        raise RefusalError(
            ResponseCode.MESSAGE_ILLEGAL, f"a transactional message has no property {N.PGROUP}")
    if kind_of(message) & C.WAITS:
        raise RefusalError(
            ResponseCode.MESSAGE_ILLEGAL,
            "a transactional message cannot have a delay level or a delivery time")
    if multi_dispatch and N.INNER_MULTI_DISPATCH in properties:
        raise RefusalError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"a transactional message cannot have the property {N.INNER_MULTI_DISPATCH}")
    unique_key = properties.get(N.UNIQ_KEY)
    kept, stored = _half_properties(message, properties, unique_key)
    if len(stored) > MAX_PROPERTIES_LENGTH - CHECKS_ROOM:
        raise RefusalError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the properties of the transactional message take {len(stored)} bytes, over the limit of "
            f"{MAX_PROPERTIES_LENGTH - CHECKS_ROOM}")
    sys_flag = message.sys_flag & ~SysFlag.TRANSACTION_MASK
    committed = MessageExtBrokerInner(
        message.topic, message.queue_id, message.body, kept, message.flag,
        sys_flag & ~_HOSTS | SysFlag.TRANSACTION_COMMIT, message.born_timestamp, message.born_host,
        message.reconsume_times, 0, False, True, message.kind)
    message.properties = stored
    message.sys_flag = sys_flag
    message.topic, message.queue_id = N.HALF_TOPIC, QUEUE_ID
    return FreshHalf(committed, properties[N.PGROUP], unique_key,
                     properties.get(N.CHECK_IMMUNITY_TIME_IN_SECONDS))


def _half_properties(
    message: MessageExtBrokerInner, properties: dict[str, str], unique_key: str | None
) -> tuple[bytes, bytes]:
    """Return the stored properties of a committed message and of its half message."""
    stored = message.properties
    if (
        stored[-1:] == b"\x02" and stored.count(b"\x01") == stored.count(b"\x02") == len(properties)
        and not (N.REAL_TOPIC in properties or N.REAL_QID in properties or N.TRANSACTION_ID in properties)
    ):  # the properties are in encoded form already, so they need not be encoded again
        kept = b"%b%b\x01%b\x02" % (stored, _TRANSACTION_ID, unique_key.encode()) if unique_key else stored
        return kept, _HALF % (kept, message.topic.encode(), message.queue_id)
    half = dict(properties)
    if unique_key:
        half[N.TRANSACTION_ID] = unique_key
    half[N.REAL_TOPIC] = message.topic
    half[N.REAL_QID] = str(message.queue_id)
    return encode_properties(
        {name: value for name, value in half.items() if name not in {N.REAL_TOPIC, N.REAL_QID}}
    ), encode_properties(half)


def is_half(message: MessageExt) -> bool:
    """Return whether a stored message is a half message that can be committed."""
    properties = message.properties
    return (
        message.topic == N.HALF_TOPIC and message.queue_id == QUEUE_ID and bool(properties.get(N.REAL_TOPIC))
        and real_queue_id(message) is not None and bool(properties.get(N.PGROUP)))


def real_queue_id(half: MessageExt) -> int | None:
    """Return the real queue of a half message; None if its property is not a number."""
    number = whole_number(half.properties.get(N.REAL_QID, ""))
    return number if number is not None and number < 1 << 31 else None


def committed_message(half: MessageExt) -> MessageExtBrokerInner:
    """Return the message for consumers that commits ``half``."""
    properties = {
        name: value for name, value in half.properties.items() if name not in {N.REAL_TOPIC, N.REAL_QID}}
    queue_id = real_queue_id(half)
    assert queue_id is not None, "is_half has checked it"
    made = inner_message(half, half.properties[N.REAL_TOPIC], queue_id, properties)
    made.sys_flag = made.sys_flag & ~SysFlag.TRANSACTION_MASK | SysFlag.TRANSACTION_COMMIT
    made.prepared_transaction_offset = half.phy_offset
    return made


def renewed_message(half: MessageExt) -> MessageExtBrokerInner:
    """Return a later copy of a half message, with its current properties."""
    made = inner_message(half, N.HALF_TOPIC, QUEUE_ID, half.properties)
    made.sys_flag &= ~SysFlag.TRANSACTION_MASK
    return made


def given_up_message(half: MessageExt) -> MessageExtBrokerInner:
    """Return the message that keeps a half message that was checked too often or is too old."""
    return inner_message(half, N.CHECK_MAX_TIME_TOPIC, 0, half.properties)


def operation_message(
    offsets: Sequence[int], unique_key: str, born_ms: int, born_host: bytes
) -> MessageExtBrokerInner:
    """Return the operation that marks half messages at these queue offsets as settled."""
    return MessageExtBrokerInner(
        N.OP_TOPIC, QUEUE_ID, "".join(f"{offset}," for offset in offsets).encode(),
        encode_properties({N.TAGS: REMOVE_TAG, N.UNIQ_KEY: unique_key}), born_timestamp=born_ms,
        born_host=born_host, wait_store_msg_ok=False)


def settled_offsets(operation: MessageExt) -> Iterator[int]:
    """Yield the queue offsets of the half messages that an operation settles."""
    if operation.tags == REMOVE_TAG:
        for text in operation.body.decode("latin-1").split(","):
            number = whole_number(text)
            if number is not None:
                yield number


def check_times(half: MessageExt) -> int:
    """Return how often a half message was checked. An invalid number counts as 0."""
    return whole_number(half.properties.get(N.TRANSACTION_CHECK_TIMES, "")) or 0


def immunity_ms(text: str | None, timeout_ms: int) -> int | None:
    """Return the least age for a check that the producer has set, at least ``timeout_ms``; None if it is not set.

    ``text`` is the property CHECK_IMMUNITY_TIME_IN_SECONDS.
    """
    if text is None:
        return None
    return max((whole_number(text) or 0) * 1000, timeout_ms)


def record_for_producer(half: MessageExt, store_host: bytes) -> bytes:
    """Return the record of a half message as its producer sent it: with the real topic and queue."""
    message = committed_message(half)
    topic = message.topic.encode()
    properties = encode_properties(half.properties)
    sys_flag = half.sys_flag & ~_HOSTS
    hosts = 0
    for host, flag in (
        (message.born_host, SysFlag.BORNHOST_V6), (store_host, SysFlag.STOREHOST_V6),
    ):
        hosts += len(host)
        if len(host) > 8:
            sys_flag |= flag
    size = record_size(hosts, len(half.body), len(topic), len(properties))
    made = bytearray(size + END_FILE_MIN_BLANK_LENGTH)  # the encoder leaves room for the end of a file
    encode(
        made, 0, len(made), half.phy_offset, message.queue_id, half.flag, half.queue_offset, sys_flag,
        half.born_timestamp, message.born_host, half.store_timestamp, store_host, half.reconsume_times, 0,
        half.body, half.body_crc, topic, properties, append_prop_crc=False)
    return bytes(made[:size])
