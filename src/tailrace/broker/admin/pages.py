"""Pages of the tables of topics and groups (requests 21 and 201), for slaves and tools that ask for them.

A Java client stops when it has all entries or all but one, so that it never asks for the last one of 2,001 topics, and
a Java slave then deletes that topic. A page therefore takes an entry more than it was asked for, if it would be the
only one of the next page.
"""

from __future__ import annotations

from typing import TypeVar

import orjson

__all__ = ["page_of"]

_Value = TypeVar("_Value")


def page_of(
    table: dict[str, _Value], first: int | None, count: int | None, known: str | None, version: dict[str, int]
) -> dict[str, _Value]:
    """Return up to ``count`` entries by name from number ``first`` on; all without ``count``.

    ``known`` is the version of the pages before, as JSON; with another one than ``version`` the first page is returned.
    """
    if not count or count < 0:
        return table
    names = sorted(table)
    first = max(first or 0, 0) if _same(known, version) else 0
    until = first + count
    if until == len(names) - 1:
        until += 1
    return {name: table[name] for name in names[first:until]}


def _same(known: str | None, version: dict[str, int]) -> bool:
    try:
        found = orjson.loads(known or b"{}")
    except orjson.JSONDecodeError:
        return False
    return isinstance(found, dict) and all(found.get(name, 0) == value for name, value in version.items())
