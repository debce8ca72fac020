"""Administration of a directory that no server has open, with the methods of `AdminClient`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tailrace.cli.arguments import note_unclean
from tailrace.cli.problems import no_such
from tailrace.client.admin import Deleted, GroupQueue, TopicQueue, TopicTotals
from tailrace.config import BrokerConfig
from tailrace.env.clock import SystemClock
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import NotAStoreError, StoreError
from tailrace.formats.filenames import ABORT, LOCK
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.left_over_queues import left_over_note, not_consumed
from tailrace.node.message_store import MessageStore
from tailrace.node.serve_hint import locked_error, serve_hint
from tailrace.node.store_opening import StoreParts
from tailrace.node.subscription_group import (
    SubscriptionGroupConfig,
    SubscriptionGroupManager,
    merged_group_attributes,
)

__all__ = ["StoreAdmin", "looked_at", "opened_or_made", "queues_of", "to_change", "to_read"]


def looked_at(store: str) -> MessageStore:
    """Open a store directory to read it; nothing in it changes. Raises StoreLockedError if a server has it open."""
    is_live = OsFileSystem().lock_holder(f"{store}/{LOCK}") is not None
    if is_live and "broker" in serve_hint(store):
        raise locked_error(OsFileSystem(), store)
    opened = MessageStore.open(store, read_only=True, parts=StoreParts(services=False))
    note_unclean(is_unclean=not is_live and (Path(store) / ABORT).exists())
    return opened


def opened_or_made(store: str, *, create: bool | None) -> MessageStore:
    """Open a store directory to change it; this recovers a directory that was not closed.

    A directory that is not a store is made one only with --create: it may be a typo. ``create`` is None for a command
    without this option.
    """
    try:
        return MessageStore.open(store, create=bool(create), parts=StoreParts(services=False, must_write=True))
    except NotAStoreError as error:
        path = Path(store)
        if create is not False or (path.exists() and (path.is_file() or {*os.listdir(path)} - {LOCK})):
            raise  # --create is given already, does not exist, or would not help
        raise NotAStoreError(store, f"{error.reason}; add --create to make it a store") from error


@contextmanager
def to_read(store: str) -> Iterator[StoreAdmin]:
    """Administration of a directory that does not change, see `looked_at`."""
    with looked_at(store) as opened:
        yield StoreAdmin(opened, store)


@contextmanager
def to_change(store: str, *, create: bool | None = None) -> Iterator[StoreAdmin]:
    """Administration of a directory, see `opened_or_made`."""
    with opened_or_made(store, create=create) as opened:
        yield StoreAdmin(opened, store)


def queues_of(opened: MessageStore, topic: str, store: str) -> list[tuple[int, int, int]]:
    """Return (queue id, least offset, next offset) of the queues of a topic. Raises StoreError if it does not exist."""
    topics = opened.topics
    found = [(queue_id, low, high) for name, queue_id, low, high in opened.queues() if name == topic]
    if not found and topics.select(topic) is None:
        names = [one.topic_name for one in topics.items() if not topics.is_system_topic(one.topic_name)]
        raise no_such("topic", topic, names, store)
    return found


class StoreAdmin:
    """Changes and describes an open store. Its methods are those of `AdminClient`; each raises StoreError."""

    def __init__(self, opened: MessageStore, store: str) -> None:
        """``store`` is the directory as the user wrote it."""
        self._opened, self._store = opened, store

    async def topic_configs(self) -> list[dict[str, Any]]:
        """Return the configuration of every topic, with RocketMQ's member names, by name."""
        return sorted((one.to_json() for one in self._opened.topics.items()), key=lambda one: str(one["topicName"]))

    async def topic_names(self) -> list[str]:
        """Return the names of all topics, including those that only have queues."""
        return sorted({one.topic_name for one in self._opened.topics.items()} | {
            topic for topic, *_ in self._opened.queues()})

    async def system_topics(self) -> set[str]:
        """Return the names of the topics that belong to brokers and not to their users."""
        topics = self._opened.topics
        return {one.topic_name for one in topics.items() if topics.is_system_topic(one.topic_name)}

    async def topic_queues(self, topic: str) -> list[TopicQueue]:
        """Return the queues of a topic."""
        return [TopicQueue(topic, "", queue_id, low, high, self._last_time(topic, queue_id, high))
                for queue_id, low, high in sorted(queues_of(self._opened, topic, self._store))]

    def _last_time(self, topic: str, queue_id: int, high: int) -> int:
        last = next(iter(self._opened.read(topic, queue_id, max(high - 1, 0))), None)
        return 0 if last is None else last.store_timestamp

    async def topic_totals(self, topics: Iterable[str]) -> dict[str, TopicTotals]:
        """Return the totals of topics."""
        totals = {topic: TopicTotals(0, 0, 0, size_is_exact=True) for topic in topics}
        for topic, queue_id, low, high in self._opened.queues():
            if topic in totals and high > low:
                size, before = self._opened.queue_size(topic, queue_id), totals[topic]
                totals[topic] = TopicTotals(
                    before.messages + high - low,
                    max(before.last_update_timestamp,
                        self._opened.get_message_store_timestamp(topic, queue_id, high - 1)),
                    (before.size_bytes or 0) + size.size_bytes, before.size_is_exact and size.is_exact)
        return totals

    async def create_topic(
        self, topic: str, queues: int, attributes: Mapping[str, str]
    ) -> tuple[dict[str, Any], list[str]]:
        """Create a topic, or change its queues and attributes; return its configuration, and notes."""
        before = self._opened.topics.select(topic)
        made = self._opened.create_topic(topic, queues, attributes).to_json()
        if before is None or queues >= before.read_queue_nums:
            return made, []
        left = self._opened.left_over_queues({topic: queues}).get(topic, [])
        note = left_over_note(topic, left, not_consumed(self._offsets(), {topic: left})[topic])
        return made, [note] if note else []

    async def delete_topic(self, topic: str) -> Deleted:
        """Delete a topic, with everything that belongs to it."""
        if self._opened.topics.has_state_of_broker(topic):
            raise StoreError(f"{topic} is a system topic of the broker")
        queues_of(self._opened, topic, self._store)
        done = self._opened.delete_topics({topic})
        return Deleted([self._store], done.topics, done.reasons)

    async def purge_topic(self, topic: str, queue_id: int | None, before_ms: int | None) -> dict[int, tuple[int, int]]:
        """Drop messages of a topic; return for each queue id its least offset before and after."""
        return self._opened.purge_topic(topic, queue_id, before_ms)

    # --- groups

    def _offsets(self) -> ConsumerOffsetManager:
        offsets = ConsumerOffsetManager.of_stopped(OsFileSystem(), self._opened.config_dir, SystemClock())
        offsets.load()
        return offsets

    def _groups(self) -> SubscriptionGroupManager:
        groups = SubscriptionGroupManager(OsFileSystem(), self._opened.config_dir, BrokerConfig(), SystemClock())
        groups.load()
        return groups

    async def groups(self) -> dict[str, list[GroupQueue]]:
        """Return every group with the queues that it has consumed."""
        queues = {(topic, queue_id): (low, high) for topic, queue_id, low, high in self._opened.queues()}
        found: dict[str, list[GroupQueue]] = {one.group_name: [] for one in self._groups().items()}
        for topic, group, queue_id, offset in self._offsets().entries():
            low, high = queues.get((topic, queue_id), (0, 0))
            consumed = max(offset, low)  # an offset before the first message counts as that of the first message
            found.setdefault(group, []).append(GroupQueue(topic, "", queue_id, max(high, consumed), consumed, 0))
        return {name: sorted(found[name]) for name in sorted(found)}

    async def group_configs(self) -> dict[str, dict[str, Any]]:
        """Return the settings of every group, with RocketMQ's member names."""
        return {one.group_name: one.to_json() for one in self._groups().items()}

    async def save_group(self, group: dict[str, Any]) -> None:
        """Create or change a group, given with RocketMQ's member names, and changes of attributes by ``+name``."""
        groups = self._groups()
        made = SubscriptionGroupConfig.from_json(group)
        before = groups.select(made.group_name)
        made.attributes = merged_group_attributes(
            {} if before is None else before.attributes, made.attributes, creating=before is None)
        groups.update_all([made])

    async def members(self, group: str) -> list[dict[str, Any]]:
        """Return no member: only a running broker knows them."""
        return []

    async def member_counts(self, groups: Iterable[str]) -> dict[str, int]:
        """Return no count, see `members`."""
        return {}
