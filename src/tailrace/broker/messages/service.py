"""Sends as a service: the checks of a message, its place, its properties, and the put.

The edges of the broker call it: `tailrace.broker.messages.send` with the headers of remoting requests, the gRPC
endpoint with headers that it makes of its messages. An edge makes the answer, and waits for the disk if the result says
so. Used on the event loop only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, final

from tailrace.broker.clients.rebalance_lock import RebalanceLockManager
from tailrace.broker.core.creations import Creations
from tailrace.broker.messages.proven import ProvenTopics
from tailrace.broker.messages.sent_properties import NamedProperties
from tailrace.broker.static_topics.logical_queues import StaticTopics
from tailrace.broker.statistics.traffic import NORMAL, Traffic, is_delayed, message_type
from tailrace.broker.transactions.half_messages import FreshHalf, transactional_properties
from tailrace.broker.transactions.service import TransactionService
from tailrace.config import BrokerConfig
from tailrace.env.clock import Clock
from tailrace.env.entropy import Entropy
from tailrace.errors import MessageIllegalError, RefusalError
from tailrace.formats import names as N
from tailrace.formats.commitlog import (
    MAX_PROPERTIES_LENGTH,
    SysFlag,
    decode_batch,
    decode_properties,
)
from tailrace.formats.copied_properties import SENT_PROPERTIES_MAX, fitting, room_to_wait
from tailrace.formats.inner_batch import INNER_BATCH_BITS
from tailrace.formats.lite import is_lite_name, lite_queue
from tailrace.formats.remoting import VERSION_V3_4_9, ResponseCode
from tailrace.formats.requests.message_headers import SendMessageRequestHeader
from tailrace.kernels import record
from tailrace.kernels.properties import encode_properties, kind_and_key
from tailrace.kernels.shared import constants as C
from tailrace.model import MessageExtBrokerInner, PutMessageResult, PutMessageStatus
from tailrace.node.message_store import MessageStore
from tailrace.node.topic_config import FORBIDDEN_TO_SEND, TopicConfig, validate_topic
from tailrace.requests.caller import Caller
from tailrace.requests.config_changes import Change, MissingConfigError
from tailrace.requests.durable_answers import DurableAnswers
from tailrace.store.record_rules import refuse_in_batch
from tailrace.store.refused_puts import FEW_REPLICAS, FLOW_CONTROL, NO_TOPIC
from tailrace.timer.parking import log_left_out

__all__ = ["MessageService", "Sent", "plain_sys_flag"]

TRANSACTION_BITS: Final = 0xC
HOST_BITS: Final = 0x30
BATCH_MAX: Final = 16_384
"""Number of messages in a batch, because the event loop splits it."""
NAME_SHOWN: Final = 100
PROPERTIES_READ_MAX: Final = 4 * MAX_PROPERTIES_LENGTH
"""Largest number of characters of properties that are looked at. A consumer that sends a message again, because the
broker has refused to take it back, may add more than a record has room for."""
_UNIQ_KEY: Final = f"{N.UNIQ_KEY}\x01".encode()
_KEPT_IN_RETRY: Final = frozenset({N.RETRY_TOPIC, N.ORIGIN_MESSAGE_ID, N.DELAY, N.WAIT, N.CLUSTER})
CODES: Final[Mapping[PutMessageStatus, ResponseCode]] = {
    PutMessageStatus.PUT_OK: ResponseCode.SUCCESS,
    PutMessageStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutMessageStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    PutMessageStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
    PutMessageStatus.SERVICE_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutMessageStatus.CREATE_MAPPED_FILE_FAILED: ResponseCode.SYSTEM_ERROR,
    PutMessageStatus.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutMessageStatus.PROPERTIES_SIZE_EXCEEDED: ResponseCode.MESSAGE_ILLEGAL,
    PutMessageStatus.OS_PAGE_CACHE_BUSY: ResponseCode.SYSTEM_BUSY,
    PutMessageStatus.UNKNOWN_ERROR: ResponseCode.SYSTEM_ERROR,
    PutMessageStatus.WHEEL_TIMER_FLOW_CONTROL: ResponseCode.SYSTEM_ERROR,
    PutMessageStatus.WHEEL_TIMER_MSG_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutMessageStatus.WHEEL_TIMER_NOT_ENABLE: ResponseCode.SYSTEM_ERROR,
    PutMessageStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED: ResponseCode.LMQ_QUOTA_EXCEEDED,
}
REMARKS: Final[Mapping[PutMessageStatus, str]] = {
    PutMessageStatus.SERVICE_NOT_AVAILABLE: "service not available now.",
    PutMessageStatus.CREATE_MAPPED_FILE_FAILED: "create mapped file failed, server is busy or broken.",
    PutMessageStatus.MESSAGE_ILLEGAL: (
        "the message is illegal, maybe msg body or properties length not matched. "
        "msg body length limit %dB, msg properties length limit 32KB."
    ),
    PutMessageStatus.OS_PAGE_CACHE_BUSY: "[PC_SYNCHRONIZED]broker busy, start flow control for a while",
    PutMessageStatus.UNKNOWN_ERROR: "UNKNOWN_ERROR",
}
_OF_TIMERS: Final = frozenset({
    PutMessageStatus.WHEEL_TIMER_FLOW_CONTROL, PutMessageStatus.WHEEL_TIMER_MSG_ILLEGAL,
    PutMessageStatus.WHEEL_TIMER_NOT_ENABLE})
BUSY: Final = "[OVERLOAD]system busy, start flow control for a while"


class Sent(NamedTuple):
    """A message that was stored, or a batch."""

    result: PutMessageResult
    """Where it is, with the logical queue and offset of a static topic."""
    unique_key: str
    """Empty for a batch whose messages have keys of their own."""
    until: int
    """The answer waits until the log is durable up to this position, or on enough slaves; 0 if it waits for nothing."""
    is_inner_batch: bool
    topic: str
    queue_id: int
    """The physical queue."""
    begun_ns: int


@final
class MessageService:
    """Stores the messages of producers, and proves their topics. ``wait_durable``: with SYNC_FLUSH or a SYNC_MASTER."""

    def __init__(
        self, clock: Clock, entropy: Entropy, store: MessageStore, config: BrokerConfig, creations: Creations,
        locks: RebalanceLockManager, static_topics: StaticTopics, transactions: TransactionService, traffic: Traffic,
        named: NamedProperties | None, durable: DurableAnswers, *, wait_durable: bool,
        proven: ProvenTopics | None = None,
    ) -> None:
        self.durable = durable
        """Has the answers that wait for the disk."""
        self._config, self._creations, self._locks, self._static_topics = config, creations, locks, static_topics
        self._transactions, self._named, self._clock, self._store = transactions, named, clock, store
        self._topics = store.topics
        self._mappings = static_topics.table
        self._traffic, self._wait_durable = traffic, wait_durable
        self._proven = proven or ProvenTopics(store.topics)
        self.common_ext = {N.MSG_REGION: config.region_id, N.TRACE_ON: "true" if config.trace_on else "false"}
        """Fields that each answer has, also a refusal."""
        self.own_properties = (
            f"{N.MSG_REGION}\x01{config.region_id}\x02{N.TRACE_ON}\x01{self.common_ext[N.TRACE_ON]}\x02"
            f"{N.CLUSTER}\x01{config.broker_cluster_name}\x02"
        ).encode()
        """Properties that each stored message gets."""
        self.sequence = 0
        """The number of the last unique key that was made, or queue that was chosen."""
        self.key_property = f"{N.UNIQ_KEY}\x01{entropy.u64():016X}".encode()
        """The start of the property with a unique key that is made; the sequence in 16 hexadecimal digits follows."""

    def send(
        self, header: SendMessageRequestHeader, body: bytes, caller: Caller, *, batch: bool = False
    ) -> Sent:
        """Store a message, or with ``batch`` the messages of a batch body.

        Raises RefusalError. Raises MissingConfigError, before anything is done, if a topic or group has to be created
        first.
        """
        if self.durable.full:
            self._store.refused_puts.count(FLOW_CONTROL, BUSY)
            raise RefusalError(ResponseCode.SYSTEM_BUSY, BUSY)
        logical = None
        if self._mappings:
            logical = self._static_topics.for_send(caller, header)
        message, kind, unique_key, half = self._message(
            header if logical is None else logical.header, body, caller, batch=batch)
        if self._named is not None and (
            half is not None or message.topic[0] == "%" or kind & (C.LMQ | C.NAMES)  # or it names nothing
        ):
            self._named.check(caller.channel, caller.request, header.properties or "", message, half)
        store, begun_ns = self._store, self._clock.monotonic_ns()
        if message.wait_store_msg_ok and (few := store.inner.replication.refusal):
            store.refused_puts.count(FEW_REPLICAS, few)
            raise RefusalError(ResponseCode.SYSTEM_ERROR, few)
        inner = message.sys_flag & INNER_BATCH_BITS
        result = store.put_inner(message) if inner or not batch else store.inner.put_batch(message, body)
        if result.until < 0 or not result.status.appended:
            raise self._refused(result)
        if half is not None:
            self._transactions.prepared(half, result)
        queue_id, until = result.queue_id, result.until
        if logical is not None:
            result = logical.answer_of(result, is_elsewhere=half is not None or is_delayed(kind))
        self._traffic.take_in(
            message.topic, NORMAL if batch else message_type(kind, message.properties), result.msg_num,
            until - result.phy_offset)
        self._proven.add(message.topic)
        waits = self._wait_durable and message.wait_store_msg_ok
        return Sent(
            result, unique_key, until if waits else 0, bool(inner), message.topic, queue_id, begun_ns)

    def not_created(self, error: Exception) -> None:
        """Count a send whose topic or group could not be created."""
        if not isinstance(error, RefusalError):
            self._store.refused_puts.count(NO_TOPIC, str(error))

    def took(self, sent: Sent, _: object = None) -> None:
        """Count the time that a send has taken up to its answer."""
        self._traffic.put_took(sent.topic, sent.queue_id, self._clock.monotonic_ns() - sent.begun_ns)

    def _message(
        self, header: SendMessageRequestHeader, body: bytes, caller: Caller, *, batch: bool
    ) -> tuple[MessageExtBrokerInner, int, str, FreshHalf | None]:
        """Return the message to put, its kind as it was sent, its unique key, and its half message if it has one."""
        topic, times = header.topic, header.reconsume_times or 0
        config, queue_id = self.place(header)
        sys_flag = header.sys_flag
        if not body:
            raise RefusalError(ResponseCode.MESSAGE_ILLEGAL, "the message body is empty")
        if batch:
            _refuse_many(body)
        if config.attributes and config.has_batch_queues and (batch or sys_flag & SysFlag.INNER_BATCH):
            inner = self._inner_batch(header, body, queue_id, caller, batch=batch)
            if inner is not None:
                return *inner, None
        stored, sent, unique_key = self._properties(header.properties or "", batch=batch)
        kind = sent
        if batch and kind & C.ALONE:
            _refuse_in_batch(stored)
        if config.attributes and config.is_compacted:
            _refuse_without_keys(body if batch else b"", stored)
        if topic[0] == "%" and topic.startswith(N.RETRY_GROUP_TOPIC_PREFIX):
            config, queue_id = self._retry_or_dlq(
                config, queue_id, caller, header, times, batch=batch)
            if config.topic_name != topic:
                kind |= C.WAITS
            stored = _of_retry(stored, dead=config.topic_name != topic, topic=config.topic_name)
            topic = config.topic_name
        if kind & C.LITE:
            stored, kind = _with_lite_queue(stored, topic), kind | C.LMQ
        if kind & C.PRIORITY and not batch:
            stored, queue_id = _prioritised(stored, kind, queue_id, config)
        transactional = transactional_properties(stored, times) if kind & C.HALF and not batch else None
        if transactional is not None:
            sys_flag &= ~TRANSACTION_BITS
        message = MessageExtBrokerInner(
            topic, queue_id, body, stored, header.flag, plain_sys_flag(sys_flag), header.born_timestamp,
            caller.born_host, times, 0, not kind & C.NO_WAIT, kind=kind)
        half = None
        if transactional is not None:
            half = self._transactions.prepare(message, transactional)
        if len(stored) > SENT_PROPERTIES_MAX and topic[0] != "%":
            raise RefusalError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the properties have {len(stored)} bytes with those of the broker, over the limit of "
                f"{SENT_PROPERTIES_MAX}: a copy for a retry needs the rest of a record")
        return message, sent, unique_key, half

    def _inner_batch(
        self, header: SendMessageRequestHeader, body: bytes, queue_id: int, caller: Caller, *, batch: bool,
    ) -> tuple[MessageExtBrokerInner, int, str] | None:
        """Return the inner batch (one message) as which a batch is stored, its kind as it was sent, and its unique key.

        The topic has batch queues. A client may also send an inner batch itself. Returns None for a batch
        without a unique key and for an ordinary message.
        """
        sent = (header.properties or "").encode()
        kind, properties = kind_and_key(sent)[0], decode_properties(sent)
        unique_key, sys_flag = properties.get(N.UNIQ_KEY, ""), header.sys_flag
        if batch and unique_key:
            properties[N.INNER_NUM] = str(len(_decoded_batch(body)))
            sys_flag |= INNER_BATCH_BITS
        elif not sys_flag & SysFlag.INNER_BATCH:
            return None
        properties[N.CLUSTER] = self._config.broker_cluster_name
        stored = encode_properties(properties)
        flags = plain_sys_flag(sys_flag & ~INNER_BATCH_BITS) | sys_flag & INNER_BATCH_BITS
        return MessageExtBrokerInner(
            header.topic, queue_id, body, stored, header.flag, flags, header.born_timestamp,
            caller.born_host, header.reconsume_times or 0, 0, properties.get(N.WAIT) != "false"), kind, unique_key

    def place(self, header: SendMessageRequestHeader) -> tuple[TopicConfig, int]:
        """Return the topic and the queue that a request may write to.

        Raises RefusalError, or MissingConfigError if the topic has to be created first.
        """
        topic, queue_id = header.topic, header.queue_id
        config = self._topics.select(topic)
        if config is None or topic in FORBIDDEN_TO_SEND:
            config = self._missing_topic(topic, header)
        queues = config.write_queue_nums
        if not 0 <= queue_id < queues:
            queue_id = self._queue(config, queue_id)
        if not config.perm & 2:
            raise RefusalError(
                ResponseCode.NO_PERMISSION,
                f"the topic[{topic}] sending message is forbidden, perm={config.perm}",
            )
        if config.attributes:
            self._check_type(config)
        return config, queue_id

    def _check_type(self, config: TopicConfig) -> None:
        if unsupported := self._topics.unsupported_type(config):
            raise RefusalError(
                ResponseCode.NO_PERMISSION,
                f"the topic[{config.topic_name}] has {unsupported}, which this broker does not support; "
                "sending message is refused")

    def _missing_topic(self, topic: str, header: SendMessageRequestHeader) -> TopicConfig:
        if reason := validate_topic(topic):
            raise RefusalError(ResponseCode.INVALID_PARAMETER, reason)
        if topic in FORBIDDEN_TO_SEND:
            raise RefusalError(ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden.")
        if self._topics.inherits(header.default_topic):
            raise MissingConfigError(Change(self._topics, self._topics.creation_in_send(
                topic, header.default_topic, header.default_topic_queue_nums), creates=(topic,)))
        if topic.startswith(N.RETRY_GROUP_TOPIC_PREFIX):
            return self._creations.topic(topic, 1)
        raise RefusalError(
            ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!"
        )

    def _queue(self, config: TopicConfig, queue_id: int) -> int:
        """Return the queue for a number that is not a writable queue: any queue for a negative number.

        A queue that is only readable is returned as it is. Raises RefusalError for other numbers.
        """
        if queue_id < 0 and config.write_queue_nums > 0:
            self.sequence += 1
            return self.sequence % config.write_queue_nums
        if queue_id >= max(config.write_queue_nums, config.read_queue_nums) or queue_id < 0:
            raise RefusalError(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{queue_id}] is illegal, {config.topic_name} "
                f"writeQueueNums={config.write_queue_nums} readQueueNums={config.read_queue_nums}",
            )
        return queue_id

    def _properties(self, text: str, *, batch: bool) -> tuple[bytes, int, str]:
        """Return the properties as they are stored, the kind of the message, and its unique key."""
        if len(text) > PROPERTIES_READ_MAX:
            raise RefusalError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the properties have {len(text)} characters, over the limit of {SENT_PROPERTIES_MAX}")
        stored = text.encode()
        kind, key = kind_and_key(stored)
        if batch:  # the messages of a batch have their own properties
            return stored, kind, ""
        if kind & C.OVERWRITTEN:
            stored = self._without_own(stored)
            key = kind_and_key(stored)[1]
        if stored and stored[-1] != 2:
            stored += b"\x02"
        if key:
            return stored + self.own_properties, kind, key.decode()
        self.sequence += 1
        made = b"%b%016X" % (self.key_property, self.sequence)
        return (
            b"%b%b\x02%b" % (stored, made, self.own_properties), kind, made[len(_UNIQ_KEY):].decode())

    @staticmethod
    def _without_own(stored: bytes) -> bytes:
        """Return properties without those that only the broker sets. Raises RefusalError."""
        properties = decode_properties(stored)
        if N.INNER_NUM in properties:
            raise RefusalError(
                ResponseCode.MESSAGE_ILLEGAL, f"the message has the property {N.INNER_NUM} and is not an inner batch")
        for name in (N.CLUSTER, N.MSG_REGION, N.TRACE_ON, N.POP_CK):
            properties.pop(name, None)
        return encode_properties(properties)

    def _retry_or_dlq(
        self, config: TopicConfig, queue_id: int, caller: Caller,
        header: SendMessageRequestHeader, times: int, *, batch: bool,
    ) -> tuple[TopicConfig, int]:
        """Return topic and queue of a message that a client retries: its retry topic, or the dead letters.

        A message goes to the dead letters after too many retries, or if its group consumes in order: such a
        group has retried it locally (handleRetryAndDLQ).
        """
        if batch:
            raise RefusalError(
                ResponseCode.MESSAGE_ILLEGAL, "batch request does not support retry group "
                f"{config.topic_name}"
            )
        name = config.topic_name[len(N.RETRY_GROUP_TOPIC_PREFIX) :]
        group = self._creations.group(name)
        if group is None:
            raise RefusalError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {name}",
            )
        limit = group.retry_max_times
        if caller.version >= VERSION_V3_4_9 and header.max_reconsume_times is not None:
            limit = header.max_reconsume_times
        if times <= limit and not self._locks.is_locked(name):
            return config, queue_id
        dead_letters = self._creations.topic(f"{N.DLQ_GROUP_TOPIC_PREFIX}{name}", 1)
        self._traffic.dead_letters[name] += 1
        return dead_letters, 0

    def _refused(self, result: PutMessageResult) -> RefusalError:
        """Count a message that the store has not taken, and return the error to raise."""
        status = result.status
        if status in _OF_TIMERS:  # the store has counted the others
            self._store.refused_puts.note(result)
        remark = result.remark or REMARKS.get(status, status.name)
        if status in (PutMessageStatus.MESSAGE_ILLEGAL, PutMessageStatus.PROPERTIES_SIZE_EXCEEDED):
            remark = REMARKS[PutMessageStatus.MESSAGE_ILLEGAL] % self._store.config.max_message_size
            if result.remark:
                remark = f"{remark} {result.remark}"
        return RefusalError(CODES.get(status, ResponseCode.SYSTEM_ERROR), remark)


def _prioritised(stored: bytes, kind: int, queue_id: int, config: TopicConfig) -> tuple[bytes, int]:
    """Return the properties and the queue of a message with a priority, which is the number of its queue.

    A message of another type, such as one with a delay, loses its priority (TopicMessageType).
    """
    found = decode_properties(stored)
    priority = _number(found.get(N.PRIORITY, ""), -1)
    if priority < 0:
        return stored, queue_id
    if message_type(kind, stored) == NORMAL:
        return stored, min(priority, config.write_queue_nums - 1)
    del found[N.PRIORITY]
    return encode_properties(found), queue_id


def _with_lite_queue(stored: bytes, topic: str) -> bytes:
    """Return properties that give a message its place in the Lite topic that it names. Raises RefusalError."""
    found = decode_properties(stored)
    name = found.get(N.LITE_TOPIC, "")
    if not name:  # it did not fit
        return stored
    if not is_lite_name(name):
        raise RefusalError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"{N.LITE_TOPIC} is {name[:NAME_SHOWN]!r}; a Lite topic has letters, digits, - and _ in its name")
    return encode_properties({**found, N.INNER_MULTI_DISPATCH: lite_queue(topic, name)})


def plain_sys_flag(sys_flag: int) -> int:
    """Return the flags with which an ordinary message is stored. Raises RefusalError for other messages."""
    if sys_flag < 0:
        raise RefusalError(ResponseCode.INVALID_PARAMETER, f"sysFlag {sys_flag} is below 0")
    if sys_flag & TRANSACTION_BITS:
        raise RefusalError(
            ResponseCode.MESSAGE_ILLEGAL,
            "sysFlag has a transaction type, and the message is not one with the property TRAN_MSG=true")
    if sys_flag & INNER_BATCH_BITS:
        raise RefusalError(
            ResponseCode.MESSAGE_ILLEGAL,
            "sysFlag has bits of inner batches, which only topics of queue.type=BatchCQ take")
    return sys_flag & ~HOST_BITS


def _decoded_batch(body: bytes) -> list[tuple[int, bytes, bytes]]:
    """Return the messages of a batch. Raises RefusalError."""
    try:
        return decode_batch(body)
    except MessageIllegalError as error:
        raise RefusalError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error


def _refuse_without_keys(batch: bytes, properties: bytes) -> None:
    """Raise RefusalError if a message for a topic with compaction, or one of a batch, has no keys."""
    stored = [one[2] for one in _decoded_batch(batch)] if batch else [properties]
    if not all(decode_properties(one).get(N.KEYS, "").strip() for one in stored):
        raise RefusalError(ResponseCode.MESSAGE_ILLEGAL, "Required message key is missing")


def _refuse_many(body: bytes) -> None:
    """Raise RefusalError if a batch has too many messages, or one of them too many properties.

    The store says what is wrong with an incomplete one.
    """
    count, _, longest, _, _ = record.check_batch(body)
    if count > BATCH_MAX:
        raise RefusalError(
            ResponseCode.MESSAGE_ILLEGAL, f"the batch has more than {BATCH_MAX} messages; send several")
    if longest > SENT_PROPERTIES_MAX:
        raise RefusalError(
            ResponseCode.MESSAGE_ILLEGAL, f"the properties of a message of the batch have {longest} bytes, over the "
            f"limit of {SENT_PROPERTIES_MAX}: a copy for a retry needs the rest of a record")


def _refuse_in_batch(stored: bytes) -> None:
    """Raise RefusalError if the properties of a whole batch have one that a batch cannot honour."""
    try:
        refuse_in_batch(decode_properties(stored), "the batch")
    except MessageIllegalError as error:
        raise RefusalError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error


def _of_retry(stored: bytes, *, dead: bool, topic: str) -> bytes:
    """Return the properties of a message that its consumer sends to the retry topic of its group.

    They fit a record, because a refusal would stop the queue of the consumer. A dead letter gets no delay.
    """
    room = room_to_wait(topic)
    if not dead and len(stored) + room <= SENT_PROPERTIES_MAX:
        return stored
    found = decode_properties(stored)
    if dead:
        found[N.DELAY] = "-1"
    fit, left_out = fitting(found, _KEPT_IN_RETRY, room)
    if left_out:
        log_left_out(found.get(N.RETRY_TOPIC, ""), found.get(N.ORIGIN_MESSAGE_ID, ""), topic, left_out)
    return encode_properties(fit)


def _number(text: str, default: int = 0) -> int:
    try:
        return int(text)
    except ValueError:
        return default
