"""Shortage of descriptors or memory: an operation was not tried, and may succeed a moment later.

``open`` fails with EMFILE or ENFILE when the process or the machine has no descriptor left, and a
call fails with ENOMEM when the kernel has no memory for it. No byte of a file is affected, so these
errors are not failures of the storage: the caller keeps its state and retries later. A sync that was
really tried and failed is a failure of the storage, whatever its error number (rule F6).
"""

from __future__ import annotations

import errno
from typing import Final, final

from tailrace import events
from tailrace.env.filesystem import FileSystem
from tailrace.errors import DiskFullError
from tailrace.logs import get_logger

__all__ = ["DirectorySyncs", "is_disk_full", "is_shortage"]

_log = get_logger(__name__)
_SHORTAGE: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))
_DISK_FULL: Final = frozenset((errno.ENOSPC, errno.EDQUOT))


def is_shortage(error: BaseException | None) -> bool:
    """Return True if ``error`` means that descriptors or memory ran out.

    Do not use this for an error of ``sync_data``: a sync that failed is final.
    """
    return isinstance(error, OSError) and error.errno in _SHORTAGE


def is_disk_full(error: BaseException | None) -> bool:
    """Return True if ``error`` means that the disk, or the quota of this user, is full."""
    return isinstance(error, DiskFullError) or (isinstance(error, OSError) and error.errno in _DISK_FULL)


@final
class DirectorySyncs:
    """Syncs directories after a file was removed from them, and remembers syncs that are still owed.

    If a directory cannot be opened because no descriptor is free, it is not synced, and no sync has failed.
    The caller must call `settle` before the next removal, because a later file must not disappear
    from the disk before an earlier one.
    """

    def __init__(self, file_system: FileSystem) -> None:
        self._file_system = file_system
        self._owed: set[str] = set()

    def settle(self) -> None:
        """Sync the directories that are owed.

        Raises OSError while descriptors or memory are short, and what the sync raises.
        """
        for directory in sorted(self._owed):
            self._file_system.sync_dir(directory)
            self._owed.discard(directory)

    def sync(self, directory: str) -> None:
        """Sync a directory, or owe the sync. Raises what the sync raises, see `SyncGuard`."""
        try:
            self._file_system.sync_dir(directory)
        except OSError as error:
            if not is_shortage(error):
                raise
            self._owed.add(directory)
            events.SYNC_OF_A_DIRECTORY_IS_PUT_OFF.log(_log, directory=directory, cause=error)
