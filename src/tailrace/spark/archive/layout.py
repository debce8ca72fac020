"""Paths of an archive, and the columns of its Parquet files.

    rows/dt=YYYY-MM-DD/segment=p<20 digits>/part-NNNNN-<attempt>.parquet   rows by UTC day of their store time
    rows/dt=YYYY-MM-DD/segment=p<20 digits>/open-<20 digits>-NNNNN-<attempt>.parquet   of the open segment
    _manifests/<20 digits>.json                             one per segment; only files that it names are read
    _open/<20 digits>.json                                  one per range of the segment that is still written
    _index/<20 digits>.json                                 what planning needs of a thousand manifests (``index``)
    _staging/<20 digits>/<attempt>                          attempts that are not finished (``store.archive_store``)
    _lock                                                   held by the job that writes a directory

An attempt is a random number. Older archives have files without it.

Polars takes every file of a directory for a Parquet file, so ``rows`` has no others. Older archives have the days
beside ``_manifests``, until the next archive job moves them below ``rows``.

With the ``p`` (position) every reader of partitioned directories takes ``segment`` as a string. Older archives have
digits alone, which Spark takes as an integer, or as a long if a segment is past 2 GiB.

Spark and other readers of Parquet directories ignore names that begin with an underscore.
"""

from __future__ import annotations

import itertools
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tailrace.arrow.schema import COLUMN_NAMES, arrow_schema
from tailrace.formats.filenames import offset_to_file_name
from tailrace.store.archive_store import ROWS

__all__ = [
    "ARCHIVE_SCHEMA", "BLANK", "DAMAGED", "FIELD_ID", "MESSAGE", "OPEN_FILE", "RAW_COLUMNS", "RECORD",
    "ROW_GROUP", "ROW_GROUP_BYTES", "SOURCE_COLUMNS", "WRITTEN_SCHEMA", "open_prefix", "part_path",
    "segment_names", "with_field_ids", "write_options",
]

FIELD_ID: Final = b"PARQUET:field_id"
"""Key of PyArrow's field metadata that holds the field id of a Parquet file."""

MESSAGE: Final = "message"
"""A record that a queue unit names; these are the rows of the source."""
RECORD: Final = "record"
"""A whole record without a unit, such as a half message of a transaction."""
DAMAGED: Final = "damaged"
"""Bytes that are not a valid record."""
BLANK: Final = "blank"
"""Bytes after the last record of a segment."""

SOURCE_COLUMNS: Final = tuple(name for name in COLUMN_NAMES if name != "store")
RAW_COLUMNS: Final = ("rawBornHost", "rawStoreHost", "rawProperties", "raw")
ARCHIVE_SCHEMA: Final = pa.schema([
    pa.field("kind", pa.string()),
    *arrow_schema(SOURCE_COLUMNS),
    pa.field("magic", pa.int32()),
    *(pa.field(name, pa.binary()) for name in RAW_COLUMNS),
])
"""The columns of the source, and columns that are needed to restore the bytes of a record. ``raw`` holds bytes
unchanged, up to the last one that is not zero: those of damage, and those of a record whose columns are not
enough to restore it."""


def with_field_ids(schema: pa.Schema) -> pa.Schema:
    """Return a schema whose fields have Parquet field ids.

    The ids are those that a catalogue of Iceberg gives to the fields of a new table: first the columns, then the
    element of each list, the key and the value of each map. Readers of a table find columns by their ids.
    """
    following = itertools.count(len(schema) + 1)

    def marked(field: pa.Field, number: int) -> pa.Field:
        return field.with_metadata({FIELD_ID: str(number)})

    fields = []
    for number, field in enumerate(schema, 1):
        kind = field.type
        if pa.types.is_list(kind):
            kind = pa.list_(marked(kind.value_field, next(following)))
        elif pa.types.is_map(kind):
            key = marked(kind.key_field, next(following))
            kind = pa.map_(key, marked(kind.item_field, next(following)))
        fields.append(marked(field.with_type(kind), number))
    return pa.schema(fields)


WRITTEN_SCHEMA: Final = with_field_ids(ARCHIVE_SCHEMA)
"""The schema of the files: ``ARCHIVE_SCHEMA`` with field ids."""

_REPEATED: Final = (
    "kind", "topic", "tags", "queueId", "bornHost", "storeHost", "flag", "sysFlag", "magic",
    "reconsumeTimes", "preparedTransactionOffset", "rawBornHost", "rawStoreHost",
    "properties.key_value.key",
)
_COMPARED: Final = (
    "kind", "topic", "queueId", "queueOffset", "commitLogOffset", "uniqKey", "tags",
    "bornTimestamp", "storeTimestamp", "deliverAt",
)
_ENCODINGS: Final = {
    **dict.fromkeys(
        ("queueOffset", "commitLogOffset", "storeSize", "bornTimestamp", "storeTimestamp", "deliverAt"),
        "DELTA_BINARY_PACKED"),
    **dict.fromkeys(("msgId", "uniqKey"), "DELTA_BYTE_ARRAY"),
}
"""Columns that grow from row to row: numbers by their differences, ids without the prefix they share."""
ROW_GROUP: Final = 1 << 16
"""Largest number of rows in a row group."""
ROW_GROUP_BYTES: Final = 16 << 20
"""Bytes of the log in a row group. Memory of this size is reused and stays in the processor's cache for longer."""


def segment_names(file_from_offset: int) -> tuple[str, str]:
    """Return the names of a segment's directory below a day: the present form, then the older form."""
    name = offset_to_file_name(file_from_offset)
    return f"segment=p{name}", f"segment={name}"


OPEN_FILE: Final = "open-"
"""How the names of files begin that have a range of a segment that is still written."""


def open_prefix(start: int) -> str:
    """Return how the names of the files of one range begin."""
    return f"{OPEN_FILE}{offset_to_file_name(start)}-"


def part_path(day: str, file_from_offset: int, number: int, attempt: str, prefix: str = "part-") -> str:
    """Return the path of a published file, below the archive."""
    return f"{ROWS}/dt={day}/{segment_names(file_from_offset)[0]}/{prefix}{number:05d}-{attempt}.parquet"


def write_options(rows: int) -> dict[str, Any]:
    """Return the options of Parquet files: zstd, encodings of columns that grow, bloom filters on keys.

    Columns used in filters have statistics, also by page, so that a reader skips pages.

    ``rows`` is the largest number of rows in a row group.
    """
    bloom = {"ndv": max(rows, 1), "fpp": 0.01}
    place = ARCHIVE_SCHEMA.get_field_index
    return {
        "compression": "zstd", "compression_level": 1,
        "use_dictionary": list(_REPEATED), "write_statistics": list(_COMPARED),
        "column_encoding": _ENCODINGS, "write_page_index": True,
        "bloom_filter_options": {"uniqKey": bloom, "keys.list.element": bloom},
        "sorting_columns": [
            pq.SortingColumn(place(name)) for name in ("topic", "queueId", "queueOffset")],
    }
