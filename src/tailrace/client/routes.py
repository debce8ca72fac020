"""Routes of topics, from a name server or directly from one broker."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, final

from tailrace.env.clock import Clock
from tailrace.errors import ConfigError, RemotingCommandError, RemotingError
from tailrace.formats import fastjson
from tailrace.formats.names import AUTO_CREATE_TOPIC_KEY_TOPIC
from tailrace.formats.remoting import RequestCode, ResponseCode
from tailrace.formats.requests.broker_headers import (
    CreateTopicRequestHeader,
    GetAllTopicConfigRequestHeader,
    GetTopicConfigRequestHeader,
)
from tailrace.formats.requests.name_server_headers import GetRouteInfoRequestHeader
from tailrace.remoting.client import RemotingClient
from tailrace.spellings import meant

__all__ = ["DEFAULT_QUEUES", "MessageQueue", "Route", "Routes", "masters", "readable", "registered", "topic_header"]

DEFAULT_QUEUES = 4
"""Number of queues that a send requests if it creates its topic; it must not choose a queue beyond them."""
EVICTED_MAX: Final = 8
"""Routes that are dropped at most when one is kept, so that no call takes long."""
QUEUES_MAX = 1 << 31
MASTER_ID: Final = 0
REFRESH_NS = 30_000_000_000
KEPT_MAX: Final = 10_000
"""Number of topics whose routes are kept; the routes that were fetched first are dropped."""
NAMES_MAX: Final = 5_000
"""Number of topics up to which a name is looked for that is similar to one that does not exist."""
MISSING_KEPT_MAX: Final = 100
"""Number of topics that do not exist whose similar names are kept for 30 s, so that failing sends fetch no names."""
_READ, _WRITE = 4, 2
_BROKER_NAME: Final = re.compile(r"^brokerName=(\S+)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """One queue of a topic on one broker."""

    topic: str
    broker_name: str
    queue_id: int

    def to_json(self) -> dict[str, Any]:
        """Return the members by RocketMQ's names."""
        return {"brokerName": self.broker_name, "queueId": self.queue_id, "topic": self.topic}

    @classmethod
    def from_json(cls, value: Any) -> MessageQueue:
        """Return the queue in an object of JSON. Raises ValueError."""
        try:
            return cls(str(value["topic"]), str(value["brokerName"]), int(value["queueId"]))
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"{str(value)[:100]!r} is not a queue") from None


@dataclass(frozen=True, slots=True)
class Route:
    """Queues of a topic that may be written and read, and the brokers' addresses."""

    write_queues: tuple[MessageQueue, ...]
    read_queues: tuple[MessageQueue, ...]
    addresses: dict[str, str]
    """Address of the master of each broker name, or of the slave with the lowest id if the name has no master."""
    by_id: dict[str, dict[int, str]] = field(default_factory=dict)
    """Addresses of a broker name by broker id; the master has the id 0. Empty for a single broker."""

    def has_master(self, broker_name: str) -> bool:
        """Return whether `addresses` has the master of a broker name, and not a slave."""
        return MASTER_ID in self.by_id.get(broker_name, {MASTER_ID: ""})

    def readers(self, broker_name: str, suggested: int) -> list[tuple[str, bool]]:
        """Return the addresses from which a queue can be read, and whether each is a slave; the best is the first.

        That is the broker with the id ``suggested``, or the next id as in RocketMQ's clients, then the master,
        then the slaves.
        """
        by_id = self.by_id.get(broker_name)
        if not by_id:
            return [(self.addresses[broker_name], False)] if broker_name in self.addresses else []
        first = next((one for one in (suggested, suggested + 1) if suggested and one in by_id), MASTER_ID)
        ids = sorted(by_id, key=lambda one: (one != first, one))
        return [(by_id[one], one != MASTER_ID) for one in ids]


@final
class Routes:
    """Routes of topics, kept for 30 seconds.

    Calls that need the same route at the same time share one request.

    A static topic is refused (RemotingError): its queues have other numbers for clients. ``physical`` gives the
    queues of brokers instead.
    """

    def __init__(
        self, remoting: RemotingClient, clock: Clock, namesrv: str, broker: str, *, physical: bool = False
    ) -> None:
        if bool(namesrv) == bool(broker):
            raise ConfigError("set either namesrv or broker, as HOST:PORT")
        self._physical = physical
        self._remoting = remoting
        self._clock = clock
        self._namesrv = [address.strip() for address in namesrv.split(";") if address.strip()]
        self.broker = broker
        self._broker_name = ""
        self._kept: dict[str, tuple[int, Route]] = {}
        """Time of the request and route by topic, in the order of the times. Routes that are too old are dropped."""
        self._asked: dict[tuple[str, str], asyncio.Task[Route]] = {}
        """Requests that have no answer yet, by the topic that was asked for and the topic of the route."""
        self._missing: dict[str, tuple[int, str]] = {}
        """Time, and the text of `explained`, by topic."""
        self.on_answer: Callable[[str], None] = _no_matter
        """Called with the address of a name server that has answered; must not raise."""

    async def of(self, topic: str, *, for_write: bool = False) -> Route:
        """Return the route of a topic.

        ``for_write`` gives a topic that does not exist yet the queues of the auto-creation topic.
        Raises RemotingCommandError with code TOPIC_NOT_EXIST, or the error of the connection.
        """
        kept = self._kept.get(topic)
        if kept is not None and self._clock.monotonic_ns() - kept[0] < REFRESH_NS:
            return kept[1]
        try:
            return await self._shared(topic, topic)
        except RemotingCommandError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST or not for_write:
                raise
            # Not cached, because the first send creates the topic, which then has its own route.
            return await self._shared(AUTO_CREATE_TOPIC_KEY_TOPIC, topic)

    async def explained(self, topic: str, error: RemotingError) -> RemotingError:
        """Return the error of a topic that does not exist, with the most similar name that servers have.

        Another error is returned unchanged. If the names cannot be fetched, no name is suggested.
        """
        if not isinstance(error, RemotingCommandError) or error.code != ResponseCode.TOPIC_NOT_EXIST or not (
            error.address  # empty in an error of this client, which knows a route
        ):
            return error
        now_ns = self._clock.monotonic_ns()
        kept = self._missing.pop(topic, None)
        if kept is None or now_ns - kept[0] >= REFRESH_NS:
            place = self.broker or self._namesrv[0]
            kept = now_ns, f"{place} has no topic {topic}{meant(topic, await self._names())}"
        self._missing[topic] = kept
        if len(self._missing) > MISSING_KEPT_MAX:
            del self._missing[next(iter(self._missing))]
        return RemotingCommandError(error.code, error.remark, error.address, kept[1])

    async def _names(self) -> list[str]:
        """Return the names of all topics; none if there are too many, or if they are not given to this client."""
        try:
            if self.broker:
                answer = await self._remoting.invoke(
                    self.broker, RequestCode.GET_ALL_TOPIC_CONFIG, GetAllTopicConfigRequestHeader(topic_seq=0).to_ext())
                names = list(fastjson.loads(answer.body)["topicConfigTable"])
            else:
                answer = await self._remoting.invoke(
                    self._namesrv[0], RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {})
                names = list(fastjson.loads(answer.body)["topicList"])
        except (RemotingError, KeyError, TypeError, ValueError):
            return []
        return names if len(names) <= NAMES_MAX else []

    async def brokers(self, topic: str) -> list[str]:
        """Return the addresses of the brokers that may have a topic: those of its route, else all that are known."""
        try:
            return sorted(set((await self.of(topic, for_write=True)).addresses.values()))
        except RemotingCommandError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
        # No broker creates topics in a send, so none has the auto-creation topic.
        if self.broker:
            return [self.broker]
        address = self._namesrv[0]
        answer = await self._remoting.ask(address, RequestCode.GET_BROKER_CLUSTER_INFO)
        with readable(address):
            return masters(fastjson.loads(answer.body), address)

    async def _shared(self, asked: str, topic: str) -> Route:
        """Return the result of `_ask`, of the request that is under way if there is one."""
        key = asked, topic
        task = self._asked.get(key)
        if task is None:
            task = self._asked[key] = asyncio.create_task(self._fetch(asked, topic))
            task.add_done_callback(lambda done: self._answered(key, done))
        return await asyncio.shield(task)  # a caller that is cancelled leaves the request to the others

    def _answered(self, key: tuple[str, str], task: asyncio.Task[Route]) -> None:
        if self._asked.get(key) is task:
            del self._asked[key]
        if not task.cancelled():
            task.exception()  # marked as seen, even if all callers were cancelled

    async def _fetch(self, asked: str, topic: str) -> Route:
        began_ns = self._clock.monotonic_ns()
        route = await self._ask(asked, topic)
        if asked == topic and self._asked.get((asked, topic)) is asyncio.current_task():  # not forgotten since
            self._keep(topic, began_ns, route)
        return route

    def _keep(self, topic: str, began_ns: int, route: Route) -> None:
        self._kept.pop(topic, None)
        self._kept[topic] = began_ns, route
        oldest_ns = self._clock.monotonic_ns() - REFRESH_NS
        for name, (fetched_ns, _) in list(itertools.islice(self._kept.items(), EVICTED_MAX)):
            if fetched_ns > oldest_ns and len(self._kept) <= KEPT_MAX:
                break
            del self._kept[name]

    def forget(self, topic: str) -> None:
        """Drop the route, so that the next use fetches it again."""
        self._kept.pop(topic, None)
        self._asked.pop((topic, topic), None)  # its answer may be of before

    def is_name_server(self, address: str) -> bool:
        """Return whether routes are asked for at this address, and it is not a broker."""
        return address in self._namesrv

    async def _ask(self, asked: str, topic: str) -> Route:
        if self.broker:
            return await self._ask_broker(asked, topic)
        header = GetRouteInfoRequestHeader(asked, accept_standard_json_only=True)
        last: RemotingError | None = None
        for address in list(self._namesrv):
            try:
                answer = await self._remoting.ask(address, RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
            except RemotingCommandError:
                self.on_answer(address)
                raise
            except RemotingError as error:
                last = error
                if self._namesrv[0] == address:  # unless another call has moved it to the end before
                    self._namesrv.append(self._namesrv.pop(0))
                continue
            self.on_answer(address)
            most = DEFAULT_QUEUES if asked != topic else QUEUES_MAX
            with readable(address):
                found = fastjson.loads(answer.body)
                self._check_mapping(topic, found.get("topicQueueMappingByBroker"))
                return _route(found, topic, most)
        assert last is not None
        raise last

    async def _ask_broker(self, asked: str, topic: str) -> Route:
        answer = await self._remoting.ask(
            self.broker, RequestCode.GET_TOPIC_CONFIG, GetTopicConfigRequestHeader(asked, lo=True))
        with readable(self.broker):
            config = fastjson.loads(answer.body)
            config = config.get("topicConfig", config)
            self._check_mapping(topic, config.get("mappingDetail"))
            reads, writes = int(config["readQueueNums"]), int(config["writeQueueNums"])
        if asked != topic:
            reads, writes = min(reads, DEFAULT_QUEUES), min(writes, DEFAULT_QUEUES)
        name = self._broker_name or await self._ask_name()
        return Route(
            tuple(MessageQueue(topic, name, n) for n in range(writes)),
            tuple(MessageQueue(topic, name, n) for n in range(reads)),
            {name: self.broker})

    def _check_mapping(self, topic: str, mapping: object) -> None:
        if mapping and not self._physical:
            raise RemotingError(
                f"{topic} is a static topic, and this client does not know logical queues; use a Java client for it")

    async def _ask_name(self) -> str:
        """Return the name of the one broker, by which all members of a group name its queues.

        A broker that does not show its settings is named by its address.
        """
        answer = await self._remoting.invoke(self.broker, RequestCode.GET_BROKER_CONFIG, {})
        found = _BROKER_NAME.search(answer.body.decode(errors="replace"))
        self._broker_name = found[1] if found and answer.code == ResponseCode.SUCCESS else self.broker
        return self._broker_name


def _no_matter(_address: str) -> None:
    """Do nothing."""


@contextlib.contextmanager
def readable(address: str) -> Iterator[None]:
    """Raise RemotingError if the answer of a server does not have the members that it should have."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RemotingError(f"{address}: its answer cannot be read: {error!r}") from error


def topic_header(topic: str, queues: int, attributes: Mapping[str, str]) -> CreateTopicRequestHeader:
    """Return the header of the request that creates a topic, or changes its queues and attributes."""
    return CreateTopicRequestHeader(
        topic, AUTO_CREATE_TOPIC_KEY_TOPIC, queues, queues, 6, "SINGLE_TAG", topic_sys_flag=0,
        attributes=",".join(f"+{k}={v}" for k, v in attributes.items()) or None)


def masters(cluster: dict[str, Any], namesrv: str) -> list[str]:
    """Return the addresses of all masters, at least one, in the answer of ``namesrv`` to GET_BROKER_CLUSTER_INFO.

    Raises RemotingError if it has no master, because a change of no broker would look like one that is done.
    """
    found = sorted(address for _, number, address in registered(cluster) if number == MASTER_ID)
    if not found:
        raise RemotingError(f"no master broker is registered at the name server {namesrv}")
    return found


def registered(cluster: dict[str, Any]) -> list[tuple[str, int, str]]:
    """Return name, id and address of each broker in an answer to GET_BROKER_CLUSTER_INFO, a master before its slaves.
    """
    table = cluster.get("brokerAddrTable") or {}
    return sorted(
        (name, int(number), str(address)) for name, broker in table.items()
        for number, address in broker["brokerAddrs"].items())


def _route(data: dict[str, Any], topic: str, most: int) -> Route:
    """Return the route in an answer, with at most ``most`` queues of each broker."""
    by_id: dict[str, dict[int, str]] = {}
    for broker in data.get("brokerDatas", ()):
        if found := {int(number): address for number, address in broker["brokerAddrs"].items()}:
            by_id[broker["brokerName"]] = found
    addresses = {name: found[min(found)] for name, found in by_id.items()}
    writes: list[MessageQueue] = []
    reads: list[MessageQueue] = []
    for queue in data.get("queueDatas", ()):
        name = queue["brokerName"]
        if name not in addresses:
            continue
        if queue["perm"] & _WRITE and MASTER_ID in by_id[name]:  # slaves take no messages
            count = min(int(queue["writeQueueNums"]), most)
            writes += [MessageQueue(topic, name, n) for n in range(count)]
        if queue["perm"] & _READ:
            count = min(int(queue["readQueueNums"]), most)
            reads += [MessageQueue(topic, name, n) for n in range(count)]
    return Route(tuple(sorted(writes)), tuple(sorted(reads)), addresses, by_id)
