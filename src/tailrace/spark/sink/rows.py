"""Rows in the form of staging. They are checked before, so that the broker refuses no message later."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from tailrace.errors import MessageIllegalError
from tailrace.model import Message

__all__ = ["STAGED_SCHEMA", "messages_of", "staged"]

STAGED_SCHEMA: Final = pa.schema([
    pa.field("topic", pa.string()),
    pa.field("tags", pa.string()),
    pa.field("keys", pa.list_(pa.string())),
    pa.field("properties", pa.map_(pa.string(), pa.string())),
    pa.field("body", pa.binary()),
    pa.field("deliverAt", pa.int64()),
    pa.field("queueId", pa.int32()),
])
"""``deliverAt`` is in ms since 1970."""
_SEPARATORS: Final = frozenset("\x01\x02")


def staged(batch: pa.RecordBatch, topic: str) -> pa.RecordBatch:
    """Return a batch in the form of staging. Raises MessageIllegalError if a row is not a valid message."""
    columns = []
    for field in STAGED_SCHEMA:
        place = batch.schema.get_field_index(field.name)
        column = pa.nulls(batch.num_rows, field.type) if place < 0 else batch.column(place)
        if field.name == "topic" and topic:
            column = column.fill_null(topic)
        elif field.name == "keys" and pa.types.is_string(column.type):
            column = pa.array(
                [None if text is None else text.split() for text in column.to_pylist()], field.type)
        elif field.name == "deliverAt" and pa.types.is_timestamp(column.type):
            micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
            column = pa.compute.divide(micros, 1000)
        columns.append(column.cast(field.type))
    made = pa.RecordBatch.from_arrays(columns, schema=STAGED_SCHEMA)
    for row in made.to_pylist():
        _check(row)
    return made


def _check(row: dict[str, Any]) -> None:
    if not row["topic"]:
        raise MessageIllegalError("topic", "is null")
    if not row["body"]:  # brokers refuse a message without one
        raise MessageIllegalError("body", f"is null or empty, of a message of {row['topic']}")
    for key in row["keys"] or ():
        if not key or " " in key:
            raise MessageIllegalError("keys", f"{key!r} is not one word")
    for name, value in row["properties"] or ():
        if not name or not value or _SEPARATORS & (set(name) | set(value)):
            raise MessageIllegalError(
                "properties", f"{name!r}: name and value must not be empty nor hold 0x01 or 0x02")
    if _SEPARATORS & set((row["tags"] or "") + "".join(row["keys"] or ())):
        raise MessageIllegalError("tags", "neither tags nor keys may hold 0x01 or 0x02")
    if row["queueId"] is not None and row["queueId"] < 0:
        raise MessageIllegalError("queueId", f"{row['queueId']} is negative")


def messages_of(batch: pa.RecordBatch) -> Iterator[tuple[Message, int | None]]:
    """Yield (message, queue or None) of every staged row."""
    for row in batch.to_pylist():
        yield Message(
            topic=row["topic"], body=row["body"], tags=row["tags"] or None, keys=row["keys"] or (),
            properties=dict(row["properties"] or ()), deliver_at=row["deliverAt"]), row["queueId"]
