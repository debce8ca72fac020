"""Requests of admin tools about the running broker and its clients (AdminBrokerProcessor, second half)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from itertools import zip_longest
from typing import Any, Final, final

from tailrace import __version__
from tailrace.auth.signature import without_proof
from tailrace.broker.clients.client_manager import ClientInfo, ConnectedClients
from tailrace.broker.messages.records import Records
from tailrace.broker.statistics.broker_stats import BrokerStatsManager
from tailrace.broker.statistics.traffic import Traffic
from tailrace.config import BrokerConfig
from tailrace.env.clock import Clock
from tailrace.errors import (
    CorruptionError,
    RefusalError,
    RemotingConnectError,
    RemotingTimeoutError,
)
from tailrace.formats import fastjson
from tailrace.formats.commitlog import decode_message, tags_code
from tailrace.formats.filenames import CONSUMEQUEUE
from tailrace.formats.names import SCHEDULE_TOPIC
from tailrace.formats.remoting import MQ_VERSION, RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests.broker_headers import (
    QueryConsumeQueueRequestHeader,
)
from tailrace.formats.requests.consumer_headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetProducerConnectionListRequestHeader,
)
from tailrace.formats.requests.table import Action
from tailrace.ha.offset_caps import WAITS, OffsetCaps
from tailrace.ha.replicas import Replicas
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.message_store import MessageStore
from tailrace.remoting import Channel, RemotingServer
from tailrace.requests.executors import Executors
from tailrace.requests.processor import RequestProcessor, answers, serves
from tailrace.requests.reply import Reply, ReplyTasks, as_it_is
from tailrace.requests.worker import RequestWorker
from tailrace.spellings import size_text
from tailrace.store.append import PUT_LIMITS_MS
from tailrace.store.log_paths import log_paths
from tailrace.store.retention.disk_check import measure
from tailrace.store.retention.disk_state import PathUsage

__all__ = ["AdminProcessor", "RuntimeInfo"]

FORWARD_TIMEOUT_MS: Final = 10_000
FORWARDS_MAX: Final = 1_000
"""Number of forwarded requests that may wait for their consumers."""
CQ_UNITS_MAX: Final = 1_000
CQ_BYTES_MAX: Final = 16 << 20
"""Bytes of the messages that are read for the units of one answer."""


@final
class AdminProcessor(RequestProcessor):
    """Returns figures of the broker and its connections, and forwards requests to consumers."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, store: MessageStore, config: BrokerConfig, executors: Executors,
        worker: RequestWorker, offsets: ConsumerOffsetManager, clients: ConnectedClients, replicas: Replicas,
        records: Records, runtime: RuntimeInfo,
    ) -> None:
        self._store, self._config, self._worker, self._offsets = store, config, worker, offsets
        self._clients, self._replicas, self._records = clients, replicas, records
        self._topics = store.topics
        self._runtime = runtime
        self._tasks = ReplyTasks(loop)
        # A thread of its own, because a sync may take seconds on a busy disk.
        self.syncs = RequestWorker(loop, executors.worker("sync"))

    def register(self, server: RemotingServer) -> None:
        """Have a server pass the requests to their methods; the second one may read from the disk first."""
        super().register(server)
        server.register(self.syncs.in_thread(self.sync_store), RequestCode.SYNC_STORE)
        server.register(self._records.first(self.consume_directly, _place), RequestCode.CONSUME_MESSAGE_DIRECTLY)

    @answers(RequestCode.GET_BROKER_RUNTIME_INFO, in_thread=True)
    def runtime_info(self) -> dict[str, Any]:
        """Return figures of the running broker: request 28."""
        return {"table": self._runtime.table()}

    def sync_store(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Sync the log for readers of the directory: a request of Tailrace's own."""
        if not self._store.inner.sync_for_readers():
            raise RefusalError(ResponseCode.SYSTEM_BUSY, "the queues do not follow the log")
        return request.answer()

    @serves(RequestCode.GET_ALL_CONSUMER_OFFSET, in_thread=True)
    def all_consumer_offsets(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return the content of ``consumerOffset.json``, for a slave as far as its log: request 43."""
        table, caps = self._offsets.to_json(), self._caps(channel, request)
        return request.answer(body=fastjson.dumps_large(table if caps is None else caps.apply(table)))

    @serves(RequestCode.GET_ALL_DELAY_OFFSET)
    def all_delay_offsets(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return the content of ``delayOffset.json``, for a slave as far as its log: request 45."""
        offsets, caps = self._store.timer_services.delay_offsets, self._caps(channel, request)
        return request.answer(body=offsets.encode(
            lambda level, offset: offset if caps is None else caps.capped(SCHEDULE_TOPIC, level - 1, offset)))

    def _caps(self, channel: Channel, request: RemotingCommand) -> OffsetCaps | None:
        """Return what the slave that asks may copy; None for all, and without a slave at the peer. Raises RefusalError.
        """
        if WAITS in request.ext or not self._replicas.had_slaves(channel.peer_ip):
            return None
        position = self._replicas.acknowledged_by(channel.peer_ip)
        if position is None:
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR, f"a slave at {channel.peer_ip} is not connected to the HA port, so it is "
                "not known which messages it has; a copy after it has connected gets the offsets")
        inner = self._store.inner
        return None if position >= inner.commit_log.max_offset else OffsetCaps(inner, position)

    @answers(RequestCode.GET_CONSUMER_CONNECTION_LIST)
    def consumer_connections(self, header: GetConsumerConnectionListRequestHeader) -> dict[str, Any]:
        """Return the members of a consumer group: request 203."""
        group = header.consumer_group
        info = self._clients.consumers.find(group)
        if info is None:
            raise RefusalError(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{group}] not online")
        return {
            "connectionSet": [m.to_json() for m in info.members.values()],
            "consumeFromWhere": info.consume_from_where,
            "consumeType": info.consume_type,
            "messageModel": info.message_model,
            "subscriptionTable": {t: s.to_json() for t, s in info.subscriptions.items()},
        }

    @answers(RequestCode.GET_PRODUCER_CONNECTION_LIST)
    def producer_connections(self, header: GetProducerConnectionListRequestHeader) -> dict[str, Any]:
        """Return the members of a producer group: request 204."""
        group = header.producer_group
        members = self._clients.producers.members(group)
        if not members:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, f"the producer group[{group}] not exist")
        return {"connectionSet": [m.to_json() for m in members]}

    @answers(RequestCode.GET_ALL_PRODUCER_INFO, in_thread=True)
    def all_producers(self) -> dict[str, Any]:
        """Return all producers: request 328."""
        return {"data": {
            group: [
                {
                    "clientId": m.client_id, "language": m.to_json()["language"],
                    "lastUpdateTimestamp": m.last_update_ms, "remoteIP": f"/{m.channel.peer}",
                    "version": m.version,
                }
                for m in members
            ]
            for group, members in self._clients.producers.groups().items()
        }}

    # --- forwarded to a consumer

    @serves(RequestCode.GET_CONSUMER_RUNNING_INFO)
    def consumer_running_info(self, channel: Channel, request: RemotingCommand) -> None:
        """Forward a question about a consumer to that consumer: request 307."""
        header = request.read(GetConsumerRunningInfoRequestHeader)
        self._forward(
            channel, request, header.consumer_group, header.client_id, without_proof(request.ext), b"")

    def consume_directly(self, channel: Channel, request: RemotingCommand) -> None:
        """Forward a message to a consumer, which consumes it: request 309."""
        header = request.read(ConsumeMessageDirectlyResultRequestHeader)
        ext = {"brokerName": self._config.broker_name, **without_proof(request.ext)}
        record = None
        if msg_id := header.msg_id:
            # The low 16 hex digits of an offset message id are the physical offset.
            try:
                record = self._store.select_record(int(msg_id[-16:], 16))
            except ValueError:
                record = None
        if self._records.are_checked:
            message = None
            with contextlib.suppress(CorruptionError):
                message = None if record is None else decode_message(bytes(record))
            self._records.require_record(channel, request, message, Action.SUB)
        if record is None:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, f"no message with the id {msg_id}")
        self._forward(
            channel, request, header.consumer_group, header.client_id or "", ext, bytes(record))

    def _forward(
        self, channel: Channel, request: RemotingCommand, group: str, client_id: str,
        ext: dict[str, str], body: bytes,
    ) -> None:
        """Forward a request to a consumer, without the proof of its user; the consumer's answer is sent back later."""
        client = self._clients.consumers.find_client(group, client_id)
        if client is None:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
        if len(self._tasks) >= FORWARDS_MAX:
            raise RefusalError(
                ResponseCode.SYSTEM_BUSY, f"{FORWARDS_MAX} requests wait for consumers already")
        self._tasks.start(Reply(channel, request), self._forwarded(
            request, group, client, RemotingCommand(request.code, ext, body, version=MQ_VERSION)), as_it_is)

    async def _forwarded(
        self, request: RemotingCommand, group: str, client: ClientInfo, forwarded: RemotingCommand,
    ) -> RemotingCommand:
        try:
            found = await client.channel.request(forwarded, FORWARD_TIMEOUT_MS)
        except RemotingTimeoutError:
            return request.answer(
                ResponseCode.CONSUME_MSG_TIMEOUT,
                f"consumer <{group}> <{client.client_id}> did not answer in time",
            )
        except RemotingConnectError:
            return request.answer(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer <{group}> <{client.client_id}> not online",
            )
        return request.answer(found.code, found.remark, found.ext, found.body)

    @answers(RequestCode.QUERY_CONSUME_QUEUE, in_thread=True)
    def query_consume_queue(self, header: QueryConsumeQueueRequestHeader) -> dict[str, Any]:
        """Return units of a queue: request 321."""
        store = self._store
        topic, queue_id = header.topic or "", header.queue_id
        config = self._topics.select(topic)
        if config is None or not 0 <= queue_id < max(config.read_queue_nums, config.write_queue_nums):
            raise RefusalError(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
        first, until = store.queue_of(topic, queue_id).bounds
        index = max(first, header.index)
        count = min(header.count, CQ_UNITS_MAX, max(0, until - index))
        units: list[dict[str, Any]] = []
        room = CQ_BYTES_MAX
        # get_message, because store.read would wait for the dispatch.
        while len(units) < count:
            result = store.get_message(topic, queue_id, index, count - len(units))
            for message in map(decode_message, result.records[: count - len(units)]):
                units.append({
                    "physicOffset": message.phy_offset, "physicSize": message.store_size,
                    "tagsCode": tags_code(message.tags), "eval": False,
                })
            room -= sum(map(len, result.records))
            if result.next_begin_offset <= index or room <= 0:
                break
            index = result.next_begin_offset
        body: dict[str, Any] = {"maxQueueIndex": until, "minQueueIndex": first, "queueData": units}
        if group := header.consumer_group:
            info = self._clients.consumers.find(group)
            if info is not None and topic in info.subscriptions:
                body["subscriptionData"] = info.subscriptions[topic].to_json()
                body["filterData"] = "null"
            else:
                body["filterData"] = f"{group}@{topic} is not online!"
        return body


def _place(request: RemotingCommand) -> int | None:
    """Return the position in the log that an offset message id has in its last 16 digits. Raises ValueError."""
    msg_id = request.read(ConsumeMessageDirectlyResultRequestHeader).msg_id
    return int(msg_id[-16:], 16) if msg_id else None


NO_POOL: Final = 0x7FFFFFFF
"""Number of free buffers that RocketMQ reports without a pool (transientStorePoolEnable=false)."""
CAPACITIES: Final = {
    "send": 10_000, "pull": 100_000, "litePull": 100_000, "query": 20_000, "ack": 100_000,
    "EndTransaction": 100_000,
}


_STATISTICS: Final = (
    "putMessageTimesTotal", "putMessageFailedTimes", "putMessageSizeTotal", "putMessageAverageSize",
    "putMessageEntireTimeMax", "dispatchBehindBytes", "timerOffsetBehind",
)
"""Statistics of the store that have the same name here."""
_RATES: Final = ("putTps", "getFoundTps", "getMissTps", "getTransferredTps")
"""Such statistics with rates of several times."""


@final
class RuntimeInfo:
    """Returns statistics of the store and the broker under the names that admin tools read."""

    def __init__(
        self, clock: Clock, store: MessageStore, stats: BrokerStatsManager, traffic: Traffic, boot_ms: int,
    ) -> None:
        self._clock, self._store, self._stats, self._traffic = clock, store, stats, traffic
        self._boot_ms = boot_ms

    def table(self) -> dict[str, str]:
        """Return all figures as text."""
        store = self._store
        stats = store.stats()
        days = self._stats.day_totals()
        distribution = stats.get("putMessageDistributeTime", {})
        *logs, queues = measure(
            store.file_system, log_paths(store.config, store.path).all, f"{store.path}/{CONSUMEQUEUE}",
            store.retention.trash.bytes_of)
        roomiest = min(logs, key=lambda usage: usage.percent)  # the path of which the ratio is shown
        figures: dict[str, Any] = {
            "brokerVersionDesc": "V5_3_3", "tailraceVersion": __version__, "brokerActive": "true",
            **({"readOnly": store.read_only} if store.read_only else {}),
            **{name: stats.get(name, 0) for name in _STATISTICS},
            **{name: _rates(stats.get(name, ())) for name in _RATES},
            "getTotalTps": _rates(a + b for a, b in zip_longest(
                stats.get("getFoundTps", ()), stats.get("getMissTps", ()), fillvalue=0.0)),
            "bootTimestamp": self._boot_ms, "startAcceptSendRequestTimeStamp": 0,
            "runtime": _duration(self._clock.now_ms() - self._boot_ms),
            "earliestMessageTimeStamp": store.earliest_message_time(),
            "commitLogMinOffset": store.min_phy_offset, "commitLogMaxOffset": store.max_phy_offset,
            "dispatchMaxBuffer": 0, "remainHowManyDataToFlush": size_text(stats.get("flushBehindBytes", 0)),
            "remainTransientStoreBufferNumbs": NO_POOL,
            "putMessageDistributeTime": "".join(f"[{k}]:{v} " for k, v in distribution.items()),
            "putLatency99": f"{_percentile(distribution.values(), 0.99):.2f}",
            "putLatency999": f"{_percentile(distribution.values(), 0.999):.2f}",
            "getMessageEntireTimeMax": self._traffic.get_time_max_ns // 1_000_000,
            "pageCacheLockTimeMills": 0,
            "commitLogDiskRatio": _ratio(roomiest), "consumeQueueDiskRatio": _ratio(queues),
            "commitLogDirCapacity": f"Total : {size_text(roomiest.total)}, Free : {size_text(roomiest.usable)}.",
            "timerReadBehind": stats.get("timerReadBehindMs", 0), "timerCongestNum": stats.get("timerPending", 0),
            "timerEnqueueTps": 0.0, "timerDequeueTps": 0.0,
        }
        for place, kind in enumerate(("Put", "Get")):
            figures[f"msg{kind}TotalYesterdayMorning"] = days.yesterday_morning[place]
            figures[f"msg{kind}TotalTodayMorning"] = days.today_morning[place]
            figures[f"msg{kind}TotalTodayNow"] = days.now[place]
        for usage in logs:
            figures[f"commitLogDiskRatio_{usage.path}"] = _ratio(usage)
        for level, offset, until in store.timer_services.schedule.progress():
            figures[f"scheduleMessageOffset_{level}"] = f"{offset},{until}"
        for pool, capacity in CAPACITIES.items():
            figures[f"{pool}ThreadPoolQueueSize"] = 0
            figures[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = 0
            figures[f"{pool}ThreadPoolQueueCapacity"] = capacity
        # RocketMQ has other names for the pool of transactions, and fewer figures.
        figures["EndTransactionQueueSize"] = figures.pop("EndTransactionThreadPoolQueueSize")
        del figures["EndTransactionThreadPoolQueueHeadWaitTimeMills"]
        return {name: str(value) for name, value in figures.items()}


def _ratio(usage: PathUsage) -> float:
    """Return the used part of a partition; -1.0 if it could not be measured."""
    return usage.percent / 100 if usage.percent >= 0 else -1.0


def _percentile(counts: Iterable[int], part: float) -> float:
    """Return the time in ms that this share of the puts did not exceed, interpolated linearly within a range."""
    counts = list(counts)
    place, before = part * sum(counts), 0
    for low, high, count in zip((0, *PUT_LIMITS_MS), (*PUT_LIMITS_MS, PUT_LIMITS_MS[-1]), counts, strict=False):
        if count and place <= before + count:
            return low + (high - low) * (place - before) / count
        before += count
    return 0.0


def _rates(values: Iterable[float]) -> str:
    """Return the rates over 10, 60 and 600 seconds that exist, each followed by a blank."""
    return "".join(f"{value:.4f} " for value in values) or "0.0 "


def _duration(ms: int) -> str:
    seconds = ms // 1000
    return (
        f"[ {seconds // 86400} days, {seconds // 3600 % 24} hours, {seconds // 60 % 60} minutes, "
        f"{seconds % 60} seconds ]"
    )
