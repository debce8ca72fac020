"""Rows of a typed table from rows of ``messages``: the fields of bodies as columns.

A body that does not fit keeps its row: ``_error`` says why, ``_body`` has its bytes, and its fields are null.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import ConfigError
from tailrace.spark.lake.bodies.registry import HEADER_BYTES, message_indexes, schema_id
from tailrace.spark.lake.bodies.values import BAD_VALUES, BodyError, Reader
from tailrace.spark.lake.schemas import MESSAGES_SCHEMA

__all__ = ["ENVELOPE", "FORMATS", "Schema", "TopicSchema", "merged_type", "typed_rows"]

FORMATS: Final = ("json", "avro", "protobuf")
_FROM_MESSAGES: Final = (
    "broker", "queue_id", "queue_offset", "store_timestamp", "born_timestamp", "tags", "keys", "uniq_key", "properties",
    "commit_log_offset",
)
ENVELOPE: Final = pa.schema([
    *(MESSAGES_SCHEMA.field(name).with_name(f"_{name}") for name in _FROM_MESSAGES),
    pa.field("_schema_id", pa.int32()),
    pa.field("_error", pa.string()),
    pa.field("_body", pa.binary()),
])
"""Columns that every typed table has before those of its bodies. ``_body`` is null unless there is an ``_error``."""


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema of bodies. ``id`` is that of a registry, 0 for a file. ``where`` names it in errors."""

    id: int
    format: str
    data: bytes
    where: str
    others: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True)
class TopicSchema:
    """All schemas of a topic, the oldest first. Tasks get it pickled."""

    topic: str
    message: str
    header: bool
    schemas: tuple[Schema, ...]

    def checked(self) -> Self:
        """Return this object. Raises ConfigError for a schema that cannot be columns, and names the field."""
        names = {one.name for one in ENVELOPE}
        for one in self.columns:
            if one.name in names:
                raise ConfigError(f"topic {self.topic}: the field {one.name} has the name of a column of the table")
        return self

    @property
    def columns(self) -> pa.Schema:
        """The fields of all schemas as columns; each has the widest type of its versions."""
        found: dict[str, pa.DataType] = {}
        for schema in self.schemas:
            for one in _reader(schema, self.message).columns:
                found[one.name] = one.type if one.name not in found else merged_type(
                    found[one.name], one.type, one.name, f"topic {self.topic}, {schema.where}")
        return pa.schema([pa.field(name, kind) for name, kind in found.items()])

    @property
    def table_schema(self) -> pa.Schema:
        """All columns of the typed table, without field ids."""
        return pa.schema([*ENVELOPE, *self.columns])

    def read(self, body: bytes) -> tuple[int | None, Mapping[str, Any]]:
        """Return the id of a body's schema and its values. Raises BodyError."""
        if not self.header:
            return None, _reader(self.schemas[0], self.message).read(body)
        number, at = schema_id(body), HEADER_BYTES
        schema = self.schemas[0] if not self.schemas[0].id else next(
            (one for one in self.schemas if one.id == number), None)
        if schema is None:
            raise BodyError(f"the schema id {number} is not one of the topic's subject")
        if schema.format == "protobuf":
            place, at = message_indexes(body)
            if place != _place(schema, self.message):
                raise BodyError(
                    f"the body is not the message {self.message or 'that is the first'} of its schema, but that at "
                    f"{'.'.join(map(str, place))}")
        return number, _reader(schema, self.message).read(body[at:])


@functools.lru_cache(maxsize=256)
def _reader(schema: Schema, message: str) -> Reader:
    """Return the reader of a schema; each format is imported only if a topic has it."""
    if schema.format == "json":
        from tailrace.spark.lake.bodies.json_schema import json_reader  # noqa: PLC0415

        return json_reader(schema.data, schema.where)
    if schema.format == "avro":
        from tailrace.spark.lake.bodies.avro import avro_reader  # noqa: PLC0415

        return avro_reader(schema.data, schema.where, [data for _, data in schema.others])
    from tailrace.spark.lake.bodies.protobuf import protobuf_reader  # noqa: PLC0415

    return protobuf_reader(_descriptors(schema), schema.where, message)


def _descriptors(schema: Schema) -> bytes:
    from tailrace.spark.lake.bodies.protobuf import descriptor_set  # noqa: PLC0415

    return descriptor_set(schema.others, schema.data) if schema.id else schema.data


@functools.lru_cache(maxsize=256)
def _place(schema: Schema, message: str) -> tuple[int, ...] | None:
    from tailrace.spark.lake.bodies.protobuf import message_place  # noqa: PLC0415

    return message_place(_descriptors(schema), message) if message else (0,)


def merged_type(old: pa.DataType, new: pa.DataType, path: str, where: str) -> pa.DataType:
    """Return the type of a column for values of both types, by Iceberg's rules for a changed type.

    Raises ConfigError that names the field if none of the two is wider.
    """
    if old == new and not pa.types.is_nested(old):
        return old
    for low, high in ((old, new), (new, old)):
        if (low, high) in {(pa.int32(), pa.int64()), (pa.float32(), pa.float64())}:
            return high
        if pa.types.is_decimal(low) and pa.types.is_decimal(high) and low.scale == high.scale and (
                low.precision < high.precision):
            return high
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        there = {old.field(at).name: old.field(at).type for at in range(old.num_fields)}
        for at in range(new.num_fields):
            one = new.field(at)
            there[one.name] = one.type if one.name not in there else merged_type(
                there[one.name], one.type, f"{path}.{one.name}", where)
        return pa.struct([pa.field(name, kind) for name, kind in there.items()])
    if pa.types.is_list(old) and pa.types.is_list(new):
        return pa.list_(pa.field("element", merged_type(old.value_type, new.value_type, f"{path}[]", where)))
    if pa.types.is_map(old) and pa.types.is_map(new) and old.key_type == new.key_type:
        return pa.map_(old.key_type, merged_type(old.item_type, new.item_type, f"{path}.*", where))
    raise ConfigError(
        f"{where}: the field {path} is {new}, and was {old}: only new fields and wider types can be added to a table, "
        "so give the field another name")


def typed_rows(rows: pa.Table, topic: TopicSchema, schema: pa.Schema) -> pa.Table:
    """Return the rows of the topic with the columns of a typed table, whose schema is given."""
    rows = rows.filter(pc.equal(rows["topic"], topic.topic))
    ids = list[int | None]()
    errors = list[str | None]()
    bad = list[bytes | None]()
    values = list[Mapping[str, Any]]()
    for body, problem in zip(rows["body"].to_pylist(), rows["body_error"].to_pylist(), strict=True):
        number: int | None = None
        found: Mapping[str, Any] = {}
        why = problem
        if why is None:
            try:
                number, found = topic.read(body or b"")
            except BAD_VALUES as error:
                why = str(error) if isinstance(error, BodyError) else f"{type(error).__name__}: {error}"
        ids.append(number)
        errors.append(why)
        bad.append(None if why is None else body)
        values.append(found)
    found_columns = _body_columns(values, schema)
    if isinstance(found_columns, str):  # a value that its reader should have refused: find the rows
        for row, value in enumerate(values):
            if isinstance(why_not := _body_columns([value], schema), str):
                values[row], errors[row], bad[row] = {}, why_not, rows["body"][row].as_py()
        found_columns = _body_columns(values, schema)
        assert not isinstance(found_columns, str)
    made = {"_schema_id": ids, "_error": errors, "_body": bad}
    columns = []
    for one in schema:
        if one.name in made:
            columns.append(pa.array(made[one.name], one.type))
        elif one.name in ENVELOPE.names:
            columns.append(rows[one.name[1:]].cast(one.type))
        else:
            columns.append(found_columns[one.name])
    return pa.table(columns, schema=schema)


def _body_columns(values: Sequence[Mapping[str, Any]], schema: pa.Schema) -> dict[str, pa.Array] | str:
    """Return the columns of bodies, or why a value does not fit the type of its column."""
    made = {}
    for one in schema:
        if one.name not in ENVELOPE.names:
            try:
                made[one.name] = pa.array([row.get(one.name) for row in values], one.type)
            except (pa.ArrowException, *BAD_VALUES) as error:
                return f"{one.name} does not fit its column: {(str(error).splitlines() or [''])[0]}"
    return made
