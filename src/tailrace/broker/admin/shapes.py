"""Checks of the configuration of a topic or group that a request sets, and pages of both tables (requests 21 and 201).

A Java client stops when it has all entries or all but one, so that it never asks for the last one of 2,001 topics, and
a Java slave then deletes that topic. A page therefore takes an entry more than it was asked for, if it would be the
only one of the next page.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import orjson

from tailrace.errors import RefusalError
from tailrace.formats import fastjson
from tailrace.formats.remoting import ResponseCode
from tailrace.node.subscription_group import SubscriptionGroupConfig
from tailrace.node.topic_config import TopicConfig
from tailrace.store.retention.topic_rules import topic_limits

__all__ = ["check_shape", "page_of", "unreadable_by_java"]

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


_Value = TypeVar("_Value")


def page_of(
    table: dict[str, _Value], first: int | None, count: int | None, known: str | None, version: dict[str, int]
) -> dict[str, _Value]:
    """Return up to ``count`` entries by name from number ``first`` on; all without ``count``.

    ``known`` is the version of the pages before, as JSON; with another one than ``version`` the first page is returned.
    """
    if not count or count < 0:
        return table
    names = sorted(table)
    first = max(first or 0, 0) if _same(known, version) else 0
    until = first + count
    if until == len(names) - 1:
        until += 1
    return {name: table[name] for name in names[first:until]}


def _same(known: str | None, version: dict[str, int]) -> bool:
    try:
        found = orjson.loads(known or b"{}")
    except orjson.JSONDecodeError:
        return False
    return isinstance(found, dict) and all(found.get(name, 0) == value for name, value in version.items())
