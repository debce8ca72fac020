"""Send-back of a message that a consumer failed to handle: request 36 (consumerSendMsgBack).

The message goes to ``%RETRY%group`` through the delay levels, each time with a longer delay. After too many
retries it goes to ``%DLQ%group``, from which it is not retried.
"""

from __future__ import annotations

from typing import Final, final

from tailrace import events
from tailrace.auth.accesses import topic_access
from tailrace.auth.check import AccessControl
from tailrace.broker.core.creations import Creations
from tailrace.broker.messages.records import Records
from tailrace.broker.statistics.traffic import Traffic
from tailrace.env.entropy import Entropy
from tailrace.errors import RefusalError
from tailrace.formats import names as N
from tailrace.formats.copied_properties import room_to_wait
from tailrace.formats.remoting import (
    VERSION_V3_4_9,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    sender_of,
)
from tailrace.formats.requests.message_headers import ConsumerSendMsgBackRequestHeader
from tailrace.formats.requests.table import Action
from tailrace.logs import get_logger
from tailrace.model import MessageExt, MessageExtBrokerInner
from tailrace.node.message_store import MessageStore
from tailrace.remoting import Channel
from tailrace.requests.durable_answers import DurableAnswers, when_durable
from tailrace.requests.processor import RequestProcessor, serves
from tailrace.requests.reply import Answer
from tailrace.timer.parking import fitting_copy

__all__ = ["SendBackProcessor"]

_log = get_logger(__name__)
_KEPT: Final = frozenset({N.RETRY_TOPIC, N.ORIGIN_MESSAGE_ID, N.DELAY, N.WAIT})
FIRST_LEVEL: Final = 3
UNIT_SUB_FLAG: Final = 2
OWNER_MAX: Final = 100
"""Characters of the field Owner that are used in the key of a statistic."""


@final
class SendBackProcessor(RequestProcessor):
    """Puts messages on the retry topic of their group, or among its dead letters.

    With ``durable`` answers wait until the message is durable, because the consumer does not send it again.
    """

    def __init__(
        self, entropy: Entropy, store: MessageStore, creations: Creations, traffic: Traffic,
        control: AccessControl | None, records: Records, durable: DurableAnswers | None = None,
    ) -> None:
        self._entropy, self._store, self._creations, self._traffic = entropy, store, creations, traffic
        self._control, self._records, self._durable = control, records, durable
        self._first = records.first(self._send_back, _place)

    @serves(RequestCode.CONSUMER_SEND_MSG_BACK)
    def send_back(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Put a message into the log again and answer success: request 36."""
        return self._first(channel, request)

    def _send_back(self, channel: Channel, request: RemotingCommand) -> Answer:
        header = request.read(ConsumerSendMsgBackRequestHeader)
        name, level = header.group, header.delay_level
        group = self._creations.group(name)
        if group is None:
            raise RefusalError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name}")
        if group.retry_queue_nums <= 0:
            return request.answer()
        topic = self._creations.topic(
            f"{N.RETRY_GROUP_TOPIC_PREFIX}{name}", group.retry_queue_nums,
            UNIT_SUB_FLAG if header.unit_mode else 0)
        if not topic.writable:
            raise RefusalError(
                ResponseCode.NO_PERMISSION,
                f"the topic[{topic.topic_name}] sending message is forbidden")
        message = self._store.look_message_by_offset(header.offset)
        if message is not None or not self._may_know(channel, request, header):
            self._records.require_record(channel, request, message, Action.SUB)
        if self._is_ended(message, header.offset, header.origin_topic or ""):
            events.A_MESSAGE_OF_A_DELETED_TOPIC_IS_NOT_RETRIED.log(
                _log, group=name, topic=header.origin_topic, phy_offset=header.offset)
            return request.answer()
        if message is None:
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}")
        limit = group.retry_max_times
        if header.max_reconsume_times is not None and request.version >= VERSION_V3_4_9:
            limit = header.max_reconsume_times
        dead = level < 0 or message.reconsume_times >= limit
        if dead:
            level = 0
            topic = self._creations.topic(f"{N.DLQ_GROUP_TOPIC_PREFIX}{name}", 1, 0)
        elif level == 0:
            level = FIRST_LEVEL + message.reconsume_times
        queue_id = 0 if dead else self._entropy.randrange(group.retry_queue_nums)
        result = self._store.put_inner(
            _again(message, topic.topic_name, queue_id, level))
        if not result.status.appended:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, result.status.name)
        self._traffic.sent_back(_came_from(message), name)
        self._traffic.dead_letters[name] += dead
        if dead:
            self._traffic.counters.add(
                "SNDBCK2DLQ_TIMES", f"{request.ext.get('Owner', 'null')[:OWNER_MAX]}@"
                f"{header.origin_topic or 'null'}@{name}@SEND_BACK_TO_DLQ", 1)
        return when_durable(self._durable, channel, request, request.answer(), result.until)

    def _may_know(
        self, channel: Channel, request: RemotingCommand, header: ConsumerSendMsgBackRequestHeader
    ) -> bool:
        """Return whether the answer may say that the topic of a missing message was deleted."""
        control, origin = self._control, header.origin_topic or ""
        return control is None or (self._is_ended(None, header.offset, origin) and control.permits(
            sender_of(request), channel.peer_ip, topic_access(origin, Action.SUB)))

    def _is_ended(self, message: MessageExt | None, phy_offset: int, origin: str) -> bool:
        """Return True if a message belongs to a topic that was deleted after the message was stored."""
        topics = {origin} if message is None else {message.topic, message.properties.get(N.RETRY_TOPIC, "")}
        return any(phy_offset < self._store.inner.lives.deleted_up_to(topic) for topic in topics)


def _came_from(message: MessageExt) -> str:
    """Return the topic of a message before its retries. A producer may set the property in any topic."""
    return message.properties.get(N.RETRY_TOPIC, message.topic) if message.topic.startswith("%") else message.topic


def _place(request: RemotingCommand) -> int:
    return request.read(ConsumerSendMsgBackRequestHeader).offset


def _again(
    message: MessageExt, topic: str, queue_id: int, level: int
) -> MessageExtBrokerInner:
    """Return the message to put again; its properties name its original topic and message id.

    Properties that do not fit the copy are left out, because a refusal would stop the queue of the consumer.
    """
    properties = {**message.properties, N.RETRY_TOPIC: _came_from(message), N.WAIT: "false"}
    properties.setdefault(N.ORIGIN_MESSAGE_ID, message.msg_id)
    properties[N.DELAY] = str(level)
    made = fitting_copy(message, topic, queue_id, properties, _KEPT, room_to_wait(topic))
    made.reconsume_times += 1
    return made
