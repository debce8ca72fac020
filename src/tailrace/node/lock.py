"""The lock of a store directory, which has one writer.

The lock belongs to the file that was opened, not to the name ``lock``. If the name is deleted while a store is
open, another process can create a new file of that name, lock it and write to the same CommitLog: two writers
overwrite each other's messages. A Java broker even recovers the directory, which cuts files, before it checks the
lock. `LockWatch` therefore checks the name once a second. If the name is deleted, it is created again with a new
locked file in one step, so that no process can lock it in between. If the name leads to another file, another
process has or had the directory open: the store refuses all writes from then until it is closed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from tailrace import events
from tailrace.env.filesystem import FileSystem, LockHandle, LockState
from tailrace.formats import filenames
from tailrace.logs import get_logger
from tailrace.node.serve_hint import locked_error

__all__ = ["LOCK_CHECK_MS", "NO_LOCK", "LockWatch", "lock_store"]

_log = get_logger(__name__)
LOCK_CHECK_MS: Final = 1000


@final
class _NoLock:
    """Stands for the lock of a directory that is only read."""

    def check(self) -> LockState:
        """Return HELD: there is no lock file to check."""
        return LockState.HELD

    def release(self) -> None:
        """Do nothing."""


NO_LOCK: Final[LockHandle] = _NoLock()


@final
class LockWatch:
    """Checks that the lock of an open store still protects it; calls ``on_lost`` with the reason if not."""

    def __init__(self, lock: LockHandle, root: str, on_lost: Callable[[str], None]) -> None:
        self.lost = ""
        """Why the store must not be written any more; empty while the lock protects it."""
        self.made_again = 0
        """Number of times that the name was deleted."""
        self._lock = lock
        self._path = f"{root}/{filenames.LOCK}"
        self._on_lost = on_lost
        self._failed = False

    def step(self) -> None:
        """Check the lock once."""
        if self.lost:
            return
        try:
            state = self._lock.check()
        except OSError as error:
            if not self._failed:
                events.CANNOT_LOOK_AT_THE_LOCK_FILE.log(_log, file=self._path, cause=error)
            self._failed = True
            return
        self._failed = False
        if state is LockState.MADE_AGAIN:
            self.made_again += 1
            events.THE_LOCK_FILE_WAS_DELETED_WHILE_THE_STORE_IS_OPEN.log(_log, file=self._path)
        elif state is LockState.LOST:
            self.lost = (
                f"{self._path} was replaced while the store was open, so another process may have written "
                "to the directory; end every process that has it open, then start one again")
            events.THE_LOCK_FILE_WAS_REPLACED.log(_log, file=self._path)
            self._on_lost(self.lost)


def lock_store(file_system: FileSystem, root: str, *, read_only: bool = False) -> LockHandle:
    """Take the lock of the directory; a Java broker takes the same lock.

    With ``read_only`` a directory that cannot be written is opened without a lock, if no process holds the
    lock. Raises StoreLockedError or OSError.
    """
    path = f"{root}/{filenames.LOCK}"
    try:
        handle = file_system.lock(path)
    except OSError:
        if not read_only:
            raise
        handle = None if file_system.lock_holder(path) is not None else NO_LOCK
    if handle is None:
        raise locked_error(file_system, root)
    return handle
