"""Columns of a message."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tailrace.errors import ConfigError

__all__ = ["COLUMN_NAMES", "arrow_schema", "column_names", "columns_of", "spark_schema"]

_TIME = pa.timestamp("us", tz="UTC")
_FIELDS: dict[str, tuple[pa.DataType, str]] = {
    "store": (pa.string(), "string"),
    "topic": (pa.string(), "string"),
    "queueId": (pa.int32(), "int"),
    "queueOffset": (pa.int64(), "bigint"),
    "commitLogOffset": (pa.int64(), "bigint"),
    "storeSize": (pa.int32(), "int"),
    "msgId": (pa.string(), "string"),
    "uniqKey": (pa.string(), "string"),
    "tags": (pa.string(), "string"),
    "keys": (pa.list_(pa.field("element", pa.string(), nullable=True)), "array<string>"),
    "body": (pa.binary(), "binary"),
    "properties": (pa.map_(pa.string(), pa.string()), "map<string,string>"),
    "bornTimestamp": (_TIME, "timestamp"),
    "storeTimestamp": (_TIME, "timestamp"),
    "bornHost": (pa.string(), "string"),
    "storeHost": (pa.string(), "string"),
    "flag": (pa.int32(), "int"),
    "sysFlag": (pa.int32(), "int"),
    "bodyCRC": (pa.int32(), "int"),
    "reconsumeTimes": (pa.int32(), "int"),
    "preparedTransactionOffset": (pa.int64(), "bigint"),
    "deliverAt": (_TIME, "timestamp"),
}
COLUMN_NAMES = tuple(_FIELDS)
# Why a record cannot be read, else null; there only when damaged records are rows.
_FIELDS["damaged"] = (pa.string(), "string")


def column_names(mode: str) -> tuple[str, ...]:
    """Columns of a value of the option ``mode``."""
    return (*COLUMN_NAMES, "damaged") if mode == "PERMISSIVE" else COLUMN_NAMES


def arrow_schema(columns: tuple[str, ...]) -> pa.Schema:
    """The Arrow form of some columns, in their order."""
    return pa.schema([pa.field(name, _FIELDS[name][0]) for name in columns])


def spark_schema(columns: tuple[str, ...]) -> str:
    """The Spark form of the same columns, as DDL: where Spark asks for it there is no session."""
    return ", ".join(f"`{name}` {_FIELDS[name][1]}" for name in columns)


def columns_of(types: Sequence[tuple[str, str]], known: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of a schema that a query or a table names, as (name, type).

    Raises ConfigError for a column that the source does not have, or has with another type.
    """
    problems = []
    for name, kind in types:
        if name not in known:
            problems.append(f"the source has no column {name}: known are {', '.join(known)}")
        elif kind != _FIELDS[name][1]:
            problems.append(
                f"column {name} is {_FIELDS[name][1]}, not {kind}: leave the schema out, or cast the "
                "column in a select")
    if problems:
        raise ConfigError(*problems)
    return tuple(name for name, _ in types)
