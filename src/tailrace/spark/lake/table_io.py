"""How PyIceberg reads and writes the files of tables: with those of ``places``, so that one way leads to each store.

On a disk a file of metadata is synced before the catalogue names it. PyIceberg's own class leaves that to the operating
system: after a loss of power the catalogue, which SQLite syncs, could name a metadata file that is empty. In a bucket
PyIceberg's own class would take other credentials than the tasks, and would not send a request again.
"""

from __future__ import annotations

import io
from contextlib import closing
from types import TracebackType
from typing import Any, Final

from pyiceberg.io import InputFile, OutputFile
from pyiceberg.io.pyarrow import PyArrowFileIO

from tailrace.env.filesystem import FileSystem, OsFileSystem
from tailrace.spark.lake.places import Reader, TableFiles, files_of, path_of, server_of
from tailrace.store.archive_store import S3_SCHEME

__all__ = ["TABLE_IO", "TableIO"]

TABLE_IO: Final = "tailrace.spark.lake.table_io.TableIO"
"""Value of PyIceberg's property ``py-io-impl``."""


class _Stream(io.BytesIO):
    """The content of a file, which is written when the stream is closed."""

    def __init__(self, path: str, files: TableFiles, *, over: bool) -> None:
        super().__init__()
        self._path, self._files, self._over = path, files, over

    def close(self) -> None:
        if not self.closed:
            data = self.getvalue()
            super().close()
            self._files.write(self._path, data, over=self._over)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            super().close()  # a file that is not complete is not written
        else:
            self.close()


class _Input(InputFile):
    def __init__(self, location: str, path: str, files: TableFiles) -> None:
        super().__init__(location)
        self._path, self._files = path, files

    def __len__(self) -> int:
        with closing(self._files.open(self._path)) as file:
            return file.size()

    def exists(self) -> bool:
        return self._files.exists(self._path)

    def open(self, seekable: bool = True) -> Any:
        # Metadata is small and read from its start to its end.
        return Reader(self._files.open(self._path)) if self._path.endswith(".parquet") else (
            io.BytesIO(self._files.read(self._path)))


class _Output(OutputFile):
    def __init__(self, location: str, path: str, files: TableFiles) -> None:
        super().__init__(location)
        self._path, self._files = path, files

    def __len__(self) -> int:
        return len(self.to_input_file())

    def exists(self) -> bool:
        return self._files.exists(self._path)

    def to_input_file(self) -> InputFile:
        return _Input(self.location, self._path, self._files)

    def create(self, overwrite: bool = False) -> Any:
        return _Stream(self._path, self._files, over=overwrite)


class TableIO(PyArrowFileIO):
    """PyIceberg's files on disks and in buckets; other locations are as in ``PyArrowFileIO``."""

    file_system: FileSystem = OsFileSystem()

    def _files(self, path: str) -> TableFiles:
        return files_of(server_of(self.properties, path) if path.startswith(S3_SCHEME) else None, self.file_system)

    def new_input(self, location: str) -> Any:
        """Return a file to read at a location."""
        path = _path_in_bucket(location)
        return super().new_input(location) if path is None else _Input(location, path, self._files(path))

    def new_output(self, location: str) -> Any:
        """Return a file to write at a location."""
        path = path_of(location)
        return super().new_output(location) if path is None else _Output(location, path, self._files(path))

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete a file."""
        name = location if isinstance(location, str) else location.location
        path = _path_in_bucket(name)
        if path is None:
            super().delete(location)
        else:
            self._files(path).remove([path])


def _path_in_bucket(location: str) -> str | None:
    """Return the path of a location in a bucket; None for other locations."""
    path = path_of(location)
    return path if path is not None and path.startswith(S3_SCHEME) else None
