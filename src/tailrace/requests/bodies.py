"""Reading of request bodies in JSON, with checks of limits and types.

A member of the wrong type raises MessageIllegalError that names the member.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from tailrace.errors import MessageIllegalError
from tailrace.formats import fastjson
from tailrace.formats.remoting import RemotingCommand

__all__ = ["json_object", "json_value", "number_in", "object_in", "objects_in", "text_in", "texts_in"]

_Member = TypeVar("_Member")
VALUES_MAX: Final = 50_000
"""Number of values in a JSON body that the event loop reads."""
_KINDS: Final[Mapping[type, str]] = {
    dict: "an object", list: "a list", str: "text", bool: "a boolean", int: "a number",
    float: "a number", type(None): "null",
}


def json_value(
    request: RemotingCommand, values_max: int = VALUES_MAX, bytes_max: int = fastjson.BOUNDED_MAX
) -> Any:
    """Return the value of a request's body. Raises MessageIllegalError if it is not JSON or too large."""
    try:
        return fastjson.loads_bounded(request.body, values_max, bytes_max)
    except ValueError as error:
        raise MessageIllegalError("body", f"of request {request.code} is not JSON: {error}") from error


def json_object(
    request: RemotingCommand, values_max: int = VALUES_MAX, bytes_max: int = fastjson.BOUNDED_MAX
) -> dict[str, Any]:
    """Return the object in a request's body. Raises MessageIllegalError if it is not an object."""
    value = json_value(request, values_max, bytes_max)
    if not isinstance(value, dict):
        raise MessageIllegalError(
            "body", f"of request {request.code} is {_kind(value)}, not an object")
    return value


def objects_in(value: Mapping[str, Any], name: str, most: int = VALUES_MAX) -> list[dict[str, Any]]:
    """Return the list of objects in a member; empty if it is missing. Raises MessageIllegalError."""
    return _list_in(value, name, most, dict, "objects")


def texts_in(value: Mapping[str, Any], name: str, most: int = VALUES_MAX) -> list[str]:
    """Return the list of texts in a member; empty if it is missing. Raises MessageIllegalError."""
    return _list_in(value, name, most, str, "texts")


def _list_in(value: Mapping[str, Any], name: str, most: int, kind: type[_Member], members: str) -> list[_Member]:
    """Return the list in a member, whose members are all of ``kind``; ``members`` names them in an error."""
    found = value.get(name)
    if found is None:
        return []
    if not isinstance(found, list):
        raise MessageIllegalError("body", f"{name} is {_kind(found)}, not a list of {members}")
    if len(found) > most:
        raise MessageIllegalError(
            "body", f"{name} has {len(found)} members, over the limit of {most}; send several requests")
    for place, member in enumerate(found):
        if not isinstance(member, kind):
            raise MessageIllegalError("body", f"{name}[{place}] is {_kind(member)}, not {_KINDS[kind]}")
    return found


def object_in(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the object in a member; empty if it is missing. Raises MessageIllegalError."""
    found = value.get(name)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise MessageIllegalError("body", f"{name} is {_kind(found)}, not an object")
    return found


def text_in(value: Mapping[str, Any], name: str) -> str:
    """Return the text in a required member. Raises MessageIllegalError."""
    found = value.get(name)
    if not isinstance(found, str):
        missing = "is missing" if found is None else f"is {_kind(found)}, not text"
        raise MessageIllegalError("body", f"{name} {missing}")
    return found


def number_in(value: Mapping[str, Any], name: str, default: int = 0) -> int:
    """Return the whole number in a member, which may be written as text. Raises MessageIllegalError."""
    found = value.get(name)
    if found is None:
        return default
    try:
        if isinstance(found, str) and len(found) > 20:
            raise ValueError
        if not isinstance(found, int | str):
            raise TypeError
        return int(found)
    except (TypeError, ValueError):
        shown = repr(found[:20]) if isinstance(found, str) else _kind(found)
        raise MessageIllegalError("body", f"{name} is {shown}, not a whole number") from None


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), type(value).__name__)
