"""Checks of what consumers send: topic, queue and group of requests, and the members of a heartbeat (request 34)."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from tailrace.broker.core.creations import Creations
from tailrace.errors import MessageIllegalError, RefusalError
from tailrace.formats.remoting import RemotingCommand, ResponseCode
from tailrace.node.subscription_group import SubscriptionGroupConfig, SubscriptionGroupManager
from tailrace.node.topic_config import TopicConfig, TopicConfigManager
from tailrace.requests.bodies import (
    json_object,
    number_in,
    objects_in,
    text_in,
)

__all__ = [
    "CLIENT_ID_MAX", "EXPRESSION_MAX", "NAME_MAX", "Heartbeat", "check_allowed", "check_queue", "consuming_group",
    "existing_topic", "no_group", "read_heartbeat", "readable_topic",
]


def existing_topic(topics: TopicConfigManager, topic: str) -> TopicConfig:
    """Return a topic, which is not created if it is missing."""
    config = topics.select(topic)
    if config is None:
        raise no_topic(topic)
    return config


def no_topic(topic: str) -> RefusalError:
    """Return the error for a request of a topic that does not exist."""
    return RefusalError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!")


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
    config = topics.select(topic)
    if config is None:
        raise no_topic(topic)
    if not config.readable:
        raise RefusalError(ResponseCode.NO_PERMISSION, f"the topic[{topic}] {what} message is forbidden")
    if not 0 <= queue_id < config.read_queue_nums:
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


GROUPS_MAX: Final = 1_000
"""Number of consumer groups in a heartbeat, and of producer groups."""
TOPICS_MAX: Final = 1_000
"""Number of subscriptions of a group."""
NAME_MAX: Final = 255
CLIENT_ID_MAX: Final = 1_024
EXPRESSION_MAX: Final = 8 * 1024
"""Longest expression (tags or SQL92), in characters."""
EXPRESSIONS_MAX: Final = 16 * 1024
"""Longest sum of all expressions of a group, in characters."""
_LISTS: Final = (("tagsSet", str, "text"), ("codeSet", int, "a whole number"))


class Heartbeat(NamedTuple):
    """A heartbeat whose members have the right types. ``consumers`` are ConsumerData objects."""

    client_id: str
    producers: list[str]
    consumers: list[dict[str, Any]]
    fingerprint: int
    without_sub: bool


def read_heartbeat(request: RemotingCommand) -> Heartbeat:
    """Return the heartbeat in a body. Raises MessageIllegalError that names the wrong member."""
    data = json_object(request)
    consumers = objects_in(data, "consumerDataSet", GROUPS_MAX)
    for consumer in consumers:
        _name(consumer, "groupName", NAME_MAX)
        _check_subscriptions(consumer)
    return Heartbeat(
        _name(data, "clientID", CLIENT_ID_MAX),
        [_name(p, "groupName", NAME_MAX) for p in objects_in(data, "producerDataSet", GROUPS_MAX)],
        consumers, number_in(data, "heartbeatFingerprint"), bool(data.get("withoutSub", False)))


def _check_subscriptions(consumer: dict[str, Any]) -> None:
    size = 0
    for subscription in objects_in(consumer, "subscriptionDataSet", TOPICS_MAX):
        _name(subscription, "topic", NAME_MAX)
        number_in(subscription, "subVersion")
        if subscription.get("subString") is not None:
            size += len(_name(subscription, "subString", EXPRESSION_MAX))
        if subscription.get("expressionType") is not None:
            _name(subscription, "expressionType", NAME_MAX)
        for name, kind, words in _LISTS:
            found = subscription.get(name)
            if found is not None and (
                not isinstance(found, list) or any(type(member) is not kind for member in found)
            ):
                raise MessageIllegalError("body", f"{name} is not a list of which each is {words}")
    if size > EXPRESSIONS_MAX:
        raise MessageIllegalError(
            "body", f"the subscriptions of group {consumer['groupName']} have {size} characters, over "
            f"the limit of {EXPRESSIONS_MAX}")


def _name(value: dict[str, Any], name: str, most: int) -> str:
    text = text_in(value, name)
    if len(text) > most:
        raise MessageIllegalError(
            "body", f"{name} has {len(text)} characters, over the limit of {most}")
    return text
