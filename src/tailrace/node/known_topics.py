"""What a slave knows of the topics of its master before it can ask."""

from __future__ import annotations

from typing import final

from tailrace.config import BrokerConfig
from tailrace.env.filesystem import FileSystem
from tailrace.errors import DispatchWaitsError
from tailrace.formats.names import LMQ_PREFIX
from tailrace.node.topic_config import is_system_topic
from tailrace.store.queue_types import read_topics

__all__ = ["KnownTopics"]


@final
class KnownTopics:
    """The topics of the last copy, in ``config/topics.json``: a `Follower` for the recovery, until the broker starts.

    A record of another topic waits, because only the master knows which kind of queues the topic has (SM5).
    """

    def __init__(self, file_system: FileSystem, root: str, broker: BrokerConfig) -> None:
        self._topics = read_topics(file_system, root)
        self._broker = broker

    def may_create(self, topic: str) -> None:
        """Return if a queue of a topic may be made. Raises DispatchWaitsError."""
        if topic not in self._topics and not topic.startswith(LMQ_PREFIX) and not is_system_topic(topic, self._broker):
            raise DispatchWaitsError(topic)

    def begins_again(self, topic: str, queue_id: int, phy_offset: int) -> None:
        """Raise DispatchWaitsError: the broker removes the queue."""
        raise DispatchWaitsError(topic)
