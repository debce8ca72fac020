"""Something that is wrong with a broker, or that needs attention."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tailrace.console.elements import BAD, GOOD, NOTE, WARN

__all__ = ["Trouble", "worst_level"]


class Trouble(NamedTuple):
    """One sentence for the first page."""

    level: str
    text: str
    page: str = ""
    """Address of the page that shows more."""
    more: str = ""
    """Text of the link to it."""


def worst_level(found: Iterable[Trouble]) -> str:
    """Return the level of the worst trouble."""
    levels = {trouble.level for trouble in found}
    return next((level for level in (BAD, WARN, NOTE) if level in levels), GOOD)
