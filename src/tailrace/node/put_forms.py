"""Helpers of puts: stored properties of messages, writers for many messages, results, and errors of refusals."""

from __future__ import annotations

import bisect
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import NoReturn, final, overload

from tailrace.errors import (
    FatalStorageError,
    FlushDiskTimeoutError,
    MessageIllegalError,
    StoreError,
    StoreNotWritableError,
    TimerFlowControlError,
)
from tailrace.formats.names import INNER_MULTI_DISPATCH, KEYS
from tailrace.kernels.properties import message_items, message_properties
from tailrace.kernels.shared import constants as C
from tailrace.model import (
    Message,
    MessageExtBrokerInner,
    PutMessageResult,
    PutMessageStatus,
    refuse_conflicts,
)
from tailrace.store.append import RecordWriter
from tailrace.store.compaction.compaction_store import CompactionStore
from tailrace.store.default_message_store import DefaultMessageStore

__all__ = [
    "PutResults", "by_topic", "many_writers", "odd_properties", "raise_partial", "raise_refused",
    "refuse_without_keys", "wait_durable",
]


def refuse_without_keys(compaction: CompactionStore, topic: str, messages: Sequence[Message]) -> None:
    """Raise MessageIllegalError if the topic of the messages has compaction, and one of them has no keys."""
    for message in messages if topic in compaction.topics else ():
        if not " ".join(message.keys or [message.properties.get(KEYS, "")]).strip():
            raise MessageIllegalError(
                "keys", f"Required message key is missing, {message.topic} has cleanup.policy=COMPACTION")


def odd_properties(message: Message, prefix: str, number: int) -> bytes:
    """Return the stored properties of a message that is not plain. Raises MessageIllegalError.

    ``prefix`` and ``number`` are its unique key, unless it has one: 32 hexadecimal digits.
    """
    refuse_conflicts(message)
    return message_properties(message, f"{prefix}{number:012X}")


def by_topic(messages: Sequence[Message]) -> tuple[Sequence[Message], list[int] | None]:
    """Return the messages grouped by topic, and the new index of each message, or None if the order is unchanged."""
    runs = [topic for topic, _ in itertools.groupby(messages, key=attrgetter("topic"))]
    ranks = {topic: rank for rank, topic in enumerate(dict.fromkeys(runs))}
    if len(ranks) == len(runs):
        return messages, None
    order = sorted(range(len(messages)), key=lambda number: ranks[messages[number].topic])
    places = [0] * len(order)
    for place, number in enumerate(order):
        places[number] = place
    return [messages[number] for number in order], places


def many_writers(
    store: DefaultMessageStore, messages: Sequence[Message], queue_id: int | None, now_ms: int, prefix: str,
    number: Iterator[int], queue_of: Callable[[str, int | None], int],
) -> list[RecordWriter] | None:
    """Return a writer for each run of messages of one topic; None if a message cannot be put with others.

    Unique keys are ``prefix`` and the next ``number``. Raises MessageIllegalError, and what ``queue_of`` raises.
    """
    writers: list[RecordWriter] = []
    for topic, run in itertools.groupby(messages, key=attrgetter("topic")):
        part = list(run)
        chosen = queue_of(topic, queue_id)
        refuse_without_keys(store.compaction, topic, part)
        items, kinds = message_items(part, prefix, number, odd_properties)
        if kinds & (C.WAITS | C.LMQ):
            for one in messages:  # before any of them is put
                refuse_conflicts(one)
            return None
        writers.append(store.commit_log.items_writer(MessageExtBrokerInner(
            topic, chosen, b"", born_timestamp=now_ms, born_host=store.store_host), items))
    return writers


@final
class PutResults(Sequence[PutMessageResult]):
    """The results of a ``put_many``; the result of a message is made when it is used."""

    __slots__ = ("_ends", "_order", "_runs")

    def __init__(self, runs: list[PutMessageResult], order: list[int] | None = None) -> None:
        self._order = order
        self._runs = runs
        self._ends = list(itertools.accumulate(run.msg_num for run in runs))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> PutMessageResult: ...

    @overload
    def __getitem__(self, index: slice) -> list[PutMessageResult]: ...

    def __getitem__(self, index: int | slice) -> PutMessageResult | list[PutMessageResult]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        number = index + len(self) if index < 0 else index
        if not 0 <= number < len(self):
            raise IndexError(index)
        if self._order is not None and len(self._order) == len(self):
            number = self._order[number]
        place = bisect.bisect_right(self._ends, number)
        run = self._runs[place]
        number -= self._ends[place] - run.msg_num
        phy_offset = int(run.phy_offsets[number])
        following = number + 1
        until = int(run.phy_offsets[following]) if following < run.msg_num else run.until
        return PutMessageResult(
            PutMessageStatus.PUT_OK, phy_offset, until, run.queue_id, run.queue_offset + number,
            run.store_timestamp, 1, store_host=run.store_host)


def raise_refused(result: PutMessageResult) -> None:
    """Raise the exception for a refused put."""
    refusals: dict[PutMessageStatus, Callable[[str], StoreError]] = {
        PutMessageStatus.MESSAGE_ILLEGAL: lambda text: MessageIllegalError(*text.split(": ", 1))
        if ": " in text else MessageIllegalError("message", text),
        PutMessageStatus.PROPERTIES_SIZE_EXCEEDED: lambda text: MessageIllegalError(
            "properties", text.removeprefix("properties: ")),
        PutMessageStatus.WHEEL_TIMER_MSG_ILLEGAL: lambda text: MessageIllegalError("timer", text),
        PutMessageStatus.WHEEL_TIMER_NOT_ENABLE: lambda text: MessageIllegalError("timer", text),
        PutMessageStatus.WHEEL_TIMER_FLOW_CONTROL: TimerFlowControlError,
        PutMessageStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED: lambda text: MessageIllegalError(
            INNER_MULTI_DISPATCH, text),
    }
    raise refusals.get(result.status, StoreNotWritableError)(result.remark)


def raise_partial(error: StoreError, done: int, of_what: str) -> NoReturn:
    """Raise ``error`` again. If items are in the log, the text has their number: "3 of 5 rows"."""
    if not done:
        raise error
    why = error.reason if isinstance(error, StoreNotWritableError) else error
    raise StoreNotWritableError(f"{done} {of_what} were put: {why}") from error


def wait_durable(store: DefaultMessageStore, until: int, limit_ms: int) -> None:
    """Wait until everything below ``until`` is durable, at most ``limit_ms``.

    Raises FlushDiskTimeoutError, and StoreNotWritableError after a failed sync.
    """
    done = threading.Event()
    outcome: list[PutMessageStatus] = []

    def told(status: PutMessageStatus) -> None:
        outcome.append(status)
        done.set()

    try:
        store.when_synced(until, told)
    except FatalStorageError:
        raise StoreNotWritableError(store.flags.reason) from None
    done.wait(limit_ms / 1000)
    if not outcome or outcome[0] is PutMessageStatus.FLUSH_DISK_TIMEOUT:
        raise FlushDiskTimeoutError(until, limit_ms)
    if outcome[0] is not PutMessageStatus.PUT_OK:
        raise StoreNotWritableError(store.flags.reason)
