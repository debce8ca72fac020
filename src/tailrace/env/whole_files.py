"""Small files that are read and written as a whole."""

from __future__ import annotations

from tailrace.env.filesystem import FileSystem

__all__ = ["read_file", "read_if_there", "replace_file", "write_file"]


def read_file(file_system: FileSystem, path: str, most: int | None = None) -> bytes:
    """All bytes of a file, or its first ``most``. Raises OSError."""
    file = file_system.open(path)
    try:
        return file.pread(file.size() if most is None else most, 0)
    finally:
        file.close()


def read_if_there(file_system: FileSystem, path: str, most: int | None = None) -> bytes | None:
    """The same; None for a name that does not exist."""
    try:
        return read_file(file_system, path, most)
    except (FileNotFoundError, NotADirectoryError):
        return None


def write_file(
    file_system: FileSystem, path: str, data: bytes, size: int | None = None
) -> None:
    """Have a file hold ``data``, zeros up to ``size`` behind it; the bytes are durable on return.

    With a ``size`` that the file has already, bytes behind ``data`` stay as they are. The name is
    durable once its directory is synced. Raises OSError; the file may then be neither.
    """
    file = file_system.open(path, writable=True, create=True)
    try:
        if size is None:
            file.truncate(0)
        elif file.size() != size:
            file.truncate(size)
        file.pwrite(data, 0)
        file.sync_data()
    finally:
        file.close()


def replace_file(file_system: FileSystem, path: str, data: bytes) -> None:
    """Have a name stand for a file of these bytes, or for what it stood for before; durable on return.

    Its directory has to exist. Raises OSError; ``<path>.tmp`` may then be left.
    """
    temporary = f"{path}.tmp"
    write_file(file_system, temporary, data)
    file_system.rename(temporary, path)
    file_system.sync_dir(path.rpartition("/")[0])
