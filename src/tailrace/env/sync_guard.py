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
from tailrace.env.filesystem import File, FileSystem
from tailrace.env.forwarding import ForwardingFile, ForwardingFileSystem
from tailrace.errors import FatalStorageError, LockLostError
from tailrace.logs import get_logger

__all__ = ["SyncGuard"]

_log = get_logger(__name__)
_NOT_TRIED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOENT, errno.ENOTDIR)  # a sync itself may raise ENOMEM
"""Errors of opening a directory to sync it: the sync was not attempted, so nothing is lost."""


@final
class _GuardedFile(ForwardingFile):
    __slots__ = ("_guard",)

    def __init__(self, guard: SyncGuard, file: File) -> None:
        super().__init__(file, guard.before)
        self._guard = guard

    def sync_data(self) -> None:
        self._guard.sync_file(self._file)


@final
class SyncGuard(ForwardingFileSystem):
    """A FileSystem over another one; ``hints`` are endings of the paths that are hints.

    ``on_failure`` gets a sentence when a sync has failed that is not of a hint, before the error is raised.
    """

    def __init__(self, below: FileSystem, hints: tuple[str, ...], on_failure: Callable[[str], None]) -> None:
        super().__init__(below)
        self._on_failure = on_failure
        self.hint_failures = 0
        """Number of failed syncs of hints."""
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

    def before(self, operation: str, path: str) -> None:
        """Raise LockLostError after ``give_up``."""
        lost = self._lost
        if lost is not None:
            raise LockLostError(lost.path, lost.cause)

    # -- the rule

    def sync_file(self, file: File) -> None:
        """Make the bytes of a file durable. Raises FatalStorageError, or OSError for a hint."""
        self.before("sync_data", file.path)
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
        self._promise(path, lambda: self._below.sync_dir(path), _NOT_TRIED)

    def _promise(self, path: str, sync: Callable[[], None], not_tried: tuple[int, ...] = ()) -> None:
        self._refuse(path)
        try:
            sync()
        except OSError as error:
            if error.errno in not_tried:
                raise
            raise self._fail(path, error) from error
        self._refuse(path)  # a sync that failed at the same time may have marked pages of this one clean

    def _refuse(self, path: str) -> None:
        self.before("sync", path)
        first = self._failure
        if first is not None:
            raise FatalStorageError(first.path, first.cause) from first.__cause__

    def _fail(self, path: str, error: OSError) -> FatalStorageError:
        failure = FatalStorageError(path, error.strerror or str(error))
        failure.__cause__ = error
        if self._failure is None:
            self._failure = failure
            events.A_SYNC_FAILED.log(_log, file=path, cause=error)
        self._on_failure(str(failure))
        return failure

    # -- FileSystem

    def open(self, path: str, *, writable: bool = False, create: bool = False, exclusive: bool = False) -> File:
        """Open a file; ``create`` makes it when it is missing, ``exclusive`` only then."""
        if create:
            self.before("open", path)
        file = self._below.open(path, writable=writable, create=create, exclusive=exclusive)
        return _GuardedFile(self, file) if writable else file

    def makedirs(self, path: str) -> None:
        """Make a directory and its parents, each durable in its parent.

        Raises OSError, and FatalStorageError for an input or output error, which may be of a sync.
        """
        try:
            super().makedirs(path)
        except OSError as error:
            if error.errno == errno.EIO:
                raise self._fail(path, error) from error
            raise
