"""Administration of topics, groups, brokers and users, with the requests of RocketMQ's tools."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self, TypeVar, final

from tailrace.auth.signature import Credentials
from tailrace.client.arguments import Duration, in_ms
from tailrace.client.credentials import credentials_of
from tailrace.client.instance import Target
from tailrace.client.routes import masters, registered, topic_header
from tailrace.errors import (
    RemotingCommandError,
    RemotingConnectError,
    RemotingError,
    RemotingTimeoutError,
    StoreError,
)
from tailrace.formats import fastjson
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests import access_headers as a
from tailrace.formats.requests import broker_headers as b
from tailrace.formats.requests import consumer_headers as c
from tailrace.formats.requests.custom_header import CustomHeader
from tailrace.formats.requests.name_server_headers import DeleteTopicFromNamesrvRequestHeader
from tailrace.remoting.client import RemotingClient
from tailrace.remoting.tls import TlsOptions, options_of

__all__ = ["AdminClient", "BrokerStatus", "Deleted", "GroupQueue", "TopicQueue", "TopicTotals"]

_AT_ONCE: Final = 16
"""Requests under way at a time, for questions about many topics or groups."""
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, order=True)
class TopicQueue:
    """The messages of one queue."""

    topic: str
    broker_name: str
    queue_id: int
    min_offset: int
    max_offset: int
    last_update_timestamp: int


@dataclass(frozen=True, slots=True, order=True)
class GroupQueue:
    """The offset of a group in one queue, and the end of the queue."""

    topic: str
    broker_name: str
    queue_id: int
    broker_offset: int
    consumer_offset: int
    last_timestamp: int
    """Store time of the last message that was consumed."""

    @property
    def lag(self) -> int:
        """Number of messages that the group has not consumed yet."""
        return max(self.broker_offset - self.consumer_offset, 0)


@dataclass(frozen=True, slots=True)
class TopicTotals:
    """The messages of all queues of a topic."""

    messages: int
    last_update_timestamp: int
    """Store time of the last message in ms, 0 without one."""
    size_bytes: int | None
    """Bytes of the records; None from a Java broker."""
    size_is_exact: bool


@dataclass(frozen=True, slots=True)
class Deleted:
    """Result of a deletion."""

    by: list[str]
    """The stores or brokers that have deleted it."""
    topics: list[str]
    """All topics that were deleted, with retry topics and dead letters."""
    kept: list[str]
    """What is kept, with the reason."""


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """What one broker says of itself."""

    figures: dict[str, str]
    """The table of brokerStatus."""
    replication: dict[str, Any]
    """The HARuntimeInfo of haStatus; empty from a broker that does not know this request."""


@final
class AdminClient:
    """Sends requests to one broker, or to every master of a name server; an asynchronous context manager.

    Each method raises RemotingCommandError if a server refuses, or another RemotingError.
    """

    def __init__(
        self, *, namesrv: str = "", broker: str = "", timeout_ms: Duration = 5_000,
        tls: bool | TlsOptions = False, credentials: Credentials | str | None = None,
    ) -> None:
        self._timeout_ms = round(in_ms("timeout_ms", timeout_ms))
        target = Target(
            namesrv, broker, self._timeout_ms, tls=options_of(tls), credentials=credentials_of(credentials))
        self._namesrv = [address.strip() for address in namesrv.split(";") if address.strip()]
        self._broker = broker
        self._remoting = RemotingClient(tls=target.tls, credentials=target.credentials)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._remoting.close()

    async def brokers(self) -> list[str]:
        """Return the addresses of all masters."""
        if self._broker:
            return [self._broker]
        return masters(await self._cluster(), ", ".join(self._namesrv))

    async def _cluster(self) -> dict[str, Any]:
        return dict(fastjson.loads((await self._ask_name_server(RequestCode.GET_BROKER_CLUSTER_INFO)).body))

    async def topic_configs(self) -> list[dict[str, Any]]:
        """Return the configuration of every topic, with RocketMQ's member names, by name."""
        table: dict[str, dict[str, Any]] = {}
        for body in await self._bodies(
                RequestCode.GET_ALL_TOPIC_CONFIG, b.GetAllTopicConfigRequestHeader(topic_seq=0)):
            table |= body["topicConfigTable"]
        return [table[name] for name in sorted(table)]

    async def topic_names(self) -> list[str]:
        """Return the names of all topics."""
        if self._broker:
            return [config["topicName"] for config in await self.topic_configs()]
        answer = await self._ask_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(fastjson.loads(answer.body)["topicList"])

    async def topic_queues(self, topic: str) -> list[TopicQueue]:
        """Return the queues of a topic on every broker that has it."""
        answers = await self._ask_having(
            topic, RequestCode.GET_TOPIC_STATS_INFO, b.GetTopicStatsInfoRequestHeader(topic))
        return sorted(
            TopicQueue(topic, queue["brokerName"], queue["queueId"], place["minOffset"], place["maxOffset"],
                       place["lastUpdateTimestamp"])
            for answer in answers.values() for queue, place in _pairs(fastjson.loads(answer.body)["offsetTable"]))

    async def topic_totals(self, topics: Iterable[str]) -> dict[str, TopicTotals]:
        """Return the totals of topics over all brokers; a topic that this user may not read is left out."""
        brokers = await self.brokers()

        async def totals(topic: str) -> TopicTotals:
            bodies = await self._bodies(
                RequestCode.GET_TOPIC_STATS_INFO, b.GetTopicStatsInfoRequestHeader(topic),
                without=(ResponseCode.TOPIC_NOT_EXIST,), brokers=brokers)
            places = [place for body in bodies for _, place in _pairs(body["offsetTable"])]
            sizes = [body.get("sizeBytes") for body in bodies]
            return TopicTotals(
                sum(max(place["maxOffset"] - place["minOffset"], 0) for place in places),
                max((place["lastUpdateTimestamp"] for place in places), default=0),
                None if None in sizes else sum(sizes), all(body.get("sizeIsExact") for body in bodies))

        return await _each(topics, totals)

    async def system_topics(self) -> set[str]:
        """Return the names of the topics that belong to brokers and not to their users."""
        bodies = await self._bodies(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
        return {topic for body in bodies for topic in body["topicList"]}

    async def delete_topic(self, topic: str) -> Deleted:
        """Delete a topic, with everything that belongs to it, on every broker that has it."""
        having = [*await self._ask_having(topic, RequestCode.GET_TOPIC_CONFIG, b.GetTopicConfigRequestHeader(topic))]
        answers = await self._ask_all(
            RequestCode.DELETE_TOPIC_IN_BROKER, b.DeleteTopicRequestHeader(topic), brokers=having)
        await self._ask_all(
            RequestCode.DELETE_TOPIC_IN_NAMESRV, DeleteTopicFromNamesrvRequestHeader(topic), brokers=self._namesrv)
        return _deleted(answers)

    async def create_topic(
        self, topic: str, queues: int, attributes: Mapping[str, str]
    ) -> tuple[dict[str, Any], list[str]]:
        """Create a topic on every broker, or change it on those that have it; return its configuration, and notes.

        For the notes of the brokers see `AsyncProducer.create_topic`.
        """
        brokers = await self.brokers()
        having = [address for address in brokers if len(brokers) > 1 and await self._has(address, topic)]
        answers = await self._ask_all(
            RequestCode.UPDATE_AND_CREATE_TOPIC, topic_header(topic, queues, attributes), brokers=having or brokers)
        made = {"topicName": topic, "readQueueNums": queues, "writeQueueNums": queues, "attributes": attributes}
        return made, [answer.remark for answer in answers.values() if answer.remark]

    async def _has(self, address: str, topic: str) -> bool:
        with contextlib.suppress(RemotingCommandError):  # a Java broker of RocketMQ 4, or a user without permission
            await self._ask(address, RequestCode.GET_TOPIC_CONFIG, b.GetTopicConfigRequestHeader(topic))
            return True
        return False

    async def purge_topic(
        self, topic: str, queue_id: int | None, before_ms: int | None
    ) -> dict[int, tuple[int, int]]:
        """Drop messages of a topic of one broker; return for each queue id its least offset before and after."""
        [address] = await self.brokers()
        try:
            answer = await self._ask(
                address, RequestCode.PURGE_TOPIC, b.PurgeTopicRequestHeader(topic, queue_id, before_ms))
        except RemotingCommandError as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise StoreError(f"the broker at {address} is not Tailrace, it cannot purge") from None
            raise
        return {int(queue): (low["from"], low["to"]) for queue, low in fastjson.loads(answer.body or b"{}").items()}

    # --- users and permissions

    async def _list_access(self, code: RequestCode, header: CustomHeader) -> list[dict[str, Any]]:
        """Return the list of the first broker."""
        [(_, answer)] = (await self._ask_all(code, header, brokers=(await self.brokers())[:1])).items()
        return list(fastjson.loads(answer.body)) if answer.body else []

    async def users(self) -> list[dict[str, Any]]:
        """Return the users as UserInfo; with passwords if the client is a super user."""
        return await self._list_access(RequestCode.AUTH_LIST_USER, a.ListUsersRequestHeader())

    async def acls(self) -> list[dict[str, Any]]:
        """Return the permissions of all users as AclInfo."""
        return await self._list_access(RequestCode.AUTH_LIST_ACL, a.ListAclsRequestHeader())

    async def create_user(self, name: str, user: dict[str, Any]) -> None:
        """Add a user, given as UserInfo, on every broker."""
        await self._ask_all(RequestCode.AUTH_CREATE_USER, a.UserRequestHeader(name), fastjson.dumps(user))

    async def update_user(self, name: str, user: dict[str, Any]) -> None:
        """Change a user, given as UserInfo with what changes, on every broker."""
        await self._ask_all(RequestCode.AUTH_UPDATE_USER, a.UserRequestHeader(name), fastjson.dumps(user))

    async def delete_user(self, name: str) -> None:
        """Remove a user with its permissions from every broker."""
        await self._ask_all(RequestCode.AUTH_DELETE_USER, a.UserRequestHeader(name))

    async def update_acl(self, subject: str, acl: dict[str, Any]) -> None:
        """Add entries, given as AclInfo, or replace those of the same resource, on every broker."""
        await self._ask_all(RequestCode.AUTH_UPDATE_ACL, a.AclRequestHeader(subject), fastjson.dumps(acl))

    async def delete_acl(self, subject: str, policy: str, resource: str = "") -> None:
        """Remove the entry of a resource, or without one all entries of a subject, from every broker."""
        await self._ask_all(RequestCode.AUTH_DELETE_ACL, a.DeleteAclRequestHeader(subject, policy, resource))

    # --- groups

    async def groups(self) -> dict[str, list[GroupQueue]]:
        """Return every group with the queues that it has consumed."""
        found: dict[str, list[GroupQueue]] = {name: [] for name in await self.group_configs()}
        for body in await self._bodies(
                RequestCode.GET_BROKER_CONSUME_STATS, c.GetConsumeStatsInBrokerHeader(is_order=False)):
            for named in body["consumeStatsList"]:
                for name, tables in named.items():
                    for table in tables:
                        found.setdefault(name, []).extend(_group_queues(table["offsetTable"]))
        return {name: sorted(found[name]) for name in sorted(found)}

    async def members(self, group: str) -> list[dict[str, Any]]:
        """Return the clients of a group that are connected, with RocketMQ's member names."""
        bodies = await self._bodies(
            RequestCode.GET_CONSUMER_CONNECTION_LIST, c.GetConsumerConnectionListRequestHeader(group),
            without=(ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SYSTEM_ERROR))
        members = {member["clientId"]: member for body in bodies for member in body["connectionSet"]}
        return [members[name] for name in sorted(members)]

    async def member_counts(self, groups: Iterable[str]) -> dict[str, int]:
        """Return the number of connected clients of groups; a group that this user may not read is left out."""

        async def count(group: str) -> int:
            return len(await self.members(group))

        return await _each(groups, count)

    async def save_group(self, group: dict[str, Any]) -> None:
        """Create or change a group, given with RocketMQ's member names, on every broker."""
        await self._ask_all(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=fastjson.dumps(group))

    async def group_configs(self) -> dict[str, dict[str, Any]]:
        """Return the settings of every group, with RocketMQ's member names."""
        table: dict[str, dict[str, Any]] = {}
        for body in await self._bodies(
                RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, c.GetAllSubscriptionGroupRequestHeader(group_seq=0)):
            table |= body["subscriptionGroupTable"]
        return table

    async def reset_group(
        self, group: str, topic: str, *, timestamp_ms: int, queue_id: int = -1, offset: int | None = None
    ) -> dict[tuple[str, int], int]:
        """Set a group's offsets of a topic; return them by broker and queue.

        The new offset is ``offset`` in one queue, or in all queues that of the first message stored at or after
        ``timestamp_ms``; a time below 0 means the end.
        """
        header = c.ResetOffsetRequestHeader(group, topic, timestamp_ms, is_force=True, queue_id=queue_id, offset=offset)
        bodies = await self._bodies(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
        return {(queue["brokerName"], queue["queueId"]): place
                for body in bodies for queue, place in _pairs(body["offsetTable"])}

    async def delete_group(self, group: str, *, keep_offsets: bool = False) -> Deleted:
        """Delete a group with its retries and dead letters, and with its offsets unless they are kept."""
        header = c.DeleteSubscriptionGroupRequestHeader(group, clean_offset=not keep_offsets)
        return _deleted(await self._ask_all(RequestCode.DELETE_SUBSCRIPTIONGROUP, header))

    async def broker_settings(self) -> dict[str, str]:
        """Return the settings of every broker in the form of a settings file, by its address."""
        answers = await self._ask_all(RequestCode.GET_BROKER_CONFIG)
        return {address: answer.body.decode(errors="replace") for address, answer in answers.items()}

    async def sync_store(self) -> None:
        """Let brokers sync their logs, so that readers of their directories see every message that was acknowledged."""
        await self._ask_all(RequestCode.SYNC_STORE)

    async def delete_expired_files(self) -> None:
        """Let brokers delete the files that may be deleted."""
        await self._ask_all(RequestCode.DELETE_EXPIRED_COMMITLOG)

    async def free_bytes(self, header: b.FreeBytesRequestHeader) -> dict[str, Any]:
        """Let a broker free bytes, or ask for the state of that request; return the members of FreeRequest."""
        [address] = await self.brokers()
        return dict(fastjson.loads((await self._ask(address, RequestCode.FREE_BYTES, header)).body or b""))

    async def runtime_info(self) -> dict[str, dict[str, str]]:
        """Return the figures of every broker, by its address."""
        answers = await self._ask_all(RequestCode.GET_BROKER_RUNTIME_INFO)
        return {address: dict(fastjson.loads(answer.body)["table"]) for address, answer in answers.items()}

    async def ha_status(self) -> dict[str, Any]:
        """Return the HARuntimeInfo of a broker, as mqadmin haStatus shows it."""
        [address] = await self.brokers()
        return await self._ha_status(address)

    async def broker_status(self) -> dict[str, BrokerStatus | RemotingError]:
        """Return the status of the broker; or of each of a name server, slaves too, or the error of one, by address.

        Raises RemotingError if the server of this client does not answer, or has no broker.
        """
        if self._broker:
            return {self._broker: await self._status(self._broker)}
        addresses = [address for _, _, address in registered(await self._cluster())]
        if not addresses:
            raise RemotingError(f"no broker is registered at the name server {', '.join(self._namesrv)}")

        async def status_or_error(address: str) -> BrokerStatus | RemotingError:
            try:
                return await self._status(address)
            except RemotingError as error:
                return error

        return dict(zip(addresses, await asyncio.gather(*map(status_or_error, addresses)), strict=True))

    async def _status(self, address: str) -> BrokerStatus:
        answer = await self._ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return BrokerStatus(dict(fastjson.loads(answer.body)["table"]), await self._ha_status(address))

    async def _ha_status(self, address: str) -> dict[str, Any]:
        answer = await self._ask(
            address, RequestCode.GET_BROKER_HA_STATUS,
            ok=(ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED))
        return dict(fastjson.loads(answer.body or b"{}")) if answer.code == ResponseCode.SUCCESS else {}

    # --- requests

    async def _ask_all(
        self, code: int, header: CustomHeader | None = None, body: bytes = b"", *, without: Iterable[int] = (),
        brokers: Iterable[str] | None = None,
    ) -> dict[str, RemotingCommand]:
        """Send a request to all brokers in turn, or to some; return the answers by address.

        An answer with a code of ``without`` is left out.
        """
        answers = {}
        for address in await self.brokers() if brokers is None else brokers:
            answer = await self._ask(address, code, header, body, ok=(ResponseCode.SUCCESS, *without))
            if answer.code == ResponseCode.SUCCESS:
                answers[address] = answer
        return answers

    async def _bodies(
        self, code: int, header: CustomHeader | None = None, *, without: Iterable[int] = (),
        brokers: Iterable[str] | None = None,
    ) -> list[Any]:
        """Return the objects in the answers of brokers, see `_ask_all`."""
        answers = await self._ask_all(code, header, without=without, brokers=brokers)
        return [fastjson.loads(answer.body) for answer in answers.values()]

    async def _ask_having(self, topic: str, code: int, header: CustomHeader) -> dict[str, RemotingCommand]:
        """Ask every broker that has a topic. Raises RemotingCommandError (TOPIC_NOT_EXIST) if none has it."""
        answers = await self._ask_all(code, header, without=(ResponseCode.TOPIC_NOT_EXIST,))
        if not answers:
            raise RemotingCommandError(ResponseCode.TOPIC_NOT_EXIST, f"no broker has topic {topic}")
        return answers

    async def _ask(
        self, address: str, code: int, header: CustomHeader | None = None, body: bytes = b"", *,
        ok: Container[int] = (ResponseCode.SUCCESS,),
    ) -> RemotingCommand:
        return await self._remoting.ask(address, code, header, body, ok=ok, timeout_ms=self._timeout_ms)

    async def _ask_name_server(self, code: int) -> RemotingCommand:
        """Send a request to the name servers in turn; return the answer of the first that answers."""
        *others, last = self._namesrv
        for address in others:
            with contextlib.suppress(RemotingConnectError, RemotingTimeoutError):
                return await self._ask(address, code)
        return await self._ask(last, code)


async def _each(names: Iterable[str], ask: Callable[[str], Awaitable[_Result]]) -> dict[str, _Result]:
    """Return an answer for each name, with a bounded number of requests at a time; refused ones are left out."""
    slots, found = asyncio.Semaphore(_AT_ONCE), dict[str, _Result]()

    async def one(name: str) -> None:
        async with slots:
            with contextlib.suppress(RemotingCommandError):
                found[name] = await ask(name)

    await asyncio.gather(*map(one, names))
    return found


def _deleted(answers: dict[str, RemotingCommand]) -> Deleted:
    """Return what brokers have deleted. The answer of a Java broker has no body."""
    bodies = [fastjson.loads(answer.body) for answer in answers.values() if answer.body]
    topics, kept = (
        sorted({str(name) for body in bodies for name in body.get(member, ())}) for member in ("deletedTopics", "kept"))
    return Deleted([*answers], topics, kept)


def _group_queues(table: Any) -> list[GroupQueue]:
    return [
        GroupQueue(queue["topic"], queue["brokerName"], queue["queueId"], place["brokerOffset"],
                   place["consumerOffset"], place["lastTimestamp"])
        for queue, place in _pairs(table)]


def _pairs(table: Any) -> list[tuple[dict[str, Any], Any]]:
    """Return keys and values of an object whose keys are objects."""
    return [(fastjson.loads(key), value) for key, value in table.items()]
