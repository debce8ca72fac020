"""Bodies in Protobuf, by a FileDescriptorSet, as ``protoc --include_imports --descriptor_set_out`` writes it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
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
    string,
)

try:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from google.protobuf.message import DecodeError
except ModuleNotFoundError:
    raise MissingPackageError("bodies in Protobuf", "protobuf", "lake") from None
# Schemas may import these without carrying them.
from google.protobuf import any_pb2, duration_pb2, empty_pb2, timestamp_pb2, wrappers_pb2

__all__ = ["descriptor_set", "message_place", "protobuf_reader"]

_KNOWN: Final = (any_pb2, duration_pb2, empty_pb2, timestamp_pb2, wrappers_pb2)
_KINDS: Final = {
    "int32": pa.int32(), "sint32": pa.int32(), "sfixed32": pa.int32(), "uint32": pa.int64(), "fixed32": pa.int64(),
    "int64": pa.int64(), "sint64": pa.int64(), "sfixed64": pa.int64(), "uint64": pa.decimal128(20, 0),
    "fixed64": pa.decimal128(20, 0), "float": pa.float32(), "double": pa.float64(), "bool": pa.bool_(),
    "string": pa.string(), "bytes": pa.binary(),
}
"""Columns of the scalar types: one that is unsigned gets a type with all of its numbers."""
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def protobuf_reader(data: bytes, where: str, message: str = "") -> Reader:
    """Return the reader of a message by its full name; default: the first message of the last file.

    Raises ConfigError that names the field which cannot be a column.
    """
    pool = descriptor_pool.DescriptorPool()
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(data)
        if not files.file:
            raise ConfigError(f"{where} has no file")
        there = {one.name for one in files.file}
        for known in _KNOWN:
            if known.DESCRIPTOR.name not in there:
                pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
        for one in files.file:
            pool.Add(one) if hasattr(pool, "Add") else pool.AddSerializedFile(one.SerializeToString())
        descriptor = pool.FindMessageTypeByName(message) if message else (
            _first_message(pool, files.file[-1]))
    except ConfigError:
        raise
    except (DecodeError, *BAD_VALUES) as error:
        text = f"{type(error).__name__} {error}".splitlines()[0]
        raise ConfigError(f"{where} is not a descriptor set with the message {message or 'it needs'}: {text}") from None
    columns = _Compiler(where).message(descriptor, "", ())
    made = message_factory.GetMessageClass(descriptor)

    def read(body: bytes) -> Mapping[str, Any]:
        try:
            found = made.FromString(body)
        except (DecodeError, *BAD_VALUES) as error:
            raise BodyError(f"the body is not a {descriptor.full_name}: {str(error) or type(error).__name__}") from None
        if not found.IsInitialized():
            raise BodyError(f"the body has no {found.FindInitializationErrors()[0]}")
        return {one.name: one.convert(found) for one in columns}

    return Reader(columns, read)


def descriptor_set(others: Sequence[tuple[str, bytes]], data: bytes) -> bytes:
    """Return a set of a registry's file and those that it imports, which have the names of its imports."""
    made = descriptor_pb2.FileDescriptorSet()
    for name, one in (*others, ("", data)):
        file = made.file.add()
        file.MergeFromString(one)
        file.name = name or file.name or "schema.proto"
    return made.SerializeToString()


def message_place(data: bytes, message: str) -> tuple[int, ...] | None:
    """Return the indexes of a message in the last file of a set, as a registry's header has them; None if not there."""
    file = descriptor_pb2.FileDescriptorSet.FromString(data).file[-1]

    def walk(messages: Any, prefix: str, above: tuple[int, ...]) -> tuple[int, ...] | None:
        for number, one in enumerate(messages):
            name = f"{prefix}{one.name}"
            if name == message:
                return (*above, number)
            if (found := walk(one.nested_type, f"{name}.", (*above, number))) is not None:
                return found
        return None

    return walk(file.message_type, f"{file.package}." if file.package else "", ())


def _first_message(pool: Any, file: Any) -> Any:
    return pool.FindFileByName(file.name).message_types_by_name[file.message_type[0].name]


class _Compiler:
    """Makes columns of a message; ``above`` are the messages around a field. A column reads its field itself."""

    def __init__(self, where: str) -> None:
        self._where = where

    def message(self, descriptor: Any, path: str, above: tuple[str, ...]) -> tuple[Column, ...]:
        """Return the fields of a message as columns."""
        if descriptor.full_name in above:
            self._refuse(path, f"is the message {descriptor.full_name} inside itself")
        if len(above) > DEPTH_MAX:
            self._refuse(path, f"is deeper than {DEPTH_MAX} fields")
        inside = (*above, descriptor.full_name)
        return columns_of(f"{self._where}: {path or descriptor.full_name}", [
            self._column(one, f"{path}.{one.name}" if path else one.name, inside) for one in descriptor.fields])

    def _column(self, field: Any, path: str, above: tuple[str, ...]) -> Column:
        name = field.name
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, key_convert = self._kind(field.message_type.fields_by_name["key"], f"{path}.key", above)
            value, convert = self._kind(field.message_type.fields_by_name["value"], f"{path}.value", above)
            return Column(name, pa.map_(key, value), lambda found: [
                (key_convert(one), convert(getattr(found, name)[one])) for one in getattr(found, name)])
        kind, convert = self._kind(field, path, above)
        if _is_repeated(field):
            return Column(name, pa.list_(pa.field("element", kind)), lambda found: [
                convert(one) for one in getattr(found, name)])
        if field.has_presence:
            return Column(
                name, kind, lambda found: convert(getattr(found, name)) if found.HasField(name) else None)
        return Column(name, kind, lambda found: convert(getattr(found, name)))

    def _kind(self, field: Any, path: str, above: tuple[str, ...]) -> tuple[pa.DataType, Callable[[Any], Any]]:
        if field.message_type is not None:
            if field.message_type.full_name == "google.protobuf.Timestamp":
                return pa.timestamp("us", tz="UTC"), _time(path)
            columns = self.message(field.message_type, path, above)
            return pa.struct([pa.field(one.name, one.type) for one in columns]), lambda found: {
                one.name: one.convert(found) for one in columns}
        if field.enum_type is not None:
            names = {one.number: one.name for one in field.enum_type.values}
            return pa.string(), lambda number: names.get(number, str(number))
        name = next(
            one.removeprefix("TYPE_").lower() for one in dir(type(field))
            if one.startswith("TYPE_") and getattr(field, one) == field.type)
        kind = _KINDS.get(name)
        if kind is None:
            self._refuse(path, f"has the type {name}, which cannot be a column")
        return kind, Decimal if pa.types.is_decimal(kind) else string(path) if name == "string" else _same

    def _refuse(self, path: str, why: str) -> NoReturn:
        raise ConfigError(f"{self._where}: the field {path} {why}")


def _is_repeated(field: Any) -> bool:
    found = getattr(field, "is_repeated", None)
    return bool(found) if found is not None else field.label == field.LABEL_REPEATED


def _same(value: Any) -> Any:
    return value


def _time(path: str) -> Callable[[Any], dt.datetime]:
    def convert(value: Any) -> dt.datetime:
        try:
            return _EPOCH + dt.timedelta(seconds=value.seconds, microseconds=value.nanos // 1_000)
        except OverflowError:
            raise BodyError(f"{path} is a time outside of the years 1 to 9999") from None

    return convert
