"""Checks that are common to the requests of POP consumers."""

from __future__ import annotations

from tailrace.errors import RefusalError
from tailrace.formats.pop import ExtraInfo
from tailrace.formats.remoting import ResponseCode
from tailrace.node.topic_config import TopicConfig

__all__ = ["check_poppable", "not_poppable", "receipt_of"]


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
