"""Structs of Thrift's compact protocol, as footers, page headers and page indexes of Parquet have them.

A struct is a dict from field number to (type, value), in the order of the fields. Values are int, bool, bytes (also
of a double), a struct, or a list with the type of its elements. So a struct that is read and written again has the
same bytes, also with fields that nobody here knows. Source: Thrift's ``doc/specs/thrift-compact-protocol.md``.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from tailrace.errors import CorruptionError

__all__ = ["I32", "I64", "LIST", "STRUCT", "List", "Struct", "read_struct", "write_struct"]

_TRUE: Final = 1
_FALSE: Final = 2
_BYTE: Final = 3
_I16: Final = 4
I32: Final = 5
I64: Final = 6
_DOUBLE: Final = 7
_BINARY: Final = 8
LIST: Final = 9
STRUCT: Final = 12
_INTEGERS: Final = (_I16, I32, I64)
_DEEPEST: Final = 32
_LONG_LIST: Final = 15
_MOST_STEP: Final = 15
Struct = dict[int, tuple[int, Any]]


class List(NamedTuple):
    """Elements of one type."""

    kind: int
    values: list[Any]


class _Reader:
    def __init__(self, data: bytes | memoryview, at: int) -> None:
        self._data, self.at = data, at

    def byte(self) -> int:
        self.at += 1
        return self._data[self.at - 1]

    def number(self) -> int:
        made = shift = 0
        while True:
            byte = self.byte()
            made |= (byte & 0x7F) << shift
            if byte < 0x80:
                return made
            shift += 7

    def signed(self) -> int:
        found = self.number()
        return (found >> 1) ^ -(found & 1)

    def binary(self, size: int) -> bytes:
        self.at += size
        if self.at > len(self._data):
            raise IndexError(self.at)
        return bytes(self._data[self.at - size : self.at])

    def struct(self, deep: int) -> Struct:
        made: Struct = {}
        number = 0
        while head := self.byte():
            number = number + (head >> 4) if head >> 4 else self.signed()
            made[number] = head & 15, self._value(head & 15, deep)
        return made

    def _value(self, kind: int, deep: int) -> Any:
        if deep > _DEEPEST:
            raise ValueError("values in values without an end")
        if kind in {_TRUE, _FALSE}:
            return kind == _TRUE
        if kind in _INTEGERS:
            return self.signed()
        if kind == STRUCT:
            return self.struct(deep + 1)
        if kind == LIST:
            head = self.byte()
            size, inner = head >> 4, head & 15
            size = self.number() if size == _LONG_LIST else size
            if inner in {_TRUE, _FALSE}:
                return List(inner, [self.byte() == _TRUE for _ in range(size)])
            return List(inner, [self._value(inner, deep + 1) for _ in range(size)])
        if kind in {_BYTE, _DOUBLE, _BINARY}:
            return self.binary(1 if kind == _BYTE else 8 if kind == _DOUBLE else self.number())
        raise ValueError(f"type {kind}")


def read_struct(data: bytes | memoryview, at: int = 0) -> tuple[Struct, int]:
    """Return the struct at a position, and the position after it. Raises CorruptionError."""
    reader = _Reader(data, at)
    try:
        return reader.struct(0), reader.at
    except (IndexError, ValueError) as error:
        raise CorruptionError(f"no struct of the compact protocol: {type(error).__name__}: {error}") from error


def _put_number(out: bytearray, number: int) -> None:
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _put_signed(out: bytearray, number: int) -> None:
    _put_number(out, number << 1 if number >= 0 else (-number << 1) - 1)


def _put_value(out: bytearray, kind: int, value: Any) -> None:
    if kind in _INTEGERS:
        _put_signed(out, value)
    elif kind == STRUCT:
        out += write_struct(value)
    elif kind == LIST:
        size = len(value.values)
        out.append(min(size, _LONG_LIST) << 4 | value.kind)
        if size >= _LONG_LIST:
            _put_number(out, size)
        for one in value.values:
            if value.kind in {_TRUE, _FALSE}:
                out.append(_TRUE if one else _FALSE)
            else:
                _put_value(out, value.kind, one)
    else:
        if kind == _BINARY:
            _put_number(out, len(value))
        out += value


def write_struct(struct: Struct) -> bytes:
    """Return the bytes of a struct."""
    out = bytearray()
    before = 0
    for number, (kind, value) in struct.items():
        if kind in {_TRUE, _FALSE}:
            kind = _TRUE if value else _FALSE  # noqa: PLW2901 - the type is the value
        if 0 < number - before <= _MOST_STEP:
            out.append((number - before) << 4 | kind)
        else:
            out.append(kind)
            _put_signed(out, number)
        before = number
        if kind not in {_TRUE, _FALSE}:
            _put_value(out, kind, value)
    out.append(0)
    return bytes(out)
