"""What pops of topics and of Lite topics have in common: checks of the request, where to begin, reads from the disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar, final

from tailrace.auth.check import AccessControl
from tailrace.broker.consumers.consumer_checks import (
    EXPRESSION_MAX,
    check_allowed,
    check_queue,
    consuming_group,
    existing_topic,
    no_group,
    readable_topic,
)
from tailrace.broker.core.addresses import Addresses
from tailrace.broker.core.creations import Creations
from tailrace.broker.core.slaves import refuse_on_slave
from tailrace.broker.messages.long_polling import LongPolling, PollResult, Waiter
from tailrace.broker.statistics.pop_metrics import PopMetrics
from tailrace.broker.statistics.traffic import Traffic
from tailrace.config import BrokerConfig
from tailrace.env.clock import Clock
from tailrace.errors import RefusalError
from tailrace.filters.message_filters import MessageFilter, MessageFilters
from tailrace.filters.retry_owner import refuse_shared
from tailrace.filters.subscriptions import SUB_ALL, TAG, SubscriptionData
from tailrace.formats.pop import POP_MAX, ExtraInfo, pop_retry_topics
from tailrace.formats.remoting import ResponseCode
from tailrace.formats.requests.message_headers import (
    NotificationRequestHeader,
    PopLiteMessageRequestHeader,
    PopMessageRequestHeader,
)
from tailrace.ha.slave import Slave
from tailrace.model import GetMessageResult, GetMessageStatus
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.consumer_order_info import ConsumerOrderInfoManager
from tailrace.node.message_store import MessageStore
from tailrace.node.topic_config import TopicConfig, TopicConfigManager
from tailrace.requests.caller import Caller
from tailrace.requests.worker import RequestWorker

__all__ = [
    "MAX_BYTES", "READ_BYTES", "WRONG_OFFSET", "Cold", "Held", "PopProgress", "PopRequests", "Round", "arrivals_of",
    "not_poppable", "receipt_of", "retry_topics"]

EARLY_MS: Final = 50
"""Time before its deadline at which a request is answered, so that the client receives the answer in time."""
LATE_MS: Final = 500
"""A pop that arrives this long after its time is refused, because its client no longer waits."""
MAX_BYTES: Final = 4 << 20
"""Bytes of one answer, because the event loop reads it. The last read may go past this limit."""
READ_BYTES: Final = 256 * 1024
WRONG_OFFSET: Final = frozenset({
    GetMessageStatus.OFFSET_TOO_SMALL, GetMessageStatus.OFFSET_OVERFLOW_BADLY, GetMessageStatus.OFFSET_FOUND_NULL})
"""Results of a read at an offset where a queue has no message and never will have one."""
_Asked = TypeVar("_Asked", PopMessageRequestHeader, PopLiteMessageRequestHeader, NotificationRequestHeader)
_Pop = PopMessageRequestHeader | PopLiteMessageRequestHeader
_Header = TypeVar("_Header", PopMessageRequestHeader, PopLiteMessageRequestHeader)


class Cold(NamedTuple):
    """Messages that have to be read from the disk; ``result`` is None until they are read."""

    key: tuple[str, int]
    offset: int
    result: GetMessageResult | None
    read: Callable[[], GetMessageResult]


@dataclass(slots=True)
class Round(Generic[_Header]):
    """State of one run of a pop: its request, and the messages found so far."""

    pop: _Header
    pop_time: int
    cold: Cold | None
    """Messages that were read from the disk for this run."""
    needs_disk: Cold | None = None
    """The first read of this run that needs the disk."""
    size: int = 0
    """Bytes of the messages found."""
    until: int = 0
    """The answer waits until the log is durable up to this position; 0 if it waits for nothing."""
    code: ResponseCode = ResponseCode.SUCCESS
    """POLLING_TIMEOUT or POLLING_FULL without messages."""

    def get(
        self, store: MessageStore, topic: str, queue_id: int, offset: int, most: int, wanted: MessageFilter
    ) -> GetMessageResult | None:
        """Return at most ``most`` messages of a queue; None if they are not in the page cache."""
        cold = self.cold
        if cold is not None and (cold.key, cold.offset) == ((topic, queue_id), offset):
            return cold.result
        read = partial(
            store.get_message, topic, queue_id, offset, most, max_bytes=READ_BYTES, codes=wanted.codes,
            property_filter=wanted.properties)
        result = read(only_cached=True)
        if not result.is_cold:
            return result
        self.needs_disk = self.needs_disk or Cold((topic, queue_id), offset, None, read)
        return None


@dataclass(slots=True, eq=False)
class Held(Waiter, Generic[_Asked]):
    """A pop or a notification that waits, to run again."""

    header: _Asked
    """Its time of birth is that of its arrival."""
    caller: Caller


@final
class PopRequests:
    """Checks the requests of POP consumers, and has them wait. Used on the event loop only."""

    def __init__(
        self, clock: Clock, store: MessageStore, creations: Creations, filters: MessageFilters,
        control: AccessControl | None, addresses: Addresses, slave: Slave | None, cold_reads: RequestWorker,
    ) -> None:
        self._clock, self._store, self._creations, self._filters = clock, store, creations, filters
        self._control, self._addresses, self._slave, self._cold_reads = control, addresses, slave, cold_reads

    def begin(self, pop: _Pop, messages: int) -> None:
        """Raise RefusalError on a slave, and for numbers that a pop cannot have; set its time of birth to its arrival.

        The time of birth that a client sends is that of its own clock, which may be wrong by any amount.
        """
        refuse_on_slave(self._slave)
        if not 1 <= messages <= POP_MAX:
            raise RefusalError(
                ResponseCode.INVALID_PARAMETER,
                f"the broker[{self._addresses.broker}] pop message's num is {messages}, it may be 1 to {POP_MAX}")
        limit_ms = self._store.config.timer_max_delay_sec * 1000
        if not 0 < pop.invisible_time <= limit_ms:
            raise RefusalError(
                ResponseCode.INVALID_PARAMETER,
                f"invisibleTime is {pop.invisible_time} ms, it may be 1 to {limit_ms} ms (timerMaxDelaySec)")
        self.arrived(pop)

    def arrived(self, header: _Pop | NotificationRequestHeader) -> None:
        """Set the time of birth of a request to its arrival."""
        header.born_time = self._clock.now_ms()

    def check_in_time(self, pop: _Pop) -> int:
        """Return the time of the pop, in ms. Raises RefusalError if its client no longer waits."""
        now = self._clock.now_ms()
        if now - pop.born_time - pop.poll_time > LATE_MS:
            raise RefusalError(
                ResponseCode.POLLING_TIMEOUT,
                f"the broker[{self._addresses.broker}] pop message is timeout too much")
        return now

    def check_writable(self) -> None:
        """Raise RefusalError if checkpoints cannot be stored."""
        if self._store.read_only:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, self._store.read_only)
        if not self._store.config.timer_wheel_enable:
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR,
                f"the broker[{self._addresses.broker}] pop message is forbidden because timerWheelEnable is false")

    def check_names(
        self, caller: Caller, group: str, topic: str, queue_id: int, *, writes: bool = False
    ) -> TopicConfig:
        """Check that a group may consume a queue, or all queues (-1), by pops; return the topic.

        ``writes``: also that checkpoints can be stored.

        Raises RefusalError, or MissingConfigError if the group has to be created first.
        """
        refuse_shared(self._control, caller, topic, group)
        if writes:
            self.check_writable()
        config = readable_topic(self._store.topics, topic, queue_id, "peeking", or_all=True)
        consuming_group(self._creations, group)
        check_allowed(self._creations.groups, group, topic)
        check_poppable(config)
        return config

    def check_popped(self, group: str, topic: str, queue_id: int) -> TopicConfig:
        """Return the topic of messages that a group may have popped from a queue. Raises RefusalError."""
        config = existing_topic(self._store.topics, topic)
        check_queue(config, queue_id, ResponseCode.MESSAGE_ILLEGAL)
        if self._creations.groups.select(group) is None:
            raise no_group(group)
        return config

    def filter_of(
        self, topic: str, group: str, expression_type: str | None, expression: str | None
    ) -> MessageFilter:
        """Return the filter of a request for a topic. It is not applied to retried messages, which have passed it.

        Raises RefusalError, or NotPreparedError if the expression has to be compiled in a thread first.
        """
        text = expression or SUB_ALL
        if len(text) > EXPRESSION_MAX:
            raise RefusalError(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"exp has {len(text)} characters, over the limit of {EXPRESSION_MAX}")
        try:
            wanted = SubscriptionData.parse(
                topic, text, expression_type=(expression_type or TAG) if expression else TAG)
        except ValueError as error:
            raise RefusalError(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed") from error
        return self._filters.of_request(wanted, group, always=True)

    def wait(
        self, polling: LongPolling[Held[_Asked]], header: _Asked, caller: Caller, key: tuple[object, ...],
        wanted: MessageFilter, has_grown: Callable[[], bool],
    ) -> PollResult:
        """Have a request wait under ``key`` for the rest of its time; see `LongPolling.poll`."""
        if header.poll_time <= 0:
            return PollResult.TIMEOUT
        left_ms = header.born_time + header.poll_time - EARLY_MS - self._clock.now_ms()
        return polling.poll(Held(caller.reply(), key, wanted, header, caller), left_ms, has_grown)

    def ends_empty(
        self, made: Round[Any], polling: LongPolling[Any], caller: Caller, key: tuple[object, ...],
        wanted: MessageFilter, has_grown: Callable[[], bool],
    ) -> bool:
        """Have a pop wait that has found no message; return whether its run is the result instead, with its code."""
        result = self.wait(polling, made.pop, caller, key, wanted, has_grown)
        made.code = ResponseCode.POLLING_FULL if result is PollResult.FULL else ResponseCode.POLLING_TIMEOUT
        return result is not PollResult.WAITS

    def read_cold(self, caller: Caller, pop: _Pop, cold: Cold, run_again: Callable[[Cold], object]) -> None:
        """Have messages read in a thread, then run the pop again. Raises RefusalError if too many reads wait."""
        self._cold_reads.submit(
            caller.reply(), cold.read, lambda result: run_again(cold._replace(result=result)), pop.consumer_group)


def retry_topics(
    config: BrokerConfig, topics: TopicConfigManager, topic: str, group: str, draw: int = 0
) -> list[str]:
    """Return the retry topics from which a group pops messages of a topic; ``draw`` decides which is first.

    With enableRetryTopicV2=false the topic of the second form is popped too if it exists, because a broker that had
    the directory before may have left messages in it.
    """
    first, second = pop_retry_topics(topic, group)
    if config.enable_retry_topic_v2:
        if not config.retrieve_message_from_pop_retry_topic_v1:
            return [second]
    elif topics.select(second) is None:
        return [first]
    return [second, first] if draw % 2 else [first, second]


def arrivals_of(traffic: Traffic, topic: str, group: str) -> int:
    """Return how many messages have arrived since the start on a topic and on the retry topics of a group."""
    return sum(map(traffic.arrivals, (topic, *pop_retry_topics(topic, group))))


@final
class PopProgress:
    """The offsets of groups, the messages that they have popped in order, and the number that is in flight."""

    def __init__(
        self, store: MessageStore, config: BrokerConfig, offsets: ConsumerOffsetManager,
        order: ConsumerOrderInfoManager, pop_metrics: PopMetrics,
    ) -> None:
        self._store, self._config = store, config
        self.offsets = offsets
        self.order = order
        self.metrics = pop_metrics

    def begin(self, topic: str, group: str, queue_id: int, *, from_end: bool) -> int:
        """Return the offset at which a pop begins: after a reset the new one, for a new group the first one."""
        offset = self.offsets.take_reset(group, topic, queue_id)
        if offset is not None:
            self.order.clear(topic, group, queue_id)
            self.metrics.reset(topic, group, queue_id)
        elif (offset := self.offsets.query(group, topic, queue_id)) >= 0:
            return offset
        else:
            offset = self._first(topic, queue_id, from_end=from_end)
        self.offsets.commit(group, topic, queue_id, offset)
        return offset

    def _first(self, topic: str, queue_id: int, *, from_end: bool) -> int:
        """Return the first offset of a group: the start of the queue, or with ``from_end`` its last message.

        With initPopOffsetByCheckMsgInMem a queue whose first message is in memory is read from its start.
        """
        queue = self._store.queue_of(topic, queue_id)
        low = queue.min
        if not from_end or (
            low == queue.begin_of_life and self._config.init_pop_offset_by_check_msg_in_mem
            and not self._store.get_message(topic, queue_id, low, 1, only_cached=True).is_cold
        ):
            return low
        return max(low, queue.max - 1)


def not_poppable(topic: str) -> str:
    """Return why a topic with batch queues is not popped, for users.

    A Java broker hands such messages out, but its clients do not take an inner batch apart when they pop, and the
    broker cannot put an inner batch that is not acknowledged into a retry topic, so that it is never redelivered.
    """
    return (f"the topic[{topic}] has queue.type=BatchCQ, and its messages can be pulled, not popped: use a consumer "
            "of the remoting protocol in mode PULL")


def check_poppable(topic: TopicConfig) -> None:
    """Raise RefusalError for a topic with batch queues."""
    if topic.has_batch_queues:
        raise RefusalError(ResponseCode.NO_PERMISSION, not_poppable(topic.topic_name))


def receipt_of(extra_info: str, revive_queues: int) -> ExtraInfo:
    """Return the receipt in a text. Raises RefusalError if it cannot be a receipt of this broker."""
    try:
        receipt = ExtraInfo.decode(extra_info)
    except ValueError as error:
        raise RefusalError(ResponseCode.INVALID_PARAMETER, str(error)) from error
    if not receipt.is_order and not 0 <= receipt.revive_queue_id < revive_queues:
        raise RefusalError(
            ResponseCode.INVALID_PARAMETER,
            f"extraInfo names revive queue {receipt.revive_queue_id}, there are {revive_queues}")
    return receipt
