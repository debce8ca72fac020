"""Move the files of a stopped slave aside, so that its next start copies the whole log: ``tailrace replica reset``.

Nothing is deleted. Users and their permissions stay, because a master of RocketMQ sends none. Order: everything else
first, the CommitLog last. After a kill in between the log is still there and the next start rebuilds the rest from it,
or the command runs again. Files of a log in other directories (storePathCommitLog) go to a new directory in each of
them, because these may be other disks; the last file of the log is moved first, so that the rest is always a log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tailrace.config import StoreConfig
from tailrace.env.filesystem import FileSystem
from tailrace.env.whole_files import is_directory
from tailrace.errors import NotAStoreError, StoreError
from tailrace.formats import filenames
from tailrace.node.directory_opening import has_log
from tailrace.node.lock import lock_store
from tailrace.store.directory_format import read_format, remembered
from tailrace.store.log_paths import log_paths, segment_files

__all__ = ["reset_slave"]

_NAMED_MAX: Final = 5
_USERS: Final = (filenames.USERS, filenames.ACLS)
_STAY: Final = (filenames.LOCK, filenames.CONFIG, filenames.OWN, filenames.COMMITLOG)
_OWN_STAY: Final = tuple(path.partition("/")[2] for path in (filenames.QUARANTINE, filenames.REPLACED))


def reset_slave(file_system: FileSystem, root: str, config: StoreConfig, name: str) -> tuple[str, list[str]]:
    """Move the store at ``root`` into a new directory ``name`` of ``tailrace/replaced``.

    Return the directory and the names that were moved, and the directories of moved files in other places. Raises
    NotAStoreError, StoreLockedError, StoreError for a log in directories that are only read, FatalStorageError, or
    OSError.
    """
    config = remembered(read_format(file_system, root), root, config)
    if not has_log(file_system, root, config):
        raise NotAStoreError(root, "it has no commitlog")
    paths = log_paths(config, root)
    if fixed := [path for _, path in segment_files(file_system, paths.read_only)]:
        raise StoreError(
            f"the log has {len(fixed)} files in directories of readOnlyCommitLogStorePaths, which are never changed: "
            f"move {', '.join(fixed[:_NAMED_MAX])}{' and the others' if len(fixed) > _NAMED_MAX else ''} to another "
            "directory, then run the command again")
    lock = lock_store(file_system, root, read_only=False)
    try:
        return _moved(file_system, root, name, paths.writable)
    finally:
        lock.release()


def _moved(
    file_system: FileSystem, root: str, name: str, log_directories: tuple[str, ...],
) -> tuple[str, list[str]]:
    own, aside = f"{root}/{filenames.OWN}", f"{root}/{filenames.REPLACED}/{name}"
    if file_system.exists(aside):
        raise StoreError(f"{aside} is there already; try again in a second")
    config = f"{root}/{filenames.CONFIG}"
    parts = [
        *(f"{filenames.OWN}/{one}" for one in _names(file_system, own) if one not in _OWN_STAY),
        *(f"{filenames.CONFIG}/{one}" for one in _names(file_system, config) if not one.startswith(_USERS)),
        *(one for one in sorted(file_system.list(root)) if one not in _STAY)]
    for directory in ("", f"/{filenames.OWN}", f"/{filenames.CONFIG}"):
        file_system.makedirs(f"{aside}{directory}")
    for part in parts:
        file_system.rename(f"{root}/{part}", f"{aside}/{part}")
    _sync(file_system, root, aside)  # the other moves are durable before the log moves
    own_log = f"{root}/{filenames.COMMITLOG}"
    others = [path for path in log_directories if path != own_log and segment_files(file_system, (path,))]
    if others:
        _move_files(file_system, (own_log, *others), {
            own_log: f"{aside}/{filenames.COMMITLOG}", **{path: f"{path}/replaced-{name}" for path in others}})
    elif is_directory(file_system, own_log):
        file_system.rename(own_log, f"{aside}/{filenames.COMMITLOG}")
    file_system.makedirs(own_log)  # an empty log, so that the directory stays a store
    _sync(file_system, root, aside)
    return aside, [*parts, filenames.COMMITLOG, *(f"{path}/replaced-{name}" for path in others)]


def _move_files(file_system: FileSystem, directories: tuple[str, ...], targets: Mapping[str, str]) -> None:
    """Move the files of the log to the targets of their directories, the last one first; durable on return."""
    there = tuple(path for path in directories if is_directory(file_system, path))
    for path in there:
        file_system.makedirs(targets[path])
    for _, path in reversed(segment_files(file_system, there)):
        directory, _, name = path.rpartition("/")
        file_system.rename(path, f"{targets[directory]}/{name}")
        file_system.sync_dir(directory)  # in this order also after a power loss
    for path in there:
        file_system.sync_dir(targets[path])


def _names(file_system: FileSystem, directory: str) -> list[str]:
    return sorted(file_system.list(directory)) if is_directory(file_system, directory) else []


def _sync(file_system: FileSystem, root: str, aside: str) -> None:
    for path in (f"{root}/{filenames.REPLACED}", root, aside):
        for directory in ("", f"/{filenames.OWN}", f"/{filenames.CONFIG}"):
            if is_directory(file_system, f"{path}{directory}"):
                file_system.sync_dir(f"{path}{directory}")
