"""The open of a store directory, and what an open store consists of.

Order: lock, geometry, check of a strict recovery mode, abort file written, load and recovery, topics, services. The
directory is not changed before the lock is held and the recovery mode allows the open. Only ``lock`` is changed
before the abort file exists.

A store that is opened only to be read takes no lock, and everything that the open writes stays in memory. If another
process has the directory open, the log ends where the commands that read a directory end it
(``store.directory.StoreDirectory.shown_until``): later records are not synced yet, or are just being written.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, final

from tailrace import events
from tailrace.config import BrokerConfig, BrokerRole, RecoveryMode, StoreConfig
from tailrace.env.clock import Clock, SystemClock
from tailrace.env.entropy import Entropy, SystemEntropy
from tailrace.env.filesystem import FileSystem, LockHandle, LockState, OsFileSystem
from tailrace.env.memory_overlay import OverlayFileSystem
from tailrace.env.scheduler import Scheduler, ThreadScheduler
from tailrace.errors import ConfigError, StoreLockedError
from tailrace.formats import filenames
from tailrace.logs import get_logger
from tailrace.node.directory_opening import (
    ONLY_READ,
    check_directory,
    has_log,
    load_topics,
    make_directory,
    make_log_directories,
    why_read_only,
    write_abort,
)
from tailrace.node.known_topics import KnownTopics
from tailrace.node.lock import LOCK_CHECK_MS, NO_LOCK, LockWatch, lock_store
from tailrace.node.retention.services import Retention
from tailrace.node.synced_directory import open_synced
from tailrace.node.timers import Timers
from tailrace.node.topic_config import TopicConfigManager
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.store.directory_format import DirectoryFormat, read_format, remembered, write_format
from tailrace.store.geometry import recognise
from tailrace.store.queue_types import read_batch_topics
from tailrace.store.recovery.passes import MakeWalk, RecoveryOptions
from tailrace.store.walk.parallel import ParallelWalk

__all__ = ["OpenStore", "StoreParts", "open_store"]

_log = get_logger(__name__)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StoreParts:
    """What tests and tools pass to ``MessageStore.open``; None stands for the machine's own."""

    clock: Clock | None = None
    file_system: FileSystem | None = None
    scheduler: Scheduler | None = None
    entropy: Entropy | None = None
    services: bool = True
    """False: no background service runs; the store dispatches and flushes when it is read or closed."""
    on_lock: Callable[[], None] | None = None
    """Called when the lock is held, before any change; may raise."""
    on_recovery: Callable[[float], None] = lambda _: None
    """Gets the part of a recovery that is done, 0 to 1, about once a second."""
    rebuild: bool = False
    """Build queues and index from the log."""
    seal_damage: bool = False
    """Write placeholder records over damage, for Java brokers."""
    walk: MakeWalk = ParallelWalk
    """Makes the walk over the log for recovery."""
    must_write: bool = False
    """Raise StoreNotWritableError instead of opening a directory read-only that cannot be written."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStore:
    """The parts of an open store; ``read_only`` is why nothing is written, or ""."""

    root: str
    store: DefaultMessageStore
    topics: TopicConfigManager
    retention: Retention
    timers: Timers
    lock: LockHandle
    lock_watch: LockWatch
    file_system: FileSystem
    clock: Clock
    entropy: Entropy
    scheduler: Scheduler | None
    read_only: str


def open_store(
    path: str | os.PathLike[str], config: StoreConfig | None, broker: BrokerConfig | None, parts: StoreParts, *,
    create: bool, read_only: bool,
) -> OpenStore:
    """Open a directory, see ``MessageStore.open``."""
    given: Any = config
    if given is not None and not isinstance(given, StoreConfig):
        raise ConfigError(f"config is a StoreConfig, not {given!r}; StoreConfig.from_properties takes a dict")
    if broker is None and given is not None and given.broker_role is BrokerRole.SYNC_MASTER:
        raise ConfigError("brokerRole=SYNC_MASTER needs a server: a store without one has no slaves")
    root = os.path.abspath(os.fspath(path))
    file_system = parts.file_system or OsFileSystem()
    config = remembered(read_format(file_system, root), root, config or StoreConfig())
    if read_only:  # a recovery mode refuses to open, not to show
        create, config = False, config.copy_with({"recovery_mode": RecoveryMode.TOLERATE_ANY})
    check_directory(file_system, root, config, create=create)
    is_store = has_log(file_system, root, config)
    to_call = [parts.on_lock] if parts.on_lock is not None else []  # once, even if a second attempt opens read-only
    follows = broker is not None and config.broker_role is BrokerRole.SLAVE
    opening = partial(_Opening, root, config, broker or BrokerConfig(), parts, to_call, follows)
    if read_only:
        return _opened_to_read(opening, file_system, root, config, parts.clock)
    try:
        return opening(file_system).run()
    except BaseException as error:  # noqa: BLE001 - raised again unless the store can be read
        why = why_read_only(error, root, may_be=is_store and not parts.must_write)
    return opening(OverlayFileSystem(file_system), why).run()


def _shown_until(root: str, config: StoreConfig, file_system: FileSystem, clock: Clock | None) -> int:
    """Return the position up to which another process shows the log; a server is asked to sync it first."""
    directory, behind = open_synced(root, config=config, file_system=file_system, clock=clock)
    if behind:
        events.MESSAGES_MAY_BE_MISSING.log(_log, store=root, reason=behind)
    return directory.shown_until


def _opened_to_read(
    opening: Callable[..., _Opening], file_system: FileSystem, root: str, config: StoreConfig, clock: Clock | None
) -> OpenStore:
    """Open a directory without its lock, at the end that other processes may show if one has it open."""
    lock = f"{root}/{filenames.LOCK}"
    while True:
        is_live = file_system.lock_holder(lock) is not None
        until = _shown_until(root, config, file_system, clock) if is_live else None
        try:
            return opening(OverlayFileSystem(file_system, takes_locks=False), ONLY_READ, until).run()
        except StoreLockedError:
            if is_live or file_system.lock_holder(lock) is None:
                raise  # otherwise it was opened in the meantime: read beside that process


@final
@dataclass(slots=True)
class _Opening:
    """One attempt to open a directory: build and recover the store, wire and start the services."""

    root: str
    config: StoreConfig
    broker: BrokerConfig
    parts: StoreParts
    on_lock: list[Callable[[], None]]
    follows: bool
    """True if a broker opens the directory and is a slave."""
    file_system: FileSystem
    read_only: str = ""
    """Why nothing is written, or "". With a reason the file system must be an overlay."""
    until: int | None = None
    """If another process has the directory open: the position where the log ends. No lock is taken then."""
    _store: DefaultMessageStore | None = None
    _topics: TopicConfigManager | None = None
    _scheduler: Scheduler | None = None
    _batch_topics: frozenset[str] = frozenset()

    def run(self) -> OpenStore:
        """Open the directory. After an error everything is closed again."""
        make_directory(self.file_system, self.root, self.config)
        lock = NO_LOCK if self.until is not None else lock_store(
            self.file_system, self.root, read_only=bool(self.read_only))
        try:
            return self._open(lock)
        except BaseException:
            if self._scheduler is not None:
                self._scheduler.stop_all()
            if self._store is not None:
                self._store.release()
            lock.release()
            raise

    def _open(self, lock: LockHandle) -> OpenStore:
        root, parts = self.root, self.parts
        clock, entropy = parts.clock or SystemClock(), parts.entropy or SystemEntropy()
        kept = read_format(self.file_system, root, again=True)  # the last writer may have changed it in the meantime
        writes = not self.read_only
        config = recognise(self.file_system, root, kept, self.config, writes=writes)  # may refuse, has changed nothing
        while self.on_lock:
            self.on_lock.pop()()
        self._batch_topics = read_batch_topics(self.file_system, root)
        store = self._store = DefaultMessageStore(clock, self.file_system, config, root, self._is_batch)
        self._recover(store, kept)
        file_system = store.file_system  # rule F6 (a failed sync is final) holds for all later writes
        topics = self._topics = load_topics(file_system, root, self.broker, clock, store)
        store.compaction.load(topics.compacted())
        topics.on_change(lambda: store.compaction.follow(topics.compacted()))
        timers = Timers(clock, file_system, entropy, config, store, topics, self.broker.broker_name)
        retention = Retention(clock, file_system, store, topics, timers.pending(), timers.schedule)
        retention.load()
        timers.load()
        watch = LockWatch(lock, root, self._give_up)
        if self.read_only and lock.check() is LockState.LOST:
            raise StoreLockedError(root, "a process that has opened it in the meantime")
        if parts.services:
            running = self._scheduler = parts.scheduler or ThreadScheduler()
            store.start(running, os.getpid())
            if not self.read_only:  # a read-only store deletes and delivers nothing
                running.every("StoreLockService", LOCK_CHECK_MS, watch.step)
                retention.start(running)
                timers.start(running)
        return OpenStore(
            root=root, store=store, topics=topics, retention=retention, timers=timers, lock=lock, lock_watch=watch,
            file_system=file_system, clock=clock, entropy=entropy, scheduler=self._scheduler,
            read_only=self.read_only)

    def _recover(self, store: DefaultMessageStore, kept: DirectoryFormat) -> None:
        file_system, root, parts = store.file_system, self.root, self.parts
        follower = KnownTopics(file_system, root, self.broker) if self.follows and not self.read_only else None
        options = RecoveryOptions(
            last_exit_ok=not self.file_system.exists(f"{root}/{filenames.ABORT}"), read_only=self.read_only,
            rebuild=parts.rebuild, seal_damage=parts.seal_damage, tell=parts.on_recovery, walk=parts.walk,
            until=self.until, follower=follower)
        store.check_mode(options)
        if follower is not None:
            store.reput.follow(follower)
        write_abort(file_system, root)
        if is_new := not has_log(file_system, root, store.config):
            write_format(file_system, root, kept, store.config)  # a reader that sees a log must see its sizes
        make_log_directories(file_system, root, store.config)
        store.load(options)
        if not is_new:  # only an open that succeeds changes the settings
            write_format(file_system, root, kept, store.config)

    def _is_batch(self, topic: str) -> bool:
        """Return True if new queues of a topic are batch queues; before the topics are loaded, by their file."""
        return topic in self._batch_topics if self._topics is None else self._topics.has_batch_queues(topic)

    def _give_up(self, reason: str) -> None:
        """Write nothing any more, and end the services that write."""
        if self._store is not None:
            self._store.give_up(reason)
        if self._scheduler is not None:
            self._scheduler.stop_all()
