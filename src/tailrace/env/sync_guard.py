"""Rule F6, enforced in one place: a failed sync is final.

After a failed sync its pages are marked clean in memory but are not on the disk, so a later sync that
succeeds proves nothing. `SyncGuard` wraps the files of one store. It reports the first failed sync to
``on_failure`` and raises FatalStorageError. It refuses every later sync without a system call. So no caller can
acknowledge a message, or write a checkpoint, that a failed sync should have covered.

Files of ``hints`` are an exception: a hint may be old or missing, and its writer always writes all of it again.
A failed sync of a hint is logged and counted, and raises the OSError. A directory is never a hint.

When the directory may belong to another process (``give_up``), every change is refused as well.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final, final

from tailrace import events
from tailrace.env.filesystem import (
    DiskUsage,
    File,
    FileStat,
    FileSystem,
    LockHandle,
    Mapping,
)
from tailrace.errors import FatalStorageError, LockLostError
from tailrace.logs import get_logger

__all__ = ["SyncGuard"]

_log = get_logger(__name__)
_NOT_TRIED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOENT, errno.ENOTDIR)  # a sync itself may raise ENOMEM
"""Errors of opening a directory to sync it: the sync was not attempted, so nothing is lost."""


@final
class _GuardedFile:
    __slots__ = ("_file", "_guard", "path")

    def __init__(self, guard: SyncGuard, file: File) -> None:
        self.path = file.path
        self._guard = guard
        self._file = file

    def size(self) -> int:
        return self._file.size()

    def pread(self, n: int, pos: int) -> bytes:
        return self._file.pread(n, pos)

    def pread_cached(self, n: int, pos: int) -> bytes | None:
        return self._file.pread_cached(n, pos)

    def pread_into(self, buffer: memoryview, pos: int) -> int:
        return self._file.pread_into(buffer, pos)

    def pwrite(self, data: bytes | bytearray | memoryview, pos: int) -> None:
        self._guard.check_ours()
        self._file.pwrite(data, pos)

    def pwrite_with_lock(self, data: memoryview, pos: int) -> None:
        self._guard.check_ours()
        self._file.pwrite_with_lock(data, pos)

    def allocate(self, pos: int, n: int) -> None:
        self._guard.check_ours()
        self._file.allocate(pos, n)

    def truncate(self, size: int) -> None:
        self._guard.check_ours()
        self._file.truncate(size)

    def map(self, size: int, *, writable: bool, private: bool = False) -> Mapping:
        return self._file.map(size, writable=writable, private=private)

    def data_ranges(self, start: int, until: int) -> list[tuple[int, int]]:
        return self._file.data_ranges(start, until)

    def punch_hole(self, pos: int, n: int) -> None:
        self._guard.check_ours()
        self._file.punch_hole(pos, n)

    def sync_data(self) -> None:
        self._guard.sync_file(self._file)

    def close(self) -> None:
        self._file.close()


@final
class SyncGuard:
    """A FileSystem over another one; ``hints`` are endings of the paths that are hints."""

    def __init__(self, inner: FileSystem, hints: tuple[str, ...] = ()) -> None:
        self.on_failure: Callable[[str], None] | None = None
        """Called with a sentence when a sync has failed that is not of a hint, before the error is raised."""
        self.hint_failures = 0
        """Number of failed syncs of hints."""
        self._inner = inner
        self._hints = hints
        self._failure: FatalStorageError | None = None
        self._lost: LockLostError | None = None

    @property
    def failed(self) -> bool:
        """Return True if a sync has failed that was not for a hint, or if every change is refused."""
        return self._failure is not None or self._lost is not None

    def give_up(self, path: str, reason: str) -> None:
        """Refuse every change from now on, because the lock file ``path`` protects nothing any more."""
        self._lost = LockLostError(path, reason)

    def check_ours(self) -> None:
        """Raise LockLostError after ``give_up``."""
        lost = self._lost
        if lost is not None:
            raise LockLostError(lost.path, lost.cause)

    # -- the rule

    def sync_file(self, file: File) -> None:
        """Make the bytes of a file durable. Raises FatalStorageError, or OSError for a hint."""
        self.check_ours()
        if not file.path.endswith(self._hints):
            self._promise(file.path, file.sync_data)
            return
        try:
            file.sync_data()
        except OSError as error:
            self.hint_failures += 1
            events.A_HINT_CANNOT_BE_SYNCED.log(_log, file=file.path, cause=error)
            raise

    def sync_dir(self, path: str) -> None:
        """Make the names in a directory durable. Raises FatalStorageError, or OSError when the
        directory could not be opened.
        """
        self._promise(path, lambda: self._inner.sync_dir(path), _NOT_TRIED)

    def _promise(self, path: str, sync: Callable[[], None], not_tried: tuple[int, ...] = ()) -> None:
        self._refuse()
        try:
            sync()
        except OSError as error:
            if error.errno in not_tried:
                raise
            raise self._fail(path, error) from error
        self._refuse()  # a sync that failed at the same time may have marked pages of this one clean

    def _refuse(self) -> None:
        self.check_ours()
        first = self._failure
        if first is not None:
            raise FatalStorageError(first.path, first.cause) from first.__cause__

    def _fail(self, path: str, error: OSError) -> FatalStorageError:
        failure = FatalStorageError(path, error.strerror or str(error))
        failure.__cause__ = error
        if self._failure is None:
            self._failure = failure
            events.A_SYNC_FAILED.log(_log, file=path, cause=error)
        if self.on_failure is not None:
            self.on_failure(str(failure))
        return failure

    # -- FileSystem

    def open(self, path: str, *, writable: bool = False, create: bool = False, exclusive: bool = False) -> File:
        """Open a file; ``create`` makes it when it is missing, ``exclusive`` only then."""
        if create:
            self.check_ours()
        file = self._inner.open(path, writable=writable, create=create, exclusive=exclusive)
        return _GuardedFile(self, file) if writable else file

    def exists(self, path: str) -> bool:
        """Return True if the name exists."""
        return self._inner.exists(path)

    def stat(self, path: str) -> FileStat:
        """Return size, time and kind of the file or directory."""
        return self._inner.stat(path)

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty when there is no such directory."""
        return self._inner.list(path)

    def makedirs(self, path: str) -> None:
        """Make a directory and its parents, each durable in its parent.

        Raises OSError, and FatalStorageError for an input or output error, which may be of a sync.
        """
        self.check_ours()
        try:
            self._inner.makedirs(path)
        except OSError as error:
            if error.errno == errno.EIO:
                raise self._fail(path, error) from error
            raise

    def rename(self, old: str, new: str) -> None:
        """Rename atomically, replacing ``new``."""
        self.check_ours()
        self._inner.rename(old, new)

    def remove(self, path: str) -> None:
        """Remove a file."""
        self.check_ours()
        self._inner.remove(path)

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        self.check_ours()
        self._inner.rmdir(path)

    def lock(self, path: str) -> LockHandle | None:
        """Lock the first byte of a file."""
        return self._inner.lock(path)

    def lock_holder(self, path: str) -> int | None:
        """Return the id of the process that holds the lock on a file, or None if no process does."""
        return self._inner.lock_holder(path)

    def disk_usage(self, path: str) -> DiskUsage:
        """Room of the partition of ``path``."""
        return self._inner.disk_usage(path)
