"""The clients that are connected to a broker."""

from __future__ import annotations

from typing import final

from tailrace.broker.clients.client_ids import ClientIds
from tailrace.broker.clients.client_manager import ConsumerManager, ProducerManager
from tailrace.broker.clients.rebalance_lock import RebalanceLockManager
from tailrace.remoting import Channel

__all__ = ["ConnectedClients"]


@final
class ConnectedClients:
    """The members of groups, whose their client ids are, and the queues that they have locked."""

    def __init__(
        self, consumers: ConsumerManager, producers: ProducerManager, locks: RebalanceLockManager, ids: ClientIds
    ) -> None:
        self.consumers, self.producers = consumers, producers
        self.locks = locks
        self.ids = ids

    def closed(self, channel: Channel) -> None:
        """Forget a connection that has closed."""
        for part in (self.consumers, self.producers, self.ids):
            part.closed(channel)
