"""The first steps of an open: is this a store, may we write, what sizes has it."""

from __future__ import annotations

import errno
import logging
import os
from typing import Final

from tailrace.config import StoreConfig
from tailrace.env.filesystem import FileSystem
from tailrace.errors import NotAStoreError
from tailrace.formats import filenames
from tailrace.store.log_paths import log_paths, segment_files

__all__ = ["check_directory", "make_log_directories", "remove_abort", "write_abort"]

_log = logging.getLogger(__name__)
_UNKNOWN_DIRECTORIES: Final = ("batchconsumequeue", "consumequeue_ext")
_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)


def check_directory(
    file_system: FileSystem, root: str, config: StoreConfig, *, create: bool
) -> None:
    """Raises NotAStoreError unless ``root`` is a store, or may become one."""
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
    ):
        raise NotAStoreError(root, "it is not empty and has no commitlog, here or where storePathCommitLog says")
    if not names and not create:
        raise NotAStoreError(root, "it is empty")
    for name in _UNKNOWN_DIRECTORIES:
        if file_system.list(f"{root}/{name}"):
            raise NotAStoreError(root, f"it uses {name}, which is not supported")


def make_log_directories(file_system: FileSystem, root: str, config: StoreConfig) -> None:
    """Make the directories in which CommitLog files are made."""
    for directory in log_paths(config, root).writable:
        file_system.makedirs(directory)


def write_abort(file_system: FileSystem, root: str) -> str:
    """Write the abort file; why the store must be opened read-only, when the disk is full."""
    try:
        file = file_system.open(f"{root}/{filenames.ABORT}", writable=True, create=True)
        try:
            file.truncate(0)
            file.pwrite(str(os.getpid()).encode(), 0)
            file.sync_data()
        finally:
            file.close()
        file_system.sync_dir(root)
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise
        return f"the abort file cannot be written: {error}"
    return ""


def remove_abort(file_system: FileSystem, root: str) -> bool:
    """Remove the abort file after a clean stop; False when it stays, which costs a recovery."""
    try:
        file_system.remove(f"{root}/{filenames.ABORT}")
        file_system.sync_dir(root)
    except OSError as error:
        _log.warning("cannot remove the abort file path=%s cause=%s", root, error)
        return False
    return True
