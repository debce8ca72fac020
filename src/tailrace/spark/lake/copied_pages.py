"""A column of a Parquet file that is copied into another file as it is: its pages stay encoded and compressed.

Most processor time of a table goes into the compression of bodies, which the archive has compressed already. PyArrow
cannot copy a column. So it writes a row group in which the column has no values, the copied pages follow the row
group, and the end of the file is changed: the column is at these pages, and all positions behind them move. The few
bytes of the column without values stay, and nothing names them.

Field numbers are those of ``parquet.thrift`` in apache/parquet-format.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import pyarrow.parquet as pq

from tailrace.errors import CorruptionError
from tailrace.spark.archive.parquet_file import SeekableFile
from tailrace.spark.lake.compact_thrift import (
    I32,
    I64,
    LIST,
    STRUCT,
    List,
    Struct,
    read_struct,
    write_struct,
)

__all__ = ["CopiedPages", "SplicedSink", "pages_of"]

_MAGIC: Final = b"PAR1"
_PLAIN: Final = frozenset({"PLAIN", "RLE"})
# PageHeader
_COMPRESSED_PAGE_SIZE: Final = 3
_DATA_PAGE_HEADERS: Final = (5, 8)
_NUM_VALUES: Final = 1
# FileMetaData, RowGroup, ColumnChunk, ColumnMetaData
_ROW_GROUPS: Final = 4
_COLUMNS, _TOTAL_BYTE_SIZE, _FILE_OFFSET, _TOTAL_COMPRESSED = 1, 2, 5, 6
_CHUNK_OFFSET, _META_DATA, _OFFSET_INDEX, _OFFSET_INDEX_LENGTH, _COLUMN_INDEX = 2, 3, 4, 5, 6
_PATH, _UNCOMPRESSED, _COMPRESSED, _SIZE_STATISTICS = 3, 6, 7, 16
_OFFSETS: Final = (9, 10, 11, 14)
"""Positions of the first data page, index page and dictionary page, and of the Bloom filter."""
_DATA_PAGE_OFFSET: Final = 9
_ENCODING_STATS: Final = 13
_STATS_COUNT: Final = 3
_COLUMN_INDEX_FIELDS: Final = (_COLUMN_INDEX, 7)
# OffsetIndex, PageLocation
_PAGE_LOCATIONS: Final = 1
_LOCATION_OFFSET, _LOCATION_SIZE, _LOCATION_ROW = 1, 2, 3


@dataclass(frozen=True, slots=True)
class CopiedPages:
    """The pages of a column in a row group, one after the other, with the size and the rows of each."""

    data: bytes
    sizes: list[int]
    rows: list[int]
    uncompressed: int
    """Bytes of the pages when they are decompressed, with their headers."""


def pages_of(found: pq.ParquetFile, file: SeekableFile, number: int, name: str) -> CopiedPages | None:
    """Return the pages of an optional column of bytes in a row group; None if another file cannot name them.

    ``file`` gives the bytes of the Parquet file ``found``. The pages must be plain and compressed with zstd, and each
    value is a row. Raises CorruptionError for pages that are not what the footer says.
    """
    place = found.schema_arrow.get_field_index(name)
    group = found.metadata.row_group(number)
    leaf = next((n for n in range(group.num_columns) if group.column(n).path_in_schema == name), -1)
    if place < 0 or leaf < 0:
        return None
    chunk, kind = group.column(leaf), found.schema.column(leaf)
    if chunk.compression != "ZSTD" or chunk.has_dictionary_page or not _PLAIN.issuperset(chunk.encodings) or (
            kind.max_definition_level != 1 or kind.max_repetition_level or kind.physical_type != "BYTE_ARRAY"):
        return None
    file.seek(chunk.data_page_offset)
    data = file.read(chunk.total_compressed_size)
    sizes, rows, at = [], [], 0
    while at < len(data):
        header, body = read_struct(data, at)
        kept: Struct = next((header[one][1] for one in _DATA_PAGE_HEADERS if one in header), {})
        size, values = header.get(_COMPRESSED_PAGE_SIZE, (I32, -1))[1], kept.get(_NUM_VALUES, (I32, -1))[1]
        if size < 0 or values < 0:
            break  # not a page of data
        sizes.append(body + size - at)
        rows.append(values)
        at = body + size
    if at != len(data) or sum(rows) != group.num_rows:
        raise CorruptionError(f"the pages of the column {name} are not those of its row group {number}")
    return CopiedPages(data, sizes, rows, chunk.total_uncompressed_size)


@final
class SplicedSink(io.RawIOBase):
    """What a ParquetWriter writes into; passes it on to ``sink``, with the copied pages between row groups."""

    def __init__(self, sink: Any, column: str) -> None:
        self._sink, self._column = sink, column.encode()
        self._size = 0
        """Bytes of the writer, which does not know of the pages."""
        self._copied: dict[int, tuple[int, Sequence[CopiedPages]]] = {}
        """By the number of the row group: where it ends for the writer, and the pages that follow it."""
        self._tail: bytearray | None = None

    def writable(self) -> bool:
        """Return True, as PyArrow asks for."""
        return True

    def write(self, data: Any) -> int:
        """Pass bytes on, or keep them once the end of the file has begun."""
        if self._tail is None:
            self._sink.write(data)
            self._size += len(data)
        else:
            self._tail += data
        return len(data)

    def copy(self, number: int, pages: Sequence[CopiedPages]) -> None:
        """Write the pages of a row group, which the writer has just ended."""
        self._copied[number] = self._size, pages
        for one in pages:
            self._sink.write(one.data)

    def begin_end(self) -> None:
        """Say that the writer will write the end of the file: filters, indexes and footer."""
        self._tail = bytearray()

    def finish(self) -> None:
        """Write the end of the file, which the writer has written."""
        tail, self._tail = bytes(self._tail or b""), None
        self._sink.write(self._with_pages(tail) if self._copied else tail)

    def _moved(self, position: int) -> int:
        """Return where in the file a position of the writer is."""
        return position + sum(
            len(one.data) for end, pages in self._copied.values() if end <= position for one in pages)

    def _with_pages(self, tail: bytes) -> bytes:
        size = int.from_bytes(tail[-8:-4], "little")
        footer, end = read_struct(tail, len(tail) - 8 - size)
        if tail[-4:] != _MAGIC or end != len(tail) - 8:
            raise CorruptionError("the writer of a data file has not ended it with a footer")
        chunks = [chunk for group in footer[_ROW_GROUPS][1].values for chunk in group[_COLUMNS][1].values]
        first = min(chunk[_OFFSET_INDEX][1] for chunk in chunks)
        out = bytearray(tail[: first - self._size])
        start = self._moved(self._size)
        for number, group in enumerate(footer[_ROW_GROUPS][1].values):
            for chunk in group[_COLUMNS][1].values:
                index, _ = read_struct(tail, chunk[_OFFSET_INDEX][1] - self._size)
                self._move(chunk, index)
                if number in self._copied and chunk[_META_DATA][1][_PATH][1].values == [self._column]:
                    self._name_pages(number, group, chunk, index)
                made = write_struct(index)
                chunk[_OFFSET_INDEX], chunk[_OFFSET_INDEX_LENGTH] = (I64, start + len(out)), (I32, len(made))
                out += made
            if _FILE_OFFSET in group:
                group[_FILE_OFFSET] = I64, self._moved(group[_FILE_OFFSET][1])
        made = write_struct(footer)
        return bytes(out) + made + struct.pack("<I", len(made)) + _MAGIC

    def _move(self, chunk: Struct, index: Struct) -> None:
        """Move the positions of a column and of its pages."""
        for holder, names in ((chunk, (_CHUNK_OFFSET, _COLUMN_INDEX)), (chunk[_META_DATA][1], _OFFSETS)):
            for one in names:
                if one in holder:
                    holder[one] = I64, self._moved(holder[one][1])
        for place in index[_PAGE_LOCATIONS][1].values:
            place[_LOCATION_OFFSET] = I64, self._moved(place[_LOCATION_OFFSET][1])

    def _name_pages(self, number: int, group: Struct, chunk: Struct, index: Struct) -> None:
        """Let the column of a row group be at its copied pages."""
        end, pages = self._copied[number]
        at = self._moved(end) - sum(len(one.data) for one in pages)
        known = chunk[_META_DATA][1]
        sizes = {
            _UNCOMPRESSED: sum(one.uncompressed for one in pages), _COMPRESSED: sum(len(one.data) for one in pages)}
        for whole, part in ((_TOTAL_BYTE_SIZE, _UNCOMPRESSED), (_TOTAL_COMPRESSED, _COMPRESSED)):
            if whole in group:
                group[whole] = I64, group[whole][1] + sizes[part] - known[part][1]
        for part, size in sizes.items():
            known[part] = I64, size
        known[_DATA_PAGE_OFFSET] = I64, at
        known.pop(_SIZE_STATISTICS, None)
        for field in _COLUMN_INDEX_FIELDS:
            chunk.pop(field, None)
        places, row = [], 0
        for one in pages:
            for size, rows in zip(one.sizes, one.rows, strict=True):
                places.append({_LOCATION_OFFSET: (I64, at), _LOCATION_SIZE: (I32, size), _LOCATION_ROW: (I64, row)})
                at, row = at + size, row + rows
        for stats in known.get(_ENCODING_STATS, (LIST, List(STRUCT, [])))[1].values:
            stats[_STATS_COUNT] = I32, len(places)
        index.clear()
        index[_PAGE_LOCATIONS] = LIST, List(STRUCT, places)
