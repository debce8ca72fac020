"""A file system that keeps every change in the memory of this process and writes nothing to the disk.

Unchanged names and bytes are read from the file system below. A file that is written to becomes a private mapping of
the file below, of which only the changed pages take memory. A new file is memory. All changes are lost when the
object is deleted. A store that must not write is opened on such a file system.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from typing import Final, TypeVar, final

from tailrace.env.filesystem import (
    File,
    FileStat,
    FileSystem,
    LockHandle,
    LockState,
    Mapping,
)
from tailrace.env.forwarding import ForwardingFileSystem

__all__ = ["MemoryMapping", "OverlayFileSystem"]

_LARGE: Final = 1 << 20
"""Size in bytes from which memory is allocated as pages, which take no memory until they are used."""
_CHUNK: Final = 8 << 20
_Value = TypeVar("_Value")


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


@final
class _Stat:
    __slots__ = ("allocated", "is_dir", "mtime_ms", "size")

    def __init__(self, size: int, mtime_ms: int, *, is_dir: bool) -> None:
        self.size = self.allocated = size
        self.mtime_ms = mtime_ms
        self.is_dir = is_dir


@final
class _NotTaken:
    """A lock that is not taken; it keeps no process out."""

    def __init__(self, below: FileSystem, path: str) -> None:
        self._below = below
        self._path = path

    def check(self) -> LockState:
        """Return LOST if a process holds the lock now."""
        return LockState.HELD if self._below.lock_holder(self._path) is None else LockState.LOST

    def release(self) -> None:
        """Do nothing."""


@final
class MemoryMapping:
    """A mapping of a file that is held in memory."""

    __slots__ = ("view",)

    def __init__(self, view: memoryview) -> None:
        self.view = view

    def populate(self, start: int, length: int) -> bool:
        return start + length <= len(self.view)

    def in_memory(self, start: int, length: int) -> bool:
        return start + length <= len(self.view)

    def close(self) -> None:
        self.view.release()


@final
class _Content:
    """The bytes of one file: until the first change those of the file below, then memory."""

    def __init__(self, name: str, below: File | None, mtime_ms: int = 0) -> None:
        self.name = name
        """Its present name, empty after it was removed."""
        self._below = below
        self._memory: bytearray | mmap.mmap | memoryview | None = bytearray() if below is None else None
        self._mapping: Mapping | None = None
        self._resized: tuple[int, int] | None = None
        """(length, remaining bytes of the file below) for a file of which only the length was changed."""
        self._lock = threading.Lock()
        self.mtime_ms = mtime_ms
        self.users = 0
        self.renamed = False

    @property
    def kept(self) -> bool:
        """Return True if the file differs from the file below of the same name, so it must be kept."""
        return self.renamed or self._memory is not None or self._resized is not None

    def size(self) -> int:
        if self._memory is not None:
            return len(self._memory)
        if self._resized is not None:
            return self._resized[0]
        assert self._below is not None
        return self._below.size()

    def read(self, n: int, pos: int) -> bytes:
        memory = self._memory
        if memory is not None:
            return bytes(memory[pos : pos + n])
        assert self._below is not None
        if self._resized is None:
            return self._below.pread(n, pos)
        size, left = self._resized
        return self._below.pread(max(min(n, left - pos), 0), pos).ljust(min(n, max(size - pos, 0)), b"\0")

    def data_ranges(self, start: int, until: int) -> list[tuple[int, int]]:
        if self._memory is None:
            assert self._below is not None
            if self._resized is not None:
                until = min(until, self._resized[1])
            return self._below.data_ranges(start, until) if start < until else []
        until = min(until, len(self._memory))
        return [(start, until)] if start < until else []

    def own(self) -> bytearray | mmap.mmap | memoryview:
        """Return the bytes as memory that may be written to."""
        with self._lock:
            if self._memory is None:
                assert self._below is not None
                size = self.size()
                if self._resized is not None and self._resized[1] < size:
                    self._memory = self._copy(size)
                elif size:
                    self._mapping = self._below.map(size, writable=True, private=True)
                    self._memory = self._mapping.view
                else:
                    self._memory = bytearray()
            return self._memory

    def map_below(self, size: int) -> Mapping | None:
        """Return a read-only mapping of the file below; None if the file was changed.

        The mapping does not show later changes.
        """
        with self._lock:
            if self._below is None or self._memory is not None or (
                self._resized is not None and self._resized[1] < size
            ):
                return None
            return self._below.map(size, writable=False)

    def _copy(self, size: int) -> bytearray | mmap.mmap:
        """Return memory of ``size`` bytes that starts with the bytes of the file."""
        made: bytearray | mmap.mmap = mmap.mmap(-1, size) if size >= _LARGE else bytearray(size)
        for low, high in self.data_ranges(0, min(size, self.size())):
            for at in range(low, high, _CHUNK):
                data = self.read(min(_CHUNK, high - at), at)
                made[at : at + len(data)] = data
        return made

    def resize(self, size: int) -> None:
        with self._lock:
            now = self.size()
            if size == now:
                return
            if self._memory is None:
                left = now if self._resized is None else self._resized[1]
                self._resized = size, min(size, left)
            elif isinstance(self._memory, bytearray) and size < _LARGE:
                if size < now:
                    del self._memory[size:]
                else:
                    self._memory.extend(bytes(size - now))
            else:
                self._memory = self._copy(size)

    def write(self, data: bytes | bytearray | memoryview, pos: int) -> None:
        if pos + len(data) > self.size():
            self.resize(pos + len(data))
        self.own()[pos : pos + len(data)] = data

    def close(self) -> None:
        if self._below is not None:
            self._below.close()

    def __del__(self) -> None:
        self.close()  # a changed file stays open until the overlay is deleted


@final
class _OverlayFile:
    def __init__(self, owner: OverlayFileSystem, path: str, content: _Content) -> None:
        self.path = path
        self._owner = owner
        self._content = content
        self._open = True

    def size(self) -> int:
        return self._content.size()

    def pread(self, n: int, pos: int) -> bytes:
        return self._content.read(n, pos)

    def pread_cached(self, n: int, pos: int) -> bytes | None:
        return self.pread(n, pos)

    def pread_into(self, buffer: memoryview, pos: int) -> int:
        data = self.pread(len(buffer), pos)
        buffer[: len(data)] = data
        return len(data)

    def pwrite(self, data: bytes | bytearray | memoryview, pos: int) -> None:
        self._content.write(data, pos)

    pwrite_with_lock = pwrite

    def allocate(self, pos: int, n: int) -> None:
        if pos + n > self._content.size():
            self._content.resize(pos + n)

    def truncate(self, size: int) -> None:
        self._content.resize(size)

    def map(self, size: int, *, writable: bool, private: bool = False) -> Mapping:
        if private:
            return MemoryMapping(memoryview(bytearray(self._content.read(size, 0))))
        if not writable and (mapping := self._content.map_below(size)) is not None:
            return mapping
        return MemoryMapping(memoryview(self._content.own())[:size])

    def data_ranges(self, start: int, until: int) -> list[tuple[int, int]]:
        return self._content.data_ranges(start, until)

    def punch_hole(self, pos: int, n: int) -> None:
        n = min(n, self._content.size() - pos)
        if n > 0:
            self._content.write(bytes(n), pos)

    def sync_data(self) -> None:
        """Nothing becomes durable here."""

    def close(self) -> None:
        if self._open:
            self._open = False
            self._owner.closed(self._content)


class _Names(dict[str, _Value]):
    """Values by path, and the names in each directory."""

    def __init__(self) -> None:
        super().__init__()
        self._inside: dict[str, set[str]] = {}

    def names_in(self, directory: str) -> set[str]:
        """Return the names of the paths in a directory."""
        return self._inside.get(directory, set())

    def __setitem__(self, path: str, value: _Value) -> None:
        super().__setitem__(path, value)
        directory, _, name = path.rpartition("/")
        self._inside.setdefault(directory, set()).add(name)

    def __delitem__(self, path: str) -> None:
        super().__delitem__(path)
        directory, _, name = path.rpartition("/")
        inside = self._inside[directory]
        inside.discard(name)
        if not inside:
            del self._inside[directory]

    def take(self, path: str) -> _Value | None:
        """Remove a path and return its value, None if it is not there."""
        value = self.get(path)
        if value is not None:
            del self[path]
        return value


@final
class OverlayFileSystem(ForwardingFileSystem):
    """A FileSystem over another one, which it only reads.

    Locks are those below, which makes a missing lock file. With ``takes_locks=False`` nothing below changes: a lock
    is granted unless a process holds it below, and keeps no process out.
    """

    def __init__(self, below: FileSystem, *, takes_locks: bool = True) -> None:
        super().__init__(below)
        self._takes_locks = takes_locks
        self._lock = threading.RLock()
        self._contents = _Names[_Content]()
        """Files that are open or changed, by their present name."""
        self._directories = _Names[bool]()
        self._gone: set[str] = set()
        """Names of the file system below that were removed or replaced."""

    def closed(self, content: _Content) -> None:
        """Forget a file that is not open any more, unless it was changed."""
        with self._lock:
            content.users -= 1
            if content.users or (content.kept and content.name):
                return
            content.close()
            if content.name:
                del self._contents[content.name]

    def _is_below(self, path: str) -> bool:
        return path not in self._gone and self._below.exists(path)

    def _is_dir(self, path: str) -> bool:
        return path in self._directories or (
            path not in self._contents and self._is_below(path) and self._below.stat(path).is_dir)

    def _take(self, path: str, *, create: bool = False) -> _Content:
        """Return the content of a name, with ``create`` a new one if it is missing. Raises FileNotFoundError."""
        content = self._contents.get(path)
        if content is None:
            if self._is_below(path):
                content = _Content(path, self._below.open(path), self._below.stat(path).mtime_ms)
            elif create and self._is_dir(path.rpartition("/")[0] or "/"):
                content = _Content(path, None)
            else:
                raise _error(errno.ENOENT, path)
            self._contents[path] = content
        return content

    def open(self, path: str, *, writable: bool = False, create: bool = False, exclusive: bool = False) -> File:
        """Open a file. With ``create`` make it if it is missing; with ``exclusive`` its name must not exist."""
        with self._lock:
            if create and exclusive and self.exists(path):
                raise _error(errno.EEXIST, path)
            if self._is_dir(path):
                if writable:
                    raise _error(errno.EISDIR, path)
                return self._below.open(path)
            content = self._take(path, create=create)
            content.users += 1
            return _OverlayFile(self, path, content)

    def exists(self, path: str) -> bool:
        """Return True if the name exists."""
        with self._lock:
            return path in self._contents or path in self._directories or self._is_below(path)

    def stat(self, path: str) -> FileStat:
        """Return size, time and kind of the file or directory."""
        with self._lock:
            content = self._contents.get(path)
            if content is not None and content.kept:
                return _Stat(content.size(), content.mtime_ms, is_dir=False)
            if path in self._directories:
                return _Stat(0, 0, is_dir=True)
            if content is None and path in self._gone:
                raise _error(errno.ENOENT, path)
            return self._below.stat(path)

    def list(self, path: str) -> list[str]:
        """Return the names in a directory, sorted; [] if the directory does not exist."""
        prefix = path.rstrip("/") + "/"
        with self._lock:
            names = set() if path in self._gone else {
                name for name in self._below.list(path) if f"{prefix}{name}" not in self._gone}
            directory = path.rstrip("/")
            names |= self._contents.names_in(directory) | self._directories.names_in(directory)
            return sorted(names)

    def makedirs(self, path: str) -> None:
        """Make a directory and its parents."""
        with self._lock:
            while path and path != "/" and not self._is_dir(path):
                self._directories[path] = True
                path = path.rpartition("/")[0]

    def rename(self, old: str, new: str) -> None:
        """Rename atomically, replacing ``new``."""
        with self._lock:
            if not self._is_dir(new.rpartition("/")[0] or "/"):
                raise _error(errno.ENOENT, new)
            content = self._take(old)
            content.renamed = True
            del self._contents[old]
            self._forget(new)
            self._contents[new] = content
            content.name = new
            self._gone |= {old, new}

    def remove(self, path: str) -> None:
        """Remove a file."""
        with self._lock:
            if not self.exists(path):
                raise _error(errno.ENOENT, path)
            self._forget(path)
            self._gone.add(path)

    def _forget(self, path: str) -> None:
        content = self._contents.take(path)
        if content is None:
            return
        content.name = ""
        if not content.users:
            content.close()

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        with self._lock:
            if not self._is_dir(path):
                raise _error(errno.ENOENT, path)
            if self.list(path):
                raise _error(errno.ENOTEMPTY, path)
            self._directories.take(path)
            self._gone.add(path)

    def sync_dir(self, path: str) -> None:
        """Nothing becomes durable here."""
        if not self._is_dir(path):
            raise _error(errno.ENOENT, path)

    def lock(self, path: str) -> LockHandle | None:
        """Lock a file of the file system below. Raises OSError if that file system cannot be written."""
        if self._takes_locks:
            return super().lock(path)
        lock = _NotTaken(self._below, path)
        return lock if lock.check() is LockState.HELD else None
