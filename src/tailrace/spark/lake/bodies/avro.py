"""Bodies in Avro's binary form, by a schema in JSON."""

from __future__ import annotations

import datetime as dt
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

import pyarrow as pa

from tailrace.errors import ConfigError, MissingPackageError
from tailrace.spark.lake.bodies.values import (
    BAD_VALUES,
    DEPTH_MAX,
    BodyError,
    Column,
    Reader,
    columns_of,
    decimal,
    integer,
)

try:
    import fastavro
except ModuleNotFoundError as error:
    raise MissingPackageError("bodies in Avro", error.name or "fastavro", "lake") from None
from fastavro.schema import SchemaParseException, UnknownType

__all__ = ["avro_reader"]

_Kind = tuple[pa.DataType, Callable[[Any], Any]]
_LOGICAL: Final = {
    ("int", "date"): pa.date32(), ("long", "timestamp-millis"): pa.timestamp("us", tz="UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", tz="UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("us"), ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("int", "time-millis"): pa.int64(), ("long", "time-micros"): pa.int64(),
}
"""Columns of logical types; a time of day is in microseconds."""


def avro_reader(text: bytes, where: str, others: Sequence[bytes] = ()) -> Reader:
    """Return the reader of a record schema. ``others`` are schemas whose names it uses, in their order.

    Raises ConfigError that names the field which cannot be a column.
    """
    names: dict[str, Any] = {}
    try:
        for one in others:
            fastavro.parse_schema(json.loads(one), named_schemas=names)
        schema = fastavro.parse_schema(json.loads(text), named_schemas=names)
    except (SchemaParseException, UnknownType, *BAD_VALUES) as error:
        raise ConfigError(f"{where} is not a schema of Avro: {error}") from None
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ConfigError(f"{where} is not a record of Avro")
    columns = _Compiler(where, names).record(schema, "", ())
    values = _record(columns)

    def read(body: bytes) -> Mapping[str, Any]:
        source = io.BytesIO(body)
        try:
            value = fastavro.schemaless_reader(source, schema, None)
        except BAD_VALUES as error:
            raise BodyError(f"the body is not a record of Avro: {type(error).__name__} {error}".strip()) from None
        if source.tell() != len(body):
            raise BodyError(f"{len(body) - source.tell()} bytes follow the record")
        return values(value)

    return Reader(columns, read)


class _Compiler:
    """Makes columns of a schema that fastavro has parsed; ``above`` are the records around a field."""

    def __init__(self, where: str, names: Mapping[str, Any]) -> None:
        self._where, self._names = where, names

    def record(self, schema: Any, path: str, above: tuple[str, ...]) -> tuple[Column, ...]:
        """Return the fields of a record as columns."""
        if schema["name"] in above:
            self._refuse(path, f"is the record {schema['name']} inside itself")
        inside = (*above, schema["name"])
        made = []
        for one in schema["fields"]:
            name = f"{path}.{one['name']}" if path else one["name"]
            made.append(Column(one["name"], *self._kind(one["type"], name, inside)))
        return columns_of(f"{self._where}: {path or schema['name']}", made)

    def _kind(self, given: Any, path: str, above: tuple[str, ...]) -> _Kind:
        if path.count(".") + path.count("[") > DEPTH_MAX:
            self._refuse(path, f"is deeper than {DEPTH_MAX} fields")
        if isinstance(given, list):
            options = [one for one in given if one not in ("null", {"type": "null"})]
            if len(options) != 1:
                self._refuse(path, "is a union of several types, which cannot be a column")
            kind, convert = self._kind(options[0], path, above)
            return kind, _same if convert is _same else lambda value: None if value is None else convert(value)
        schema = given if isinstance(given, dict) else {"type": given}
        name = schema["type"]
        if isinstance(name, (dict, list)):
            return self._kind(name, path, above)
        if name in self._names and name not in {"record", "error", "enum", "fixed"}:
            schema = self._names[name]
            name = schema["type"]
        return self._simple(name, schema, path, above)

    def _simple(self, name: str, schema: Any, path: str, above: tuple[str, ...]) -> _Kind:
        logical = schema.get("logicalType")
        if (found := _LOGICAL.get((name, logical))) is not None:
            return found, _time_of_day if logical.startswith("time-") else _same
        if name in {"bytes", "fixed"} and logical == "decimal":
            precision, scale = schema["precision"], schema.get("scale", 0)
            if not 0 < precision <= 38:
                self._refuse(path, f"has {precision} digits, and a column has at most 38")
            return pa.decimal128(precision, scale), decimal(path, precision, scale)
        match name:
            case "boolean":
                return pa.bool_(), _same
            case "int":  # fastavro reads one as a long
                return pa.int32(), integer(path, 32)
            case "long":
                return pa.int64(), _same
            case "float":
                return pa.float32(), _same
            case "double":
                return pa.float64(), _same
            case "bytes" | "fixed":
                return pa.binary(), _same
            case "string" | "enum":
                return pa.string(), str if logical == "uuid" else _same
            case "record" | "error":
                columns = self.record(schema, path, above)
                return pa.struct([pa.field(one.name, one.type) for one in columns]), _record(columns)
            case "array":
                self._check_has_bytes(schema["items"], path)
                kind, convert = self._kind(schema["items"], f"{path}[]", above)
                return pa.list_(pa.field("element", kind)), _same if convert is _same else lambda value: [
                    convert(one) for one in value]
            case "map":
                kind, convert = self._kind(schema["values"], f"{path}.*", above)
                return pa.map_(pa.string(), kind), lambda value: [(key, convert(one)) for key, one in value.items()]
            case _:
                return self._refuse(path, f"has the type {name}, which cannot be a column")

    def _check_has_bytes(self, items: Any, path: str) -> None:
        """Refuse items without bytes: a body of ten bytes could have billions of them."""
        schema = self._names.get(items, items) if isinstance(items, str) else items
        if isinstance(schema, dict):
            kind = schema.get("type")
            if (kind == "fixed" and not schema.get("size")) or (kind in {"record", "error"} and not schema["fields"]):
                self._refuse(path, "is an array of items that have no bytes")

    def _refuse(self, path: str, why: str) -> NoReturn:
        raise ConfigError(f"{self._where}: the field {path} {why}")


def _same(value: Any) -> Any:
    return value


def _time_of_day(value: dt.time) -> int:
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond


def _record(columns: Sequence[Column]) -> Callable[[Any], Any]:
    """Return the function that converts the values of a record, in place. Most values need no conversion."""
    needed = [(one.name, one.convert) for one in columns if one.convert is not _same]

    def convert(value: Any) -> Any:
        for name, one in needed:
            value[name] = one(value[name])
        return value

    return convert if needed else _same
