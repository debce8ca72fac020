"""A data file of a table while it is written."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing

import pyarrow as pa
import pyarrow.parquet as pq

from tailrace.spark.archive.task import FileSink
from tailrace.spark.lake.files import WrittenFile, written_file
from tailrace.spark.lake.places import Reader, TableFiles, url_of
from tailrace.spark.lake.schemas import Ids

__all__ = ["DataFile"]


class DataFile:
    """A Parquet file that is written; ``finish`` makes it durable."""

    def __init__(
        self, files: TableFiles, path: str, schema: pa.Schema, options: dict[str, object], stack: ExitStack
    ) -> None:
        self._path = path
        self._file = stack.enter_context(closing(files.create(path)))
        self._sink = FileSink(self._file)
        self._writer = stack.enter_context(pq.ParquetWriter(pa.PythonFile(self._sink, "w"), schema, **options))

    @property
    def size(self) -> int:
        """Bytes that are written so far."""
        return self._sink.size

    def write(self, table: pa.Table) -> None:
        """Write a row group."""
        self._writer.write_table(table, row_group_size=max(len(table), 1))

    def note(self, metadata: Mapping[bytes, bytes]) -> None:
        """Add to the metadata of the footer."""
        self._writer.add_key_value_metadata(metadata)

    def finish(self, ids: Ids, table: str, day: int | None) -> WrittenFile:
        """Write the footer, make file and name durable, and return the file as the table needs it."""
        self._writer.close()
        self._sink.finish()
        with closing(Reader(self._file.written())) as written, pq.ParquetFile(pa.PythonFile(written, "r")) as found:
            made = written_file(url_of(self._path), self._sink.size, found.metadata, ids, table, day)
        self._file.close()  # the bytes of an object are in memory until then
        return made
