"""State files below ``config/``: JSON that survives a crash at any moment.

A new text is written to ``<file>.tmp`` and synced, the present file is renamed to ``<file>.bak``, the new one
to ``<file>``, and the directory is synced. After a crash at any moment ``<file>`` or ``<file>.bak`` is complete,
and a load reads the first of them that is valid. Members that Tailrace does not know are kept, because a newer
Java broker may have written them.

A change of a table is durable before a reader can see it. `ConfigManager.submit` queues a change,
`ConfigManager.write_queued` applies every queued change to a `Draft`, writes the draft once and then
publishes it. If the write fails, the previous file gets its name back, and the table, its data
version and the file are what they were before.
"""

from __future__ import annotations

import abc
import contextlib
import copy
import dataclasses
import enum
import errno
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, ClassVar, Final, Generic, NamedTuple, Self, TypeVar

from tailrace import events
from tailrace.config import BrokerConfig, camel
from tailrace.env.callbacks import Callbacks
from tailrace.env.clock import Clock
from tailrace.env.filesystem import FileSystem
from tailrace.env.owner import ThreadOwner
from tailrace.env.permissions import make_private
from tailrace.env.whole_files import read_if_there, write_file
from tailrace.errors import FatalStorageError, StoreError
from tailrace.formats import fastjson
from tailrace.logs import get_logger

__all__ = [
    "ConfigManager", "DataVersion", "Draft", "NamedConfigManager", "Owned", "members_of", "number_of", "read_config",
    "write_config",
]

_log = get_logger(__name__)
_NOT_FINAL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE})
K = TypeVar("K")
V = TypeVar("V")
Edit = Callable[["Draft[K, V]"], Any]


def members_of(kind: type) -> dict[str, str]:
    """Return the fields of a dataclass by RocketMQ's names; ``extra``, for members of other names, is not one."""
    return {camel(f.name): f.name for f in dataclasses.fields(kind) if f.name != "extra"}


class DataVersion:
    """Version of a table: it changes with every change, so other processes know whether to fetch the table again."""

    __slots__ = ("counter", "state_version", "timestamp")

    def __init__(self, timestamp: int = 0) -> None:
        self.counter = 0
        self.state_version = 0
        self.timestamp = timestamp

    def next(self, now_ms: int) -> None:
        """Count a change."""
        self.counter += 1
        self.timestamp = now_ms

    def copy(self) -> DataVersion:
        """Return a version that is equal and changes on its own."""
        made = DataVersion()
        made.take(self.to_json())
        return made

    def to_json(self) -> dict[str, int]:
        """Return the members of RocketMQ's DataVersion."""
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp}

    def take(self, value: Any) -> None:
        """Set the members from a stored version; a value of another form is ignored."""
        if isinstance(value, dict):
            self.counter = number_of(value.get("counter"), self.counter)
            self.state_version = number_of(value.get("stateVersion"), self.state_version)
            self.timestamp = number_of(value.get("timestamp"), self.timestamp)


def number_of(value: Any, default: int) -> int:
    """Return a whole number that may be stored as text, or ``default``."""
    if isinstance(value, int):
        return int(value)
    try:
        return int(str(value))
    except ValueError:
        return default


class Draft(Generic[K, V]):
    """A table with changes that other callers do not see yet."""

    __slots__ = ("_base", "_size", "changes", "gone", "puts", "version")

    def __init__(self, base: dict[K, V]) -> None:
        self._base = base
        self.puts: dict[K, V] = {}
        self.gone: set[K] = set()
        self.changes = 0
        """Number of calls that changed something."""
        self._size = len(base)
        self.version: DataVersion | None = None
        """The version after the changes, if it is not the next one."""

    def get(self, key: K) -> V | None:
        """Return the value of a key as it would be after the changes."""
        if key in self.gone:
            return None
        found = self.puts.get(key)
        return self._base.get(key) if found is None else found

    def put(self, key: K, value: V) -> None:
        """Set a value."""
        self._size += self.get(key) is None
        self.gone.discard(key)
        self.puts[key] = value
        self.changes += 1

    def put_all(self, values: dict[K, V]) -> None:
        """Set values."""
        for key, value in values.items():
            self.put(key, value)

    def remove(self, key: K) -> bool:
        """Remove a key; return False when the table does not have it."""
        if self.get(key) is None:
            return False
        self._size -= 1
        self.puts.pop(key, None)
        self.gone.add(key)
        self.changes += 1
        return True

    def touch(self) -> None:
        """Count a change although the table does not change, because other members of the file do."""
        self.changes += 1

    def __len__(self) -> int:
        return self._size

    def merged(self) -> dict[K, V]:
        """Return a copy of the whole table after the changes."""
        table = {**self._base, **self.puts}
        for key in self.gone:
            table.pop(key, None)
        return table


class Owned(enum.Enum):
    """Who may change the table of a `ConfigManager`."""

    BY_DRAFT = "any thread, by a change that is durable before it is visible; a lock keeps the changes apart"
    BY_STEP = "any thread, by single operations of dict; a reader that iterates takes a copy first"
    BY_ONE_THREAD = "the thread that constructs it, usually that of the event loop; another one writes the file"
    BY_LOCK = "any thread that holds the lock of the service to which the table belongs"


class _Change(NamedTuple):
    edit: Callable[[Any], Any]
    also: Callable[[], None] | None
    done: Future[Any]


class ConfigManager(abc.ABC, Generic[K, V]):
    """A table that is stored in a state file. ``owned`` of each subclass says which thread may change it.

    ``_table`` is changed in place, by single operations of ``dict``. A reader that iterates takes a
    copy first (``list(table)``), which is one operation too. A table that is owned by one thread is encoded by that
    thread (`prepare`), and any thread writes what is prepared (`write_prepared`).
    """

    owned: ClassVar[Owned]
    private = False
    """Whether only the owner of the file may read it."""
    dumps = staticmethod(fastjson.dumps_pretty)
    """Returns the text of the file."""

    def __init__(
        self, file_system: FileSystem, config_dir: str, name: str, now_ms: Callable[[], int] | None = None,
        before_write: Callable[[], None] | None = None,
    ) -> None:
        """``now_ms`` returns the time of a change; a table without it has no data version that changes.

        ``before_write`` is called before the file is written, after its content is fixed, and may raise.
        """
        self._file_system = file_system
        self._before_write = before_write
        self._now_ms = now_ms
        self._config_dir = config_dir
        self._name = name
        self._lock = threading.RLock()
        """Held while the file is written; one writer at a time."""
        self._queued: deque[_Change] = deque()
        self._file_known = False
        self._failed_sync = ""
        self._dirty = False
        """Set by a subclass whose table changes without `submit`, for `persist_if_changed`."""
        self._table: dict[K, V] = {}
        self.data_version = DataVersion()
        self.writes = 0
        """Number of times the file was written."""
        self._prepared: deque[dict[str, Any]] = deque()
        """Contents of the file that are not written; the last one counts."""
        self._owner = ThreadOwner(f"{type(self).__name__} ({name})")
        self._unknown: dict[str, Any] = {}
        self._listeners = Callbacks[[]]()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Have the thread that wrote a change call ``listener`` when the change is visible."""
        self._listeners.add(listener)

    @property
    def path(self) -> str:
        """Path of the state file."""
        return f"{self._config_dir}/{self._name}"

    @property
    def table(self) -> dict[K, V]:
        """The live table, only for reading."""
        return self._table

    def load(self) -> bool:
        """Read the file or its backup. Return False without either."""
        found = read_config(self._file_system, self.path)
        if found is None:
            return False
        self._take(found)
        return True

    def _take(self, found: dict[str, Any]) -> None:
        """Set the table from the object in a file."""
        with self._lock:
            self._unknown = dict(found)
            self.data_version.take(self._unknown.pop("dataVersion", None))
            self._decode(self._unknown)

    # -- changes that are durable before they are visible

    def change(self, edit: Edit[K, V], also: Callable[[], None] | None = None) -> Any:
        """Apply a change, durable and visible on return. Return the result of ``edit``.

        Raises what ``edit`` or ``also`` raised, or OSError; then nothing has changed. See `submit`.
        """
        done = self.submit(edit, also)
        self.write_queued()
        return done.result()

    def check_copy(self, value: Mapping[str, Any]) -> None:
        """Raise what `copy_from` would raise for a table of a wrong form."""
        copy.copy(self)._decode(dict(value))

    def copy_from(self, value: Mapping[str, Any]) -> None:
        """Replace the table and its version by those of a file of another broker; durable before they are visible.

        Raises OSError or StoreError, and what a table of a wrong form raises; then nothing has changed.
        """
        members = dict(value)
        version = DataVersion()
        version.take(members.pop("dataVersion", None))
        with self._lock:
            other = copy.copy(self)
            other._decode(members)
            table = other._table

            def edit(draft: Draft[K, V]) -> None:
                for key in [key for key in self._table if key not in table]:
                    draft.remove(key)
                for key, found in table.items():
                    if draft.get(key) != found:
                        draft.put(key, found)
                if version.to_json() != self.data_version.to_json():
                    draft.touch()
                draft.version = version

            self._change_beside(edit, other)

    def _change_beside(self, edit: Edit[K, V], other: Self) -> None:
        """Apply a change of `copy_from`; a subclass also takes over what ``other`` has beside the table."""
        self.change(edit)

    def submit(self, edit: Edit[K, V], also: Callable[[], None] | None = None) -> Future[Any]:
        """Queue a change for the next `write_queued`, which completes the future. Waits for nothing.

        ``edit`` changes the draft that it gets, or raises and changes nothing. ``also`` runs after
        the file is written and before the change is visible, to make related changes of other files durable. If
        it raises, the previous file gets its name back, and every change of this write fails.
        """
        done: Future[Any] = Future()
        self._queued.append(_Change(edit, also, done))
        return done

    def write_queued(self) -> None:
        """Apply all queued changes with one write of the file. Errors are set on the futures, not raised."""
        with self._lock:
            batch: list[tuple[_Change, Any]] = []
            draft = Draft(self._table)
            version = self.data_version.copy()
            while self._queued:
                change = self._queued.popleft()
                before = draft.changes
                try:
                    result = change.edit(draft)
                except Exception as error:  # noqa: BLE001 - one refused edit spoils no other
                    change.done.set_exception(error)
                    continue
                batch.append((change, result))
                if draft.changes != before:
                    self._next_version(version)
            if not batch:
                return
            version = draft.version or version
            try:
                self._make_durable(draft, version, [change for change, _ in batch])
            except BaseException as error:  # raised in the callers that wait for the changes
                for change, _ in batch:
                    change.done.set_exception(error)
                if not isinstance(error, Exception):
                    raise
                return
            if draft.changes:
                self._publish(draft)
                self.data_version = version
                self._listeners()
        for change, result in batch:
            change.done.set_result(result)

    def _make_durable(
        self, draft: Draft[K, V], version: DataVersion, changes: list[_Change]
    ) -> None:
        had_file = False
        if draft.changes:
            had_file = self._replace(self._content(version, self._merged(draft)))
        try:
            for change in changes:
                if change.also is not None:
                    change.also()
        except BaseException:
            if draft.changes:
                self._put_back(had_file=had_file)
            raise

    def _replace(self, content: dict[str, Any]) -> bool:
        """Write the file. Return True if the previous one is kept as its backup."""
        if self._failed_sync:
            raise OSError(errno.EIO, self._failed_sync, self.path)
        if self._before_write is not None:
            self._before_write()
        try:
            kept = write_config(
                self._file_system, self._config_dir, self._name, self.dumps(content), trusted=self._file_known,
                private=self.private)
        except _DirectorySyncError as error:
            # Rule F6, a failed sync is final: a later sync may succeed although the file is not on the disk.
            # A directory that could not be opened because descriptors were short was not synced.
            if error.errno not in _NOT_FINAL:
                self._failed_sync = (
                    f"a sync failed before ({error.strerror}): no change is taken until a restart")
            self._put_back(had_file=error.kept)
            raise
        except OSError:
            self._file_known = False
            raise
        self._file_known = True
        self.writes += 1
        return kept

    def _put_back(self, *, had_file: bool) -> None:
        """Give the previous file its name back after a change that could not be completed."""
        files, path = self._file_system, self.path
        self._file_known = False
        try:
            _give_names_back(files, path, had_file=had_file)
            files.sync_dir(self._config_dir)
        except (OSError, FatalStorageError) as error:
            events.REFUSED_CHANGE_MAY_RETURN_WITH_A_RESTART.log(_log, file=path, reason=error)

    def _publish(self, draft: Draft[K, V]) -> None:
        """Make the changes of a draft visible."""
        self._table.update(draft.puts)
        for key in draft.gone:
            self._table.pop(key, None)

    def _merged(self, draft: Draft[K, V]) -> dict[K, V]:
        """Return the whole table after the changes of a draft."""
        return draft.merged()

    def _next_version(self, version: DataVersion) -> None:
        """Count a change."""
        if self._now_ms is not None:
            version.next(self._now_ms())

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Context in which no other thread writes the file."""
        with self._lock:
            yield

    # -- state that is written at intervals

    def persist(self) -> None:
        """Write the table; durable on return."""
        with self._lock:
            self._replace(self.to_json())

    def persist_if_changed(self) -> None:
        """Write the table if it has changed since the last time; durable on return.

        Raises OSError or FatalStorageError; then the next call writes it.
        """
        if not self._dirty:
            return
        # Before writing, because a change during the write makes the table dirty again.
        self._dirty = False
        try:
            self.persist()
        except BaseException:
            self._dirty = True
            raise

    def check_owner(self) -> None:
        """Raise AssertionError if the table belongs to one thread and another one calls."""
        if self.owned is Owned.BY_ONE_THREAD:
            self._owner.check()

    def prepare(self) -> None:
        """Keep the content of the file for `write_prepared` if the table has changed. Its owner calls."""
        self.check_owner()
        if self._dirty:
            self._dirty = False
            self._prepared.append(self.to_json())

    def write_prepared(self) -> None:
        """Write what was prepared last, if it is not written; durable on return. Any thread may call.

        Raises OSError or FatalStorageError; then the next call writes it.
        """
        with self._lock:
            content = None
            while self._prepared:
                content = self._prepared.popleft()
            if content is None:
                return
            try:
                self._replace(content)
            except BaseException:
                self._prepared.appendleft(content)  # before one that was prepared in the meantime
                raise

    def to_json(self) -> dict[str, Any]:
        """Return the content of the file."""
        return self._content(self.data_version, self._table)

    def _content(self, version: DataVersion, table: dict[K, V]) -> dict[str, Any]:
        # The version first: a new version with an older table would hide the change from readers that compare.
        return {**self._unknown, "dataVersion": version.to_json(), **self._encode(dict(table))}

    @abc.abstractmethod
    def _decode(self, value: dict[str, Any]) -> None:
        """Set the table from the members of a file. Remove the known members from ``value``."""

    @abc.abstractmethod
    def _encode(self, table: dict[K, V]) -> dict[str, Any]:
        """Return the members of the file for a copy of the table."""


class NamedConfigManager(ConfigManager[str, V]):
    """Configurations by name. Every change is durable and visible when its call returns, not earlier."""

    owned = Owned.BY_DRAFT
    kind: ClassVar[Any]
    """Class of a configuration, with ``from_json`` and ``to_json``."""
    name: ClassVar[str]
    """Attribute of a configuration that is its name."""
    member: ClassVar[str]
    """Member of the file that has the configurations."""
    what: ClassVar[str]
    """What they are, for an error."""
    most: ClassVar[str]
    """Attribute of the settings that limits their number."""

    def __init__(
        self, file_system: FileSystem, config_dir: str, file: str, broker_config: BrokerConfig, clock: Clock
    ) -> None:
        super().__init__(file_system, config_dir, file, clock.now_ms)
        self._config = broker_config

    def items(self) -> list[V]:
        """Return all configurations."""
        return list(self._table.values())

    def update_all(self, configs: list[V]) -> None:
        """Create or replace configurations, with one write."""
        self.change(lambda draft: self.put_all(draft, configs))

    def put_all(self, draft: Draft[str, V], configs: list[V]) -> None:
        """Create or replace configurations of a draft: all, or none if there would be too many."""
        named = {getattr(config, self.name): config for config in configs}
        new, most = sum(draft.get(name) is None for name in named), getattr(self._config, self.most)
        if new and len(draft) + new > most:
            raise StoreError(
                f"there are {len(draft)} {self.what}, {new} more are over the limit {camel(self.most)}={most}; "
                f"delete {self.what.split()[-1]} or raise {camel(self.most)}")
        draft.put_all(named)

    def creation(self, made: V) -> Callable[[Draft[str, V]], V]:
        """Return the change that creates a configuration if its name has none. The change returns the one of the name.
        """
        def create(draft: Draft[str, V]) -> V:
            if (found := draft.get(getattr(made, self.name))) is not None:
                return found
            self.put_all(draft, [made])
            return made

        return create

    def delete(self, *names: str, also: Callable[[], None] | None = None) -> bool:
        """Delete configurations, with one write. Return False if none existed. For ``also`` see `submit`."""
        return any(self.change(lambda draft: [draft.remove(name) for name in names], also))

    def _ensure(self, configs: Iterable[V]) -> None:
        """Create those of some configurations that are missing, in one write and without a limit."""
        missing = {name: one for one in configs if (name := getattr(one, self.name)) not in self._table}
        if missing:
            self.change(lambda draft: draft.put_all(missing))

    def _decode(self, value: dict[str, Any]) -> None:
        found = value.pop(self.member, None)
        self._table = {
            str(name): self.kind.from_json(member, str(name))
            for name, member in (found or {}).items() if isinstance(member, dict)}

    def _encode(self, table: dict[str, V]) -> dict[str, Any]:
        configs: dict[str, Any] = dict(table)
        return {self.member: {name: config.to_json() for name, config in configs.items()}}


def read_config(file_system: FileSystem, path: str) -> dict[str, Any] | None:
    """Return the object in a state file; in its backup if the file is missing, empty or damaged; None without both."""
    found, problem = _object_in(file_system, path)
    if found is not None:
        return found
    found, why = _object_in(file_system, f"{path}.bak")
    if problem or why:
        used = f"{path}.bak" if found is not None else "nothing"
        reason = "; ".join(text for text in (problem, f"backup: {why}" if why else "") if text)
        events.CONFIG_FILE_UNREADABLE.log(_log, file=path, reason=reason, used=used)
    return found


def _object_in(file_system: FileSystem, path: str) -> tuple[dict[str, Any] | None, str]:
    """Return the object in a file, and why it cannot be read; the reason is empty if the file is missing or empty."""
    text = read_if_there(file_system, path) or b""
    if not text.strip():
        return None, ""
    try:
        value = fastjson.loads(text)
    except ValueError as error:
        return None, str(error)
    return (value, "") if isinstance(value, dict) else (None, "no object")


class _DirectorySyncError(OSError):
    """The sync of a directory failed after a state file was replaced in it."""

    def __init__(self, error: OSError, directory: str, *, kept: bool) -> None:
        super().__init__(error.errno, error.strerror, directory)
        self.kept = kept
        """True if the previous file is the backup."""


def write_config(
    file_system: FileSystem, config_dir: str, name: str, text: bytes, *, trusted: bool = False,
    private: bool = False,
) -> bool:
    """Replace a state file, keeping the present one as its backup; durable on return.

    With ``trusted`` the present file is known to be complete, so it is not read. A ``private`` file gets the
    mode 0600 before anything is written. Return True if there was a file to keep. After an OSError the file has
    the new or the previous text, after a FatalStorageError the previous text.
    """
    path = f"{config_dir}/{name}"
    temporary = f"{path}.tmp"
    if not file_system.exists(config_dir):
        file_system.makedirs(config_dir)
    try:
        if private:
            write_file(file_system, temporary, b"")
            make_private(temporary)
        write_file(file_system, temporary, text)
    except OSError:
        # The next attempt makes a new file: after a failed sync this one must not be synced again.
        with contextlib.suppress(OSError):
            file_system.remove(temporary)
        raise
    # A damaged file must not replace its backup.
    kept = file_system.exists(path) if trusted else _object_in(file_system, path)[0] is not None
    if kept:
        file_system.rename(path, f"{path}.bak")
    try:
        file_system.rename(temporary, path)
    except OSError:
        if kept:
            with contextlib.suppress(OSError):  # if this fails, a load reads the backup
                file_system.rename(f"{path}.bak", path)
        raise
    try:
        file_system.sync_dir(config_dir)
    except OSError as error:
        raise _DirectorySyncError(error, config_dir, kept=kept) from error
    except FatalStorageError as error:  # no sync is possible any more, so only the names are changed back
        try:
            _give_names_back(file_system, path, had_file=kept)
        except OSError:
            events.REFUSED_CHANGE_MAY_RETURN_WITH_A_RESTART.log(_log, file=path, reason=error)
        raise
    return kept


def _give_names_back(file_system: FileSystem, path: str, *, had_file: bool) -> None:
    """Undo the renames of `write_config`."""
    if had_file:
        file_system.rename(f"{path}.bak", path)
    elif file_system.exists(path):
        file_system.rename(path, f"{path}.tmp")
