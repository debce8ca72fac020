"""A bound on open descriptors: all segment files of a store share it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Final, final

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
    """Closes the files that were used longest ago when more than ``limit`` descriptors are open.

    A file opens itself again when it is used. Files without unsynced bytes are closed first. When only
    others are left, they are synced through their own descriptors before these are closed: a later
    descriptor might not report an earlier failed write (F6). Files with a lease or a call in progress
    and the file that the CommitLog grows in are never closed, so they may exceed the limit.
    """

    def __init__(self, limit: int = 512) -> None:
        self.limit = limit
        self.count = 0
        """Descriptors that are open now."""
        self._used: OrderedDict[MappedFile, int] = OrderedDict()
        self._lock = threading.Lock()
        self._closing = threading.Lock()
        self._look_again = 0
        """Number of open descriptors at which a look for clean files is worth it during syncs."""
        self._warned = False

    def used(self, file: MappedFile, descriptors: int) -> None:
        """Note a use of ``file``, which has ``descriptors`` open; close others above the limit."""
        with self._lock:
            self.count += descriptors - self._used.get(file, 0)
            self._used[file] = descriptors
            self._used.move_to_end(file)
            if self.count <= self.limit:
                return
        # One thread is enough to sync, and the sync of a file that is closed must not close another one.
        if self._closing.acquire(blocking=False):
            try:
                self._close_idle(file)
            finally:
                self._look_again = 0
                self._closing.release()
        elif self.count >= self._look_again:  # syncs take long, and readers go on opening files meanwhile
            self._close_clean(file)
            self._look_again = self.count + self.limit // 8 + 1

    def _close_clean(self, user: MappedFile) -> list[MappedFile]:
        """Close files that need no sync; return those that were looked at, used longest ago first."""
        until = self.limit - self.limit // 8  # several at a time: each look costs a list of all
        with self._lock:
            files = [file for file in self._used if file is not user]
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
            _log.warning("files are synced early to close them, raise maxOpenFiles limit=%d files=%d",
                         self.limit, len(files))

        def close(part: list[MappedFile]) -> None:
            for file in part:
                file.sync_and_give_up_descriptors()

        threads = _THREADS if len(files) >= _MANY else 1
        waits = [in_background(partial(close, files[n::threads])) for n in range(1, threads)]
        close(files[::threads])
        for wait in waits:
            wait()

    def forget(self, file: MappedFile) -> None:
        """Drop a file that has no descriptor any more."""
        with self._lock:
            self.count -= self._used.pop(file, 0)
