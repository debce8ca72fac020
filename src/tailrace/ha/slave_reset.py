"""Move the files of a stopped slave aside, so that its next start copies the whole log: ``tailrace replica reset``.

Nothing is deleted. Users and their permissions stay, because a master of RocketMQ sends none. Order: everything else
first, the CommitLog last. After a kill in between the log is still there and the next start rebuilds the rest from it,
or the command runs again.
"""

from __future__ import annotations

from typing import Final

from tailrace.config import StoreConfig
from tailrace.env.filesystem import FileSystem
from tailrace.env.whole_files import is_directory
from tailrace.errors import NotAStoreError, StoreError
from tailrace.formats import filenames
from tailrace.node.directory_opening import has_log
from tailrace.node.lock import lock_store
from tailrace.store.directory_format import read_format, remembered
from tailrace.store.log_paths import log_paths

__all__ = ["reset_slave"]

_USERS: Final = (filenames.USERS, filenames.ACLS)
_STAY: Final = (filenames.LOCK, filenames.CONFIG, filenames.OWN, filenames.COMMITLOG)
_OWN_STAY: Final = tuple(path.partition("/")[2] for path in (filenames.QUARANTINE, filenames.REPLACED))


def reset_slave(file_system: FileSystem, root: str, config: StoreConfig, name: str) -> tuple[str, list[str]]:
    """Move the store at ``root`` into a new directory ``name`` of ``tailrace/replaced``.

    Return the directory and the names that were moved. Raises NotAStoreError, StoreLockedError, StoreError for a log in
    other directories, FatalStorageError, or OSError.
    """
    config = remembered(read_format(file_system, root), root, config)
    if not has_log(file_system, root, config):
        raise NotAStoreError(root, "it has no commitlog")
    if others := [path for path in log_paths(config, root).all if path != f"{root}/{filenames.COMMITLOG}"]:
        raise StoreError(f"the log is in {', '.join(others)} (storePathCommitLog): move these directories and {root} "
                         "away by hand, then start the slave")
    lock = lock_store(file_system, root, read_only=False)
    try:
        return _moved(file_system, root, name)
    finally:
        lock.release()


def _moved(file_system: FileSystem, root: str, name: str) -> tuple[str, list[str]]:
    own, aside = f"{root}/{filenames.OWN}", f"{root}/{filenames.REPLACED}/{name}"
    if file_system.exists(aside):
        raise StoreError(f"{aside} is there already; try again in a second")
    config = f"{root}/{filenames.CONFIG}"
    parts = [
        *(f"{filenames.OWN}/{one}" for one in _names(file_system, own) if one not in _OWN_STAY),
        *(f"{filenames.CONFIG}/{one}" for one in _names(file_system, config) if not one.startswith(_USERS)),
        *(one for one in sorted(file_system.list(root)) if one not in _STAY), filenames.COMMITLOG]
    for directory in ("", f"/{filenames.OWN}", f"/{filenames.CONFIG}"):
        file_system.makedirs(f"{aside}{directory}")
    for place, part in enumerate(parts):
        if place == len(parts) - 1:  # the other moves are durable before the log moves
            _sync(file_system, root, aside)
        file_system.rename(f"{root}/{part}", f"{aside}/{part}")
    file_system.makedirs(f"{root}/{filenames.COMMITLOG}")  # an empty log, so that the directory stays a store
    _sync(file_system, root, aside)
    return aside, parts


def _names(file_system: FileSystem, directory: str) -> list[str]:
    return sorted(file_system.list(directory)) if is_directory(file_system, directory) else []


def _sync(file_system: FileSystem, root: str, aside: str) -> None:
    for path in (f"{root}/{filenames.REPLACED}", root, aside):
        for directory in ("", f"/{filenames.OWN}", f"/{filenames.CONFIG}"):
            if is_directory(file_system, f"{path}{directory}"):
                file_system.sync_dir(f"{path}{directory}")
