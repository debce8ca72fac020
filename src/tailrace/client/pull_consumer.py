"""Pull consumers: who asks decides what is read, and from where."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Self, final

from tailrace.client.routes import MessageQueue, Routes
from tailrace.env.clock import Clock, SystemClock
from tailrace.env.loop_thread import EventLoopThread
from tailrace.errors import ConfigError, CorruptionError, RemotingCommandError
from tailrace.formats import fastjson
from tailrace.formats.commitlog import SysFlag, decode_message, decompress_body
from tailrace.formats.inner_batch import unwrapped
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests.broker_headers import (
    GetAllTopicConfigRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
)
from tailrace.formats.requests.consumer_headers import (
    GetSubscriptionGroupConfigRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from tailrace.formats.requests.custom_header import CustomHeader
from tailrace.formats.requests.message_headers import (
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryMessageRequestHeader,
)
from tailrace.model import BoundaryType, MessageExt
from tailrace.remoting.client import RemotingClient

__all__ = ["AsyncPullConsumer", "PullConsumer", "PullResult"]

_SUSPEND, _SUBSCRIPTION = 2, 4
_STATUS: Final = {
    ResponseCode.SUCCESS: "FOUND",
    ResponseCode.PULL_NOT_FOUND: "NO_NEW_MSG",
    ResponseCode.PULL_RETRY_IMMEDIATELY: "NO_MATCHED_MSG",
    ResponseCode.PULL_OFFSET_MOVED: "OFFSET_ILLEGAL",
}
MAX_BODY: Final = 64 << 20
"""Longest body after decompression."""


@dataclass(slots=True)
class PullResult:
    """``status`` is FOUND, NO_NEW_MSG, NO_MATCHED_MSG or OFFSET_ILLEGAL."""

    status: str
    next_begin_offset: int
    min_offset: int
    max_offset: int
    messages: list[MessageExt]


@final
class AsyncPullConsumer:
    """Reads queues; use it in one event loop, as an asynchronous context manager."""

    def __init__(
        self, *, namesrv: str = "", broker: str = "", group: str = "DEFAULT_CONSUMER",
        timeout_ms: int = 3000, clock: Clock | None = None,
    ) -> None:
        self._group = group
        self._timeout_ms = timeout_ms
        self._broker = broker
        self._remoting = RemotingClient(connect_timeout_ms=timeout_ms)
        self._routes = Routes(self._remoting, clock or SystemClock(), namesrv, broker)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._remoting.close()

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Queues that can be read; raises RemotingCommandError when there is no such topic."""
        return list((await self._routes.of(topic)).read_queues)

    async def pull(
        self, queue: MessageQueue, offset: int, *, max_count: int = 32, tags: str = "*",
        sql: str = "", wait_ms: int = 0,
    ) -> PullResult:
        """Messages of a queue from ``offset``.

        ``tags`` is a tag expression such as ``"new || paid"``; ``sql``, in its place, an expression of
        SQL92 over properties such as ``"price > 100 AND region IN ('eu', 'us')"``, which a broker
        evaluates with enablePropertyFilter=true. ``wait_ms`` is how long the broker may wait for a
        first message. Bodies are decompressed. Raises ValueError if both expressions are given.
        """
        if sql and tags != "*":
            raise ValueError("tags and sql are both given; TAGS is a property in sql, too")
        header = PullMessageRequestHeader(
            self._group, queue.topic, queue.queue_id, offset, max_count,
            sys_flag=_SUBSCRIPTION | (_SUSPEND if wait_ms else 0), commit_offset=0,
            suspend_timeout_millis=wait_ms, sub_version=0, subscription=sql or tags,
            expression_type="SQL92" if sql else "TAG")
        answer = await self._call(
            queue, RequestCode.PULL_MESSAGE, header, ok=tuple(_STATUS), extra_ms=wait_ms)
        wanted = None if tags == "*" else {tag.strip() for tag in tags.split("||")}
        messages = [
            message for message in _decode_all(answer.body)
            if (wanted is None or message.tags in wanted) and message.queue_offset >= offset
        ]
        found = answer.read(PullMessageResponseHeader)
        return PullResult(
            _STATUS[ResponseCode(answer.code)], found.next_begin_offset, found.min_offset,
            found.max_offset, messages)

    async def messages(
        self, topic: str, *, start: str | int = "first", tags: str = "*", sql: str = "",
        follow: bool = True, wait_ms: int = 1000,
    ) -> AsyncIterator[MessageExt]:
        """Messages of all queues of a topic, in order within each queue; ``tags`` and ``sql`` as in `pull`.

        ``start`` is "first", "last" or an offset; without ``follow`` it ends where the queues ended
        when it began: with all that was acknowledged by then, also when the broker of it cannot
        serve it for some ms yet (a Java broker ends where it can).
        """
        positions: dict[MessageQueue, int] = {}
        ends: dict[MessageQueue, int] = {}
        for queue in await self.queues(topic):
            low = await self.min_offset(queue)
            high = await self._max_offset(queue, committed=follow)
            positions[queue] = low if start == "first" else high if start == "last" else int(start)
            ends[queue] = high
        while positions:
            idle = True
            for queue in list(positions):
                if not follow and positions[queue] >= ends[queue]:
                    del positions[queue]
                    continue
                found = await self.pull(queue, positions[queue], tags=tags, sql=sql, wait_ms=(
                    wait_ms if not follow else wait_ms // len(positions) if idle else 0))
                if not follow and found.next_begin_offset <= positions[queue]:
                    del positions[queue]  # what lies before its end cannot be read any more
                else:
                    positions[queue] = found.next_begin_offset
                idle = idle and not found.messages
                for message in found.messages:
                    if follow or message.queue_offset < ends[queue]:
                        yield message

    async def min_offset(self, queue: MessageQueue) -> int:
        """Offset of the first message."""
        answer = await self._call(
            queue, RequestCode.GET_MIN_OFFSET, GetMinOffsetRequestHeader(queue.topic, queue.queue_id))
        return max(0, answer.read(GetMinOffsetResponseHeader).offset)  # -1 of an empty batch queue

    async def max_offset(self, queue: MessageQueue) -> int:
        """Offset that the next message will get."""
        return await self._max_offset(queue, committed=True)

    async def _max_offset(self, queue: MessageQueue, *, committed: bool) -> int:
        answer = await self._call(
            queue, RequestCode.GET_MAX_OFFSET,
            GetMaxOffsetRequestHeader(queue.topic, queue.queue_id, committed))
        return answer.read(GetMaxOffsetResponseHeader).offset

    async def offset_by_time(
        self, queue: MessageQueue, timestamp_ms: int, boundary: BoundaryType = BoundaryType.LOWER
    ) -> int:
        """Offset of the first message stored at or after a time."""
        answer = await self._call(
            queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
            SearchOffsetRequestHeader(
                queue.topic, queue.queue_id, timestamp_ms, boundary_type=boundary.value))
        return answer.read(SearchOffsetResponseHeader).offset

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's offset of a queue, None when it has none."""
        answer = await self._call(
            queue, RequestCode.QUERY_CONSUMER_OFFSET,
            QueryConsumerOffsetRequestHeader(
                self._group, queue.topic, queue.queue_id, set_zero_if_not_found=False),
            ok=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND))
        if answer.code != ResponseCode.SUCCESS:
            return None
        return answer.read(QueryConsumerOffsetResponseHeader).offset

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Set the group's offset of a queue; the broker writes it to disk every few seconds.

        A broker takes offsets of known groups only. A group without a pull so far is created first,
        if the broker allows it. Raises RemotingCommandError otherwise.
        """
        header = UpdateConsumerOffsetRequestHeader(self._group, queue.topic, queue.queue_id, offset)
        unknown = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        answer = await self._call(
            queue, RequestCode.UPDATE_CONSUMER_OFFSET, header, ok=(ResponseCode.SUCCESS, unknown))
        if answer.code == unknown:
            await self._call(
                queue, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
                GetSubscriptionGroupConfigRequestHeader(self._group))
            await self._call(queue, RequestCode.UPDATE_CONSUMER_OFFSET, header)

    async def query(
        self, topic: str, key: str, *, max_count: int = 32
    ) -> list[MessageExt]:
        """Messages of a topic with a key or unique key, from every broker that has the topic."""
        route = await self._routes.of(topic)
        found: list[MessageExt] = []
        for name in route.addresses:
            answer = await self._call(
                MessageQueue(topic, name, 0), RequestCode.QUERY_MESSAGE,
                QueryMessageRequestHeader(
                    topic, key, max_count, begin_timestamp=0, end_timestamp=(1 << 63) - 1),
                ok=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND))
            found += _decode_all(answer.body)
        return [m for m in found if key in m.keys or key == m.unique_key]

    async def topic_configs(self) -> list[dict[str, Any]]:
        """Topics of the broker that was named; needs ``broker``."""
        if not self._broker:
            raise ConfigError("topics can be listed of a broker, not of a name server")
        answer = await self._remoting.invoke(
            self._broker, RequestCode.GET_ALL_TOPIC_CONFIG,
            GetAllTopicConfigRequestHeader(topic_seq=0).to_ext(),
            timeout_ms=self._timeout_ms)
        if answer.code != ResponseCode.SUCCESS:
            raise RemotingCommandError(answer.code, answer.remark or "", self._broker)
        table = fastjson.loads(answer.body)["topicConfigTable"]
        return [table[name] for name in sorted(table)]

    async def runtime_info(self, topic: str) -> dict[str, dict[str, str]]:
        """Figures of every broker that has a topic, as its administration tools see them."""
        found = {}
        for name, address in (await self._routes.of(topic)).addresses.items():
            answer = await self._remoting.invoke(
                address, RequestCode.GET_BROKER_RUNTIME_INFO, {}, timeout_ms=self._timeout_ms)
            if answer.code != ResponseCode.SUCCESS:
                raise RemotingCommandError(answer.code, answer.remark or "", address)
            found[name] = dict(fastjson.loads(answer.body)["table"])
        return found

    async def _call(
        self, queue: MessageQueue, code: int, header: CustomHeader, *,
        ok: tuple[int, ...] = (ResponseCode.SUCCESS,), extra_ms: int = 0,
    ) -> RemotingCommand:
        route = await self._routes.of(queue.topic)
        address = route.addresses.get(queue.broker_name)
        if address is None:
            raise RemotingCommandError(
                ResponseCode.TOPIC_NOT_EXIST, f"no broker {queue.broker_name} has {queue.topic}")
        answer = await self._remoting.invoke(
            address, code, header.to_ext(), timeout_ms=self._timeout_ms + extra_ms)
        if answer.code not in ok:
            raise RemotingCommandError(answer.code, answer.remark or "", address)
        return answer


def _decode_all(body: bytes) -> list[MessageExt]:
    found: list[MessageExt] = []
    at = 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        if size <= 0:
            raise CorruptionError("a pull answer holds no record where one should be", file_pos=at)
        message = decode_message(body[at : at + size])
        if message.sys_flag & SysFlag.COMPRESSED:
            message = replace(message, body=decompress_body(message.body, message.sys_flag, MAX_BODY))
        found += unwrapped(message)
        at += size
    return found


@final
class PullConsumer:
    """The blocking face of ``AsyncPullConsumer``; any thread may call it."""

    def __init__(self, **options: Any) -> None:
        self._loop = EventLoopThread("tailrace-consumer")
        try:
            self._consumer = self._loop.run(_made(options))
        except BaseException:
            self._loop.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and the thread; a second call does nothing."""
        if not self._loop.closed:
            self._loop.run(self._consumer.close())
            self._loop.close()

    def queues(self, topic: str) -> list[MessageQueue]:
        """As ``AsyncPullConsumer.queues``."""
        return self._loop.run(self._consumer.queues(topic))

    def pull(
        self, queue: MessageQueue, offset: int, *, max_count: int = 32, tags: str = "*",
        sql: str = "", wait_ms: int = 0,
    ) -> PullResult:
        """As ``AsyncPullConsumer.pull``."""
        return self._loop.run(self._consumer.pull(
            queue, offset, max_count=max_count, tags=tags, sql=sql, wait_ms=wait_ms))

    def messages(
        self, topic: str, *, start: str | int = "first", tags: str = "*", sql: str = "",
        follow: bool = True,
    ) -> Iterator[MessageExt]:
        """As ``AsyncPullConsumer.messages``."""
        source = self._consumer.messages(topic, start=start, tags=tags, sql=sql, follow=follow)
        while True:
            try:
                yield self._loop.run(_next(source))
            except StopAsyncIteration:
                return

    def min_offset(self, queue: MessageQueue) -> int:
        """As ``AsyncPullConsumer.min_offset``."""
        return self._loop.run(self._consumer.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        """As ``AsyncPullConsumer.max_offset``."""
        return self._loop.run(self._consumer.max_offset(queue))

    def offset_by_time(
        self, queue: MessageQueue, timestamp_ms: int, boundary: BoundaryType = BoundaryType.LOWER
    ) -> int:
        """As ``AsyncPullConsumer.offset_by_time``."""
        return self._loop.run(self._consumer.offset_by_time(queue, timestamp_ms, boundary))

    def committed(self, queue: MessageQueue) -> int | None:
        """As ``AsyncPullConsumer.committed``."""
        return self._loop.run(self._consumer.committed(queue))

    def commit(self, queue: MessageQueue, offset: int) -> None:
        """As ``AsyncPullConsumer.commit``."""
        self._loop.run(self._consumer.commit(queue, offset))

    def query(self, topic: str, key: str, *, max_count: int = 32) -> list[MessageExt]:
        """As ``AsyncPullConsumer.query``."""
        return self._loop.run(self._consumer.query(topic, key, max_count=max_count))

    def runtime_info(self, topic: str) -> dict[str, dict[str, str]]:
        """As ``AsyncPullConsumer.runtime_info``."""
        return self._loop.run(self._consumer.runtime_info(topic))

    def topic_configs(self) -> list[dict[str, Any]]:
        """As ``AsyncPullConsumer.topic_configs``."""
        return self._loop.run(self._consumer.topic_configs())


async def _made(options: dict[str, Any]) -> AsyncPullConsumer:
    return AsyncPullConsumer(**options)


async def _next(source: AsyncIterator[MessageExt]) -> MessageExt:
    return await anext(source)
