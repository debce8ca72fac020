"""Data files of a table: what their footer says, as the table needs it."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow.parquet as pq

from tailrace.errors import CorruptionError
from tailrace.formats.filenames import file_name_to_offset
from tailrace.spark.lake.schemas import Ids, arrow_paths, check_ids, leaves_of, statistics_of

__all__ = ["WrittenFile", "segment_of", "written_file"]

_NUMBERS: Final = {"int": "<i", "long": "<q", "timestamptz": "<q"}


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A Parquet file to add to a table.

    ``day`` is the partition, counted from 1970; None if its rows have no store time or the table has no partitions.
    Sizes, counts and bounds are by field id; bounds are in Iceberg's binary form.
    """

    path: str
    size: int
    rows: int
    day: int | None
    column_sizes: dict[int, int] = field(default_factory=dict)
    value_counts: dict[int, int] = field(default_factory=dict)
    null_counts: dict[int, int] = field(default_factory=dict)
    lower: dict[int, bytes] = field(default_factory=dict)
    upper: dict[int, bytes] = field(default_factory=dict)
    splits: tuple[int, ...] = ()


def segment_of(path: str) -> int | None:
    """Return the position of the segment or range in the name of a file that a task has written; None for another."""
    name = path.rpartition("/")[2]
    return file_name_to_offset(name[1:].partition("-")[0]) if name.startswith("p") else None


def written_file(
    path: str, size: int, footer: pq.FileMetaData, ids: Ids, table: str, day: int | None
) -> WrittenFile:
    """Return a file by its footer, after a comparison of its field ids with those of the table.

    ``table`` is ``raw``, ``messages`` or ``typed``. Raises CorruptionError for a file that must not be added.
    """
    schema = footer.schema.to_arrow_schema()
    if why := check_ids(schema, ids):
        raise CorruptionError(f"the file cannot be added to the table {ids.table}: {why}", path=path)
    kinds = {name: kind for name, (_, kind) in arrow_paths(schema).items()}
    made = WrittenFile(path, size, footer.num_rows, day, splits=tuple(
        sorted(_begin(footer.row_group(number)) for number in range(footer.num_row_groups))))
    kept, leaves = frozenset(statistics_of(table)), leaves_of(schema)
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        for leaf in range(group.num_columns):
            column = group.column(leaf)
            name = leaves[leaf]
            one = ids.of[name]
            made.column_sizes[one] = made.column_sizes.get(one, 0) + column.total_compressed_size
            if name in kept:
                _add(made, one, kinds[name], column, path)
    return made


def _add(made: WrittenFile, number: int, kind: str, column: Any, path: str) -> None:
    known = column.statistics
    if known is None or not known.has_null_count:
        raise CorruptionError(f"the file has no statistics of its column {column.path_in_schema}", path=path)
    made.value_counts[number] = made.value_counts.get(number, 0) + column.num_values
    made.null_counts[number] = made.null_counts.get(number, 0) + known.null_count
    if not known.has_min_max:
        if known.null_count < column.num_values:
            raise CorruptionError(f"the file has no bounds of its column {column.path_in_schema}", path=path)
        return
    low, high = known.min_raw, known.max_raw
    if number in made.lower:
        low, high = min(low, _value(kind, made.lower[number])), max(high, _value(kind, made.upper[number]))
    made.lower[number], made.upper[number] = _bytes(kind, low), _bytes(kind, high)


def _bytes(kind: str, value: Any) -> bytes:
    if kind in _NUMBERS:
        return struct.pack(_NUMBERS[kind], value)
    return value if isinstance(value, bytes) else str(value).encode()


def _value(kind: str, data: bytes) -> Any:
    return struct.unpack(_NUMBERS[kind], data)[0] if kind in _NUMBERS else data


def _begin(group: Any) -> int:
    first = group.column(0)
    if first.has_dictionary_page and first.dictionary_page_offset:
        return int(min(first.dictionary_page_offset, first.data_page_offset))
    return int(first.data_page_offset)
