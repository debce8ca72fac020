"""Files in memory that lose what was not synced when the power fails, or fail on request.

Model: bytes are durable after ``sync_data``, names after ``sync_dir``. After a power loss each unsynced 4 KiB page is
there completely, not at all, or up to some 512 byte sector, and any subset of the unsynced names is there. A killed
process loses nothing. A rename is atomic. As in a kernel, a sync that fails marks its pages clean, so a later sync
that succeeds does not write them. Each call that changes something is an operation with a number, so that a test can
crash at every operation, or let one fail. Each call that reads something is a read with a number, so that a test can
let every read fail. A read through a mapping is no call, so no test can let it fail; with ``cold`` no byte of a mapping
counts as in memory, so that such bytes are read by calls.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, final
from zlib import crc32

from tailrace.env.clock import Clock
from tailrace.env.entropy import Entropy
from tailrace.env.filesystem import LockState

__all__ = ["CrashFileSystem", "SimulatedCrash"]

PAGE = 4096
SECTOR = 512


class SimulatedCrash(BaseException):
    """The machine stopped here."""


@final
class _Data:
    __slots__ = ("changed_ms", "durable", "forsaken", "seen", "volatile")

    def __init__(self) -> None:
        self.volatile = bytearray()
        self.durable = b""
        self.forsaken: bytes | None = None
        """Bytes at the time of a failed sync: pages that have not changed since are not synced again."""
        self.seen = -1
        self.changed_ms = 0
        """Time of the last change, as it was when the checksum of the bytes was ``seen``."""

    def sync(self) -> None:
        forsaken, durable = self.forsaken, self.durable
        self.durable = now = bytes(self.volatile)
        if forsaken is None:
            return
        pages = []
        for at in range(0, len(now), PAGE):
            page = now[at : at + PAGE]
            old = durable[at : at + PAGE].ljust(len(page), b"\0")
            pages.append(old if page == forsaken[at : at + PAGE] else page)
        self.durable = b"".join(pages)


@dataclass(slots=True)
class _Stat:
    size: int
    allocated: int
    mtime_ms: int
    is_dir: bool


@dataclass(slots=True)
class _Usage:
    total: int = 1 << 40
    free: int = 1 << 39
    usable: int = 1 << 39


@final
class _Mapping:
    __slots__ = ("_owner", "view")

    def __init__(self, owner: CrashFileSystem, view: memoryview) -> None:
        self.view = view
        self._owner = owner

    def populate(self, start: int, length: int) -> bool:
        return start + length <= len(self.view)

    def in_memory(self, start: int, length: int) -> bool:
        return not self._owner.cold and start + length <= len(self.view)

    def close(self) -> None:
        self.view.release()


@final
class _File:
    def __init__(self, owner: CrashFileSystem, path: str, data: _Data) -> None:
        self.path = path
        self._owner = owner
        self._data = data

    def size(self) -> int:
        self._owner.read("size", self.path)
        return len(self._data.volatile)

    def pread(self, n: int, pos: int) -> bytes:
        self._owner.read("pread", self.path, pos, n)
        if pos < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self.path)
        return bytes(self._data.volatile[pos : pos + n])

    def pread_cached(self, n: int, pos: int) -> bytes | None:
        return self.pread(n, pos)

    def pread_into(self, buffer: memoryview, pos: int) -> int:
        data = self.pread(len(buffer), pos)
        buffer[: len(data)] = data
        return len(data)

    def pwrite(self, data: bytes | bytearray | memoryview, pos: int) -> None:
        self._owner.operation("pwrite", self.path)
        volatile = self._data.volatile
        if pos + len(data) > len(volatile):
            volatile.extend(bytes(pos + len(data) - len(volatile)))
        volatile[pos : pos + len(data)] = data

    pwrite_with_lock = pwrite

    def allocate(self, pos: int, n: int) -> None:
        self._owner.operation("allocate", self.path)
        if pos + n > len(self._data.volatile):
            self.truncate(pos + n)

    def truncate(self, size: int) -> None:
        self._owner.operation("truncate", self.path)
        volatile = self._data.volatile
        if size < len(volatile):
            del volatile[size:]
        else:
            volatile.extend(bytes(size - len(volatile)))

    def map(self, size: int, *, writable: bool, private: bool = False) -> _Mapping:
        self._owner.read("map" if writable else "map to read", self.path)
        assert size == len(self._data.volatile), "maps whole files"
        return _Mapping(
            self._owner, memoryview(bytearray(self._data.volatile) if private else self._data.volatile))

    def data_ranges(self, start: int, until: int) -> list[tuple[int, int]]:
        self._owner.read("data_ranges", self.path)
        size = len(self._data.volatile)
        return [(start, min(until, size))] if start < size else []

    def punch_hole(self, pos: int, n: int) -> None:
        self._owner.operation("punch_hole", self.path)
        n = min(n, len(self._data.volatile) - pos)
        self._data.volatile[pos : pos + n] = bytes(n)

    def sync_data(self) -> None:
        try:
            self._owner.operation("sync_data", self.path)
        except OSError:
            self._data.forsaken = bytes(self._data.volatile)
            raise
        self._data.sync()

    def close(self) -> None:
        pass


@final
class _Lock:
    def __init__(self, owner: CrashFileSystem, path: str) -> None:
        self._owner = owner
        self._path = path

    def check(self) -> LockState:
        self._owner.read("stat", self._path)
        if self._owner.exists(self._path):
            return LockState.HELD
        self._owner.open(self._path, writable=True, create=True)
        return LockState.MADE_AGAIN

    def release(self) -> None:
        self._owner.locked.discard(self._path)


@final
class CrashFileSystem:
    """A FileSystem; ``before`` is called with the number, name and path of each operation.

    It may raise SimulatedCrash, or OSError to make that one operation fail. ``before_read`` is called with the number,
    name and path of each read, and with the position and length of a ``pread``; it may raise OSError.
    """

    def __init__(
        self, before: Callable[[int, str, str], None] | None = None, clock: Clock | None = None
    ) -> None:
        """With a ``clock`` files have times of change, different for every change; otherwise 0."""
        self.before = before
        self.before_read: Callable[[int, str, str, int, int], None] | None = None
        self._clock = clock
        self._last_change_ms = 0
        self.operations = 0
        self.reads = 0
        self.cold = False
        """With True no byte of a mapping counts as in memory."""
        self.locked: set[str] = set()
        self.usage = _Usage()
        """The result of ``disk_usage``; set its fields to fill the disk up."""
        self.mtimes: dict[str, int] = {}
        """Times of last change, ms, that ``stat`` returns for these files in any case."""
        self._files: dict[str, _Data] = {}
        self._directories: set[str] = {"", "/"}
        self._durable_files: dict[str, _Data] = {}

    def operation(self, name: str, path: str) -> None:
        """Count an operation, and let it crash or fail."""
        number = self.operations
        self.operations += 1
        if self.before is not None:
            self.before(number, name, path)

    def read(self, name: str, path: str, pos: int = 0, n: int = 0) -> None:
        """Count a read, and let it fail."""
        number = self.reads
        self.reads += 1
        if self.before_read is not None:
            self.before_read(number, name, path, pos, n)

    # -- after the crash

    def killed(self) -> Self:
        """Return the files that a new process finds after this one was killed: all changes."""
        made = type(self)(clock=self._clock)
        made.cold = self.cold
        made._last_change_ms = self._last_change_ms
        made.mtimes = dict(self.mtimes)
        made._directories = set(self._directories)
        made._durable_files = dict(self._durable_files)
        for path, data in self._files.items():
            made._files[path] = _copy(bytes(data.volatile), data.durable, data)
        made._durable_files = {
            path: made._files.get(path, data) for path, data in self._durable_files.items()
        }
        return made

    def power_lost(self, entropy: Entropy, keep_percent: int) -> Self:
        """Return the files after a power loss that kept about ``keep_percent`` of the unsynced changes."""
        made = type(self)(clock=self._clock)
        made.cold = self.cold
        made._last_change_ms = self._last_change_ms
        made.mtimes = dict(self.mtimes)
        made._directories = set(self._directories)
        names = {
            **self._durable_files,
            **{p: d for p, d in self._files.items()
               if self._durable_files.get(p) is d or entropy.randrange(100) < keep_percent},
        }
        for path, data in names.items():
            if path.rpartition("/")[0] not in self._directories:
                continue  # its directory was removed, which is durable only together with its names
            gone = path not in self._files
            if gone and entropy.randrange(100) < keep_percent:
                continue  # an unsynced removal that did reach the disk
            content = _after_power_loss(data, entropy, keep_percent)
            made._files[path] = made._durable_files[path] = _copy(content, content, data)
        kept = set(made._files)
        for path, data in self._durable_files.items():  # a rename is atomic: never are both names lost
            if path in self._files or path in kept:
                continue
            new = next((name for name, one in self._files.items() if one is data), None)
            if new is not None and (new not in kept or names.get(new) is not data):
                content = _after_power_loss(data, entropy, keep_percent)
                made._files[path] = made._durable_files[path] = _copy(content, content, data)
        return made

    # -- FileSystem

    def open(self, path: str, *, writable: bool = False, create: bool = False, exclusive: bool = False) -> _File:
        """Open a file; ``create`` makes it when it is missing, ``exclusive`` only then."""
        data = self._files.get(path)
        if create and exclusive and self.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        if data is None:
            if path in self._directories:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            if not create or path.rpartition("/")[0] not in self._directories:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            self.operation("create", path)
            data = self._files[path] = _Data()
        else:
            self.read("open", path)
        _ = writable
        return _File(self, path, data)

    def exists(self, path: str) -> bool:
        """Return True if the name exists."""
        self.read("exists", path)
        return path in self._files or path in self._directories

    def stat(self, path: str) -> _Stat:
        """Return size, time and kind of the file or directory."""
        self.read("stat", path)
        if path in self._directories:
            return _Stat(0, 0, 0, is_dir=True)
        if path not in self._files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        data = self._files[path]
        size = len(data.volatile)
        changed_ms = self.mtimes.get(path, self._changed_ms(data))
        return _Stat(size, size, changed_ms, is_dir=False)

    def _changed_ms(self, data: _Data) -> int:
        """Return the time of the last change. Stores through a mapping are not operations, so compare checksums."""
        if self._clock is not None and (seen := crc32(data.volatile)) != data.seen:
            self._last_change_ms = max(self._clock.now_ms(), self._last_change_ms + 1)
            data.seen, data.changed_ms = seen, self._last_change_ms
        return data.changed_ms

    def _names(self, path: str) -> list[str]:
        prefix = path.rstrip("/") + "/"
        names = {
            name[len(prefix) :].partition("/")[0]
            for name in (*self._files, *self._directories) if name.startswith(prefix)
        }
        return sorted(names - {""})

    def paths(self) -> list[str]:
        """Paths of all files, sorted."""
        return sorted(self._files)

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted."""
        self.read("list", path)
        return self._names(path)

    def makedirs(self, path: str) -> None:
        """Make a directory and its parents, durably."""
        parts = path.strip("/").split("/")
        for n in range(1, len(parts) + 1):
            name = "/" + "/".join(parts[:n])
            if name not in self._directories:
                self.operation("mkdir", name)
                self._directories.add(name)

    def rename(self, old: str, new: str) -> None:
        """Rename atomically."""
        if old not in self._files or new.rpartition("/")[0] not in self._directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), old)
        self.operation("rename", new)
        self._files[new] = self._files.pop(old)

    def remove(self, path: str) -> None:
        """Remove a file."""
        if path not in self._files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self.operation("remove", path)
        del self._files[path]

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if self._names(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        self.operation("rmdir", path)
        self._directories.discard(path)

    def sync_dir(self, path: str) -> None:
        """Make the names in a directory durable."""
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self.operation("sync_dir", path)
        prefix = path.rstrip("/") + "/"

        def inside(name: str) -> bool:
            return name.startswith(prefix) and "/" not in name[len(prefix) :]

        kept = {p: d for p, d in self._durable_files.items() if not inside(p)}
        self._durable_files = {**kept, **{p: d for p, d in self._files.items() if inside(p)}}

    def lock(self, path: str) -> _Lock | None:
        """Lock a file."""
        if path in self.locked:
            return None
        self.open(path, writable=True, create=True)
        self.locked.add(path)
        return _Lock(self, path)

    def lock_holder(self, path: str) -> int | None:
        """Return the id of the process that holds a lock, or None."""
        return os.getpid() if path in self.locked else None

    def disk_usage(self, path: str) -> _Usage:
        """A disk that is half full, unless ``usage`` says otherwise."""
        _ = path
        return self.usage


def _copy(volatile: bytes, durable: bytes, data: _Data) -> _Data:
    made = _Data()
    made.seen, made.changed_ms = data.seen, data.changed_ms
    made.volatile = bytearray(volatile)
    made.durable = durable
    return made


def _after_power_loss(data: _Data, entropy: Entropy, keep_percent: int) -> bytes:
    """Return the durable bytes with some of the unsynced pages, or prefixes of them."""
    volatile, durable = bytes(data.volatile), data.durable
    if volatile == durable:
        return durable
    # A length that was not synced may or may not have reached the disk.
    size = len(volatile) if entropy.randrange(100) < keep_percent else len(durable)
    found = bytearray(durable[:size].ljust(size, b"\0"))
    for at in range(0, size, PAGE):
        page = volatile[at : min(at + PAGE, size)]
        if page != found[at : at + PAGE] and entropy.randrange(100) < keep_percent:
            cut = len(page)
            if entropy.randrange(3) == 0:
                cut = min(entropy.randrange(PAGE // SECTOR + 1) * SECTOR, len(page))
            found[at : at + cut] = page[:cut]
    return bytes(found)
