"""Pulls as a service, with long polling: the checks of a pull, its filter, the read, and the wait for a message.

The edge of the broker calls it with a header and a caller: `tailrace.broker.messages.pull` for remoting requests. Used
on the event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Final, final

from tailrace import events
from tailrace.broker.consumers.consumer_checks import consuming_group, no_group, readable_topic
from tailrace.broker.core.cold_data import ColdDataFlowControl
from tailrace.broker.core.creations import Creations
from tailrace.broker.messages.long_polling import HeldPull, PullRequestHoldService
from tailrace.broker.messages.next_brokers import NextBrokers
from tailrace.broker.messages.proven import ProvenSubscriptions
from tailrace.broker.messages.pull_subscriptions import PullSubscriptions
from tailrace.broker.messages.pulls import Pull, Pulled
from tailrace.broker.static_topics.logical_queues import PHYSICAL, LogicalPull, LogicalQueueRequests
from tailrace.broker.statistics.traffic import Traffic
from tailrace.config import BrokerConfig
from tailrace.env.clock import Clock
from tailrace.errors import RefusalError
from tailrace.filters.message_filters import MessageFilter
from tailrace.formats.lite import lite_queue
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests.message_headers import (
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    PullSysFlag,
)
from tailrace.logs import get_logger
from tailrace.model import GetMessageResult, GetMessageStatus
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.message_store import MessageStore
from tailrace.node.subscription_group import SubscriptionGroupConfig
from tailrace.node.topic_config import TopicConfig
from tailrace.remoting import Channel
from tailrace.requests.caller import Caller
from tailrace.requests.config_changes import MissingConfigError
from tailrace.requests.worker import RequestWorker

__all__ = ["PullService", "max_bytes_of"]

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


@final
class PullService:
    """Returns messages of one queue, or holds a pull until one arrives."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, store: MessageStore, config: BrokerConfig,
        creations: Creations, offsets: ConsumerOffsetManager, traffic: Traffic, logical_queues: LogicalQueueRequests,
        subscriptions: PullSubscriptions, next_brokers: NextBrokers, cold_reads: RequestWorker,
        cold_data: ColdDataFlowControl, proven: ProvenSubscriptions | None = None,
    ) -> None:
        """``proven`` gets the subscriptions that are served."""
        self._clock, self._config, self._creations = clock, config, creations
        self._offsets, self._traffic, self._logical_queues = offsets, traffic, logical_queues
        self._subscriptions = subscriptions
        self._filter_of = subscriptions.filter_of
        self._next_brokers = next_brokers
        self._suggested = next_brokers.next_of
        self._cold_reads, self._cold_data = cold_reads, cold_data
        self._topics, self._store_config = store.topics, store.config
        self._proven, self._store = proven, store
        self._mappings = logical_queues.static_topics.table
        self.hold = PullRequestHoldService(
            loop, lambda *key: store.queue_of(*key).max, self._run_again, self.has_match, self._is_gone,
            store.inner.hurry_reput)
        """Pulls that wait for a message."""
        store.topics.on_change(self.hold.topics_changed)

    def pull(self, header: PullMessageRequestHeader, caller: Caller) -> Pulled | None:
        """Return messages, or the offset from which to pull next. None if the caller's reply gets it later.

        Raises RefusalError, StoreError or OSError. Raises MissingConfigError or NotPreparedError, before anything is
        done, if a group has to be created or a filter to be made first.
        """
        return self._run(Pull(header, caller, header.queue_offset, self._clock.monotonic_ns()))

    def _run_again(self, held: HeldPull) -> Pulled | None:
        """Return what a pull gets that has waited, with or without messages; None if it comes later."""
        pull = held.pull
        pull.begun_ns, pull.has_waited, pull.cold = self._clock.monotonic_ns(), True, None
        pull.offset += held.looked - held.offset
        return self._run(pull)

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

    def _answer_cold(self, pull: Pull, result: GetMessageResult) -> Pulled | None:
        """Return what a pull gets whose messages were read from the disk; None if it comes later."""
        self._cold_data.count(pull.header.consumer_group, len(result.data))
        pull.cold = result
        return self._run(pull)

    def _run(self, pull: Pull) -> Pulled | None:
        """Return what a pull gets; None if it comes later. All checks are made in each run."""
        header, caller, offset = pull.header, pull.caller, pull.offset
        group, topic, logical = header.consumer_group, header.topic, None
        group_config = consuming_group(self._creations, group)
        if self._mappings and (
            logical := self._logical_queues.static_topics.for_pull(caller, header, offset)
        ) is not None:
            header, offset = logical.header, logical.header.queue_offset
            if logical.item.bname != self._config.broker_name:
                readable_topic(self._topics, topic, -1, "pulling", or_all=True)
                self._logical_queues.forwarder.defer(caller.reply(), partial(self._pull_elsewhere, logical))
                return None
        queue_id = header.queue_id
        if header.lite_topic:
            readable_topic(self._topics, topic, queue_id, "pulling")
            topic = lite_queue(topic, header.lite_topic)
        topic_config = readable_topic(self._topics, topic, queue_id, "pulling")
        wanted = self._filter_of(header, topic, caller, group_config)
        if (reset := self._offsets.take_reset(group, topic, queue_id)) is not None:
            return self._moved(header, topic, reset, topic_config, group_config, logical)
        result = pull.cold
        if result is None:
            if not pull.has_waited and header.sys_flag & PullSysFlag.COMMIT_OFFSET and header.commit_offset >= 0:
                self._offsets.commit_of_client(
                    group, topic, queue_id, header.commit_offset, self._store.queue_of(topic, queue_id).next)
            result = self._read(header, topic, offset, header.max_msg_nums, wanted, only_cached=True)
            if result.is_cold:
                self._read_cold(pull, header, topic, offset, wanted)
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
            self._park(pull, (topic, queue_id), wanted, offset)
            return None
        self._offsets.commit_pull(group, topic, queue_id, result.next_begin_offset)
        body = result.data
        if body:
            took_ns = self._clock.monotonic_ns() - pull.begun_ns
            self._traffic.hand_out(topic, group, result.message_count, len(body), queue_id, took_ns)
            if self._proven is not None and logical is None and not header.lite_topic:
                self._proven.add(header, wanted)
        return Pulled(
            code, result.status.name, place, topic_config.topic_sys_flag, group_config.group_sys_flag,
            self._suggested(group_config, body, was_cold=pull.cold is not None), body)

    async def _pull_elsewhere(self, logical: LogicalPull) -> Pulled:
        """Return what a pull gets from a part of a logical queue that another broker has."""
        header = logical.header
        answer = await self._logical_queues.forwarder.ask(
            logical.item.bname, header.topic, RequestCode.PULL_MESSAGE, {
                **header.to_ext(), **PHYSICAL,
                "sysFlag": str(header.sys_flag & ~(PullSysFlag.COMMIT_OFFSET | PullSysFlag.SUSPEND))})
        if "nextBeginOffset" not in answer.ext:
            raise RefusalError(answer.code, answer.remark or "", dict(answer.ext))
        found = answer.read(PullMessageResponseHeader)
        code, place = logical.answered(
            ResponseCode(answer.code), header.queue_offset, found.next_begin_offset, found.min_offset,
            found.max_offset)
        return Pulled(
            code, answer.remark, place, found.topic_sys_flag, found.group_sys_flag, found.suggest_which_broker_id,
            answer.body)

    def _read_cold(
        self, pull: Pull, header: PullMessageRequestHeader, topic: str, offset: int, wanted: MessageFilter
    ) -> None:
        """Have the messages of a pull read from the disk; only one, and later, if its group is over its threshold.

        Raises RefusalError for a push consumer of such a group; it pulls again a little later.
        """
        group, most, delay_s = header.consumer_group, header.max_msg_nums, 0.0
        if self._cold_data.is_over(group):
            if self._subscriptions.is_pushed(group):
                raise RefusalError(
                    ResponseCode.SYSTEM_BUSY, "This consumer group is reading cold data. It has been flow control")
            most, delay_s = 1, LIMITED_DELAY_S
        self._cold_reads.submit(
            pull.caller.reply(partial(_failure, pull.header, was_cold=True)),
            partial(self._read, header, topic, offset, most, wanted), partial(self._answer_cold, pull), group, delay_s)

    def _read(
        self, header: PullMessageRequestHeader, topic: str, offset: int, most: int, wanted: MessageFilter, *,
        only_cached: bool = False,
    ) -> GetMessageResult:
        """Read at most ``most`` messages for a pull, or only those in the page cache; any thread may call this."""
        limit = self._store_config.max_transfer_count_on_message_in_memory
        return self._store.get_message(
            topic, header.queue_id, offset, min(most, limit) if most > 0 else 1,
            max_bytes=max_bytes_of(header.max_msg_bytes or 0), codes=wanted.codes,
            property_filter=wanted.properties, only_cached=only_cached)

    def _moved(
        self, header: PullMessageRequestHeader, topic: str, offset: int, topic_config: TopicConfig,
        group: SubscriptionGroupConfig, logical: LogicalPull | None,
    ) -> Pulled:
        """Return the offset that was reset by hand; nothing is read and nothing committed."""
        queue_id = header.queue_id
        self._offsets.commit_pull(header.consumer_group, topic, queue_id, offset)
        place: tuple[int, ...] = (offset, *self._store.queue_of(topic, queue_id).bounds)
        if logical is not None:
            place = logical.moved(*place)
        return Pulled(
            ResponseCode.PULL_OFFSET_MOVED, GetMessageStatus.OFFSET_RESET.name, place, topic_config.topic_sys_flag,
            group.group_sys_flag)

    def _park(self, pull: Pull, key: tuple[str, int], wanted: MessageFilter, offset: int) -> None:
        config = self._config
        hold_ms = config.short_polling_time_mills
        if config.long_polling_enable:
            hold_ms = pull.header.suspend_timeout_millis
        reply = pull.caller.reply(partial(_failure, pull.header, was_cold=False))
        self.hold.hold(HeldPull(reply, key, wanted, offset, pull), hold_ms / 1000)


def max_bytes_of(asked: int) -> int:
    """Return the most bytes of an answer to a pull that asks for ``asked`` bytes; 0 or less asks for none."""
    return min(asked, MAX_BYTES) if asked > 0 else DEFAULT_MAX_BYTES


def _failure(
    header: PullMessageRequestHeader, _: Channel, request: RemotingCommand, error: Exception, *, was_cold: bool
) -> RemotingCommand:
    """Log the error of a pull that has waited for the disk or for a message, and return it as an answer."""
    if isinstance(error, MissingConfigError):  # the group was deleted while the pull waited, and is not created again
        error = no_group(header.consumer_group)
    if isinstance(error, RefusalError):
        return request.refused(error)
    topic, queue = header.topic, header.queue_id
    if was_cold:
        events.COLD_PULL_FAILED.log(_log, topic=topic, queue=queue, reason=repr(error))
    else:
        events.HELD_PULL_FAILED.log(_log, topic=topic, queue=queue, reason=repr(error))
    return request.failed(error)
