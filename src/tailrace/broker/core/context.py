"""The objects that the processors of a broker share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tailrace.auth.check import REASONS, AccessControl
from tailrace.broker.clients.client_ids import ClientIds
from tailrace.broker.clients.client_manager import ConsumerManager, ProducerManager
from tailrace.broker.clients.rebalance_lock import RebalanceLockManager
from tailrace.broker.core.asked import AskedQuestions
from tailrace.broker.core.audit_log import AuditLog
from tailrace.broker.core.cold_data import ColdDataFlowControl
from tailrace.broker.core.creations import Creations
from tailrace.broker.core.deletion import BrokerState
from tailrace.broker.core.revive_log import ReviveLog
from tailrace.broker.static_topics.forwarder import Forwarder
from tailrace.broker.static_topics.logical_queues import StaticTopics
from tailrace.broker.static_topics.logical_requests import LogicalQueueRequests
from tailrace.broker.statistics.broker_stats import BrokerStatsManager
from tailrace.broker.statistics.loop_lag import LoopLag
from tailrace.broker.statistics.pop_metrics import PopMetrics
from tailrace.broker.statistics.rpc_latency import RpcLatency
from tailrace.broker.statistics.traffic import Traffic
from tailrace.broker.transactions.service import TransactionService
from tailrace.config import BrokerConfig
from tailrace.env.clock import Clock
from tailrace.env.entropy import Entropy
from tailrace.filters.message_filters import MessageFilters
from tailrace.ha.replicas import Replicas
from tailrace.ha.slave import Slave
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.consumer_order_info import ConsumerOrderInfoManager
from tailrace.node.subscription_group import SubscriptionGroupConfig, SubscriptionGroupManager
from tailrace.node.topic_config import TopicConfig, TopicConfigManager
from tailrace.remoting.client import RemotingClient
from tailrace.remoting.limits import ServerLimits
from tailrace.requests.config_changes import Change, ConfigChanges, MissingConfigError
from tailrace.requests.executors import Executors
from tailrace.requests.worker import RequestWorker, cold_reads

if TYPE_CHECKING:
    from tailrace.node.message_store import MessageStore

__all__ = ["BrokerContext"]


@dataclass(slots=True, kw_only=True)
class BrokerContext:
    """The parts of a running broker that its processors use."""

    loop: asyncio.AbstractEventLoop
    clock: Clock
    entropy: Entropy
    store: MessageStore
    config: BrokerConfig
    topics: TopicConfigManager
    groups: SubscriptionGroupManager
    offsets: ConsumerOffsetManager
    revive_log: ReviveLog
    consumers: ConsumerManager
    producers: ProducerManager
    locks: RebalanceLockManager
    filters: MessageFilters
    address: str = ""
    """``ip:port`` that the broker advertises to clients."""
    namesrv_address: str = ""
    boot_ms: int = 0
    traffic: Traffic = field(init=False)
    stats: BrokerStatsManager = field(init=False)
    route: Callable[[str], dict[str, Any] | None] = field(init=False)
    """Returns the route of a topic (TopicRouteData): its queues on this broker and on those of the name server."""
    outgoing: Callable[[], RemotingClient] = RemotingClient
    """Makes a client for other brokers and name servers, which uses TLS and signs as the settings say."""
    waiting_sends: Callable[[], int] = int
    """Returns the number of sends that wait for the disk."""
    waiting_pulls: Callable[[], int] = int
    """Returns the number of pulls that wait for a message."""
    limits: ServerLimits | None = None
    """Counts the memory of connections; None until the broker listens."""
    control: AccessControl | None = None
    """Checks what a request touches beyond its names (`AccessControl.require`); None if clients need no user."""
    audit_log: AuditLog | None = None
    """The file of records of administration, for its metrics; None without ``--audit-log``."""
    denied: Callable[[], Mapping[str, int]] = lambda: dict.fromkeys(REASONS, 0)
    """Returns the number of requests that access control refused, by reason."""
    client_ids: ClientIds = field(init=False)
    """Which user each client id belongs to."""
    asked: AskedQuestions = field(init=False)
    """Questions of request-reply that may be replied to."""
    registrations: Callable[[], Mapping[str, bool]] = dict
    """Returns for each name server of another process whether it accepted the last registration."""
    slave: Slave | None = None
    """Follows the master; None on a master."""
    ha_address: str = ""
    """``ip:port`` to which slaves connect; empty without a port for them."""
    replicas: Replicas = field(init=False)
    """The slaves that are connected."""
    pop_orders: ConsumerOrderInfoManager | None = None
    """Messages that groups have popped in order; set by POP consumption, and used on the event loop."""
    state: BrokerState = field(init=False)
    """What the broker forgets with topics and groups that are deleted."""
    executors: Executors = field(default_factory=Executors)
    """The threads, by kind of work."""
    changes: ConfigChanges = field(init=False)
    """Changes of topics, groups and offsets that are answered once they are durable."""
    creations: Creations = field(init=False)
    """Says which topics and groups a user may create."""
    worker: RequestWorker = field(init=False)
    """Runs requests whose work grows with their input or the store."""
    cold_reads: RequestWorker = field(init=False)
    """Runs pulls that read from the disk."""
    cold_data: ColdDataFlowControl = field(init=False)
    """Reports which groups have read too much from the disk."""
    static_topics: StaticTopics = field(init=False)
    """Logical queues of static topics."""
    forwarder: Forwarder = field(init=False)
    """Forwards requests to the brokers that have other parts of logical queues."""
    logical_queues: LogicalQueueRequests = field(init=False)
    """Serves requests that name logical queues."""
    transactions: TransactionService = field(init=False)
    """Half messages of transactions."""
    pop_metrics: PopMetrics = field(init=False)
    """Counts what POP has in flight and has written."""
    rpc_latency: RpcLatency = field(default_factory=RpcLatency)
    """Counts how long calls of the gRPC endpoint take."""
    loop_lag: LoopLag = field(init=False)
    """Measures how long requests hold the event loop."""

    def __post_init__(self) -> None:
        self.loop_lag = LoopLag(self.loop)
        self.client_ids = ClientIds(lambda: self.control)
        self.asked = AskedQuestions(self)
        self.pop_metrics = self.revive_log.metrics
        executors = self.executors
        self.worker = RequestWorker(self.loop, executors.worker("requests"))
        self.creations = Creations(self.topics, self.groups, self.config, lambda: self.control)
        self.changes = ConfigChanges(self.loop, self.worker, executors.files, self.creations)
        self.cold_reads = cold_reads(self.loop, executors.cold_reads)
        self.cold_data = ColdDataFlowControl(self.clock, self.config)
        self.static_topics = StaticTopics(self.topics.mappings, self.config.broker_name)
        self.forwarder = Forwarder(
            self.loop, self.clock, self.config, lambda: self.namesrv_address, self.outgoing)
        self.logical_queues = LogicalQueueRequests(executors.look_ups, self.static_topics, self.forwarder)
        self.transactions = TransactionService(
            self.clock, self.entropy, self.store, self.topics, self.offsets, self.config)
        self.replicas = Replicas(self.clock, self.store.inner)
        self.state = BrokerState(self)
        self.store.deletion.state = self.state
        self.route = self._own_route
        self.traffic = Traffic(
            self.topics.is_system_topic, by_queue=self.config.enable_detail_stat,
            cluster=self.config.broker_cluster_name)
        self.stats = BrokerStatsManager(self.clock, self.traffic, self.config.broker_cluster_name)

    def _own_route(self, topic: str) -> dict[str, Any] | None:
        config = self.topics.select(topic)
        return None if config is None else {"queueDatas": [{
            "brokerName": self.config.broker_name, "perm": config.perm,
            "readQueueNums": config.read_queue_nums,
        }]}

    def group(self, name: str) -> SubscriptionGroupConfig | None:
        """Return a group; None if it does not exist and may not be created by a consumer.

        Raises MissingConfigError if it has to be created first.
        """
        found = self.groups.select(name)
        if found is None and self.groups.may_create(name):
            made = SubscriptionGroupConfig(group_name=name)
            raise MissingConfigError(Change(self.groups, self.groups.creation(made), creates=(name,)))
        return found

    def topic(self, name: str, queue_nums: int, sys_flag: int = 0) -> TopicConfig:
        """Return a topic of the broker's own, such as a retry topic.

        Raises MissingConfigError if it has to be created first.
        """
        found = self.topics.select(name)
        if found is None:
            raise MissingConfigError(self.topic_creation(name, queue_nums, sys_flag))
        return found

    def topic_creation(self, name: str, queue_nums: int, sys_flag: int = 0) -> Change:
        """Return the change that creates a topic if it is missing."""
        return Change(self.topics, self.topics.creation(TopicConfig(
            topic_name=name, read_queue_nums=queue_nums, write_queue_nums=queue_nums,
            topic_sys_flag=sys_flag)), creates=(name,))
