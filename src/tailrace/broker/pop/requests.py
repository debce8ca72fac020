"""What pops of topics and of Lite topics have in common: checks of the request, where to begin, reads from the disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, NamedTuple, TypeVar

from tailrace.broker.core.context import BrokerContext
from tailrace.broker.messages.waiters import LongPolling, PollResult, Waiter
from tailrace.errors import RefusalError
from tailrace.filters.message_filters import MessageFilter
from tailrace.formats.pop import POP_MAX, pop_retry_topics
from tailrace.formats.remoting import ResponseCode
from tailrace.formats.requests.message_headers import (
    NotificationRequestHeader,
    PopLiteMessageRequestHeader,
    PopMessageRequestHeader,
)
from tailrace.model import GetMessageResult, GetMessageStatus
from tailrace.node.consumer_order_info import ConsumerOrderInfoManager
from tailrace.node.message_store import MessageStore
from tailrace.requests.caller import Caller

__all__ = [
    "MAX_BYTES", "READ_BYTES", "WRONG_OFFSET", "Cold", "Held", "Round", "arrivals_of", "check_in_time",
    "check_numbers", "pop_offset", "read_cold", "retry_topics", "wait",
]

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


def check_numbers(broker: BrokerContext, pop: _Pop, messages: int) -> None:
    """Raise RefusalError for numbers that a pop cannot have; set its time of birth to that of its arrival.

    The time of birth that a client sends is that of its own clock, which may be wrong by any amount.
    """
    if not 1 <= messages <= POP_MAX:
        raise RefusalError(
            ResponseCode.INVALID_PARAMETER,
            f"the broker[{broker.address}] pop message's num is {messages}, it may be 1 to {POP_MAX}")
    limit_ms = broker.store.config.timer_max_delay_sec * 1000
    if not 0 < pop.invisible_time <= limit_ms:
        raise RefusalError(
            ResponseCode.INVALID_PARAMETER,
            f"invisibleTime is {pop.invisible_time} ms, it may be 1 to {limit_ms} ms (timerMaxDelaySec)")
    pop.born_time = broker.clock.now_ms()


def wait(
    broker: BrokerContext, polling: LongPolling[Held[_Asked]], header: _Asked, caller: Caller, key: tuple[object, ...],
    wanted: MessageFilter, has_grown: Callable[[], bool],
) -> PollResult:
    """Have a request wait under ``key`` for the rest of its time; see `LongPolling.poll`."""
    if header.poll_time <= 0:
        return PollResult.TIMEOUT
    left_ms = header.born_time + header.poll_time - EARLY_MS - broker.clock.now_ms()
    return polling.poll(Held(caller.reply(), key, wanted, header, caller), left_ms, has_grown)


def retry_topics(broker: BrokerContext, topic: str, group: str, draw: int = 0) -> list[str]:
    """Return the retry topics from which a group pops messages of a topic; ``draw`` decides which is first.

    With enableRetryTopicV2=false the topic of the second form is popped too if it exists, because a broker that had
    the directory before may have left messages in it.
    """
    config, (first, second) = broker.config, pop_retry_topics(topic, group)
    if config.enable_retry_topic_v2:
        if not config.retrieve_message_from_pop_retry_topic_v1:
            return [second]
    elif broker.topics.select(second) is None:
        return [first]
    return [second, first] if draw % 2 else [first, second]


def arrivals_of(broker: BrokerContext, topic: str, group: str) -> int:
    """Return how many messages have arrived since the start on a topic and on the retry topics of a group."""
    return sum(map(broker.traffic.arrivals, (topic, *pop_retry_topics(topic, group))))


def check_in_time(broker: BrokerContext, pop: _Pop) -> int:
    """Return the time of the pop, in ms. Raises RefusalError if its client no longer waits."""
    now = broker.clock.now_ms()
    if now - pop.born_time - pop.poll_time > LATE_MS:
        raise RefusalError(
            ResponseCode.POLLING_TIMEOUT, f"the broker[{broker.address}] pop message is timeout too much")
    return now


def read_cold(
    broker: BrokerContext, caller: Caller, pop: _Pop, cold: Cold, run_again: Callable[[Cold], object],
) -> None:
    """Have messages read in a thread, then run the pop again. Raises RefusalError if too many reads wait."""
    broker.cold_reads.submit(
        caller.reply(), cold.read, lambda result: run_again(cold._replace(result=result)), pop.consumer_group)


def pop_offset(
    broker: BrokerContext, order: ConsumerOrderInfoManager, topic: str, group: str, queue_id: int, *, from_end: bool
) -> int:
    """Return the offset at which a pop begins: after a reset the new one, for a new group the first one."""
    offsets = broker.offsets
    offset = offsets.take_reset(group, topic, queue_id)
    if offset is not None:
        order.clear(topic, group, queue_id)
        broker.pop_metrics.reset(topic, group, queue_id)
    elif (offset := offsets.query(group, topic, queue_id)) >= 0:
        return offset
    else:
        offset = _init_offset(broker, topic, queue_id, from_end=from_end)
    offsets.commit(group, topic, queue_id, offset)
    return offset


def _init_offset(broker: BrokerContext, topic: str, queue_id: int, *, from_end: bool) -> int:
    """Return the first offset of a group: the start of the queue, or with ``from_end`` its last message.

    With initPopOffsetByCheckMsgInMem a queue whose first message is in memory is read from its start.
    """
    queue = broker.store.queue_of(topic, queue_id)
    low = queue.min
    if not from_end or (
        low == queue.begin_of_life and broker.config.init_pop_offset_by_check_msg_in_mem
        and not broker.store.get_message(topic, queue_id, low, 1, only_cached=True).is_cold
    ):
        return low
    return max(low, queue.max - 1)
