"""One writer a directory."""

from __future__ import annotations

from typing import final

from tailrace.env.filesystem import FileSystem, LockHandle
from tailrace.errors import StoreLockedError
from tailrace.formats import filenames

__all__ = ["lock_store"]


@final
class _NoLock:
    """For a directory in which no lock can be made, and which nobody has locked."""

    def release(self) -> None:
        """There is nothing to give back."""


def lock_store(file_system: FileSystem, root: str, *, read_only: bool = False) -> LockHandle:
    """Take the lock that a Java broker takes, too.

    ``read_only`` goes without it where it cannot be written and nobody has it. Raises
    StoreLockedError or OSError.
    """
    path = f"{root}/{filenames.LOCK}"
    try:
        handle = file_system.lock(path)
    except OSError:
        if not read_only:
            raise
        handle = None if file_system.lock_holder(path) is not None else _NoLock()
    if handle is None:
        raise StoreLockedError(root, "another process or another store object of this one")
    return handle
