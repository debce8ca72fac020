"""Sends: requests 10, 310 and 320 (SendMessageProcessor)."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import partial
from typing import Final, final

import orjson

from tailrace.broker.core.context import BrokerContext
from tailrace.broker.messages.proven_topics import ProvenTopics
from tailrace.broker.messages.sent_properties import check_properties
from tailrace.broker.statistics.traffic import NORMAL, is_delayed, message_type
from tailrace.broker.transactions.half_messages import FreshHalf, transactional_properties
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
from tailrace.formats.remoting import (
    BINARY_HEAD,
    INT32,
    MQ_VERSION,
    PREFIX,
    RESPONSE_FLAG,
    VERSION_V3_4_9,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SerializeType,
    encode,
)
from tailrace.formats.requests.message_headers import (
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from tailrace.kernels import header as header_kernel
from tailrace.kernels import record
from tailrace.kernels.properties import encode_properties, kind_and_key
from tailrace.kernels.shared import constants as C
from tailrace.model import MessageExtBrokerInner, PutMessageResult, PutMessageStatus
from tailrace.node.topic_config import FORBIDDEN_TO_SEND, TopicConfig, validate_topic
from tailrace.remoting import Channel, RemotingServer
from tailrace.remoting.server import failure_of
from tailrace.requests.config_changes import Change, MissingConfigError
from tailrace.requests.durable_answers import DurableAnswers
from tailrace.requests.reply import Reply
from tailrace.store.record_rules import refuse_in_batch
from tailrace.store.refused_puts import FLOW_CONTROL, NO_TOPIC
from tailrace.timer.parking import log_left_out

__all__ = ["SendMessageProcessor", "plain_sys_flag"]

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


@final
class SendMessageProcessor:
    """Stores the messages of producers, and proves their topics. ``wait_durable``: with flushDiskType=SYNC_FLUSH."""

    def __init__(
        self, broker: BrokerContext, durable: DurableAnswers, *, wait_durable: bool,
        max_message_size: int, proven: ProvenTopics | None = None,
    ) -> None:
        self._broker = broker
        self._store = broker.store
        self._topics = broker.topics
        self._mappings = broker.static_topics.table
        self._durable = durable
        self._traffic = broker.traffic
        self._wait_durable = wait_durable
        self._max_message_size = max_message_size
        self._proven = proven or ProvenTopics(broker.topics)
        config = broker.config
        self._trace_on = "true" if config.trace_on else "false"
        self.own_properties = (
            f"{N.MSG_REGION}\x01{config.region_id}\x02{N.TRACE_ON}\x01{self._trace_on}\x02"
            f"{N.CLUSTER}\x01{config.broker_cluster_name}\x02"
        ).encode()
        self._common_ext = {N.MSG_REGION: config.region_id, N.TRACE_ON: self._trace_on}
        self._tail = b"".join(
            _field(name, value.encode()) for name, value in self._common_ext.items()
        )
        self._msg_id_prefix = b""
        self._sequence = 0
        self._id_prefix = f"{broker.entropy.u64():016X}"

    def set_store_host(self, store_host: bytes) -> None:
        """Set the encoded address with which message ids begin."""
        self._msg_id_prefix = store_host.hex().upper().encode()

    def register(self, server: RemotingServer) -> None:
        """Register the requests that this processor serves."""
        server.register(self.send, RequestCode.SEND_MESSAGE)
        server.register(self.send_v2, RequestCode.SEND_MESSAGE_V2)
        server.register(self.send_v2, RequestCode.SEND_BATCH_MESSAGE)

    def send(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | bytes | None:
        """Store a message of a request with long field names: request 10."""
        self._traffic.sends["ordinary"] += 1
        return self._send(channel, request, request.read(SendMessageRequestHeader))

    def send_v2(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | bytes | None:
        """Store a message or a batch of a request with short field names: requests 310 and 320."""
        self._traffic.sends["ordinary"] += 1
        return self._send(channel, request, request.read(SendMessageRequestHeaderV2))

    def _send(
        self, channel: Channel, request: RemotingCommand, header: SendMessageRequestHeader
    ) -> RemotingCommand | bytes | None:
        if self._durable.full:
            self._store.refused_puts.count(FLOW_CONTROL, BUSY)
            return request.answer(ResponseCode.SYSTEM_BUSY, BUSY, dict(self._common_ext))
        batch = header.batch or request.code == RequestCode.SEND_BATCH_MESSAGE
        logical = None
        try:
            if self._mappings:
                logical = self._broker.static_topics.for_send(request, header)
            message, kind, unique_key, half = self._message(
                channel, request, header if logical is None else logical.header, batch=batch)
            if self._broker.control is not None and (
                half is not None or message.topic[0] == "%" or kind & (C.LMQ | C.NAMES)  # or it names nothing
            ):
                check_properties(self._broker, channel, request, header.properties or "", message, half)
        except RefusalError as refusal:
            return request.answer(refusal.code, refusal.remark, dict(self._common_ext))
        except MissingConfigError as missing:
            return self._broker.changes.provide(
                channel, request, missing, lambda channel, request: self._send(channel, request, header),
                failure=self._not_created)
        store, begun_ns = self._store, self._broker.clock.monotonic_ns()
        inner = message.sys_flag & INNER_BATCH_BITS
        result = store.put_inner(message) if inner or not batch else store.inner.put_batch(message, request.body)
        if result.until < 0 or not result.status.appended:
            return self._refused(request, result)
        if half is not None:
            self._broker.transactions.prepared(half, result)
        queue_id = result.queue_id
        if logical is not None:
            result = logical.answer_of(result, is_elsewhere=half is not None or is_delayed(kind))
        self._traffic.take_in(
            message.topic, NORMAL if batch else message_type(kind, message.properties), result.msg_num,
            result.until - result.phy_offset)
        self._proven.add(message.topic)
        if request.flag & 2:
            self._took(message.topic, queue_id, begun_ns)
            return None
        if inner:
            answer = self._inner_answer(request, result, unique_key)
        elif batch:
            answer = self._batch_answer(request, result)
        elif request.serialize_type in (SerializeType.ROCKETMQ, SerializeType.JSON):
            answer = self.answer(request.serialize_type, request.opaque, result, unique_key)
        else:
            answer = request.answer(ext=self._answer_header(result, unique_key))
        if self._wait_durable and message.wait_store_msg_ok:
            self._durable.add(
                Reply(channel, request), answer if isinstance(answer, bytes) else encode(answer), result.until,
                partial(self._took, message.topic, queue_id, begun_ns))
            return None
        self._took(message.topic, queue_id, begun_ns)
        return answer

    def _not_created(self, channel: Channel, request: RemotingCommand, error: Exception) -> RemotingCommand:
        """Count a send whose topic could not be created, and return the answer."""
        if not isinstance(error, RefusalError):
            self._store.refused_puts.count(NO_TOPIC, str(error))
        return failure_of(channel, request, error)

    def _took(self, topic: str, queue_id: int, begun_ns: int, _: object = None) -> None:
        self._traffic.put_took(topic, queue_id, self._broker.clock.monotonic_ns() - begun_ns)

    def _message(
        self, channel: Channel, request: RemotingCommand, header: SendMessageRequestHeader, *, batch: bool
    ) -> tuple[MessageExtBrokerInner, int, str, FreshHalf | None]:
        """Return the message to put, its kind as it was sent, its unique key, and its half message if it has one."""
        topic, times = header.topic, header.reconsume_times or 0
        config, queue_id = self.place(channel, header)
        sys_flag = header.sys_flag
        if not request.body:
            raise RefusalError(ResponseCode.MESSAGE_ILLEGAL, "the message body is empty")
        if batch:
            _refuse_many(request.body)
        if config.attributes and config.has_batch_queues and (batch or sys_flag & SysFlag.INNER_BATCH):
            inner = self._inner_batch(channel, request, header, queue_id, batch=batch)
            if inner is not None:
                return *inner, None
        stored, sent, unique_key = self._properties(header.properties or "", batch=batch)
        kind = sent
        if batch and kind & C.ALONE:
            _refuse_in_batch(stored)
        if config.attributes and config.is_compacted:
            _refuse_without_keys(request.body if batch else b"", stored)
        if topic[0] == "%" and topic.startswith(N.RETRY_GROUP_TOPIC_PREFIX):
            config, queue_id = self._retry_or_dlq(
                config, queue_id, request, header, times, batch=batch)
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
            topic, queue_id, request.body, stored, header.flag, plain_sys_flag(sys_flag), header.born_timestamp,
            channel.born_host, times, 0, not kind & C.NO_WAIT, kind=kind)
        half = None
        if transactional is not None:
            half = self._broker.transactions.prepare(message, transactional)
        if len(stored) > SENT_PROPERTIES_MAX and topic[0] != "%":
            raise RefusalError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the properties have {len(stored)} bytes with those of the broker, over the limit of "
                f"{SENT_PROPERTIES_MAX}: a copy for a retry needs the rest of a record")
        return message, sent, unique_key, half

    def _inner_batch(
        self, channel: Channel, request: RemotingCommand, header: SendMessageRequestHeader, queue_id: int, *,
        batch: bool,
    ) -> tuple[MessageExtBrokerInner, int, str] | None:
        """Return the inner batch (one message) as which a batch is stored, its kind as it was sent, and its unique key.

        The topic has batch queues. A client may also send an inner batch itself. Returns None for a batch
        without a unique key and for an ordinary message.
        """
        sent = (header.properties or "").encode()
        kind, properties = kind_and_key(sent)[0], decode_properties(sent)
        unique_key, sys_flag = properties.get(N.UNIQ_KEY, ""), header.sys_flag
        if batch and unique_key:
            properties[N.INNER_NUM] = str(len(_decoded_batch(request.body)))
            sys_flag |= INNER_BATCH_BITS
        elif not sys_flag & SysFlag.INNER_BATCH:
            return None
        properties[N.CLUSTER] = self._broker.config.broker_cluster_name
        stored = encode_properties(properties)
        flags = plain_sys_flag(sys_flag & ~INNER_BATCH_BITS) | sys_flag & INNER_BATCH_BITS
        return MessageExtBrokerInner(
            header.topic, queue_id, request.body, stored, header.flag, flags, header.born_timestamp,
            channel.born_host, header.reconsume_times or 0, 0, properties.get(N.WAIT) != "false"), kind, unique_key

    def place(self, channel: Channel, header: SendMessageRequestHeader) -> tuple[TopicConfig, int]:
        """Return the topic and the queue that a request may write to.

        Raises RefusalError, or MissingConfigError if the topic has to be created first.
        """
        topic, queue_id = header.topic, header.queue_id
        config = self._topics.select(topic)
        if config is None or topic in FORBIDDEN_TO_SEND:
            config = self._missing_topic(channel, topic, header)
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

    def _missing_topic(self, channel: Channel, topic: str, header: SendMessageRequestHeader) -> TopicConfig:
        if reason := validate_topic(topic):
            raise RefusalError(ResponseCode.INVALID_PARAMETER, reason)
        if topic in FORBIDDEN_TO_SEND:
            raise RefusalError(ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden.")
        if self._topics.inherits(header.default_topic):
            raise MissingConfigError(Change(self._topics, self._topics.creation_in_send(
                topic, header.default_topic, header.default_topic_queue_nums), creates=(topic,)))
        if topic.startswith(N.RETRY_GROUP_TOPIC_PREFIX):
            return self._broker.topic(topic, 1)
        raise RefusalError(
            ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!"
        )

    def _queue(self, config: TopicConfig, queue_id: int) -> int:
        """Return the queue for a number that is not a writable queue: any queue for a negative number.

        A queue that is only readable is returned as it is. Raises RefusalError for other numbers.
        """
        if queue_id < 0 and config.write_queue_nums > 0:
            self._sequence += 1
            return self._sequence % config.write_queue_nums
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
        self._sequence += 1
        unique_key = f"{self._id_prefix}{self._sequence:016X}"
        return b"%b%b%b\x02%b" % (stored, _UNIQ_KEY, unique_key.encode(), self.own_properties), kind, unique_key

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
        self, config: TopicConfig, queue_id: int, request: RemotingCommand,
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
        group = self._broker.group(name)
        if group is None:
            raise RefusalError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {name}",
            )
        limit = group.retry_max_times
        if request.version >= VERSION_V3_4_9 and header.max_reconsume_times is not None:
            limit = header.max_reconsume_times
        if times <= limit and not self._broker.locks.is_locked(name):
            return config, queue_id
        dead_letters = self._broker.topic(f"{N.DLQ_GROUP_TOPIC_PREFIX}{name}", 1)
        self._traffic.dead_letters[name] += 1
        return dead_letters, 0

    def _refused(self, request: RemotingCommand, result: PutMessageResult) -> RemotingCommand:
        status = result.status
        if status in _OF_TIMERS:  # the store has counted the others
            self._store.refused_puts.note(result)
        remark = result.remark or REMARKS.get(status, status.name)
        if status in (PutMessageStatus.MESSAGE_ILLEGAL, PutMessageStatus.PROPERTIES_SIZE_EXCEEDED):
            remark = REMARKS[PutMessageStatus.MESSAGE_ILLEGAL] % self._max_message_size
            if result.remark:
                remark = f"{remark} {result.remark}"
        return request.answer(CODES.get(status, ResponseCode.SYSTEM_ERROR), remark, dict(self._common_ext))

    def answer(self, serialize_type: int, opaque: int, result: PutMessageResult, unique_key: str) -> bytes:
        """Return the encoded answer to a message that is stored."""
        if serialize_type == SerializeType.ROCKETMQ:
            key = unique_key.encode()
            return self._binary_frame(
                opaque, b"%b%016X" % (self._msg_id_prefix, result.phy_offset), result,
                b"\0\x0dtransactionId%b%b" % (INT32.pack(len(key)), key), result.recall_handle)
        header = orjson.dumps({
            "code": 0, "flag": RESPONSE_FLAG, "language": "JAVA", "opaque": opaque,
            "serializeTypeCurrentRPC": "JSON", "version": MQ_VERSION,
            "extFields": {
                "msgId": f"{self._msg_id_prefix.decode()}{result.phy_offset:016X}",
                "queueId": str(result.queue_id), "queueOffset": str(result.queue_offset), "transactionId": unique_key,
                **self._common_ext, **({"recallHandle": result.recall_handle} if result.recall_handle else {}),
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
            f"{self._msg_id_prefix.decode()}{result.phy_offset:016X}", result.queue_id, result.queue_offset, unique_key,
            batch_key, result.recall_handle or None)

    def _inner_answer(
        self, request: RemotingCommand, result: PutMessageResult, unique_key: str
    ) -> bytes | RemotingCommand:
        return request.answer(ext={
            **self._answer_header(result, unique_key, unique_key).to_ext(), **self._common_ext})

    def _batch_answer(self, request: RemotingCommand, result: PutMessageResult) -> bytes | RemotingCommand:
        msg_ids = header_kernel.message_ids(self._msg_id_prefix, result.phy_offsets)
        if request.serialize_type == SerializeType.ROCKETMQ:
            return self._binary_frame(request.opaque, msg_ids, result, b"")
        return request.answer(ext={
            "msgId": msg_ids.decode(), "queueId": str(result.queue_id), "queueOffset": str(result.queue_offset),
            **self._common_ext})


_BINARY_START: Final = struct.Struct(PREFIX.format + BINARY_HEAD.struct.format[1:] + "i")


def _field(name: str, value: bytes) -> bytes:
    raw = name.encode()
    return len(raw).to_bytes(2, "big") + raw + INT32.pack(len(value)) + value


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
