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

from tailrace.env.filesystem import (
    DiskUsage,
    File,
    FileStat,
    FileSystem,
    LockHandle,
    Mapping,
)

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
class _FaultyFile:
    def __init__(self, owner: FaultyFileSystem, file: File) -> None:
        self.path = file.path
        self._owner = owner
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
        self._owner.operation("pwrite", self.path)
        self._file.pwrite(data, pos)

    def pwrite_with_lock(self, data: memoryview, pos: int) -> None:
        self._owner.operation("pwrite", self.path)
        self._file.pwrite_with_lock(data, pos)

    def allocate(self, pos: int, n: int) -> None:
        self._owner.operation("allocate", self.path)
        self._file.allocate(pos, n)

    def truncate(self, size: int) -> None:
        self._owner.operation("truncate", self.path)
        self._file.truncate(size)

    def map(self, size: int, *, writable: bool, private: bool = False) -> Mapping:
        return self._file.map(size, writable=writable, private=private)

    def data_ranges(self, start: int, until: int) -> list[tuple[int, int]]:
        return self._file.data_ranges(start, until)

    def punch_hole(self, pos: int, n: int) -> None:
        self._owner.operation("punch_hole", self.path)
        self._file.punch_hole(pos, n)

    def sync_data(self) -> None:
        self._owner.operation("sync_data", self.path)
        self._file.sync_data()

    def close(self) -> None:
        self._file.close()


@final
class FaultyFileSystem:
    """A FileSystem in which ``error_of`` returns the errno with which an operation fails, 0 for success.

    It gets number, name and path of each operation; ``operations`` counts them.
    """

    def __init__(
        self, inner: FileSystem, error_of: Callable[[int, str, str], int] | None = None
    ) -> None:
        self._inner = inner
        self._error_of = error_of
        self._refuses_writing = False
        self.operations = 0

    @classmethod
    def failing(cls, inner: FileSystem, fault: Fault) -> Self:
        """Return a file system in which a fault happens."""
        seen = 0

        def error_of(_number: int, _name: str, path: str) -> int:
            nonlocal seen
            if fault.path not in path:
                return _NO_FAULT
            seen += 1
            hit = seen > fault.number if fault.for_good else seen == fault.number + 1
            return fault.error_number if hit else _NO_FAULT

        return cls(inner, error_of)

    @classmethod
    def read_only(cls, inner: FileSystem) -> Self:
        """Return a file system that refuses every change, and to open a file for writing."""
        made = cls(inner, lambda _number, _name, _path: errno.EROFS)
        made._refuses_writing = True
        return made

    def operation(self, name: str, path: str) -> None:
        """Count an operation, or raise its OSError."""
        number = self.operations
        self.operations += 1
        error_number = self._error_of(number, name, path) if self._error_of is not None else _NO_FAULT
        if error_number:
            raise OSError(error_number, os.strerror(error_number), path)

    # -- FileSystem

    def open(self, path: str, *, writable: bool = False, create: bool = False, exclusive: bool = False) -> File:
        """Open a file; ``create`` makes it when it is missing, ``exclusive`` only then."""
        if (create and not self._inner.exists(path)) or (writable and self._refuses_writing):
            self.operation("open", path)
        return _FaultyFile(
            self, self._inner.open(path, writable=writable, create=create, exclusive=exclusive))

    def exists(self, path: str) -> bool:
        """Return True if the name exists."""
        return self._inner.exists(path)

    def stat(self, path: str) -> FileStat:
        """Return size, time and kind of the file or directory."""
        return self._inner.stat(path)

    def list(self, path: str) -> list[str]:
        """Names in a directory."""
        return self._inner.list(path)

    def makedirs(self, path: str) -> None:
        """Make a directory and its parents."""
        if not self._inner.exists(path):
            self.operation("mkdir", path)
        self._inner.makedirs(path)

    def rename(self, old: str, new: str) -> None:
        """Rename atomically."""
        self.operation("rename", new)
        self._inner.rename(old, new)

    def remove(self, path: str) -> None:
        """Remove a file."""
        self.operation("remove", path)
        self._inner.remove(path)

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        self.operation("rmdir", path)
        self._inner.rmdir(path)

    def sync_dir(self, path: str) -> None:
        """Make names durable; on a read-only file system they are."""
        if not self._refuses_writing:
            self.operation("sync_dir", path)
        self._inner.sync_dir(path)

    def lock(self, path: str) -> LockHandle | None:
        """Lock a file, which has to be writable."""
        if self._refuses_writing or not self._inner.exists(path):
            self.operation("open", path)
        return self._inner.lock(path)

    def lock_holder(self, path: str) -> int | None:
        """Return the id of the process that holds a lock, or None."""
        return self._inner.lock_holder(path)

    def disk_usage(self, path: str) -> DiskUsage:
        """Room of the partition."""
        return self._inner.disk_usage(path)
