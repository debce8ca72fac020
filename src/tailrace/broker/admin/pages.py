"""Pages of the tables of topics and groups (requests 21 and 201), for slaves and tools that ask for them.

A Java client stops when it has all entries or all but one, so that it never asks for the last one of 2,001 topics, and
a Java slave then deletes that topic. A page therefore takes an entry more than it was asked for, if it would be the
only one of the next page.
"""

from __future__ import annotations

from typing import Any, TypeVar

import orjson

from tailrace.formats.requests.broker_headers import GetAllTopicConfigRequestHeader
from tailrace.formats.requests.consumer_headers import GetAllSubscriptionGroupRequestHeader
from tailrace.node.subscription_group import SubscriptionGroupManager
from tailrace.node.topic_config import TopicConfigManager

__all__ = ["groups_page", "page_of", "topics_page"]

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


def topics_page(
    topics: TopicConfigManager, header: GetAllTopicConfigRequestHeader
) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the fields and the body of the answer to request 21."""
    mappings, found = topics.mappings, topics.to_json()
    table = found["topicConfigTable"]
    page = page_of(table, header.topic_seq, header.max_topic_num, header.data_version, found["dataVersion"])
    return {"totalTopicNum": str(len(table))}, {
        **found, "topicConfigTable": page,
        "mappingDataVersion": mappings.data_version.to_json(),
        "topicQueueMappingDetailMap": {
            name: detail.to_json() for name, detail in list(mappings.table.items()) if name in page},
        "topicQueueMappingInfoMap": {},
    }


def groups_page(
    groups: SubscriptionGroupManager, header: GetAllSubscriptionGroupRequestHeader
) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the fields and the body of the answer to request 201."""
    found = groups.to_json()
    table = found["subscriptionGroupTable"]
    page = page_of(table, header.group_seq, header.max_group_num, header.data_version, found["dataVersion"])
    return {"totalGroupNum": str(len(table))}, {**found, "subscriptionGroupTable": page}
