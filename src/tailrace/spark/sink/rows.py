"""Rows in the form of staging. They are checked before, so that the broker refuses no message later."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import MessageIllegalError
from tailrace.model import Message

__all__ = ["STAGED_SCHEMA", "TXN", "messages_of", "staged"]

TXN: Final = "TAILRACE_TXN"
"""Property of every message of a stream: query/batch/number."""

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
_OF_SEPARATORS: Final = "[\x01\x02]"
_OF_KEYS: Final = "[\x01\x02 ]"


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
    if not are_messages(made):
        for row in made.to_pylist():
            _check(row)
    return made


def are_messages(made: pa.RecordBatch) -> bool:
    """Return True if ``_check`` accepts all rows. It may be False although it does; it is much faster."""
    queues, keys, pairs = made["queueId"], made["keys"].flatten(), made["properties"]
    return (
        all(_are_filled(made[name]) for name in ("topic", "body")) and _are_filled(keys, _OF_KEYS)
        and all(_are_filled(part, _OF_SEPARATORS) for part in (pairs.keys, pairs.items))
        and not _any(pc.match_substring_regex(made["tags"], _OF_SEPARATORS))
        and not _any(pc.less(queues, 0)))


def _are_filled(column: pa.Array, without: str = "") -> bool:
    """Return True if no value is null or empty, and none has a character of a regular expression."""
    return (
        not column.null_count and not _any(pc.equal(pc.binary_length(column), 0))
        and not (without and _any(pc.match_substring_regex(column, without))))


def _any(found: pa.Array) -> bool:
    return bool(pc.any(found, min_count=0).as_py())


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


def messages_of(batch: pa.RecordBatch, txn: str = "", first: int = 0) -> Iterator[tuple[Message, int | None]]:
    """Yield (message, queue or None) of every staged row.

    If ``txn`` is given, each message has it in the property ``TXN``, with a number that counts from ``first``.
    """
    columns = (batch.column(field.name).to_pylist() for field in STAGED_SCHEMA)
    for number, (topic, tags, keys, pairs, body, deliver_at, queue_id) in enumerate(zip(*columns, strict=True), first):
        properties = dict(pairs or ())
        if txn:
            properties[TXN] = f"{txn}{number}"
        yield Message(
            topic=topic, body=body, tags=tags or None, keys=keys or (), properties=properties,
            deliver_at=deliver_at), queue_id
