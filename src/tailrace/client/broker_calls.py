"""Requests of a consumer group to brokers, one method each."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Final, final

from tailrace import events
from tailrace.client.instance import ClientInstance, InstanceShare
from tailrace.client.routes import MessageQueue, readable
from tailrace.client.subscription import Subscription
from tailrace.env.entropy import SystemEntropy
from tailrace.errors import CorruptionError, RemotingCommandError, RemotingError
from tailrace.formats import fastjson
from tailrace.formats.commitlog import SysFlag, decode_message, decompress_body
from tailrace.formats.inner_batch import unwrapped
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests.broker_headers import (
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
)
from tailrace.formats.requests.consumer_headers import (
    GetConsumerListByGroupRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from tailrace.formats.requests.custom_header import CustomHeader
from tailrace.formats.requests.message_headers import (
    ConsumerSendMsgBackRequestHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
)
from tailrace.logs import get_logger
from tailrace.model import BoundaryType, MessageExt

__all__ = ["BrokerCalls", "GroupCalls", "PullResult", "PulledRecords", "decode_all"]

_log = get_logger(__name__)

_COMMIT, _SUSPEND, _SUBSCRIPTION = 1, 2, 4
_STATUS: Final = {
    ResponseCode.SUCCESS: "FOUND",
    ResponseCode.PULL_NOT_FOUND: "NO_NEW_MSG",
    ResponseCode.PULL_RETRY_IMMEDIATELY: "NO_MATCHED_MSG",
    ResponseCode.PULL_OFFSET_MOVED: "OFFSET_ILLEGAL",
}
AVOIDED_S: Final = 10.0
"""Seconds until a master or slave that could not be read from is tried again, if another one can be read from."""
MAX_BODY: Final = 64 << 20
"""Largest body after decompression, in bytes."""


@dataclass(slots=True)
class PullResult:
    """``status`` is FOUND, NO_NEW_MSG, NO_MATCHED_MSG or OFFSET_ILLEGAL."""

    status: str
    next_begin_offset: int
    min_offset: int
    max_offset: int
    messages: list[MessageExt]
    from_slave: bool = False
    """Whether a slave has answered; it commits no offsets."""


@dataclass(slots=True)
class PulledRecords:
    """The answer to a pull, with its records as they are stored, one after the other. See `PullResult`."""

    status: str
    next_begin_offset: int
    min_offset: int
    max_offset: int
    records: bytes
    from_slave: bool = False


@final
class BrokerCalls:
    """Calls for one group. Each raises RemotingCommandError if a broker refuses, or another RemotingError."""

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self.instance = instance
        self.group = group
        self._timeout_ms = instance.target.timeout_ms
        self._suggested: dict[MessageQueue, int] = {}
        """Id of the slave that was suggested with the last answer to a pull of a queue."""
        self._avoided: dict[str, float] = {}
        """Addresses that could not be read from, and the time of the event loop until which they are not tried."""

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic that can be read."""
        return list((await self.instance.routes.of(topic)).read_queues)

    async def pull(
        self, wanted: Subscription, queue: MessageQueue, offset: int, *, max_count: int, wait_ms: int = 0,
        commit: int | None = None, registered: bool = False,
    ) -> PullResult:
        """Pull messages of a queue from ``offset``, with bodies decompressed. For the arguments see `pull_records`."""
        found = await self.pull_records(
            wanted, queue, offset, max_count=max_count, wait_ms=wait_ms, commit=commit, registered=registered)
        return PullResult(
            found.status, found.next_begin_offset, found.min_offset, found.max_offset,
            wanted.keep(decode_all(found.records, offset)), found.from_slave)

    async def pull_records(
        self, wanted: Subscription, queue: MessageQueue, offset: int, *, max_count: int, wait_ms: int = 0,
        commit: int | None = None, registered: bool = False,
    ) -> PulledRecords:
        """Pull records of a queue from ``offset``. A broker compares only hashes of tags, so other tags may come.

        ``commit`` is an offset to commit in the same request. With ``registered`` the broker takes the
        subscription from the heartbeats of the group, otherwise from this request. The queue is read from the slave
        that its broker has suggested, or from a slave while the master cannot be reached.
        """
        flag = _SUSPEND if wait_ms else 0
        flag |= 0 if commit is None else _COMMIT
        header = PullMessageRequestHeader(
            self.group, queue.topic, queue.queue_id, offset, max_count, sys_flag=flag,
            commit_offset=commit or 0, suspend_timeout_millis=wait_ms,
            sub_version=wanted.version if registered else 0, expression_type=wanted.kind)
        if not registered:
            header.sys_flag |= _SUBSCRIPTION
            header.subscription = wanted.expression
        answer, from_slave = await self._pulled(queue, header, wanted, wait_ms)
        found = answer.read(PullMessageResponseHeader)
        if found.suggest_which_broker_id:
            self._suggested[queue] = found.suggest_which_broker_id
        else:
            self._suggested.pop(queue, None)
        status = _STATUS[ResponseCode(answer.code)]
        if from_slave and status == "OFFSET_ILLEGAL":
            # A slave may not have all messages of its master, so it cannot correct an offset.
            return PulledRecords("NO_MATCHED_MSG", offset, found.min_offset, found.max_offset, b"", from_slave)
        return PulledRecords(
            status, found.next_begin_offset, found.min_offset, found.max_offset, answer.body, from_slave)

    async def _pulled(
        self, queue: MessageQueue, header: PullMessageRequestHeader, wanted: Subscription, wait_ms: int
    ) -> tuple[RemotingCommand, bool]:
        """Return the answer to a pull, and whether a slave has given it. Raises RemotingError."""
        now = asyncio.get_running_loop().time()
        route = await self.instance.routes.of(queue.topic)
        readers = route.readers(queue.broker_name, self._suggested.get(queue, 0))
        # Those that are avoided come last: if a slave refuses, the master may be there again.
        ordered = sorted(readers, key=lambda one: self._avoided.get(one[0], 0.0) > now)
        last: RemotingError | None = None
        for address, is_slave in ordered:
            try:
                if is_slave:
                    return await self._pull_from_slave(address, header, wanted, wait_ms), True
                return await self.call(queue, RequestCode.PULL_MESSAGE, header, ok=_STATUS, extra_ms=wait_ms), False
            except RemotingError as error:
                if not is_slave and isinstance(error, RemotingCommandError):
                    raise  # the refusal of the master counts
                if len(readers) > 1:
                    self._avoid(queue, address, error)
                last = error if last is None or not is_slave else last  # that of the master says more
        if last is not None:
            self.instance.routes.forget(queue.topic)
            raise last
        return await self.call(queue, RequestCode.PULL_MESSAGE, header, ok=_STATUS, extra_ms=wait_ms), False

    async def _pull_from_slave(
        self, address: str, header: PullMessageRequestHeader, wanted: Subscription, wait_ms: int
    ) -> RemotingCommand:
        """Pull with the subscription in the request, because the slave may not have the group's, and commit nothing."""
        asked = copy(header)
        asked.sys_flag = header.sys_flag & ~_COMMIT | _SUBSCRIPTION
        asked.commit_offset, asked.subscription = 0, wanted.expression
        return await self.instance.remoting.ask(
            address, RequestCode.PULL_MESSAGE, asked, ok=_STATUS, timeout_ms=self._timeout_ms + wait_ms)

    def _avoid(self, queue: MessageQueue, address: str, error: RemotingError) -> None:
        now = asyncio.get_running_loop().time()
        if self._avoided.get(address, 0.0) <= now:
            events.BROKER_NOT_READ_FROM_FOR_A_WHILE.log(
                _log, topic=queue.topic, broker=queue.broker_name, queue=queue.queue_id, address=address, reason=error)
        self._avoided[address] = now + AVOIDED_S

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the first message."""
        answer = await self.call(
            queue, RequestCode.GET_MIN_OFFSET, GetMinOffsetRequestHeader(queue.topic, queue.queue_id))
        return max(0, answer.read(GetMinOffsetResponseHeader).offset)  # -1 of an empty batch queue

    async def max_offset(self, queue: MessageQueue, *, committed: bool = True) -> int:
        """Return the offset that the next message will get."""
        answer = await self.call(
            queue, RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader(queue.topic, queue.queue_id, committed))
        return answer.read(GetMaxOffsetResponseHeader).offset

    async def offset_by_time(
        self, queue: MessageQueue, timestamp_ms: int, boundary: BoundaryType = BoundaryType.LOWER
    ) -> int:
        """Return the offset of the first message stored at or after a time."""
        answer = await self.call(
            queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
            SearchOffsetRequestHeader(
                queue.topic, queue.queue_id, timestamp_ms, boundary_type=boundary.value))
        return answer.read(SearchOffsetResponseHeader).offset

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's offset of a queue; None if it has no offset."""
        answer = await self.call(
            queue, RequestCode.QUERY_CONSUMER_OFFSET,
            QueryConsumerOffsetRequestHeader(
                self.group, queue.topic, queue.queue_id, set_zero_if_not_found=False),
            ok=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND))
        if answer.code != ResponseCode.SUCCESS:
            return None
        return answer.read(QueryConsumerOffsetResponseHeader).offset

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Set the group's offset of a queue; the broker writes it to disk every few seconds.

        Without a master a slave gets the offset, for members that start in the meantime. Then RemotingError is raised,
        because the master replaces the offsets of its slaves when it is back.

        A broker accepts only offsets of groups that it knows. A new group is created first, if the broker allows
        that.
        """
        header = UpdateConsumerOffsetRequestHeader(self.group, queue.topic, queue.queue_id, offset)
        unknown = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        answer = await self.call(
            queue, RequestCode.UPDATE_CONSUMER_OFFSET, header, ok=(ResponseCode.SUCCESS, unknown))
        if answer.code == unknown:
            await self.call(
                queue, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
                GetSubscriptionGroupConfigRequestHeader(self.group))
            await self.call(queue, RequestCode.UPDATE_CONSUMER_OFFSET, header)
        if not (await self.instance.routes.of(queue.topic)).has_master(queue.broker_name):
            raise RemotingError(f"{queue.broker_name} has no master now; a slave has the offset until it is back")

    async def members(self, topic: str) -> list[str]:
        """Return the client ids of the group, as a broker of the topic knows them."""
        header = GetConsumerListByGroupRequestHeader(self.group)
        route = await self.instance.routes.of(topic)
        last: RemotingError = RemotingCommandError(
            ResponseCode.TOPIC_NOT_EXIST, f"no broker of topic {topic} can be reached")
        for address in sorted(set(route.addresses.values())):
            try:
                answer = await self.instance.remoting.invoke(
                    address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, header.to_ext(),
                    timeout_ms=self._timeout_ms)
            except RemotingError as error:
                last = error
                continue
            if answer.code == ResponseCode.SUCCESS:
                with readable(address):
                    return list(fastjson.loads(answer.body)["consumerIdList"])
            return []  # so says a broker that knows no member
        raise last

    async def assignment(self, topic: str, strategy: str) -> dict[MessageQueue, bool] | None:
        """Return the queues of this client id as a broker allocates them, and whether each is popped.

        Return None if the broker does not know the topic or the group yet; the client then keeps its queues.
        """
        body = fastjson.dumps({
            "clientId": self.instance.client_id, "consumerGroup": self.group, "messageModel": "CLUSTERING",
            "strategyName": strategy, "topic": topic})
        addresses = sorted(set((await self.instance.routes.of(topic)).addresses.values()))
        if not addresses:
            raise RemotingCommandError(ResponseCode.TOPIC_NOT_EXIST, f"no broker of topic {topic} can be reached")
        address = addresses[SystemEntropy().randrange(len(addresses))]
        answer = await self.instance.remoting.ask(
            address, RequestCode.QUERY_ASSIGNMENT, body=body, timeout_ms=self._timeout_ms)
        with readable(address):
            found = fastjson.loads(answer.body).get("messageQueueAssignments")
            return None if found is None else {
                MessageQueue.from_json(one["messageQueue"]): one.get("mode") == "POP" for one in found
                if one.get("messageQueue")}

    async def send_back(
        self, queue: MessageQueue, message: MessageExt, delay_level: int, max_reconsume_times: int
    ) -> None:
        """Have a broker deliver a message again: at the delay level, 0 for the next one; -1 makes it a dead letter."""
        header = ConsumerSendMsgBackRequestHeader(
            message.phy_offset, self.group, delay_level, origin_msg_id=message.msg_id,
            origin_topic=message.topic, max_reconsume_times=max_reconsume_times)
        await self.call(queue, RequestCode.CONSUMER_SEND_MSG_BACK, header)

    async def lock(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Lock queues for this client id, or renew the locks; return those that are locked now.

        A broker that cannot be reached locks none.
        """
        locked: set[MessageQueue] = set()
        for address, answer in await self._locks(RequestCode.LOCK_BATCH_MQ, queues):
            if answer.code != ResponseCode.SUCCESS:
                raise RemotingCommandError(answer.code, answer.remark or "", address)
            with readable(address):
                found = fastjson.loads(answer.body)
                locked |= {MessageQueue.from_json(one) for one in found.get("lockOKMQSet") or ()}
        return locked

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Release locks of this client id. Locks on a broker that cannot be reached expire later."""
        await self._locks(RequestCode.UNLOCK_BATCH_MQ, queues)

    async def _locks(
        self, code: int, queues: Iterable[MessageQueue]
    ) -> list[tuple[str, RemotingCommand]]:
        by_address: dict[str, list[dict[str, Any]]] = {}
        for queue in queues:
            try:
                route = await self.instance.routes.of(queue.topic)
            except RemotingError:
                continue  # for example of a topic that was deleted
            if address := route.addresses.get(queue.broker_name):
                by_address.setdefault(address, []).append(queue.to_json())
        found = []
        for address, members in by_address.items():
            body = fastjson.dumps({
                "clientId": self.instance.client_id, "consumerGroup": self.group, "mqSet": members,
                "onlyThisBroker": False})
            try:
                found.append((address, await self.instance.remoting.invoke(
                    address, code, {}, body, timeout_ms=self._timeout_ms)))
            except RemotingError:
                continue
        return found

    async def check_filter(self, wanted: Subscription) -> None:
        """Check an SQL92 expression: a broker of the topic compiles it, and its refusal has the error."""
        body = fastjson.dumps({
            "clientId": self.instance.client_id, "group": self.group,
            "subscriptionData": wanted.to_json()})
        route = await self.instance.routes.of(wanted.topic)
        for address in sorted(set(route.addresses.values())):
            await self.instance.remoting.ask(
                address, RequestCode.CHECK_CLIENT_CONFIG, body=body, timeout_ms=self._timeout_ms)

    async def call(
        self, queue: MessageQueue, code: int, header: CustomHeader | None, *,
        ok: Container[int] = (ResponseCode.SUCCESS,), extra_ms: int = 0, body: bytes = b"",
    ) -> RemotingCommand:
        """Ask the broker of a queue; ``ok`` are the codes that are returned and not raised."""
        routes = self.instance.routes
        route = await routes.of(queue.topic)
        address = route.addresses.get(queue.broker_name)
        if address is None and queue.broker_name == routes.broker:
            address = routes.broker  # the only broker, named by its address
        if address is None:
            routes.forget(queue.topic)
            raise RemotingCommandError(
                ResponseCode.TOPIC_NOT_EXIST, f"no broker {queue.broker_name} has {queue.topic}")
        try:
            return await self.instance.remoting.ask(
                address, code, header, body, ok=ok, timeout_ms=self._timeout_ms + extra_ms)
        except RemotingCommandError:
            raise
        except RemotingError:
            routes.forget(queue.topic)  # the broker may be at another address
            raise


@final
class GroupCalls:
    """The calls of a group on the present connections of a client.

    They are one object as long as the connections are, because it knows which slave was suggested for a queue.
    """

    def __init__(self, share: InstanceShare, group: str) -> None:
        self._share, self._group = share, group
        self._made: BrokerCalls | None = None

    @property
    def now(self) -> BrokerCalls:
        """Return the calls. Raises RemotingError after the client was closed."""
        instance, made = self._share.instance, self._made
        if made is None or made.instance is not instance:
            made = self._made = BrokerCalls(instance, self._group)
        return made


def decode_all(body: bytes, offset: int = 0) -> list[MessageExt]:
    """Return the messages of an answer, those of an inner batch from ``offset`` on. Raises CorruptionError."""
    found: list[MessageExt] = []
    at = 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        if size <= 0:
            raise CorruptionError("a pull answer holds no record where one should be", file_pos=at)
        message = decode_one(body[at : at + size])
        # A record of an LMQ queue has the offset of another queue.
        found += [one for one in unwrapped(message) if one is message or one.queue_offset >= offset]
        at += size
    return found


def decode_one(record: bytes) -> MessageExt:
    """Return the message in a record, with its body decompressed. Raises CorruptionError."""
    message = decode_message(record)
    if message.sys_flag & SysFlag.COMPRESSED:
        message = replace(message, body=decompress_body(message.body, message.sys_flag, MAX_BODY))
    return message
