"""Checks of the topic, queue and group in the requests of consumers. All functions raise RefusalError."""

from __future__ import annotations

from tailrace.broker.core.creations import Creations
from tailrace.errors import RefusalError
from tailrace.formats.remoting import ResponseCode
from tailrace.node.subscription_group import SubscriptionGroupConfig, SubscriptionGroupManager
from tailrace.node.topic_config import TopicConfig, TopicConfigManager

__all__ = [
    "check_allowed", "check_queue", "consuming_group", "existing_topic", "no_group", "readable_topic",
]


def existing_topic(topics: TopicConfigManager, topic: str) -> TopicConfig:
    """Return a topic, which is not created if it is missing."""
    config = topics.select(topic)
    if config is None:
        raise RefusalError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!")
    return config


def check_queue(
    topic: TopicConfig, queue_id: int, code: ResponseCode = ResponseCode.INVALID_PARAMETER, *,
    or_all: bool = False,
) -> None:
    """Check that a queue exists for reading. With ``or_all`` a number below 0 is valid and means all queues."""
    if queue_id >= topic.read_queue_nums or (queue_id < 0 and not or_all):
        raise RefusalError(
            code, f"queueId[{queue_id}] is illegal, topic:[{topic.topic_name}] "
            f"topicConfig.readQueueNums:[{topic.read_queue_nums}]")


def readable_topic(
    topics: TopicConfigManager, topic: str, queue_id: int, what: str, *, or_all: bool = False
) -> TopicConfig:
    """Return a topic after a check that it and its queue may be read; ``what`` names the request in the error."""
    config = existing_topic(topics, topic)
    if not config.readable:
        raise RefusalError(ResponseCode.NO_PERMISSION, f"the topic[{topic}] {what} message is forbidden")
    check_queue(config, queue_id, or_all=or_all)
    return config


def no_group(group: str) -> RefusalError:
    """Return the error for a request of a group that does not exist."""
    return RefusalError(
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{group}] does not exist")


def consuming_group(creations: Creations, group: str) -> SubscriptionGroupConfig:
    """Return a group that may consume. Raises MissingConfigError if the group has to be created first."""
    config = creations.group(group)
    if config is None:
        raise no_group(group)
    if not config.consume_enable:
        raise RefusalError(ResponseCode.NO_PERMISSION, f"subscription group no permission, {group}")
    return config


def check_allowed(groups: SubscriptionGroupManager, group: str, topic: str) -> None:
    """Check that a group is not forbidden to read a topic."""
    if groups.is_read_forbidden(group, topic):
        raise RefusalError(
            ResponseCode.NO_PERMISSION, f"the consumer group[{group}] is forbidden for topic[{topic}]")
