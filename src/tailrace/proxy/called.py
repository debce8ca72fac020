"""What calls use of a broker."""

from __future__ import annotations

import asyncio
from typing import Protocol

from tailrace.broker.clients.client_manager import ConnectedClients
from tailrace.broker.core.access import Access
from tailrace.broker.core.addresses import Addresses
from tailrace.broker.lite.pop_lite import LitePopService
from tailrace.broker.messages.end_transaction import TransactionEnds
from tailrace.broker.messages.service import MessageService
from tailrace.broker.pop.ack import AckService
from tailrace.broker.pop.pop_message import PopService
from tailrace.broker.statistics.latencies import RpcLatency
from tailrace.broker.statistics.traffic import Traffic
from tailrace.config import BrokerConfig
from tailrace.env.clock import Clock
from tailrace.node.message_store import MessageStore
from tailrace.node.subscription_group import SubscriptionGroupManager
from tailrace.node.topic_config import TopicConfigManager
from tailrace.remoting import RemotingServer
from tailrace.remoting.limits import ServerLimits
from tailrace.requests.config_changes import ConfigChanges
from tailrace.requests.executors import Executors

__all__ = ["CalledBroker", "CalledParts"]


class CalledParts(Protocol):
    """Parts of a broker that are not services."""

    loop: asyncio.AbstractEventLoop
    clock: Clock
    store: MessageStore
    config: BrokerConfig
    executors: Executors
    topics: TopicConfigManager
    groups: SubscriptionGroupManager
    clients: ConnectedClients
    changes: ConfigChanges
    traffic: Traffic
    rpc_latency: RpcLatency
    addresses: Addresses


class CalledBroker(Protocol):
    """A broker that serves."""

    limits: ServerLimits
    access: Access

    @property
    def broker(self) -> CalledParts:
        """Its parts."""
        ...

    @property
    def messages(self) -> MessageService:
        """Stores messages."""
        ...

    @property
    def pops(self) -> tuple[PopService, LitePopService]:
        """Hand out messages of topics, and of Lite topics."""
        ...

    @property
    def acks(self) -> AckService:
        """Settles popped messages."""
        ...

    @property
    def ends(self) -> TransactionEnds:
        """Commits and rolls back half messages."""
        ...

    def in_process(self) -> RemotingServer:
        """Return a server without a port, for requests that have no service yet."""
        ...
