"""How far each consumer group has come: ``consumerOffset.json``."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from tailrace.env.clock import Clock
from tailrace.env.filesystem import FileSystem
from tailrace.errors import StoreError
from tailrace.node.config_manager import ConfigManager, DataVersion, Draft

__all__ = ["ConsumerOffsetManager"]

TOPIC_GROUP_SEPARATOR: Final = "@"
VERSION_STEP: Final = 500


class ConsumerOffsetManager(ConfigManager[str, dict[int, int]]):
    """Next offsets by ``topic@group`` and queue. `persist_if_changed` is called now and then.

    A commit shows before it is written, as in RocketMQ. What an administrator asks for (a reset, the
    removal of a topic or of a group) is durable before it shows.
    """

    def __init__(
        self, file_system: FileSystem, config_dir: str, clock: Clock, limit: int = 1_000_000
    ) -> None:
        super().__init__(file_system, config_dir, "consumerOffset.json")
        self._clock = clock
        self._limit = limit
        self._count = 0
        self._pull_table: dict[str, dict[int, int]] = {}
        self._reset_table: dict[str, dict[int, int]] = {}
        self._reset_lock = threading.Lock()
        self._dirty = False
        self._commits = 0

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Remember the next offset of a queue; any value is taken, as RocketMQ does.

        Raises StoreError for a queue without an offset when the table is full.
        """
        key = f"{topic}@{group}"
        queues = self._table.get(key)
        known = None if queues is None else queues.get(queue_id)
        if known == offset:
            return
        if known is None:
            self._make_room(1)
        if queues is None:
            queues = self._table.setdefault(key, {})
        queues[queue_id] = offset
        self._dirty = True
        self._commits += 1
        if self._commits % VERSION_STEP == 0:
            self.data_version.next(self._clock.now_ms())

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """The next offset of a queue, -1 when none is known."""
        queues = self._table.get(f"{topic}@{group}")
        return -1 if queues is None else queues.get(queue_id, -1)

    def entries(self) -> list[tuple[str, str, int, int]]:
        """(topic, group, queue id, next offset) of everything known."""
        found = []
        # list() and dict() copy in one step each, so commits may go on meanwhile.
        for key, queues in list(self._table.items()):
            topic, separator, group = key.partition(TOPIC_GROUP_SEPARATOR)
            if separator:
                found += [(topic, group, q, o) for q, o in dict(queues).items()]
        return found

    def commit_pull(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Remember up to where a queue was handed out; not written to the file."""
        key = f"{topic}@{group}"
        queues = self._pull_table.get(key)
        if queues is None:
            queues = self._pull_table.setdefault(key, {})
        queues[queue_id] = offset

    def query_pull(self, group: str, topic: str, queue_id: int) -> int:
        """Up to where a queue was handed out, -1 when unknown."""
        queues = self._pull_table.get(f"{topic}@{group}")
        return -1 if queues is None else queues.get(queue_id, -1)

    def assign_reset(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        """Set next offsets of queues by hand; durable on return. Raises OSError or StoreError.

        Their consumers are told later (`take_reset`).
        """
        key = f"{topic}@{group}"
        known = self._table.get(key, {})
        new = sum(queue_id not in known for queue_id in offsets)
        self._make_room(new)
        try:
            self.change(lambda draft: draft.put(key, offsets))
        except BaseException:
            self._count -= new
            raise
        with self._reset_lock:
            self._reset_table.setdefault(key, {}).update(offsets)

    def is_reset(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether an offset was set by hand and the queue's consumer has not heard of it."""
        return queue_id in self._reset_table.get(f"{topic}@{group}", ())

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The offset that was set by hand, once: its consumer is told."""
        if not self._reset_table:
            return None
        key = f"{topic}@{group}"
        with self._reset_lock:
            queues = self._reset_table.get(key, {})
            offset = queues.pop(queue_id, None)
            if not queues:
                self._reset_table.pop(key, None)
        return offset

    def topics_of(self, group: str) -> list[str]:
        """Topics for which a group has offsets, sorted."""
        return sorted(topic for topic, g in self._keys() if g == group)

    def topics_by_group(self) -> dict[str, set[str]]:
        """Topics for which each group has offsets."""
        found: dict[str, set[str]] = {}
        for topic, group in self._keys():
            found.setdefault(group, set()).add(topic)
        return found

    def groups_of(self, topic: str) -> list[str]:
        """Groups that have offsets for a topic, sorted."""
        return sorted(g for t, g in self._keys() if t == topic)

    def remove_topic(self, topic: str, also: Callable[[], None] | None = None) -> None:
        """Forget every offset of a topic; durable on return. For ``also`` see `submit`."""
        self._remove([f"{t}@{g}" for t, g in self._keys() if t == topic], also)

    def remove_group(self, group: str) -> None:
        """Forget every offset of a group; durable on return."""
        self._remove([f"{t}@{g}" for t, g in self._keys() if g == group], None)

    def persist_if_changed(self) -> None:
        """Write the file when an offset has changed since the last time."""
        if not self._dirty:
            return
        # Before writing: a commit that comes in meanwhile makes it dirty again.
        self._dirty = False
        try:
            self.persist()
        except OSError:
            self._dirty = True
            raise

    def _keys(self) -> list[tuple[str, str]]:
        parts = [key.split(TOPIC_GROUP_SEPARATOR, 1) for key in list(self._table)]
        return [(p[0], p[1]) for p in parts if len(p) == 2]

    def _remove(self, keys: list[str], also: Callable[[], None] | None) -> None:
        self.change(lambda draft: [draft.remove(key) for key in keys], also)
        for key in keys:
            self._pull_table.pop(key, None)
        with self._reset_lock:
            for key in keys:
                self._reset_table.pop(key, None)

    def _make_room(self, new: int) -> None:
        if self._count + new > self._limit:
            self._count = sum(map(len, list(self._table.values())))  # topics and groups may be gone
            if self._count + new > self._limit:
                raise StoreError(
                    f"there are {self._count} consumer offsets, more are over the limit "
                    f"maxConsumerOffsets={self._limit}; delete topics or groups with cleanOffset, or "
                    "raise maxConsumerOffsets")
        self._count += new

    def _next_version(self, version: DataVersion) -> None:
        version.next(self._clock.now_ms())

    def _merged(self, draft: Draft[str, dict[int, int]]) -> dict[str, dict[int, int]]:
        # Offsets of a draft are set beside those that were committed since.
        table = dict(self._table)
        for key, queues in draft.puts.items():
            table[key] = {**table.get(key, {}), **queues}
        for key in draft.gone:
            table.pop(key, None)
        return table

    def _publish(self, draft: Draft[str, dict[int, int]]) -> None:
        for key, queues in draft.puts.items():
            self._table.setdefault(key, {}).update(queues)
        for key in draft.gone:
            self._table.pop(key, None)

    def _decode(self, value: dict[str, Any]) -> None:
        value.pop("groupTopicMap", None)  # derived from the table
        found = value.pop("offsetTable", None)
        table: dict[str, dict[int, int]] = {}
        for key, queues in (found or {}).items():
            if isinstance(queues, dict):
                table[str(key)] = {int(q): int(o) for q, o in queues.items()}
        self._table = table
        self._count = sum(map(len, table.values()))

    def _encode(self, table: dict[str, dict[int, int]]) -> dict[str, Any]:
        # dict() copies in one step, so commits may go on in other threads.
        return {
            "offsetTable": {
                key: {str(q): o for q, o in dict(queues).items()} for key, queues in table.items()
            }
        }
