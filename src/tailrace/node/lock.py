"""One writer a directory."""

from __future__ import annotations

from tailrace.env.filesystem import FileSystem, LockHandle
from tailrace.errors import StoreLockedError
from tailrace.formats import filenames
from tailrace.node.directory_opening import not_writable

__all__ = ["lock_store"]


def lock_store(file_system: FileSystem, root: str) -> LockHandle:
    """Take the lock that a Java broker takes, too.

    Raises StoreLockedError, StoreNotWritableError when nothing may be written there, or OSError.
    """
    path = f"{root}/{filenames.LOCK}"
    try:
        handle = file_system.lock(path)
    except OSError as error:
        raise not_writable(error) from error
    if handle is None:
        raise StoreLockedError(root, "another process or another store object of this one")
    return handle
