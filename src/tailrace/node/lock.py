"""One writer a directory.

The lock belongs to the file that was opened, not to the name ``lock``. If somebody deletes the name while
a store is open, another process can make it anew, lock that file and write to the same CommitLog: two
writers overwrite each other's messages. A Java broker even recovers the directory, which cuts files,
before it looks at the lock. `LockWatch` therefore looks at the name once a second. If the name is gone, it
is made again with a new locked file in one step, so that no process can come in between. If the name
stands for another file, some process has or had the directory: the store takes no more writes for good.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from tailrace.env.filesystem import FileSystem, LockHandle, LockState
from tailrace.errors import StoreLockedError
from tailrace.formats import filenames
from tailrace.logs import get_logger

__all__ = ["LOCK_CHECK_MS", "LockWatch", "lock_store"]

_log = get_logger(__name__)
LOCK_CHECK_MS: Final = 1000


@final
class _NoLock:
    """For a directory in which no lock can be made, and which nobody has locked."""

    def check(self) -> LockState:
        """There is nothing to look at."""
        return LockState.HELD

    def release(self) -> None:
        """There is nothing to give back."""


@final
class LockWatch:
    """Looks whether the lock of an open store still protects it; ``on_lost`` gets the reason if not."""

    def __init__(self, lock: LockHandle, root: str, on_lost: Callable[[str], None]) -> None:
        self.lost = ""
        """Why the store must not be written any more; empty while the lock protects it."""
        self.made_again = 0
        """How often the name was gone."""
        self.stop_services: Callable[[], None] = lambda: None
        """Ends what writes to the directory by itself."""
        self._lock = lock
        self._path = f"{root}/{filenames.LOCK}"
        self._on_lost = on_lost
        self._failed = False

    def step(self) -> None:
        """Look once."""
        if self.lost:
            return
        try:
            state = self._lock.check()
        except OSError as error:
            if not self._failed:
                _log.warning("cannot look at the lock file file=%s cause=%s", self._path, error)
            self._failed = True
            return
        self._failed = False
        if state is LockState.MADE_AGAIN:
            self.made_again += 1
            _log.error("the lock file was deleted while the store is open, it is made again file=%s", self._path)
        elif state is LockState.LOST:
            self.lost = (
                f"{self._path} was replaced while the store was open, so another process may have written "
                "to the directory; end every process that has it open, then start one again")
            _log.critical("the lock file was replaced, the store takes no more writes file=%s", self._path)
            self._on_lost(self.lost)
            self.stop_services()


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
