"""Pops of Lite topics (request 200070), and what follows: acknowledgements, changes of the invisible time.

A pop takes the queues that `LiteEventDispatcher` has noted for its client. Each queue is consumed in order: as long as
a group has unacknowledged, invisible messages of a queue, the queue gives it no others. The state of these messages is
in memory only, as in RocketMQ: after a restart they are delivered again, from the group's offset.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import Final, final

from tailrace import events
from tailrace.broker.clients.client_manager import ClientIds
from tailrace.broker.consumers.consumer_checks import check_allowed, existing_topic, no_group
from tailrace.broker.lite.dispatcher import LiteEventDispatcher
from tailrace.broker.lite.registry import LiteSubscriptionRegistry, end_of
from tailrace.broker.messages.long_polling import LongPolling, PollResult
from tailrace.broker.pop.requests import (
    MAX_BYTES,
    WRONG_OFFSET,
    Cold,
    Held,
    PopProgress,
    PopRequests,
    Round,
    receipt_of,
)
from tailrace.broker.statistics.traffic import Traffic
from tailrace.config import BrokerConfig
from tailrace.env.clock import Clock
from tailrace.errors import RefusalError, StoreError
from tailrace.filters.message_filters import EVERYTHING
from tailrace.formats.commitlog import LMQ_QUEUE_ID
from tailrace.formats.lite import lite_queue, parent_of
from tailrace.formats.pop import ORDER_REVIVE_QUEUE, ExtraInfo
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests.message_headers import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    NotificationRequestHeader,
    NotificationResponseHeader,
    PopLiteMessageRequestHeader,
    PopLiteMessageResponseHeader,
)
from tailrace.logs import get_logger
from tailrace.model import GetMessageResult, GetMessageStatus
from tailrace.node.consumer_order_info import NOT_POPPED
from tailrace.node.message_store import MessageStore
from tailrace.node.subscription_group import SubscriptionGroupManager
from tailrace.remoting import Channel
from tailrace.requests.caller import Caller, RemotingCaller
from tailrace.requests.processor import RequestProcessor, serves
from tailrace.requests.reply import Answer, Reply

__all__ = ["LiteAcks", "LitePopService", "LiteRound"]

_log = get_logger(__name__)
_NOTHING_THERE: Final = WRONG_OFFSET | {
    GetMessageStatus.NO_MATCHED_MESSAGE, GetMessageStatus.MESSAGE_WAS_REMOVING, GetMessageStatus.NO_MATCHED_LOGIC_QUEUE}


@dataclass(slots=True)
class LiteRound(Round[PopLiteMessageRequestHeader]):
    """One run of a pop of Lite topics: its request, and the messages found so far. The last one is its result."""

    found: list[GetMessageResult] = field(default_factory=list)
    """The messages, by queue."""
    counts: list[int] = field(default_factory=list)
    """For each message how often it was popped before."""
    seen: set[str] = field(default_factory=set)
    later: list[str] = field(default_factory=list)
    """Queues with messages on the disk that the next pop reads."""


@final
class LitePopService(RequestProcessor):
    """Hands out messages of Lite topics. ``polling`` holds the pops that wait. Used on the event loop only."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, store: MessageStore, config: BrokerConfig,
        groups: SubscriptionGroupManager, client_ids: ClientIds, traffic: Traffic, progress: PopProgress,
        pop_requests: PopRequests, registry: LiteSubscriptionRegistry, dispatcher: LiteEventDispatcher,
    ) -> None:
        self._groups, self._client_ids, self._traffic, self._progress = groups, client_ids, traffic, progress
        self._requests = pop_requests
        self._topics = store.topics
        self._store, self.registry, self.dispatcher = store, registry, dispatcher
        limits = config.pop_polling_size, config.max_pop_polling_size
        self.polling = LongPolling[Held[PopLiteMessageRequestHeader]](
            loop, lambda held: self._pop(held.header, held.caller), *limits, on_wait=store.inner.hurry_reput)
        self.notifications = LongPolling[Held[NotificationRequestHeader]](
            loop, lambda held: self.notification(held.header, held.caller), *limits, on_wait=store.inner.hurry_reput)
        """Notifications that wait, by client and group."""
        dispatcher.noted.add(self._wake)

    def _wake(self, client_id: str, group: str) -> None:
        self.polling.notify((client_id, group))
        self.notifications.notify((client_id, group))

    def release_all(self) -> list[Reply]:
        """Drop the requests that wait and return their replies, for a stop."""
        return [*self.polling.release_all(), *self.notifications.release_all()]

    # -- notifications

    def notification(self, header: NotificationRequestHeader, caller: Caller) -> RemotingCommand | None:
        """Answer whether a client has messages of Lite topics, or wait for one: request 200054 of a Lite consumer."""
        self._check(caller, header)
        found, key = self.dispatcher.has_events(header.client_id), (header.client_id, header.consumer_group)
        result = PollResult.TIMEOUT if found else self._requests.wait(
            self.notifications, header, caller, key, EVERYTHING,
            lambda: self.dispatcher.has_events(header.client_id))
        if result is PollResult.WAITS:
            return None
        return caller.request.answer(ext=NotificationResponseHeader(found, result is PollResult.FULL))

    # -- a pop

    def pop(self, pop: PopLiteMessageRequestHeader, caller: Caller) -> LiteRound | None:
        """Return messages, or the code for none in the time of the pop. None if the caller's reply gets it later.

        Raises RefusalError, StoreError or OSError.
        """
        self._requests.begin(pop, pop.max_msg_num)
        return self._pop(pop, caller)

    def _pop(self, pop: PopLiteMessageRequestHeader, caller: Caller, cold: Cold | None = None) -> LiteRound | None:
        now = self._requests.check_in_time(pop)
        self._check(caller, pop)
        made = LiteRound(pop, now, cold)
        failure = None if cold is None else self._try_queue(made, cold.key[0])
        while failure is None and len(made.counts) < pop.max_msg_num and made.size < MAX_BYTES and (
            queue := self.dispatcher.next_event(pop.client_id)
        ) is not None:
            if self.registry.is_evicted(pop.client_id, queue):
                self.dispatcher.dispatch(queue, pop.consumer_group, pop.client_id)
            elif queue not in made.seen and parent_of(queue) == pop.topic:
                failure = self._try_queue(made, queue)
        if made.needs_disk is not None:  # its event stays until it is read: the read may fail, or the client go
            made.later.append(made.needs_disk.key[0])
        for queue in made.later:
            self.dispatcher.put_back(pop.client_id, pop.consumer_group, queue)
        if made.counts:
            return made
        if failure is not None:
            raise failure
        if made.needs_disk is not None:
            self._requests.read_cold(caller, pop, made.needs_disk, partial(self._pop, pop, caller))
            return None
        return made if self._requests.ends_empty(
            made, self.polling, caller, (pop.client_id, pop.consumer_group), EVERYTHING,
            lambda: self.dispatcher.has_events(pop.client_id)) else None

    def _check(self, caller: Caller, pop: PopLiteMessageRequestHeader | NotificationRequestHeader) -> None:
        """Raise RefusalError unless the client may pop Lite topics of the topic for the group."""
        self._client_ids.check(caller.channel, caller.request, pop.client_id)
        if self._store.read_only:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, self._store.read_only)
        topic = existing_topic(self._topics, pop.topic)
        if not topic.readable:
            raise RefusalError(ResponseCode.NO_PERMISSION, f"the topic[{pop.topic}] pop message is forbidden")
        if not topic.is_lite:
            raise RefusalError(ResponseCode.INVALID_PARAMETER, f"the topic [{pop.topic}] message type not match")
        group = self._groups.select(pop.consumer_group)
        if group is None:
            raise no_group(pop.consumer_group)
        if not group.consume_enable:
            raise RefusalError(
                ResponseCode.NO_PERMISSION, f"subscription group no permission, {pop.consumer_group}")
        if group.lite_bind_topic != pop.topic:
            raise RefusalError(
                ResponseCode.INVALID_PARAMETER, f"subscription bind topic not match, {pop.consumer_group}")
        check_allowed(self._groups, pop.consumer_group, pop.topic)
        mine = self.registry.of_client(pop.client_id)
        if mine is not None and mine.group != pop.consumer_group:  # or it would get the events of another group
            raise RefusalError(
                ResponseCode.INVALID_PARAMETER, f"client {pop.client_id} is a member of group {mine.group}")

    def _try_queue(self, made: LiteRound, queue: str) -> Exception | None:
        """Add messages of a queue to the answer. If that fails, keep the event of the queue and return the error."""
        try:
            self._pop_queue(made, queue)
        except (OSError, StoreError) as error:
            made.later.append(queue)
            return error
        return None

    def _pop_queue(self, made: LiteRound, queue: str) -> None:
        """Add messages of a queue to the answer."""
        made.seen.add(queue)
        pop, offsets = made.pop, self._progress.offsets
        group = pop.consumer_group
        if self._progress.order.is_blocked(pop.attempt_id, queue, group, LMQ_QUEUE_ID, pop.invisible_time):
            return
        offset = self._progress.begin(queue, group, LMQ_QUEUE_ID, from_end=True)
        result = self._get(made, queue, offset)
        if result is not None and result.status in _NOTHING_THERE and result.next_begin_offset != offset:
            events.POP_OFFSET_IS_OUTSIDE_ITS_QUEUE.log(
                _log, group=group, topic=queue, queue=LMQ_QUEUE_ID, offset=offset, to=result.next_begin_offset)
            offset = result.next_begin_offset
            offsets.commit(group, queue, LMQ_QUEUE_ID, offset)
            result = self._get(made, queue, offset)
        if result is None or not result.message_count:
            return
        info = self._progress.order.popped(
            pop.attempt_id, queue, group, LMQ_QUEUE_ID, made.pop_time, pop.invisible_time, result.queue_offsets)
        made.counts += [info.consumed.get(at, 0) for at in result.queue_offsets]
        made.found.append(result)
        made.size += len(result.data)
        self._traffic.hand_out(pop.topic, group, result.message_count, len(result.data))

    def _get(self, made: LiteRound, queue: str, offset: int) -> GetMessageResult | None:
        """Return messages of a queue; None if they are not in the page cache."""
        result = made.get(
            self._store, queue, LMQ_QUEUE_ID, offset, made.pop.max_msg_num - len(made.counts), EVERYTHING)
        if result is None and made.needs_disk is not None and made.needs_disk.key[0] != queue:
            made.later.append(queue)  # the disk is read for one queue at a time
        return result

    # -- remoting

    @serves(RequestCode.POP_LITE_MESSAGE)
    def pop_lite_message(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Return messages, or hold the pop until there is one: request 200070."""
        caller = RemotingCaller(channel, request, self._answer)
        return caller.answer(self.pop(request.read(PopLiteMessageRequestHeader), caller))

    @staticmethod
    def _answer(channel: Channel, request: RemotingCommand, popped: LiteRound) -> Answer:
        status = GetMessageStatus.NO_MESSAGE_IN_QUEUE if popped.code else GetMessageStatus.FOUND
        return request.answer(
            popped.code, status.name, PopLiteMessageResponseHeader(
                popped.pop_time, popped.pop.invisible_time, ORDER_REVIVE_QUEUE,
                order_count_info=";".join(map(str, popped.counts))),
            b"".join(result.data for result in popped.found))


@final
class LiteAcks:
    """Acknowledgements of messages of Lite topics, and changes of their invisible time."""

    def __init__(
        self, clock: Clock, store: MessageStore, config: BrokerConfig, groups: SubscriptionGroupManager,
        traffic: Traffic, progress: PopProgress, dispatcher: LiteEventDispatcher,
    ) -> None:
        self._clock, self._store, self._config, self._groups = clock, store, config, groups
        self._traffic, self._progress, self._dispatcher = traffic, progress, dispatcher

    def ack(self, header: AckMessageRequestHeader) -> None:
        """Acknowledge one message; one that is too late has no effect. Raises RefusalError."""
        queue, receipt = self._checked(header)
        group, offset, offsets = header.consumer_group, header.offset, self._progress.offsets
        if offset < offsets.query(group, queue, LMQ_QUEUE_ID):
            return
        following = self._progress.order.commit(queue, group, LMQ_QUEUE_ID, offset, receipt.pop_time)
        if following == NOT_POPPED:
            raise RefusalError(ResponseCode.MESSAGE_ILLEGAL, "ack offset illegal.")
        if following >= 0:
            if not offsets.is_reset(group, queue, LMQ_QUEUE_ID):
                offsets.commit(group, queue, LMQ_QUEUE_ID, following)
            if end_of(self._store, queue) > following and (
                self._progress.order.visible_at(queue, group, LMQ_QUEUE_ID) is None
            ):
                self._dispatcher.dispatch(queue, group)
        self._traffic.revive_log_put("ACK", header.topic, group)

    def change(self, header: ChangeInvisibleTimeRequestHeader) -> ChangeInvisibleTimeResponseHeader:
        """Set when a message is visible again; with ``suspend`` all messages of its pop. Raises RefusalError."""
        queue, receipt = self._checked(header)
        group, offset = header.consumer_group, header.offset
        visible_at = self._clock.now_ms() + header.invisible_time
        if offset >= self._progress.offsets.query(group, queue, LMQ_QUEUE_ID):
            if header.suspend:
                self._progress.order.suspend(queue, group, LMQ_QUEUE_ID, receipt.pop_time, visible_at)
            else:
                self._progress.order.change_visible(queue, group, LMQ_QUEUE_ID, offset, receipt.pop_time, visible_at)
        return ChangeInvisibleTimeResponseHeader(
            receipt.pop_time, visible_at - receipt.pop_time, receipt.revive_queue_id)

    def _checked(
        self, header: AckMessageRequestHeader | ChangeInvisibleTimeRequestHeader
    ) -> tuple[str, ExtraInfo]:
        """Return the queue and the receipt of a request. Raises RefusalError."""
        group = self._groups.select(header.consumer_group)
        if group is None or group.lite_bind_topic != header.topic:
            raise RefusalError(ResponseCode.INVALID_PARAMETER, "group type or bind topic not match.")
        queue = lite_queue(header.topic, header.lite_topic or "")
        if header.offset > end_of(self._store, queue):
            raise RefusalError(ResponseCode.NO_MESSAGE, "ack offset illegal.")
        receipt = receipt_of(header.extra_info, self._config.revive_queue_num)
        if header.queue_id != LMQ_QUEUE_ID or not receipt.is_order:
            raise RefusalError(ResponseCode.INVALID_PARAMETER, "ack queue illegal.")
        return queue, receipt
