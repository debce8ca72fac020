"""Requests that the broker sends to consumers: for their offsets (request 223), and to reset offsets.

For request 223 the broker sends request 221 to each consumer. With useServerSideResetOffset=false it sends a
reset as request 220, and the consumers commit the offsets; otherwise the broker resets them (``reset_offset``).
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, final

from tailrace import events
from tailrace.broker.clients.client_manager import ClientInfo, ConsumerManager
from tailrace.env.supervision import caught
from tailrace.errors import RefusalError, RemotingError
from tailrace.formats import fastjson
from tailrace.formats.remoting import (
    LANGUAGES,
    MQ_VERSION,
    RemotingCommand,
    RequestCode,
    ResponseCode,
)
from tailrace.formats.requests.consumer_headers import (
    GetConsumerStatusRequestHeader,
    ResetOffsetRequestHeader,
)
from tailrace.logs import get_logger
from tailrace.remoting import Channel
from tailrace.requests.executors import Executors
from tailrace.requests.processor import RequestProcessor, serves
from tailrace.requests.reply import Reply, ReplyTasks, as_it_is

__all__ = ["ClientOffsetsProcessor", "push_reset"]

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


@final
class ClientOffsetsProcessor(RequestProcessor):
    """Collects the current offsets of the members of a group from the members."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, executors: Executors, consumers: ConsumerManager,
    ) -> None:
        self._executors, self._consumers = executors, consumers
        self._tasks = ReplyTasks(loop)

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
