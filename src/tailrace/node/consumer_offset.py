"""How far each consumer group has come: ``consumerOffset.json``."""

from __future__ import annotations

from typing import Any, Final

from tailrace.env.clock import Clock
from tailrace.env.filesystem import FileSystem
from tailrace.node.config_manager import ConfigManager

__all__ = ["ConsumerOffsetManager"]

TOPIC_GROUP_SEPARATOR: Final = "@"
VERSION_STEP: Final = 500


class ConsumerOffsetManager(ConfigManager):
    """Next offsets by ``topic@group`` and queue. `persist_if_changed` is called now and then."""

    def __init__(self, file_system: FileSystem, config_dir: str, clock: Clock) -> None:
        super().__init__(file_system, config_dir, "consumerOffset.json")
        self._clock = clock
        self._table: dict[str, dict[int, int]] = {}
        self._pull_table: dict[str, dict[int, int]] = {}
        self._reset_table: dict[str, dict[int, int]] = {}
        self._dirty = False
        self._commits = 0

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Remember the next offset of a queue; any value is taken, as RocketMQ does."""
        key = f"{topic}@{group}"
        queues = self._table.get(key)
        if queues is None:
            queues = self._table.setdefault(key, {})
        if queues.get(queue_id) == offset:
            return
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

    def assign_reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the next offset of a queue by hand; its consumer does not know yet (`take_reset`)."""
        self._reset_table.setdefault(f"{topic}@{group}", {})[queue_id] = offset
        self.commit(group, topic, queue_id, offset)

    def is_reset(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether an offset was set by hand and the queue's consumer has not heard of it."""
        return queue_id in self._reset_table.get(f"{topic}@{group}", ())

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The offset that was set by hand, once: its consumer is told."""
        if not self._reset_table:
            return None
        key = f"{topic}@{group}"
        queues = self._reset_table.get(key, {})
        offset = queues.pop(queue_id, None)
        if not queues:
            self._reset_table.pop(key, None)
        return offset

    def topics_of(self, group: str) -> list[str]:
        """Topics for which a group has offsets, sorted."""
        return sorted(topic for topic, g in self._keys() if g == group)

    def groups_of(self, topic: str) -> list[str]:
        """Groups that have offsets for a topic, sorted."""
        return sorted(g for t, g in self._keys() if t == topic)

    def remove_topic(self, topic: str) -> None:
        """Forget every offset of a topic."""
        self._remove([f"{t}@{g}" for t, g in self._keys() if t == topic])

    def remove_group(self, group: str) -> None:
        """Forget every offset of a group."""
        self._remove([f"{t}@{g}" for t, g in self._keys() if g == group])

    def persist_if_changed(self) -> None:
        """Write the file when an offset has changed since the last time."""
        if not self._dirty:
            return
        # Before writing: a commit that comes in meanwhile makes it dirty again.
        self._dirty = False
        try:
            self.persist()
        except BaseException:
            self._dirty = True
            raise

    def _keys(self) -> list[tuple[str, str]]:
        parts = [key.split(TOPIC_GROUP_SEPARATOR, 1) for key in list(self._table)]
        return [(p[0], p[1]) for p in parts if len(p) == 2]

    def _remove(self, keys: list[str]) -> None:
        for key in keys:
            self._table.pop(key, None)
            self._pull_table.pop(key, None)
            self._reset_table.pop(key, None)
            self._dirty = True

    def _decode(self, value: dict[str, Any]) -> None:
        value.pop("groupTopicMap", None)  # derived from the table
        found = value.pop("offsetTable", None)
        table: dict[str, dict[int, int]] = {}
        for key, queues in (found or {}).items():
            if isinstance(queues, dict):
                table[str(key)] = {int(q): int(o) for q, o in queues.items()}
        self._table = table

    def _encode(self) -> dict[str, Any]:
        # list() and dict() copy in one step each, so commits may go on meanwhile.
        return {
            "offsetTable": {
                key: {str(q): o for q, o in dict(queues).items()}
                for key, queues in list(self._table.items())
            }
        }
