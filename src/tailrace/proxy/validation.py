"""Checks of names and values, with the codes and words of RocketMQ's GrpcValidator. All raise GrpcError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tailrace.formats.lite import is_lite_name
from tailrace.formats.names import SYSTEM_GROUP_PREFIX, SYSTEM_TOPIC_PREFIX
from tailrace.node.topic_config import FORBIDDEN_TO_SEND, SYSTEM_TOPICS
from tailrace.proxy import limits
from tailrace.proxy.protocol import Code, GrpcError, name_of

__all__ = [
    "check_group", "check_invisible_time", "check_key", "check_lite_topic", "check_message_group", "check_tag",
    "check_topic", "has_control_character",
]

TOPIC_MAX: Final = 127
GROUP_MAX: Final = 120
SHOWN_MAX: Final = 300
REMEMBERED_MAX: Final = 10_000
_topics: set[str] = set()
_groups: set[str] = set()
"""Names without a namespace that have passed their check, which depends on nothing else."""
_ALLOWED: Final = frozenset("%|abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
_BLANKS: Final = " \t\n\v\f\r\x1c\x1d\x1e\x1f"


def _checked_once(resource: Any, passed: set[str], check: Callable[[Any], str]) -> str:
    """Return the name that ``check`` returns. A name without a namespace that is in ``passed`` is not checked again."""
    if resource.resource_namespace:
        return check(resource)
    if resource.name not in passed:
        name = check(resource)
        if len(passed) >= REMEMBERED_MAX:
            passed.clear()
        passed.add(name)
    return str(resource.name)


def _is_blank(text: str) -> bool:
    return not text.strip(_BLANKS)


def check_topic(topic: Any) -> str:
    """Return the name of a topic that users may name."""
    return _checked_once(topic, _topics, _checked_topic)


def _checked_topic(topic: Any) -> str:
    name = name_of(topic)
    if _is_blank(topic.name):
        raise GrpcError(Code.ILLEGAL_TOPIC, "The specified topic is blank")
    if len(name) > TOPIC_MAX:
        raise GrpcError(Code.ILLEGAL_TOPIC, f"The specified topic is longer than topic max length {TOPIC_MAX}.")
    if not _ALLOWED.issuperset(name):
        raise GrpcError(
            Code.ILLEGAL_TOPIC,
            f"The specified topic[{name}] contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$")
    if name in SYSTEM_TOPICS or name in FORBIDDEN_TO_SEND or name.startswith(SYSTEM_TOPIC_PREFIX):
        raise GrpcError(Code.ILLEGAL_TOPIC, "cannot access system topic")
    return name


def check_group(group: Any) -> str:
    """Return the name of a consumer group that users may name."""
    return _checked_once(group, _groups, _checked_group)


def _checked_group(group: Any) -> str:
    name = name_of(group)
    if _is_blank(group.name):
        raise GrpcError(Code.ILLEGAL_CONSUMER_GROUP, "the specified group is blank")
    if len(name) > GROUP_MAX:
        raise GrpcError(
            Code.ILLEGAL_CONSUMER_GROUP,
            f"the specified group[{name[:SHOWN_MAX]}] is longer than group max length: {GROUP_MAX}.")
    if not _ALLOWED.issuperset(name):
        raise GrpcError(
            Code.ILLEGAL_CONSUMER_GROUP,
            f"the specified group[{name}] contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$")
    if name.startswith(SYSTEM_GROUP_PREFIX):
        raise GrpcError(Code.ILLEGAL_CONSUMER_GROUP, "cannot use system consumer group")
    return name


def check_invisible_time(ms: int, least: int = 0) -> None:
    """Check an invisible time in ms."""
    if ms < least:
        raise GrpcError(Code.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too small. min is {least}")
    if ms > limits.MAX_INVISIBLE_TIME_MS:
        raise GrpcError(
            Code.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too large. max is {limits.MAX_INVISIBLE_TIME_MS}")


def has_control_character(text: str) -> bool:
    """Return whether a text has an ISO control character, as Java defines it."""
    return not (text.isascii() and text.isprintable()) and any(
        character <= "\x1f" or "\x7f" <= character <= "\x9f" for character in text)


def check_tag(tag: str) -> None:
    """Check the tag of a message; an empty one stands for none."""
    if not tag:
        return
    if _is_blank(tag):
        raise GrpcError(Code.ILLEGAL_MESSAGE_TAG, "tag cannot be the char sequence of whitespace")
    if "|" in tag:
        raise GrpcError(Code.ILLEGAL_MESSAGE_TAG, "tag cannot contain '|'")
    if has_control_character(tag):
        raise GrpcError(Code.ILLEGAL_MESSAGE_TAG, "tag cannot contain control character")


def check_key(key: str) -> None:
    """Check a key of a message; an empty one is passed over."""
    if not key:
        return
    if _is_blank(key):
        raise GrpcError(Code.ILLEGAL_MESSAGE_KEY, "key cannot be the char sequence of whitespace")
    if has_control_character(key):
        raise GrpcError(Code.ILLEGAL_MESSAGE_KEY, "key cannot contain control character")


def check_message_group(group: str) -> None:
    """Check a message group that is not empty."""
    if _is_blank(group):
        raise GrpcError(Code.ILLEGAL_MESSAGE_GROUP, "message group cannot be the char sequence of whitespace")
    if len(group.encode()) >= limits.MAX_MESSAGE_GROUP_SIZE:
        raise GrpcError(
            Code.ILLEGAL_MESSAGE_GROUP, f"message group exceed the max size {limits.MAX_MESSAGE_GROUP_SIZE}")
    if has_control_character(group):
        raise GrpcError(Code.ILLEGAL_MESSAGE_GROUP, "message group cannot contain control character")


def check_lite_topic(name: str) -> None:
    """Check the name of a Lite topic."""
    if _is_blank(name):
        raise GrpcError(Code.ILLEGAL_LITE_TOPIC, "lite topic cannot be the char sequence of whitespace")
    if len(name.encode()) > limits.MAX_LITE_TOPIC_SIZE:
        raise GrpcError(Code.ILLEGAL_LITE_TOPIC, f"lite topic exceed the max size {limits.MAX_LITE_TOPIC_SIZE}")
    if not is_lite_name(name):
        raise GrpcError(
            Code.ILLEGAL_LITE_TOPIC,
            "lite topic can only contain alphanumeric characters, hyphens(-), and underscores(_)")
