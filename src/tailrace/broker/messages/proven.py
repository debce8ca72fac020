"""Topics and subscriptions whose plain sends and pulls need no look at settings: the ordinary path has served one."""

from __future__ import annotations

from array import array
from typing import Final, final

from tailrace.broker.clients.client_manager import ConsumerManager
from tailrace.broker.messages.pull_answers import parts_of_answer
from tailrace.filters.message_filters import MessageFilter
from tailrace.formats.remoting import SerializeType
from tailrace.formats.requests.message_headers import PullMessageRequestHeader, PullSysFlag
from tailrace.kernels.pull_lane import PlainSubscription
from tailrace.kernels.send_lane import PlainTopic
from tailrace.node.subscription_group import OFFSETS_OF_BROKER, SubscriptionGroupManager
from tailrace.node.topic_config import FORBIDDEN_TO_SEND, TopicConfig, TopicConfigManager

__all__ = ["ProvenSubscriptions", "ProvenTopics"]


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


MOST: Final = 10_000
"""Subscriptions that are known at a time."""
TEXT_MAX: Final = 1024
"""Longest own text of a pull that is kept; a longer one is looked at in each pull."""
Key = tuple[bytes, bytes, bytes | None]


@final
class ProvenSubscriptions:
    """Subscriptions that are proven under the present settings: ``table``, by group, topic and own text of a pull.

    ``version`` is another object after any change of a topic, a group, the subscriptions of a group or a setting, so
    everything proven before is no longer valid. The event loop's thread adds and uses them; any thread may call
    `forget`.
    """

    def __init__(
        self, topics: TopicConfigManager, groups: SubscriptionGroupManager, consumers: ConsumerManager
    ) -> None:
        self._topics, self._groups, self._consumers = topics, groups, consumers
        self.table: dict[Key, PlainSubscription] = {}
        self.version = object()
        self._seen: dict[tuple[str, str, str | None], object] = {}
        for changes in (topics, groups, consumers):
            changes.on_change(self.forget)

    def forget(self) -> None:
        """Prove nothing any more, because something has changed."""
        self.version = object()

    def add(self, header: PullMessageRequestHeader, wanted: MessageFilter) -> None:
        """Prove the subscription of a pull that the ordinary path has served, if its plain pulls need no more."""
        version = self.version  # before the look at the settings, so that a change in the meantime counts
        own = header.subscription if header.sys_flag & PullSysFlag.SUBSCRIPTION else None
        if header.sys_flag & PullSysFlag.SUBSCRIPTION and not own:
            return  # it selects every message, whatever the group's subscription is
        if own is not None and len(own) > TEXT_MAX:
            return
        seen = header.consumer_group, header.topic, own
        if self._seen.get(seen) is version:
            return
        if len(self._seen) >= MOST:
            self._seen.clear()
            self.table.clear()
        self._seen[seen] = version
        found = self._proven(header, wanted, version, own)
        if found is not None:
            self.table[found.group.encode(), found.topic.encode(), None if own is None else own.encode()] = found

    def _proven(
        self, header: PullMessageRequestHeader, wanted: MessageFilter, version: object, own: str | None
    ) -> PlainSubscription | None:
        """Return a subscription whose messages are in the queue that a pull names, selected by tags code if at all."""
        group, topic, sub_version = header.consumer_group, header.topic, 0
        config, group_config = self._topics.select(topic), self._groups.select(group)
        if topic[0] == "%" or group[0] == "%" or header.lite_topic or wanted.properties is not None:
            return None
        if config is None or not config.readable or config.has_batch_queues or config.is_compacted or config.is_lite:
            return None
        if group_config is None or not group_config.consume_enable or group in OFFSETS_OF_BROKER:
            return None
        if own is None:
            info = self._consumers.find(group)
            data = None if info is None else info.subscriptions.get(topic)
            if info is None or data is None or self._groups.is_read_forbidden(group, topic) or (
                info.broadcasting and not group_config.consume_broadcast_enable
            ):
                return None
            sub_version = data.sub_version
        return PlainSubscription(
            group, topic, version, config.read_queue_nums, sub_version, array("q", wanted.codes or ()) or None, *(
                parts_of_answer(config, group_config, kind) for kind in (SerializeType.JSON, SerializeType.ROCKETMQ)))
