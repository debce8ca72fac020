"""The name server: it knows which broker has which topic, and keeps a small key-value table.

The broker in the same process is registered with its live topic table, so a new topic has a route
immediately. Other brokers register by request 103. They are removed when their connection closes, or when
they have sent nothing for too long.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Final, final

from tailrace import events
from tailrace.auth.check import AccessControl
from tailrace.config import NameServerConfig
from tailrace.env.clock import Clock
from tailrace.errors import RefusalError, StoreError
from tailrace.formats import fastjson
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode, sender_of
from tailrace.formats.requests import name_server_headers as headers
from tailrace.logs import get_logger
from tailrace.namesrv.kv_config import ORDER_TOPIC_CONFIG, KVConfigManager
from tailrace.namesrv.registration_body import Registered, read_registration
from tailrace.namesrv.route_rights import RouteRights
from tailrace.node.topic_config import PERM_WRITE, TopicConfig, validate_topic
from tailrace.node.topic_queue_mapping import TopicQueueMappingDetail
from tailrace.remoting import Channel
from tailrace.requests.bodies import (
    json_object,
    json_value,
    objects_in,
    text_in,
)
from tailrace.requests.config_changes import Change, ConfigChanges
from tailrace.requests.executors import Executors
from tailrace.requests.processor import RequestProcessor, answers, serves
from tailrace.requests.reply import Answer, Reply
from tailrace.requests.worker import RequestWorker

__all__ = ["KVConfigManager", "NameServer"]

_log = get_logger(__name__)

EXPIRED_MS: Final = 120_000
NAME_MAX: Final = 255
BROKERS_MAX: Final = 1_000
MEMBERS_MAX: Final = 100
TOPICS_MAX: Final = 200_000
"""Number of topics of all brokers of other processes together."""
UNIT, UNIT_SUB = 1, 2
"""Flags of topics: one of a unit, and one that groups of units consume."""
SMALL_BODY: Final = 64 * 1024
"""Bytes of a registration up to which the event loop reads it; a thread reads larger ones."""
FAQ: Final = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


@dataclass(slots=True, kw_only=True)
class BrokerMember:
    """One address of a broker. ``channel`` is None for the broker of this process."""

    address: str
    broker_id: int
    ha_address: str = ""
    data_version: dict[str, int] = field(default_factory=dict)
    expired_ms: int = EXPIRED_MS
    last_update_ns: int = 0
    channel: Channel | None = None


@dataclass(slots=True, kw_only=True)
class Broker:
    """A broker by name, with its members and topics."""

    name: str
    cluster: str
    members: dict[int, BrokerMember] = field(default_factory=dict)
    topics: Mapping[str, TopicConfig] = field(default_factory=dict)
    mappings: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    """TopicQueueMappingInfo objects of its static topics, by topic."""
    is_local: bool = False
    user: str | None = None
    """The user that has registered it; empty without users, None for the broker of this process."""
    enable_acting_master: bool = False
    write_wiped: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the broker as a BrokerData."""
        return {
            "brokerAddrs": {str(i): m.address for i, m in sorted(self.members.items())},
            "brokerName": self.name,
            "cluster": self.cluster,
            "enableActingMaster": self.enable_acting_master,
        }

    def queue_data(self, config: TopicConfig) -> dict[str, Any]:
        """Return one of its topics as a QueueData."""
        return {
            "brokerName": self.name,
            "perm": config.perm & ~PERM_WRITE if self.write_wiped else config.perm,
            "readQueueNums": config.read_queue_nums,
            "topicSysFlag": config.topic_sys_flag,
            "writeQueueNums": config.write_queue_nums,
        }


@final
class NameServer(RequestProcessor):
    """Answers the requests of clients, admin tools and brokers to a name server."""

    def __init__(
        self, clock: Clock, kv: KVConfigManager, config: NameServerConfig,
        loop: asyncio.AbstractEventLoop | None = None, executors: Executors | None = None, *,
        control: AccessControl | None = None, registration_needs_topics: bool = True,
    ) -> None:
        self._clock = clock
        self._kv = kv
        self._config = config
        self._loop = loop
        self._rights = None if control is None else RouteRights(control, needs_topics=registration_needs_topics)
        executors = executors or Executors()
        self.worker = self._worker = RequestWorker(loop, executors.worker("name-server"))
        self._changes = ConfigChanges(loop, self.worker, executors.files)
        self._brokers: dict[str, Broker] = {}
        self._own_mappings: Mapping[str, TopicQueueMappingDetail] = {}

    @property
    def later(self) -> list[ConfigChanges | RequestWorker]:
        """The objects that answer requests later, and have to be stopped."""
        return [self._changes, self.worker]

    # --- the table

    def register_local(
        self, cluster: str, name: str, address: str, topics: Mapping[str, TopicConfig],
        mappings: Mapping[str, TopicQueueMappingDetail] = MappingProxyType({}), ha_address: str = "",
    ) -> None:
        """Register the broker of this process. ``topics`` and ``mappings`` are read at each request."""
        self._own_mappings = mappings
        broker = Broker(name=name, cluster=cluster, topics=topics, is_local=True)
        broker.members[0] = BrokerMember(address=address, broker_id=0, ha_address=ha_address)
        self._brokers[name] = broker

    def members(self, cluster: str, name: str) -> dict[int, str]:
        """Return the addresses of a broker by id."""
        broker = self._brokers.get(name)
        if broker is None or broker.cluster != cluster:
            return {}
        return {number: member.address for number, member in broker.members.items()}

    def route(self, topic: str) -> dict[str, Any] | None:
        """Return the route of a topic as a TopicRouteData; None if no broker has the topic."""
        found = [  # each topic is looked up once, because other threads change the topics of this process's broker
            (b, config) for b in self._brokers.values()
            if (config := b.topics.get(topic)) is not None and b.members]
        if not found:
            return None
        route = {
            "brokerDatas": [b.to_json() for b, _ in found],
            "filterServerTable": {},
            "queueDatas": [b.queue_data(config) for b, config in found],
        }
        if mappings := {info["bname"]: info for b, _ in found if (info := self._mapping_of(b, topic))}:
            route["topicQueueMappingByBroker"] = mappings
        return route

    def _mapping_of(self, broker: Broker, topic: str) -> dict[str, Any] | None:
        if not broker.is_local:
            return broker.mappings.get(topic)
        detail = self._own_mappings.get(topic)
        return None if detail is None else detail.info()

    def closed(self, channel: Channel) -> None:
        """Remove the brokers that registered over a connection that has closed, and its requests that wait."""
        self.worker.closed(channel)
        self._drop(lambda member: member.channel is channel)

    def expire(self) -> None:
        """Remove brokers that have sent nothing for too long."""
        now = self._clock.monotonic_ns()
        self._drop(
            lambda m: m.channel is not None and now - m.last_update_ns > m.expired_ms * 1_000_000
        )

    def _drop(self, gone: Callable[[BrokerMember], bool]) -> None:
        for broker in list(self._brokers.values()):
            self._drop_members(broker, [member for member in broker.members.values() if gone(member)])

    def _drop_members(self, broker: Broker, gone: list[BrokerMember]) -> None:
        for member in gone:
            del broker.members[member.broker_id]
            events.BROKER_UNREGISTERED.log(_log, name=broker.name, id=member.broker_id, address=member.address)
        if not broker.members:
            del self._brokers[broker.name]

    # --- requests

    @answers(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    def get_route(self, header: headers.GetRouteInfoRequestHeader) -> dict[str, Any]:
        """Return the route of a topic: request 105."""
        route = self.route(header.topic)
        if route is None:
            raise RefusalError(
                ResponseCode.TOPIC_NOT_EXIST, f"No topic route info in name server for the topic: {header.topic}{FAQ}")
        if self._config.order_message_enable and (order := self._kv.get(ORDER_TOPIC_CONFIG, header.topic)):
            route["orderTopicConf"] = order
        return route

    @answers(RequestCode.GET_BROKER_CLUSTER_INFO)
    def cluster_info(self) -> dict[str, Any]:
        """Return all brokers by cluster: request 106."""
        clusters: dict[str, list[str]] = {}
        for broker in self._brokers.values():
            clusters.setdefault(broker.cluster, []).append(broker.name)
        return {
            "brokerAddrTable": {name: b.to_json() for name, b in self._brokers.items()},
            "clusterAddrTable": clusters,
        }

    @answers(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, in_thread=True)
    def all_topics(self) -> dict[str, Any]:
        """Return all topics: request 206."""
        _refuse_unless(self._config.enable_all_topic_list, "enableAllTopicList")
        return _topic_list({t for b in list(self._brokers.values()) for t in list(b.topics)})

    @answers(RequestCode.GET_TOPICS_BY_CLUSTER, in_thread=True)
    def topics_by_cluster(self, header: headers.GetTopicsByClusterRequestHeader) -> dict[str, Any]:
        """Return the topics of a cluster: request 224."""
        _refuse_unless(self._config.enable_topic_list, "enableTopicList")
        return _topic_list({
            t for b in list(self._brokers.values()) if b.cluster == header.cluster for t in list(b.topics)})

    @answers(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    def system_topics(self) -> dict[str, Any]:
        """Return the names of clusters and brokers, which are names of system topics: request 304."""
        found = _topic_list({b.cluster for b in self._brokers.values()} | set(self._brokers))
        address = next((m.address for b in self._brokers.values() for m in b.members.values()), None)
        return found if address is None else {**found, "brokerAddr": address}

    @answers(RequestCode.GET_UNIT_TOPIC_LIST, in_thread=True)
    def unit_topics(self) -> dict[str, Any]:
        """Return the topics of units: request 311."""
        return self._with_flags(UNIT, UNIT)

    @answers(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, in_thread=True)
    def unit_sub_topics(self) -> dict[str, Any]:
        """Return the topics that groups of units consume: request 312."""
        return self._with_flags(UNIT_SUB, UNIT_SUB)

    @answers(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, in_thread=True)
    def unit_sub_only_topics(self) -> dict[str, Any]:
        """Return the topics that groups of units consume and that are of no unit: request 313."""
        return self._with_flags(UNIT | UNIT_SUB, UNIT_SUB)

    def _with_flags(self, mask: int, wanted: int) -> dict[str, Any]:
        _refuse_unless(self._config.enable_topic_list, "enableTopicList")
        return _topic_list({
            topic for b in list(self._brokers.values()) for topic, c in list(b.topics.items())
            if c.topic_sys_flag & mask == wanted})

    @serves(RequestCode.DELETE_TOPIC_IN_NAMESRV)
    def delete_topic(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Remove a topic of brokers of other processes: request 216. The broker of this process keeps it."""
        header = request.read(headers.DeleteTopicFromNamesrvRequestHeader)
        topic, cluster = header.topic, header.cluster_name
        found = [
            broker for broker in self._brokers.values()
            if not broker.is_local and topic in broker.topics and cluster in {None, "", broker.cluster}]
        self._check_clusters(channel, request, found)
        for broker in found:
            broker.topics = {t: c for t, c in broker.topics.items() if t != topic}
            broker.mappings = {t: info for t, info in broker.mappings.items() if t != topic}
        return request.answer()

    @serves(RequestCode.REGISTER_TOPIC_IN_NAMESRV)
    def register_topic(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Add a topic to brokers of other processes: request 217. If one of them is unknown, nothing is added."""
        topic = request.read(headers.RegisterTopicRequestHeader).topic
        entries = objects_in(json_object(request), "queueDatas", BROKERS_MAX)
        named = [self._brokers.get(text_in(entry, "brokerName")) for entry in entries]
        if reason := validate_topic(topic):
            raise RefusalError(ResponseCode.INVALID_PARAMETER, reason)
        if self._rights is not None:
            self._check_clusters(channel, request, named)
            self._rights.check_topics(channel, request, [topic])
        if None in named:
            return request.answer()
        # A broker that is named twice keeps the last of its entries.
        for name, entry in {b.name: e for b, e in zip(named, entries, strict=True) if b}.items():
            broker = self._brokers[name]
            if not broker.is_local:
                self._check_topics(broker, [topic])
                broker.topics = {**broker.topics, topic: TopicConfig.from_json(entry, topic)}
        return request.answer()

    @serves(RequestCode.PUT_KV_CONFIG)
    def put_kv(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Set a value of the key-value table: request 100."""
        header = request.read(headers.PutKVConfigRequestHeader)
        change = Change(self._kv, self._kv.setting(header.namespace, header.key, header.value))
        return self._changes.apply(channel, request, [change], request.answer)

    @answers(RequestCode.GET_KV_CONFIG)
    def get_kv(self, header: headers.GetKVConfigRequestHeader) -> headers.GetKVConfigResponseHeader:
        """Return a value of the key-value table: request 101."""
        value = self._kv.get(header.namespace, header.key)
        if value is None:
            raise RefusalError(
                ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {header.namespace} Key: {header.key}")
        return headers.GetKVConfigResponseHeader(value)

    @serves(RequestCode.DELETE_KV_CONFIG)
    def delete_kv(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Remove a value of the key-value table: request 102."""
        header = request.read(headers.DeleteKVConfigRequestHeader)
        change = Change(self._kv, self._kv.deletion(header.namespace, header.key))
        return self._changes.apply(channel, request, [change], request.answer)

    @answers(RequestCode.GET_KVLIST_BY_NAMESPACE, in_thread=True)
    def list_kv(self, header: headers.GetKVListByNamespaceRequestHeader) -> dict[str, Any]:
        """Return all values of a namespace: request 219."""
        values = self._kv.namespace(header.namespace)
        if values is None:
            raise RefusalError(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {header.namespace}")
        return {"table": values}

    @serves(RequestCode.REGISTER_BROKER)
    def register_broker(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Register a broker of another process: request 103. A large body is read in another thread."""
        header = request.read(headers.RegisterBrokerRequestHeader)
        read = partial(read_registration, request, compressed=header.compressed)
        then = partial(self._register_broker, channel, request)
        is_small = not header.compressed and len(request.body) <= SMALL_BODY
        if is_small or self._loop is None or not self._loop.is_running():
            return then(read())
        self.worker.submit(Reply(channel, request), read, then)
        return None

    def _register_broker(
        self, channel: Channel, request: RemotingCommand, found: Registered
    ) -> RemotingCommand:
        header, version, topics = request.read(headers.RegisterBrokerRequestHeader), found.version, found.topics
        if header.body_crc32 and header.body_crc32 != zlib.crc32(request.body) & 0x7FFFFFFF:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        name, address, broker_id = header.broker_name, header.broker_addr, header.broker_id
        if channel.closed:  # while its body was read: nothing would remove the entry with the connection
            raise RefusalError(ResponseCode.SYSTEM_ERROR, f"the connection of broker {name} has closed")
        member = BrokerMember(
            address=address, broker_id=broker_id, ha_address=header.ha_server_addr,
            data_version=version, channel=channel, last_update_ns=self._clock.monotonic_ns(),
            expired_ms=header.heartbeat_timeout_millis or EXPIRED_MS,
        )
        if self._rights is not None:
            self._check_registration(channel, request, self._rights, found)
        broker = self._brokers.get(name) or Broker(
            name=name, cluster=header.cluster_name, user=sender_of(request))
        if broker.cluster != header.cluster_name:  # permissions are those of the cluster that a request names
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR,
                f"broker {name} is registered in cluster {broker.cluster}, so it cannot register in cluster "
                f"{header.cluster_name}")
        self._check_room(broker, broker_id, topics)
        before = broker.members.get(broker_id)
        takes_own = broker.is_local and any(
            m.channel is None and (m.broker_id == broker_id or m.address == address) for m in broker.members.values())
        if takes_own or (len(topics) == 1 and before is None):
            raise RefusalError(ResponseCode.SYSTEM_ERROR, "register broker failed")
        if before is not None and before.address != address and (
            before.data_version.get("stateVersion", 0) > version.get("stateVersion", 0)
        ):
            return request.answer()  # ignored: an older state of the same broker
        self._brokers[name] = broker
        for other_id, other in list(broker.members.items()):
            if other.address == address and other_id != broker_id:
                del broker.members[other_id]
        if before is None or before.address != address:
            events.BROKER_REGISTERED.log(_log, name=name, id=broker_id, address=address)
        broker.enable_acting_master = bool(header.enable_acting_master)
        broker.members[broker_id] = member
        # A registration may be split into several, so topics are only added; request 216 removes them.
        acts = header.enable_acting_master is not None and broker_id == min(broker.members)
        if topics and not broker.is_local and (broker_id == 0 or acts):
            broker.topics = {**broker.topics, **topics}
            broker.mappings = {**broker.mappings, **found.mappings}
            if before is None or before.data_version != version:
                broker.write_wiped = broker_id != 0 and broker.enable_acting_master
        answer = headers.RegisterBrokerResponseHeader()
        master = broker.members.get(0)
        if broker_id != 0 and master is not None:
            answer.master_addr, answer.ha_server_addr = master.address, master.ha_address
        order = None
        if self._config.return_order_topic_config_to_broker:
            order = self._kv.namespace(ORDER_TOPIC_CONFIG)
        return request.answer(
            ext=answer, body=fastjson.dumps({"table": order}) if order else b""
        )

    def _check_registration(
        self, channel: Channel, request: RemotingCommand, rights: RouteRights, found: Registered
    ) -> None:
        """Raise RefusalError unless the user may register this broker with these topics.

        If a super user takes the name over, what another user has registered under it is removed.
        """
        header = request.read(headers.RegisterBrokerRequestHeader)
        broker = self._brokers.get(header.broker_name)
        rights.check_owner(channel, request, broker, header.cluster_name)
        rights.check_topics(channel, request, {*found.topics, *found.mappings})
        rights.check_room(request, self._brokers.values(), header.broker_name, found.topics)
        if broker is not None and rights.takes_over(request, broker):
            self._drop_members(broker, list(broker.members.values()))

    def _check_clusters(
        self, channel: Channel, request: RemotingCommand, brokers: Iterable[Broker | None]
    ) -> None:
        """Raise RefusalError unless the user may update the clusters of brokers that a request changes."""
        if self._rights is not None:
            for cluster in {broker.cluster for broker in brokers if broker is not None}:
                self._rights.check_cluster(channel, request, cluster)

    def _check_owner(self, channel: Channel, request: RemotingCommand, name: str, cluster: str) -> None:
        if self._rights is not None:
            self._rights.check_owner(channel, request, self._brokers.get(name), cluster)

    def _check_room(self, broker: Broker, broker_id: int, topics: Mapping[str, TopicConfig]) -> None:
        """Raise StoreError if there would be too many brokers, members or topics, or if a name is too long."""
        names = broker.name, broker.cluster
        if max(map(len, names)) > NAME_MAX:
            raise StoreError(f"the name of a broker or cluster is longer than {NAME_MAX} characters")
        if broker.name not in self._brokers and len(self._brokers) >= BROKERS_MAX:
            raise StoreError(f"{len(self._brokers)} brokers are registered, the limit is {BROKERS_MAX}")
        if broker_id not in broker.members and len(broker.members) >= MEMBERS_MAX:
            raise StoreError(f"broker {broker.name} has {MEMBERS_MAX} members, the limit")
        self._check_topics(broker, topics)

    def _check_topics(self, broker: Broker, topics: Collection[str]) -> None:
        """Raise StoreError if all brokers of other processes would have more than `TOPICS_MAX` topics."""
        known = sum(len(b.topics) for b in self._brokers.values() if not b.is_local)
        if known + len(topics) > TOPICS_MAX and (
            known + sum(topic not in broker.topics for topic in topics) > TOPICS_MAX
        ):
            raise StoreError(
                f"broker {broker.name} brings {len(topics)} topics beside {known} registered ones, the "
                f"limit is {TOPICS_MAX}")

    @serves(RequestCode.UNREGISTER_BROKER)
    def unregister_broker(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Remove a broker of another process: request 104."""
        header = request.read(headers.UnRegisterBrokerRequestHeader)
        broker = self._brokers.get(header.broker_name)
        self._check_owner(channel, request, header.broker_name, header.cluster_name)
        if broker is not None and broker.cluster == header.cluster_name:
            self._drop_members(broker, [
                m for m in broker.members.values() if m.address == header.broker_addr and m.channel is not None])
        return request.answer()

    @serves(RequestCode.QUERY_DATA_VERSION)
    def query_data_version(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return whether a broker's topics have changed since its last registration: request 322."""
        header = request.read(headers.QueryDataVersionRequestHeader)
        self._check_owner(channel, request, header.broker_name, header.cluster_name)
        member = self._touched(header.cluster_name, header.broker_name, header.broker_addr)
        offered = json_value(request, 100) if request.body else None
        stored = member.data_version if member is not None else {}
        changed = not stored or stored != offered
        return request.answer(
            ext=headers.QueryDataVersionResponseHeader(changed),
            body=fastjson.dumps(stored) if stored else b"",
        )

    @serves(RequestCode.BROKER_HEARTBEAT)
    def broker_heartbeat(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Note that a broker is alive: request 904."""
        header = request.read(headers.BrokerHeartbeatRequestHeader)
        self._check_owner(channel, request, header.broker_name, header.cluster_name)
        self._touched(header.cluster_name, header.broker_name, header.broker_addr)
        return request.answer()

    def _touched(self, cluster: str, name: str, address: str) -> BrokerMember | None:
        broker = self._brokers.get(name)
        for member in broker.members.values() if broker is not None and broker.cluster == cluster else ():
            if member.address == address:
                member.last_update_ns = self._clock.monotonic_ns()
                return member
        return None

    @answers(RequestCode.GET_BROKER_MEMBER_GROUP)
    def broker_members(self, header: headers.GetBrokerMemberGroupRequestHeader) -> dict[str, Any]:
        """Return the addresses of a broker: request 901."""
        name, cluster = header.broker_name, header.cluster_name
        addresses = {str(number): address for number, address in sorted(self.members(cluster, name).items())}
        return {"brokerMemberGroup": {"brokerAddrs": addresses, "brokerName": name, "cluster": cluster}}

    @serves(RequestCode.WIPE_WRITE_PERM_OF_BROKER)
    def wipe_write_perm(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Remove the write permission from a broker's routes, so that producers do not use it: request 205."""
        name = request.read(headers.WipeWritePermOfBrokerRequestHeader).broker_name
        count = self._set_wiped(channel, request, name, wiped=True)
        return request.answer(ext=headers.WipeWritePermOfBrokerResponseHeader(count))

    @serves(RequestCode.ADD_WRITE_PERM_OF_BROKER)
    def add_write_perm(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Restore the write permission in a broker's routes: request 327."""
        name = request.read(headers.AddWritePermOfBrokerRequestHeader).broker_name
        count = self._set_wiped(channel, request, name, wiped=False)
        return request.answer(ext=headers.AddWritePermOfBrokerResponseHeader(count))

    def _set_wiped(self, channel: Channel, request: RemotingCommand, name: str, *, wiped: bool) -> int:
        broker = self._brokers.get(name)
        self._check_clusters(channel, request, [broker])
        if broker is None:
            return 0
        broker.write_wiped = wiped
        return len(broker.topics)


def _refuse_unless(enabled: bool, setting: str) -> None:
    if not enabled:
        raise RefusalError(ResponseCode.SYSTEM_ERROR, f"disable: {setting} is false")


def _topic_list(topics: set[str]) -> dict[str, Any]:
    return {"topicList": sorted(topics)}
