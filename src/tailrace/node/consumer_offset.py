"""Committed offsets of the consumer groups: ``consumerOffset.json``, with enableLmq ``lmqConsumerOffset.json``.

With enableLmq the second file replaces the first one, for all groups. It has a separate table for LMQ groups, with
one number for each topic and group, because their queue id is always 0.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Final, final

from tailrace import events
from tailrace.env.clock import Clock
from tailrace.env.filesystem import FileSystem
from tailrace.errors import StoreError
from tailrace.formats.commitlog import LMQ_QUEUE_ID
from tailrace.formats.names import LMQ_PREFIX
from tailrace.logs import LogRateLimiter, get_logger
from tailrace.node.config_manager import ConfigManager, DataVersion, Draft, Owned, read_config
from tailrace.node.subscription_group import OFFSETS_OF_BROKER

__all__ = ["ConsumerOffsetManager"]

_log = get_logger(__name__)
TOPIC_GROUP_SEPARATOR: Final = "@"
_FILES: Final = ("consumerOffset.json", "lmqConsumerOffset.json")
"""The second one with enableLmq."""
VERSION_STEP: Final = 500
PULLS_MAX: Final = 100_000
"""Number of pairs of a topic and a group for which the offset of the last pull is known."""
PULL_CHARS_MAX: Final = 4_000_000
"""Characters of the names of all these pairs."""
PULL_KEY_MAX: Final = 600
"""Characters of one pair; the offset of a longer one is not kept."""


@final
class _PullOffsets:
    """Offsets of the last pulls by ``topic@group`` and queue.

    The oldest pair is forgotten when there is no room; its next pull sets it again. One thread sets and reads offsets.
    Any thread may remove them.
    """

    def __init__(self) -> None:
        self._table: OrderedDict[str, dict[int, int]] = OrderedDict()
        self._chars = 0
        self._lock = threading.Lock()
        """Held while a pair is added or removed."""

    def put(self, key: str, queue_id: int, offset: int) -> None:
        queues = self._table.get(key)
        if queues is None:
            if len(key) > PULL_KEY_MAX:
                return
            with self._lock:
                while self._table and (
                    len(self._table) >= PULLS_MAX or self._chars + len(key) > PULL_CHARS_MAX
                ):
                    self._chars -= len(self._table.popitem(last=False)[0])
                queues = self._table[key] = {}
                self._chars += len(key)
        queues[queue_id] = offset

    def get(self, key: str, queue_id: int) -> int:
        """Return an offset, or -1."""
        queues = self._table.get(key)
        return -1 if queues is None else queues.get(queue_id, -1)

    def remove(self, gone: Callable[[str], bool]) -> None:
        """Forget the pairs for which ``gone`` returns True, also of groups that have pulled and never committed."""
        for key in list(self._table):
            if gone(key):
                with self._lock:
                    if self._table.pop(key, None) is not None:
                        self._chars -= len(key)


class ConsumerOffsetManager(ConfigManager[str, dict[int, int]]):
    """Next offsets by ``topic@group`` and queue. `persist_if_changed` is called at intervals.

    A commit is visible before it is written, as in RocketMQ. A change by an administrator (a reset, the removal
    of a topic or of a group) is durable before it is visible.
    """

    owned = Owned.BY_STEP

    def __init__(
        self, file_system: FileSystem, config_dir: str, clock: Clock, limit: int = 1_000_000, *,
        lmq: bool = False, before_write: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(file_system, config_dir, _FILES[lmq], clock.now_ms, before_write)
        self._clock = clock
        self._lmq = lmq
        self._limit = limit
        self._count = 0
        self._has_gone = False
        """True if offsets may have been removed since they were counted."""
        self._pulls = _PullOffsets()
        self._reset_table: dict[str, dict[int, int]] = {}
        self._reset_lock = threading.Lock()
        self._commits = 0
        self._refused = LogRateLimiter()

    @classmethod
    def of_stopped(cls, file_system: FileSystem, config_dir: str, clock: Clock) -> ConsumerOffsetManager:
        """Return the offsets of a stopped broker, which `load` reads from the file that it wrote last.

        A command without the settings of the broker has no other way to find out which of both files that is.
        """
        times = []
        for name in _FILES:
            try:
                times.append(file_system.stat(f"{config_dir}/{name}").mtime_ms)
            except OSError:
                times.append(-1)
        return cls(file_system, config_dir, clock, lmq=times[1] > times[0])

    @property
    def other_file(self) -> str:
        """Name of the file of the other setting of enableLmq."""
        return _FILES[not self._lmq]

    def load(self) -> bool:
        """Read the file, or the one of the other setting if this one was never written. Return False without both.

        The first open after a change of enableLmq finds only the file of the other setting.
        """
        other = f"{self._config_dir}/{self.other_file}"
        if super().load():
            self._name_unused(other)
            return True
        found = read_config(self._file_system, other)
        if found is None:
            return False
        self._take(found)
        self._dirty = True
        events.CONSUMER_OFFSETS_ARE_TAKEN_OVER_FROM_THE_OTHER_FILE.log(_log, file=other, count=len(self._table))
        self._name_lost(found, other)
        return True

    def _name_unused(self, other: str) -> None:
        """Log that the file of the other setting has newer offsets; they are not read."""
        found = read_config(self._file_system, other)
        if found is None:
            return
        version = DataVersion()
        version.take(found.get("dataVersion"))
        if version.timestamp > self.data_version.timestamp:
            events.NEWER_CONSUMER_OFFSETS_ARE_NOT_READ.log(_log, file=other)
        self._name_lost(found, other)

    def _name_lost(self, found: dict[str, Any], path: str) -> None:
        """Log that LMQ groups have offsets that are not read."""
        table = found.get("lmqOffsetTable")
        if not self._lmq and isinstance(table, dict) and table:
            events.OFFSETS_OF_LMQ_GROUPS_ARE_NOT_READ.log(_log, file=path, count=len(table))

    def _queue(self, group: str, queue_id: int) -> int:
        """Return the queue id under which an offset is stored; an LMQ group has one offset per topic."""
        return LMQ_QUEUE_ID if self._lmq and group.startswith(LMQ_PREFIX) else queue_id

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Remember the next offset of a queue; any value is taken, as RocketMQ does.

        Raises StoreError for a queue without an offset when the table is full.
        """
        if self._lmq:
            queue_id = self._queue(group, queue_id)
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

    def commit_of_client(self, group: str, topic: str, queue_id: int, offset: int, until: int) -> str:
        """Commit an offset that a client sends, of a queue that ends at ``until``. Return why it is not taken, or "".

        A group with an offset past the end of its queue would skip the next messages. The progress of the broker,
        which is the offsets of some groups, is not that of a client.
        """
        if group in OFFSETS_OF_BROKER:
            reason = f"the offsets of group {group} are the progress of the broker"
        elif not 0 <= offset <= until:
            reason = f"offset {offset} is not in 0 to {until}, the end of queue {queue_id} of topic {topic}"
        else:
            self.commit(group, topic, queue_id, offset)
            return ""
        if count := self._refused.due("commit", self._clock.monotonic_ns() / 1e9):
            events.COMMITTED_OFFSET_IS_REFUSED.log(
                _log, group=group, topic=topic, queue=queue_id, offset=offset, reason=reason, count=count)
        return reason

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """Return the next offset of a queue, or -1 if it is unknown."""
        queue_id = self._queue(group, queue_id)
        queues = self._table.get(f"{topic}@{group}")
        return -1 if queues is None else queues.get(queue_id, -1)

    def entries(self) -> list[tuple[str, str, int, int]]:
        """Return (topic, group, queue id, next offset) of all committed offsets."""
        found = []
        # list() and dict() copy in one step each, so other threads may commit at the same time.
        for key, queues in list(self._table.items()):
            topic, separator, group = key.partition(TOPIC_GROUP_SEPARATOR)
            if separator:
                found += [(topic, group, q, o) for q, o in dict(queues).items()]
        return found

    def commit_pull(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the offset up to which messages of a queue were sent to consumers. It is not written to the file."""
        self._pulls.put(f"{topic}@{group}", queue_id, offset)

    def query_pull(self, group: str, topic: str, queue_id: int) -> int:
        """Return the offset up to which messages of a queue were sent to consumers, or -1."""
        return self._pulls.get(f"{topic}@{group}", queue_id)

    def assign_reset(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        """Set next offsets of queues by hand; durable on return. Raises OSError or StoreError.

        Their consumers get the offsets later (`take_reset`).
        """
        key = f"{topic}@{group}"
        # An LMQ group has one offset for each topic. Of several queues the first one decides.
        kept = {self._queue(group, queue_id): offsets[queue_id] for queue_id in sorted(offsets, reverse=True)}
        known = self._table.get(key, {})
        new = sum(queue_id not in known for queue_id in kept)
        self._put(new, {key: kept})
        with self._reset_lock:
            self._reset_table.setdefault(key, {}).update(offsets)

    def clone(self, source: str, target: str, topics: Iterable[str]) -> None:
        """Give a group the offsets of another one for topics; durable on return.

        An offset of a queue for which the source has none stays. Raises OSError or StoreError.
        """
        copied: dict[str, dict[int, int]] = {}
        new = 0
        for topic in topics:
            queues = dict(self._table.get(f"{topic}@{source}", {}))
            if queues:
                key = f"{topic}@{target}"
                copied[key] = queues
                new += len(queues.keys() - self._table.get(key, {}).keys())
        self._put(new, copied)

    def _put(self, new: int, offsets: dict[str, dict[int, int]]) -> None:
        """Set offsets, of which ``new`` are not known yet; durable on return."""
        self._make_room(new)
        try:
            self.change(lambda draft: draft.put_all(offsets))
        except BaseException:
            self._count -= new
            raise

    def is_reset(self, group: str, topic: str, queue_id: int) -> bool:
        """Return True if an offset was set by hand and the consumer of the queue has not got it yet."""
        return queue_id in self._reset_table.get(f"{topic}@{group}", ())

    @property
    def has_resets(self) -> bool:
        """True if an offset of any queue was set by hand and its consumer has not got it yet."""
        return bool(self._reset_table)

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset that was set by hand, or None. It is returned once, for the consumer of the queue."""
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
        """Return the topics for which a group has offsets, sorted."""
        return sorted(topic for topic, g in self.pairs() if g == group)

    def topics_by_group(self) -> dict[str, set[str]]:
        """Return the topics for which each group has offsets."""
        found: dict[str, set[str]] = {}
        for topic, group in self.pairs():
            found.setdefault(group, set()).add(topic)
        return found

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have offsets for a topic, sorted."""
        return sorted(g for t, g in self.pairs() if t == topic)

    def remove_topics(self, topics: set[str], also: Callable[[], None] | None = None) -> None:
        """Forget every offset of topics, with one write; durable on return. For ``also`` see `submit`."""
        self._remove(lambda key: key.partition(TOPIC_GROUP_SEPARATOR)[0] in topics, also)

    def remove_groups(self, groups: set[str]) -> None:
        """Forget every offset of groups, with one write; durable on return."""
        self._remove(lambda key: key.partition(TOPIC_GROUP_SEPARATOR)[2] in groups, None)

    def pairs(self) -> list[tuple[str, str]]:
        """Return each topic and group that have an offset."""
        parts = [key.split(TOPIC_GROUP_SEPARATOR, 1) for key in list(self._table)]
        return [(p[0], p[1]) for p in parts if len(p) == 2]

    def _remove(self, gone: Callable[[str], bool], also: Callable[[], None] | None) -> None:
        self.change(lambda draft: [draft.remove(key) for key in draft.merged() if gone(key)], also)
        self._pulls.remove(gone)
        with self._reset_lock:
            for key in list(self._reset_table):
                if gone(key):
                    self._reset_table.pop(key, None)

    def _make_room(self, new: int) -> None:
        if self._count + new > self._limit and self._has_gone:  # a full table is not counted for each commit
            self._has_gone = False
            self._count = sum(map(len, list(self._table.values())))
        if self._count + new > self._limit:
            raise StoreError(
                f"there are {self._count} consumer offsets, more are over the limit "
                f"maxConsumerOffsets={self._limit}; delete topics or groups with cleanOffset, or "
                "raise maxConsumerOffsets")
        self._count += new

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
        self._has_gone = True

    def _decode(self, value: dict[str, Any]) -> None:
        value.pop("groupTopicMap", None)  # derived from the table
        value.pop("pullOffsetTable", None)  # of a Java broker up to 5.5.0, which would read it again; soon out of date
        found = value.pop("offsetTable", None)
        table: dict[str, dict[int, int]] = {}
        for key, queues in (found or {}).items():
            if isinstance(queues, dict):
                table[str(key)] = {int(q): int(o) for q, o in queues.items()}
        if self._lmq:
            found = value.pop("lmqOffsetTable", None)
            lmq = found if isinstance(found, dict) else {}
            table |= {str(key): {LMQ_QUEUE_ID: int(o)} for key, o in lmq.items()}
        self._table = table
        self._count = sum(map(len, table.values()))

    def _encode(self, table: dict[str, dict[int, int]]) -> dict[str, Any]:
        # dict() copies in one step, so other threads may commit in the meantime.
        copies = [(key, dict(queues)) for key, queues in table.items()]
        mark = f"{TOPIC_GROUP_SEPARATOR}{LMQ_PREFIX}"
        lmq = {
            key: queues[LMQ_QUEUE_ID] for key, queues in copies
            if self._lmq and mark in key and LMQ_QUEUE_ID in queues}
        made: dict[str, Any] = {"lmqOffsetTable": lmq} if self._lmq else {}
        return {**made, "offsetTable": {
            key: {str(q): o for q, o in queues.items()} for key, queues in copies if key not in lmq}}
