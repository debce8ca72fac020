"""A file system over another one, in which chosen operations fail.

An operation is a call that changes something. Operations have numbers, so that a test can let the first, the second,
... operation fail until a run has no further operation. ``read_only`` refuses every change, as a read-only mount does.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self, final

from tailrace.env.filesystem import File, FileSystem, LockHandle
from tailrace.env.forwarding import ForwardingFileSystem

__all__ = ["Fault", "FaultyFileSystem"]

_NO_FAULT: Final = 0


@dataclass(frozen=True, slots=True)
class Fault:
    """Operation ``number`` fails with an errno. With ``for_good`` all later operations also fail.

    With ``path`` only operations on paths that contain it are counted.
    """

    number: int
    error_number: int
    for_good: bool = False
    path: str = ""


@final
class FaultyFileSystem(ForwardingFileSystem):
    """A FileSystem in which ``error_of`` returns the errno with which an operation fails, 0 for success.

    It gets number, name and path of each operation; ``operations`` counts them.
    """

    def __init__(
        self, below: FileSystem, error_of: Callable[[int, str, str], int] | None = None
    ) -> None:
        super().__init__(below)
        self._error_of = error_of
        self._refuses_writing = False
        self.operations = 0

    @classmethod
    def failing(cls, below: FileSystem, fault: Fault) -> Self:
        """Return a file system in which a fault happens."""
        seen = 0

        def error_of(_number: int, _name: str, path: str) -> int:
            nonlocal seen
            if fault.path not in path:
                return _NO_FAULT
            seen += 1
            hit = seen > fault.number if fault.for_good else seen == fault.number + 1
            return fault.error_number if hit else _NO_FAULT

        return cls(below, error_of)

    @classmethod
    def read_only(cls, below: FileSystem) -> Self:
        """Return a file system that refuses every change, and to open a file for writing."""
        made = cls(below, lambda _number, _name, _path: errno.EROFS)
        made._refuses_writing = True
        return made

    def before(self, operation: str, path: str) -> None:
        """Count an operation, or raise its OSError."""
        if operation == "sync_dir" and self._refuses_writing:
            return  # the names of a read-only file system are durable
        number = self.operations
        self.operations += 1
        error_number = self._error_of(number, operation, path) if self._error_of is not None else _NO_FAULT
        if error_number:
            raise OSError(error_number, os.strerror(error_number), path)

    # -- FileSystem

    def open(self, path: str, *, writable: bool = False, create: bool = False, exclusive: bool = False) -> File:
        """Open a file; ``create`` makes it when it is missing, ``exclusive`` only then."""
        if (create and not self._below.exists(path)) or (writable and self._refuses_writing):
            self.before("open", path)
        return super().open(path, writable=writable, create=create, exclusive=exclusive)

    def makedirs(self, path: str) -> None:
        """Make a directory and its parents; an operation if the directory is missing."""
        if not self._below.exists(path):
            self.before("mkdir", path)
        self._below.makedirs(path)

    def lock(self, path: str) -> LockHandle | None:
        """Lock a file, which has to be writable."""
        if self._refuses_writing or not self._below.exists(path):
            self.before("open", path)
        return super().lock(path)
