"""Files of a table's metadata on a local disk: synced before the catalogue names them.

PyIceberg's own class leaves that to the operating system. After a loss of power the catalogue, which SQLite syncs,
could name a metadata file that is empty.
"""

from __future__ import annotations

import io
from typing import Any, Final
from urllib.parse import unquote, urlparse

from pyiceberg.io import InputFile, OutputFile
from pyiceberg.io.pyarrow import PyArrowFileIO

from tailrace.env.filesystem import FileSystem, OsFileSystem
from tailrace.env.whole_files import replace_file

__all__ = ["SYNCED_IO", "SyncedFileIO", "local_path"]

SYNCED_IO: Final = "tailrace.spark.lake.synced_io.SyncedFileIO"
"""Value of PyIceberg's property ``py-io-impl``."""


def local_path(location: str) -> str | None:
    """Return the path of a location; None if the location is not on a local disk."""
    parsed = urlparse(location)
    if parsed.scheme not in {"", "file"}:
        return None
    return unquote(parsed.path) if parsed.scheme else location


class _Stream(io.BytesIO):
    """The content of a file, which is written and synced when the stream is closed."""

    def __init__(self, path: str, file_system: FileSystem) -> None:
        super().__init__()
        self._path, self._file_system = path, file_system

    def close(self) -> None:
        if not self.closed:
            data = self.getvalue()
            super().close()
            replace_file(self._file_system, self._path, data)


class _Output(OutputFile):
    def __init__(self, location: str, path: str, files: SyncedFileIO) -> None:
        super().__init__(location)
        self._path, self._files = path, files

    def __len__(self) -> int:
        return self._files.file_system.stat(self._path).size

    def exists(self) -> bool:
        return self._files.file_system.exists(self._path)

    def to_input_file(self) -> InputFile:
        return self._files.new_input(self.location)

    def create(self, overwrite: bool = False) -> Any:
        if not overwrite and self.exists():
            raise FileExistsError(f"{self._path} exists already")
        self._files.file_system.makedirs(self._path.rpartition("/")[0])
        return _Stream(self._path, self._files.file_system)


class SyncedFileIO(PyArrowFileIO):
    """PyIceberg's files with synced writes to local disks; other locations are as in ``PyArrowFileIO``."""

    file_system: FileSystem = OsFileSystem()

    def new_output(self, location: str) -> Any:
        """Return a file to write at a location."""
        path = local_path(location)
        return super().new_output(location) if path is None else _Output(location, path, self)
