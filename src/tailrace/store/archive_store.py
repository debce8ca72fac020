"""Where an archive is: a directory, or a prefix of a bucket of an object store (``object_archive``).

`ArchiveStore` has the few operations that an archive needs. A name is a path below the archive, such as
``_manifests/00000000000000000000.json``; it never begins with a slash.

The two forms differ in how a file gets its name. On a disk a task writes below ``_staging``, and the driver renames
the file. An object cannot be renamed, so a task puts it under its final name, and no reader uses it before a manifest
names it. In both forms the name of a data file has the attempt that wrote it, so that no attempt replaces a file of
another one, and ``_staging/<20 digits>/<attempt>`` exists while an attempt is not finished, so that a later job finds
the files that a kill has left.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol, final

from tailrace.env.filesystem import File, FileSystem, OsFileSystem
from tailrace.env.whole_files import read_if_there, remove_tree, replace_file
from tailrace.errors import ConfigError, StoreError, StoreLockedError
from tailrace.formats.filenames import file_name_to_offset, offset_to_file_name

__all__ = [
    "LOCK", "MANIFESTS", "ROWS", "STAGING", "S3_SCHEME", "ArchiveChangedError", "ArchiveStore", "ArchivedBytes",
    "Attempt", "Head", "Hold", "NewFile", "PosixArchive", "absolute_location", "archive_at", "is_remote",
    "staging_name",
]

MANIFESTS: Final = "_manifests"
ROWS: Final = "rows"
"""The directory with nothing but Parquet files, because some readers take every file of a directory for one."""
STAGING: Final = "_staging"
LOCK: Final = "_lock"
S3_SCHEME: Final = "s3://"


class ArchiveChangedError(StoreError):
    """Another job has written ``name`` in the meantime; nothing of it was replaced."""

    def __init__(self, location: str, name: str) -> None:
        self.location, self.name = location, name
        super().__init__(
            f"{location}: another job has written {name} since this one looked: one job at a time writes an archive, "
            "so stop one of the two")

    def __reduce__(self) -> tuple[type[ArchiveChangedError], tuple[str, str]]:
        return ArchiveChangedError, (self.location, self.name)


class Head(NamedTuple):
    """What is known of a file without reading it.

    ``version`` changes with the content. ``tag`` is the checksum of the content that the server of an object store
    holds (the ETag); it is empty on a disk.
    """

    size: int
    version: str
    tag: str


class Attempt(NamedTuple):
    """An attempt at a segment that was not finished."""

    segment: int
    name: str


class ArchivedBytes(Protocol):
    """A file that is read. Every call may raise OSError."""

    def size(self) -> int:
        """Return the length in bytes."""
        ...

    def pread(self, n: int, pos: int) -> bytes:
        """Return up to ``n`` bytes at ``pos``; fewer only at the end of the file."""
        ...

    def pread_into(self, buffer: memoryview, pos: int) -> int:
        """Fill ``buffer`` with bytes at ``pos``. Return their number; fewer only at the end of the file."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


class NewFile(Protocol):
    """A data file that an attempt writes, from its start to its end."""

    @property
    def name(self) -> str:
        """The name under which it can be read after ``sync_data``, and which ``publish`` takes."""
        ...

    @property
    def tag(self) -> str:
        """The checksum that the server holds, after ``sync_data``; empty on a disk."""
        ...

    def truncate(self, size: int) -> None:
        """Set the length to ``size`` bytes."""
        ...

    def pwrite(self, data: bytes | bytearray | memoryview, pos: int) -> None:
        """Write all of ``data`` at ``pos``."""
        ...

    def sync_data(self) -> None:
        """Make the file durable. Nothing is written afterwards."""
        ...

    def written(self) -> ArchivedBytes:
        """Open what was written, after ``sync_data``.

        A disk gives the bytes of the file. For an object these are the bytes of which the server has confirmed the
        checksum when it stored them, so that they are not downloaded.
        """
        ...

    def close(self) -> None:
        """Close the file."""
        ...


class Hold(Protocol):
    """The right to write an archive."""

    def release(self) -> None:
        """Give the right back."""
        ...


class ArchiveStore(Protocol):
    """The files of an archive. Every call may raise OSError."""

    @property
    def location(self) -> str:
        """The directory, or the URL of the bucket and prefix, for tasks and messages."""
        ...

    @property
    def remote(self) -> bool:
        """True if each call is a request to a server."""
        ...

    def path_of(self, name: str) -> str:
        """Return how messages show a file."""
        ...

    def read(self, name: str) -> tuple[bytes, str] | None:
        """Return a whole file and its version; None if it does not exist."""
        ...

    def open(self, name: str) -> ArchivedBytes:
        """Open a file for reads of ranges. Raises FileNotFoundError."""
        ...

    def head(self, name: str) -> Head | None:
        """Return what is known of a file; None if it does not exist."""
        ...

    def list(self, directory: str) -> list[str]:
        """Return the names directly below a directory, sorted; [] if it does not exist."""
        ...

    def put_new(self, name: str, data: bytes) -> str:
        """Write a whole file that must not exist, atomically and durably. Return its version.

        Raises ArchiveChangedError if it exists with other bytes.
        """
        ...

    def replace(self, name: str, data: bytes, version: str) -> str:
        """Replace a whole file of this version, atomically and durably. Return its new version.

        Raises ArchiveChangedError if it has another version and other bytes.
        """
        ...

    def delete(self, name: str) -> None:
        """Delete a file; nothing happens if it does not exist."""
        ...

    def create(self, name: str, attempt: Attempt) -> NewFile:
        """Create the data file that will have this name."""
        ...

    def publish(self, files: Sequence[tuple[str, str]]) -> None:
        """Give data files, each by its ``NewFile.name``, the name for which they were created, durably."""
        ...

    def left_over(self) -> Sequence[Attempt]:
        """Return the attempts that were not finished and that no job works at any more."""
        ...

    def end_attempts(self, segment: int, name: str = "") -> None:
        """Forget one attempt at a segment, with its files that were not published.

        Without a name forget all attempts of which it is certain that no task works at them any more.
        """
        ...

    def hold(self) -> Hold:
        """Prepare the archive for a job that writes it. Raises StoreLockedError if another one does.

        On an object store nothing is locked: of two jobs that publish the same segment, the server refuses one.
        """
        ...


def staging_name(segment: int, attempt: str = "") -> str:
    """Return the name of the directory of the attempts at a segment, or of one of them."""
    return f"{STAGING}/{offset_to_file_name(segment)}" + (f"/{attempt}" if attempt else "")


@final
class _PosixNew:
    """A data file in the staging directory of its attempt."""

    tag: Final = ""

    def __init__(self, archive: PosixArchive, name: str) -> None:
        self._archive, self.name = archive, name
        self._file: File = archive.file_system.open(archive.path_of(name), writable=True, create=True)
        self.truncate, self.pwrite, self.sync_data = self._file.truncate, self._file.pwrite, self._file.sync_data

    def written(self) -> ArchivedBytes:
        return self._archive.open(self.name)

    def close(self) -> None:
        self._file.close()


@final
class PosixArchive:
    """An archive in a directory; one job holds the lock of its file ``_lock``."""

    remote: Final = False

    def __init__(self, directory: str, file_system: FileSystem | None = None) -> None:
        self.location, self.file_system = directory, file_system or OsFileSystem()

    def path_of(self, name: str) -> str:
        """Return the path of a file."""
        return f"{self.location}/{name}"

    def read(self, name: str) -> tuple[bytes, str] | None:
        """Return a whole file and its version; None if it does not exist."""
        data = read_if_there(self.file_system, self.path_of(name))
        return None if data is None else (data, self._version(name))

    def open(self, name: str) -> ArchivedBytes:
        """Open a file for reads of ranges."""
        return self.file_system.open(self.path_of(name))

    def head(self, name: str) -> Head | None:
        """Return size and version of a file; None if it does not exist."""
        try:
            found = self.file_system.stat(self.path_of(name))
        except (FileNotFoundError, NotADirectoryError):
            return None
        return Head(found.size, f"{found.size}-{found.mtime_ms}", "")

    def list(self, directory: str) -> list[str]:
        """Return the names in a directory, sorted; [] if it does not exist."""
        return self.file_system.list(self.path_of(directory))

    def put_new(self, name: str, data: bytes) -> str:
        """Write a file that must not exist; the lock keeps other jobs out."""
        if self.file_system.exists(self.path_of(name)):
            raise ArchiveChangedError(self.location, name)
        return self._put(name, data)

    def replace(self, name: str, data: bytes, version: str) -> str:
        """Replace a file of this version; the lock keeps other jobs out."""
        if self._version(name) != version:
            raise ArchiveChangedError(self.location, name)
        return self._put(name, data)

    def _put(self, name: str, data: bytes) -> str:
        path = self.path_of(name)
        self.file_system.makedirs(path.rpartition("/")[0])
        replace_file(self.file_system, path, data)
        return self._version(name)

    def _version(self, name: str) -> str:
        found = self.head(name)
        return "" if found is None else found.version

    def delete(self, name: str) -> None:
        """Delete a file durably, and the directory of a segment with its last file."""
        path = self.path_of(name)
        if not self.file_system.exists(path):
            return
        self.file_system.remove(path)
        place = path.rpartition("/")[0]
        if name.startswith(f"{ROWS}/") and not self.file_system.list(place):
            self.file_system.rmdir(place)
        else:
            self.file_system.sync_dir(place)

    def create(self, name: str, attempt: Attempt) -> NewFile:
        """Create a file in the staging directory of an attempt."""
        place = staging_name(attempt.segment, attempt.name)
        self.file_system.makedirs(self.path_of(place))
        return _PosixNew(self, f"{place}/{name.rpartition('/')[2]}")

    def publish(self, files: Sequence[tuple[str, str]]) -> None:
        """Rename files out of staging, durably."""
        places = set()
        for staged, name in files:
            target = self.path_of(name)
            place = target.rpartition("/")[0]
            if place not in places:
                self.file_system.makedirs(place)
                places.add(place)
            self.file_system.rename(self.path_of(staged), target)
        for place in sorted(places):
            self.file_system.sync_dir(place)

    def left_over(self) -> Sequence[Attempt]:
        """Return all attempts in staging: the lock says that no other job works at one."""
        return [
            Attempt(segment, name) for directory in self.list(STAGING)
            if (segment := file_name_to_offset(directory)) is not None
            for name in self.list(f"{STAGING}/{directory}")]

    def end_attempts(self, segment: int, name: str = "") -> None:
        """Remove the staging directory of a segment, or of one attempt at it."""
        remove_tree(self.file_system, self.path_of(staging_name(segment, name)))

    def hold(self) -> Hold:
        """Create the directory, lock it, and finish the move of the days of an older archive."""
        for name in (self.location, self.path_of(MANIFESTS), self.path_of(ROWS)):
            self.file_system.makedirs(name)
        lock = self.file_system.lock(self.path_of(LOCK))
        if lock is None:
            raise StoreLockedError(self.location, "another archive job")
        try:
            self._move_days()
        except BaseException:
            lock.release()
            raise
        return lock

    def _move_days(self) -> None:
        """Move the days of an older archive below ``rows``; after a kill the next job moves the rest.

        A reader looks there first, and then in the older place, so it finds a file before and after its move.
        """
        days = [name for name in self.file_system.list(self.location) if name.startswith("dt=")]
        for day in days:
            self._move(self.path_of(day), self.path_of(f"{ROWS}/{day}"))
        if days:
            self.file_system.sync_dir(self.location)

    def _move(self, source: str, target: str) -> None:
        files = self.file_system
        if not files.stat(source).is_dir:
            files.rename(source, target)
            return
        files.makedirs(target)
        for name in files.list(source):
            self._move(f"{source}/{name}", f"{target}/{name}")
        files.sync_dir(target)
        files.rmdir(source)


def is_remote(location: str) -> bool:
    """Return True if a location is a URL, and not a path. Raises ConfigError for a URL that is not supported."""
    scheme, separator, _ = location.partition("://")
    if not separator or "/" in scheme:
        return False
    if f"{scheme}://" != S3_SCHEME:
        raise ConfigError(f"{location}: an archive is a directory or s3://BUCKET/PREFIX, {scheme}: is not supported")
    return True


def absolute_location(location: str) -> str:
    """Return the absolute path of an archive, or its URL. Raises ConfigError for a URL that is not supported."""
    return location if is_remote(location) else str(Path(location).absolute())


def archive_at(location: str, file_system: FileSystem | None = None, *, hurried: bool = False) -> ArchiveStore:
    """Return the archive at a path, or at a URL ``s3://BUCKET/PREFIX``.

    A ``hurried`` caller repeats what it does soon, so a server that does not answer is an error after seconds. Raises
    ConfigError for a URL that is not supported, MissingPackageError without the package of object stores.
    """
    if not is_remote(location):
        return PosixArchive(location, file_system)
    from tailrace.store.object_archive import object_archive_at  # noqa: PLC0415 - needs obstore

    return object_archive_at(location, hurried=hurried)
