"""The name servers that know a broker: one in its process, others at which it registers."""

from __future__ import annotations

from typing import Any, Protocol, final

from tailrace.config import BrokerConfig
from tailrace.node.topic_config import TopicConfigManager

__all__ = ["NameServers"]


class _Own(Protocol):
    def route(self, topic: str) -> dict[str, Any] | None: ...
    def members(self, cluster: str, name: str) -> dict[int, str]: ...


class _Others(Protocol):
    def states(self) -> dict[str, bool]: ...


@final
class NameServers:
    """What the name servers say. Before the broker serves it knows no name server."""

    def __init__(self, topics: TopicConfigManager, config: BrokerConfig) -> None:
        self._topics, self._config = topics, config
        self.addresses = ""
        """Addresses for requests, separated by ``;``."""
        self._own: _Own | None = None
        self._others: _Others | None = None

    def ask_own(self, own: _Own, address: str) -> None:
        """Ask the name server of this process from now on."""
        self._own, self.addresses = own, address

    def registered_at(self, others: _Others, addresses: str) -> None:
        """Note the registration at name servers of other processes; ``addresses`` are those for requests."""
        self._others, self.addresses = others, addresses

    def route(self, topic: str) -> dict[str, Any] | None:
        """Return the route of a topic (TopicRouteData): its queues on this broker and on those of the own name server.

        None if the topic is not known.
        """
        if self._own is not None:
            return self._own.route(topic)
        config = self._topics.select(topic)
        return None if config is None else {"queueDatas": [{
            "brokerName": self._config.broker_name, "perm": config.perm, "readQueueNums": config.read_queue_nums}]}

    def states(self) -> dict[str, bool]:
        """Return for each name server of another process whether it accepted the last registration."""
        return {} if self._others is None else self._others.states()

    def members(self) -> dict[int, str]:
        """Return the brokers of this name that the own name server knows: their addresses by id."""
        config = self._config
        return {} if self._own is None else self._own.members(config.broker_cluster_name, config.broker_name)
