"""One writer a directory."""

from __future__ import annotations

from tailrace.env.filesystem import FileSystem, LockHandle
from tailrace.errors import StoreLockedError
from tailrace.formats import filenames

__all__ = ["lock_store"]


def lock_store(file_system: FileSystem, root: str) -> LockHandle:
    """Take the lock that a Java broker takes, too; raises StoreLockedError."""
    path = f"{root}/{filenames.LOCK}"
    handle = file_system.lock(path)
    if handle is None:
        raise StoreLockedError(root, "another process or another store object of this one")
    return handle
