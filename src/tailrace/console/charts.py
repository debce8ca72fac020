"""Charts of the console as SVG. Their figures are texts beside them, so that they keep their size on every screen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final
from xml.etree.ElementTree import Element

from tailrace.console.elements import Child, h
from tailrace.console.words import span

__all__ = ["bar", "chart", "meter"]

_WIDTH: Final = 600
_HEIGHT: Final = 120
_POINTS_MAX: Final = 200


def _top(value: float) -> float:
    """Return a round number that is at least ``value``: 1, 2 or 5 with zeros."""
    power = 10.0 ** math.floor(math.log10(max(value, 1.0)))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:,.1f}"


def _thinned(values: Sequence[float]) -> list[float]:
    """Return at most `_POINTS_MAX` values, each the greatest of those that it stands for."""
    step = max(1, -(-len(values) // _POINTS_MAX))
    return [max(values[at : at + step]) for at in range(0, len(values), step)]


def chart(title: str, values: Sequence[float], unit: str) -> Element:
    """Return a line chart with axes; the values are those of each second, the last one of now."""
    if len(values) < 2:
        return h("figure", h("figcaption", h("strong", title), " no sample yet"))
    points = _thinned(values)
    top, step = _top(max(points)), _WIDTH / max(len(points) - 1, 1)
    line = " ".join(
        f"{number * step:.1f},{_HEIGHT - value / top * _HEIGHT:.1f}" for number, value in enumerate(points))
    seconds = len(values)
    figures = f"{_figure(values[-1])} {unit} now, at most {_figure(max(values))}"
    text = f"{title}: {figures} in the last {span(seconds * 1000)}"
    grid: list[Child] = [
        h("line", x1=0, x2=_WIDTH, y1=y, y2=y, class_="grid") for y in (0, _HEIGHT // 2, _HEIGHT)]
    return h(
        "figure",
        h("figcaption", h("strong", title), f" {figures}"),
        h("div",
          h("div", *(h("span", _figure(value)) for value in (top, top / 2, 0)), class_="y", aria_hidden="true"),
          h("svg", *grid, h("polygon", points=f"0,{_HEIGHT} {line} {_WIDTH},{_HEIGHT}"), h("polyline", points=line),
            viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img", aria_label=text, preserveAspectRatio="none"),
          h("div", h("span", f"{span(seconds * 1000)} ago"), h("span", f"{span(seconds * 500)} ago"), h("span", "now"),
            class_="x", aria_hidden="true"),
          class_="plot"))


def bar(share: float, level: str = "") -> Element:
    """Return a bar of a share of 0 to 1, which decorates a number beside it."""
    return h("svg", h("rect", width=f"{max(min(share, 1.0), 0.01) * 100:.1f}", height=8),
             viewBox="0 0 100 8", preserveAspectRatio="none", class_=f"bar {level}".rstrip(), aria_hidden="true")


def meter(text: str, percent: float, level: str, lines: Sequence[float]) -> Element:
    """Return a bar of a used share with lines at other shares, all in percent; ``text`` says it in words."""
    marks: list[Child] = [h("line", x1=f"{at:.1f}", x2=f"{at:.1f}", y1=0, y2=16) for at in lines]
    return h("svg", h("rect", width=100, height=16, class_="room"),
             h("rect", width=f"{max(0.0, min(percent, 100.0)):.1f}", height=16, class_="used"), *marks,
             viewBox="0 0 100 16", preserveAspectRatio="none", class_=f"meter {level}".rstrip(), role="img",
             aria_label=text)
