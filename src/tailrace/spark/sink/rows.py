"""Rows in the form of staging. They are checked before, so that the broker refuses no message later.

A task applies the rules for which it needs no broker. For the limits of a broker see ``limits``.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.env.entropy import SystemEntropy
from tailrace.errors import MessageIllegalError
from tailrace.formats import names as N
from tailrace.formats.copied_properties import SENT_PROPERTIES_MAX
from tailrace.formats.lite import is_lite_name
from tailrace.kernels.properties import message_properties
from tailrace.model import Message
from tailrace.node.table_columns import Texts, pieces_of, stored_properties
from tailrace.node.topic_config import FORBIDDEN_TO_SEND, validate_topic
from tailrace.store.record_rules import HONOURED_ALONE, refuse_in_batch

__all__ = ["STAGED_SCHEMA", "staged"]

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
_OWN: Final = 256
"""Bytes of the properties at most that a send adds: the unique key and the number in the stream."""
_WITH_A_MEANING: Final = pa.array([
    N.TAGS, N.KEYS, N.DELAY, N.TIMER_DELAY_SEC, N.TIMER_DELAY_MS, N.TIMER_DELIVER_MS, N.TRAN_MSG, N.INNER_NUM,
    N.LITE_TOPIC])


def staged(batch: pa.RecordBatch, topic: str) -> pa.RecordBatch:
    """Return a batch in the form of staging. Raises MessageIllegalError if a row is not a valid message."""
    columns = []
    for field in STAGED_SCHEMA:
        place = batch.schema.get_field_index(field.name)
        column = pa.nulls(batch.num_rows, field.type) if place < 0 else batch.column(place)
        if field.name != "body":
            _check_texts(field.name, column)
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
        _encoded(made)
    return made


def _encoded(made: pa.RecordBatch) -> list[Texts]:
    """Return the stored properties of rows, encoded as when they are sent. Raises MessageIllegalError."""
    return [stored_properties(piece, SystemEntropy())[0] for piece in pieces_of(made)]


def _check_texts(name: str, column: pa.Array) -> None:
    """Raise MessageIllegalError if a text of a column is not UTF-8: a string of Spark may hold any bytes."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise MessageIllegalError(name, f"cannot be stored as UTF-8: {error}") from None


def are_messages(made: pa.RecordBatch) -> bool:
    """Return True if ``_check`` accepts all rows. It may be False although it does; it is much faster."""
    try:
        encoded = _encoded(made)
    except MessageIllegalError:
        return False
    return (
        all(_are_filled(made[name]) for name in ("topic", "body"))
        and not any(_any(pc.less(made[name], 0)) for name in ("queueId", "deliverAt"))
        and not _any(pc.is_in(made["properties"].keys, value_set=_WITH_A_MEANING))
        and not any(map(_wrong_topic, made["topic"].unique().to_pylist()))
        and all(texts.lengths.max(initial=0) <= SENT_PROPERTIES_MAX - _OWN for texts in encoded))


def _are_filled(column: pa.Array) -> bool:
    """Return True if no value is null or empty."""
    return not column.null_count and not _any(pc.equal(pc.binary_length(column), 0))


def _any(found: pa.Array) -> bool:
    return bool(pc.any(found, min_count=0).as_py())


def _wrong_topic(topic: str) -> str:
    """Return why no row may have a topic, or ""."""
    if topic in FORBIDDEN_TO_SEND:
        return f"{topic} is of the broker itself"
    if topic.startswith(N.RETRY_GROUP_TOPIC_PREFIX):  # the broker may store such a message in another topic
        return f"{topic} is the retry topic of a group: only its consumers send to it"
    return validate_topic(topic)


def _check(row: dict[str, Any]) -> None:
    """Raise MessageIllegalError if the broker would refuse the row, or would store it where the sink does not look.

    A batch of a stream with such a row could never be sent: its manifest names the same rows in each try.
    """
    topic = row["topic"]
    if not topic:
        raise MessageIllegalError("topic", "is null")
    if why := _wrong_topic(topic):
        raise MessageIllegalError("topic", why)
    if not row["body"]:  # brokers refuse a message without one
        raise MessageIllegalError("body", f"is null or empty, of a message of {topic}")
    if row["queueId"] is not None and row["queueId"] < 0:
        raise MessageIllegalError("queueId", f"{row['queueId']} is negative")
    properties = dict(row["properties"] or ())
    if N.INNER_NUM in properties:
        raise MessageIllegalError("properties", f"{N.INNER_NUM} of a message of {topic} is for inner batches only")
    if not is_lite_name(name := properties.get(N.LITE_TOPIC, "none")):
        raise MessageIllegalError(
            "properties", f"{N.LITE_TOPIC} of a message of {topic} is {name[:100]!r}; a Lite topic has letters, "
            "digits, - and _ in its name")
    message = Message(
        topic=topic, body=row["body"], tags=row["tags"] or None, keys=row["keys"] or (), properties=properties,
        deliver_at=row["deliverAt"])
    size = len(message_properties(message, "")) + _OWN
    if size > SENT_PROPERTIES_MAX:
        raise MessageIllegalError(
            "properties", f"of a message of {topic} have {size} bytes, over the limit of {SENT_PROPERTIES_MAX}")
    try:
        refuse_in_batch({n: text for n, text in properties.items() if n not in HONOURED_ALONE}, "the row")
    except MessageIllegalError as error:
        raise MessageIllegalError(
            "properties", f"of a message of {topic}: only the column deliverAt delays a message, and the sink has no "
            "transactions") from error
