"""A data file of a table while it is written, and how PyArrow reads one."""

from __future__ import annotations

from contextlib import ExitStack, closing

import pyarrow as pa
import pyarrow.parquet as pq

from tailrace.env.filesystem import File, FileSystem
from tailrace.spark.archive.task import FileSink
from tailrace.spark.lake.files import WrittenFile, written_file
from tailrace.spark.lake.schemas import Ids

__all__ = ["DataFile", "Reader"]


class DataFile:
    """A Parquet file that is written; ``finish`` makes it durable."""

    def __init__(
        self, file_system: FileSystem, path: str, schema: pa.Schema, options: dict[str, object], stack: ExitStack
    ) -> None:
        self._path, self._file_system = path, file_system
        file_system.makedirs(path.rpartition("/")[0])
        self._file: File = stack.enter_context(closing(file_system.open(path, writable=True, create=True)))
        self._sink = FileSink(self._file)
        self._writer = stack.enter_context(pq.ParquetWriter(pa.PythonFile(self._sink, "w"), schema, **options))

    @property
    def size(self) -> int:
        """Bytes that are written so far."""
        return self._sink.size

    def write(self, table: pa.Table) -> None:
        """Write a row group."""
        self._writer.write_table(table, row_group_size=max(len(table), 1))

    def finish(self, ids: Ids, table: str, day: int | None) -> WrittenFile:
        """Write the footer, sync file and name, and return the file as the table needs it."""
        self._writer.close()
        self._sink.finish()
        self._file_system.sync_dir(self._path.rpartition("/")[0])
        with pq.ParquetFile(pa.PythonFile(Reader(self._file), "r")) as found:
            return written_file(f"file://{self._path}", self._sink.size, found.metadata, ids, table, day)


class Reader:
    """Reads a file from any position, as PyArrow asks for it."""

    def __init__(self, file: File) -> None:
        self._file, self._at, self.closed = file, 0, False

    def readable(self) -> bool:
        """Return True, as PyArrow asks for it."""
        return True

    def seekable(self) -> bool:
        """Return True, as PyArrow asks for it."""
        return True

    def tell(self) -> int:
        """Return the position of the next read."""
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        """Set the position of the next read, from the start, the present position or the end."""
        self._at = (0, self._at, self._file.size())[whence] + offset
        return self._at

    def read(self, n: int = -1) -> bytes:
        """Return the next bytes, all that are left by default."""
        data = self._file.pread(self._file.size() - self._at if n < 0 else n, self._at)
        self._at += len(data)
        return data

    def close(self) -> None:
        """Note that PyArrow has closed the file; its owner closes it."""
        self.closed = True
