"""What the console shows of a broker."""

from __future__ import annotations

from typing import Protocol

from tailrace.broker.clients.client_manager import ConnectedClients
from tailrace.broker.consumers.lags import ConsumerLags
from tailrace.broker.core.addresses import Addresses
from tailrace.broker.core.deletion import BrokerState
from tailrace.broker.core.name_servers import NameServers
from tailrace.config import BrokerConfig
from tailrace.env.clock import Clock
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.message_store import MessageStore
from tailrace.node.subscription_group import SubscriptionGroupManager
from tailrace.node.topic_config import TopicConfigManager
from tailrace.remoting.limits import ServerLimits

__all__ = ["ShownBroker"]


class ShownBroker(Protocol):
    """The parts of a broker that pages read."""

    clock: Clock
    store: MessageStore
    config: BrokerConfig
    boot_ms: int
    topics: TopicConfigManager
    groups: SubscriptionGroupManager
    offsets: ConsumerOffsetManager
    clients: ConnectedClients
    lags: ConsumerLags
    state: BrokerState
    addresses: Addresses
    name_servers: NameServers
    limits: ServerLimits

    def waiting_sends(self) -> int:
        """Return the number of sends that wait for the disk."""
        ...
