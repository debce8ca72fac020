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
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

from tailrace import events
from tailrace.config import BrokerConfig, RecoveryMode, StoreConfig
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
from tailrace.node.lock import LOCK_CHECK_MS, NO_LOCK, LockWatch, lock_store
from tailrace.node.retention.services import Retention
from tailrace.node.synced_directory import open_synced
from tailrace.node.timers import Timers
from tailrace.node.topic_config import TopicConfigManager
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.store.directory_format import remembered, write_format
from tailrace.store.geometry import recognise
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
    root = os.path.abspath(os.fspath(path))
    file_system = parts.file_system or OsFileSystem()
    config = remembered(file_system, root, config or StoreConfig())
    if read_only:  # a recovery mode refuses to open, not to show
        create, config = False, replace(config, recovery_mode=RecoveryMode.TOLERATE_ANY)
    check_directory(file_system, root, config, create=create)
    is_store = has_log(file_system, root, config)
    to_call = [parts.on_lock] if parts.on_lock is not None else []  # once, even if a second attempt opens read-only
    opening = partial(_Opening, root, config, broker or BrokerConfig(), parts, to_call)
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
class _Opening:
    """One attempt to open a directory."""

    def __init__(
        self, root: str, config: StoreConfig, broker: BrokerConfig, parts: StoreParts,
        on_lock: list[Callable[[], None]], file_system: FileSystem, read_only: str = "", until: int | None = None,
    ) -> None:
        """``file_system`` must be an overlay if ``read_only`` has a reason.

        With ``until`` another process has the directory open: no lock is taken, and the log ends there.
        """
        self._until = until
        self._root, self._config, self._broker, self._parts = root, config, broker, parts
        self._on_lock, self._file_system, self._read_only = on_lock, file_system, read_only
        self._clock, self._entropy = parts.clock or SystemClock(), parts.entropy or SystemEntropy()
        self._store: DefaultMessageStore | None = None
        self._scheduler: Scheduler | None = None

    def run(self) -> OpenStore:
        """Open the directory. After an error everything is closed again."""
        make_directory(self._file_system, self._root, self._config)
        lock = NO_LOCK if self._until is not None else lock_store(
            self._file_system, self._root, read_only=bool(self._read_only))
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
        root, parts, read_only = self._root, self._parts, self._read_only
        config = recognise(self._file_system, root, self._config)  # may refuse; nothing is changed yet
        while self._on_lock:
            self._on_lock.pop()()
        last_exit_ok = not self._file_system.exists(f"{root}/{filenames.ABORT}")
        store = self._store = DefaultMessageStore(self._clock, self._file_system, config, root)
        options = RecoveryOptions(
            last_exit_ok=last_exit_ok, read_only=read_only, rebuild=parts.rebuild, seal_damage=parts.seal_damage,
            tell=parts.on_recovery, walk=parts.walk, until=self._until)
        store.check_mode(options)
        file_system = store.file_system  # rule F6 (a failed sync is final) holds for all later writes
        write_abort(file_system, root)
        make_log_directories(file_system, root, config)
        store.load(options)
        write_format(file_system, root, config)
        topics = load_topics(file_system, root, self._broker, self._clock, store)
        store.queues.is_batch = topics.has_batch_queues
        store.compaction.load(topics.compacted())
        topics.on_change(lambda: store.compaction.follow(topics.compacted()))
        timers = Timers(self._clock, file_system, self._entropy, config, store, topics, self._broker.broker_name)
        retention = Retention(self._clock, file_system, store, topics, timers.pending(), timers.schedule)
        retention.load()
        timers.load()
        watch = LockWatch(lock, root, store.give_up)
        if read_only and lock.check() is LockState.LOST:
            raise StoreLockedError(root, "a process that has opened it in the meantime")
        if parts.services:
            self._start(store, watch, retention, timers)
        return OpenStore(
            root=root, store=store, topics=topics, retention=retention, timers=timers, lock=lock, lock_watch=watch,
            file_system=file_system, clock=self._clock, entropy=self._entropy, scheduler=self._scheduler,
            read_only=read_only)

    def _start(self, store: DefaultMessageStore, watch: LockWatch, retention: Retention, timers: Timers) -> None:
        running = self._scheduler = self._parts.scheduler or ThreadScheduler()
        store.start(running, os.getpid())
        if self._read_only:
            return  # a read-only store deletes and delivers nothing
        watch.stop_services = running.stop_all
        running.every("StoreLockService", LOCK_CHECK_MS, watch.step)
        retention.start(running)
        timers.start(running)
