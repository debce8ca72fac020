"""HTML as trees of elements: the standard library escapes every text and attribute when it writes them.

There is no way to put a string into a page as HTML, so a topic, key or body cannot inject any.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final
from urllib.parse import urlencode
from xml.etree import ElementTree as ET

__all__ = ["Child", "address", "chart", "h", "page_text", "table"]

Child = ET.Element | str | int | float | None | list[Any]


def h(tag: str, *children: Child, **attributes: str | int) -> ET.Element:
    """Return an element. ``class_`` and the like are written without the underscore at the end."""
    made = ET.Element(tag, {name.rstrip("_").replace("_", "-"): _clean(str(value))
                              for name, value in attributes.items()})
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


def address(path: str, **query: str | int) -> str:
    """Return the address of a page of the console."""
    said = {name: value for name, value in query.items() if value not in ("", None)}
    return f"/console/{path}" + (f"?{urlencode(said)}" if said else "")


def table(titles: Sequence[str], rows: Iterable[Sequence[Child]], empty: str, caption: str) -> ET.Element:
    """Return a table that a phone scrolls sideways, or a sentence if there is no row."""
    body = [
        h("tr", *(h("td", cell, **({"class_": "number"} if isinstance(cell, int | float) else {})) for cell in row))
        for row in rows]
    if not body:
        return h("p", empty)
    heads: list[Child] = [h("th", title, scope="col") for title in titles]
    return h("div", h(
        "table", h("caption", caption), h("thead", h("tr", *heads)), h("tbody", *body)),
        class_="scroll", tabindex=0, role="region", aria_label=caption)


_WIDTH: Final = 600
_HEIGHT: Final = 120


def chart(title: str, values: Sequence[float], unit: str) -> ET.Element:
    """Return a line chart as SVG, with its last and highest value as text."""
    if not values:
        return h("p", f"{title}: no sample yet")
    top = max(*values, 1.0)
    step = _WIDTH / max(len(values) - 1, 1)
    points = " ".join(
        f"{number * step:.1f},{_HEIGHT - value / top * (_HEIGHT - 4):.1f}" for number, value in enumerate(values))
    text = f"{title}: {values[-1]:,.0f} {unit} now, at most {max(values):,.0f} in {len(values)} s"
    return h("figure", h("figcaption", text), h(
        "svg", h("polyline", points=points), viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img", aria_label=text,
        preserveAspectRatio="none"))
