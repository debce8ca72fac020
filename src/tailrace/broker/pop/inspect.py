"""Requests about messages that wait for a POP group: notifications 200054, polling info 200055, peeks 200052."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, final

from tailrace.broker.messages.long_polling import PollResult
from tailrace.broker.pop.polling import ALL_QUEUES, PopLongPollingService
from tailrace.broker.pop.requests import (
    MAX_BYTES,
    READ_BYTES,
    Held,
    PopProgress,
    PopRequests,
    arrivals_of,
    retry_topics,
)
from tailrace.broker.statistics.traffic import Traffic
from tailrace.config import BrokerConfig
from tailrace.errors import RefusalError
from tailrace.filters.message_filters import EVERYTHING, MessageFilter
from tailrace.filters.retry_owner import own_messages
from tailrace.formats.names import RETRY_GROUP_TOPIC_PREFIX
from tailrace.formats.pop import POP_MAX
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests.message_headers import (
    NotificationRequestHeader,
    NotificationResponseHeader,
    PeekMessageRequestHeader,
    PollingInfoRequestHeader,
    PollingInfoResponseHeader,
    PopMessageResponseHeader,
)
from tailrace.model import GetMessageStatus
from tailrace.node.message_store import MessageStore
from tailrace.remoting import Channel
from tailrace.requests.caller import Caller, RemotingCaller
from tailrace.requests.config_changes import ConfigChanges, creates_missing
from tailrace.requests.processor import RequestProcessor, serves
from tailrace.requests.reply import Answer, in_turns
from tailrace.requests.worker import RequestWorker

__all__ = ["PopInspectProcessor"]

READS_MAX: Final = 64
"""Number of reads of a peek in one queue after one that returned no message."""
_READ_ON: Final = frozenset({
    GetMessageStatus.OFFSET_TOO_SMALL, GetMessageStatus.OFFSET_OVERFLOW_BADLY, GetMessageStatus.NO_MATCHED_MESSAGE})
_Key = tuple[str, int]


@final
class PopInspectProcessor(RequestProcessor):
    """Reports what a group could pop, without a pop. ``polling`` holds the notifications that wait."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, store: MessageStore, config: BrokerConfig,
        changes: ConfigChanges, worker: RequestWorker, traffic: Traffic, progress: PopProgress,
        pop_requests: PopRequests, pops: PopLongPollingService[Any],
        lite: Callable[[NotificationRequestHeader, Caller], Answer] | None = None,
    ) -> None:
        self._loop, self._config, self._traffic = loop, config, traffic
        self._progress, self._requests = progress, pop_requests
        self._topics = store.topics
        self.changes = changes
        self._store, self._pops = store, pops
        self.polling = PopLongPollingService[Held[NotificationRequestHeader]](
            loop, config, store, lambda held: self._notify(held.header, held.caller),
            notify_last=True)
        self._lite = lite
        """Serves the notifications of clients of Lite topics."""
        self._read_peek = worker.in_thread(self._peeked)

    def _named(
        self, caller: Caller, header: NotificationRequestHeader | PeekMessageRequestHeader | PollingInfoRequestHeader,
    ) -> tuple[str, str, int]:
        """Return group, topic and queue of a request after checks. Raises RefusalError."""
        self._requests.check_names(caller, header.consumer_group, header.topic, header.queue_id)
        return header.consumer_group, header.topic, max(header.queue_id, ALL_QUEUES)

    def _queues(self, group: str, topic: str, queue_id: int) -> Iterator[_Key]:
        """Yield the queues of a topic and of the group's retry topics."""
        names = retry_topics(self._config, self._topics, topic, group)
        if queue_id == ALL_QUEUES:
            names.insert(0, topic)
        else:
            yield topic, queue_id
        for name in names:
            config = self._topics.select(name)
            for number_ in range(1 if config is None else config.read_queue_nums):
                yield name, number_

    def _offset(self, group: str, topic: str, queue_id: int) -> int:
        offset = self._progress.offsets.query(group, topic, queue_id)
        return self._store.queue_of(topic, queue_id).min if offset < 0 else offset

    @serves(RequestCode.NOTIFICATION)
    def notification(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Answer whether a group has messages, or wait for one: request 200054."""
        header = request.read(NotificationRequestHeader)
        self._requests.arrived(header)
        return self._notify(header, RemotingCaller(channel, request))

    def _notify(self, header: NotificationRequestHeader, caller: Caller) -> Answer:
        return self.changes.serve(caller, partial(self._notification, header, caller))

    def _notification(self, header: NotificationRequestHeader, caller: Caller) -> Answer:
        if header.is_lite_consumer and self._lite is not None:
            return self._lite(header, caller)
        group, topic, queue_id = self._named(caller, header)
        wanted = self._filter(header)
        found, arrivals = False, arrivals_of(self._traffic, topic, group)

        def look() -> Iterator[None]:
            nonlocal found
            for key in self._queues(group, topic, queue_id):
                if not (header.order and self._progress.order.is_blocked(header.attempt_id, key[0], group, key[1], 0)):
                    found = self._has_message(
                        group, key, own_messages(key[0], group, wanted if key[0] == topic else EVERYTHING))
                    if found:
                        return
                yield  # also after a queue that is blocked: all of them may be

        def answer() -> Answer:
            result = PollResult.TIMEOUT if found else self._requests.wait(
                self.polling, header, caller, (topic, group, queue_id), wanted,
                lambda: arrivals_of(self._traffic, topic, group) != arrivals)
            if result is PollResult.WAITS:
                return None
            return caller.request.answer(ext=NotificationResponseHeader(found, result is PollResult.FULL))

        return in_turns(self._loop, caller.reply, look(), answer)

    def _filter(self, header: NotificationRequestHeader) -> MessageFilter:
        if not (self._config.use_message_filter_for_notification and header.exp_type and header.exp):
            return EVERYTHING
        return self._requests.filter_of(header.topic, header.consumer_group, header.exp_type, header.exp)

    def _has_message(self, group: str, key: _Key, wanted: MessageFilter) -> bool:
        """Return whether a group has a message in a queue.

        If few messages are left, one of them must match the tags, and in a retry topic it must belong to the group.
        As in RocketMQ, SQL92 expressions are evaluated only when a message arrives.
        """
        offset, (topic, _) = self._offset(group, *key), key
        rest = self._store.queue_of(*key).max - offset
        is_open = wanted.codes is None and not topic.startswith(RETRY_GROUP_TOPIC_PREFIX)
        if rest <= 0 or is_open or rest >= self._config.max_message_filter_num_for_notification:
            return rest > 0
        result = self._store.get_message(
            *key, offset, 1, max_bytes=1, codes=wanted.codes, property_filter=wanted.properties, only_cached=True)
        return result.is_cold or result.status is not GetMessageStatus.NO_MATCHED_MESSAGE

    @serves(RequestCode.POLLING_INFO)
    @creates_missing
    def polling_info(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Answer how many pops wait: request 200055."""
        group, topic, queue_id = self._named(
            RemotingCaller(channel, request), request.read(PollingInfoRequestHeader))
        return request.answer(ext=PollingInfoResponseHeader(self._pops.polling_num((topic, group, queue_id))))

    @serves(RequestCode.PEEK_MESSAGE)
    @creates_missing
    def peek(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Return messages that a pop would return, without popping them: request 200052."""
        header = request.read(PeekMessageRequestHeader)
        self._named(RemotingCaller(channel, request), header)
        if not 1 <= header.max_msg_nums <= POP_MAX:
            raise RefusalError(
                ResponseCode.INVALID_PARAMETER, f"maxMsgNums is {header.max_msg_nums}, it may be 1 to {POP_MAX}")
        return self._read_peek(channel, request)  # in a thread, because it may read from the disk

    def _peeked(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = request.read(PeekMessageRequestHeader)
        group, most = header.consumer_group, header.max_msg_nums
        parts: list[bytes] = []
        count = size = rest = 0
        for key in self._queues(group, header.topic, max(header.queue_id, ALL_QUEUES)):
            offset = self._offset(group, *key)
            rest += max(0, self._store.queue_of(*key).max - offset)
            if count >= most or size >= MAX_BYTES:
                continue
            wanted = own_messages(key[0], group)
            read = partial(
                self._store.get_message, *key, max_msg_nums=most - count, max_bytes=READ_BYTES,
                property_filter=wanted.properties)
            result = read(offset=offset)
            for _ in range(READS_MAX):
                if result.status not in _READ_ON or result.next_begin_offset == result.max_offset:
                    break
                result = read(offset=result.next_begin_offset)
            parts.append(result.data)
            count += result.message_count
            size += len(result.data)
        ext = PopMessageResponseHeader(0, 0, 0, rest)
        if not count:
            return request.answer(ResponseCode.PULL_NOT_FOUND, GetMessageStatus.NO_MESSAGE_IN_QUEUE.name, ext)
        return request.answer(ResponseCode.SUCCESS, GetMessageStatus.FOUND.name, ext, b"".join(parts))
