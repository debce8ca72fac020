"""What the processors of a broker share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tailrace.broker.broker_stats import BrokerStatsManager
from tailrace.broker.client_manager import ConsumerManager, ProducerManager
from tailrace.broker.rebalance_lock import RebalanceLockManager
from tailrace.broker.traffic import Traffic
from tailrace.config import BrokerConfig
from tailrace.env.clock import Clock
from tailrace.env.entropy import Entropy
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.subscription_group import SubscriptionGroupManager
from tailrace.node.topic_config import TopicConfigManager

if TYPE_CHECKING:
    from tailrace.node.message_store import MessageStore

__all__ = ["BrokerContext"]


@dataclass(slots=True, kw_only=True)
class BrokerContext:
    """A running broker, as its processors see it."""

    loop: asyncio.AbstractEventLoop
    clock: Clock
    entropy: Entropy
    store: MessageStore
    config: BrokerConfig
    topics: TopicConfigManager
    groups: SubscriptionGroupManager
    offsets: ConsumerOffsetManager
    consumers: ConsumerManager
    producers: ProducerManager
    locks: RebalanceLockManager
    address: str = ""
    """``ip:port`` that clients are told."""
    namesrv_address: str = ""
    boot_ms: int = 0
    traffic: Traffic = field(init=False)
    stats: BrokerStatsManager = field(init=False)
    route: Callable[[str], dict[str, Any] | None] = field(init=False)
    """Queues of a topic (TopicRouteData), of this broker and all that its name server knows."""
    waiting_sends: Callable[[], int] = int
    """How many sends wait for the disk."""
    waiting_pulls: Callable[[], int] = int
    """How many pulls wait for a message."""
    registrations: Callable[[], Mapping[str, bool]] = dict
    """Name servers of other processes: whether they took the last registration."""

    def __post_init__(self) -> None:
        self.route = self._own_route
        self.traffic = Traffic(self.topics.is_system_topic)
        self.stats = BrokerStatsManager(self.clock, self.traffic, self.config.broker_cluster_name)

    def _own_route(self, topic: str) -> dict[str, Any] | None:
        config = self.topics.select(topic)
        return None if config is None else {"queueDatas": [{
            "brokerName": self.config.broker_name, "perm": config.perm,
            "readQueueNums": config.read_queue_nums,
        }]}
