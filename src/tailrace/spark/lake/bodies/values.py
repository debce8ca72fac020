"""What the formats of bodies share: the error of a body, the columns of a schema, checks of values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final, NamedTuple

import pyarrow as pa

from tailrace.errors import ConfigError

__all__ = [
    "BAD_VALUES", "DEPTH_MAX", "BodyError", "Column", "Reader", "boolean", "columns_of", "decimal", "integer", "string",
]

DEPTH_MAX: Final = 32
"""Largest depth of a schema's fields."""
BAD_VALUES: Final = (
    ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, RecursionError, TypeError, ValueError)
"""Errors that a library may raise for a body that does not fit its schema."""


class BodyError(ValueError):
    """A body does not fit its schema; the text says where and why."""


class Column(NamedTuple):
    """A field of a schema as a column, with the function that checks its value and returns it for Arrow."""

    name: str
    type: pa.DataType
    convert: Callable[[Any], Any]


class Reader(NamedTuple):
    """A schema: its columns, and the function that returns their values of a body. It raises BodyError."""

    columns: tuple[Column, ...]
    read: Callable[[bytes], Mapping[str, Any]]


def columns_of(where: str, columns: list[Column]) -> tuple[Column, ...]:
    """Return columns after a check of their names. Raises ConfigError that names the field."""
    seen: dict[str, str] = {}
    if not columns:
        raise ConfigError(f"{where} has no fields, and a table needs columns")
    for one in columns:
        other = seen.setdefault(one.name.lower(), one.name)
        if other != one.name:
            raise ConfigError(f"{where}: the fields {other} and {one.name} differ only in case, as no query can")
        if not one.name:
            raise ConfigError(f"{where} has a field without a name")
    return tuple(columns)


def integer(path: str, bits: int) -> Callable[[Any], int]:
    """Return a check of signed integers of 32 or 64 bits."""
    least, most = -(1 << bits - 1), (1 << bits - 1) - 1

    def convert(value: Any) -> int:
        if type(value) is not int:
            raise BodyError(f"{path} is {_shown(value)}, not an integer")
        if not least <= value <= most:
            raise BodyError(f"{path} is outside of {bits} bits")
        return value

    return convert


def boolean(path: str) -> Callable[[Any], bool]:
    """Return a check of booleans."""
    def convert(value: Any) -> bool:
        if type(value) is not bool:
            raise BodyError(f"{path} is {_shown(value)}, not a boolean")
        return value

    return convert


def string(path: str) -> Callable[[Any], str]:
    """Return a check of strings."""
    def convert(value: Any) -> str:
        if not isinstance(value, str):
            raise BodyError(f"{path} is {_shown(value)}, not a string")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise BodyError(f"{path} has half of a surrogate pair") from None
        return value

    return convert


def decimal(path: str, precision: int, scale: int) -> Callable[[Any], Decimal]:
    """Return a check of decimals."""
    def convert(value: Any) -> Decimal:
        number = Decimal(value)
        _, digits, exponent = number.as_tuple()
        if not isinstance(exponent, int) or exponent < -scale or len(digits) + exponent > precision - scale:
            raise BodyError(f"{path} does not fit decimal({precision}, {scale})")
        return number

    return convert


def _shown(value: Any) -> str:
    return "null" if value is None else f"of type {type(value).__name__}"
