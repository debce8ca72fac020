"""Files, as something that is passed in: what a call makes durable is part of its contract.

``File.sync_data`` makes the bytes of a file durable, stores through its mapping included.
``FileSystem.sync_dir`` makes names durable. ``rename`` is atomic, and durable only after
``sync_dir``. Blocks are allocated ahead of stores through a mapping, so that a full disk is an
``OSError`` of ``allocate`` and never a signal at a store.

Every file is opened here, so this is the place that refuses what is not a regular file: a directory, a
FIFO, a socket, a device, or a symbolic link to one of them or to nothing. No call waits for a peer of a
FIFO or for a device. Links to regular files and directories are followed.
"""

from __future__ import annotations

import ctypes
import enum
import errno
import fcntl
import mmap
import os
import stat
import struct
from typing import Final, Protocol, final

from tailrace.errors import OddFileError

__all__ = ["DiskUsage", "File", "FileSystem", "FileStat", "LockHandle", "LockState", "OsFileSystem"]


class FileStat(Protocol):
    """What a directory entry is."""

    @property
    def size(self) -> int:
        """Length in bytes."""
        ...

    @property
    def allocated(self) -> int:
        """Bytes of disk that are really taken."""
        ...

    @property
    def mtime_ms(self) -> int:
        """Time of the last change, milliseconds since 1970."""
        ...

    @property
    def is_dir(self) -> bool:
        """Whether it is a directory."""
        ...


class DiskUsage(Protocol):
    """Room of the partition that holds a directory, in bytes."""

    @property
    def total(self) -> int:
        """All of it."""
        ...

    @property
    def free(self) -> int:
        """Not taken by anyone."""
        ...

    @property
    def usable(self) -> int:
        """Of that, what this user may take."""
        ...


class Mapping(Protocol):
    """Bytes of a file in memory."""

    @property
    def view(self) -> memoryview:
        """The bytes; no slice of it may outlive ``close``."""
        ...

    def close(self) -> None:
        """Unmap; raises BufferError while a slice of ``view`` is alive."""
        ...


class File(Protocol):
    """An open file."""

    @property
    def path(self) -> str:
        """Where it is."""
        ...

    def size(self) -> int:
        """Length in bytes."""
        ...

    def pread(self, n: int, pos: int) -> bytes:
        """Up to ``n`` bytes from ``pos``; fewer only at the end of the file."""
        ...

    def pread_cached(self, n: int, pos: int) -> bytes | None:
        """The same without waiting for the disk; None if not all of it is in the page cache."""
        ...

    def pread_into(self, buffer: memoryview, pos: int) -> int:
        """Read into all of ``buffer``; how many bytes, fewer only at the end of the file."""
        ...

    def pwrite(self, data: bytes | bytearray | memoryview, pos: int) -> None:
        """Write all of ``data`` at ``pos``; raises OSError when it could not."""
        ...

    def allocate(self, pos: int, n: int) -> None:
        """Reserve blocks for ``n`` bytes from ``pos``; the length does not shrink."""
        ...

    def truncate(self, size: int) -> None:
        """Make the file ``size`` bytes long; new bytes are zero and take no blocks."""
        ...

    def map(self, size: int, *, writable: bool, private: bool = False) -> Mapping:
        """Map the first ``size`` bytes, shared; of a ``private`` one stores stay in memory."""
        ...

    def data_ranges(self, start: int, until: int) -> list[tuple[int, int]]:
        """Parts of a range, as (start, end), outside of which every byte is zero."""
        ...

    def punch_hole(self, pos: int, n: int) -> None:
        """Give the blocks of a range back; it reads as zero, the length stays."""
        ...

    def sync_data(self) -> None:
        """Make all bytes durable, stores through mappings included."""
        ...

    def close(self) -> None:
        """Close it; a mapping stays valid."""
        ...


class LockState(enum.Enum):
    """What a look at a lock that is held has found."""

    HELD = "held"
    """The name stands for the locked file."""
    MADE_AGAIN = "made again"
    """The name was gone. It stands for a new file now, which is locked."""
    LOST = "lost"
    """The name stands for another file: another process may have it locked, or had."""


class LockHandle(Protocol):
    """A lock that is held."""

    def check(self) -> LockState:
        """Look whether the name still stands for the locked file; make and lock it again if it is gone.

        A lock belongs to a file and not to its name: once somebody removed the name, another process
        can make it and lock it. Raises OSError, and then nothing is known.
        """
        ...

    def release(self) -> None:
        """Give it back."""
        ...


class FileSystem(Protocol):
    """Names and files. Paths are strings; every call may raise OSError."""

    def open(self, path: str, *, writable: bool = False, create: bool = False) -> File:
        """Open a file; ``create`` makes it when it is missing."""
        ...

    def exists(self, path: str) -> bool:
        """Whether the name exists."""
        ...

    def stat(self, path: str) -> FileStat:
        """What the name is."""
        ...

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty when there is no such directory."""
        ...

    def makedirs(self, path: str) -> None:
        """Make a directory and its parents, each durable in its parent."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename atomically, replacing ``new``."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file."""
        ...

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        ...

    def sync_dir(self, path: str) -> None:
        """Make the names in a directory durable."""
        ...

    def lock(self, path: str) -> LockHandle | None:
        """Lock the first byte of a file as a Java broker does (POSIX record lock).

        None when another process or this one holds it. The file is created when missing, and
        holds the four bytes ``lock`` afterwards.
        """
        ...

    def lock_holder(self, path: str) -> int | None:
        """Process id of who holds the lock on a file, None when nobody does."""
        ...

    def disk_usage(self, path: str) -> DiskUsage:
        """Room of the partition of ``path``."""
        ...


_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
"""Flags of Linux' ``fallocate``, which Python has no face for."""


_KINDS: Final = (
    (stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"), (stat.S_ISBLK, "a block device"),
)
_NO_WAIT: Final = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
"""Opening a FIFO or a device must not wait. Regular files do not heed these flags."""


def _odd(path: str, mode: int) -> OddFileError:
    kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "of an unknown type")
    number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
    return OddFileError(path, f"is {kind}, not a regular file", number)


def _dangling(path: str) -> OddFileError | None:
    """The error for a symbolic link to nothing, None for any other name."""
    if not os.path.islink(path) or os.path.exists(path):
        return None
    return OddFileError(path, f"is a symbolic link to {os.readlink(path)}, which does not exist")


def _open_regular(path: str, flags: int) -> int:
    """Open a regular file without waiting; raises OddFileError, which names the path, or OSError."""
    if flags & os.O_CREAT and (odd := _dangling(path)) is not None:
        raise odd  # the file would be created where the link points to
    try:
        fd = os.open(path, flags | _NO_WAIT, 0o644)
    except FileNotFoundError:
        if (odd := _dangling(path)) is not None:
            raise odd from None
        raise
    except OSError as error:
        if error.errno in (errno.EISDIR, errno.ENXIO, errno.ENODEV):  # ENXIO is what a socket says
            raise _odd(path, os.stat(path).st_mode) from None
        raise
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        raise _odd(path, mode)
    return fd


@final
class _OsStat:
    __slots__ = ("allocated", "is_dir", "mtime_ms", "size")

    def __init__(self, result: os.stat_result) -> None:
        self.size = result.st_size
        self.allocated = result.st_blocks * 512
        self.mtime_ms = result.st_mtime_ns // 1_000_000
        self.is_dir = stat.S_ISDIR(result.st_mode)


@final
class _OsDiskUsage:
    __slots__ = ("free", "total", "usable")

    def __init__(self, result: os.statvfs_result) -> None:
        self.total = result.f_blocks * result.f_frsize
        self.free = result.f_bfree * result.f_frsize
        self.usable = result.f_bavail * result.f_frsize


@final
class _OsMapping:
    __slots__ = ("_mmap", "view")

    def __init__(self, fd: int, size: int, *, writable: bool, private: bool) -> None:
        access = mmap.ACCESS_COPY if private else mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        self._mmap = mmap.mmap(fd, size, access=access)
        self.view = memoryview(self._mmap)

    def close(self) -> None:
        self.view.release()
        self._mmap.close()


@final
class _OsFile:
    __slots__ = ("_fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def pread(self, n: int, pos: int) -> bytes:
        data = os.pread(self._fd, n, pos)
        if len(data) == n or not data:
            return data
        parts = [data]  # a read may be cut by a signal or at 2 GiB
        done = len(data)
        while done < n:
            data = os.pread(self._fd, n - done, pos + done)
            if not data:
                break
            parts.append(data)
            done += len(data)
        return b"".join(parts)

    def pread_cached(self, n: int, pos: int) -> bytes | None:
        buffer = bytearray(n)
        try:
            done = os.preadv(self._fd, [buffer], pos, os.RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno not in {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}:
                raise
            return self.pread(n, pos)  # a file system that cannot tell, such as one in memory
        return bytes(buffer) if done == n else None

    def pread_into(self, buffer: memoryview, pos: int) -> int:
        done = 0
        while done < len(buffer):  # a read may be cut by a signal or at 2 GiB
            n = os.preadv(self._fd, [buffer[done:]], pos + done)
            if not n:
                break
            done += n
        return done

    def pwrite(self, data: bytes | bytearray | memoryview, pos: int) -> None:
        try:
            done = os.pwrite(self._fd, data, pos)
            view = memoryview(data)
            while done < len(view):
                done += os.pwrite(self._fd, view[done:], pos + done)
        except OSError as error:
            raise self._named(error) from None

    def _named(self, error: OSError) -> OSError:
        """The same error with the path, which a call on a descriptor does not know."""
        return OSError(error.errno, error.strerror, self.path)

    def allocate(self, pos: int, n: int) -> None:
        try:
            os.posix_fallocate(self._fd, pos, n)
        except OSError as error:
            raise self._named(error) from None

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            raise self._named(error) from None

    def map(self, size: int, *, writable: bool, private: bool = False) -> Mapping:
        return _OsMapping(self._fd, size, writable=writable, private=private)

    def data_ranges(self, start: int, until: int) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        while start < until:
            try:
                low = os.lseek(self._fd, start, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # nothing but a hole up to the end
                    break
                return [*found, (start, until)]  # a file system that cannot tell
            if low >= until:
                break
            high = min(os.lseek(self._fd, low, os.SEEK_HOLE), until)
            found.append((low, high))
            start = high
        return found

    def punch_hole(self, pos: int, n: int) -> None:
        if _libc.fallocate(self._fd, _KEEP_SIZE | _PUNCH_HOLE, pos, n):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), self.path)

    def sync_data(self) -> None:
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            raise self._named(error) from None

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


# A POSIX record lock does not exclude its own process, and closing *any* descriptor of the file
# gives it up: hence this registry, and `lock` is opened nowhere else.
_held: dict[tuple[int, int], int] = {}
_LOCK_TEXT = b"lock"
_FLOCK = struct.Struct("hhqqi4x")
"""``struct flock`` of 64-bit Linux."""


@final
class _OsLock:
    __slots__ = ("_fd", "_key", "_path")

    def __init__(self, path: str, fd: int) -> None:
        self._path = path
        self._hold(fd)

    def _hold(self, fd: int) -> None:
        made = os.fstat(fd)
        self._fd = fd
        self._key = made.st_dev, made.st_ino
        _held[self._key] = os.getpid()

    def check(self) -> LockState:
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return self._make_again()
        return LockState.HELD if (found.st_dev, found.st_ino) == self._key else LockState.LOST

    def _make_again(self) -> LockState:
        """Give the name a new file that is locked before it has the name, so nobody is faster."""
        temporary = f"{self._path}.{os.getpid()}"
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            os.pwrite(fd, _LOCK_TEXT, 0)
            os.link(temporary, self._path)
        except OSError as error:
            os.close(fd)
            if error.errno == errno.EEXIST:
                return LockState.LOST
            raise
        finally:
            os.unlink(temporary)
        _held.pop(self._key, None)
        os.close(self._fd)
        self._hold(fd)
        return LockState.MADE_AGAIN

    def release(self) -> None:
        if self._fd >= 0 and _held.get(self._key) == os.getpid():
            del _held[self._key]
            os.close(self._fd)
            self._fd = -1


@final
class OsFileSystem:
    """The machine's files."""

    __slots__ = ()

    def open(self, path: str, *, writable: bool = False, create: bool = False) -> File:
        """Open a file; ``create`` makes it when it is missing."""
        flags = os.O_RDWR if writable else os.O_RDONLY
        if create:
            flags |= os.O_CREAT
        return _OsFile(path, _open_regular(path, flags))

    def exists(self, path: str) -> bool:
        """Whether the name exists."""
        return os.path.lexists(path)

    def stat(self, path: str) -> FileStat:
        """What the name is; raises OddFileError unless it is a regular file or a directory."""
        try:
            found = os.stat(path)
        except FileNotFoundError:
            if (odd := _dangling(path)) is not None:
                raise odd from None
            raise
        if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
            raise _odd(path, found.st_mode)
        return _OsStat(found)

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty when there is no such directory."""
        try:
            return sorted(os.listdir(path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def makedirs(self, path: str) -> None:
        """Make a directory and its parents, each durable in its parent."""
        missing: list[str] = []
        while path and not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path) or "."
        for name in reversed(missing):
            try:
                os.mkdir(name)
            except FileExistsError:
                if not os.path.isdir(name):
                    raise OddFileError(name, "is not a directory") from None
                continue
            try:
                self.sync_dir(os.path.dirname(name) or ".")
            except OSError:
                os.rmdir(name)  # or the next call would take it for a durable one
                raise

    def rename(self, old: str, new: str) -> None:
        """Rename atomically, replacing ``new``."""
        try:
            os.replace(old, new)
        except IsADirectoryError:
            raise _odd(new, os.stat(new).st_mode) from None

    def remove(self, path: str) -> None:
        """Remove a file."""
        os.unlink(path)

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        os.rmdir(path)

    def sync_dir(self, path: str) -> None:
        """Make the names in a directory durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None
        finally:
            os.close(fd)

    def lock(self, path: str) -> LockHandle | None:
        """Lock the first byte of a file as a Java broker does (POSIX record lock)."""
        try:
            found = os.stat(path)
        except FileNotFoundError:
            pass
        else:
            # Ask the registry before opening: closing a second descriptor would drop our lock.
            if _held.get((found.st_dev, found.st_ino)) == os.getpid():
                return None
        fd = _open_regular(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return None
            raise
        if os.fstat(fd).st_size == 0:
            try:
                os.pwrite(fd, _LOCK_TEXT, 0)
            except OSError:
                pass  # a full disk: what counts is the lock, not what the file says
        return _OsLock(path, fd)

    def lock_holder(self, path: str) -> int | None:
        """Process id of who holds the lock on a file, None when nobody does."""
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return None
        # Opening and closing the file here would give up a lock that this process holds.
        if _held.get((found.st_dev, found.st_ino)) == os.getpid():
            return os.getpid()
        fd = _open_regular(path, os.O_RDONLY)
        try:
            asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
            kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))
        finally:
            os.close(fd)
        return None if kind == fcntl.F_UNLCK else pid

    def disk_usage(self, path: str) -> DiskUsage:
        """Room of the partition of ``path``."""
        return _OsDiskUsage(os.statvfs(path))
