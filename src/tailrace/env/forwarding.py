"""A file system over another one. Every call is passed on, and every change is announced before it is made.

A subclass overrides ``before`` to refuse or count changes, and the calls that it answers in another way.
"""

from __future__ import annotations

from collections.abc import Callable

from tailrace.env.filesystem import DiskUsage, File, FileStat, FileSystem, LockHandle, Mapping

__all__ = ["ForwardingFile", "ForwardingFileSystem"]


class ForwardingFile:
    """An open file over another one. ``before(operation, path)`` is called before each change."""

    __slots__ = ("_before", "_file", "path")

    def __init__(self, file: File, before: Callable[[str, str], None]) -> None:
        self.path = file.path
        self._file = file
        self._before = before

    def size(self) -> int:
        return self._file.size()

    def pread(self, n: int, pos: int) -> bytes:
        return self._file.pread(n, pos)

    def pread_cached(self, n: int, pos: int) -> bytes | None:
        return self._file.pread_cached(n, pos)

    def pread_into(self, buffer: memoryview, pos: int) -> int:
        return self._file.pread_into(buffer, pos)

    def pwrite(self, data: bytes | bytearray | memoryview, pos: int) -> None:
        self._before("pwrite", self.path)
        self._file.pwrite(data, pos)

    def pwrite_with_lock(self, data: memoryview, pos: int) -> None:
        self._before("pwrite", self.path)
        self._file.pwrite_with_lock(data, pos)

    def allocate(self, pos: int, n: int) -> None:
        self._before("allocate", self.path)
        self._file.allocate(pos, n)

    def truncate(self, size: int) -> None:
        self._before("truncate", self.path)
        self._file.truncate(size)

    def map(self, size: int, *, writable: bool, private: bool = False) -> Mapping:
        return self._file.map(size, writable=writable, private=private)

    def data_ranges(self, start: int, until: int) -> list[tuple[int, int]]:
        return self._file.data_ranges(start, until)

    def punch_hole(self, pos: int, n: int) -> None:
        self._before("punch_hole", self.path)
        self._file.punch_hole(pos, n)

    def sync_data(self) -> None:
        self._before("sync_data", self.path)
        self._file.sync_data()

    def close(self) -> None:
        self._file.close()


class ForwardingFileSystem:
    """A FileSystem over another one, see ``FileSystem`` for what each call does."""

    def __init__(self, below: FileSystem) -> None:
        self._below = below

    def before(self, operation: str, path: str) -> None:
        """Called with the name and path of a change before it is made. May raise OSError to refuse it."""

    def open(self, path: str, *, writable: bool = False, create: bool = False, exclusive: bool = False) -> File:
        """Open a file whose changes are announced to ``before``."""
        return ForwardingFile(
            self._below.open(path, writable=writable, create=create, exclusive=exclusive), self.before)

    def exists(self, path: str) -> bool:
        """Return True if the name exists."""
        return self._below.exists(path)

    def stat(self, path: str) -> FileStat:
        """Return size, time and kind of the file or directory."""
        return self._below.stat(path)

    def list(self, path: str) -> list[str]:
        """Return the names in a directory, sorted; [] if the directory does not exist."""
        return self._below.list(path)

    def makedirs(self, path: str) -> None:
        """Make a directory and its missing parents, each durable in its parent."""
        self.before("mkdir", path)
        self._below.makedirs(path)

    def rename(self, old: str, new: str) -> None:
        """Rename atomically, replacing ``new``."""
        self.before("rename", new)
        self._below.rename(old, new)

    def remove(self, path: str) -> None:
        """Remove a file."""
        self.before("remove", path)
        self._below.remove(path)

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        self.before("rmdir", path)
        self._below.rmdir(path)

    def sync_dir(self, path: str) -> None:
        """Make the names in a directory durable."""
        self.before("sync_dir", path)
        self._below.sync_dir(path)

    def lock(self, path: str) -> LockHandle | None:
        """Lock the first byte of a file; None if a process holds the lock."""
        return self._below.lock(path)

    def lock_holder(self, path: str) -> int | None:
        """Return the id of the process that holds the lock on a file, or None if no process does."""
        return self._below.lock_holder(path)

    def disk_usage(self, path: str) -> DiskUsage:
        """Return the room of the partition of ``path``."""
        return self._below.disk_usage(path)
