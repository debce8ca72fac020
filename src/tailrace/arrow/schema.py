"""Columns of a message: their names, and their types in Spark and in Arrow."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from tailrace.arrow import pyarrow

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["COLUMN_NAMES", "COLUMN_TYPES", "arrow_schema"]

COLUMN_TYPES: Final = {
    "store": "string",
    "topic": "string",
    "queueId": "int",
    "queueOffset": "bigint",
    "commitLogOffset": "bigint",
    "storeSize": "int",
    "msgId": "string",
    "uniqKey": "string",
    "tags": "string",
    "keys": "array<string>",
    "body": "binary",
    "properties": "map<string,string>",
    "bornTimestamp": "timestamp",
    "storeTimestamp": "timestamp",
    "bornHost": "string",
    "storeHost": "string",
    "flag": "int",
    "sysFlag": "int",
    "bodyCRC": "int",
    "reconsumeTimes": "int",
    "preparedTransactionOffset": "bigint",
    "deliverAt": "timestamp",
    # Why a record cannot be read, else null; there only when damaged records are rows.
    "damaged": "string",
}
"""Column name: type in Spark's DDL. The last one is there only when a read asks for damaged records."""
COLUMN_NAMES: Final = tuple(name for name in COLUMN_TYPES if name != "damaged")


def _arrow_types() -> dict[str, Any]:
    pa = pyarrow()
    return {
        "string": pa.string(),
        "binary": pa.binary(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "array<string>": pa.list_(pa.field("element", pa.string(), nullable=True)),
        "map<string,string>": pa.map_(pa.string(), pa.string()),
    }


@functools.cache
def arrow_schema(columns: tuple[str, ...] = COLUMN_NAMES) -> pa.Schema:
    """The Arrow form of some columns, in their order. Raises MissingPackageError without pyarrow."""
    types = _arrow_types()
    return pyarrow().schema([(name, types[COLUMN_TYPES[name]]) for name in columns])
