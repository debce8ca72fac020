"""HTML as trees of elements: the standard library escapes every text and attribute when it writes them.

There is no way to put a string into a page as HTML, so a topic, key or body cannot inject any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, final
from urllib.parse import quote, urlencode
from xml.etree import ElementTree as ET

__all__ = [
    "BAD", "GOOD", "NOTE", "WARN", "Child", "Column", "Sorting", "address", "badge", "card", "facts", "fold", "form",
    "Titled", "Trouble", "h", "link", "notice", "page_text", "picker", "plural", "stats", "table",
]

Child = ET.Element | str | int | float | None | list[Any]
GOOD: Final = "good"
NOTE: Final = "note"
WARN: Final = "warn"
BAD: Final = "bad"
_SIGNS: Final = {GOOD: "✓", NOTE: "i", WARN: "!", BAD: "✕"}
_SIGN_TEXTS: Final = {GOOD: "good", NOTE: "note", WARN: "attention", BAD: "wrong"}


def h(tag: str, *children: Child, **attributes: str | int | None) -> ET.Element:
    """Return an element. ``class_`` and the like are written without the underscore, attributes of None not at all."""
    made = ET.Element(tag, {name.rstrip("_").replace("_", "-"): _clean(str(value))
                              for name, value in attributes.items() if value is not None})
    _append(made, children)
    return made


def _append(parent: ET.Element, children: Iterable[Child]) -> None:
    for child in children:
        if child is None:
            continue
        if isinstance(child, list):
            _append(parent, child)
        elif isinstance(child, ET.Element):
            parent.append(child)
        else:
            text = _clean(f"{child:,}" if isinstance(child, int) else str(child))
            if len(parent):
                parent[-1].tail = (parent[-1].tail or "") + text
            else:
                parent.text = (parent.text or "") + text


def _clean(text: str) -> str:
    """Escape control characters and lone surrogates, which HTML does not allow."""
    return text if text.isprintable() else "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode("ascii") for c in text)


def page_text(root: ET.Element) -> bytes:
    """Return the bytes of a page."""
    return b"<!doctype html>\n" + ET.tostring(root, encoding="utf-8", method="html")


def address(path: str, /, *names: str, **query: str | int) -> str:
    """Return the address of a page of the console; ``names`` are parts of the path, such as that of a topic."""
    said = {name.rstrip("_"): value for name, value in query.items() if value not in ("", None)}
    whole = "/".join((path, *(quote(name, safe="") for name in names)))
    return f"/console/{whole}" + (f"?{urlencode(said)}" if said else "")


def plural(count: int, one: str, many: str = "") -> str:
    """Return a number with its noun, such as ``1 message`` or ``2,000 messages``."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def link(text: Child, href: str, **attributes: str) -> ET.Element:
    """Return a link."""
    return h("a", text, href=href, **attributes)


def badge(text: Child, level: str = NOTE) -> ET.Element:
    """Return a short text in the colour of a level."""
    return h("span", text, class_=f"badge {level}")


def notice(level: str, *children: Child, more: Iterable[Child] = ()) -> ET.Element:
    """Return a sentence with the sign and the colour of a level; ``more`` are links and buttons after it."""
    extra = list(more)
    return h(
        "div", h("span", _SIGNS[level], class_="sign", role="img", aria_label=_SIGN_TEXTS[level]),
        h("div", *children), h("div", *extra, class_="more") if extra else None, class_=f"notice {level}")


def card(title: Child, *children: Child, more: Child = None) -> ET.Element:
    """Return a part of a page with a heading; ``more`` is a link or a button beside the heading."""
    return h("section", h("div", h("h2", title), more, class_="head"), *children, class_="card")


def facts(pairs: Mapping[str, Child]) -> ET.Element:
    """Return names and values; a missing value is left out."""
    shown: list[Child] = [
        element for name, value in pairs.items() if value is not None
        for element in (h("dt", name), h("dd", value))]
    return h("dl", *shown)


def stats(pairs: Mapping[str, Child]) -> ET.Element:
    """Return the main figures of a page, side by side; a missing value is left out."""
    return h("dl", *(h("div", h("dt", name), h("dd", value)) for name, value in pairs.items() if value is not None),
             class_="stats")


def fold(summary: Child, *children: Child, is_open: bool = False) -> ET.Element:
    """Return a part that opens and closes."""
    return h("details", h("summary", summary), *children, open="open" if is_open else None)


class Trouble(NamedTuple):
    """Something that is wrong with a broker, or that needs attention: one sentence for the first page."""

    level: str
    text: str
    page: str = ""
    """Address of the page that shows more."""
    more: str = ""
    """Text of the link to it."""


class Titled(NamedTuple):
    """The content of a page with a title of its own."""

    title: str
    content: list[Child]


# -- forms


def picker(label: str, name: str, value: str, known: Sequence[str], **attributes: str | int) -> ET.Element:
    """Return a field for a name with suggestions."""
    options: list[Child] = [h("option", value=one) for one in known]
    return h("label", label, h(
        "input", name=name, value=value, list=f"known-{name}", autocomplete="off", autocapitalize="none",
        spellcheck="false", **attributes), h("datalist", *options, id=f"known-{name}"))


def form(path: str, *children: Child, hidden: Mapping[str, str] | None = None, button: str = "Show") -> ET.Element:
    """Return a form that asks for a page. ``hidden`` are fields of the query that stay as they are."""
    kept: list[Child] = [
        h("input", type="hidden", name=name, value=value) for name, value in (hidden or {}).items() if value]
    return h("form", *kept, *children, h("button", button), action=address(path), method="get", role="search")


# -- tables


class Column(NamedTuple):
    """A column of a table."""

    title: str
    kind: str = ""
    """``number``: aligned to the right. ``wide``: not shown on a phone. ``name``: long words break. May be combined."""
    sort: str = ""
    """Name by which the table can be sorted by it."""


@final
class Sorting:
    """The order of a table, as the field ``sort`` of the query says it: a name, with ``-`` from the greatest down."""

    def __init__(self, path: str, query: Mapping[str, str], default: str, known: Iterable[str]) -> None:
        self._path, self._query = path, {name: query[name] for name in ("filter", "all") if name in query}
        asked = query.get("sort", "")
        self._default = default
        self.name = asked if asked.removeprefix("-") in set(known) else default
        self.asked = "" if self.name == default else self.name
        """The field of the query; empty for the usual order."""

    @property
    def key(self) -> str:
        """Name of the column."""
        return self.name.removeprefix("-")

    @property
    def descending(self) -> bool:
        """Whether the greatest come first."""
        return self.name.startswith("-")

    def head(self, column: Column) -> ET.Element:
        """Return the heading of a column, as a link that sorts by it."""
        is_by = column.sort == self.key
        first = "-" if "number" in column.kind else ""
        other = f"{'' if self.descending else '-'}{column.sort}" if is_by else f"{first}{column.sort}"
        href = address(self._path, **self._query, sort="" if other == self._default else other)
        arrow = (" ↓" if self.descending else " ↑") if is_by else ""
        return h(
            "th", link([column.title, h("span", arrow, aria_hidden="true") if arrow else None], href), scope="col",
            class_=column.kind or None,
            aria_sort=("descending" if self.descending else "ascending") if is_by else None)


def table(
    columns: Sequence[Column | str], rows: Iterable[Sequence[Child]], empty: Child, caption: str,
    sorting: Sorting | None = None,
) -> ET.Element:
    """Return a table that a phone scrolls sideways, or ``empty``. Only screen readers read the caption."""
    known = [column if isinstance(column, Column) else Column(column) for column in columns]
    body = [
        h("tr", *(h("td", cell, class_=column.kind or None) for column, cell in zip(known, row, strict=True)))
        for row in rows]
    if not body:
        return h("p", empty, class_="empty")
    heads: list[Child] = [
        sorting.head(column) if sorting is not None and column.sort
        else h("th", column.title, scope="col", class_=column.kind or None) for column in known]
    return h("div", h(
        "table", h("caption", caption, class_="unseen"),
        h("thead", h("tr", *heads)), h("tbody", *body)),
        class_="scroll", tabindex=0, role="region", aria_label=caption)
