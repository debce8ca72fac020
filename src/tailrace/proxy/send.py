"""SendMessage and RecallMessage."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final, NamedTuple, final

from tailrace.broker.messages.service import MessageService, Sent
from tailrace.broker.statistics.traffic import Traffic
from tailrace.env.clock import Clock
from tailrace.errors import RefusalError, RemotingConnectError
from tailrace.formats import names as N
from tailrace.formats.commitlog import SysFlag, java_string_hash
from tailrace.formats.lite import consistent_hash
from tailrace.formats.remoting import RequestCode, ResponseCode
from tailrace.formats.requests.message_headers import (
    RecallMessageRequestHeader,
    RecallMessageResponseHeader,
    SendMessageRequestHeaderV2,
)
from tailrace.kernels.properties import encode_properties
from tailrace.model import PutMessageStatus
from tailrace.node.message_store import MessageStore
from tailrace.proxy import limits
from tailrace.proxy.caller import Caller
from tailrace.proxy.clients import Clients, ServiceCall
from tailrace.proxy.conversion import message_type_of
from tailrace.proxy.protocol import (
    OK,
    Code,
    GrpcError,
    definition,
    millis,
    of_refusal,
    overall,
    service,
    status,
)
from tailrace.proxy.transactions import HalfPlaces
from tailrace.proxy.validation import (
    check_key,
    check_lite_topic,
    check_message_group,
    check_tag,
    check_topic,
    has_control_character,
)
from tailrace.remoting.server import failure_of
from tailrace.requests.config_changes import ConfigChanges
from tailrace.requests.durable_answers import not_durable

__all__ = ["SendMessageActivity"]

# An attribute of an enum of protobuf takes most of a microsecond.
_TYPE_NAMES: Final = {number: name for name, number in definition.MessageType.items()}
_TRANSACTION: Final = definition.MessageType.TRANSACTION
_GZIP: Final = definition.Encoding.GZIP
_NOT_DURABLE: Final = {
    ResponseCode.FLUSH_DISK_TIMEOUT: (Code.MASTER_PERSISTENCE_TIMEOUT, "FLUSH_DISK_TIMEOUT"),
    ResponseCode.FLUSH_SLAVE_TIMEOUT: (Code.SLAVE_PERSISTENCE_TIMEOUT, "FLUSH_SLAVE_TIMEOUT"),
    ResponseCode.SLAVE_NOT_AVAILABLE: (Code.HA_NOT_AVAILABLE, "SLAVE_NOT_AVAILABLE"),
}
LONG_MIN, LONG_MAX = -(1 << 63), (1 << 63) - 1
ANY_QUEUE: Final = -1
"""The broker takes its queues in turn."""
DEFAULT_QUEUES: Final = 4


class _Stored(NamedTuple):
    sent: Sent
    durable: asyncio.Future[PutMessageStatus] | None
    """The result of the sync that the answer waits for."""


_Put = _Stored | GrpcError | ServiceCall
"""A message that is stored or refused; or the call whose result comes after its topic or group was created."""


@final
class SendMessageActivity:
    """Checks messages and has the broker store them."""

    def __init__(
        self, clock: Clock, store: MessageStore, changes: ConfigChanges, traffic: Traffic, messages: MessageService,
        clients: Clients, places: HalfPlaces,
    ) -> None:
        self._clock, self._store, self._changes = clock, store, changes
        self._topics = store.topics
        self._messages, self._clients, self._places = messages, clients, places
        self._counted = traffic.sends

    async def send(self, request: Any, caller: Caller) -> Any:
        """Store the messages of a request, which are of one topic. Each has an entry in the response."""
        messages = request.messages
        if not messages:
            raise GrpcError(Code.MESSAGE_CORRUPTED, "no message to send")
        if len(messages) > limits.MAX_MESSAGES_OF_SEND:
            raise GrpcError(
                Code.BAD_REQUEST,
                f"messages has {len(messages)} entries, over the limit of {limits.MAX_MESSAGES_OF_SEND}")
        first = messages[0]
        topic = check_topic(first.topic)
        if len(messages) == 1:
            properties = self.checked(caller, topic, first)
            put = self._put(caller, topic, self._queue(topic, _sharding_key(first)), first, properties)
            return self._response([await self._entry(topic, first, put)])
        if any(message.topic != first.topic for message in messages):
            raise GrpcError(Code.MESSAGE_CORRUPTED, "topic in message is not same")
        checked = [self.checked(caller, topic, message) for message in messages]
        return self._response(await self._store_all(caller, topic, messages, checked))

    @staticmethod
    def _response(entries: list[Any]) -> Any:
        return service.SendMessageResponse(
            status=overall({entry.status.code for entry in entries}, "send status is empty"), entries=entries)

    def _queue(self, topic: str, sharding_key: str) -> int:
        """Return the queue of a message group or Lite topic; any queue for a message without one. Raises GrpcError."""
        config = self._topics.select(topic)
        if config is None or not config.writable or config.write_queue_nums <= 0:
            raise GrpcError(Code.FORBIDDEN, "no writable queue")
        if not sharding_key:
            return ANY_QUEUE
        return consistent_hash(java_string_hash(sharding_key), config.write_queue_nums)

    def checked(self, caller: Caller, topic: str, message: Any) -> dict[str, str]:
        """Return the properties that a message is stored with. Raises GrpcError."""
        size, most = len(message.body), self._store.config.max_message_size
        if not size:
            raise GrpcError(Code.MESSAGE_BODY_EMPTY, "message body cannot be empty")
        if size > most:
            raise GrpcError(Code.MESSAGE_BODY_TOO_LARGE, f"message body cannot exceed the max {most}")
        properties = self._properties(caller, topic, message)
        self._check_type(topic, properties)
        return properties

    def _check_type(self, topic: str, properties: dict[str, str]) -> None:
        if topic.startswith((N.RETRY_GROUP_TOPIC_PREFIX, N.DLQ_GROUP_TOPIC_PREFIX)):
            return
        config = self._topics.select(topic)
        wanted = "UNSPECIFIED" if config is None else config.attributes.get("message.type", "NORMAL")
        found = _TYPE_NAMES[message_type_of(properties)]
        if wanted not in {found, "MIXED"}:
            raise GrpcError(
                Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                f"TopicMessageType validate failed, the expected type is {wanted}, but actual type is {found}")

    def _properties(self, caller: Caller, topic: str, message: Any) -> dict[str, str]:
        system = message.system_properties
        properties = _user_properties(message)
        if system.tag:
            properties[N.TAGS] = system.tag
        if system.keys:
            properties[N.KEYS] = " ".join(system.keys)
        message_id = system.message_id
        if not message_id.strip():
            raise GrpcError(Code.ILLEGAL_MESSAGE_ID, "message id cannot be empty")
        properties[N.UNIQ_KEY] = message_id
        if system.message_type == _TRANSACTION:
            properties[N.TRAN_MSG] = "true"
            if system.HasField("orphaned_transaction_recovery_duration"):
                seconds = system.orphaned_transaction_recovery_duration.seconds
                if seconds > limits.MAX_TRANSACTION_RECOVERY_S:
                    raise GrpcError(
                        Code.BAD_REQUEST, "the max transaction recovery time of message is too large, max is "
                        f"{limits.MAX_TRANSACTION_RECOVERY_S}")
                properties[N.CHECK_IMMUNITY_TIME_IN_SECONDS] = str(max(0, seconds))
        if system.HasField("delivery_timestamp"):
            deliver_ms = millis(system.delivery_timestamp)
            if deliver_ms - self._clock.now_ms() > limits.MAX_DELAY_TIME_MS:
                raise GrpcError(
                    Code.ILLEGAL_DELIVERY_TIME,
                    f"the max delay time of message is too large, max is {limits.MAX_DELAY_TIME_MS}")
            properties[N.TIMER_DELIVER_MS] = str(deliver_ms)
        if system.HasField("priority"):
            if system.priority < 0:
                raise GrpcError(Code.BAD_REQUEST, f"priority is {system.priority}, it may not be below 0")
            properties[N.PRIORITY] = str(system.priority)
        properties[N.RECONSUME_TIME] = str(system.delivery_attempt)
        # Checks of transactions ask the producers of this group.
        properties[N.PGROUP] = topic
        message_group = system.message_group
        if message_group:
            check_message_group(message_group)
            properties[N.SHARDING_KEY] = message_group
        if lite_topic := system.lite_topic:
            check_lite_topic(lite_topic)
            properties[N.LITE_TOPIC] = lite_topic
        if system.trace_context:
            properties[N.TRACE_CONTEXT] = system.trace_context
        properties["__BORNHOST"] = system.born_host.strip() or caller.peer[0]
        if system.HasField("born_timestamp"):
            born_ms = millis(system.born_timestamp)
            if not LONG_MIN <= born_ms <= LONG_MAX:
                raise GrpcError(Code.BAD_REQUEST, f"born_timestamp is {born_ms} ms, which is not a time")
            properties[N.BORN_TIMESTAMP] = str(born_ms)
        _check_separators(properties, (N.UNIQ_KEY, "message_id"), (N.TRACE_CONTEXT, "trace_context"),
                          ("__BORNHOST", "born_host"))
        return properties

    async def _store_all(
        self, caller: Caller, topic: str, messages: list[Any], checked: list[dict[str, str]]
    ) -> list[Any]:
        """Return the entries of messages. After one that is not stored, no later one of its key is.

        Each message is put before the next one begins, so the messages of a key are in order in their queue.
        """
        keys = list(map(_sharding_key, messages))
        queues = {key: self._queue(topic, key) if key else ANY_QUEUE for key in dict.fromkeys(keys)}
        refused: dict[str, GrpcError] = {}
        puts: list[_Put] = []
        for message, properties, key in zip(messages, checked, keys, strict=True):
            if (earlier := refused.get(key)) is not None:
                puts.append(GrpcError(
                    earlier.code, f"not stored, because an earlier message of its group was not: {earlier.message}"))
                continue
            put = self._put(caller, topic, queues[key], message, properties)
            puts.append(put)
            if key and isinstance(put, GrpcError):
                refused[key] = put
        entries = []
        for message, put in zip(messages, puts, strict=True):
            try:
                entries.append(await self._entry(topic, message, put))
            except GrpcError as error:
                entries.append(service.SendResultEntry(status=status(error.code, error.message)))
        return entries

    def _put(
        self, caller: Caller, topic: str, queue_id: int, message: Any, properties: dict[str, str]
    ) -> _Put:
        """Have the broker store a message."""
        system = message.system_properties
        sys_flag = SysFlag.COMPRESSED if system.body_encoding == _GZIP else 0
        if system.message_type == _TRANSACTION:
            sys_flag |= SysFlag.TRANSACTION_PREPARED
        born_ms = millis(system.born_timestamp) if system.HasField("born_timestamp") else self._clock.now_ms()
        header = SendMessageRequestHeaderV2(
            topic, topic, N.AUTO_CREATE_TOPIC_KEY_TOPIC, DEFAULT_QUEUES, queue_id, sys_flag, born_ms, 0,
            encode_properties(properties).decode(), 0)
        call = ServiceCall(self._clients, caller, RequestCode.SEND_MESSAGE_V2, header, message.body)
        self._counted["ordinary"] += 1
        try:
            sent = self._changes.serve(call, partial(self._messages.send, header, message.body, call))
        except Exception as error:  # noqa: BLE001 - the other messages of the call are stored: log, answer
            refusal = _refusal_of(call, error)
            call.close()
            return refusal
        if sent is None:  # its topic or group is created first
            return call
        call.close()
        return self._stored(sent)

    def _stored(self, sent: Sent) -> _Stored:
        return _Stored(sent, self._messages.durable.status(sent.until) if sent.until else None)

    async def _created(self, call: ServiceCall) -> _Stored:
        """Return a message that is stored after its topic or group was created. Raises GrpcError."""
        try:
            return self._stored(await call.result(None))
        except RemotingConnectError:
            raise
        except Exception as error:  # noqa: BLE001 - as in `_put`
            self._messages.not_created(error)
            raise _refusal_of(call, error) from None
        finally:
            call.close()

    async def _entry(self, topic: str, message: Any, put: _Put) -> Any:
        """Return the entry of a message. Raises GrpcError if the broker has refused it."""
        if isinstance(put, GrpcError):
            raise put
        sent, synced = put if isinstance(put, _Stored) else await self._created(put)
        result, durable = sent.result, PutMessageStatus.PUT_OK if synced is None else await synced
        self._messages.took(sent)
        if durable is not PutMessageStatus.PUT_OK:
            return self._not_stored(not_durable(durable))
        system = message.system_properties
        if system.message_type == _TRANSACTION:
            self._places.put(topic, sent.unique_key, result.queue_offset, result.phy_offset)
        return service.SendResultEntry(
            status=OK, message_id=system.message_id, transaction_id=sent.unique_key, offset=result.queue_offset,
            recall_handle=result.recall_handle)

    @staticmethod
    def _not_stored(refusal: RefusalError) -> Any:
        for code, (found, name) in _NOT_DURABLE.items():
            if refusal.code == code:
                return service.SendResultEntry(status=status(found, f"send message failed, sendStatus={name}"))
        raise of_refusal(refusal)

    async def recall(self, request: Any, caller: Caller) -> Any:
        """Take a delayed message back."""
        topic = check_topic(request.topic)
        self._check_type(topic, {N.TIMER_DELIVER_MS: ""})
        answer = await self._clients.call(
            caller, RequestCode.RECALL_MESSAGE, RecallMessageRequestHeader(topic, request.recall_handle))
        if answer.code != ResponseCode.SUCCESS:
            raise of_refusal(answer)
        return service.RecallMessageResponse(status=OK, message_id=answer.read(RecallMessageResponseHeader).msg_id)


def _refusal_of(call: ServiceCall, error: Exception) -> GrpcError:
    """Return the error for a message that is not stored, and log it unless it is a refusal."""
    return of_refusal(error if isinstance(error, RefusalError) else failure_of(call.channel, call.request, error))


def _sharding_key(message: Any) -> str:
    """Return the text that chooses the queue of a message: its message group or Lite topic, else ""."""
    system = message.system_properties
    return system.message_group or system.lite_topic


def _user_properties(message: Any) -> dict[str, str]:
    """Return the properties that a user set. Raises GrpcError for them, the tag or the keys."""
    properties = dict(message.user_properties) if message.user_properties else {}
    if len(properties) > limits.USER_PROPERTY_MAX_NUM:
        raise GrpcError(
            Code.MESSAGE_PROPERTIES_TOO_LARGE, f"too many user properties, max is {limits.USER_PROPERTY_MAX_NUM}")
    size = 0
    for name, value in properties.items():
        if name in N.SYSTEM_PROPERTIES:
            raise GrpcError(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property is used by system: {name}")
        if has_control_character(name):
            raise GrpcError(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "the key of property cannot contain control character")
        if has_control_character(value):
            raise GrpcError(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "the value of property cannot contain control character")
        size += len(name.encode()) + len(value.encode())
    system = message.system_properties
    if tag := system.tag:
        check_tag(tag)
        size += len(tag.encode())
    for key in system.keys:
        check_key(key)
        size += len(key.encode())
    if size > limits.MAX_USER_PROPERTY_SIZE:
        raise GrpcError(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the total size of user property is too large, max is {limits.MAX_USER_PROPERTY_SIZE}")
    return properties


def _check_separators(properties: dict[str, str], *fields: tuple[str, str]) -> None:
    """Refuse values that would end a stored property early and begin another one."""
    for name, field in fields:
        if name in properties and has_control_character(properties[name]):
            raise GrpcError(
                Code.ILLEGAL_MESSAGE_ID if name == N.UNIQ_KEY else Code.BAD_REQUEST,
                f"{field} cannot contain control character")
