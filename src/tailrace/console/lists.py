"""Fields of a query, and lists of topics and groups: own ones first, a filter, an order, pages of `ROWS_MAX` rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from tailrace.console.elements import Child, Sorting, address, form, h, link, picker, plural
from tailrace.console.viewer import SUGGESTED_MAX, similar_name

__all__ = ["ROWS_MAX", "Listing", "Query", "whole_number"]

ROWS_MAX: Final = 200
"""Rows of a table; a list that is longer has pages."""
Query = dict[str, str]
"""The fields of a query, each with its last value."""
_DIGITS_MAX: Final = 30


def whole_number(asked: Query, name: str) -> int:
    """Return a field as a number. Raises ValueError that names the field."""
    text = asked[name]
    if text.removeprefix("-").isdecimal() and text.isascii() and len(text) <= _DIGITS_MAX:
        return int(text)
    raise ValueError(f"{name} is {text!r}, not a whole number")


class Listing:
    """The names of a list that a query asks for."""

    def __init__(
        self, path: str, noun: str, asked: Query, names: Iterable[str], is_own: Callable[[str], bool],
        sorting: Sorting, keys: Mapping[str, Callable[[str], Any]],
    ) -> None:
        """``keys`` has for each name of a column what it is sorted by; names are the last key."""
        self._path, self._noun, self.sorting = path, noun, sorting
        self._text, self._start = asked.get("filter", ""), max(whole_number(asked, "from"), 0) if "from" in asked else 0
        self._all = "all" in asked
        every = self._names = sorted(names)
        own = [name for name in every if is_own(name)]
        self._hidden = 0 if self._all else len(every) - len(own)
        self._known = (every if self._all else own)[:SUGGESTED_MAX]
        self.found = sorted(
            (name for name in (every if self._all else own) if self._text.lower() in name.lower()),
            key=keys[sorting.key], reverse=sorting.descending)
        self.shown = self.found[self._start : self._start + ROWS_MAX]

    def around(self) -> list[Child]:
        """Return the filter, the number of names and links to the others."""
        query: dict[str, str | int] = {"filter": self._text, "sort": self.sorting.asked, "all": 1 if self._all else ""}
        links: list[Child] = []
        if self._start:
            links.append(link("Previous", address(self._path, **query, from_=max(self._start - ROWS_MAX, 0) or "")))
        if self._start + ROWS_MAX < len(self.found):
            links.append(link("Next", address(self._path, **query, from_=self._start + ROWS_MAX)))
        if self._all:
            links.append(link("Hide those of the system", address(self._path, **{**query, "all": ""})))
        elif self._hidden:
            links.append(link(f"Show {self._hidden:,} of the system", address(self._path, **{**query, "all": 1})))
        of = " found" if self._text else ""
        text = f"{plural(len(self.found), self._noun)}{of}."
        hidden = {"sort": self.sorting.asked, "all": "1" if self._all else ""}
        looking = form(self._path, picker("Name contains", "filter", self._text, self._known), hidden=hidden,
                       button="Filter")
        return [h("div", looking, class_="tools"), h("p", text, *links, class_="links")]

    def none(self) -> list[Child]:
        """Return what the page says if nothing is shown, with the most similar name."""
        if not self._text:
            return [f"There is no {self._noun} yet."]
        said: list[Child] = [f"No {self._noun} has {self._text} in its name."]
        similar = similar_name(self._text, self._names)
        return [*said, " Is ", link(similar, address(self._path, filter=similar)), " meant?"] if similar else said
