"""The topics of an open store, for the services that deliver messages later.

| config | deletion of the topic | record | delivered |
|---|---|---|---|
| yes | on record, at position P | before P | no: it belongs to the ended life |
| yes | any, or none | otherwise | yes |
| no | on record | any | no |
| no | not on record | before the open | no: ``topics.json`` was there at the open, so a Java broker deleted the topic |
| no | not on record | since the open | yes: the topic never had a message |

A topic that has queues has a config: an open makes one. Topics of the broker and LMQ queues need none. If there was
no ``topics.json`` at the open, or if a Java broker has newer topics in RocksDB, topics without a deletion on record
count as known, because it cannot be seen which exist.
"""

from __future__ import annotations

from typing import final

from tailrace.formats.names import LMQ_PREFIX
from tailrace.node.topic_config import TopicConfigManager
from tailrace.store.lives import EndedLives
from tailrace.timer.parking import NOWHERE, Targets

__all__ = ["TimerTargets"]


@final
class TimerTargets(Targets):
    """Decides where a message that has waited is delivered. Any thread may call."""

    def __init__(self, topics: TopicConfigManager, lives: EndedLives, opened_at: int) -> None:
        self._topics = topics
        self._lives = lives
        self._known_until = opened_at if topics.was_loaded else 0
        """A topic of a record before this position had a config when the record was put."""

    def first_position(self, topic: str) -> int:
        """Return the position before which records of a topic are not delivered."""
        ended = self._lives.deleted_up_to(topic)
        if topic in self._topics.table or topic.startswith(LMQ_PREFIX) or self._topics.is_system_topic(topic):
            return ended
        return NOWHERE if ended else self._known_until

    def queue_id(self, topic: str, queue_id: int) -> int:
        """Return the given queue, or one of the readable queues if the topic has fewer now."""
        config = self._topics.table.get(topic)
        if config is None or not 0 < config.read_queue_nums <= queue_id or topic in self._topics.mappings.table:
            return queue_id
        return queue_id % config.read_queue_nums
