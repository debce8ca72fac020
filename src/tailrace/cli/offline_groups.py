"""Consumer groups of a directory that no server has open, from its files."""

from __future__ import annotations

from typing import NamedTuple

from tailrace.cli.arguments import note_unclean
from tailrace.client.admin import GroupQueue
from tailrace.config import BrokerConfig, StoreConfig
from tailrace.env.clock import SystemClock
from tailrace.env.filesystem import OsFileSystem
from tailrace.formats.filenames import CONFIG, LOCK
from tailrace.formats.names import DLQ_GROUP_TOPIC_PREFIX
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.subscription_group import SubscriptionGroupManager
from tailrace.store.directory import DirectoryState, StoreDirectory

__all__ = ["OfflineGroups", "groups_of_directory"]


class OfflineGroups(NamedTuple):
    """The groups of a directory."""

    queues: dict[str, list[GroupQueue]]
    """The queues that each group has consumed."""
    dead_letters: dict[str, int]
    """Messages in the dead-letter topic of a group, if it has one."""


def groups_of_directory(store: str) -> OfflineGroups | None:
    """Return every group with the queues that it has consumed; None if a server has the directory open."""
    file_system, clock = OsFileSystem(), SystemClock()
    directory = StoreDirectory(store, config=StoreConfig())
    if file_system.lock_holder(f"{store}/{LOCK}") is not None:
        return None
    note_unclean(is_unclean=directory.state is DirectoryState.UNCLEAN)
    config = f"{store}/{CONFIG}"
    groups = SubscriptionGroupManager(file_system, config, BrokerConfig(), clock)
    groups.load()
    offsets = ConsumerOffsetManager.of_stopped(file_system, config, clock)
    offsets.load()
    queues = {(queue.topic, queue.queue_id): (queue.min_offset, queue.max_offset) for queue in directory.queues()}
    found: dict[str, list[GroupQueue]] = {one.group_name: [] for one in groups.items()}
    for topic, group, queue_id, offset in offsets.entries():
        low, high = queues.get((topic, queue_id), (0, 0))
        consumed = max(offset, low)  # an offset before the first message counts as that of the first message
        found.setdefault(group, []).append(GroupQueue(topic, "", queue_id, max(high, consumed), consumed, 0))
    dead = {
        name: queues[topic, 0][1] - queues[topic, 0][0] for name in found
        if ((topic := DLQ_GROUP_TOPIC_PREFIX + name), 0) in queues}
    return OfflineGroups({name: sorted(found[name]) for name in sorted(found)}, dead)
