"""Where the files of tables are: on a disk that every executor sees, or in a bucket of an object store.

A path is that of the disk, or ``s3://BUCKET/KEY``. Catalogues know a file by its URL: ``url_of`` and ``path_of`` are
the inverse of each other. Requests to a bucket are those of archives (``env.object_store``): with the same credentials,
retries and errors. A file in a bucket is one request with the SHA-256 of its bytes, so it is there whole or not at all.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol, final
from urllib.parse import unquote, urlparse

from tailrace.env.filesystem import File, FileSystem
from tailrace.env.object_store import ObjectRefusedError, ObjectStore, Place, place_of
from tailrace.env.whole_files import read_file, replace_file
from tailrace.errors import ConfigError, StoreError
from tailrace.spark.archive.parquet_file import SeekableFile
from tailrace.store.archive_store import S3_SCHEME, ArchivedBytes, NewFile
from tailrace.store.object_archive import NewObject, ObjectBytes

__all__ = [
    "SERVER_OPTIONS", "Reader", "S3Server", "TableFiles", "files_of", "path_of", "server_of", "url_of",
]

_OTHER_NAMES: Final = re.compile("^s3[an]://")
"""Schemes that engines on Hadoop use for the same objects."""
_ODD: Final = re.compile(r"[^A-Za-z0-9._=/+@:,-]")
SERVER_OPTIONS: Final = frozenset({"s3.endpoint", "s3.region", "client.region"})
"""Options of a catalogue that name the server of its buckets."""
_WITHOUT_EFFECT: Final = {"s3.path-style-access": "true", "s3.force-virtual-addressing": "false"}
"""Options of PyIceberg and of the Java library that say what is done anyway."""


class S3Server(NamedTuple):
    """The server of a bucket; ``endpoint`` is empty for Amazon's."""

    endpoint: str
    region: str


def path_of(url: str) -> str | None:
    """Return the path of a URL of a table or of one of its files; None if it is on another kind of store."""
    plain = _OTHER_NAMES.sub(S3_SCHEME, url)
    if plain.startswith(S3_SCHEME):
        return plain
    parsed = urlparse(url)
    if parsed.scheme not in {"", "file"}:
        return None
    return unquote(parsed.path) if parsed.scheme else url


def url_of(path: str) -> str:
    """Return the URL by which a catalogue knows a file."""
    return path if path.startswith(S3_SCHEME) else f"file://{path}"


def server_of(properties: Mapping[str, Any], table: str) -> S3Server:
    """Return the server that a catalogue's options name, or otherwise the variables of AWS.

    Raises ConfigError for an option of a bucket that would have no effect, such as credentials: they come from the
    variables of AWS, as those of archives do.
    """
    for name, value in sorted(properties.items()):
        if name.startswith(("s3.", "client.")) and name not in SERVER_OPTIONS and (
                str(value).lower() != _WITHOUT_EFFECT.get(name)):
            raise ConfigError(
                f"the catalogue of {table} has the option {name}, which is not supported: options for a bucket are "
                "s3.endpoint and s3.region, and credentials come from the variables of AWS")
    region = properties.get("s3.region") or properties.get("client.region") or ""
    found = place_of(Place("any", "", properties.get("s3.endpoint") or "", region).url)
    return S3Server(found.endpoint, found.region)


class TableFiles(Protocol):
    """The files of a table. Every call may raise OSError."""

    def create(self, path: str) -> NewFile:
        """Create a data file; it is durable after its ``sync_data``."""
        ...

    def open(self, path: str) -> ArchivedBytes:
        """Open a file for reads of ranges. Raises FileNotFoundError."""
        ...

    def read(self, path: str) -> bytes:
        """Return a whole file. Raises FileNotFoundError."""
        ...

    def write(self, path: str, data: bytes, *, over: bool = True) -> None:
        """Write a whole file, atomically and durably. Raises FileExistsError unless it may be written over another."""
        ...

    def exists(self, path: str) -> bool:
        """Return True if there is such a file."""
        ...

    def walk(self, place: str) -> Iterator[tuple[str, int, int]]:
        """Yield path, size and time of the last change, in ms since 1970, of the files below a directory."""
        ...

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files, durably. One that is gone already is passed over."""
        ...


def files_of(server: S3Server | None, file_system: FileSystem) -> TableFiles:
    """Return the files of tables on a server, or on the disk. Raises MissingPackageError without the extra ``s3``."""
    return _DiskFiles(file_system) if server is None else _BucketFiles(server)


@final
class _DiskNew:
    """A data file that is written; ``sync_data`` also syncs its name."""

    tag: Final = ""

    def __init__(self, file_system: FileSystem, path: str) -> None:
        self.name, self._file_system, self._place = path, file_system, path.rpartition("/")[0]
        file_system.makedirs(self._place)
        self._file: File = file_system.open(path, writable=True, create=True)

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def pwrite(self, data: bytes | bytearray | memoryview, pos: int) -> None:
        self._file.pwrite(data, pos)

    def sync_data(self) -> None:
        self._file.sync_data()
        self._file_system.sync_dir(self._place)

    def written(self) -> ArchivedBytes:
        return self._file_system.open(self.name)

    def close(self) -> None:
        self._file.close()


@final
class _DiskFiles:
    """Files on a disk."""

    def __init__(self, file_system: FileSystem) -> None:
        self._file_system = file_system

    def create(self, path: str) -> NewFile:
        """Create a data file and its directory."""
        return _DiskNew(self._file_system, path)

    def open(self, path: str) -> ArchivedBytes:
        """Open a file."""
        return self._file_system.open(path)

    def read(self, path: str) -> bytes:
        """Return a whole file."""
        return read_file(self._file_system, path)

    def write(self, path: str, data: bytes, *, over: bool = True) -> None:
        """Write a whole file and its directory."""
        if not over and self._file_system.exists(path):
            raise FileExistsError(f"{path} exists already")
        self._file_system.makedirs(path.rpartition("/")[0])
        replace_file(self._file_system, path, data)

    def exists(self, path: str) -> bool:
        """Return True if there is such a file."""
        return self._file_system.exists(path)

    def walk(self, place: str) -> Iterator[tuple[str, int, int]]:
        """Yield the files below a directory."""
        if not self._file_system.exists(place):
            return
        for name in self._file_system.list(place):
            path = f"{place}/{name}"
            try:
                found = self._file_system.stat(path)
            except FileNotFoundError:
                continue  # another job has removed it
            if found.is_dir:
                yield from self.walk(path)
            else:
                yield path, found.size, found.mtime_ms

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files, and sync their directories."""
        places = set()
        for path in paths:
            try:
                self._file_system.remove(path)
            except FileNotFoundError:
                continue
            places.add(path.rpartition("/")[0])
        for place in sorted(places):
            self._file_system.sync_dir(place)


@final
class _BucketFiles:
    """Files in the buckets of a server."""

    def __init__(self, server: S3Server) -> None:
        self._server = server

    def _at(self, path: str) -> tuple[ObjectStore, str]:
        bucket, _, key = path.removeprefix(S3_SCHEME).partition("/")
        if not path.startswith(S3_SCHEME) or not bucket or not key or _ODD.search(path):
            raise StoreError(f"{path} is not s3://BUCKET/KEY with the characters A to Z, a to z, 0 to 9 and ._=/+@:,-")
        return _store(Place(bucket, "", *self._server), os.getpid()), key

    def create(self, path: str) -> NewFile:
        """Create a data file, which is in memory until ``sync_data``."""
        return NewObject(*self._at(path))

    def open(self, path: str) -> ArchivedBytes:
        """Open an object."""
        store, key = self._at(path)
        found = store.head(key)
        if found is None:
            raise FileNotFoundError(2, "there is no such object", path)
        return ObjectBytes(store, key, found.size)

    def read(self, path: str) -> bytes:
        """Return a whole object."""
        store, key = self._at(path)
        found = store.get(key)
        if found is None:
            raise FileNotFoundError(2, "there is no such object", path)
        return found[0]

    def write(self, path: str, data: bytes, *, over: bool = True) -> None:
        """Write a whole object."""
        store, key = self._at(path)
        try:
            store.put(key, data)
        except ObjectRefusedError:
            there = store.head(key) if over else None
            if there is None:
                raise FileExistsError(f"{path} exists already") from None
            store.put(key, data, there.tag)

    def exists(self, path: str) -> bool:
        """Return True if there is such an object."""
        store, key = self._at(path)
        return store.head(key) is not None

    def walk(self, place: str) -> Iterator[tuple[str, int, int]]:
        """Yield the objects below a directory, with times by the clock of the server."""
        store, key = self._at(place)
        bucket = place.removeprefix(S3_SCHEME).partition("/")[0]
        for name, found in store.walk(key):
            yield f"{S3_SCHEME}{bucket}/{name}", found.size, found.modified_ms

    def remove(self, paths: Iterable[str]) -> None:
        """Remove objects."""
        for path in paths:
            store, key = self._at(path)
            store.delete(key)


@lru_cache(maxsize=16)
def _store(place: Place, _process: int) -> ObjectStore:
    """Return the objects of a bucket for this process: the threads of obstore are not in a forked child."""
    return ObjectStore(place)


class Reader(SeekableFile):
    """Reads a file from any position, as PyArrow and PyIceberg ask for it. The file is closed with it."""

    def __init__(self, file: ArchivedBytes) -> None:
        super().__init__(file.size())
        self._file = file

    def read(self, n: int | None = -1) -> bytes:
        """Return the next bytes, all that are left by default."""
        left = max(self._size - self._at, 0)
        data = self._file.pread(left if n is None or n < 0 else min(n, left), self._at)
        self._at += len(data)
        return data

    def close(self) -> None:
        """Close the file."""
        if not self.closed:
            with closing(self._file):
                super().close()
