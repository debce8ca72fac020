"""Columns of a message: their names, and their types in Spark and in Arrow."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from tailrace.arrow import pyarrow

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["COLUMN_MEANINGS", "COLUMN_NAMES", "COLUMN_TYPES", "arrow_schema"]

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
COLUMN_MEANINGS: Final = {
    "store": "Name of the directory, or the label of the option `store`.",
    "topic": "Topic of the queue.",
    "queueId": "Number of the queue.",
    "queueOffset": "Offset in the queue.",
    "commitLogOffset": "Position of the record in the CommitLog.",
    "storeSize": "Length of the record in bytes.",
    "msgId": "Offset message id: address of the broker and position of the record.",
    "uniqKey": "Unique key, by which clients name a message; null without one.",
    "tags": "Tag; null without one.",
    "keys": "Keys; an empty list without one.",
    "body": "Body. It is compressed if `sysFlag` has the bit 1, unless a Spark read has `body=decoded`.",
    "properties": "All properties, with those that have a column of their own.",
    "bornTimestamp": "When the client made the message, by its clock.",
    "storeTimestamp": "When the broker stored the message.",
    "bornHost": "Address of the client, `IP:PORT`.",
    "storeHost": "Address of the broker, `IP:PORT`.",
    "flag": "Flag that the client has set. Tailrace does not use it.",
    "sysFlag": "Bits of RocketMQ's MessageSysFlag, such as compression (1) and transactions (12).",
    "bodyCRC": "CRC-32 of the stored body.",
    "reconsumeTimes": "Number of redeliveries to a consumer group.",
    "preparedTransactionOffset": "Position of the half message of a committed message; else 0.",
    "deliverAt": "Delivery time of a timer message; null for others, even with a delay level.",
    "damaged": "Why the record cannot be read; null for a valid record.",
}
"""Column name: what it holds, for the page that is generated from this module."""
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
