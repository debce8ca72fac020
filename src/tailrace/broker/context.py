"""What the processors of a broker share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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
    traffic: Traffic = field(default_factory=Traffic)
    waiting_sends: Callable[[], int] = int
    """How many sends wait for the disk."""
    waiting_pulls: Callable[[], int] = int
    """How many pulls wait for a message."""
    registrations: Callable[[], Mapping[str, bool]] = dict
    """Name servers of other processes: whether they took the last registration."""
