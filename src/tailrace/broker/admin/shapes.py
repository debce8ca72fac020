"""Checks of the configuration of a topic or group that a request sets, before it is written to a state file."""

from __future__ import annotations

from typing import Any, Final

from tailrace.errors import RefusalError
from tailrace.formats import fastjson
from tailrace.formats.remoting import ResponseCode
from tailrace.node.subscription_group import SubscriptionGroupConfig
from tailrace.node.topic_config import TopicConfig
from tailrace.store.retention.topic_rules import topic_limits

__all__ = ["check_shape", "unreadable_by_java"]

QUEUES_MAX: Final = 16_384
FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")
DEPTH_MAX: Final = 32
CONFIG_MAX: Final = 16 * 1024
"""Bytes that a topic or group may take in its file, together with members that Tailrace does not know."""


def check_shape(config: TopicConfig) -> None:
    """Raise RefusalError if a number or a text of a topic is invalid."""
    for what, value in (("read", config.read_queue_nums), ("write", config.write_queue_nums)):
        if not 0 <= value <= QUEUES_MAX:
            raise RefusalError(
                ResponseCode.INVALID_PARAMETER,
                f"{what}QueueNums={value} is outside 0 to {QUEUES_MAX}",
            )
    if not 0 <= config.perm <= 15:
        raise RefusalError(ResponseCode.INVALID_PARAMETER, f"perm={config.perm} is invalid")
    if reason := unreadable_by_java(config):
        raise RefusalError(ResponseCode.INVALID_PARAMETER, reason)
    try:
        topic_limits(config.attributes)
    except ValueError as error:
        raise RefusalError(ResponseCode.INVALID_PARAMETER, str(error)) from error


def unreadable_by_java(config: TopicConfig | SubscriptionGroupConfig) -> str:
    """Return why a file with this config could not be read by a Java broker or by Tailrace; empty if it could.

    One invalid member would make the whole file unreadable, or make the next write of the file fail.
    """
    value = config.to_json()
    for name, member in value.items():
        if isinstance(member, int) and not -(1 << 31) <= member < 1 << 31:
            return f"{name}={member} is not a 32-bit number"
    if (kind := value.get("topicFilterType")) is not None and kind not in FILTER_TYPES:
        return f"topicFilterType={kind} is not one of {', '.join(FILTER_TYPES)}"
    try:
        size = len(fastjson.dumps(value))
    except TypeError as error:
        return f"it cannot be written: {error}"
    if size > CONFIG_MAX:
        return f"it has {size} bytes, over the limit of {CONFIG_MAX}"
    return "" if _depth(value) <= DEPTH_MAX else f"it has more than {DEPTH_MAX} levels"


def _depth(value: Any) -> int:
    """Return the number of levels of objects and arrays. The value must be serializable, so it has no cycle."""
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list) else 0
