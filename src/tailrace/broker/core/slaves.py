"""Replication on both sides: the port of a master for its slaves; what follows the master on a slave, what it refuses.

A consumer that has read from a slave has committed there while the master was away. A master that returns would give it
the offsets from before its stop. So it takes, before clients find it, the larger offset of each queue from every slave
that answers (H17).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, final

from tailrace import events
from tailrace.broker.core.addresses import Addresses
from tailrace.broker.core.listeners import Listeners, why_not_listening
from tailrace.broker.core.name_servers import NameServers
from tailrace.broker.core.registration import BrokerGroup
from tailrace.config import BrokerConfig, BrokerRole, StoreConfig
from tailrace.env.clock import Clock
from tailrace.errors import RefusalError, RemotingError, StoreError
from tailrace.formats import fastjson
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.remoting import RequestCode as Code
from tailrace.ha.comparison import Compared, Verdict, compare, differs_at
from tailrace.ha.faults import Fault, Faults
from tailrace.ha.log_gaps import log_gaps
from tailrace.ha.members import GroupMembers, allowed_hosts
from tailrace.ha.metadata_copy import MetadataCopy, Tables
from tailrace.ha.replicas import Replicas
from tailrace.ha.sender import HaSender
from tailrace.ha.slave import Slave
from tailrace.ha.slave_topics import SlaveTopics
from tailrace.logs import get_logger
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.message_store import MessageStore
from tailrace.node.subscription_group import SubscriptionGroupManager
from tailrace.remoting import Channel, RemotingServer
from tailrace.remoting.addresses import address_text, host_of
from tailrace.remoting.client import RemotingClient
from tailrace.requests.executors import BoundedExecutor, Executors

__all__ = ["SlavePort", "SlaveRefusals", "SlaveServices", "has_slave_port", "refuse_on_slave", "take_offsets_of_slaves"]

_log = get_logger(__name__)
PORT_DISTANCE: Final = 1
"""Distance of the port for slaves from the port of the broker, as in RocketMQ. For port 0 the system chooses both."""
LAST_PORT: Final = 65_535


def has_slave_port(config: StoreConfig) -> bool:
    """Return whether slaves may connect: a role of a master or the port is set."""
    if config.broker_role is BrokerRole.SLAVE:
        return False
    is_set = {"broker_role", "ha_listen_port", "ha_allowed_hosts"} & config.given
    return bool(is_set) or config.broker_role is BrokerRole.SYNC_MASTER or config.ha_listen_port > 0


@final
class SlavePort:
    """Listens for slaves. ``addresses`` gets the address for them in `start`."""

    def __init__(
        self, clock: Clock, store: MessageStore, config: BrokerConfig, executors: Executors, addresses: Addresses,
        name_servers: NameServers, outgoing: Callable[[], RemotingClient], replicas: Replicas, listeners: Listeners,
    ) -> None:
        """Raises ConfigError for invalid hosts."""
        self._store, self._config, self._addresses, self._outgoing = store, config, addresses, outgoing
        self._replicas, self._listeners = replicas, listeners
        self._run = executors.background.run
        self._members = GroupMembers(
            config.broker_cluster_name, config.broker_name, allowed_hosts(store.config.ha_allowed_hosts),
            own=lambda: addresses.broker, local=name_servers.members, name_servers=name_servers.states,
            outgoing=outgoing, faults=replicas.faults)
        self._client: RemotingClient | None = None
        self._sender = HaSender(
            clock, store.inner, replicas, listeners.acceptor, self._members.connections_of, self._run, self._compare)
        self.tick = self._sender.tick

    async def _compare(self, host: str, until: int) -> Compared:
        """Compare the log of the slave at a host by its broker port, as far as that is known."""
        addresses = self._members.addresses_of(host)
        if not addresses:
            return Compared(Verdict.NOT_COMPARED, -1, "the address of its broker is unknown")
        if self._client is None:
            self._client = self._outgoing()
        log = self._store.inner.commit_log
        found = await compare(log.queue, until, addresses, self._client, self._run)
        if found.verdict is not Verdict.SAME:
            return found
        places = [at for at in self._replicas.stepped_over if at < until]
        return await differs_at(places, log.record_at, addresses, self._client, self._run) or found

    async def start(self) -> None:
        """Listen on ``brokerIP2``, or where the broker listens. Raises OSError that names the setting."""
        store, listeners = self._store.config, self._listeners
        host = host_of(self._config.broker_ip2)
        port = store.ha_listen_port or (
            0 if listeners.took_any_port else listeners.port % LAST_PORT + PORT_DISTANCE)
        try:
            taken = await self._sender.start(host or listeners.host, port)
        except OSError as error:
            place = address_text(host or listeners.host, port)
            raise OSError(
                error.errno, f"cannot listen on {place} for slaves (brokerIP2 and haListenPort): "
                f"{why_not_listening(error, port)}") from error
        self._addresses.ha = address_text(host or listeners.advertised, taken[1])
        events.HA_PORT_OPEN.log(
            _log, address=self._addresses.ha, role=store.broker_role.value, needed=store.replicas_needed)
        await self._name_faults()

    async def _name_faults(self) -> None:
        """Say whether sends wait for slaves, and where slaves stop at damage that a recovery has stepped over."""
        config = self._store.config
        if config.broker_role is BrokerRole.SYNC_MASTER and config.replicas_needed < 2:
            self._replicas.faults.begin(Fault.ONE_REPLICA, "inSyncReplicas=1, sends are acknowledged without a slave")
            events.ONE_REPLICA_IS_ENOUGH.log(_log, role=config.broker_role.value)
        try:
            self._replicas.stepped_over = await self._run(self._store.inner.stepped_over)
            gaps = await self._run(partial(log_gaps, self._store.inner))
        except OSError as error:
            self._replicas.faults.begin(Fault.GAPS_UNKNOWN, error)
            events.GAPS_OF_THE_LOG_ARE_NOT_KNOWN.log(_log, cause=error)
            return
        self._replicas.gaps = gaps
        if gaps:
            events.THE_LOG_HAS_GAPS.log(_log, phy_offset=gaps[0], count=len(gaps))

    async def stop(self) -> None:
        """Close the port and the connections of slaves."""
        await self._sender.stop()
        await self._members.close()
        if self._client is not None:
            await self._client.close()


@final
class SlaveServices:
    """What follows the master on a slave: the copies of its log, of its topics, and of its other tables."""

    def __init__(
        self, log: Slave, topics: SlaveTopics, store: MessageStore, tables: Tables, background: BoundedExecutor,
        outgoing: Callable[[], RemotingClient],
    ) -> None:
        self.log, self.topics = log, topics
        store.inner.reput.follow(topics)
        self.tables = MetadataCopy(store.inner, tables, log, outgoing(), background.run, topics)

    def start(self) -> None:
        """Connect to the master."""
        self.log.start()
        self.tables.start()

    async def stop(self) -> None:
        """End the copies and their connections."""
        for part in (self.tables, self.log, self.topics):
            await part.stop()


_TIMEOUT_MS: Final = 3000


async def take_offsets_of_slaves(
    store: MessageStore, groups: SubscriptionGroupManager, offsets: ConsumerOffsetManager, brokers: BrokerGroup,
    outgoing: Callable[[], RemotingClient], name_servers: list[str], faults: Faults,
) -> None:
    """Take the larger offsets of the slaves that the name servers know. A slave that does not answer is reported."""
    client = outgoing()
    try:
        for address in await brokers.others(client, name_servers):
            try:
                taken = _take(store, groups, offsets, await _offsets_of(client, address))
            except (RemotingError, StoreError, OSError, ValueError, TypeError, AttributeError) as error:
                faults.begin(Fault.OFFSETS_UNKNOWN, f"{address} did not answer at the start: {error}")
                events.OFFSETS_OF_A_SLAVE_ARE_NOT_KNOWN.log(_log, address=address, cause=error)
                continue
            if taken:
                events.OFFSETS_OF_A_SLAVE_ARE_TAKEN.log(_log, address=address, count=taken)
    finally:
        await client.close()


async def _offsets_of(client: RemotingClient, address: str) -> dict[str, dict[int, int]]:
    """Return the offsets of a broker by ``topic@group`` and queue: request 43."""
    answer = await client.ask(address, RequestCode.GET_ALL_CONSUMER_OFFSET, timeout_ms=_TIMEOUT_MS)
    table = fastjson.loads(answer.body).get("offsetTable") or {}
    return {
        str(key): {int(queue_id): int(offset) for queue_id, offset in queues.items()} for key, queues in table.items()}


def _take(
    store: MessageStore, groups: SubscriptionGroupManager, offsets: ConsumerOffsetManager,
    theirs: dict[str, dict[int, int]],
) -> int:
    """Commit the larger offsets of topics that exist, none past the end of its queue; return their number.

    A group may be one that its members have created at the slave.
    """
    taken = 0
    for key, queues in theirs.items():
        topic, _, group = key.partition("@")
        is_group = groups.select(group) is not None or groups.may_create(group)
        if store.topics.select(topic) is None or not is_group:
            continue
        for queue_id, offset in queues.items():
            known = min(offset, store.queue_of(topic, queue_id).max)
            if known > max(offsets.query(group, topic, queue_id), 0):
                offsets.commit(group, topic, queue_id, known)
                taken += 1
    return taken


_REJECTED: Final = "[REJECTREQUEST]system busy, start flow control for a while: this broker is a slave"
_SENDS: Final = (
    Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE, Code.CONSUMER_SEND_MSG_BACK,
    Code.SEND_REPLY_MESSAGE, Code.SEND_REPLY_MESSAGE_V2, Code.RECALL_MESSAGE,
    # They write checkpoints, or acknowledgements, to the log.
    Code.ACK_MESSAGE, Code.BATCH_ACK_MESSAGE, Code.CHANGE_MESSAGE_INVISIBLETIME)
_PULLS: Final = (Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE, Code.PEEK_MESSAGE, Code.NOTIFICATION)
_CHANGES: Final = (
    Code.UPDATE_AND_CREATE_TOPIC, Code.UPDATE_AND_CREATE_TOPIC_LIST, Code.DELETE_TOPIC_IN_BROKER,
    Code.UPDATE_AND_CREATE_STATIC_TOPIC, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, Code.DELETE_SUBSCRIPTIONGROUP, Code.SET_MESSAGE_REQUEST_MODE,
    Code.PURGE_TOPIC)
_CHANGE: Final = (
    "Can't modify topic or subscription group from slave broker, please execute it from master broker.")


def refuse_on_slave(slave: Slave | None) -> None:
    """Raise RefusalError if the broker is a slave, which can write no checkpoint of a pop."""
    if slave is not None:
        raise RefusalError(ResponseCode.SYSTEM_BUSY, _REJECTED)


@final
class SlaveRefusals:
    """Replaces the processors of these requests. ``reads`` (slaveReadEnable): pulls are served."""

    def __init__(self, *, reads: bool) -> None:
        self._reads = reads

    def register(self, server: RemotingServer) -> None:
        """Refuse these requests at a server, on which the processors of a master are registered."""
        server.register(self.reject, *_SENDS, *(() if self._reads else _PULLS))
        server.register(self.change, *_CHANGES)
        server.register(self.reset, Code.INVOKE_BROKER_TO_RESET_OFFSET, Code.CLONE_GROUP_OFFSET)

    def reject(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Refuse a send, or a pull without slaveReadEnable; clients then use the master."""
        raise RefusalError(ResponseCode.SYSTEM_BUSY, _REJECTED)

    def change(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Refuse a change that the copy from the master would undo."""
        raise RefusalError(ResponseCode.SYSTEM_ERROR, _CHANGE)

    def reset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Refuse to set offsets of a group."""
        raise RefusalError(ResponseCode.SYSTEM_ERROR, "Can not reset offset in slave broker")
