"""Pulls with long polling: requests 11 and 361 (PullMessageProcessor)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, final

from tailrace import events
from tailrace.auth.check import AccessControl
from tailrace.broker.clients.client_manager import ConsumerManager
from tailrace.broker.consumers.consumer_checks import (
    EXPRESSION_MAX,
    check_allowed,
    consuming_group,
    no_group,
    readable_topic,
)
from tailrace.broker.core.cold_data import ColdDataFlowControl
from tailrace.broker.core.creations import Creations
from tailrace.broker.messages.long_polling import HeldPull, PullRequestHoldService
from tailrace.broker.messages.proven import ProvenSubscriptions, answer_header
from tailrace.broker.static_topics.logical_queues import PHYSICAL, LogicalPull, LogicalQueueRequests
from tailrace.broker.statistics.traffic import Traffic
from tailrace.config import BrokerConfig
from tailrace.env.clock import Clock
from tailrace.errors import RefusalError
from tailrace.filters.message_filters import MessageFilter, MessageFilters
from tailrace.filters.retry_owner import own_messages, reader_of
from tailrace.filters.subscriptions import TAG, SubscriptionData
from tailrace.formats.commitlog import MESSAGE_HEAD, PLAUSIBLE_LENGTH
from tailrace.formats.lite import lite_queue
from tailrace.formats.names import RETRY_GROUP_TOPIC_PREFIX
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests.message_headers import (
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    PullSysFlag,
)
from tailrace.ha.replicas import Replicas
from tailrace.ha.slave import Slave
from tailrace.logs import get_logger
from tailrace.model import GetMessageResult, GetMessageStatus
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.message_store import MessageStore
from tailrace.node.subscription_group import SubscriptionGroupConfig, SubscriptionGroupManager
from tailrace.node.topic_config import TopicConfig
from tailrace.remoting import Channel
from tailrace.requests.caller import RemotingCaller
from tailrace.requests.config_changes import ConfigChanges, MissingConfigError, NotPreparedError
from tailrace.requests.processor import RequestProcessor, serves
from tailrace.requests.reply import Answer, Reply
from tailrace.requests.worker import RequestWorker

__all__ = ["NextBrokers", "PullMessageProcessor", "PullSubscriptions", "max_bytes_of"]

_log = get_logger(__name__)

DEFAULT_MAX_BYTES: Final = 256 * 1024
MAX_BYTES: Final = 4 << 20
"""Bytes of one answer, because the event loop reads it. The first message may be larger."""
LIMITED_DELAY_S: Final = 3.0
"""Wait, in seconds, of a pull consumer whose group has read too much from the disk; then it gets one message."""
CODES: Final[Mapping[GetMessageStatus, ResponseCode]] = {
    GetMessageStatus.FOUND: ResponseCode.SUCCESS,
    GetMessageStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_RESET: ResponseCode.PULL_OFFSET_MOVED,
}


@dataclass(slots=True)
class _Pull:
    """A pull, and what is known from its earlier runs."""

    channel: Channel
    request: RemotingCommand
    begun_ns: int
    has_waited: bool = False
    """True if it has waited for a message, so that it is answered now."""
    passed_over: int = 0
    """Number of messages from its offset on that its filter excludes."""
    result: GetMessageResult | None = None
    """The messages that a thread has read for it from the disk."""


@final
class PullMessageProcessor(RequestProcessor):
    """Serves pulls."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, store: MessageStore, config: BrokerConfig,
        creations: Creations, changes: ConfigChanges, offsets: ConsumerOffsetManager, traffic: Traffic,
        logical_queues: LogicalQueueRequests, subscriptions: PullSubscriptions, next_brokers: NextBrokers,
        cold_reads: RequestWorker, cold_data: ColdDataFlowControl, proven: ProvenSubscriptions | None = None,
    ) -> None:
        """``proven`` gets the subscriptions that are served."""
        self._clock, self._config, self._creations, self._changes = clock, config, creations, changes
        self._offsets, self._traffic, self._logical_queues = offsets, traffic, logical_queues
        self._subscriptions = subscriptions
        self._filter_of = subscriptions.filter_of
        self._next_brokers = next_brokers
        self._suggested = next_brokers.next_of
        self._cold_reads, self._cold_data = cold_reads, cold_data
        self._topics = store.topics
        self._proven, self._store = proven, store
        self._mappings = logical_queues.static_topics.table
        self.hold = PullRequestHoldService(
            loop, lambda *key: store.queue_of(*key).max, self.run_again, self.has_match, self._is_gone)
        """Pulls that wait for a message."""
        store.topics.on_change(self.hold.topics_changed)

    @serves(RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
    def pull(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | bytes | None:
        """Return messages, or hold the pull until one arrives."""
        self._traffic.pulls["ordinary"] += 1
        pull = _Pull(channel, request, self._clock.monotonic_ns())
        try:
            return self._pull(pull)
        except (MissingConfigError, NotPreparedError) as missing:
            return self._changes.provide(
                RemotingCaller(channel, request), missing, partial(self._pull, pull))

    def run_again(self, held: HeldPull) -> Answer:
        """Return the answer to a pull that has waited, with or without messages; None if it comes later."""
        return self._pull(_Pull(
            held.reply.channel, held.reply.request, self._clock.monotonic_ns(), has_waited=True,
            passed_over=held.looked - held.offset))

    def has_match(self, pull: HeldPull) -> bool:
        """Return whether a held pull with a property filter runs again; called when its queue has grown.

        It does if one of the new messages matches, or if there are more than one read returns. Messages that
        do not match are not read again.
        """
        topic, queue_id = pull.key
        result = self._store.get_message(
            topic, queue_id, pull.looked, 1, max_bytes=1,
            property_filter=pull.wanted.properties, only_cached=True)
        if result.status is GetMessageStatus.OFFSET_OVERFLOW_ONE:
            return False
        if result.status is not GetMessageStatus.NO_MATCHED_MESSAGE or result.is_cold:
            return True
        pull.looked = result.next_begin_offset
        return result.next_begin_offset < result.max_offset

    def _is_gone(self, topic: str, queue_id: int) -> bool:
        config = self._topics.select(topic)
        return config is None or not config.readable or queue_id >= config.read_queue_nums

    def _answer_cold(self, pull: _Pull, result: GetMessageResult) -> Answer:
        """Return the answer to a pull whose messages were read from the disk; None if it comes later."""
        self._cold_data.count(pull.request.ext["consumerGroup"], len(result.data))
        return self._pull(replace(pull, result=result))

    def _pull(self, pull: _Pull) -> RemotingCommand | None:
        """Return the answer to a pull; None if it comes later. All checks are made in each run."""
        channel, request, result = pull.channel, pull.request, pull.result
        header = request.read(PullMessageRequestHeader)
        header.queue_offset += pull.passed_over  # a logical offset if the topic has a mapping
        group, topic, logical = header.consumer_group, header.topic, None
        group_config = consuming_group(self._creations, group)
        if self._mappings and (
            logical := self._logical_queues.static_topics.for_pull(request, header)
        ) is not None and logical.item.bname != self._config.broker_name:
            readable_topic(self._topics, topic, -1, "pulling", or_all=True)
            self._logical_queues.forwarder.defer(
                channel, request, partial(self._pull_elsewhere, request, header, logical))
            return None
        queue_id, offset = header.queue_id, header.queue_offset
        if header.lite_topic:
            readable_topic(self._topics, topic, queue_id, "pulling")
            topic = header.topic = lite_queue(topic, header.lite_topic)
        topic_config = readable_topic(self._topics, topic, queue_id, "pulling")
        wanted = self._filter_of(channel, request, group_config, header)
        if (reset := self._offsets.take_reset(group, topic, queue_id)) is not None:
            return self._moved(request, header, reset, topic_config, group_config, logical)
        if result is None:
            if not pull.has_waited and header.sys_flag & PullSysFlag.COMMIT_OFFSET and header.commit_offset >= 0:
                self._offsets.commit(group, topic, queue_id, header.commit_offset)
            result = self._read(header, wanted, only_cached=True)
            if result.is_cold:
                self._read_cold(pull, header, wanted)
                return None
        code = CODES.get(result.status)
        if code is None:  # the queue does not exist yet, or is empty
            code = ResponseCode.PULL_OFFSET_MOVED if offset else ResponseCode.PULL_NOT_FOUND
        if code is ResponseCode.PULL_OFFSET_MOVED:
            code = self._next_brokers.moved(result, offset, is_new=not pull.has_waited)
        place: tuple[int, ...] = result.next_begin_offset, result.min_offset, result.max_offset
        if logical is not None:
            code, place = logical.answered(code, offset, *place)
        if code is ResponseCode.PULL_NOT_FOUND and not pull.has_waited and header.sys_flag & PullSysFlag.SUSPEND:
            self._park(pull, header, wanted)
            return None
        self._offsets.commit_pull(group, topic, queue_id, result.next_begin_offset)
        body = result.data
        if body:
            took_ns = self._clock.monotonic_ns() - pull.begun_ns
            self._traffic.hand_out(topic, group, result.message_count, len(body), queue_id, took_ns)
            if self._proven is not None and logical is None:
                self._proven.add(header, wanted)
        suggested = self._suggested(group_config, body, was_cold=pull.result is not None)
        return request.answer(
            code, result.status.name, answer_header(topic_config, group_config, *place, suggested=suggested), body)

    async def _pull_elsewhere(
        self, request: RemotingCommand, header: PullMessageRequestHeader, logical: LogicalPull
    ) -> RemotingCommand:
        """Return the answer to a pull from a part of a logical queue that another broker has."""
        item = logical.item
        answer = await self._logical_queues.forwarder.ask(item.bname, header.topic, RequestCode.PULL_MESSAGE, {
            **request.ext, **PHYSICAL, "queueId": str(header.queue_id), "queueOffset": str(header.queue_offset),
            "maxMsgNums": str(header.max_msg_nums), "sysFlag": str(
                header.sys_flag & ~(PullSysFlag.COMMIT_OFFSET | PullSysFlag.SUSPEND))})
        if "nextBeginOffset" not in answer.ext:
            raise RefusalError(answer.code, answer.remark or "", dict(answer.ext))
        found = answer.read(PullMessageResponseHeader)
        code, place = logical.answered(
            ResponseCode(answer.code), header.queue_offset, found.next_begin_offset, found.min_offset,
            found.max_offset)
        return request.answer(code, answer.remark, {**answer.ext, **place.to_ext()}, answer.body)

    def _read_cold(self, pull: _Pull, header: PullMessageRequestHeader, wanted: MessageFilter) -> None:
        """Have the messages of a pull read from the disk; only one, and later, if its group is over its threshold.

        Raises RefusalError for a push consumer of such a group; it pulls again a little later.
        """
        group, delay_s = header.consumer_group, 0.0
        if self._cold_data.is_over(group):
            if self._subscriptions.is_pushed(group):
                raise RefusalError(
                    ResponseCode.SYSTEM_BUSY, "This consumer group is reading cold data. It has been flow control")
            header.max_msg_nums, delay_s = 1, LIMITED_DELAY_S
        self._cold_reads.submit(
            Reply(pull.channel, pull.request, partial(_failure, was_cold=True)), partial(self._read, header, wanted),
            partial(self._answer_cold, pull), group, delay_s)

    def _read(
        self, header: PullMessageRequestHeader, wanted: MessageFilter, *, only_cached: bool = False
    ) -> GetMessageResult:
        """Read the messages of a pull, or only those in the page cache; any thread may call this."""
        most = self._store.config.max_transfer_count_on_message_in_memory
        return self._store.get_message(
            header.topic, header.queue_id, header.queue_offset, max(1, min(header.max_msg_nums, most)),
            max_bytes=max_bytes_of(header.max_msg_bytes or 0), codes=wanted.codes,
            property_filter=wanted.properties, only_cached=only_cached)

    def _moved(
        self, request: RemotingCommand, header: PullMessageRequestHeader, offset: int, topic: TopicConfig,
        group: SubscriptionGroupConfig, logical: LogicalPull | None,
    ) -> RemotingCommand:
        """Return the answer with an offset that was reset by hand; nothing is read and nothing committed."""
        name, queue_id = header.topic, header.queue_id
        self._offsets.commit_pull(header.consumer_group, name, queue_id, offset)
        place: tuple[int, ...] = (
            offset, *self._store.queue_of(name, queue_id).bounds)
        if logical is not None:
            place = logical.moved(*place)
        return request.answer(
            ResponseCode.PULL_OFFSET_MOVED, GetMessageStatus.OFFSET_RESET.name, answer_header(topic, group, *place))

    def _park(self, pull: _Pull, header: PullMessageRequestHeader, wanted: MessageFilter) -> None:
        config = self._config
        hold_ms = config.short_polling_time_mills
        if config.long_polling_enable:
            hold_ms = header.suspend_timeout_millis
        reply = Reply(pull.channel, pull.request, partial(_failure, was_cold=False))
        self.hold.hold(HeldPull(reply, (header.topic, header.queue_id), wanted, header.queue_offset), hold_ms / 1000)


def max_bytes_of(asked: int) -> int:
    """Return the most bytes of an answer to a pull that asks for ``asked`` bytes; 0 or less asks for none."""
    return min(asked, MAX_BYTES) if asked > 0 else DEFAULT_MAX_BYTES


def _failure(
    channel: Channel, request: RemotingCommand, error: Exception, *, was_cold: bool
) -> RemotingCommand:
    """Log the error of a pull that has waited for the disk or for a message, and return it as an answer."""
    if isinstance(error, MissingConfigError):  # the group was deleted while the pull waited, and is not created again
        error = no_group(request.ext["consumerGroup"])
    if isinstance(error, RefusalError):
        return request.refused(error)
    topic, queue = request.ext["topic"], request.ext["queueId"]
    if was_cold:
        events.COLD_PULL_FAILED.log(_log, topic=topic, queue=queue, reason=repr(error))
    else:
        events.HELD_PULL_FAILED.log(_log, topic=topic, queue=queue, reason=repr(error))
    return request.failed(error)


PASSIVELY: Final = "CONSUME_PASSIVELY"
"""Consume type in the heartbeat of a push consumer."""


@final
class PullSubscriptions:
    """Makes the filters of pulls. Used on the event loop only."""

    def __init__(
        self, groups: SubscriptionGroupManager, consumers: ConsumerManager, filters: MessageFilters,
        control: AccessControl | None,
    ) -> None:
        self._groups, self._consumers, self._filters, self._control = groups, consumers, filters, control

    def is_pushed(self, group: str) -> bool:
        """Return whether the members of a group are push consumers."""
        info = self._consumers.find(group)
        return info is not None and info.consume_type == PASSIVELY

    def filter_of(
        self, channel: Channel, request: RemotingCommand, group_config: SubscriptionGroupConfig,
        header: PullMessageRequestHeader,
    ) -> MessageFilter:
        """Return the filter of a pull, from its own subscription or from that of its group's heartbeat."""
        filters, group = self._filters, header.consumer_group
        if header.sys_flag & PullSysFlag.SUBSCRIPTION:
            wanted = filters.of_request(_own_subscription(header), group)
        else:
            wanted = filters.of_group(
                self._subscription(channel, group_config, header), group, header.sub_version)
        if header.topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
            return own_messages(
                header.topic, reader_of(self._control, request, header.topic, group), wanted)
        return wanted

    def _subscription(
        self, channel: Channel, group_config: SubscriptionGroupConfig, header: PullMessageRequestHeader
    ) -> SubscriptionData:
        info = self._consumers.find(header.consumer_group)
        if info is None:
            raise RefusalError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist"
            )
        if info.broadcasting and not group_config.consume_broadcast_enable:
            raise RefusalError(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{info.group}] can not consume by broadcast way",
            )
        check_allowed(self._groups, info.group, header.topic)
        found = info.subscriptions.get(header.topic)
        if found is None:
            raise RefusalError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist"
            )
        if found.sub_version < header.sub_version:
            self._consumers.ask_for_subscriptions(info.group, channel)
            raise RefusalError(
                ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
            )
        return found


def _own_subscription(header: PullMessageRequestHeader) -> SubscriptionData:
    """Return the subscription that a pull carries."""
    expression, expression_type = header.subscription or "", header.expression_type or TAG
    if len(expression) > EXPRESSION_MAX:
        raise RefusalError(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"the subscription has {len(expression)} characters, over the limit of {EXPRESSION_MAX}")
    if not expression and expression_type != TAG:
        raise RefusalError(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            "parse the consumer's subscription failed: the expression is empty")
    try:
        return SubscriptionData.parse(header.topic, expression, expression_type=expression_type)
    except ValueError as error:
        raise RefusalError(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed") from error


_FAR_BYTES: Final = 64 << 20
"""A slave keeps a reader if more bytes of the log than these are between its messages and the end."""


@final
class NextBrokers:
    """Sends readers of old messages to slaves, and back."""

    def __init__(self, store: MessageStore, config: BrokerConfig, slave: Slave | None, replicas: Replicas) -> None:
        self._store, self._config, self._slave, self._replicas = store, config, slave, replicas

    def moved(self, result: GetMessageResult, offset: int, *, is_new: bool) -> ResponseCode:
        """Return the code for a pull from an offset outside of a queue; on a slave it may change the next offset (H27).

        A slave may lack messages that its master has, so it moves no consumer back: the pull waits, as one at the end
        of the queue. A consumer before the queue goes to the master, or forward while there is no master.
        """
        slave = self._slave
        if slave is None:
            return ResponseCode.PULL_OFFSET_MOVED
        if result.status is GetMessageStatus.OFFSET_TOO_SMALL:
            if not slave.is_connected:
                return ResponseCode.PULL_OFFSET_MOVED
            result.next_begin_offset = offset
            return ResponseCode.PULL_RETRY_IMMEDIATELY
        slave.pulls_ahead += is_new
        result.next_begin_offset = offset
        return ResponseCode.PULL_NOT_FOUND

    def next_of(self, group: SubscriptionGroupConfig, records: bytes, *, was_cold: bool) -> int:
        """Return the id of the broker from which a consumer that gets ``records`` should pull next.

        With ``slaveReadEnable`` a master sends readers of messages that are only on its disk to a slave, if one is in
        sync. A slave keeps its readers while they are far from the end of the log, because the master would send them
        back immediately, and while it has no connection to its master.
        """
        if self._slave is not None:
            is_far = len(records) >= PLAUSIBLE_LENGTH and (
                self._store.max_phy_offset - _position_of(records) > _FAR_BYTES)
            return self._config.broker_id if is_far or not self._slave.is_connected else 0
        if was_cold and self._config.slave_read_enable and self._replicas.in_sync:
            return group.which_broker_when_consume_slowly
        return group.broker_id if self._config.slave_read_enable else 0


def _position_of(records: bytes) -> int:
    """Return the position in the log of the first of some records."""
    return int.from_bytes(records[MESSAGE_HEAD.offsets["phy_offset"] : PLAUSIBLE_LENGTH], "big", signed=True)
