"""Steps of an open: check the directory, make its directories and the abort file, load its topics."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from tailrace import events
from tailrace.config import BrokerConfig, StoreConfig
from tailrace.env.clock import Clock
from tailrace.env.filesystem import FileSystem
from tailrace.env.permissions import share_command, share_with_group
from tailrace.env.whole_files import is_directory, write_file
from tailrace.errors import (
    DiskFullError,
    FatalStorageError,
    NotAStoreError,
    OddFileError,
    StoreLockedError,
    StoreNotWritableError,
)
from tailrace.formats import filenames
from tailrace.logs import get_logger
from tailrace.node.deletion import complete_deletion
from tailrace.node.foreign_engines import name_rocksdb_configs
from tailrace.node.topic_config import TopicConfig, TopicConfigManager
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.store.log_paths import log_paths, segment_files
from tailrace.store.multi_dispatch import is_lmq, queue_count
from tailrace.store.queue_types import BATCH_CQ, QUEUE_TYPE, check_queue_types

__all__ = [
    "DEFAULT_QUEUES", "ONLY_READ", "check_directory", "has_log", "load_topics", "make_configs", "make_directory",
    "make_log_directories", "remove_abort", "why_read_only", "write_abort",
]

_log = get_logger(__name__)
_UNKNOWN_DIRECTORIES: Final = ("consumequeue_ext",)
_FILES: Final = (
    filenames.ABORT, filenames.CHECKPOINT, filenames.LOCK, filenames.TIMERWHEEL,
    f"{filenames.CONFIG}/{filenames.TIMERCHECK}", f"{filenames.CONFIG}/{filenames.TIMERMETRICS}",
    f"{filenames.CONFIG}/{filenames.TRANSACTIONMETRICS}",
    filenames.FLUSHED, filenames.FORCED_DELETIONS, filenames.FORMAT, f"{filenames.PROGRESS}.0",
    f"{filenames.PROGRESS}.1", filenames.SERVE,
)
DEFAULT_QUEUES: Final = 4
ONLY_READ: Final = "it was opened only to be read; open it without read_only"
_READERS: Final = (
    "this must be able to write; dump, query, verify, serve and Spark read a directory as it is")
_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)
_NOT_WRITTEN: Final = (errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, *_NO_SPACE)


def check_directory(
    file_system: FileSystem, root: str, config: StoreConfig, *, create: bool
) -> None:
    """Raise NotAStoreError unless ``root`` is a store, or with ``create`` may become one.

    Raises OddFileError if a file that a running store writes is a directory, because every write would fail. Other
    odd files, such as a FIFO, are replaced when they are written.
    """
    elsewhere = any(segment_files(file_system, (path,)) for path in log_paths(config, root).all)
    names = [] if not file_system.exists(root) else file_system.list(root)
    if not file_system.exists(root):
        if not create:
            raise NotAStoreError(root, "it does not exist")
        return
    if not file_system.stat(root).is_dir:
        raise NotAStoreError(root, "it is a file")
    if filenames.COMMITLOG not in names and not elsewhere and (
        set(names) - {filenames.LOCK, filenames.ABORT}
    ) and not _never_had_a_message(file_system, root, names):
        raise NotAStoreError(root, "it is not empty and has no commitlog, here or where storePathCommitLog says")
    if not create and not elsewhere and not set(names) - {filenames.LOCK}:
        raise NotAStoreError(root, "it is empty")
    for name in _FILES:
        if is_directory(file_system, f"{root}/{name}"):
            raise OddFileError(f"{root}/{name}", "is a directory, not a regular file", errno.EISDIR)
    for name in _UNKNOWN_DIRECTORIES:
        if file_system.list(f"{root}/{name}"):
            raise NotAStoreError(root, f"it uses {name}, which is not supported")
    check_queue_types(file_system, root)


def _never_had_a_message(file_system: FileSystem, root: str, names: Sequence[str]) -> bool:
    """Return True if Tailrace made this directory and no message was put yet, so the CommitLog may be missing.

    With ``storePathCommitLog`` such a directory has neither ``commitlog`` nor a file of the log elsewhere. If there
    is a queue, an index, a timer file or progress, messages were put; then a missing log is lost, or is on a disk
    that is not mounted.
    """
    if not set(names) <= {filenames.LOCK, filenames.ABORT, filenames.CONFIG, filenames.OWN}:
        return False
    own = {f"{filenames.OWN}/{name}" for name in file_system.list(f"{root}/{filenames.OWN}")}
    is_made = bool(own & {filenames.FORMAT, *filenames.OLD_FORMAT})
    is_begun = filenames.OWN in names and own <= {f"{filenames.FORMAT}.tmp"}  # the open that made it was killed
    return (is_made or is_begun) and not any(name.startswith(filenames.PROGRESS) for name in own)


def make_directory(file_system: FileSystem, path: str, config: StoreConfig) -> None:
    """Make a directory of the store if it is missing; the group may read it if the settings say so, and only then."""
    if is_directory(file_system, path):
        return
    file_system.makedirs(path)
    try:
        share_with_group(path, shared=config.store_group_readable)
    except PermissionError:  # a rule such as RestrictSUIDSGID of systemd forbids the bit setgid
        events.THE_GROUP_CANNOT_READ_NEW_FILES.log(_log, directory=path, command=share_command(path))


def make_log_directories(file_system: FileSystem, root: str, config: StoreConfig) -> None:
    """Make the directories in which CommitLog files are made."""
    for directory in log_paths(config, root).writable:
        make_directory(file_system, directory, config)


def write_abort(file_system: FileSystem, root: str) -> None:
    """Write the abort file. Raises OSError.

    A file that was made and could not be filled, on a full disk, is removed: the last stop was still a clean one.
    """
    path = f"{root}/{filenames.ABORT}"
    was_clean = not file_system.exists(path)
    try:
        write_file(file_system, path, str(os.getpid()).encode())
    except OSError:
        if was_clean:
            with suppress(OSError, FatalStorageError):
                file_system.remove(path)
        raise
    file_system.sync_dir(root)


def remove_abort(file_system: FileSystem, root: str) -> bool:
    """Remove the abort file after a clean stop. Return False if it stays; the next open then recovers."""
    try:
        file_system.remove(f"{root}/{filenames.ABORT}")
        file_system.sync_dir(root)
    except (OSError, FatalStorageError) as error:
        events.CANNOT_REMOVE_THE_ABORT_FILE.log(_log, path=root, cause=error)
        return False
    return True


def why_read_only(error: BaseException, root: str, *, may_be: bool) -> str:
    """Return why a store that could not be opened for writing is read-only, if it ``may_be``; else raise the error."""
    why = _cause_of_read_only(error)
    if why and may_be:
        events.THE_STORE_OPENS_READ_ONLY.log(_log, path=root, cause=why)
        return f"read-only since it was opened: {why}; repair that and open it again"
    if not isinstance(error, StoreLockedError):  # commands then call the server that has the store open
        events.CANNOT_OPEN_THE_STORE.log(_log, path=root, cause=str(error) or type(error).__name__)
    if why:
        raise StoreNotWritableError(f"{why}; {_READERS}") from error
    raise error


def _cause_of_read_only(error: BaseException) -> str:
    """Return what cannot be written if that is why an open has failed, else "".

    A sync that failed with an I/O error does not count, because bytes that can be read may not be on the disk.
    """
    if isinstance(error, DiskFullError):
        return str(error)
    if isinstance(error, FatalStorageError):
        cause = error.__cause__
        is_room = isinstance(cause, OSError) and cause.errno in {*_NO_SPACE, errno.EROFS}
        return str(error) if is_room else ""
    if isinstance(error, OSError) and error.errno in _NOT_WRITTEN:
        return f"{os.fsdecode(error.filename)}: {error.strerror}" if error.filename else str(error)
    return ""


def has_log(file_system: FileSystem, root: str, config: StoreConfig) -> bool:
    """Return True if the store has a CommitLog that can be read, even without records."""
    return file_system.exists(f"{root}/{filenames.COMMITLOG}") or any(
        segment_files(file_system, (path,)) for path in log_paths(config, root).all)


def load_topics(
    file_system: FileSystem, root: str, broker: BrokerConfig, clock: Clock, store: DefaultMessageStore
) -> TopicConfigManager:
    """Return the topics. A topic that has queues and no configuration gets one, with as many queues."""
    in_rocksdb = name_rocksdb_configs(file_system, root)
    topics = TopicConfigManager(
        file_system, f"{root}/{filenames.CONFIG}", broker, clock,
        lmq=store.config.enable_lmq, multi_dispatch=store.config.multi_dispatch)
    topics.was_loaded = topics.load() and "topics" not in in_rocksdb
    topics.mappings.load()
    complete_deletion(file_system, f"{root}/{filenames.CONFIG}", topics)
    _name_lmq_queues(store)
    queues: dict[str, int] = {}
    for topic, queue_id in store.queues.table:
        if topics.table.get(topic) is None and not is_lmq(topic):
            queues[topic] = max(queues.get(topic, 0), queue_id + 1)
    for topic, count in sorted(queues.items()):
        if topics.is_of_broker(topic):
            continue  # only a broker writes its config: a program that stores messages itself has none
        events.A_TOPIC_HAS_QUEUES_AND_NO_CONFIG.log(_log, topic=topic, queues=max(count, DEFAULT_QUEUES))
    make_configs(topics, queues, store.queues.has_batch_queues)
    return topics


def make_configs(
    topics: TopicConfigManager, queues: Mapping[str, int], is_batch: Callable[[str], bool] = lambda _: False
) -> None:
    """Make configs for topics of the directory that have none, with their numbers of queues."""
    made = {
        topic: TopicConfig(
            topic_name=topic, read_queue_nums=max(count, DEFAULT_QUEUES),
            write_queue_nums=max(count, DEFAULT_QUEUES),
            attributes={QUEUE_TYPE: BATCH_CQ} if is_batch(topic) else {})
        for topic, count in queues.items()}
    try:
        if made:
            topics.change(lambda draft: draft.put_all(made))  # no limit: these topics are there
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise
        # Every open finds them in the queues again, so they may be visible before they are durable.
        topics.table.update(made)
        for topic in sorted(made):
            events.THERE_IS_NO_ROOM_FOR_THE_CONFIG_OF_A_TOPIC.log(_log, topic=topic)


def _name_lmq_queues(store: DefaultMessageStore) -> None:
    """Log LMQ settings that have no effect, and LMQ queues that the settings do not serve."""
    config, count = store.config, queue_count(store.queues.table)
    if config.enable_multi_dispatch and not config.enable_lmq:
        events.ENABLEMULTIDISPATCH_DOES_NOTHING_WITHOUT_ENABLELMQ.log(_log, lmq_queues=count)
    elif count and not config.multi_dispatch:
        events.LMQ_QUEUES_ARE_KEPT_AND_GET_NO_NEW_MESSAGES.log(
            _log, lmq_queues=count,
            setting="enableMultiDispatch" if config.enable_lmq else "enableLmq,enableMultiDispatch")
