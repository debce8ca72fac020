"""The fields of a query."""

from __future__ import annotations

from typing import Final

__all__ = ["Query", "whole_number"]

Query = dict[str, str]
"""The fields of a query, each with its last value."""
_DIGITS_MAX: Final = 30


def whole_number(asked: Query, name: str) -> int:
    """Return a field as a number. Raises ValueError that names the field."""
    text = asked[name]
    if text.removeprefix("-").isdecimal() and text.isascii() and len(text) <= _DIGITS_MAX:
        return int(text)
    raise ValueError(f"{name} is {text!r}, not a whole number")
