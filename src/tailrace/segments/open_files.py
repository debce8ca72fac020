"""Limits the open descriptors of all segment files of a store."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Final, final

from tailrace import events
from tailrace.env.read_ahead import in_background
from tailrace.logs import get_logger

if TYPE_CHECKING:
    from tailrace.segments.mapped_file import MappedFile

__all__ = ["OpenFiles"]

_log = get_logger(__name__)
_MANY: Final = 16
_THREADS: Final = 8


@final
class OpenFiles:
    """Closes the files that were used longest ago if more than ``limit`` descriptors are open.

    A file opens itself again when it is used. Files without unsynced bytes are closed first. Other files are
    synced through their own descriptors before these are closed, because a new descriptor might not report
    an earlier failed write (F6). Files with a lease or a call in progress, and the last file of the
    CommitLog, are never closed, so these may exceed the limit.
    """

    def __init__(self, limit: int = 512) -> None:
        self.limit = limit
        self.count = 0
        """Number of open descriptors."""
        self._uses = 0
        """Number of uses so far; one that another thread notes at the same moment may be lost."""
        self._used: dict[MappedFile, int] = {}
        self._lock = threading.Lock()
        self._closing = threading.Lock()
        self._look_again = 0
        """Number of open descriptors at which clean files are searched for again while another thread syncs."""
        self._warned = False

    def used(self, file: MappedFile, descriptors: int) -> None:
        """Note a use of ``file``, which has ``descriptors`` open. Close other files if the limit is exceeded."""
        self._uses += 1
        file.used_at = self._uses
        if self.count <= self.limit and self._used.get(file) == descriptors:
            return
        with self._lock:
            self.count += descriptors - self._used.get(file, 0)
            self._used[file] = descriptors
            if self.count <= self.limit:
                return
        # One thread is enough to sync, and the sync of a file that is closed must not close another one.
        if self._closing.acquire(blocking=False):
            try:
                self._close_idle(file)
            finally:
                self._look_again = 0
                self._closing.release()
        elif self.count >= self._look_again:  # readers open files while another thread syncs, which takes long
            self._close_clean(file)
            self._look_again = self.count + self.limit // 8 + 1

    def _close_clean(self, user: MappedFile) -> list[MappedFile]:
        """Close files that need no sync. Return all files except ``user``, used longest ago first."""
        until = self.limit - self.limit // 8  # close several at a time, because each search lists all files
        with self._lock:
            files = sorted((file for file in self._used if file is not user), key=lambda file: file.used_at)
        for file in files:
            if self.count <= until:
                break
            file.give_up_descriptors()
        return files

    def _close_idle(self, user: MappedFile) -> None:
        files = self._close_clean(user)
        if self.count > self.limit:
            self._close_unsynced([file for file in files if file.may_be_closed][: max(self.limit // 4, 1)])

    def _close_unsynced(self, files: list[MappedFile]) -> None:
        """Sync and close files, many of them in several threads: a file system commits such syncs together."""
        if files and not self._warned:
            self._warned = True
            events.FILES_ARE_SYNCED_EARLY_TO_CLOSE_THEM.log(_log, limit=self.limit, files=len(files))

        def close(part: list[MappedFile]) -> None:
            for file in part:
                file.sync_and_give_up_descriptors()

        threads = _THREADS if len(files) >= _MANY else 1
        waits = [in_background(partial(close, files[n::threads])) for n in range(1, threads)]
        close(files[::threads])
        for wait in waits:
            wait()

    def forget(self, file: MappedFile) -> None:
        """Remove a file that has no open descriptor any more."""
        with self._lock:
            self.count -= self._used.pop(file, 0)
