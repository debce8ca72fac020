"""Checks that are common to the requests of POP consumers."""

from __future__ import annotations

from tailrace.broker.consumers.consumer_checks import check_allowed, consuming_group, readable_topic
from tailrace.broker.consumers.heartbeat import EXPRESSION_MAX
from tailrace.broker.core.context import BrokerContext
from tailrace.errors import RefusalError
from tailrace.filters.message_filters import MessageFilter
from tailrace.filters.subscriptions import SUB_ALL, TAG, SubscriptionData
from tailrace.formats.pop import ExtraInfo
from tailrace.formats.remoting import ResponseCode
from tailrace.node.topic_config import TopicConfig

__all__ = ["check_names", "check_poppable", "check_writable", "filter_of", "not_poppable", "receipt_of"]


def check_names(broker: BrokerContext, group: str, topic: str, queue_id: int) -> TopicConfig:
    """Check that a group may consume a queue, or all queues (-1); return the topic.

    Raises RefusalError, or MissingConfigError if the group has to be created first.
    """
    config = readable_topic(broker, topic, queue_id, "peeking", or_all=True)
    consuming_group(broker, group)
    check_allowed(broker, group, topic)
    return config


def not_poppable(topic: str) -> str:
    """Return why a topic with batch queues is not popped, for users.

    A Java broker hands such messages out, but its clients do not take an inner batch apart when they pop, and the
    broker cannot put an inner batch that is not acknowledged into a retry topic, so that it is never redelivered.
    """
    return (f"the topic[{topic}] has queue.type=BatchCQ, and its messages can be pulled, not popped: use a consumer "
            "of the remoting protocol in mode PULL")


def check_poppable(topic: TopicConfig) -> None:
    """Raise RefusalError for a topic with batch queues."""
    if topic.has_batch_queues:
        raise RefusalError(ResponseCode.NO_PERMISSION, not_poppable(topic.topic_name))


def filter_of(
    broker: BrokerContext, topic: str, group: str, expression_type: str | None, expression: str | None
) -> MessageFilter:
    """Return the filter of a request for a topic. It is not applied to retried messages, which have passed it.

    Raises RefusalError, or NotPreparedError if the expression has to be compiled in a thread first.
    """
    text = expression or SUB_ALL
    if len(text) > EXPRESSION_MAX:
        raise RefusalError(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"exp has {len(text)} characters, over the limit of {EXPRESSION_MAX}")
    try:
        wanted = SubscriptionData.parse(
            topic, text, expression_type=(expression_type or TAG) if expression else TAG)
    except ValueError as error:
        raise RefusalError(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed") from error
    return broker.filters.of_request(wanted, group, always=True)


def check_writable(broker: BrokerContext) -> None:
    """Raise RefusalError if checkpoints cannot be stored."""
    if broker.store.read_only:
        raise RefusalError(ResponseCode.SYSTEM_ERROR, broker.store.read_only)
    if not broker.store.config.timer_wheel_enable:
        raise RefusalError(
            ResponseCode.SYSTEM_ERROR,
            f"the broker[{broker.address}] pop message is forbidden because timerWheelEnable is false")


def receipt_of(extra_info: str, revive_queues: int) -> ExtraInfo:
    """Return the receipt in a text. Raises RefusalError if it cannot be a receipt of this broker."""
    try:
        receipt = ExtraInfo.decode(extra_info)
    except ValueError as error:
        raise RefusalError(ResponseCode.INVALID_PARAMETER, str(error)) from error
    if not receipt.is_order and not 0 <= receipt.revive_queue_id < revive_queues:
        raise RefusalError(
            ResponseCode.INVALID_PARAMETER,
            f"extraInfo names revive queue {receipt.revive_queue_id}, there are {revive_queues}")
    return receipt
