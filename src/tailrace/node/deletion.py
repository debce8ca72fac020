"""Deletion of topics and groups: one list of what belongs to them, for every way to delete.

A request to a broker, the command line on a directory, cleanUnusedTopic, the expiration of Lite topics and a program
all remove the same with a topic: its queues and messages, its configuration and static mapping, the offsets of groups,
its Lite topics, its POP retry topics of known groups in both forms, pops in order, expressions and request modes of
groups. With a group its retry topic, its dead letters and its POP retry topics are deleted. A retry topic whose name
another topic and group have as well is kept, because it has messages of them.

Invariant:
  D7  A deletion is noted durably before anything is removed, and after a crash all of it or nothing has happened.
Commit point: the state file of ``TopicRetention`` is written, with the names that are deleted. The configuration of
the topics is written last. An open that finds the first and not the second completes the deletion.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar, final

from tailrace import events
from tailrace.env.filesystem import FileSystem
from tailrace.env.pauses import in_steps, no_pause
from tailrace.errors import StoreError
from tailrace.formats import filenames
from tailrace.formats.commitlog import LMQ_QUEUE_ID
from tailrace.formats.lite import parent_of
from tailrace.formats.names import DLQ_GROUP_TOPIC_PREFIX, LMQ_PREFIX, RETRY_GROUP_TOPIC_PREFIX
from tailrace.formats.pop import retry_topic_users
from tailrace.logs import get_logger
from tailrace.node.config_manager import ConfigManager, DataVersion, Draft, Owned, read_config
from tailrace.node.retention.topics import TopicRetention, Unfinished, read_unfinished
from tailrace.node.topic_config import TopicConfigManager
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.store.lives import Ended
from tailrace.store.slave_lives import begin_queues, end_lives

if TYPE_CHECKING:  # node.timers imports this module by way of node.directory_opening
    from tailrace.node.timers import Timers

__all__ = ["Deleted", "Deletion", "GroupState", "StateFiles", "complete_deletion"]

_log = get_logger(__name__)
_GROUPS: Final = "subscriptionGroup.json"
STEP: Final = 1_000
"""Names that are looked at between two pauses, in about half a millisecond."""
_BY_TOPIC_AND_GROUP: Final = {
    "consumerOffset.json": ("offsetTable",),
    "lmqConsumerOffset.json": ("offsetTable", "lmqOffsetTable"),
    "consumerOrderInfo.json": ("table",),
    "consumerFilter.json": ("filterDataByTopic",),
    "messageRequestMode.json": ("messageRequestModeMap",),
}
"""Members of state files whose keys are ``topic`` or ``topic@group``."""
Also = Callable[[], None]
_Item = TypeVar("_Item")


class Deleted(NamedTuple):
    """Result of a deletion."""

    topics: list[str]
    """The topics that were deleted."""
    kept: list[str]
    """Retry topics that are kept because another topic and group use them."""

    @property
    def reasons(self) -> list[str]:
        """What is kept, with the reason."""
        return [f"{name}, the retry topic of another topic or group as well" for name in self.kept]


class GroupState(Protocol):
    """What is known of groups: offsets, orderly pops, expressions, request modes."""

    def pause(self) -> None:
        """Let other threads work; it is called after each step of a computation."""
        ...

    def groups(self) -> set[str]:
        """Return the names of all groups that have a configuration or offsets."""
        ...

    def forget(self, topics: set[str], also: Also) -> None:
        """Forget topics, durably, and call ``also`` before that can be seen. Raises OSError; then nothing changes."""
        ...

    def forgotten(self, topics: set[str]) -> None:
        """Forget what only memory has of topics that were deleted."""
        ...


@final
class _StateFile(ConfigManager[str, Any]):
    """A state file of which only some members are changed."""

    owned = Owned.BY_DRAFT

    def __init__(self, file_system: FileSystem, config_dir: str, name: str, members: tuple[str, ...]) -> None:
        super().__init__(file_system, config_dir, name)
        self._members = members

    def keys(self) -> list[str]:
        """Return the keys of the members."""
        return [key for table in self._table.values() for key in table]

    def removal(self, gone: Callable[[str], bool]) -> Callable[[Draft[str, Any]], None]:
        """Return the change that removes keys."""
        def change(draft: Draft[str, Any]) -> None:
            for member, table in self._table.items():
                left = {key: value for key, value in table.items() if not gone(key)}
                if len(left) < len(table):
                    draft.put(member, left)
        return change

    def _next_version(self, version: DataVersion) -> None:
        version.next(version.timestamp)

    def _decode(self, value: dict[str, Any]) -> None:
        self._table = {name: value.pop(name) for name in self._members if isinstance(value.get(name), dict)}

    def _encode(self, table: dict[str, Any]) -> dict[str, Any]:
        return table


@final
class StateFiles(GroupState):
    """The state of groups in the files of a directory without a broker."""

    def __init__(
        self, file_system: FileSystem, config_dir: str, names: Collection[str] = tuple(_BY_TOPIC_AND_GROUP)
    ) -> None:
        """``names`` are the files to change."""
        self._file_system = file_system
        self._config_dir = config_dir
        self._names = names

    def pause(self) -> None:
        """Do nothing, because nothing waits."""
        no_pause()

    def groups(self) -> set[str]:
        """Return the names of all groups that have a configuration or offsets."""
        found = (read_config(self._file_system, f"{self._config_dir}/{_GROUPS}") or {}).get("subscriptionGroupTable")
        names = {str(name) for name in found} if isinstance(found, dict) else set()
        keys = [key for file in self._loaded() for key in file.keys()]  # noqa: SIM118 - not a dict
        return names | {group for key in keys if (group := key.partition("@")[2])}

    def forget(self, topics: set[str], also: Also) -> None:
        """Forget topics in every file that names them."""
        def gone(key: str) -> bool:
            return key.partition("@")[0] in topics

        for file in self._loaded():
            if any(map(gone, file.keys())):
                also = partial(file.change, file.removal(gone), also)
        also()

    def forgotten(self, topics: set[str]) -> None:
        """Do nothing, because nothing is in memory."""

    def _loaded(self) -> list[_StateFile]:
        files = [_StateFile(self._file_system, self._config_dir, name, members)
                 for name, members in _BY_TOPIC_AND_GROUP.items() if name in self._names]
        return [file for file in files if file.load()]


@final
class Deletion:
    """Deletes topics of an open store with everything that belongs to them. Any thread may call."""

    def __init__(
        self, file_system: FileSystem, store: DefaultMessageStore, topics: TopicConfigManager,
        retention: TopicRetention, timers: Timers, check_may_change: Callable[[], None],
    ) -> None:
        """``check_may_change`` raises if the store is closed or read-only."""
        self._check_may_change = check_may_change
        self._store = store
        self._topics = topics
        self._retention = retention
        self._timers = timers
        self.state: GroupState = StateFiles(file_system, f"{store.root}/{filenames.CONFIG}")
        """The state of groups; a broker on the store sets its own."""

    def delete_topics(self, topics: Iterable[str]) -> Deleted:
        """Delete topics with everything that belongs to them; durable on return.

        Raises StoreError for a system topic, OSError or FatalStorageError; then nothing is deleted.
        """
        self._check_may_change()
        wanted, known, groups = set(topics), self._known(), self.state.groups()
        if system := sorted(filter(self._topics.has_state_of_broker, wanted)):
            raise StoreError(f"{', '.join(system)}: a system topic of the broker cannot be deleted")
        lite = {queue for queue in self._in_steps(known) if parent_of(queue) in wanted}
        retries = _retries(self._in_steps(known), lambda group, topic: topic in wanted and group in groups)
        kept = self._shared(retries - wanted, groups, gone=wanted)
        return self._delete(wanted | lite | retries - kept, kept, _nothing)

    def delete_groups(self, groups: Iterable[str], also: Also) -> Deleted:
        """Delete the topics of groups: retries, dead letters, and POP retries of every topic; durable on return.

        ``also`` makes the deletion of the groups themselves durable. Raises OSError or FatalStorageError, or what
        ``also`` raises; then nothing is deleted.
        """
        self._check_may_change()
        wanted, known = set(groups), self._known()
        retries = _retries(self._in_steps(known), lambda group, topic: group in wanted and topic in known)
        retries |= known & {f"{RETRY_GROUP_TOPIC_PREFIX}{group}" for group in wanted}
        kept = self._shared(retries, self.state.groups() - wanted, gone=set())
        letters = known & {f"{DLQ_GROUP_TOPIC_PREFIX}{group}" for group in wanted}
        return self._delete(letters | retries - kept, kept, also)

    def delete_unused(self) -> Deleted:
        """Delete the queues of topics that do not exist (cleanUnusedTopic)."""
        self._check_may_change()
        configured = set(self._topics.table)
        unused = {topic for topic, _ in list(self._store.queues.table)
                  if topic not in configured and not topic.startswith(LMQ_PREFIX)
                  and not self._topics.is_system_topic(topic)}
        return self.delete_topics(unused) if unused else Deleted([], [])

    def delete_idle(self, ends: Mapping[str, int]) -> set[str]:
        """Delete LMQ queues whose next offset is still the one in ``ends``; return their names.

        A queue that got a message in the meantime stays. Raises OSError; then nothing is deleted.
        """
        self._check_may_change()
        with self._timers.standing_still(), self._retention.paused():
            deleted = self._store.delete_idle_queues(
                {(name, LMQ_QUEUE_ID): end for name, end in ends.items()},
                lambda ended: self._make_durable(set(ended), ended, _nothing))
        self._forgotten(deleted)
        return deleted

    def end_lives(self, ended: Mapping[str, Ended]) -> set[str]:
        """End lives of topics on a slave as its master has ended them; durable on return. Return the new ones.

        Raises OSError or FatalStorageError; then nothing is ended.
        """
        with self._timers.standing_still(), self._retention.paused():
            topics = end_lives(self._store, ended, lambda new: self._retention.note_ended(new, None, _nothing))
        self._forgotten(topics)
        if topics:
            events.LIVES_OF_TOPICS_ENDED_AS_ON_THE_MASTER.log(_log, topics=sorted(topics))
        return topics

    def begin_queues(self, ends: Mapping[str, Mapping[int, int]]) -> None:
        """Have queues of a slave that have no message begin where they end on its master; durable on return.

        Raises OSError or FatalStorageError; then nothing is changed.
        """
        with self._retention.paused():
            begin_queues(self._store, ends, self._retention.note_begins)

    def _known(self) -> set[str]:
        """Return all topics that have a configuration, a queue, or messages that are not dispatched."""
        queues = chain(list(self._store.queues.table), list(self._store.commit_log.queue_offsets))
        return {*list(self._topics.table), *(topic for topic, _ in self._in_steps(queues))}

    def _in_steps(self, items: Iterable[_Item]) -> Iterator[_Item]:
        return in_steps(items, STEP, self.state.pause)

    def _shared(self, retries: set[str], groups: set[str], *, gone: set[str]) -> set[str]:
        """Return the retry topics whose name is also that of a topic and one of ``groups`` that stay.

        A deletion of one topic must not lose the retries of another one. ``gone`` are topics that are deleted.
        """
        return {
            name for name in retries
            if any(group in groups and topic not in gone and (not topic or topic in self._topics.table)
                   for group, topic in retry_topic_users(name))}

    def _delete(self, names: set[str], kept: Collection[str], also: Also) -> Deleted:
        if names:
            with self._timers.standing_still(), self._retention.paused():
                self._store.delete_topics(names, lambda ended: self._make_durable(names, ended, also))
        else:
            also()
        self._forgotten(names)
        events.DELETED_TOPICS.log(_log, topics=sorted(names), kept=sorted(kept))
        return Deleted(sorted(names), sorted(kept))

    def _forgotten(self, names: set[str]) -> None:
        self._timers.forget_topics(names)
        self.state.forgotten(names)

    def _make_durable(self, names: set[str], ended: Mapping[str, Ended], also: Also) -> None:
        """Write the note of the deletion first, the configuration of the topics last."""
        topics = self._topics
        with topics.paused():  # an open compares the version of the topics with that of the note
            configs = [name for name in names if topics.table.get(name) is not None]
            self._retention.note_ended(
                ended, Unfinished(sorted(names), topics.data_version) if configs else None,
                lambda: self.state.forget(names, lambda: _forget_configs(topics, names, configs, also)))


def _nothing() -> None:
    pass


def _retries(known: Iterable[str], is_gone: Callable[[str, str], bool]) -> set[str]:
    """Return the POP retry topics for whose group and topic ``is_gone`` returns True, with one look at each name."""
    return {name for name in known if any(topic and is_gone(group, topic) for group, topic in retry_topic_users(name))}


def _forget_configs(topics: TopicConfigManager, names: set[str], configs: Collection[str], also: Also) -> None:
    def configuration() -> None:
        if configs:
            topics.change(lambda draft: [draft.remove(name) for name in configs], also)
        else:
            also()

    mapped = [name for name in names if name in topics.mappings.table]
    if mapped:
        topics.mappings.change(lambda draft: [draft.remove(name) for name in mapped], configuration)
    else:
        configuration()


def complete_deletion(file_system: FileSystem, config_dir: str, topics: TopicConfigManager) -> None:
    """Complete a deletion that a crash has interrupted after it was noted. Raises OSError."""
    found = read_unfinished(file_system, config_dir)
    if found is None or not found.covers(topics.data_version):
        return
    names = set(found.topics)
    events.DELETION_IS_COMPLETED.log(_log, topics=found.topics)
    StateFiles(file_system, config_dir).forget(names, lambda: _forget_configs(
        topics, names, [name for name in names if topics.table.get(name) is not None], _nothing))
