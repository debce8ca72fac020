"""Small files that are read and written as a whole."""

from __future__ import annotations

import contextlib
import errno
import itertools
from typing import Any, Final

import orjson

from tailrace import events
from tailrace.env.filesystem import File, FileSystem
from tailrace.env.permissions import copy_permissions
from tailrace.errors import OddFileError, StoreError
from tailrace.logs import get_logger

__all__ = [
    "WHOLE_FILE_MAX", "is_directory", "json_lines", "open_hint", "open_new", "overwrite_file", "read_file", "read_hint",
    "read_if_there", "remove_tree", "replace_file", "write_file",
]

_log = get_logger(__name__)

WHOLE_FILE_MAX: Final = 512 << 20
"""Bytes of a file that is read as a whole.

The largest such files are tables of topics, groups and offsets in JSON, about 300 bytes an entry: a
million topics are 300 MB. A larger file is damaged, or sparse, and reading it would take the memory of
the machine.
"""


def is_directory(file_system: FileSystem, path: str) -> bool:
    """Return True if there is a directory of this name."""
    try:
        return file_system.stat(path).is_dir
    except (FileNotFoundError, NotADirectoryError, OddFileError, PermissionError):
        return False


def remove_tree(file_system: FileSystem, path: str) -> None:
    """Remove a directory with all that is in it; nothing happens if it does not exist."""
    if not is_directory(file_system, path):
        return
    for name in file_system.list(path):
        child = f"{path}/{name}"
        if is_directory(file_system, child):
            remove_tree(file_system, child)
        else:
            file_system.remove(child)
    file_system.rmdir(path)


def read_file(file_system: FileSystem, path: str, most: int | None = None) -> bytes:
    """Return all bytes of a file, or its first ``most``.

    Raises OddFileError if it is not a regular file or larger than `WHOLE_FILE_MAX`; OSError.
    """
    with contextlib.closing(file_system.open(path)) as file:
        if most is None:
            most = file.size()
            if most > WHOLE_FILE_MAX:
                raise OddFileError(
                    path, f"has {most} bytes, a file of its kind has at most {WHOLE_FILE_MAX}")
        return file.pread(most, 0)


def read_if_there(file_system: FileSystem, path: str, most: int | None = None) -> bytes | None:
    """As ``read_file``; None if the name does not exist."""
    try:
        return read_file(file_system, path, most)
    except (FileNotFoundError, NotADirectoryError):
        return None


def read_hint(file_system: FileSystem, path: str, most: int | None = None) -> bytes | None:
    """As ``read_if_there``, for a file that the store can do without: None even if the file exists and cannot be read.

    A file that is not a regular file, or without permission, counts as damaged and is logged.
    """
    try:
        return read_if_there(file_system, path, most)
    except (OddFileError, PermissionError) as error:
        events.HINT_CANNOT_BE_READ.log(_log, file=path, cause=error.strerror)
        return None


def json_lines(data: bytes | None) -> list[dict[str, Any]]:
    """Return the objects of a text with one JSON object a line, without lines of another form."""
    found = []
    for line in (data or b"").splitlines():
        with contextlib.suppress(ValueError):
            found.append(orjson.loads(line))
    return [one for one in found if isinstance(one, dict)]


def open_hint(file_system: FileSystem, path: str) -> File:
    """Open a file for writing that the store can do without, creating it.

    A name that is not a regular file, such as a FIFO or a symbolic link to nothing, is replaced. A
    directory is not, because files of others may be in it. Raises OddFileError or OSError.
    """
    try:
        return file_system.open(path, writable=True, create=True)
    except OddFileError as error:
        try:
            file_system.remove(path)  # the name only: a link's target and a device stay
        except OSError:
            raise error from None
        events.ODD_FILE_REPLACED.log(_log, file=path, cause=error.what)
    return file_system.open(path, writable=True, create=True)


def open_new(file_system: FileSystem, path: str) -> File:
    """Create a file that did not exist. Its name is durable after a sync of its directory.

    A file of that name was left by an earlier removal that failed, or by another program. It is never used and never
    deleted: it gets a name with the ending ``.left-NUMBER``. Raises OddFileError for a directory; OSError.
    """
    try:
        return file_system.open(path, writable=True, create=True, exclusive=True)
    except FileExistsError:
        if is_directory(file_system, path):
            raise OddFileError(path, "is a directory, not a regular file") from None
    aside = next(name for n in itertools.count(1) if not file_system.exists(name := f"{path}.left-{n}"))
    file_system.rename(path, aside)
    events.A_LEFT_OVER_FILE_IS_MOVED_ASIDE.log(_log, file=path, to=aside)
    return file_system.open(path, writable=True, create=True, exclusive=True)


def write_file(
    file_system: FileSystem, path: str, data: bytes, size: int | None = None
) -> None:
    """Write ``data`` into a file, followed by zeros up to ``size``; the bytes are durable on return.

    If the file has the length ``size`` already, the bytes after ``data`` stay as they are. The name is
    durable after a sync of its directory. Raises OSError; the file may then have old and new bytes.
    """
    with contextlib.closing(open_hint(file_system, path)) as file:
        if size is None:
            file.truncate(0)
        elif file.size() != size:
            file.truncate(size)
        file.pwrite(data, 0)
        file.sync_data()


def replace_file(
    file_system: FileSystem, path: str, data: bytes, *, keep_permissions: bool = False, in_place: bool = False
) -> None:
    """Replace a file atomically by one with these bytes, durable on return. Its directory must exist.

    With ``keep_permissions`` the new file gets the permissions of the old one, on a real disk, before any byte is
    written. With ``in_place`` a file that cannot be replaced because it is a mount of its own is overwritten; a crash
    in between leaves old and new bytes, and all new ones in ``<path>.tmp``. Raises OSError; without ``in_place`` the
    old file is then unchanged. ``<path>.tmp`` is left by a crash only.
    """
    temporary = f"{path}.tmp"
    try:
        if keep_permissions:
            write_file(file_system, temporary, b"")
            copy_permissions(path, temporary)
        write_file(file_system, temporary, data)
        try:
            file_system.rename(temporary, path)
        except OSError as error:
            if error.errno != errno.EBUSY or not in_place:
                raise
            overwrite_file(file_system, path, data)
            file_system.remove(temporary)
        file_system.sync_dir(path.rpartition("/")[0])
    except (OSError, StoreError):
        with contextlib.suppress(OSError, StoreError):
            file_system.remove(temporary)
        raise


def overwrite_file(file_system: FileSystem, path: str, data: bytes, *, sync: bool = True) -> None:
    """Write the bytes into a file in place, creating it as `open_hint` does; with ``sync`` they are durable on return.

    The name of a new file is durable after a sync of its directory. A crash may leave old and new bytes.
    Raises OSError.
    """
    with contextlib.closing(open_hint(file_system, path)) as file:
        file.pwrite(data, 0)
        if file.size() != len(data):
            file.truncate(len(data))
        if sync:
            file.sync_data()
