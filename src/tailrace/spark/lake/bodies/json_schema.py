"""Bodies in JSON, by a JSON Schema.

Types, ``properties``, ``required``, ``items``, ``additionalProperties``, ``format`` date-time and date, local
``$ref`` and alternatives with null count. A schema with several types, or without one, becomes a column with JSON
text. Other keywords, such as ``minimum``, are not checked.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

import pyarrow as pa

from tailrace.errors import ConfigError
from tailrace.spark.lake.bodies.values import (
    BAD_VALUES,
    DEPTH_MAX,
    BodyError,
    Column,
    Reader,
    boolean,
    columns_of,
    integer,
    string,
)

__all__ = ["json_reader"]

_TIME: Final = pa.timestamp("us", tz="UTC")
_Kind = tuple[pa.DataType, Callable[[Any], Any]]


def json_reader(text: bytes, where: str) -> Reader:
    """Return the reader of a JSON Schema. Raises ConfigError that names the field which cannot be a column."""
    try:
        schema = json.loads(text)
    except BAD_VALUES as error:
        raise ConfigError(f"{where} is not JSON: {error}") from None
    compiler = _Compiler(schema, where)
    columns, required = compiler.properties(compiler.resolved(schema, "", ()), "", ())
    by_name = {one.name: one for one in columns_of(where, columns)}

    def read(body: bytes) -> Mapping[str, Any]:
        try:
            value = json.loads(body.decode(), parse_constant=_no_constant)
        except BodyError:
            raise
        except BAD_VALUES as error:
            raise BodyError(f"the body is not JSON: {_line(error)}") from None
        return _object(value, by_name, required, "the body")

    return Reader(tuple(by_name.values()), read)


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _no_constant(name: str) -> NoReturn:
    raise BodyError(f"the body is not JSON: it has {name}")


def _object(value: Any, columns: Mapping[str, Column], required: frozenset[str], path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BodyError(f"{path} is not an object")
    for name in required:
        if name not in value:
            raise BodyError(f"{path} has no {name}")
    made = {}
    for name, one in columns.items():
        found = value.get(name)
        if found is not None or name in required:
            made[name] = one.convert(found)
    return made


def _text(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    except BAD_VALUES as error:
        raise BodyError(f"a value cannot be JSON text: {error}") from None


class _Compiler:
    """Makes columns of a schema; ``above`` has the references that lead to a field."""

    def __init__(self, root: Any, where: str) -> None:
        self._root, self._where = root, where

    def resolved(self, node: Any, path: str, above: tuple[str, ...]) -> Any:
        """Return a schema, or the one that it refers to, without an alternative for null."""
        if not isinstance(node, dict):
            return {} if node is True else self._refuse(path, "has no schema")
        if (ref := node.get("$ref")) is not None:
            if ref in above or len(above) > DEPTH_MAX:
                self._refuse(path, f"refers to itself by {ref}")
            found: Any = self._root
            if not isinstance(ref, str) or not ref.startswith("#"):
                self._refuse(path, f"refers to {ref}, which is not in the schema")
            for part in ref[1:].strip("/").split("/") if ref != "#" else []:
                found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
            return self.resolved(found, path, (*above, ref))
        if "allOf" in node:
            self._refuse(path, "has allOf, which cannot be columns")
        return node

    def properties(self, node: Any, path: str, above: tuple[str, ...]) -> tuple[list[Column], frozenset[str]]:
        """Return the columns of an object, and the names of those that a body must have."""
        names = node.get("properties")
        if not isinstance(names, dict) or not names:
            self._refuse(path, "has no properties")
        required = frozenset(one for one in node.get("required", ()) if one in names)
        columns = []
        for name, one in names.items():
            kind, convert, nullable = self._kind(one, f"{path}.{name}" if path else name, above)
            columns.append(Column(name, kind, _or_null(convert) if nullable else convert))
        return columns, required

    def _kind(self, given: Any, path: str, above: tuple[str, ...]) -> tuple[pa.DataType, Callable[[Any], Any], bool]:
        if path.count(".") > DEPTH_MAX:
            self._refuse(path, f"is deeper than {DEPTH_MAX} fields")
        ref = given.get("$ref") if isinstance(given, dict) else None
        inside = above if ref is None else (*above, ref)
        node = self.resolved(given, path, above)
        nullable = False
        for word in ("anyOf", "oneOf"):
            if word in node:
                options = [one for one in node[word] if one != {"type": "null"}]
                if len(options) != 1:
                    return pa.string(), _text, True
                kind, convert, _ = self._kind(options[0], path, inside)
                return kind, convert, True
        types = node.get("type")
        if isinstance(types, list):
            nullable = "null" in types
            types = [one for one in types if one != "null"]
            types = types[0] if len(types) == 1 else None
        if types is None and isinstance(node.get("properties"), dict):
            types = "object"
        if types is None and "enum" in node and all(isinstance(one, str) for one in node["enum"]):
            types = "string"
        kind, convert = self._simple(types, node, path, inside)
        return kind, convert, nullable or types is None

    def _simple(self, name: str | None, node: Any, path: str, above: tuple[str, ...]) -> _Kind:
        match name:
            case "boolean":
                return pa.bool_(), boolean(path)
            case "integer":
                return pa.int64(), _whole(path)
            case "number":
                return pa.float64(), _number(path)
            case "string":
                if node.get("format") == "date-time":
                    return _TIME, _time(path)
                if node.get("format") == "date":
                    return pa.date32(), _date(path)
                return pa.string(), string(path)
            case "object" if node.get("properties"):
                columns, required = self.properties(node, path, above)
                by_name = {one.name: one for one in columns_of(f"{self._where}: {path}", columns)}
                made = pa.struct([pa.field(one.name, one.type) for one in by_name.values()])
                return made, lambda value: _object(value, by_name, required, path)
            case "object" if isinstance(node.get("additionalProperties"), dict):
                kind, convert, _ = self._kind(node["additionalProperties"], f"{path}.*", above)
                return pa.map_(pa.string(), kind), _map(path, convert)
            case "array" if isinstance(node.get("items"), dict):
                kind, convert, nullable = self._kind(node["items"], f"{path}[]", above)
                return pa.list_(pa.field("element", kind)), _list(path, _or_null(convert) if nullable else convert)
            case "object" | "array" | None:
                return pa.string(), _text
            case _:
                return self._refuse(path, f"has the type {name!r}, which is not one of JSON Schema")

    def _refuse(self, path: str, why: str) -> NoReturn:
        raise ConfigError(f"{self._where}: {f'the field {path}' if path else 'the schema'} {why}")


def _or_null(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


def _whole(path: str) -> Callable[[Any], int]:
    check = integer(path, 64)
    return lambda value: check(int(value) if isinstance(value, float) and value.is_integer() else value)


def _number(path: str) -> Callable[[Any], float]:
    def convert(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise BodyError(f"{path} is not a number")
        try:
            number = float(value)
        except OverflowError:
            number = float("inf")
        if number in {float("inf"), float("-inf")}:
            raise BodyError(f"{path} is larger than a double can be")
        return number

    return convert


def _time(path: str) -> Callable[[Any], dt.datetime]:
    def convert(value: Any) -> dt.datetime:
        try:
            found = dt.datetime.fromisoformat(value)
            return found.astimezone(dt.UTC) if found.tzinfo is not None else _no_zone(path)
        except BodyError:
            raise
        except BAD_VALUES:
            raise BodyError(f"{path} is not a time of RFC 3339") from None

    return convert


def _no_zone(path: str) -> NoReturn:
    raise BodyError(f"{path} is a time without its difference from UTC")


def _date(path: str) -> Callable[[Any], dt.date]:
    def convert(value: Any) -> dt.date:
        try:
            return dt.date.fromisoformat(value)
        except BAD_VALUES:
            raise BodyError(f"{path} is not a date") from None

    return convert


def _map(path: str, convert: Callable[[Any], Any]) -> Callable[[Any], list[tuple[str, Any]]]:
    key = string(path)

    def each(value: Any) -> list[tuple[str, Any]]:
        if not isinstance(value, dict):
            raise BodyError(f"{path} is not an object")
        return [(key(name), None if one is None else convert(one)) for name, one in value.items()]

    return each


def _list(path: str, convert: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    def each(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise BodyError(f"{path} is not an array")
        return [convert(one) for one in value]

    return each
