"""The topics to which plain sends need no look at settings, because the ordinary path has stored one of theirs."""

from __future__ import annotations

from typing import final

from tailrace.kernels.send_lane import PlainTopic
from tailrace.node.topic_config import FORBIDDEN_TO_SEND, TopicConfig, TopicConfigManager

__all__ = ["ProvenTopics"]


@final
class ProvenTopics:
    """Topics that are proven under the present settings: ``table``, by name.

    ``version`` is another object after any change of a topic or a setting, so everything proven before is no longer
    valid. The event loop's thread adds topics and uses them; any thread may call `forget`.
    """

    def __init__(self, topics: TopicConfigManager) -> None:
        self._topics = topics
        self.table: dict[bytes, PlainTopic] = {}
        self.version = object()
        self._seen: dict[str, object] = {}
        topics.on_change(self.forget)

    def forget(self) -> None:
        """Prove nothing any more, because a topic or a setting has changed."""
        self.version = object()

    def add(self, topic: str) -> None:
        """Prove a topic of which the ordinary path has just stored a message, if its plain sends need no more."""
        version = self.version  # before the look at the topic, so that a change in the meantime counts
        if topic[0] == "%" or self._seen.get(topic) is version:
            return
        config = self._topics.select(topic)
        if config is None:
            return
        if len(self._seen) > len(self._topics.table):  # topics that were deleted
            self._seen.clear()
            self.table.clear()
        self._seen[topic] = version
        if self._is_plain(config):
            self.table[topic.encode()] = PlainTopic(topic, config.write_queue_nums, version)

    def _is_plain(self, config: TopicConfig) -> bool:
        """Return whether a plain message is stored in the queue that it names, with no other check."""
        name = config.topic_name
        return config.writable and name not in FORBIDDEN_TO_SEND and not (
            config.has_batch_queues or config.is_compacted or config.is_lite or self._topics.unsupported_type(config))
