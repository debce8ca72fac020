"""Rows of ``tailrace topic list`` and ``tailrace group list``: own names apart from system names, with counts.

Counts of a server take a request for each name, so they are bounded: the first `COUNTED_MAX` names get them, own
names before system names. JSON lines have every row; a table hides system names, retry topics and empty dead letters.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from tailrace.cli.admin import administer
from tailrace.cli.contexts import Target
from tailrace.cli.output import About, local_time
from tailrace.cli.store_admin import StoreAdmin, to_read
from tailrace.client.admin import AdminClient, GroupQueue, TopicTotals
from tailrace.errors import RemotingCommandError
from tailrace.formats.names import (
    DLQ_GROUP_TOPIC_PREFIX,
    RETRY_GROUP_TOPIC_PREFIX,
    SYSTEM_TOPIC_PREFIX,
)
from tailrace.node.subscription_group import is_system_group
from tailrace.node.topic_config import SYSTEM_TOPICS

__all__ = ["COUNTED_MAX", "Listing", "group_listing", "group_row", "topic_listing", "topic_row"]

Administration = AdminClient | StoreAdmin
COUNTED_MAX: Final = 1_000
"""Topics or groups of a server that are counted."""
_READ_AND_WRITE: Final = 6
_PERMISSIONS: Final = {0: "none", 2: "write only", 4: "read only"}


class Listing(NamedTuple):
    """All rows, with the names of JSON lines."""

    lines: list[dict[str, Any]]
    uncounted: int
    """Rows without counts, because there are too many."""


def _is_hidden(name: str, system: Iterable[str], messages: int) -> bool:
    """Return whether a table hides a topic unless --all is given. Dead letters that exist are shown."""
    if name.startswith(DLQ_GROUP_TOPIC_PREFIX):
        return not messages
    return name in system or name in SYSTEM_TOPICS or name.startswith((SYSTEM_TOPIC_PREFIX, RETRY_GROUP_TOPIC_PREFIX))


def topic_listing(target: Target) -> Listing:
    """Return the topics of a directory, or of the server that has it open. Raises StoreError."""
    return administer(target, to_read, _topics)


def _counted(admin: Administration, names: list[str]) -> list[str]:
    """Return the names that get counts: the first `COUNTED_MAX` of a server, all of a directory."""
    return names[:COUNTED_MAX] if isinstance(admin, AdminClient) else names


async def _topics(admin: Administration) -> Listing:
    configs, system = await admin.topic_configs(), set[str]()
    groups: dict[str, list[GroupQueue]] = {}
    with contextlib.suppress(RemotingCommandError):  # a user who may list topics need not see everything else
        system = await admin.system_topics()
    with contextlib.suppress(RemotingCommandError):
        groups = await admin.groups()
    names = sorted((str(one["topicName"]) for one in configs), key=lambda name: _is_hidden(name, system, 1))
    counted = _counted(admin, names)
    totals = await admin.topic_totals(counted)
    lags = _largest_lags((group, queue.topic, queue.lag) for group, queues in groups.items() for queue in queues)
    return Listing(_topic_lines(configs, system, totals, lags), len(names) - len(counted))


def _largest_lags(consumed: Iterable[tuple[str, str, int]]) -> dict[str, int]:
    """Return for each topic the lag of the group with the largest one, from (group, topic, lag) of queues."""
    sums, found = Counter[tuple[str, str]](), dict[str, int]()
    for group, topic, lag in consumed:
        sums[topic, group] += lag
    for (topic, _), lag in sums.items():
        found[topic] = max(lag, found.get(topic, 0))
    return found


def _topic_lines(
    configs: Iterable[dict[str, Any]], system: set[str], totals: dict[str, TopicTotals], lags: dict[str, int]
) -> list[dict[str, Any]]:
    lines = []
    for config in configs:
        name = str(config["topicName"])
        found = totals.get(name)
        lines.append({
            **config, "hidden": _is_hidden(name, system, found.messages if found else 1),
            "messages": found and found.messages, "sizeBytes": found and found.size_bytes,
            "sizeIsExact": found and found.size_is_exact, "lag": lags.get(name),
            "lastUpdateTimestamp": found and found.last_update_timestamp,
            "lastUpdateTime": local_time(found.last_update_timestamp) if found and found.last_update_timestamp else "",
        })
    return lines


def topic_row(line: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a table for a topic. Its permission is shown if it is not to read and to write."""
    size = line["sizeBytes"]
    return {
        "topic": line["topicName"], "messages": line["messages"],
        "sizeBytes": size if size is None or line["sizeIsExact"] else About(size), "lag": line["lag"],
        "queues": line.get("readQueueNums"),
        "permission": "" if line.get("perm", _READ_AND_WRITE) & _READ_AND_WRITE == _READ_AND_WRITE
        else _PERMISSIONS.get(line["perm"] & _READ_AND_WRITE, str(line["perm"])),
        "attributes": line.get("attributes"), "lastUpdateTimestamp": line["lastUpdateTimestamp"],
    }


def group_listing(target: Target) -> Listing:
    """Return the groups of a directory, or of the server that has it open. Raises StoreError."""
    return administer(target, to_read, _groups)


async def _groups(admin: Administration) -> Listing:
    groups, dead = await admin.groups(), dict[str, TopicTotals]()
    names = _counted(admin, sorted(groups, key=is_system_group))
    with contextlib.suppress(RemotingCommandError):
        topics = set(await admin.topic_names())
        dead = await admin.topic_totals(
            topic for name in names if (topic := DLQ_GROUP_TOPIC_PREFIX + name) in topics)
    members = await admin.member_counts(names)
    lines = [
        _group_line(name, queues, dead=found.messages if (found := dead.get(DLQ_GROUP_TOPIC_PREFIX + name)) else 0,
                    members=members.get(name))
        for name, queues in groups.items()]
    return Listing(lines, len(groups) - len(names))


def _group_line(name: str, queues: list[GroupQueue], *, dead: int, members: int | None = None) -> dict[str, Any]:
    return {
        "group": name, "topics": sorted({queue.topic for queue in queues}), "queues": len(queues),
        "lag": sum(queue.lag for queue in queues), "members": members, "deadLetters": dead,
        "hidden": is_system_group(name),
    }


def group_row(line: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a table for a group; its retry topic is not named."""
    return {
        "group": line["group"], "lag": line["lag"], "deadLetters": line["deadLetters"], "members": line["members"],
        "topics": [topic for topic in line["topics"] if not topic.startswith(RETRY_GROUP_TOPIC_PREFIX)],
    }
