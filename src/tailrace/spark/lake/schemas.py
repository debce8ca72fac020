"""Columns of the tables, and the field ids under which a table knows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tailrace.errors import StoreError
from tailrace.spark.archive.layout import FIELD_ID, WRITTEN_SCHEMA, with_field_ids

__all__ = [
    "BROKER", "DAY", "FORMS", "MESSAGES_SCHEMA", "RAW_SCHEMA", "SOURCE_NAMES", "STORE_TIME", "Form", "Ids",
    "arrow_paths", "check_ids", "file_options", "ids_of", "leaves_of", "marked", "message_options", "statistics_of",
]

BROKER: Final = "broker"
STORE_TIME: Final = "store_timestamp"
DAY: Final = "store_day"
"""Name of the partition field of ``messages``: the UTC day of ``store_timestamp``."""
_TIME: Final = pa.timestamp("us", tz="UTC")
SOURCE_NAMES: Final[dict[str, str]] = {
    "topic": "topic", "queue_id": "queueId", "queue_offset": "queueOffset", "store_timestamp": "storeTimestamp",
    "born_timestamp": "bornTimestamp", "deliver_at": "deliverAt", "tags": "tags", "keys": "keys",
    "uniq_key": "uniqKey", "properties": "properties", "body": "body", "born_host": "bornHost",
    "store_host": "storeHost", "flag": "flag", "sys_flag": "sysFlag", "reconsume_times": "reconsumeTimes",
    "prepared_transaction_offset": "preparedTransactionOffset", "commit_log_offset": "commitLogOffset",
    "store_size": "storeSize",
}
"""Column of ``messages``: the column of the archive with the same meaning."""
RAW_SCHEMA: Final = WRITTEN_SCHEMA
"""Columns of ``raw``: those of the archive."""
_KEYS: Final = pa.list_(pa.field("element", pa.string()))
MESSAGES_SCHEMA: Final = with_field_ids(pa.schema([
    pa.field("broker", pa.string(), nullable=False),
    pa.field("topic", pa.string(), nullable=False),
    pa.field("queue_id", pa.int32(), nullable=False),
    pa.field("queue_offset", pa.int64(), nullable=False),
    pa.field("store_timestamp", _TIME),
    pa.field("born_timestamp", _TIME),
    pa.field("deliver_at", _TIME),
    pa.field("tags", pa.string()),
    pa.field("keys", _KEYS),
    pa.field("uniq_key", pa.string()),
    pa.field("properties", pa.map_(pa.string(), pa.string())),
    pa.field("body", pa.binary()),
    pa.field("body_error", pa.string()),
    pa.field("born_host", pa.string()),
    pa.field("store_host", pa.string()),
    pa.field("flag", pa.int32()),
    pa.field("sys_flag", pa.int32()),
    pa.field("reconsume_times", pa.int32()),
    pa.field("prepared_transaction_offset", pa.int64()),
    pa.field("commit_log_offset", pa.int64(), nullable=False),
    pa.field("store_size", pa.int32()),
]))
"""Columns of ``messages``. ``body`` is decompressed; if that fails it is as stored and ``body_error`` says why. A time
outside of the years 1970 to 9999, which Python cannot show, is null."""


class Form(NamedTuple):
    """Names of the columns that jobs need in every table of a kind, "" if it has no such column."""

    broker: str
    topic: str
    time: str
    position: str
    keys: str
    uniq_key: str
    order: tuple[str, ...]
    """Columns by which the rows of a row group are in order."""
    others: tuple[str, ...] = ()
    """Further columns with bounds in the metadata."""

    @property
    def statistics(self) -> tuple[str, ...]:
        """The columns whose bounds are in the metadata of the table."""
        return tuple(dict.fromkeys(
            one for one in (self.broker, *self.order, self.position, self.time, *self.others) if one))


FORMS: Final = {
    "raw": Form("", "topic", "storeTimestamp", "commitLogOffset", "keys", "uniqKey",
                ("topic", "queueId", "queueOffset")),
    "messages": Form("broker", "topic", "store_timestamp", "commit_log_offset", "keys", "uniq_key",
                     ("topic", "queue_id", "queue_offset")),
    "typed": Form("_broker", "", "_store_timestamp", "_commit_log_offset", "_keys", "_uniq_key",
                  ("_queue_id", "_queue_offset"), ("_error",)),
}
"""The three kinds of tables."""
_REPEATED: Final = (
    "broker", "topic", "tags", "queue_id", "born_host", "store_host", "flag", "sys_flag", "reconsume_times",
    "prepared_transaction_offset", "body_error", "properties.key_value.key",
)
_GROWING: Final = ("queue_offset", "commit_log_offset", "store_size", "born_timestamp", "store_timestamp", "deliver_at")
_TYPES: Final = {
    pa.string(): "string", pa.binary(): "binary", pa.int32(): "int", pa.int64(): "long", _TIME: "timestamptz",
    pa.timestamp("us"): "timestamp", pa.bool_(): "boolean", pa.float32(): "float", pa.float64(): "double",
    pa.date32(): "date",
}


class Ids(NamedTuple):
    """Field ids of a table by the path of the field, such as ``keys`` and ``keys.element``."""

    table: str
    of: Mapping[str, int]


def statistics_of(table: str) -> tuple[str, ...]:
    """Return the columns whose bounds are in the metadata of a table. Others would only make it larger."""
    return FORMS[table].statistics


def arrow_paths(schema: pa.Schema) -> dict[str, tuple[int | None, str]]:
    """Return for each field, also those inside lists and maps, its id or None, and its type in Iceberg."""
    found: dict[str, tuple[int | None, str]] = {}

    def walk(field: pa.Field, path: str) -> str:
        kind = field.type
        number = (field.metadata or {}).get(FIELD_ID)
        if pa.types.is_list(kind):
            text = f"list<{walk(kind.value_field, f'{path}.element')}>"
        elif pa.types.is_map(kind):
            key = walk(kind.key_field, f"{path}.key")
            text = f"map<{key}, {walk(kind.item_field, f'{path}.value')}>"
        elif pa.types.is_struct(kind):
            inner = [walk(kind.field(number), f"{path}.{kind.field(number).name}") for number in range(kind.num_fields)]
            text = f"struct<{', '.join(inner)}>"
        elif pa.types.is_decimal(kind):
            text = f"decimal({kind.precision}, {kind.scale})"
        else:
            text = _TYPES.get(kind, str(kind))
        found[path] = None if number is None else int(number), text
        return text

    for one in schema:
        walk(one, one.name)
    return found


def marked(schema: pa.Schema, ids: Ids) -> pa.Schema:
    """Return a schema with the field ids of a table."""
    def walk(field: pa.Field, path: str) -> pa.Field:
        kind = field.type
        if pa.types.is_list(kind):
            kind = pa.list_(walk(kind.value_field, f"{path}.element"))
        elif pa.types.is_map(kind):
            kind = pa.map_(walk(kind.key_field, f"{path}.key"), walk(kind.item_field, f"{path}.value"))
        elif pa.types.is_struct(kind):
            kind = pa.struct([
                walk(kind.field(number), f"{path}.{kind.field(number).name}") for number in range(kind.num_fields)])
        return field.with_type(kind).with_metadata({FIELD_ID: str(ids.of[path])})

    return pa.schema([walk(one, one.name) for one in schema])


def leaves_of(schema: pa.Schema) -> list[str]:
    """Return the paths of the columns of a Parquet file with this schema, in their order."""
    def walk(field: pa.Field, path: str) -> list[str]:
        kind = field.type
        if pa.types.is_list(kind):
            return walk(kind.value_field, f"{path}.element")
        if pa.types.is_map(kind):
            return [*walk(kind.key_field, f"{path}.key"), *walk(kind.item_field, f"{path}.value")]
        if pa.types.is_struct(kind):
            inner = [kind.field(number) for number in range(kind.num_fields)]
            return [leaf for one in inner for leaf in walk(one, f"{path}.{one.name}")]
        return [path]

    return [leaf for one in schema for leaf in walk(one, one.name)]


def check_ids(schema: pa.Schema, ids: Ids) -> str:
    """Return why a file with this schema must not be added to a table, or "".

    A table accepts a file with a wrong id without an error, and the column then has no values.
    """
    for path, (number, _) in arrow_paths(schema).items():
        if number is None:
            return f"its column {path} has no field id"
        if number != ids.of.get(path):
            return f"its column {path} has the field id {number}, which is {ids.of.get(path)} in the table {ids.table}"
    missing = ids.of.keys() - arrow_paths(schema).keys()
    return f"it has no column {min(missing)}" if missing else ""


def message_options(rows: int) -> dict[str, Any]:
    """Return the options of the Parquet files of ``messages``; ``rows`` is the number of rows in a row group."""
    bloom = {"ndv": max(rows, 1), "fpp": 0.01}
    place = MESSAGES_SCHEMA.get_field_index
    return {
        "compression": "zstd", "compression_level": 1, "use_dictionary": list(_REPEATED),
        "write_statistics": [*FORMS["messages"].statistics, "tags", "uniq_key", "born_timestamp",
                             "deliver_at"],
        "write_page_index": True,
        "column_encoding": {**dict.fromkeys(_GROWING, "DELTA_BINARY_PACKED"), "uniq_key": "DELTA_BYTE_ARRAY"},
        "bloom_filter_options": {"uniq_key": bloom, "keys.list.element": bloom},
        "sorting_columns": [pq.SortingColumn(place(name)) for name in ("topic", "queue_id", "queue_offset")],
    }


def file_options(kind: str, schema: pa.Schema, rows: int) -> dict[str, Any]:
    """Return the options of the Parquet files of a table that is ``messages`` or ``typed``."""
    if kind == "messages":
        return message_options(rows)
    bloom = {"ndv": max(rows, 1), "fpp": 0.01}
    return {
        "compression": "zstd", "compression_level": 1, "write_statistics": True, "write_page_index": True,
        "bloom_filter_options": {"_uniq_key": bloom, "_keys.list.element": bloom},
        "sorting_columns": [pq.SortingColumn(schema.get_field_index(name)) for name in FORMS[kind].order],
    }


def ids_of(table: str, found: Mapping[str, tuple[int, str]], required: frozenset[str], schema: pa.Schema) -> Ids:
    """Return the field ids of a table, whose fields are ``found`` (id and type by path).

    Raises StoreError if the table lacks a column, has it with another type, or requires a column of others.
    """
    wanted = arrow_paths(schema)
    for path, (_, kind) in wanted.items():
        if path not in found:
            raise StoreError(f"the table {table} has no column {path}: it was changed, or it is another table")
        if found[path][1] != kind:
            raise StoreError(f"the column {path} of the table {table} is {found[path][1]}, not {kind}")
    if strange := required - wanted.keys():
        raise StoreError(f"the table {table} requires a column {min(strange)}, which an archive does not have")
    return Ids(table, {path: found[path][0] for path in wanted})
