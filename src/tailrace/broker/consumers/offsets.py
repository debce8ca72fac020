"""Offsets of groups: requests 14, 15 and 223, and resets that are sent to consumers.

For request 223 the broker sends request 221 to each consumer. With useServerSideResetOffset=false it sends a
reset as request 220, and the consumers commit the offsets; otherwise the broker resets them.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, final

from tailrace import events
from tailrace.broker.clients.client_manager import ClientInfo, ConsumerManager
from tailrace.broker.consumers.consumer_checks import NAME_MAX
from tailrace.broker.static_topics.logical_queues import LogicalQueueRequests
from tailrace.env.supervision import caught
from tailrace.errors import RefusalError, RemotingError
from tailrace.formats import fastjson
from tailrace.formats.commitlog import decode_message
from tailrace.formats.remoting import (
    LANGUAGES,
    MQ_VERSION,
    RemotingCommand,
    RequestCode,
    ResponseCode,
)
from tailrace.formats.requests.consumer_headers import (
    GetConsumerStatusRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    ResetOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from tailrace.logs import get_logger
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.message_store import MessageStore
from tailrace.node.subscription_group import SubscriptionGroupManager
from tailrace.remoting import Channel, RemotingServer
from tailrace.requests.executors import Executors
from tailrace.requests.processor import RequestProcessor, serves
from tailrace.requests.reply import Answer, Reply, ReplyTasks, as_it_is
from tailrace.requests.worker import RequestWorker

__all__ = ["ConsumerOffsetsProcessor", "push_reset"]

_log = get_logger(__name__)
ASK_TIMEOUT_MS: Final = 5_000
PENDING_MAX: Final = 100
"""Number of requests 223 that may wait for consumers."""
MEMBERS_MAX: Final = 1_000
"""Number of consumers that one request asks."""
ANSWER_MAX: Final = 8 << 20
"""Bytes of the tables of all consumers of one answer."""
TABLE_MAX: Final = 1 << 20
"""Bytes of the table of one consumer; a queue takes about 100."""
VALUES_MAX: Final = 50_000
VERSION_V3_0_7: Final = 28
"""The first release whose clients know requests 220 and 221."""
CPP: Final = LANGUAGES.index("CPP")
# As in RocketMQ, a new group reads a queue from its beginning while the first message is young enough to be
# in memory. The limit is 40 % of the 24 GiB of memory that RocketMQ assumes if it cannot measure it.
IN_MEMORY_BYTES: Final = 24 * 1024**3 * 4 // 10


@final
class ConsumerOffsetsProcessor(RequestProcessor):
    """Returns and commits offsets, and collects those that the members of a group have from the members."""

    def __init__(
        self, store: MessageStore, groups: SubscriptionGroupManager, offsets: ConsumerOffsetManager,
        worker: RequestWorker, logical_queues: LogicalQueueRequests, loop: asyncio.AbstractEventLoop,
        executors: Executors, consumers: ConsumerManager,
    ) -> None:
        self._store, self._groups, self._offsets, self._worker = store, groups, offsets, worker
        self._logical_queues, self._executors, self._consumers = logical_queues, executors, consumers
        self._tasks, self._topics = ReplyTasks(loop), store.topics

    def register(self, server: RemotingServer) -> None:
        """Have a server pass the requests to their methods, those that name logical queues by way of their parts."""
        super().register(server)
        of_queue, code = self._logical_queues.of, RequestCode
        server.register(
            of_queue(code.QUERY_CONSUMER_OFFSET, self.query_offset, self._query_offset), code.QUERY_CONSUMER_OFFSET)
        server.register(
            of_queue(code.UPDATE_CONSUMER_OFFSET, self.update_offset), code.UPDATE_CONSUMER_OFFSET)

    def _query_offset(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Serve request 14, in a thread if the first message of the queue is needed and not in memory."""
        header, store = request.read(QueryConsumerOffsetRequestHeader), self._store
        topic, queue_id = header.topic, header.queue_id
        if (
            header.set_zero_if_not_found is False
            or store.max_phy_offset - store.min_phy_offset <= IN_MEMORY_BYTES
            or self._offsets.query(header.consumer_group, topic, queue_id) >= 0
            or not store.get_message(
                topic, queue_id, store.queue_of(topic, queue_id).min, 1, only_cached=True).is_cold
        ):
            return self.query_offset(channel, request)
        return self._worker.in_thread(self.query_offset)(channel, request)

    def query_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return the committed offset of a group: request 14."""
        header = request.read(QueryConsumerOffsetRequestHeader)
        topic, queue_id = header.topic, header.queue_id
        offset = self._offsets.query(header.consumer_group, topic, queue_id)
        if offset < 0:
            if header.set_zero_if_not_found is False:
                raise RefusalError(
                    ResponseCode.QUERY_NOT_FOUND,
                    "Not found, do not set to zero, maybe this group boot first",
                )
            if not self._is_young(topic, queue_id):
                raise RefusalError(
                    ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first"
                )
            offset = self._store.queue_of(topic, queue_id).min
        return request.answer(ext=QueryConsumerOffsetResponseHeader(offset))

    def _is_young(self, topic: str, queue_id: int) -> bool:
        """Return True if a queue still has the first message of its life, and that one was stored not long ago."""
        store = self._store
        low = store.queue_of(topic, queue_id).min
        if low > store.queue_of(topic, queue_id).begin_of_life:
            return False
        if store.max_phy_offset - store.min_phy_offset <= IN_MEMORY_BYTES:
            return True
        first = store.get_message(topic, queue_id, low, 1).records
        if not first:
            return True
        behind: int = store.max_phy_offset - decode_message(first[0]).phy_offset
        return behind <= IN_MEMORY_BYTES

    def update_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Commit an offset of a group: request 15."""
        header = request.read(UpdateConsumerOffsetRequestHeader)
        topic, group, queue_id = header.topic, header.consumer_group, header.queue_id
        if self._groups.select(group) is None:
            raise RefusalError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group[:NAME_MAX]} not exist!"
            )
        config = self._topics.select(topic)
        if config is None:
            raise RefusalError(
                ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic[:NAME_MAX]} not exist!"
            )
        queue, queues = self._store.queue_of(topic, queue_id), max(config.read_queue_nums, config.write_queue_nums)
        if queue_id < 0 or (queue_id >= queues and queue.max <= 0):
            raise RefusalError(ResponseCode.INVALID_PARAMETER, f"topic {topic} has no queue {queue_id}")
        if self._offsets.is_reset(group, topic, queue_id):
            return request.answer(ResponseCode.SUCCESS, "Offset has been previously reset")
        if reason := self._offsets.commit_of_client(group, topic, queue_id, header.commit_offset, queue.next):
            raise RefusalError(ResponseCode.INVALID_PARAMETER, reason)
        return request.answer()

    @serves(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS)
    def status(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        """Return the offsets of a topic by client id: request 223. Consumers that do not answer are left out."""
        header = request.read(GetConsumerStatusRequestHeader)
        wanted = (header.client_addr or "").strip()
        members = [m for m in _members(self._consumers, header.group) if wanted in {"", m.client_id}]
        if not members and not wanted:
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR,
                f"No Any Consumer online in the consumer group: [{header.group}]")
        if len(members) > MEMBERS_MAX or len(self._tasks) >= PENDING_MAX:
            raise RefusalError(
                ResponseCode.SYSTEM_BUSY,
                f"{len(members)} consumers are to be asked, the limit is {MEMBERS_MAX}; {len(self._tasks)} such "
                f"requests wait, the limit is {PENDING_MAX}; name one consumer with clientAddr, or try again later")
        ext = GetConsumerStatusRequestHeader(topic=header.topic, group=header.group).to_ext()
        self._tasks.start(Reply(channel, request), self._collected(request, members, ext), as_it_is)
        return None

    async def _collected(
        self, request: RemotingCommand, members: list[ClientInfo], ext: dict[str, str]
    ) -> RemotingCommand:
        tables = await asyncio.gather(*(self._ask(member, ext) for member in members))
        found = {m.client_id: t for m, t in zip(members, tables, strict=True) if t is not None}
        if (size := sum(map(len, found.values()))) > ANSWER_MAX:
            return request.answer(
                ResponseCode.SYSTEM_ERROR, f"the tables of {len(found)} consumers have {size} bytes, over the limit "
                f"of {ANSWER_MAX}; name one consumer with clientAddr")
        parts = [b"%b:%b" % (fastjson.dumps(name), table) for name, table in found.items()]
        return request.answer(body=b'{"consumerTable":{%b},"messageQueueTable":{}}' % b",".join(parts))

    async def _ask(self, member: ClientInfo, ext: dict[str, str]) -> bytes | None:
        """Return the table of a consumer; None if the consumer did not return one."""
        command = RemotingCommand(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, dict(ext), b"", version=MQ_VERSION)
        try:
            answer = await member.channel.request(command, ASK_TIMEOUT_MS)
            if answer.code == ResponseCode.SUCCESS and answer.body:
                return await self._executors.background.run(_table_of, answer.body)
            reason: object = f"code {answer.code}"
        except (RemotingError, ValueError) as error:
            reason = error
        events.CONSUMER_DID_NOT_RETURN_ITS_OFFSETS.log(_log, group=ext["group"], client=member.client_id, reason=reason)
        return None


def push_reset(
    loop: asyncio.AbstractEventLoop, consumers: ConsumerManager, broker_name: str, request: RemotingCommand,
    header: ResetOffsetRequestHeader, offsets: dict[int, int],
) -> None:
    """Send a reset to the members of a group (request 220); any thread may call this.

    Raises RefusalError if the group has no member, or has a member that does not support the request.
    """
    members = _members(consumers, header.group)
    if not members:
        raise RefusalError(
            ResponseCode.CONSUMER_NOT_ONLINE,
            f"Consumer not online, so can not reset offset, Group: {header.group} Topic: {header.topic} "
            f"Timestamp: {header.timestamp}")
    queues = []
    for queue_id, offset in offsets.items():
        queues.append(({"brokerName": broker_name, "queueId": queue_id, "topic": header.topic}, offset))
    if request.language == CPP:
        body = fastjson.dumps({"offsetTable": [{**queue, "offset": offset} for queue, offset in queues]})
    else:
        body = b'{"offsetTable":%b}' % fastjson.object_keyed(queues)
    ext = ResetOffsetRequestHeader(
        group=header.group, topic=header.topic, timestamp=header.timestamp, is_force=False).to_ext()

    def send() -> None:
        for member in members:
            with caught("resets of consumers"):  # the other members get it
                member.channel.request_oneway(
                    RemotingCommand(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, dict(ext), body, version=MQ_VERSION))

    if loop.is_running():
        loop.call_soon_threadsafe(send)
    else:
        send()


def _members(consumers: ConsumerManager, group: str) -> list[ClientInfo]:
    info = consumers.find(group)
    members = list(info.members.values()) if info is not None else []
    for member in members:
        if member.version < VERSION_V3_0_7:
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR,
                f"the client does not support this feature. version={member.version} client={member.client_id}")
    return members


def _table_of(body: bytes) -> bytes:
    """Return a consumer's table of offsets by queue, checked and encoded. Raises ValueError if it is invalid."""
    if len(body) > TABLE_MAX:
        raise ValueError(f"the answer has {len(body)} bytes, over the limit of {TABLE_MAX}")
    value = fastjson.loads(body, VALUES_MAX)
    table: Any = value.get("messageQueueTable") if isinstance(value, dict) else None
    entries = [
        (fastjson.loads(key), offset) for key, offset in (table.items() if isinstance(table, dict) else ())]
    if not isinstance(table, dict) or not all(
        isinstance(queue, dict) and isinstance(offset, int) for queue, offset in entries
    ):
        raise ValueError("the answer has no table of offsets by queue")
    return fastjson.object_keyed(entries)
