"""Pops: request 200050 (PopMessageProcessor), and `PopService.pop`, which the gRPC endpoint calls with headers.

A pop takes messages from several queues of a topic, and from the retry topics of its group. For each queue it
puts a checkpoint into the log and then moves the group's offset past the messages. After that only the
checkpoint causes a redelivery. One turn of the event loop does this for a queue, so two pops never hand out the
same message. A pop of very many queues takes several turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple, final

from tailrace import events
from tailrace.broker.pop.polling import ALL_QUEUES, PopLongPollingService
from tailrace.broker.pop.requests import (
    MAX_BYTES,
    WRONG_OFFSET,
    Cold,
    Held,
    PopProgress,
    PopRequests,
    Round,
    arrivals_of,
    retry_topics,
)
from tailrace.broker.pop.revive import ReviveLog
from tailrace.broker.statistics.traffic import Traffic
from tailrace.config import BrokerConfig
from tailrace.env.entropy import Entropy
from tailrace.errors import RefusalError, StoreError
from tailrace.filters.message_filters import EVERYTHING, MessageFilter
from tailrace.filters.retry_owner import own_messages
from tailrace.formats import pop as formats
from tailrace.formats.commitlog import (
    MAX_PROPERTIES_LENGTH,
    MAX_TOPIC_LENGTH_V1,
    MESSAGE_HEAD,
    MESSAGE_MAGIC_V1,
    PROPERTIES_LENGTH_LENGTH,
    decode_properties,
    text_parts,
)
from tailrace.formats.copied_properties import fitting
from tailrace.formats.names import POP_CK, RETRY_GROUP_TOPIC_PREFIX
from tailrace.formats.pop import (
    ORDER_REVIVE_QUEUE,
    ExtraInfo,
    PopCheckPoint,
)
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests.message_headers import (
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from tailrace.kernels.properties import encode_properties
from tailrace.logs import get_logger
from tailrace.model import GetMessageResult, GetMessageStatus
from tailrace.node.message_store import MessageStore
from tailrace.node.subscription_group import SubscriptionGroupManager
from tailrace.node.topic_config import TopicConfig
from tailrace.remoting import Channel
from tailrace.requests.caller import Caller, RemotingCaller
from tailrace.requests.config_changes import ConfigChanges
from tailrace.requests.durable_answers import DurableAnswers, when_durable
from tailrace.requests.processor import RequestProcessor, serves
from tailrace.requests.reply import Answer, in_turns

__all__ = ["PopRound", "PopService", "Taken"]

_log = get_logger(__name__)
FROM_START: Final = 0
"""Value of initMode; any other number means the end of the queue, as in RocketMQ."""
_PASSED_OVER: Final = frozenset({
    GetMessageStatus.NO_MATCHED_MESSAGE, GetMessageStatus.MESSAGE_WAS_REMOVING})
_READS_MAX: Final = 64
"""Number of reads of a queue that pass over retries of a deleted topic in one pop."""
_Key = tuple[str, int]


class Taken(NamedTuple):
    """Messages of a queue that a pop has taken."""

    topic: str
    """The topic that is popped, or a retry topic of the group."""
    queue_id: int
    offset: int
    """The offset at which their checkpoint begins."""
    found: GetMessageResult
    counts: Mapping[int, int]
    """How often those of a pop in order were popped before, by offset."""


@dataclass(slots=True, kw_only=True)
class PopRound(Round[PopMessageRequestHeader]):
    """One run of a pop: its request, and the messages that it has taken so far. The last one is its result."""

    wanted: MessageFilter
    revive_queue_id: int
    taken: list[Taken] = field(default_factory=list)
    count: int = 0
    rest: int = 0
    looked_at: set[_Key] = field(default_factory=set)
    arrivals: int = 0
    """Count of messages that had arrived on its topics before it read them."""
    stopped: int = 0
    """Number of messages left in queues that are stopped because too many messages are in flight."""
    refused: str = ""
    """Reason why a checkpoint was not put."""
    failure: Exception | None = None
    """Error of the first queue that could not be read; raised if no other queue has messages."""


@final
class PopService(RequestProcessor):
    """Hands out messages for a time. ``polling`` holds the pops that wait. Used on the event loop only."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, store: MessageStore, config: BrokerConfig, entropy: Entropy,
        groups: SubscriptionGroupManager, changes: ConfigChanges, traffic: Traffic, revive_log: ReviveLog,
        progress: PopProgress, pop_requests: PopRequests, durable: DurableAnswers | None = None,
    ) -> None:
        self._loop, self._config, self._entropy, self._groups = loop, config, entropy, groups
        self._changes, self._traffic, self._revive_log, self._progress = changes, traffic, revive_log, progress
        self._requests = pop_requests
        self._topics = store.topics
        self._store = store
        self.durable = durable
        """Has the answers that wait for the disk; None if none does."""
        self._number = 0
        self.polling = PopLongPollingService[Held[PopMessageRequestHeader]](
            loop, config, store, lambda held: self._begin(held.header, held.caller))

    def pop(self, pop: PopMessageRequestHeader, caller: Caller) -> PopRound | None:
        """Return messages, or the code for none in the time of the pop. None if the caller's reply gets it later.

        Raises RefusalError, StoreError or OSError.
        """
        self._requests.begin(pop, pop.max_msg_nums)
        pop.queue_id = max(pop.queue_id, ALL_QUEUES)
        return self._begin(pop, caller)

    def _begin(self, pop: PopMessageRequestHeader, caller: Caller, cold: Cold | None = None) -> PopRound | None:
        """Run a pop. ``cold`` are messages that were read from the disk for it."""
        return self._changes.serve(caller, partial(self._pop, pop, caller, cold))

    def _pop(self, pop: PopMessageRequestHeader, caller: Caller, cold: Cold | None) -> PopRound | None:
        now = self._requests.check_in_time(pop)
        topic = self._requests.check_names(caller, pop.consumer_group, pop.topic, pop.queue_id, writes=True)
        wanted = self._requests.filter_of(pop.topic, pop.consumer_group, pop.exp_type, pop.exp)
        revive_queue_id = ORDER_REVIVE_QUEUE
        if not pop.order:
            self._number += 1
            revive_queue_id = self._number % self._config.revive_queue_num
        made = PopRound(
            pop, now, cold, wanted=wanted, revive_queue_id=revive_queue_id,
            arrivals=arrivals_of(self._traffic, pop.topic, pop.consumer_group))
        return in_turns(
            self._loop, caller.reply, self._look(made, topic), partial(self._end, made, caller))

    def _look(self, made: PopRound, popped: TopicConfig) -> Iterator[None]:
        """Take messages from one queue after the other."""
        for topic, queue_id in self._queues(made.pop, popped, made.cold):
            try:
                self._pop_queue(made, topic, queue_id)
            except (OSError, StoreError) as error:  # what was taken from other queues is answered
                made.failure = made.failure or error
            yield

    def _end(self, made: PopRound, caller: Caller) -> PopRound | None:
        """Return what a pop has found, or have it wait."""
        pop, key = made.pop, (made.pop.topic, made.pop.consumer_group, made.pop.queue_id)
        if made.count:
            if made.rest:
                self.polling.notify(key)
            return made
        if made.needs_disk is not None:
            self._requests.read_cold(caller, pop, made.needs_disk, partial(self._begin, pop, caller))
            return None
        if made.failure is not None:
            raise made.failure
        if made.refused:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, f"no checkpoint could be stored: {made.refused}")
        return made if self._requests.ends_empty(
            made, self.polling, caller, key, made.wanted, lambda: made.rest > 0 or arrivals_of(
                self._traffic, pop.topic, pop.consumer_group) != made.arrivals) else None

    # -- its queues

    def _queues(self, pop: PopMessageRequestHeader, topic: TopicConfig, cold: Cold | None) -> Iterator[_Key]:
        """Yield the queues to pop from, in order."""
        if cold is not None:
            yield cold.key
        draw = looks_first = self._entropy.randrange(100)
        retry_probability = self._config.pop_from_retry_probability
        if draw < self._priority_factor(pop, topic):
            draw, retry_probability = 0, self._config.pop_from_retry_probability_for_priority
        normal = [(pop.topic, pop.queue_id)]
        if pop.queue_id == ALL_QUEUES:
            normal = self._turned(pop.topic, topic, draw)
        retries = [] if pop.order else [
            key for name in retry_topics(self._config, self._topics, pop.topic, pop.consumer_group, looks_first)
            for key in self._turned(name, self._topics.select(name), draw)]
        if looks_first < retry_probability:
            yield from (*retries, *normal)
        else:
            yield from (*normal, *retries)

    def _priority_factor(self, pop: PopMessageRequestHeader, topic: TopicConfig) -> int:
        """Return the share of pops, in percent, that take the queues in the order of their priorities."""
        if pop.order or topic.attributes.get("message.type") != "PRIORITY":
            return 0
        group = self._groups.select(pop.consumer_group)
        return 0 if group is None else group.priority_factor

    def _turned(self, topic: str, config: TopicConfig | None, draw: int) -> list[_Key]:
        # A topic that does not exist counts as one queue, so that its first message wakes a waiting pop.
        count = 1 if config is None else config.read_queue_nums
        places = range(count)
        return [(topic, (place + draw) % count)
                for place in (reversed(places) if self._config.priority_order_asc else places)]

    # -- one queue

    def _pop_queue(self, made: PopRound, topic: str, queue_id: int) -> None:
        store, pop = self._store, made.pop
        if (topic, queue_id) in made.looked_at:  # a queue that was read from the disk comes first, and then again
            return
        made.looked_at.add((topic, queue_id))
        queue = store.queue_of(topic, queue_id)
        end = queue.max
        if end <= queue.begin_of_life and self._topics.select(topic) is None:
            return
        group = pop.consumer_group
        offset = self._progress.begin(
            topic, group, queue_id,
            from_end=pop.init_mode != FROM_START and not topic.startswith(RETRY_GROUP_TOPIC_PREFIX))
        if pop.order and self._progress.order.is_blocked(pop.attempt_id, topic, group, queue_id, pop.invisible_time):
            return
        if self._is_stopped(topic, group, queue_id):
            made.stopped += max(0, end - offset)
            return
        if made.count >= pop.max_msg_nums or made.size >= MAX_BYTES:
            made.rest += max(0, end - offset)
            return
        result = self._get(made, topic, queue_id, offset)
        if topic != pop.topic and (ended := store.inner.lives.deleted_up_to(pop.topic)):
            offset, result = self._after_ended(made, topic, queue_id, offset, result, ended)
        if result is not None and result.status in WRONG_OFFSET:
            events.POP_OFFSET_IS_OUTSIDE_ITS_QUEUE.log(
                _log, group=group, topic=topic, queue=queue_id, offset=offset, to=result.next_begin_offset)
            offset = result.next_begin_offset
            self._progress.metrics.reset(topic, group, queue_id)
            self._progress.offsets.commit(group, topic, queue_id, offset)
            result = self._get(made, topic, queue_id, offset)
        if result is None:
            made.rest += max(0, end - offset)
        elif result.message_count:
            self._take(made, topic, queue_id, offset, result)
        else:
            if result.status in _PASSED_OVER:
                self._progress.offsets.commit(group, topic, queue_id, result.next_begin_offset)
            made.rest += max(0, result.max_offset - result.next_begin_offset)

    def _after_ended(
        self, made: PopRound, topic: str, queue_id: int, offset: int, result: GetMessageResult | None, ended: int
    ) -> tuple[int, GetMessageResult | None]:
        """Pass over retries that are before ``ended``: the popped topic was deleted after they were stored.

        Return the offset of the next retry, and the result of the read there.
        """
        first = offset
        for _ in range(_READS_MAX):
            old = [] if result is None else [
                at for record, at in zip(result.records, result.queue_offsets, strict=True)
                if MESSAGE_HEAD.unpack_from(record).phy_offset < ended]
            if not old:
                break
            offset = old[-1] + 1
            result = self._get(made, topic, queue_id, offset)
        else:
            result = None  # the next pop continues
        if offset > first:
            self._progress.offsets.commit(made.pop.consumer_group, topic, queue_id, offset)
            events.RETRIES_OF_A_DELETED_TOPIC_ARE_PASSED_OVER.log(
                _log, topic=made.pop.topic, group=made.pop.consumer_group, retry_topic=topic, queue=queue_id,
                from_=first, to=offset)
        return offset, result

    def _is_stopped(self, topic: str, group: str, queue_id: int) -> bool:
        """Return whether too many messages of a queue are in flight."""
        config, metrics, key = self._config, self._progress.metrics, (topic, group, queue_id)
        if not config.enable_pop_message_threshold or (
            metrics.in_flight(*key) <= config.pop_inflight_message_threshold
        ):
            metrics.stopped.discard(key)
            return False
        if key not in metrics.stopped:
            metrics.stopped.add(key)
            events.POP_IS_STOPPED.log(
                _log, group=group, topic=topic, queue=queue_id, in_flight=metrics.in_flight(*key),
                limit=config.pop_inflight_message_threshold)
        return True

    def _get(self, made: PopRound, topic: str, queue_id: int, offset: int) -> GetMessageResult | None:
        """Return messages of a queue; None if they are not in the page cache."""
        wanted = own_messages(
            topic, made.pop.consumer_group, made.wanted if topic == made.pop.topic else EVERYTHING)
        return made.get(self._store, topic, queue_id, offset, made.pop.max_msg_nums - made.count, wanted)

    def _take(
        self, made: PopRound, topic: str, queue_id: int, offset: int, result: GetMessageResult
    ) -> None:
        """Put the checkpoint of messages of a queue, then add the messages to the answer."""
        pop = made.pop
        group, counts = pop.consumer_group, dict[int, int]()
        if pop.order:
            counts = self._take_in_order(made, topic, queue_id, offset, result)
        else:
            put = self._revive_log.put_checkpoint(PopCheckPoint(
                offset, made.pop_time, pop.invisible_time, queue_id, topic, group, self._config.broker_name,
                tuple(found - offset for found in result.queue_offsets), result.message_count), made.revive_queue_id)
            if not put.status.appended:
                made.refused = f"{put.status.name} {put.remark}".strip()
                made.rest += max(0, result.max_offset - offset)
                return
            made.until = max(made.until, put.until)
            self._traffic.revive_log_put("CK", pop.topic, group)
            self._progress.offsets.commit(group, topic, queue_id, result.next_begin_offset)
            self._progress.metrics.popped(topic, group, queue_id, len(result.ends))
        made.taken.append(Taken(topic, queue_id, offset, result, counts))
        made.rest += max(0, result.max_offset - result.next_begin_offset)
        made.count += result.message_count
        made.size += len(result.data)
        self._traffic.hand_out(topic, group, result.message_count, len(result.data))

    def _take_in_order(
        self, made: PopRound, topic: str, queue_id: int, offset: int, result: GetMessageResult
    ) -> dict[int, int]:
        pop = made.pop
        info = self._progress.order.popped(
            pop.attempt_id, topic, pop.consumer_group, queue_id, made.pop_time, pop.invisible_time,
            result.queue_offsets)
        self._progress.offsets.commit(pop.consumer_group, topic, queue_id, offset)
        return dict(info.consumed)

    # -- remoting

    @serves(RequestCode.POP_MESSAGE)
    def pop_message(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Return messages, or hold the pop until one arrives: request 200050."""
        caller = RemotingCaller(channel, request, self._answer)
        return caller.answer(self.pop(request.read(PopMessageRequestHeader), caller))

    def _answer(self, channel: Channel, request: RemotingCommand, popped: PopRound) -> Answer:
        header = PopMessageResponseHeader(
            popped.pop_time, popped.pop.invisible_time, popped.revive_queue_id, popped.rest + popped.stopped,
            ";".join(formats.start_offset_info(taken.topic, taken.queue_id, taken.offset) for taken in popped.taken),
            ";".join(formats.msg_offset_info(taken.topic, taken.queue_id, taken.found.queue_offsets)
                     for taken in popped.taken),
            ";".join(text for taken in popped.taken for text in _order_counts(taken)) if popped.pop.order else None)
        if popped.code:
            return request.answer(popped.code, GetMessageStatus.NO_MESSAGE_IN_QUEUE.name, header)
        answer = request.answer(
            ResponseCode.SUCCESS, GetMessageStatus.FOUND.name, header,
            b"".join(self._records(popped, taken) for taken in popped.taken))
        return when_durable(self.durable, channel, request, answer, popped.until)

    def _records(self, popped: PopRound, taken: Taken) -> bytes:
        """Return the messages of a queue; those of a retry topic as messages of the popped topic with receipts."""
        pop, found = popped.pop, taken.found
        if taken.topic == pop.topic:
            return found.data
        flag = formats.retry_flag(taken.topic)
        return b"".join(
            _under_topic(record, pop.topic, ExtraInfo(
                taken.offset, popped.pop_time, pop.invisible_time, popped.revive_queue_id, flag,
                self._config.broker_name, taken.queue_id, at).encode())
            for record, at in zip(found.records, found.queue_offsets, strict=True))


def _order_counts(taken: Taken) -> Iterator[str]:
    """Yield how often messages of an orderly pop were popped before, as RocketMQ writes it."""
    topic, queue_id, counts = taken.topic, taken.queue_id, taken.counts
    for at, count in sorted(counts.items()):
        yield formats.queue_offset_order_count(topic, queue_id, at, count)
    # Older clients read only the count of the queue. It is 0 if a message was not popped before.
    least = min(counts.values()) if len(counts) == len(taken.found.queue_offsets) else 0
    yield formats.order_count(topic, queue_id, least)


def _under_topic(record: bytes, topic: str, receipt: str) -> bytes:
    """Return a stored record with another topic and with the receipt as a property.

    A record of another broker may have no room for the receipt. It then loses properties, because a client would know
    it by the retry topic otherwise. A record is returned unchanged if the topic's name is too long for it.
    """
    head = MESSAGE_HEAD.unpack_from(record)
    _, body_end, _, topic_end = text_parts(record)
    properties = record[topic_end + PROPERTIES_LENGTH_LENGTH : head.total_size]
    if properties and not properties.endswith(b"\x02"):
        properties += b"\x02"
    properties += encode_properties({POP_CK: receipt})
    name = topic.encode()
    if len(name) > MAX_TOPIC_LENGTH_V1:
        return record
    if len(properties) > MAX_PROPERTIES_LENGTH:
        properties = encode_properties(fitting(decode_properties(properties), {POP_CK})[0])
    made = b"".join((
        record[MESSAGE_HEAD.size : body_end], bytes((len(name),)), name,
        len(properties).to_bytes(2, "big"), properties))
    return MESSAGE_HEAD.struct.pack(*head._replace(
        total_size=MESSAGE_HEAD.size + len(made), magic=MESSAGE_MAGIC_V1)) + made
