"""Files, passed to the code that needs them. The contract of each call says what it makes durable.

``File.sync_data`` makes the bytes of a file durable, including stores through its mapping.
``FileSystem.sync_dir`` makes names durable. ``rename`` is atomic, and durable only after ``sync_dir``. Blocks
are allocated before stores through a mapping, so a full disk is an ``OSError`` of ``allocate`` and not a
signal at a store.

All files are opened here, and only regular files: a directory, a FIFO, a socket, a device, or a symbolic link
to one of them or to nothing is refused. No call waits for the other side of a FIFO or for a device. Links to
regular files and directories are followed. Only the owner may read what is made here, or the group as well in a
directory that is shared with it, see `tailrace.env.permissions`.
"""

from __future__ import annotations

import enum
import errno
import fcntl
import mmap
import os
import stat
import struct
from collections.abc import Callable
from typing import Final, Protocol, TypeVar, final

from tailrace.env import linux_calls, permissions
from tailrace.errors import OddFileError

__all__ = ["DiskUsage", "File", "FileSystem", "FileStat", "LockHandle", "LockState", "OsFileSystem"]
_Result = TypeVar("_Result")


class FileStat(Protocol):
    """Size, time of change and kind of a file or directory."""

    @property
    def size(self) -> int:
        """Length in bytes."""
        ...

    @property
    def allocated(self) -> int:
        """Bytes of disk that the file occupies."""
        ...

    @property
    def mtime_ms(self) -> int:
        """Time of the last change, milliseconds since 1970."""
        ...

    @property
    def is_dir(self) -> bool:
        """True for a directory."""
        ...


class DiskUsage(Protocol):
    """Room of the partition of a directory, in bytes."""

    @property
    def total(self) -> int:
        """Size of the partition."""
        ...

    @property
    def free(self) -> int:
        """Bytes that are not in use."""
        ...

    @property
    def usable(self) -> int:
        """Bytes of ``free`` that this user may use."""
        ...


class Mapping(Protocol):
    """Bytes of a file in memory."""

    @property
    def view(self) -> memoryview:
        """The bytes; no slice of it may outlive ``close``."""
        ...

    def populate(self, start: int, length: int) -> bool:
        """Bring pages into memory, so that the next stores there cost no page fault. False: not possible here."""
        ...

    def in_memory(self, start: int, length: int) -> bool:
        """Return True if these bytes are known to be in memory now.

        A load of other bytes waits for the disk, and ends the process with SIGBUS if the disk cannot read them, so
        they are read with ``pread``, which raises OSError instead.
        """
        ...

    def close(self) -> None:
        """Unmap; raises BufferError while a slice of ``view`` is alive."""
        ...


class File(Protocol):
    """An open file."""

    @property
    def path(self) -> str:
        """Path that the file was opened with."""
        ...

    def size(self) -> int:
        """Return the length in bytes."""
        ...

    def pread(self, n: int, pos: int) -> bytes:
        """Return up to ``n`` bytes at ``pos``; fewer only at the end of the file."""
        ...

    def pread_cached(self, n: int, pos: int) -> bytes | None:
        """As ``pread``, without waiting for the disk; None if a byte is not in the page cache."""
        ...

    def pread_into(self, buffer: memoryview, pos: int) -> int:
        """Fill ``buffer`` with bytes at ``pos``. Return their number; fewer only at the end of the file."""
        ...

    def pwrite(self, data: bytes | bytearray | memoryview, pos: int) -> None:
        """Write all of ``data`` at ``pos``. Raises OSError."""
        ...

    def pwrite_with_lock(self, data: memoryview, pos: int) -> None:
        """``pwrite`` of a writable buffer that keeps the interpreter's lock, so that no other thread takes it.

        For short writes into new pages, which do not wait for the disk.
        """
        ...

    def allocate(self, pos: int, n: int) -> None:
        """Allocate blocks for ``n`` bytes at ``pos``. The file may become longer, never shorter."""
        ...

    def truncate(self, size: int) -> None:
        """Set the length to ``size`` bytes. New bytes are zero and have no blocks."""
        ...

    def map(self, size: int, *, writable: bool, private: bool = False) -> Mapping:
        """Map the first ``size`` bytes, shared. Stores to a ``private`` mapping stay in memory."""
        ...

    def data_ranges(self, start: int, until: int) -> list[tuple[int, int]]:
        """Return the parts (start, end) of a range that may have data; all other bytes are zero."""
        ...

    def punch_hole(self, pos: int, n: int) -> None:
        """Free the blocks of a range. Its bytes become zero, the length stays."""
        ...

    def sync_data(self) -> None:
        """Make all bytes durable, including stores through mappings."""
        ...

    def close(self) -> None:
        """Close the file; its mappings stay valid."""
        ...


class LockState(enum.Enum):
    """Result of ``LockHandle.check``."""

    HELD = "held"
    """The name leads to the locked file."""
    MADE_AGAIN = "made again"
    """The name was deleted. It now leads to a new file, which is locked."""
    LOST = "lost"
    """The name leads to another file: another process may hold its lock, or may have held it."""


class LockHandle(Protocol):
    """A lock that is held."""

    def check(self) -> LockState:
        """Check that the name still leads to the locked file; create and lock it again if it is deleted.

        A lock belongs to a file and not to its name: once the name is removed, another process can
        create and lock a new file of that name. Raises OSError; the state is then unknown.
        """
        ...

    def release(self) -> None:
        """Release the lock."""
        ...


class FileSystem(Protocol):
    """Names and files. Paths are strings; every call may raise OSError."""

    def open(self, path: str, *, writable: bool = False, create: bool = False, exclusive: bool = False) -> File:
        """Open a file. With ``create`` make it if it is missing, with ``exclusive`` raise FileExistsError if not."""
        ...

    def exists(self, path: str) -> bool:
        """Return True if the name exists. Raises OSError if that cannot be found out."""
        ...

    def stat(self, path: str) -> FileStat:
        """Return size, time and kind of the file or directory."""
        ...

    def list(self, path: str) -> list[str]:
        """Return the names in a directory, sorted; [] if the directory does not exist."""
        ...

    def makedirs(self, path: str) -> None:
        """Make a directory and its missing parents, each durable in its parent."""
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

        Return None if another process or this one holds the lock. The file is created if it is missing, and
        then has the four bytes ``lock``.
        """
        ...

    def lock_holder(self, path: str) -> int | None:
        """Return the id of the process that holds the lock on a file, or None if no process does."""
        ...

    def disk_usage(self, path: str) -> DiskUsage:
        """Room of the partition of ``path``."""
        ...


_KINDS: Final = (
    (stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"), (stat.S_ISBLK, "a block device"),
)
_NO_WAIT: Final = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
"""Opening a FIFO or a device must not wait. Regular files ignore these flags."""


def _odd(path: str, mode: int) -> OddFileError:
    kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "of an unknown type")
    number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
    return OddFileError(path, f"is {kind}, not a regular file", number)


def _dangling(path: str) -> OddFileError | None:
    """Return the error for a symbolic link to nothing, None for any other name."""
    if not os.path.islink(path) or os.path.exists(path):
        return None
    return OddFileError(path, f"is a symbolic link to {os.readlink(path)}, which does not exist")


def _open_regular(path: str, flags: int) -> int:
    """Open a regular file without waiting. Raises OddFileError, which names the path, or OSError."""
    if flags & os.O_CREAT and (odd := _dangling(path)) is not None:
        raise odd  # the file would be created where the link points to
    try:
        fd = permissions.make_file(path, flags | _NO_WAIT) if flags & os.O_CREAT else os.open(path, flags | _NO_WAIT)
    except FileNotFoundError:
        if (odd := _dangling(path)) is not None:
            raise odd from None
        raise
    except OSError as error:
        if error.errno in (errno.EISDIR, errno.ENXIO, errno.ENODEV):  # ENXIO: a socket
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
    __slots__ = ("_address", "_mmap", "view")

    def __init__(self, fd: int, size: int, *, writable: bool, private: bool) -> None:
        access = mmap.ACCESS_COPY if private else mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        self._mmap = mmap.mmap(fd, size, access=access)
        self.view = memoryview(self._mmap)
        self._address = linux_calls.address_of(self.view)

    def populate(self, start: int, length: int) -> bool:
        return linux_calls.populate(self.view, start, length)

    def in_memory(self, start: int, length: int) -> bool:
        return linux_calls.in_memory(self._address + start, length)

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
        return self._call(os.fstat).st_size

    def pread(self, n: int, pos: int) -> bytes:
        try:
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
        except OSError as error:
            raise self._named(error) from None
        return b"".join(parts)

    def _named(self, error: OSError) -> OSError:
        """Return an error of a call with the descriptor, with the path, which errors of such calls lack."""
        return OSError(error.errno, error.strerror, self.path)

    def pread_cached(self, n: int, pos: int) -> bytes | None:
        buffer = bytearray(n)
        try:
            done = os.preadv(self._fd, [buffer], pos, os.RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno not in {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}:
                raise self._named(error) from None
            return self.pread(n, pos)  # the file system does not support the flag, for example tmpfs
        return bytes(buffer) if done == n else None

    def pread_into(self, buffer: memoryview, pos: int) -> int:
        done = 0
        while done < len(buffer):  # a read may be cut by a signal or at 2 GiB
            n = self._call(os.preadv, [buffer[done:]], pos + done)
            if not n:
                break
            done += n
        return done

    def pwrite(self, data: bytes | bytearray | memoryview, pos: int) -> None:
        self._pwrite(os.pwrite, data, pos)

    def pwrite_with_lock(self, data: memoryview, pos: int) -> None:
        self._pwrite(linux_calls.pwrite_with_lock, data, pos)

    def _pwrite(self, call: Callable[..., int], data: bytes | bytearray | memoryview, pos: int) -> None:
        try:
            done = call(self._fd, data, pos)
            while done < len(data):
                done += call(self._fd, memoryview(data)[done:], pos + done)
        except OSError as error:
            raise self._named(error) from None

    def _call(self, call: Callable[..., _Result], *arguments: object) -> _Result:
        """Call a function with the descriptor. Its errors get the path."""
        try:
            return call(self._fd, *arguments)
        except OSError as error:
            raise self._named(error) from None

    def allocate(self, pos: int, n: int) -> None:
        self._call(os.posix_fallocate, pos, n)

    def truncate(self, size: int) -> None:
        self._call(os.ftruncate, size)

    def map(self, size: int, *, writable: bool, private: bool = False) -> Mapping:
        try:
            return _OsMapping(self._fd, size, writable=writable, private=private)
        except OSError as error:
            raise self._named(error) from None

    def data_ranges(self, start: int, until: int) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        while start < until:
            try:
                low = os.lseek(self._fd, start, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # only a hole up to the end
                    break
                return [*found, (start, until)]  # for example, the file system does not support SEEK_DATA
            if low >= until:
                break
            high = min(os.lseek(self._fd, low, os.SEEK_HOLE), until)
            found.append((low, high))
            start = high
        return found

    def punch_hole(self, pos: int, n: int) -> None:
        self._call(linux_calls.punch_hole, pos, n)

    def sync_data(self) -> None:
        self._call(os.fdatasync)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


# A POSIX record lock does not exclude its own process, and closing *any* descriptor of the file releases
# it. So this registry has the locks of this process, and the lock file is opened only here.
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
        """Create a new lock file. It is locked before it gets the name, so no other process can lock it first."""
        temporary = f"{self._path}.{os.getpid()}"
        fd = permissions.make_file(temporary, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
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
    """The files of this machine."""

    __slots__ = ()

    def open(self, path: str, *, writable: bool = False, create: bool = False, exclusive: bool = False) -> File:
        """Open a file. With ``create`` make it if it is missing; with ``exclusive`` its name must not exist."""
        flags = os.O_RDWR if writable else os.O_RDONLY
        if create:
            flags |= os.O_CREAT | (os.O_EXCL if exclusive else 0)
        return _OsFile(path, _open_regular(path, flags))

    def exists(self, path: str) -> bool:
        """Return True if the name exists. Raises OSError if that cannot be found out."""
        try:
            os.lstat(path)  # os.path.lexists takes every error for a name that does not exist
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def stat(self, path: str) -> FileStat:
        """Return size, time and kind. Raises OddFileError unless it is a regular file or a directory."""
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
        """Return the names in a directory, sorted; [] if the directory does not exist."""
        try:
            return sorted(os.listdir(path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    @staticmethod
    def _is_dir(path: str) -> bool:
        """Return True for a directory. Raises OSError if that cannot be found out."""
        try:
            return stat.S_ISDIR(os.stat(path).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def makedirs(self, path: str) -> None:
        """Make a directory and its missing parents, each durable in its parent."""
        missing: list[str] = []
        while path and not self._is_dir(path):
            missing.append(path)
            path = os.path.dirname(path) or "."
        for name in reversed(missing):
            try:
                shared = permissions.is_shared(os.path.dirname(name) or ".")
                os.mkdir(name, permissions.SHARED_DIRECTORY & 0o777 if shared else permissions.DIRECTORY)
            except FileExistsError:
                if not self._is_dir(name):
                    raise OddFileError(name, "is not a directory") from None
                continue
            try:
                if shared:  # the umask may have taken bits; the kernel has set the bit setgid
                    permissions.share_with_group(name)
                self.sync_dir(os.path.dirname(name) or ".")
            except OSError:
                os.rmdir(name)  # otherwise the next call would assume that it is durable
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
            # Check the registry before opening: closing a second descriptor would release the lock of this process.
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
                pass  # a full disk: only the lock matters, not the content of the file
        return _OsLock(path, fd)

    def lock_holder(self, path: str) -> int | None:
        """Return the id of the process that holds the lock on a file, or None if no process does."""
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return None
        # Opening and closing the file here would release a lock that this process holds.
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
