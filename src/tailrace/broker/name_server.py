"""The name server: which broker has which topic, and a small key-value table.

The broker in the same process is registered with its live topic table, so a topic has its route in
the moment it is created. Other brokers register over the wire (request 103) and are forgotten when
their connection closes or when they have been silent for too long.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, final

from tailrace.broker.processors._bodies import json_object
from tailrace.env.clock import Clock
from tailrace.env.filesystem import FileSystem
from tailrace.errors import StoreError
from tailrace.events import get_logger
from tailrace.formats import fastjson
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.node.config_manager import ConfigManager
from tailrace.node.topic_config import PERM_WRITE, TopicConfig
from tailrace.remoting import Channel, RemotingServer

__all__ = ["KVConfigManager", "NameServer"]

_log = get_logger(__name__)

EXPIRED_MS: Final = 120_000
KV_MAX: Final = 4 << 20
"""Characters of the key-value table, which is written as a whole with every change."""
ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"
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
    is_local: bool = False
    enable_acting_master: bool = False
    write_wiped: bool = False

    def to_json(self) -> dict[str, Any]:
        """A BrokerData."""
        return {
            "brokerAddrs": {str(i): m.address for i, m in sorted(self.members.items())},
            "brokerName": self.name,
            "cluster": self.cluster,
            "enableActingMaster": self.enable_acting_master,
        }

    def queue_data(self, config: TopicConfig) -> dict[str, Any]:
        """A QueueData of one of its topics."""
        return {
            "brokerName": self.name,
            "perm": config.perm & ~PERM_WRITE if self.write_wiped else config.perm,
            "readQueueNums": config.read_queue_nums,
            "topicSysFlag": config.topic_sys_flag,
            "writeQueueNums": config.write_queue_nums,
        }


class KVConfigManager(ConfigManager):
    """Values by namespace and key."""

    def __init__(self, file_system: FileSystem, config_dir: str) -> None:
        super().__init__(file_system, config_dir, "tailrace-kvConfig.json")
        self._table: dict[str, dict[str, str]] = {}

    def get(self, namespace: str, key: str) -> str | None:
        """A value."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """All values of a namespace."""
        return self._table.get(namespace)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value; durable on return. Raises StoreError when there would be too much."""
        kept = sum(
            len(ns) + len(k) + len(v) for ns, values in self._table.items()
            for k, v in values.items() if (ns, k) != (namespace, key))
        if kept + len(namespace) + len(key) + len(value) > KV_MAX:
            raise StoreError(f"the key-value table would have more than {KV_MAX} characters")
        self._table.setdefault(namespace, {})[key] = value
        self.persist()

    def delete(self, namespace: str, key: str) -> None:
        """Forget a value."""
        if self._table.get(namespace, {}).pop(key, None) is not None:
            self.persist()

    def _decode(self, value: dict[str, Any]) -> None:
        found = value.pop("configTable", None) or {}
        self._table = {
            str(ns): {str(k): str(v) for k, v in values.items()}
            for ns, values in found.items()
            if isinstance(values, dict)
        }

    def _encode(self) -> dict[str, Any]:
        return {"configTable": self._table}


@final
class NameServer:
    """Answers what clients and admin tools ask a name server."""

    def __init__(self, clock: Clock, kv: KVConfigManager, settings: Mapping[str, str]) -> None:
        self._clock = clock
        self._kv = kv
        self._settings = settings
        self._brokers: dict[str, Broker] = {}

    # --- the table

    def register_local(
        self, cluster: str, name: str, address: str, topics: Mapping[str, TopicConfig]
    ) -> None:
        """Enter the broker of this process; ``topics`` is read whenever somebody asks."""
        broker = Broker(name=name, cluster=cluster, topics=topics, is_local=True)
        broker.members[0] = BrokerMember(address=address, broker_id=0)
        self._brokers[name] = broker

    def route(self, topic: str) -> dict[str, Any] | None:
        """A TopicRouteData; None when no broker has the topic."""
        brokers = [b for b in self._brokers.values() if topic in b.topics and b.members]
        if not brokers:
            return None
        return {
            "brokerDatas": [b.to_json() for b in brokers],
            "filterServerTable": {},
            "queueDatas": [b.queue_data(b.topics[topic]) for b in brokers],
        }

    def closed(self, channel: Channel) -> None:
        """A connection is gone, and with it the broker that registered over it."""
        self._drop(lambda member: member.channel is channel)

    def expire(self) -> None:
        """Forget brokers that have been silent for too long."""
        now = self._clock.monotonic_ns()
        self._drop(
            lambda m: m.channel is not None and now - m.last_update_ns > m.expired_ms * 1_000_000
        )

    def _drop(self, gone: Callable[[BrokerMember], bool]) -> None:
        for broker in list(self._brokers.values()):
            for broker_id, member in list(broker.members.items()):
                if gone(member):
                    del broker.members[broker_id]
                    _log.warning(
                        "broker unregistered name=%s id=%d address=%s", broker.name, broker_id,
                        member.address,
                    )
            if not broker.members:
                del self._brokers[broker.name]

    # --- requests

    def register(self, server: RemotingServer) -> None:
        """Take over the codes of a name server."""
        code = RequestCode
        server.register(self.get_route, code.GET_ROUTEINFO_BY_TOPIC)
        server.register(self.cluster_info, code.GET_BROKER_CLUSTER_INFO)
        server.register(self.all_topics, code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        server.register(self.topics_by_cluster, code.GET_TOPICS_BY_CLUSTER)
        server.register(self.system_topics, code.GET_SYSTEM_TOPIC_LIST_FROM_NS)
        server.register(
            self.unit_topics, code.GET_UNIT_TOPIC_LIST, code.GET_HAS_UNIT_SUB_TOPIC_LIST,
            code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        )
        server.register(self.delete_topic, code.DELETE_TOPIC_IN_NAMESRV)
        server.register(self.register_topic, code.REGISTER_TOPIC_IN_NAMESRV)
        server.register(self.put_kv, code.PUT_KV_CONFIG)
        server.register(self.get_kv, code.GET_KV_CONFIG)
        server.register(self.delete_kv, code.DELETE_KV_CONFIG)
        server.register(self.list_kv, code.GET_KVLIST_BY_NAMESPACE)
        server.register(self.register_broker, code.REGISTER_BROKER)
        server.register(self.unregister_broker, code.UNREGISTER_BROKER)
        server.register(self.query_data_version, code.QUERY_DATA_VERSION)
        server.register(self.broker_heartbeat, code.BROKER_HEARTBEAT)
        server.register(self.broker_members, code.GET_BROKER_MEMBER_GROUP)
        server.register(self.wipe_write_perm, code.WIPE_WRITE_PERM_OF_BROKER)
        server.register(self.add_write_perm, code.ADD_WRITE_PERM_OF_BROKER)
        server.register(self.update_config, code.UPDATE_NAMESRV_CONFIG)
        server.register(self.get_config, code.GET_NAMESRV_CONFIG)

    def get_route(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Where a topic is: request 105."""
        topic = request.ext["topic"]
        route = self.route(topic)
        if route is None:
            return request.answer(
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {topic}{FAQ}",
            )
        return request.answer(body=fastjson.dumps(route))

    def cluster_info(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """All brokers: request 106."""
        clusters: dict[str, list[str]] = {}
        for broker in self._brokers.values():
            clusters.setdefault(broker.cluster, []).append(broker.name)
        return request.answer(
            body=fastjson.dumps({
                "brokerAddrTable": {name: b.to_json() for name, b in self._brokers.items()},
                "clusterAddrTable": clusters,
            })
        )

    def all_topics(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """All topics: request 206."""
        return _topic_list(request, {t for b in self._brokers.values() for t in b.topics})

    def topics_by_cluster(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Topics of a cluster: request 224."""
        cluster = request.ext["cluster"]
        return _topic_list(
            request, {t for b in self._brokers.values() if b.cluster == cluster for t in b.topics}
        )

    def system_topics(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Names of clusters and brokers, which are topics too: request 304."""
        names = {b.cluster for b in self._brokers.values()} | set(self._brokers)
        address = next((m.address for b in self._brokers.values() for m in b.members.values()), None)
        return _topic_list(request, names, address)

    def unit_topics(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Topics by their unit flags: requests 311 to 313."""
        unit, unit_sub = 1, 2
        mask, wanted = {
            RequestCode.GET_UNIT_TOPIC_LIST: (unit, unit),
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: (unit_sub, unit_sub),
        }.get(RequestCode(request.code), (unit | unit_sub, unit_sub))
        return _topic_list(
            request,
            {
                topic for b in self._brokers.values() for topic, c in b.topics.items()
                if c.topic_sys_flag & mask == wanted
            },
        )

    def delete_topic(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Forget a topic of brokers elsewhere: request 216; our own broker keeps what it has."""
        topic, cluster = request.ext["topic"], request.ext.get("clusterName")
        for broker in self._brokers.values():
            if not broker.is_local and topic in broker.topics and cluster in {None, "", broker.cluster}:
                broker.topics = {t: c for t, c in broker.topics.items() if t != topic}
        return request.answer()

    def register_topic(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Enter a topic of brokers elsewhere: request 217; nothing when one of them is unknown."""
        topic, entries = request.ext["topic"], json_object(request).get("queueDatas") or []
        named = [self._brokers.get(str(entry["brokerName"])) for entry in entries]
        if None in named:
            return request.answer()
        for broker, entry in zip(named, entries, strict=True):
            if broker is not None and not broker.is_local:
                broker.topics = {**broker.topics, topic: TopicConfig.from_json(entry, topic)}
        return request.answer()

    def put_kv(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Set a value: request 100."""
        ext = request.ext
        self._kv.put(ext["namespace"], ext["key"], ext["value"])
        return request.answer()

    def get_kv(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Get a value: request 101."""
        ext = request.ext
        value = self._kv.get(ext["namespace"], ext["key"])
        if value is None:
            return request.answer(
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {ext['namespace']} Key: {ext['key']}",
            )
        return request.answer(ext={"value": value})

    def delete_kv(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Forget a value: request 102."""
        self._kv.delete(request.ext["namespace"], request.ext["key"])
        return request.answer()

    def list_kv(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """All values of a namespace: request 219."""
        namespace = request.ext["namespace"]
        values = self._kv.namespace(namespace)
        if values is None:
            return request.answer(
                ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}"
            )
        return request.answer(body=fastjson.dumps({"table": values}))

    def register_broker(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Enter a broker of elsewhere: request 103."""
        ext = request.ext
        crc = int(ext.get("bodyCrc32") or 0)
        if crc and crc != zlib.crc32(request.body) & 0x7FFFFFFF:
            return request.answer(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        name, address, broker_id = ext["brokerName"], ext["brokerAddr"], int(ext["brokerId"])
        version, topics = _registration(ext, request.body)
        member = BrokerMember(  # all fields are read before anything is entered
            address=address, broker_id=broker_id, ha_address=ext.get("haServerAddr", ""),
            data_version=version, channel=channel, last_update_ns=self._clock.monotonic_ns(),
            expired_ms=int(ext.get("heartbeatTimeoutMillis") or EXPIRED_MS),
        )
        broker = self._brokers.get(name) or Broker(name=name, cluster=ext["clusterName"])
        before = broker.members.get(broker_id)
        if broker.is_local or (len(topics) == 1 and before is None):
            return request.answer(ResponseCode.SYSTEM_ERROR, "register broker failed")
        if before is not None and before.address != address and (
            before.data_version.get("stateVersion", 0) > version.get("stateVersion", 0)
        ):
            return request.answer()  # passed over: an older state of the same broker
        self._brokers[name] = broker
        for other_id, other in list(broker.members.items()):
            if other.address == address and other_id != broker_id:
                del broker.members[other_id]
        if before is None or before.address != address:
            _log.info("broker registered name=%s id=%d address=%s", name, broker_id, address)
        broker.enable_acting_master = ext.get("enableActingMaster") == "true"
        broker.members[broker_id] = member
        # A registration may be split: topics come together, and go by request 216 alone.
        acts = "enableActingMaster" in ext and broker_id == min(broker.members)
        if topics and (broker_id == 0 or acts):
            broker.topics = {**broker.topics, **topics}
            if before is None or before.data_version != version:
                broker.write_wiped = broker_id != 0 and broker.enable_acting_master
        answer_ext = {}
        master = broker.members.get(0)
        if broker_id != 0 and master is not None:
            answer_ext = {"masterAddr": master.address, "haServerAddr": master.ha_address}
        order = self._kv.namespace(ORDER_TOPIC_CONFIG)
        return request.answer(
            ext=answer_ext, body=fastjson.dumps({"table": order}) if order else b""
        )

    def unregister_broker(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Forget a broker: request 104."""
        name, address = request.ext["brokerName"], request.ext["brokerAddr"]
        broker = self._brokers.get(name)
        if broker is not None and not broker.is_local:
            self._drop(lambda m: m.address == address and m.channel is not None)
        return request.answer()

    def query_data_version(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Whether a broker's topics have changed: request 322."""
        member = self._touched(request.ext["brokerName"], request.ext["brokerAddr"])
        offered = fastjson.loads(request.body) if request.body else None
        stored = member.data_version if member is not None else {}
        changed = not stored or stored != offered
        return request.answer(
            ext={"changed": "true" if changed else "false"},
            body=fastjson.dumps(stored) if stored else b"",
        )

    def broker_heartbeat(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """A broker is alive: request 904."""
        self._touched(request.ext["brokerName"], request.ext["brokerAddr"])
        return request.answer()

    def _touched(self, name: str, address: str) -> BrokerMember | None:
        broker = self._brokers.get(name)
        for member in broker.members.values() if broker is not None else ():
            if member.address == address:
                member.last_update_ns = self._clock.monotonic_ns()
                return member
        return None

    def broker_members(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """The addresses of a broker: request 901."""
        name, cluster = request.ext["brokerName"], request.ext["clusterName"]
        broker = self._brokers.get(name)
        addresses = {}
        if broker is not None and broker.cluster == cluster:
            addresses = broker.to_json()["brokerAddrs"]
        group = {"brokerAddrs": addresses, "brokerName": name, "cluster": cluster}
        return request.answer(body=fastjson.dumps({"brokerMemberGroup": group}))

    def wipe_write_perm(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Hide a broker from senders: request 205."""
        count = self._set_wiped(request.ext["brokerName"], wiped=True)
        return request.answer(ext={"wipeTopicCount": str(count)})

    def add_write_perm(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Show it to them again: request 327."""
        count = self._set_wiped(request.ext["brokerName"], wiped=False)
        return request.answer(ext={"addTopicCount": str(count)})

    def _set_wiped(self, name: str, *, wiped: bool) -> int:
        broker = self._brokers.get(name)
        if broker is None:
            return 0
        broker.write_wiped = wiped
        return len(broker.topics)

    def update_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Settings are not changed over the wire: request 318."""
        return request.answer(
            ResponseCode.NO_PERMISSION, "the name server's settings cannot be changed remotely"
        )

    def get_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Settings as a properties text: request 319."""
        text = "".join(f"{name}={value}\n" for name, value in self._settings.items())
        return request.answer(body=text.encode())


def _topic_list(
    request: RemotingCommand, topics: set[str], address: str | None = None
) -> RemotingCommand:
    body: dict[str, Any] = {"topicList": sorted(topics)}
    if address is not None:
        body["brokerAddr"] = address
    return request.answer(body=fastjson.dumps(body))


def _registration(
    ext: Mapping[str, str], body: bytes
) -> tuple[dict[str, int], dict[str, TopicConfig]]:
    """Data version and topics of a registration's body."""
    if not body:
        return {}, {}
    if ext.get("compressed") == "true":
        return _compressed_registration(body)
    value = fastjson.loads(body)
    wrapper = value.get("topicConfigSerializeWrapper") or {}
    table = wrapper.get("topicConfigTable") or {}
    return dict(wrapper.get("dataVersion") or {}), {
        str(topic): TopicConfig.from_json(member, str(topic))
        for topic, member in table.items()
        if isinstance(member, dict)
    }


def _compressed_registration(body: bytes) -> tuple[dict[str, int], dict[str, TopicConfig]]:
    inflater = zlib.decompressobj()
    data = inflater.decompress(body, 64 * 1024 * 1024)
    pos = 0

    def part() -> bytes:
        nonlocal pos
        size = int.from_bytes(data[pos : pos + 4], "big")
        if pos + 4 + size > len(data):
            raise ValueError("a part of the registration leaves its body")
        pos += 4 + size
        return data[pos - size : pos]

    version = fastjson.loads(part())
    count = int.from_bytes(data[pos : pos + 4], "big")
    pos += 4
    topics = {}
    for _ in range(count):
        words = part().decode().split(" ", 5)
        topics[words[0]] = TopicConfig(
            topic_name=words[0], read_queue_nums=int(words[1]), write_queue_nums=int(words[2]),
            perm=int(words[3]), topic_filter_type=words[4],
        )
    return dict(version or {}), topics
