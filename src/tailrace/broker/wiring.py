"""What the parts of a broker are made of. This is the one place that connects them.

`BrokerParts` has what several parts use, made in the order of their needs. Only the controller has it, and what shows
the whole broker: the HTTP port, the console and the gRPC endpoint. A processor, a service or a table gets in its
constructor what it uses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sized
from typing import TYPE_CHECKING, Protocol, final

from tailrace.auth.check import REASONS, AccessControl
from tailrace.broker.admin.admin import AdminProcessor
from tailrace.broker.admin.engines import EnginesProcessor
from tailrace.broker.admin.group_offsets import GroupOffsetsProcessor
from tailrace.broker.admin.groups import GroupsProcessor
from tailrace.broker.admin.progress import ProgressProcessor
from tailrace.broker.admin.replication import ReplicationProcessor
from tailrace.broker.admin.runtime_info import RuntimeInfo
from tailrace.broker.admin.topics import TopicsProcessor
from tailrace.broker.clients.client_ids import ClientIds
from tailrace.broker.clients.client_manager import ConsumerManager, ProducerManager
from tailrace.broker.clients.connected import ConnectedClients
from tailrace.broker.clients.rebalance_lock import RebalanceLockManager
from tailrace.broker.consumers.client_manage import ClientManageProcessor
from tailrace.broker.consumers.client_offsets import ClientOffsetsProcessor
from tailrace.broker.consumers.lags import ConsumerLags
from tailrace.broker.consumers.locks import QueueLocksProcessor
from tailrace.broker.consumers.offsets import ConsumerOffsetsProcessor
from tailrace.broker.core.addresses import Addresses
from tailrace.broker.core.asked import AskedQuestions
from tailrace.broker.core.audit_log import AuditLog
from tailrace.broker.core.cold_data import ColdDataFlowControl
from tailrace.broker.core.creations import Creations
from tailrace.broker.core.deletion import BrokerState
from tailrace.broker.core.name_servers import NameServers
from tailrace.broker.core.revive_log import ReviveLog
from tailrace.broker.core.slaves import SlaveServices
from tailrace.broker.lite.dispatcher import LiteEventDispatcher
from tailrace.broker.lite.inspect import LiteManagerProcessor
from tailrace.broker.lite.lifecycle import LiteLifecycle
from tailrace.broker.lite.pop_lite import LiteAcks, LitePopService
from tailrace.broker.lite.registry import LiteSubscriptionRegistry
from tailrace.broker.lite.service import LiteTopics
from tailrace.broker.lite.subscriptions import LiteSubscriptionProcessor
from tailrace.broker.messages.end_transaction import EndTransactionProcessor, TransactionEnds
from tailrace.broker.messages.next_brokers import NextBrokers
from tailrace.broker.messages.proven_subscriptions import ProvenSubscriptions
from tailrace.broker.messages.proven_topics import ProvenTopics
from tailrace.broker.messages.pull import PullMessageProcessor
from tailrace.broker.messages.pull_lane import PullLane
from tailrace.broker.messages.pull_subscriptions import PullSubscriptions
from tailrace.broker.messages.query import QueryProcessor
from tailrace.broker.messages.recall import RecallMessageProcessor
from tailrace.broker.messages.records import Records
from tailrace.broker.messages.reply import ReplyMessageProcessor
from tailrace.broker.messages.send import SendMessageProcessor
from tailrace.broker.messages.send_back import SendBackProcessor
from tailrace.broker.messages.send_lane import SendLane
from tailrace.broker.messages.sent_properties import NamedProperties
from tailrace.broker.messages.service import MessageService
from tailrace.broker.messages.transaction_checks import TransactionChecks
from tailrace.broker.pop.ack import AckService
from tailrace.broker.pop.free_timers import FreeTimers
from tailrace.broker.pop.inspect import PopInspectProcessor
from tailrace.broker.pop.pop_message import PopService
from tailrace.broker.pop.progress import PopProgress
from tailrace.broker.pop.query_assignment import QueryAssignmentProcessor
from tailrace.broker.pop.requests import PopRequests
from tailrace.broker.pop.revive import PopReviveService
from tailrace.broker.pop.service import PopConsumption
from tailrace.broker.static_topics.forwarder import Forwarder
from tailrace.broker.static_topics.logical_queues import StaticTopics
from tailrace.broker.static_topics.logical_requests import LogicalQueueRequests
from tailrace.broker.statistics.broker_stats import BrokerStatsManager
from tailrace.broker.statistics.loop_lag import LoopLag
from tailrace.broker.statistics.rpc_latency import RpcLatency
from tailrace.broker.statistics.traffic import Traffic
from tailrace.broker.transactions.service import TransactionService
from tailrace.config import BrokerConfig
from tailrace.env.clock import Clock
from tailrace.env.entropy import Entropy
from tailrace.env.filesystem import FileSystem
from tailrace.filters.consumer_filters import ConsumerFilterManager
from tailrace.filters.message_filters import MessageFilters
from tailrace.ha.metadata_copy import Tables
from tailrace.ha.replicas import Replicas
from tailrace.ha.slave import Slave
from tailrace.ha.slave_topics import SlaveTopics
from tailrace.ha.user_copy import AccessTables
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.consumer_order_info import ConsumerOrderInfoManager
from tailrace.node.subscription_group import SubscriptionGroupManager
from tailrace.remoting import RemotingServer
from tailrace.remoting.client import RemotingClient
from tailrace.remoting.limits import ServerLimits
from tailrace.requests.config_changes import ConfigChanges
from tailrace.requests.durable_answers import DurableAnswers, OnDisk
from tailrace.requests.executors import Executors
from tailrace.requests.worker import RequestWorker, cold_reads

if TYPE_CHECKING:
    from tailrace.node.message_store import MessageStore

__all__ = [
    "BrokerParts", "admin", "ends_of_transactions", "group_offsets", "lite_topics", "pop_consumption", "processors",
    "pull_lane", "pulls", "replies", "send_lane", "sends", "slave_services", "topics",
    "transaction_checks"]


@final
class BrokerParts:
    """The parts that several others use. Raises StoreError or OSError if a state file cannot be read."""

    limits: ServerLimits | None = None
    """Counts the memory of connections; None until the broker listens."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, entropy: Entropy, store: MessageStore,
        config: BrokerConfig, file_system: FileSystem, *, control: AccessControl | None = None,
        outgoing: Callable[[], RemotingClient] = RemotingClient, audit_log: AuditLog | None = None,
        denied: Callable[[], Mapping[str, int]] = lambda: dict.fromkeys(REASONS, 0),
        executors: Executors | None = None,
    ) -> None:
        """``outgoing`` makes a client for other brokers and name servers; ``denied`` counts refusals by reason."""
        self.loop, self.clock, self.entropy = loop, clock, entropy
        self.store, self.config, self.control, self.outgoing = store, config, control, outgoing
        self.audit_log, self.denied = audit_log, denied
        self.boot_ms = clock.now_ms()
        self.addresses = Addresses()
        self.executors = executors or Executors()
        self._open_tables(file_system)
        self._measure()
        self.worker = RequestWorker(loop, self.executors.worker("requests"))
        self.creations = Creations(self.topics, self.groups, config, control)
        self.changes = ConfigChanges(loop, self.worker, self.executors.files, self.creations)
        self.cold_reads = cold_reads(loop, self.executors.cold_reads)
        self.cold_data = ColdDataFlowControl(clock, config)
        self.clients = ConnectedClients(
            ConsumerManager(clock, config.channel_expired_ms, self._is_notified, self.consumer_filters),
            ProducerManager(clock, config.channel_expired_ms), RebalanceLockManager(clock), ClientIds(control))
        self.name_servers = NameServers(self.topics, config)
        self.static_topics = StaticTopics(self.topics.mappings, config.broker_name)
        self.forwarder = Forwarder(loop, clock, config, self.name_servers, outgoing)
        self.logical_queues = LogicalQueueRequests(self.executors.look_ups, self.static_topics, self.forwarder)
        self.transactions = TransactionService(clock, entropy, store, self.topics, self.offsets, config)
        self.asked = AskedQuestions(clock, config, self.clients, self.name_servers)
        self.named = None if control is None else NamedProperties(control, self.clients, self.asked)
        self.records = Records(loop, store, control, self.changes, self.cold_reads)
        self.lags = ConsumerLags(store, self.offsets, self.pop_metrics)
        self.state = BrokerState(
            loop, store, self.groups, self.offsets, self.traffic, self.pop_metrics, self.transactions)
        self.state.on_loop += [self.consumer_filters.forget, self.order.forget]
        store.deletion.state = self.state
        self.replicas = Replicas(clock, store.inner)
        self.slave = Slave(
            clock, store.inner, outgoing(), self.executors.background.run, cluster=config.broker_cluster_name,
            broker_name=config.broker_name, ha_address=store.config.ha_master_address, namesrv=config.namesrv_addr,
        ) if store.inner.follows else None
        self.pop_requests = PopRequests(
            clock, store, self.creations, self.filters, control, self.addresses, self.slave, self.cold_reads)
        self.held: list[Sized] = []
        self.durable, self.synced = (DurableAnswers(loop, one) for one in (store.inner, OnDisk(store.inner)))

    def _open_tables(self, file_system: FileSystem) -> None:
        store, config, clock, config_dir = self.store, self.config, self.clock, self.store.config_dir
        self.topics = store.topics
        self.topics.ensure_system_topics()
        self.groups = SubscriptionGroupManager(file_system, config_dir, config, clock)
        self.groups.enable_lmq = store.config.enable_lmq
        self.groups.load()
        self.groups.ensure_system_groups()
        self.revive_log = ReviveLog(store, config, clock)
        self.pop_metrics = self.revive_log.metrics
        self.offsets = ConsumerOffsetManager(
            file_system, config_dir, clock, config.max_consumer_offsets, lmq=store.config.enable_lmq,
            before_write=self.revive_log.sync)
        self.offsets.load()
        store.retention.follow_groups(self.offsets)
        self.consumer_filters = ConsumerFilterManager(file_system, config_dir, config, clock)
        self.consumer_filters.load()
        self.filters = MessageFilters(config, self.consumer_filters)
        self.free_timers = FreeTimers(self.loop, clock)
        self.order = ConsumerOrderInfoManager(file_system, config_dir, clock, self.free_timers.set)
        self.order.load()

    def _measure(self) -> None:
        config = self.config
        self.traffic = Traffic(
            self.topics.is_system_topic, by_queue=config.enable_detail_stat, cluster=config.broker_cluster_name)
        self.stats = BrokerStatsManager(self.clock, self.traffic, config.broker_cluster_name)
        self.rpc_latency = RpcLatency()
        self.loop_lag = LoopLag(self.loop)

    def waiting_sends(self) -> int:
        """Return the number of sends that wait for the disk."""
        return self.durable.pending

    def waiting_pulls(self) -> int:
        """Return the number of pulls and pops that wait for a message."""
        return sum(map(len, self.held))

    def _is_notified(self, group: str) -> bool:
        """Return whether the members of a group are notified of a change of its members."""
        config = self.groups.select(group)
        return config is not None and config.notify_consumer_ids_changed_enable


def slave_services(parts: BrokerParts, access: AccessTables) -> SlaveServices | None:
    """Return what follows the master; None on a master."""
    store, outgoing, run = parts.store, parts.outgoing, parts.executors.background.run
    if parts.slave is None:
        return None
    topics = SlaveTopics(parts.loop, parts.slave, parts.topics, store.inner, outgoing(), run)
    tables = Tables(
        topics=parts.topics, groups=parts.groups, offsets=parts.offsets, modes=parts.state.modes,
        timers=store.timer_services, deletion=store.deletion, orders=lambda: parts.order,
        access=None if parts.control is None else access)
    return SlaveServices(parts.slave, topics, store, tables, parts.executors.background, outgoing)


def pulls(parts: BrokerParts, proven: ProvenSubscriptions | None = None) -> PullMessageProcessor:
    """Return what serves pulls; ``proven`` gets the subscriptions that are served."""
    made = PullMessageProcessor(
        parts.loop, parts.clock, parts.store, parts.config, parts.creations, parts.changes, parts.offsets,
        parts.traffic, parts.logical_queues,
        PullSubscriptions(parts.groups, parts.clients.consumers, parts.filters, parts.control),
        NextBrokers(parts.store, parts.config, parts.slave, parts.replicas), parts.cold_reads, parts.cold_data, proven)
    parts.held.append(made.hold)
    return made


def pull_lane(parts: BrokerParts, proven: ProvenSubscriptions) -> PullLane:
    """Return what serves plain pulls."""
    return PullLane(
        parts.clock, parts.store, parts.config, parts.offsets, parts.slave, parts.static_topics, parts.traffic, proven)


def sends(
    parts: BrokerParts, durable: DurableAnswers, *, wait_durable: bool, proven: ProvenTopics | None = None
) -> SendMessageProcessor:
    """Return what serves sends. ``wait_durable``: with SYNC_FLUSH or a SYNC_MASTER."""
    messages = MessageService(
        parts.clock, parts.entropy, parts.store, parts.config, parts.creations, parts.clients.locks,
        parts.static_topics, parts.transactions, parts.traffic, parts.named, durable, wait_durable=wait_durable,
        proven=proven)
    return SendMessageProcessor(messages, parts.changes, parts.traffic)


def send_lane(
    parts: BrokerParts, sends: SendMessageProcessor, proven: ProvenTopics, *, wait_durable: bool
) -> SendLane:
    """Return what serves plain sends."""
    return SendLane(
        parts.clock, parts.store, parts.config, parts.static_topics, parts.traffic, sends.messages.durable, sends,
        proven, wait_durable=wait_durable)


def ends_of_transactions(parts: BrokerParts, durable: DurableAnswers | None = None) -> EndTransactionProcessor:
    """Return what ends transactions."""
    return EndTransactionProcessor(
        parts.loop, parts.store, parts.worker, parts.transactions, parts.records, TransactionEnds(
            parts.loop, parts.clock, parts.store, parts.config, parts.executors, parts.slave, parts.transactions,
            parts.control, parts.records, durable))


def transaction_checks(parts: BrokerParts) -> TransactionChecks:
    """Return what checks half messages."""
    return TransactionChecks(
        parts.loop, parts.clock, parts.store, parts.config, parts.executors, parts.clients, parts.transactions,
        parts.control)


def pop_consumption(parts: BrokerParts, durable: DurableAnswers | None = None) -> PopConsumption:
    """Return what serves POP; acknowledgements wait for ``durable`` if there is one."""
    progress = PopProgress(parts.store, parts.config, parts.offsets, parts.order, parts.pop_metrics)
    service = PopService(
        parts.loop, parts.store, parts.config, parts.entropy, parts.groups, parts.changes, parts.traffic,
        parts.revive_log, progress, parts.pop_requests, durable)
    parts.held.append(service.polling)
    acks = AckService(
        parts.clock, parts.store, parts.config, parts.groups, parts.traffic, parts.revive_log, progress,
        parts.pop_requests, service.polling, durable)
    inspect = PopInspectProcessor(
        parts.loop, parts.clock, parts.store, parts.config, parts.changes, parts.worker, parts.traffic, progress,
        parts.pop_requests, service.polling)
    revive = PopReviveService(
        parts.store, parts.config, parts.clock, parts.offsets, parts.groups, parts.revive_log, parts.pop_metrics)
    return PopConsumption(
        parts.clock, parts.store, parts.config, parts.groups, progress, parts.free_timers, service, acks, inspect,
        revive)


def lite_topics(parts: BrokerParts, pops: PopConsumption, file_system: FileSystem) -> LiteTopics:
    """Return what serves Lite topics, and connect it with POP."""
    free_timers, config, ids = FreeTimers(parts.loop, parts.clock), parts.config, parts.clients.ids
    # Its file belongs to POP of ordinary topics. Pops of Lite topics are never written.
    order = ConsumerOrderInfoManager(file_system, parts.store.config_dir, parts.clock, free_timers.set)
    progress = PopProgress(parts.store, config, parts.offsets, order, parts.pop_metrics)
    registry = LiteSubscriptionRegistry(
        parts.clock, parts.store, config, parts.groups, parts.offsets, ids, parts.name_servers, order)
    dispatcher = LiteEventDispatcher(
        parts.loop, parts.clock, parts.entropy, parts.store, config, parts.executors, parts.groups, parts.offsets,
        registry)
    service = LitePopService(
        parts.loop, parts.store, config, parts.groups, ids, parts.traffic, progress, parts.pop_requests, registry,
        dispatcher)
    parts.held.append(service.polling)
    subscriptions = LiteSubscriptionProcessor(
        parts.loop, parts.store, parts.changes, parts.groups, parts.offsets, ids, registry)
    inspect = LiteManagerProcessor(
        parts.store, config, parts.worker, parts.groups, parts.offsets, parts.name_servers, parts.records, registry,
        dispatcher, order)
    lite = LiteTopics(
        parts.store, config, parts.groups, progress, free_timers, service, subscriptions, inspect,
        LiteLifecycle(parts.clock, parts.store, config, parts.boot_ms))
    parts.state.on_loop.append(lite.forget)
    pops.acks.service.lite = LiteAcks(
        parts.clock, parts.store, config, parts.groups, parts.traffic, progress, dispatcher)
    pops.inspect.lite = service.notification
    return lite


def replies(
    parts: BrokerParts, messages: MessageService, durable: DurableAnswers | None = None
) -> ReplyMessageProcessor:
    """Return what pushes replies of request-reply."""
    return ReplyMessageProcessor(
        parts.loop, parts.clock, parts.store, parts.config, parts.addresses, parts.clients.producers, parts.changes,
        parts.traffic, parts.named, messages, durable)


def admin(parts: BrokerParts) -> AdminProcessor:
    """Return what answers questions about the running broker."""
    return AdminProcessor(
        parts.loop, parts.store, parts.config, parts.executors, parts.worker, parts.offsets, parts.clients,
        parts.replicas, parts.records, RuntimeInfo(
            parts.clock, parts.store, parts.stats, parts.traffic, parts.boot_ms))


def topics(parts: BrokerParts) -> TopicsProcessor:
    """Return what changes and shows topics."""
    return TopicsProcessor(
        parts.loop, parts.store, parts.config, parts.control, parts.changes, parts.worker, parts.offsets)


def group_offsets(parts: BrokerParts) -> GroupOffsetsProcessor:
    """Return what changes the offsets of groups."""
    return GroupOffsetsProcessor(
        parts.loop, parts.store, parts.config, parts.worker, parts.groups, parts.offsets, parts.clients.consumers,
        parts.state.modes, parts.control)


def processors(
    parts: BrokerParts, durable: DurableAnswers | None, synced: DurableAnswers | None
) -> list[_Registers]:
    """Return what serves the other requests; answers wait for ``durable`` or ``synced`` if there is one."""
    store, config, changes, worker = parts.store, parts.config, parts.changes, parts.worker
    groups, offsets, consumers = parts.groups, parts.offsets, parts.clients.consumers
    return [
        SendBackProcessor(
            parts.entropy, store, parts.creations, parts.traffic, parts.control, parts.records, synced),
        RecallMessageProcessor(parts.clock, store, config, durable),
        QueryProcessor(store, worker, parts.logical_queues, parts.records),
        ClientManageProcessor(
            parts.loop, parts.clock, config, parts.creations, changes, parts.clients, parts.filters, parts.control,
            parts.traffic),
        ConsumerOffsetsProcessor(store, groups, offsets, worker, parts.logical_queues),
        QueueLocksProcessor(parts.loop, parts.clients),
        ClientOffsetsProcessor(parts.loop, parts.executors, consumers),
        QueryAssignmentProcessor(
            parts.loop, store, config, changes, parts.creations, consumers, parts.state.modes, parts.name_servers),
        topics(parts),
        GroupsProcessor(parts.loop, store, changes, worker, parts.creations, groups, parts.state), group_offsets(parts),
        ProgressProcessor(
            parts.clock, store, config, parts.addresses, worker, groups, offsets, consumers, parts.stats, parts.lags),
        ReplicationProcessor(store, config, parts.addresses, parts.slave, parts.replicas, parts.order),
        parts.stats, EnginesProcessor(store, config, parts.cold_data),
    ]


class _Registers(Protocol):
    def register(self, server: RemotingServer) -> None: ...
