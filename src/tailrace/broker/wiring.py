"""What the parts of a broker are made of. This is the one place that connects them.

`BrokerParts` has what several parts use, made in the order of their needs. Only the controller has it. The HTTP port,
metrics, the console and the gRPC endpoint see it through ports of their own (protocols with what they use). A
processor, a service or a table gets in its constructor what it uses; one that uses much of it by the names of the
parameters: `BrokerParts.make`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sized
from typing import TYPE_CHECKING, Any, TypeVar, final

from tailrace.auth.check import REASONS, AccessControl
from tailrace.broker.admin.admin import AdminProcessor, RuntimeInfo
from tailrace.broker.admin.engines import EnginesProcessor
from tailrace.broker.admin.group_offsets import GroupOffsetsProcessor
from tailrace.broker.admin.groups import GroupsProcessor
from tailrace.broker.admin.progress import ProgressProcessor
from tailrace.broker.admin.replication import ReplicationProcessor
from tailrace.broker.admin.topics import TopicsProcessor
from tailrace.broker.clients.client_manager import (
    ClientIds,
    ConnectedClients,
    ConsumerManager,
    ProducerManager,
)
from tailrace.broker.clients.rebalance_lock import RebalanceLockManager
from tailrace.broker.consumers.client_manage import ClientManageProcessor
from tailrace.broker.consumers.lags import ConsumerLags
from tailrace.broker.consumers.offsets import ConsumerOffsetsProcessor
from tailrace.broker.core.addresses import Addresses
from tailrace.broker.core.audit import AuditLog
from tailrace.broker.core.cold_data import ColdDataFlowControl
from tailrace.broker.core.creations import Creations
from tailrace.broker.core.deletion import BrokerState
from tailrace.broker.core.name_servers import NameServers
from tailrace.broker.core.slaves import SlaveServices
from tailrace.broker.lite.dispatcher import LiteEventDispatcher
from tailrace.broker.lite.inspect import LiteManagerProcessor
from tailrace.broker.lite.pop_lite import LiteAcks, LitePopService
from tailrace.broker.lite.registry import LiteSubscriptionRegistry
from tailrace.broker.lite.service import LiteLifecycle, LiteTopics
from tailrace.broker.lite.subscriptions import LiteSubscriptionProcessor
from tailrace.broker.messages.asked_questions import AskedQuestions
from tailrace.broker.messages.end_transaction import EndTransactionProcessor, TransactionEnds
from tailrace.broker.messages.lanes import SendLane
from tailrace.broker.messages.next_brokers import NextBrokers
from tailrace.broker.messages.proven import ProvenSubscriptions, ProvenTopics
from tailrace.broker.messages.pull import PullMessageProcessor
from tailrace.broker.messages.pull_service import PullService
from tailrace.broker.messages.pull_subscriptions import PullSubscriptions
from tailrace.broker.messages.query import QueryProcessor
from tailrace.broker.messages.recall import RecallMessageProcessor
from tailrace.broker.messages.records import Records
from tailrace.broker.messages.send import SendMessageProcessor
from tailrace.broker.messages.send_back import SendBackProcessor
from tailrace.broker.messages.sent_properties import NamedProperties
from tailrace.broker.messages.service import MessageService
from tailrace.broker.pop.ack import AckService
from tailrace.broker.pop.inspect import PopInspectProcessor
from tailrace.broker.pop.pop_message import PopService
from tailrace.broker.pop.query_assignment import QueryAssignmentProcessor
from tailrace.broker.pop.requests import PopProgress, PopRequests
from tailrace.broker.pop.revive import PopReviveService, ReviveLog
from tailrace.broker.pop.service import FreeTimers, PopConsumption
from tailrace.broker.static_topics.forwarder import Forwarder
from tailrace.broker.static_topics.logical_queues import LogicalQueueRequests, StaticTopics
from tailrace.broker.statistics.broker_stats import BrokerStatsManager
from tailrace.broker.statistics.latencies import LoopLag, RpcLatency
from tailrace.broker.statistics.traffic import Traffic
from tailrace.broker.transactions.service import TransactionService
from tailrace.config import BrokerConfig
from tailrace.env.clock import Clock
from tailrace.env.entropy import Entropy
from tailrace.filters.consumer_filters import ConsumerFilterManager
from tailrace.filters.message_filters import MessageFilters
from tailrace.ha.faults import Faults
from tailrace.ha.metadata_copy import Tables
from tailrace.ha.replicas import Replicas
from tailrace.ha.slave import Slave
from tailrace.ha.slave_topics import SlaveTopics
from tailrace.ha.user_copy import AccessTables
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.consumer_order_info import ConsumerOrderInfoManager
from tailrace.node.subscription_group import SubscriptionGroupManager
from tailrace.remoting.client import RemotingClient
from tailrace.remoting.limits import ServerLimits
from tailrace.requests.config_changes import ConfigChanges
from tailrace.requests.durable_answers import DurableAnswers, OnDisk
from tailrace.requests.executors import Executors
from tailrace.requests.processor import RequestProcessor
from tailrace.requests.worker import RequestWorker, cold_reads

if TYPE_CHECKING:
    from tailrace.node.message_store import MessageStore

__all__ = [
    "BrokerParts", "admin", "ends_of_transactions", "lite_topics", "pop_consumption", "processors", "pulls",
    "send_lane", "sends", "slave_services"]

_Part = TypeVar("_Part")


@final
class BrokerParts:
    """The parts that several others use. Raises StoreError or OSError if a state file cannot be read."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, entropy: Entropy, store: MessageStore,
        config: BrokerConfig, limits: ServerLimits, *, control: AccessControl | None = None,
        outgoing: Callable[[], RemotingClient] = RemotingClient, audit_log: AuditLog | None = None,
        denied: Callable[[], Mapping[str, int]] = lambda: dict.fromkeys(REASONS, 0),
        executors: Executors | None = None,
    ) -> None:
        """``limits`` count the memory of connections; ``outgoing`` makes a client for other brokers and name servers;
        ``denied`` counts refusals by reason.
        """
        self.loop, self.clock, self.entropy = loop, clock, entropy
        self.store, self.config, self.control, self.outgoing = store, config, control, outgoing
        self.limits, self.audit_log, self.denied = limits, audit_log, denied
        self.boot_ms = clock.now_ms()
        self.addresses = Addresses()
        self.executors = executors or Executors()
        self._open_tables()
        self._measure()
        self.worker = RequestWorker(loop, self.executors.worker("requests"))
        self.creations = Creations(self.topics, self.groups, config, control)
        self.changes = ConfigChanges(loop, self.worker, self.executors.files, self.creations)
        self.cold_reads = cold_reads(loop, self.executors.cold_reads)
        self.cold_data = ColdDataFlowControl(clock, config)
        self.consumers = ConsumerManager(clock, config.channel_expired_ms, self._is_notified, self.consumer_filters)
        self.producers = ProducerManager(clock, config.channel_expired_ms)
        self.locks, self.client_ids = RebalanceLockManager(clock), ClientIds(control)
        self.clients = ConnectedClients(self.consumers, self.producers, self.locks, self.client_ids)
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
        self.modes = self.state.modes
        for forget in (self.consumer_filters.forget, self.order.forget):
            self.state.deleted.add(forget)
        store.deletion.state = self.state
        self.replicas = Replicas(clock, store.inner)
        self.slave = Slave(
            clock, store.inner, outgoing(), self.executors.background.run, cluster=config.broker_cluster_name,
            broker_name=config.broker_name, ha_address=store.config.ha_master_address, namesrv=config.namesrv_addr,
        ) if store.inner.follows else None
        self.pop_requests = PopRequests(
            clock, store, self.creations, self.filters, control, self.addresses, self.slave, self.cold_reads)
        self.revive = self.make(PopReviveService)
        self.held: list[Sized] = []
        self.durable, self.synced = (DurableAnswers(loop, one) for one in (store.inner, OnDisk(store.inner)))

    def make(self, kind: Callable[..., _Part], **others: Any) -> _Part:
        """Return a part: its constructor gets what this has under the names of its parameters, and ``others``.

        A parameter with a default is one of ``others`` or has its default. Raises TypeError if one is missing.
        """
        own = {
            name: getattr(self, name) for name, parameter in inspect.signature(kind).parameters.items()
            if name not in others and parameter.default is parameter.empty and hasattr(self, name)}
        return kind(**own, **others)

    def _open_tables(self) -> None:
        store, config, clock, config_dir = self.store, self.config, self.clock, self.store.config_dir
        file_system = store.file_system
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

    @property
    def replication_faults(self) -> Faults:
        """What is wrong with replication on this master or slave."""
        return self.replicas.faults if self.slave is None else self.slave.faults

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
    service = parts.make(
        PullService, subscriptions=PullSubscriptions(
            parts.groups, parts.consumers, parts.filters, parts.control),
        next_brokers=NextBrokers(parts.store, parts.config, parts.slave, parts.replicas), proven=proven)
    parts.held.append(service.hold)
    return PullMessageProcessor(service, parts.changes, parts.traffic)


def sends(
    parts: BrokerParts, durable: DurableAnswers, *, wait_durable: bool, proven: ProvenTopics | None = None
) -> SendMessageProcessor:
    """Return what serves sends. ``wait_durable``: with SYNC_FLUSH or a SYNC_MASTER."""
    messages = parts.make(MessageService, durable=durable, wait_durable=wait_durable, proven=proven)
    return SendMessageProcessor(messages, parts.changes, parts.traffic)


def send_lane(
    parts: BrokerParts, sends: SendMessageProcessor, proven: ProvenTopics, *, wait_durable: bool
) -> SendLane:
    """Return what serves plain sends."""
    return parts.make(
        SendLane, durable=sends.messages.durable, processor=sends, proven=proven, wait_durable=wait_durable)


def pop_consumption(
    parts: BrokerParts, durable: DurableAnswers | None = None, lite: LiteTopics | None = None
) -> PopConsumption:
    """Return what serves POP, also of Lite topics; acknowledgements wait for ``durable`` if there is one."""
    progress = parts.make(PopProgress)
    service = parts.make(PopService, progress=progress, durable=durable)
    parts.held.append(service.polling)
    acks = parts.make(
        AckService, progress=progress, polling=service.polling, durable=durable,
        lite=None if lite is None else lite.acks)
    inspect = parts.make(
        PopInspectProcessor, progress=progress, pops=service.polling,
        lite=None if lite is None else lite.service.notification)
    return parts.make(PopConsumption, progress=progress, service=service, acks=acks, inspect=inspect)


def lite_topics(parts: BrokerParts) -> LiteTopics:
    """Return what serves Lite topics."""
    free_timers = FreeTimers(parts.loop, parts.clock)
    # Its file belongs to POP of ordinary topics. Pops of Lite topics are never written.
    order = ConsumerOrderInfoManager(
        parts.store.file_system, parts.store.config_dir, parts.clock, free_timers.set)
    progress = parts.make(PopProgress, order=order)
    registry = parts.make(LiteSubscriptionRegistry, order=order)
    dispatcher = parts.make(LiteEventDispatcher, registry=registry)
    service = parts.make(LitePopService, progress=progress, registry=registry, dispatcher=dispatcher)
    parts.held.append(service.polling)
    lite = parts.make(
        LiteTopics, progress=progress, free_timers=free_timers, service=service,
        subscriptions=parts.make(LiteSubscriptionProcessor, registry=registry),
        inspect=parts.make(LiteManagerProcessor, registry=registry, dispatcher=dispatcher, order=order),
        acks=parts.make(LiteAcks, progress=progress, dispatcher=dispatcher),
        lifecycle=LiteLifecycle(parts.clock, parts.store, parts.config, parts.boot_ms))
    parts.state.deleted.add(lite.forget)
    return lite


def ends_of_transactions(parts: BrokerParts, durable: DurableAnswers | None = None) -> EndTransactionProcessor:
    """Return what ends transactions."""
    return parts.make(EndTransactionProcessor, ends=parts.make(TransactionEnds, durable=durable))


def admin(parts: BrokerParts) -> AdminProcessor:
    """Return what answers questions about the running broker."""
    return parts.make(AdminProcessor, runtime=parts.make(RuntimeInfo))


def processors(
    parts: BrokerParts, durable: DurableAnswers | None, synced: DurableAnswers | None
) -> list[RequestProcessor]:
    """Return what serves the other requests; answers wait for ``durable`` or ``synced`` if there is one."""
    return [
        parts.stats, parts.make(SendBackProcessor, durable=synced),
        RecallMessageProcessor(parts.clock, parts.store, parts.config, durable),
        *map(parts.make, (
            QueryProcessor, ClientManageProcessor, ConsumerOffsetsProcessor, QueryAssignmentProcessor, TopicsProcessor,
            GroupsProcessor, GroupOffsetsProcessor, ProgressProcessor, ReplicationProcessor, EnginesProcessor)),
    ]
