"""Queues of brokers: where a read over the network starts and ends. Ends are what brokers serve to consumers.

A key of a queue is (broker name, topic, queue id). In options and in a checkpoint the queue of a topic is named
BROKER/ID, so brokers may come and go.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, Self, TypeVar, final

from tailrace import events
from tailrace.client.admin import AdminClient
from tailrace.client.broker_calls import BrokerCalls, GroupCalls, PulledRecords
from tailrace.client.credentials import credentials_of
from tailrace.client.instance import InstanceShare, Target
from tailrace.client.routes import MessageQueue
from tailrace.client.subscription import Subscription
from tailrace.env.loop_thread import EventLoopThread
from tailrace.errors import (
    ConfigError,
    DataLossError,
    RemotingCommandError,
    RemotingError,
    StoreError,
)
from tailrace.formats.commitlog import MESSAGE_HEAD, STORE_TIME_HEAD, store_timestamp_of
from tailrace.formats.remoting import ResponseCode
from tailrace.logs import get_logger
from tailrace.spark.source.checkpoints import Checkpoint, LastMessage
from tailrace.spark.source.options import EARLIEST, LATEST, BrokerOptions, Position, ReadOptions
from tailrace.store.multi_dispatch import is_lmq

__all__ = [
    "BrokerQueues", "Brokers", "Ends", "Seen", "broker_batch_ranges", "broker_starts", "from_text", "lost", "queue_of",
    "shown", "subscribed", "to_text",
]

_log = get_logger(__name__)
_AT_ONCE: Final = 32
"""Requests that wait for an answer at most, when a read is planned."""
_PAUSE_S: Final = 0.2
"""Seconds before the first retry; each further one waits twice as long."""
_PAUSE_MAX_S: Final = 5.0
_LOOK_MS: Final = 20
"""Time between two questions whether a broker serves all messages that it has acknowledged."""
_PASSING: Final = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.GO_AWAY})
_MEMBER: Final = "#"
_VERSION: Final = 1
Queue = tuple[str, str, int]
_T = TypeVar("_T")


class Ends(NamedTuple):
    """Offsets [first, end) that a broker serves of a queue."""

    first: int
    end: int


BrokerQueues = dict[Queue, Ends]


class Seen(NamedTuple):
    """What a broker returned for the message before an offset."""

    last: LastMessage | None
    """None if the message no longer exists."""
    size: int
    """Mean size of that record and of some after it, in bytes; 0 if there was none."""


def queue_of(key: Queue) -> MessageQueue:
    """Return a queue as the client names it."""
    broker, topic, queue_id = key
    return MessageQueue(topic, broker, queue_id)


def subscribed(options: BrokerOptions, topic: str) -> Subscription:
    """Return the subscription of the read for a topic."""
    return Subscription(topic, options.subscription.expression, options.subscription.is_sql)


@final
class Brokers:
    """A connection to the brokers of a read, for a thread that waits; a context manager.

    A request that fails because of the connection, or that a broker is too busy for, is tried again ``retries`` times.
    Each method raises RemotingError or a StoreError.
    """

    def __init__(self, options: BrokerOptions) -> None:
        self._options = options
        credentials = credentials_of(options.credentials or None)
        self._share = InstanceShare(Target(
            options.namesrv, options.broker, options.timeout_ms, None, options.tls, credentials))
        self._calls = GroupCalls(self._share, options.group)
        self._loop = EventLoopThread()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._loop.run(self._share.close())
        finally:
            self._loop.close()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine in the thread of the connection."""
        return self._loop.run(work)

    def submit(self, work: Coroutine[Any, Any, object]) -> None:
        """Start a coroutine in the thread of the connection."""
        self._loop.submit(work)

    @property
    def calls(self) -> BrokerCalls:
        """Requests, for coroutines in the thread of the connection."""
        return self._calls.now

    async def tried(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Return the result of a request; try it again if that may help."""
        for attempt in range(self._options.retries):
            try:
                return await call()
            except RemotingError as error:
                if isinstance(error, RemotingCommandError) and error.code not in _PASSING:
                    raise
            await asyncio.sleep(min(_PAUSE_S * 2**attempt, _PAUSE_MAX_S))
        return await call()

    async def _of_each(
        self, keys: Iterable[Queue], call: Callable[[BrokerCalls, Queue], Awaitable[_T]]
    ) -> dict[Queue, _T]:
        """Return the result of a request for each queue."""
        slots, calls, wanted = asyncio.Semaphore(_AT_ONCE), self.calls, list(keys)

        async def one(key: Queue) -> _T:
            async with slots:
                return await self.tried(partial(call, calls, key))

        return dict(zip(wanted, await asyncio.gather(*map(one, wanted)), strict=True))

    def queues(self, options: ReadOptions, *, strict: bool = True, acknowledged: bool = False) -> BrokerQueues:
        """Return the queues that are read. Raises ConfigError if a topic or a queue does not exist and ``strict``.

        A broker serves a message some ms after it has acknowledged the message. With ``acknowledged`` the ends have
        every message that was acknowledged before the call: this waits until the brokers serve them, for ``timeoutMs``
        at most.
        """
        return self.run(self._queues(options, strict=strict, acknowledged=acknowledged))

    async def _queues(self, options: ReadOptions, *, strict: bool, acknowledged: bool) -> BrokerQueues:
        problems: list[str] = []
        keys: list[Queue] = []
        for topic in sorted(await self._topics(options)):
            if is_lmq(topic):
                problems.append(f"topic {topic} is an LMQ queue, which cannot be read")
                continue
            try:
                there = await self.tried(partial(self.calls.queues, topic))
            except RemotingCommandError as error:
                if error.code != ResponseCode.TOPIC_NOT_EXIST:
                    raise
                if topic in options.named_topics():
                    problems.append(f"topic {topic} does not exist")
                continue
            named = options.assigned.get(topic)
            names = {f"{queue.broker_name}/{queue.queue_id}" for queue in there}
            problems += [f"topic {topic} has no queue {name}" for name in sorted((named or frozenset()) - names)]
            keys += [
                (queue.broker_name, topic, queue.queue_id) for queue in there
                if options.queue_id in {-1, queue.queue_id}
                and (named is None or f"{queue.broker_name}/{queue.queue_id}" in named)]
        if problems and strict:
            raise ConfigError(*problems)
        first = await self._of_each(keys, lambda calls, key: calls.min_offset(queue_of(key)))
        end = await self._of_each(keys, lambda calls, key: calls.max_offset(queue_of(key)))
        if acknowledged:
            end |= await self._served(
                await self._of_each(keys, lambda calls, key: calls.max_offset(queue_of(key), committed=False)), end)
        return {key: Ends(min(first[key], end[key]), end[key]) for key in keys}

    async def _served(self, wanted: Mapping[Queue, int], end: Mapping[Queue, int]) -> dict[Queue, int]:
        """Return the ends of the queues that do not have all wanted messages, when they have them."""
        found: dict[Queue, int] = {}
        behind = [key for key, at in wanted.items() if end[key] < at]
        for _ in range(-(-self._options.timeout_ms // _LOOK_MS)):
            if not behind:
                return found
            await asyncio.sleep(_LOOK_MS / 1000)
            found |= await self._of_each(behind, lambda calls, key: calls.max_offset(queue_of(key)))
            behind = [key for key in behind if found[key] < wanted[key]]
        for key in behind:
            events.MESSAGES_MAY_BE_MISSING.log(
                _log, store=key[0],
                reason=f"{shown(key)}: the broker serves messages up to {found[key]} of {wanted[key]} that it has")
        return found

    async def _topics(self, options: ReadOptions) -> set[str]:
        if named := options.named_topics():
            return {*named}
        own = self._options
        async with AdminClient(
            namesrv=own.namesrv, broker=own.broker, timeout_ms=own.timeout_ms, tls=own.tls or False,
            credentials=own.credentials or None,
        ) as admin:
            names = await self.tried(admin.topic_names)
        return {name for name in names if re.fullmatch(options.topic_pattern, name) and not is_lmq(name)}

    def offsets_by_time(self, times: Mapping[Queue, int]) -> dict[Queue, int]:
        """Return for each queue the first offset stored at a time, in ms, or later; without one its end."""
        return self.run(self._of_each(times, lambda calls, key: calls.offset_by_time(queue_of(key), times[key])))

    def before(self, offsets: Mapping[Queue, int]) -> dict[Queue, Seen]:
        """Return what brokers have for the message before each offset."""
        # Without a filter, which may not select the message before an offset.
        found = self.run(self._of_each(offsets, lambda calls, key: calls.pull_records(
            Subscription(key[1]), queue_of(key), max(offsets[key] - 1, 0), max_count=_AT_ONCE)))
        return {key: _seen(found[key], at) for key, at in offsets.items()}

    def commit(self, group: str, offsets: Mapping[Queue, int]) -> None:
        """Set the offsets of a consumer group."""
        async def report() -> None:
            calls = BrokerCalls(self._share.instance, group)
            for key, offset in offsets.items():
                await self.tried(partial(calls.commit, queue_of(key), offset))
        self.run(report())


def _seen(found: PulledRecords, at: int) -> Seen:
    if found.status != "FOUND" or len(found.records) < STORE_TIME_HEAD:
        return Seen(None, 0)
    head = MESSAGE_HEAD.unpack_from(found.records)
    stored = store_timestamp_of(found.records[:STORE_TIME_HEAD])
    end = max(found.next_begin_offset, head.queue_offset + 1)  # an inner batch has several messages
    size = len(found.records) // max(end - head.queue_offset, 1)
    if stored is None or not head.queue_offset < at <= end:
        return Seen(None, size)
    return Seen(LastMessage(head.phy_offset, stored), size)


# -- positions that options name


def _position_of(
    brokers: Brokers, queues: BrokerQueues, position: Position, default: Callable[[Ends], int]
) -> dict[Queue, int]:
    """Return the offset of a position in each queue; it is outside of the queue only if it was named."""
    if position.by in {"timestamp", "timestamps"}:
        times = {
            key: position.timestamp if position.by == "timestamp" else position.table.get(key[1], {}).get(_name(key))
            for key in queues}
        found = brokers.offsets_by_time({key: time for key, time in times.items() if time is not None})
        return {key: min(max(found[key], ends.first), ends.end) if key in found else default(ends)
                for key, ends in queues.items()}
    made = {}
    for key, ends in queues.items():
        offset = position.table.get(key[1], {}).get(_name(key)) if position.by == "offsets" else None
        if position.by in {"earliest", "latest"}:
            offset = EARLIEST if position.by == "earliest" else LATEST
        made[key] = default(ends) if offset is None else {EARLIEST: ends.first, LATEST: ends.end}.get(offset, offset)
    return made


def _name(key: Queue) -> str:
    return f"{key[0]}/{key[2]}"


def shown(key: Queue) -> str:
    """Return a queue as texts name it."""
    return f"{key[1]} queue {_name(key)}"


def _not_read(position: Position, queues: BrokerQueues, name: str) -> list[str]:
    there = {(topic, f"{broker}/{queue_id}") for broker, topic, queue_id in queues}
    return [
        f"{name} names {topic} queue {queue}, which is not read"
        for topic, named in position.table.items() for queue in named if (topic, queue) not in there]


def broker_starts(brokers: Brokers, queues: BrokerQueues, options: ReadOptions, default: str) -> dict[Queue, int]:
    """Return the offset at which each queue starts. Raises ConfigError, and DataLossError for deleted messages."""
    position = options.start if options.start.by else Position(default)
    problems = _not_read(position, queues, "the start")
    found = _position_of(brokers, queues, position, lambda ends: ends.first)
    for key, at in found.items():
        ends = queues[key]
        if at > ends.end:
            problems.append(f"{key[1]} queue {_name(key)}: start {at} is after the end {ends.end}")
        if position.by.startswith("timestamp") and at == ends.end and options.starting_strategy == "error":
            problems.append(
                f"{key[1]} queue {_name(key)} has no message at or after the starting timestamp; "
                "startingOffsetsByTimestampStrategy=latest starts at its end")
        if at < ends.first:
            lost(key, at, ends.first, options)
            found[key] = ends.first
    if problems:
        raise ConfigError(*problems)
    return found


def broker_batch_ranges(brokers: Brokers, options: ReadOptions) -> dict[Queue, tuple[int, int]]:
    """Return the offsets [start, end) of each queue that a batch query reads."""
    queues = brokers.queues(options, acknowledged=True)
    starts = broker_starts(brokers, queues, options, "earliest")
    problems = _not_read(options.end, queues, "the end")
    ends = _position_of(brokers, queues, options.end, lambda one: one.end)
    for key, end in ends.items():
        if end > queues[key].end:
            problems.append(f"{key[1]} queue {_name(key)}: end {end} is after {queues[key].end}")
        if options.end.by == "offsets" and end < starts[key]:
            problems.append(f"{key[1]} queue {_name(key)}: end {end} is before start {starts[key]}")
    if problems:
        raise ConfigError(*problems)
    return {key: (start, max(ends[key], start)) for key, start in starts.items()}


def lost(key: Queue, asked: int, first: int, options: ReadOptions) -> None:
    """Report messages [asked, first) that a broker does not have. Raises DataLossError if that ends the query."""
    broker, topic, queue_id = key
    if options.fail_on_data_loss:
        raise DataLossError(topic, queue_id, asked, first)
    events.DATA_LOST.log(
        _log, store=broker, topic=topic, queue_id=queue_id, from_=asked, until=first, skipped=first - asked)


# -- the text of a checkpoint


def to_text(found: Checkpoint) -> dict[str, Any]:
    """Return a checkpoint as ``{topic: {"BROKER/ID": next}}``, with a member ``#`` as that of a directory."""
    last = {key: list(found.last[key]) for key in found.offsets if key in found.last}
    return {**_nested(found.offsets), _MEMBER: {"version": _VERSION, "brokers": True, "last": _nested(last)}}


def _nested(values: Mapping[Queue, Any]) -> dict[str, Any]:
    made: dict[str, dict[str, Any]] = {}
    for key, value in sorted(values.items(), key=lambda item: (item[0][1], item[0][0], item[0][2])):
        made.setdefault(key[1], {})[_name(key)] = value
    return made


def from_text(found: Mapping[str, Any]) -> Checkpoint:
    """Parse the text of ``to_text``. Raises StoreError for any other text, such as that of a directory."""
    try:
        more = found[_MEMBER]
        if more["brokers"] is not True or not 0 < more["version"] <= _VERSION:
            raise ValueError(more)
        offsets = {key: _number(value) for key, value in _entries(found)}
        last = {key: LastMessage(*map(_number, value)) for key, value in _entries(more["last"])}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StoreError(f"the checkpoint has no offsets of brokers: {found!r}") from error
    return Checkpoint(offsets, last)


def _entries(found: Mapping[str, Any]) -> list[tuple[Queue, Any]]:
    made = []
    for topic, queues in found.items():
        if topic == _MEMBER:
            continue
        for name, value in queues.items():
            broker, _, queue_id = name.rpartition("/")
            if not broker:
                raise ValueError(name)
            made.append(((broker, topic, int(queue_id)), value))
    return made


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(value)
    return value
