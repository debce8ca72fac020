"""The archive below a prefix of a bucket.

Nothing is locked. Two jobs are safe because every name has one writer: a data file has the name of its attempt,
and the server takes one manifest of a segment (``If-None-Match``), or one replacement of a manifest (``If-Match``).
The job that is refused removes its own files.

An attempt that a kill has ended leaves its mark in ``_staging`` and files that no manifest names. A later job removes
them once the mark is a day old by the server's clock. A job that still works at an attempt after half of that time
publishes nothing, so no file is removed that a manifest may still name.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, final

from tailrace.env.entropy import SystemEntropy
from tailrace.env.object_store import (
    ObjectRefusedError,
    ObjectStore,
    ObjectStoreError,
    Place,
    Timeouts,
    place_of,
)
from tailrace.errors import ConfigError
from tailrace.formats.filenames import file_name_to_offset
from tailrace.store.archive_store import (
    STAGING,
    ArchiveChangedError,
    ArchivedBytes,
    Attempt,
    Head,
    Hold,
    NewFile,
    staging_name,
)

__all__ = ["LEFT_OVER_MS", "NewObject", "ObjectArchive", "ObjectBytes", "object_archive_at"]

LEFT_OVER_MS: Final = 24 * 3600_000
"""Age of an attempt, by the server's clock, after which no job works at it any more."""
_CHECK: Final = "check-"
_HURRIED_MS: Final = 5_000
_HURRIED: Final = Timeouts(connect_ms=2_000, small_ms=5_000, data_ms=30_000)


@final
class _InMemory:
    """Bytes that the server has confirmed."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    def size(self) -> int:
        return len(self._data)

    def pread(self, n: int, pos: int) -> bytes:
        return bytes(self._data[pos : pos + n])

    def pread_into(self, buffer: memoryview, pos: int) -> int:
        found = self._data[pos : pos + len(buffer)]
        buffer[: len(found)] = found
        return len(found)

    def close(self) -> None:
        """Do nothing; the bytes end with the object."""


@final
class ObjectBytes:
    """An object that is read by ranges."""

    def __init__(self, store: ObjectStore, key: str, size: int) -> None:
        self._store, self._key, self._size = store, key, size

    def size(self) -> int:
        """Return the length in bytes."""
        return self._size

    def pread(self, n: int, pos: int) -> bytes:
        """Return up to ``n`` bytes at ``pos``."""
        return bytes(self._store.get_range(self._key, pos, min(n, self._size - pos)))

    def pread_into(self, buffer: memoryview, pos: int) -> int:
        """Fill ``buffer`` with bytes at ``pos``; return their number."""
        found = self._store.get_range(self._key, pos, min(len(buffer), self._size - pos))
        buffer[: len(found)] = found
        return len(found)

    def close(self) -> None:
        """Do nothing; no connection is kept for an object."""


@final
class NewObject:
    """A data file in memory until it is complete; then one request stores it."""

    def __init__(self, store: ObjectStore, key: str) -> None:
        self._store, self.name, self.tag = store, key, ""
        self._data = bytearray()
        self._whole = b""

    def truncate(self, size: int) -> None:
        """Cut the bytes that wait."""
        del self._data[size:]

    def pwrite(self, data: bytes | bytearray | memoryview, pos: int) -> None:
        """Add bytes to the end."""
        assert pos == len(self._data), "a data file is written from its start to its end"
        self._data += data

    def sync_data(self) -> None:
        """Store the object."""
        self._whole, self._data = bytes(self._data), bytearray()
        self.tag = self._store.put(self.name, self._whole)

    def written(self) -> ArchivedBytes:
        """Return the bytes, which the server has confirmed."""
        return _InMemory(self._whole)

    def close(self) -> None:
        """Let the bytes go."""
        self._whole, self._data = b"", bytearray()


@final
class _NoHold:
    def release(self) -> None:
        """Do nothing, because nothing is locked."""


@final
class ObjectArchive:
    """An archive in a bucket."""

    remote: Final = True

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._marked: Attempt | None = None
        """The attempt whose mark this process has written last."""
        self.location = store.place.url

    def __reduce__(self) -> tuple[object, tuple[str]]:
        """Tasks open the archive again, with the credentials of their own machine."""
        return object_archive_at, (self.location,)

    def path_of(self, name: str) -> str:
        """Return the URL of an object."""
        return self._store.path_of(name)

    def read(self, name: str) -> tuple[bytes, str] | None:
        """Return an object and its ETag; None if it does not exist."""
        return self._store.get(name)

    def open(self, name: str) -> ArchivedBytes:
        """Open an object for reads of ranges."""
        found = self._store.head(name)
        if found is None:
            raise FileNotFoundError(2, "there is no such object", self.path_of(name))
        return ObjectBytes(self._store, name, found.size)

    def head(self, name: str) -> Head | None:
        """Return size and ETag of an object; None if it does not exist."""
        found = self._store.head(name)
        return None if found is None else Head(found.size, found.tag, found.tag)

    def list(self, directory: str) -> list[str]:
        """Return the names directly below a directory, sorted; [] if it does not exist."""
        return self._store.list(directory)

    def put_new(self, name: str, data: bytes) -> str:
        """Write an object that must be new."""
        return self._put(name, data, "")

    def replace(self, name: str, data: bytes, version: str) -> str:
        """Replace an object that has an ETag."""
        return self._put(name, data, version)

    def _put(self, name: str, data: bytes, version: str) -> str:
        try:
            return self._store.put(name, data, version)
        except ObjectRefusedError as error:
            raise ArchiveChangedError(self.location, name) from error

    def delete(self, name: str) -> None:
        """Delete an object; nothing happens if it does not exist."""
        self._store.delete(name)

    def create(self, name: str, attempt: Attempt) -> NewFile:
        """Create a data file, with the mark of its attempt before its first one."""
        if attempt != self._marked:
            self.put_new(staging_name(attempt.segment, attempt.name), attempt.name.encode())
            self._marked = attempt
        return NewObject(self._store, name)

    def publish(self, files: Sequence[tuple[str, str]]) -> None:
        """Do nothing: data files have their names already."""

    def left_over(self) -> Sequence[Attempt]:
        """Return the attempts whose marks are a day old. Checks that are as old, which a kill has left, are removed."""
        found, there = [], self.list(STAGING)
        now_ms = self._server_ms() if there else 0
        for directory in there:
            segment = file_name_to_offset(directory)
            if segment is None:
                if directory.startswith(_CHECK) and self._is_old(directory, now_ms):
                    self.delete(f"{STAGING}/{directory}")
                continue
            for name in self.list(f"{STAGING}/{directory}"):
                if self._is_old(f"{directory}/{name}", now_ms):
                    found.append(Attempt(segment, name))
        return found

    def _is_old(self, name: str, now_ms: int) -> bool:
        mark = self._store.head(f"{STAGING}/{name}")
        return mark is not None and now_ms - mark.modified_ms >= LEFT_OVER_MS

    def end_attempts(self, segment: int, name: str = "") -> None:
        """Remove the mark of an attempt. Other attempts at the segment may still be running."""
        if name:
            self.delete(staging_name(segment, name))

    def hold(self) -> Hold:
        """Check that the bucket can be written, and that its server refuses a second write of the same name."""
        self.list(STAGING)  # some servers make a bucket that does not exist for a write, but not for a list
        self._server_ms()
        return _NoHold()

    def _server_ms(self) -> int:
        """Write an object for a moment. Return its time, which is the clock of the server.

        Raises ConfigError if the server writes an object although the condition is not true: two jobs would then
        publish over each other.
        """
        name = f"{STAGING}/{_CHECK}{SystemEntropy().u64():016x}"
        self._store.put(name, b"first")
        try:
            found = self._store.head(name)
            try:
                self._store.put(name, b"second")
            except ObjectRefusedError:
                pass
            else:
                raise ConfigError(
                    f"{self.location}: the server ignores If-None-Match and writes over an object that exists, so an "
                    "archive is not safe there")
        finally:
            self._store.delete(name)
        if found is None:
            raise ObjectStoreError(f"{self.path_of(name)} was written, and the server does not find it")
        return found.modified_ms


def object_archive_at(url: str, *, hurried: bool = False) -> ObjectArchive:
    """Return the archive at a URL, see ``place_of``. Raises ConfigError, MissingPackageError."""
    return _archive(place_of(url), hurried, os.getpid())


@lru_cache(maxsize=16)
def _archive(place: Place, hurried: bool, _process: int) -> ObjectArchive:
    """Return the archive of this process: the threads of obstore are not in a forked child."""
    return ObjectArchive(
        ObjectStore(place, patience_ms=_HURRIED_MS, timeouts=_HURRIED) if hurried else ObjectStore(place))
