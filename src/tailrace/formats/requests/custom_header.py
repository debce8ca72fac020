"""Declare the header of a request as a class, and convert it from and to the fields of a request.

A header is a class with one typed attribute for each field (RocketMQ's CommandCustomHeader). A field without a
default is required. The name on the wire is the attribute's name in camel case.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta, Struct

from tailrace.errors import RefusalError

__all__ = ["CustomHeader", "H", "Int32", "Int64", "read_header", "with_short_names"]

Int32 = Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
Int64 = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
SYSTEM_ERROR: Final = 1
SHOWN_MAX: Final = 40
"""Greatest number of characters of an invalid value in an error."""
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,20}")
_MISSING: Final = re.compile(r"missing required field `(.+)`")
_EXPECTED: Final = re.compile(r"(Integer|Expected `.+?`).* - at `\$\.(.+)`")


class CustomHeader(Struct, gc=False, rename="camel"):
    """Fields of a request or of its answer."""

    def to_ext(self) -> dict[str, str]:
        """Return the fields by their names on the wire, without missing ones."""
        ext: dict[str, str] = {}
        for attribute, name in zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True):
            value = getattr(self, attribute)
            if value is not None:
                ext[name] = str(value) if type(value) is not bool else "true" if value else "false"
        return ext


H = TypeVar("H", bound=CustomHeader)


def read_header(ext: dict[str, str], header: type[H]) -> H:
    """Return the fields of a request as ``header`` declares them; others are ignored.

    Raises RefusalError for a field that is missing or that is not of its type.
    """
    try:
        return msgspec.convert(ext, header, strict=False)
    except msgspec.ValidationError:
        pass
    plain = {name: _plain(value) for name, value in ext.items() if value}
    try:
        return msgspec.convert(plain, header, strict=False)
    except msgspec.ValidationError as error:
        raise RefusalError(SYSTEM_ERROR, _reason(str(error), ext)) from None


def _plain(value: str) -> str:
    """Write a number as `msgspec` takes it: Java also takes a sign and leading zeros."""
    return str(int(value)) if _NUMBER.fullmatch(value) else value


def _reason(text: str, ext: dict[str, str]) -> str:
    if missing := _MISSING.search(text):
        return f"the custom field <{missing[1]}> is null"
    if found := _EXPECTED.search(text):
        kind, name = found.groups()
        wanted = "true or false" if "bool" in kind else "a whole number in its range"
        return f"the custom field <{name}> is not {wanted}: {ext[name][:SHOWN_MAX]!r}"
    return text


def with_short_names(header: type[Any], name: str, short_names: str) -> type[Any]:
    """Return a subclass of ``header`` whose fields have names of one letter on the wire.

    ``short_names`` has a letter for each field, in the order of their declaration.
    """
    fields = msgspec.structs.fields(header)
    return msgspec.defstruct(
        name, [(f.name, f.type, msgspec.field(default=f.default)) for f in fields], bases=(header,),
        module=header.__module__, gc=False,
        rename={f.name: letter for f, letter in zip(fields, short_names, strict=True)})
