"""Pull consumers: the program decides what is read, and from where."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, Self, final

from tailrace import events
from tailrace.auth.signature import Credentials
from tailrace.client.allocation import Strategy, strategy_of
from tailrace.client.arguments import (
    Duration,
    Time,
    check_group,
    in_ms,
    in_s,
    in_time_ms,
    not_above_zero,
)
from tailrace.client.assigned_queues import AssignedQueues, Limits
from tailrace.client.blocking import arguments_of, blocking
from tailrace.client.broker_calls import BrokerCalls, GroupCalls, PullResult, decode_all
from tailrace.client.credentials import credentials_of
from tailrace.client.failures import Failures
from tailrace.client.group_member import GroupMember, MemberSettings, Start
from tailrace.client.instance import InstanceShare, Target, unreached
from tailrace.client.offset_store import BrokerOffsets
from tailrace.client.process_queue import ProcessQueue
from tailrace.client.routes import MessageQueue
from tailrace.client.subscription import Subscription, Topics, subscriptions
from tailrace.env.clock import Clock, SystemClock
from tailrace.env.loop_thread import EventLoopThread
from tailrace.env.supervision import supervised
from tailrace.errors import ConfigError, RemotingError
from tailrace.formats import fastjson
from tailrace.formats.remoting import RequestCode, ResponseCode
from tailrace.formats.requests.message_headers import QueryMessageRequestHeader
from tailrace.logs import get_logger
from tailrace.model import BoundaryType, MessageExt
from tailrace.properties import parse_properties
from tailrace.remoting.tls import TlsOptions, options_of

__all__ = ["AsyncPullConsumer", "PullConsumer", "PullResult"]

_log = get_logger(__name__)

Begin = str | int | Mapping[MessageQueue, int]
NEW_QUEUES_S: Final = 30.0
"""Seconds between checks for new queues of a topic that is followed."""


@final
class AsyncPullConsumer:
    """Reads queues; use it in one event loop, as an asynchronous context manager.

    `messages` reads a topic. `subscribe` or `assign`, then `poll`, read queues that are shared with other members
    of the group, or chosen ones. `pull` reads one queue once.
    """

    def __init__(
        self, namesrv: str = "", *, broker: str = "", group: str = "DEFAULT_CONSUMER",
        timeout_ms: Duration = 3000, auto_commit: bool = True, commit_interval_s: Duration = 1.0,
        max_cached_messages: int = 1_000, max_cached_bytes: int = 64 << 20,
        tls: bool | TlsOptions = False, credentials: Credentials | str | None = None, clock: Clock | None = None,
    ) -> None:
        """``auto_commit`` and the arguments after it are for `poll`; docs/how-to/programs/consume.md describes them.

        ``credentials`` are those of a user, or the path of a file with them; without them those of the environment.
        """
        timeout_ms, commit_interval_s = round(in_ms("timeout_ms", timeout_ms)), in_s(
            "commit_interval_s", commit_interval_s)
        if problems := not_above_zero(
            timeout_ms=timeout_ms, commit_interval_s=commit_interval_s, max_cached_messages=max_cached_messages,
            max_cached_bytes=max_cached_bytes):
            raise ConfigError(*problems)
        check_group(group)
        self._group = group
        self._timeout_ms = timeout_ms
        self._auto_commit = auto_commit
        self._commit_interval_s = commit_interval_s
        self._limits = Limits(max_cached_messages, max_cached_bytes)
        self._clock = clock or SystemClock()
        self._target = Target(namesrv, broker, timeout_ms, clock, options_of(tls), credentials_of(credentials))
        self._share = InstanceShare(self._target)
        self._reading: _Reading | None = None
        self._followed_now: set[_Reading] = set()
        self._group_calls = GroupCalls(self._share, self._group)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        if kind is not None and self._reading is not None:
            self._reading.handed.clear()  # the program has failed, so its messages are delivered again
        await self.close()

    async def close(self) -> None:
        """Commit what `poll` has returned if ``auto_commit``, leave the group, and close the connections."""
        await self._stop_reading()
        for reading in list(self._followed_now):
            await reading.close()
        await self._share.close()

    @property
    def _calls(self) -> BrokerCalls:
        return self._group_calls.now

    # --- queues that are subscribed to or assigned

    async def subscribe(
        self, topics: Topics, *, start: str = "first", strategy: Strategy | str = "AVG",
    ) -> None:
        """Join the group and share the queues of topics with its other members; `poll` reads them.

        ``topics`` is a topic, several, or topics with a tag expression or `Sql` each. A queue is read from the
        committed offset, or without one from ``start``: "first" or "last". Replaces an earlier `subscribe`
        or `assign`.
        """
        wanted = {one.topic: one for one in subscriptions(topics)}
        for one in wanted.values():
            one.version = self._clock.now_ms()
        if not wanted:
            raise ConfigError("subscribe needs a topic: write subscribe('orders')")
        if start not in {"first", "last"}:
            raise ConfigError(f"start={start!r} is neither 'first' nor 'last'")
        share = strategy_of(strategy)
        await self._stop_reading()
        reading = self._reading = _Reading(self, wanted, InstanceShare(self._target, (self._group, True)))
        try:
            await reading.join(Start(start), share)
        except BaseException:
            await self._stop_reading()
            raise

    async def assign(self, queues: Iterable[MessageQueue], *, start: str | int = "first", tags: str = "*") -> None:
        """Read these queues with `poll`, independent of other consumers.

        A queue is read from the committed offset, or without one from ``start``: "first", "last" or an offset.
        Replaces an earlier `subscribe` or `assign`.
        """
        if isinstance(queues, MessageQueue | str):
            raise TypeError(f"queues is a list of MessageQueue; write assign([...]), not {queues!r}")
        queues = list(queues)
        wanted = {queue.topic: Subscription.of(queue.topic, tags) for queue in queues}
        await self._stop_reading()
        committed = [await self.committed(queue) for queue in queues]
        offsets = [await self._offset(queue, start) if at is None else at
                   for queue, at in zip(queues, committed, strict=True)]
        reading = self._reading = _Reading(self, wanted, None)
        for queue, offset, written in zip(queues, offsets, committed, strict=True):
            reading.queues.add(queue, offset, written=written)
        reading.commit_regularly()

    async def poll(self, max_count: int = 32, timeout_ms: Duration = 1000) -> list[MessageExt]:
        """Return messages, waiting for the first one; an empty list if none came in time.

        The messages of the previous call count as consumed now; only they are committed.
        """
        reading = self._running()
        reading.consumed()
        found: list[MessageExt] = []
        try:
            async with asyncio.timeout(in_ms("timeout_ms", timeout_ms) / 1000):
                taken = await reading.queues.take()
        except TimeoutError:
            return found
        while taken is not None:
            reading.handed.append(taken)
            found.append(taken[1])
            if len(found) >= max_count:
                break
            taken = reading.queues.take_now()
        return found

    async def assignment(self) -> list[MessageQueue]:
        """Return the queues that `poll` reads."""
        return sorted(one.queue for one in self._running().queues.all() if not one.dropped)

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue `poll` at an offset of a queue. Raises ValueError if it does not read the queue."""
        reading = self._running()
        one = reading.queues.assigned(queue)
        reading.consumed()
        await reading.queues.restart(one, offset)

    async def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Stop `poll` from returning messages of these queues; without an argument, of all queues."""
        self._running().queues.pause(queues)

    async def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Undo `pause`."""
        self._running().queues.resume(queues)

    async def commit(self, queue: MessageQueue | None = None, offset: int | None = None) -> None:
        """Set the group's offset of a queue; without arguments, commit all that `poll` has returned.

        The broker writes offsets to disk every few seconds. It accepts only offsets of groups that it knows. A new
        group is created first, if the broker allows that; otherwise RemotingCommandError is raised.
        """
        if (queue is None) != (offset is None):
            raise ValueError("commit takes a queue and its offset, or neither")
        if queue is not None and offset is not None:
            await self._calls.commit(queue, offset)
            return
        reading = self._running()
        reading.consumed()
        await reading.queues.commit_or_raise()

    def _running(self) -> _Reading:
        if self._share.closed:
            raise RemotingError("the client is closed")
        if self._reading is None:
            raise RemotingError("nothing is read yet; call subscribe or assign first")
        return self._reading

    async def _stop_reading(self) -> None:
        if self._reading is not None:
            reading, self._reading = self._reading, None
            await reading.close()

    # --- one queue

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that can be read. Raises RemotingCommandError if the topic does not exist."""
        try:
            return await self._calls.queues(topic)
        except RemotingError as error:
            raise await self._calls.instance.routes.explained(topic, error) from None

    async def pull(
        self, queue: MessageQueue, offset: int, *, max_count: int = 32, tags: str = "*",
        sql: str = "", wait_ms: Duration = 0,
    ) -> PullResult:
        """Pull messages of a queue, starting at ``offset``.

        ``tags`` is a tag expression such as ``"new || paid"``; ``sql``, in its place, an expression of
        SQL92 over properties such as ``"price > 100 AND region IN ('eu', 'us')"``, which a broker
        evaluates with enablePropertyFilter=true. ``wait_ms`` is how long the broker may wait for a
        first message. Bodies are decompressed. Raises ValueError if both expressions are given.
        """
        return await self._calls.pull(
            Subscription.of(queue.topic, tags, sql), queue, offset, max_count=max_count,
            wait_ms=round(in_ms("wait_ms", wait_ms)))

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the first message."""
        return await self._calls.min_offset(queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message will get."""
        return await self._calls.max_offset(queue)

    async def offset_by_time(
        self, queue: MessageQueue, timestamp_ms: Time, boundary: BoundaryType = BoundaryType.LOWER
    ) -> int:
        """Return the offset of the first message stored at or after a time."""
        return await self._calls.offset_by_time(queue, in_time_ms("timestamp_ms", timestamp_ms), boundary)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's offset of a queue; None if it has no offset."""
        return await self._calls.committed(queue)

    async def _offset(self, queue: MessageQueue, start: Begin, *, end: int | None = None) -> int:
        """Return the offset that ``start`` means."""
        if isinstance(start, Mapping):
            start = start.get(queue, "first")
        if start == "committed":
            found = await self.committed(queue)
            start = "first" if found is None else found
        if start == "first":
            return await self.min_offset(queue)
        if start == "last":
            return await self.max_offset(queue) if end is None else end
        if isinstance(start, str) and not start.isdecimal():
            raise ValueError(f"start={start!r} is neither 'committed', 'first', 'last' nor an offset")
        return int(start)

    # --- a topic

    def messages(
        self, topic: str, *, start: Begin = "committed", tags: str = "*", sql: str = "",
        follow: bool = True, commit: bool = False, wait_ms: Duration = 1000,
    ) -> AsyncGenerator[MessageExt, None]:
        """Yield the messages of all queues of a topic, in order within each queue; ``tags`` and ``sql`` as in `pull`.

        ``start`` is "committed" (the group's committed offset of each queue; without one its first message),
        "first", "last", an offset, or an offset for each queue. With ``commit`` a message is committed when the next
        one is requested.

        With ``follow`` all queues are polled together, and lost connections are opened again. Without it the
        iterator ends at the ends that the queues had when it began. Every message that was acknowledged by then is
        included, even if its broker can serve it only some ms later (a Java broker leaves such a message out);
        ``wait_ms`` limits the wait for it.
        """
        # One generator: an event loop that ends closes all of them together, one inside another one perhaps twice.
        wanted = Subscription.of(topic, tags, sql)
        if follow:
            return self._followed(wanted, start, commit=commit)
        return self._to_the_end(wanted, start, round(in_ms("wait_ms", wait_ms)), commit=commit)

    async def _followed(
        self, wanted: Subscription, start: Begin, *, commit: bool
    ) -> AsyncGenerator[MessageExt, None]:
        found = await self.queues(wanted.topic)
        if wanted.is_sql:  # a pull that is refused because filters are off would be tried again without end
            await self._calls.check_filter(wanted)
        offsets = await asyncio.gather(*(self._offset(queue, start) for queue in found))
        reading = _Reading(self, {wanted.topic: wanted}, None, auto_commit=commit)
        self._followed_now.add(reading)
        try:
            for queue, offset in zip(found, offsets, strict=True):
                reading.queues.add(queue, offset, written=None if commit else offset)
            reading.commit_regularly()
            reading.add_new_queues(wanted.topic)
            while (taken := await reading.queues.take()) is not None:
                yield taken[1]
                reading.queues.done(*taken)
        finally:
            await reading.close()
            self._followed_now.discard(reading)

    async def _to_the_end(
        self, wanted: Subscription, start: Begin, wait_ms: int, *, commit: bool
    ) -> AsyncGenerator[MessageExt, None]:
        places = []
        for queue in await self.queues(wanted.topic):
            end = await self._calls.max_offset(queue, committed=False)
            places.append((queue, await self._offset(queue, start, end=end), end))
        for queue, begin, end in places:
            at = begin
            while at < end:
                found = await self._calls.pull(wanted, queue, at, max_count=32, wait_ms=wait_ms)
                for message in found.messages:
                    if message.queue_offset < end:
                        yield message
                if found.next_begin_offset <= at:
                    break  # the messages before its end can no longer be read
                at = found.next_begin_offset
                if commit:
                    await self.commit(queue, min(at, end))

    async def query(
        self, topic: str, key: str, *, max_count: int = 32
    ) -> list[MessageExt]:
        """Return the messages of a topic with a key or unique key, from every broker that has the topic."""
        route = await self._share.instance.routes.of(topic)
        found: list[MessageExt] = []
        for name in route.addresses:
            answer = await self._calls.call(
                MessageQueue(topic, name, 0), RequestCode.QUERY_MESSAGE,
                QueryMessageRequestHeader(
                    topic, key, max_count, begin_timestamp=0, end_timestamp=(1 << 63) - 1),
                ok=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND))
            found += decode_all(answer.body)
        return [m for m in found if key in m.keys or key == m.unique_key]

    async def runtime_info(self, topic: str) -> dict[str, dict[str, str]]:
        """Return the figures of every broker that has a topic, as administration tools read them."""
        answers = await self._of_brokers(topic, RequestCode.GET_BROKER_RUNTIME_INFO)
        return {name: dict(fastjson.loads(body)["table"]) for name, body in answers.items()}

    async def broker_settings(self, topic: str) -> dict[str, dict[str, str]]:
        """Return the settings of every broker that has a topic, or creates it in a send, by the broker's name."""
        answers = await self._of_brokers(topic, RequestCode.GET_BROKER_CONFIG, for_write=True)
        return {name: parse_properties(body.decode(errors="replace")) for name, body in answers.items()}

    async def _of_brokers(self, topic: str, code: RequestCode, *, for_write: bool = False) -> dict[str, bytes]:
        instance = self._share.instance
        return {
            name: (await instance.remoting.ask(address, code, timeout_ms=self._timeout_ms)).body
            for name, address in (await instance.routes.of(topic, for_write=for_write)).addresses.items()}


@final
class _Reading:
    """The queues that are read, and the messages that the program has."""

    def __init__(
        self, consumer: AsyncPullConsumer, wanted: dict[str, Subscription], share: InstanceShare | None, *,
        auto_commit: bool | None = None,
    ) -> None:
        self._share = share
        self._auto_commit = consumer._auto_commit if auto_commit is None else auto_commit
        self._interval_s = consumer._commit_interval_s
        self._wanted = wanted
        self._calls = BrokerCalls(share.instance, consumer._group) if share else consumer._calls
        self._offsets = BrokerOffsets(self._calls)
        self._member: GroupMember | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._topic_changed = asyncio.Event()
        self._queues_fail = False
        self.handed: list[tuple[ProcessQueue, MessageExt]] = []
        """Messages that the last `poll` has returned."""
        self._failures = Failures(None, consumer._group)
        self.queues = AssignedQueues(
            self._calls, self._offsets, wanted, consumer._limits, consumer._clock,
            auto_commit=self._auto_commit, raise_refusals=True, failures=self._failures)

    async def join(self, start: Start, strategy: Strategy) -> None:
        for one in self._wanted.values():
            if one.is_sql:
                await self._calls.check_filter(one)
        self._member = GroupMember(self._calls, self.queues, self._offsets, self._wanted, MemberSettings(
            strategy, start, pulls_itself=True, auto_commit=self._auto_commit, commit_interval_s=self._interval_s), {},
            self._failures)
        await self._member.start()

    def commit_regularly(self) -> None:
        if self._auto_commit:
            self._tasks.append(asyncio.create_task(
                supervised("commits", self.queues.commit_and_report, self._interval_s)))

    def add_new_queues(self, topic: str) -> None:
        self.queues.topic_changed = self._topic_changed.set
        self._tasks.append(asyncio.create_task(supervised("new queues", partial(self._look_for_queues, topic))))

    async def _look_for_queues(self, topic: str) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(NEW_QUEUES_S):
                await self._topic_changed.wait()
        self._topic_changed.clear()
        try:
            for queue in await self._calls.queues(topic):
                if self.queues.find(queue) is None:
                    self.queues.add(queue, await self._calls.min_offset(queue), written=None)
            self._queues_fail = False
        except RemotingError as error:  # the pulls of the queues that are known log a server that does not answer
            if not unreached(error) and not self._queues_fail:
                self._queues_fail = True
                events.QUEUES_OF_A_TOPIC_ARE_NOT_KNOWN.log(_log, group=self._calls.group, topic=topic, reason=error)

    def consumed(self) -> None:
        """Count the messages that the program has as consumed."""
        for one, message in self.handed:
            self.queues.done(one, message)
        self.handed.clear()

    async def close(self) -> None:
        self.consumed()
        self.queues.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._member is not None:
            await self._member.stop()
            await self._member.leave()
        elif self._auto_commit:
            await self.queues.commit_and_report()
        if self._share is not None:
            await self._share.close()


@final
class PullConsumer:
    """Reads queues with blocking methods, which any thread may call. ``AsyncPullConsumer`` describes them."""

    @arguments_of(AsyncPullConsumer.__init__)
    def __init__(self, *args: Any, **options: Any) -> None:
        self._awaited = AsyncPullConsumer(*args, **options)
        self._loop = EventLoopThread()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if not self._loop.closed:
            self._loop.run(self._awaited.__aexit__(*error))
            self._loop.close()

    def close(self) -> None:
        """As ``AsyncPullConsumer.close``; a second call does nothing."""
        if not self._loop.closed:
            self._loop.run(self._awaited.close())
            self._loop.close()

    subscribe = blocking(AsyncPullConsumer.subscribe)
    assign = blocking(AsyncPullConsumer.assign)
    poll = blocking(AsyncPullConsumer.poll)
    assignment = blocking(AsyncPullConsumer.assignment)
    seek = blocking(AsyncPullConsumer.seek)
    pause = blocking(AsyncPullConsumer.pause)
    resume = blocking(AsyncPullConsumer.resume)
    queues = blocking(AsyncPullConsumer.queues)
    pull = blocking(AsyncPullConsumer.pull)
    min_offset = blocking(AsyncPullConsumer.min_offset)
    max_offset = blocking(AsyncPullConsumer.max_offset)
    offset_by_time = blocking(AsyncPullConsumer.offset_by_time)
    committed = blocking(AsyncPullConsumer.committed)
    commit = blocking(AsyncPullConsumer.commit)
    query = blocking(AsyncPullConsumer.query)
    runtime_info = blocking(AsyncPullConsumer.runtime_info)
    broker_settings = blocking(AsyncPullConsumer.broker_settings)

    def messages(
        self, topic: str, *, start: Begin = "committed", tags: str = "*", sql: str = "",
        follow: bool = True, commit: bool = False, wait_ms: Duration = 1000,
    ) -> Iterator[MessageExt]:
        """As ``AsyncPullConsumer.messages``."""
        source = self._awaited.messages(
            topic, start=start, tags=tags, sql=sql, follow=follow, commit=commit, wait_ms=wait_ms)
        while True:
            try:
                message = self._loop.run(_next(source))
            except StopAsyncIteration:
                return
            try:
                yield message
            except GeneratorExit:
                with contextlib.suppress(RuntimeError, RemotingError):  # thrown away on the loop's own thread
                    self._loop.run(source.aclose())
                raise


async def _next(source: AsyncIterator[MessageExt]) -> MessageExt:
    return await anext(source)
