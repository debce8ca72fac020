"""Draw the pictures of docs/pictures: an SVG beside each TOML source; ``--check`` compares only.

A source has ``title``, ``description`` (what a reader who does not see the picture needs), ``size`` and
lists of parts, all in pixels:

    [[group]]  at, size, text                 a frame around boxes
    [[box]]    name, at, size, text, kind     kind: code, file, outside, good or bad; text: lines
    [[ring]]   name, at, radius, slots, marked   a wheel; marked: numbers of slots that are filled
    [[arrow]]  from, to, text, via, dashed    straight if both face each other, else with a corner
    [[text]]   at, text, small

The drawing fails if a text is wider than its box, a box leaves the picture, two boxes overlap or an
arrow names a box that is not there. The SVG loads nothing, has a title and a description, and
follows the reader's light or dark scheme with a ground of its own.
"""

from __future__ import annotations

import math
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "pictures"
LINE, LETTER, SMALL_LETTER, PADDING = 17, 7.3, 6.4, 8
STYLE = """
  .ground { fill: #ffffff } text { fill: #1b1f24; font: 13px system-ui, sans-serif }
  .small { font-size: 11.5px; fill: #57606a } .head { font-weight: 600 } .mono { font-family: ui-monospace, monospace }
  .group { fill: #f6f8fa; stroke: #8c959f; stroke-dasharray: 4 3 }
  .code { fill: #ddf4ff; stroke: #0969da } .file { fill: #fff8c5; stroke: #9a6700 }
  .outside { fill: #f6f8fa; stroke: #57606a } .good { fill: #dafbe1; stroke: #1a7f37 }
  .bad { fill: #ffebe9; stroke: #cf222e }
  .arrow { fill: none; stroke: #57606a; stroke-width: 1.5 } .tip { fill: #57606a } .dashed { stroke-dasharray: 5 4 }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #161b22 } text { fill: #e6edf3 } .small { fill: #9ea7b3 }
    .group { fill: #1f2630; stroke: #6e7681 } .code { fill: #0c2d4d; stroke: #58a6ff }
    .file { fill: #3b2e04; stroke: #d29922 } .outside { fill: #21262d; stroke: #8b949e }
    .good { fill: #0f3d1f; stroke: #3fb950 } .bad { fill: #4d1215; stroke: #f85149 }
    .arrow { stroke: #9ea7b3 } .tip { fill: #9ea7b3 }
  }"""


class Area(NamedTuple):
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def bottom(self) -> float:
        return self.y + self.height

    def overlaps(self, other: Area) -> bool:
        return self.x < other.right and other.x < self.right and self.y < other.bottom and other.y < self.bottom


def _area(part: dict[str, Any]) -> Area:
    return Area(*part["at"], *part["size"])


def _text(x: float, y: float, text: str, classes: str = "", anchor: str = "middle") -> str:
    shown = f' class="{classes}"' if classes else ""
    return f'  <text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{shown}>{escape(text)}</text>'


def _rectangle(area: Area, kind: str, corner: int) -> str:
    return (f'  <rect class="{kind}" x="{area.x:g}" y="{area.y:g}" width="{area.width:g}" '
            f'height="{area.height:g}" rx="{corner}"/>')


def _box(part: dict[str, Any], problems: list[str]) -> list[str]:
    area, lines = _area(part), part["text"]
    drawn = [_rectangle(area, part["kind"], 0 if part["kind"] == "file" else 6)]
    top = area.y + area.height / 2 - (len(lines) - 1) * LINE / 2 + 4.5
    for number, line in enumerate(lines):
        first = number == 0
        if len(line) * (LETTER if first else SMALL_LETTER) > area.width - PADDING:
            problems.append(f"box {part['name']}: {line!r} is too wide")
        drawn.append(_text(area.x + area.width / 2, top + number * LINE, line, "head" if first else "small"))
    if len(lines) * LINE > area.height:
        problems.append(f"box {part['name']}: {len(lines)} lines are too high")
    return drawn


def _ring(part: dict[str, Any]) -> list[str]:
    (x, y), outer, count = part["at"], part["radius"], part["slots"]
    inner, drawn = outer * 0.68, []
    for slot in range(count):
        # Slot 0 begins at the top; a gap of a tenth separates two slots.
        angles = [2 * math.pi * (slot + part_of) / count - math.pi / 2 for part_of in (0.05, 0.95)]
        points = [(x + r * math.cos(a), y + r * math.sin(a))
                  for r, a in ((outer, angles[0]), (outer, angles[1]), (inner, angles[1]), (inner, angles[0]))]
        path = "M{0[0]:.1f} {0[1]:.1f}A{r:g} {r:g} 0 0 1 {1[0]:.1f} {1[1]:.1f}".format(*points, r=outer)
        path += "L{2[0]:.1f} {2[1]:.1f}A{r:g} {r:g} 0 0 0 {3[0]:.1f} {3[1]:.1f}Z".format(*points, r=inner)
        kind = "good" if slot == part.get("now") else "file" if slot in part["marked"] else "outside"
        drawn.append(f'  <path class="{kind}" d="{path}"/>')
    return drawn


def _between(start: Area, end: Area) -> list[tuple[float, float]]:
    """Return the points of an arrow: straight where the areas face each other, else one corner."""
    left, right = max(start.x, end.x), min(start.right, end.right)
    if right - left > 12:
        x = (left + right) / 2
        return [(x, start.bottom), (x, end.y)] if end.y >= start.bottom else [(x, start.y), (x, end.bottom)]
    top, bottom = max(start.y, end.y), min(start.bottom, end.bottom)
    if bottom - top > 12:
        y = (top + bottom) / 2
        return [(start.right, y), (end.x, y)] if end.x >= start.right else [(start.x, y), (end.right, y)]
    x = end.x + end.width / 2
    y = start.y + start.height / 2
    return [(start.right if x > start.x else start.x, y), (x, y), (x, end.y if end.y > y else end.bottom)]


def _arrow(part: dict[str, Any], areas: dict[str, Area], problems: list[str]) -> list[str]:
    if missing := [part[end] for end in ("from", "to") if part[end] not in areas]:
        problems.append(f"arrow to or from {missing} that is not there")
        return []
    start, end = areas[part["from"]], areas[part["to"]]
    points = [tuple(point) for point in part["via"]] if "via" in part else _between(start, end)
    path = "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
    dashed = " dashed" if part.get("dashed") else ""
    drawn = [f'  <path class="arrow{dashed}" d="{path}" marker-end="url(#tip)"/>']
    if text := part.get("text"):
        (x1, y1), (x2, y2) = points[0], points[1]
        if "text_at" in part:
            drawn.append(_text(*part["text_at"], text, "small", "start"))
        elif x1 == x2:
            drawn.append(_text(x1 + 7, (y1 + y2) / 2 + 4, text, "small", "start"))
        else:
            drawn.append(_text((x1 + x2) / 2, (y1 + y2) / 2 - 6, text, "small"))
    return drawn


def draw(source: dict[str, Any], origin: str) -> tuple[str, list[str]]:
    """Return the SVG of a source and what is wrong with it."""
    problems: list[str] = []
    width, height = source["size"]
    whole = Area(0, 0, width, height)
    boxes = source.get("box", [])
    areas = {part["name"]: _area(part) for part in boxes}
    for part in source.get("ring", []):
        (x, y), r = part["at"], part["radius"]
        areas[part["name"]] = Area(x - r, y - r, 2 * r, 2 * r)
    for name, area in areas.items():
        if area.x < 0 or area.y < 0 or area.right > whole.right or area.bottom > whole.bottom:
            problems.append(f"{name} leaves the picture")
        problems += [f"{name} overlaps {other}" for other in areas if other > name and area.overlaps(areas[other])]
    lines = [
        f"<!-- Drawn by tools/gen_pictures.py from {origin}; change it there. -->",
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"',
        f'    height="{height}" role="img" aria-labelledby="title description">',
        f'  <title id="title">{escape(source["title"])}</title>',
        f'  <desc id="description">{escape(" ".join(source["description"].split()))}</desc>',
        f"  <style>{STYLE}\n  </style>",
        '  <defs><marker id="tip" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="8" markerHeight="8"',
        '    orient="auto"><path class="tip" d="M0 0L8 4L0 8Z"/></marker></defs>',
        _rectangle(whole, "ground", 8),
    ]
    for part in source.get("group", []):
        area = _area(part)
        lines.append(_rectangle(area, "group", 8))
        lines.append(_text(area.x + 10, area.y + 18, part["text"], "small", "start"))
    for part in source.get("ring", []):
        lines += _ring(part)
    for part in source.get("arrow", []):
        lines += _arrow(part, areas, problems)
    for part in boxes:
        lines += _box(part, problems)
    for part in source.get("text", []):
        classes = "small" if part.get("small") else ""
        lines.append(_text(*part["at"], part["text"], classes, part.get("anchor", "start")))
    return "\n".join([*lines, "</svg>"]) + "\n", problems


def main() -> int:
    """Write or compare every picture; 1 if one is wrong or not current."""
    found = []
    for path in sorted(FOLDER.glob("*.toml")):
        drawn, problems = draw(tomllib.loads(path.read_text()), path.name)
        found += [f"{path.name}: {problem}" for problem in problems]
        target = path.with_suffix(".svg")
        if "--check" not in sys.argv:
            target.write_text(drawn)
        elif not target.exists() or target.read_text() != drawn:
            found.append(f"{target.name} is not current, run `make gen`")
    for problem in found:
        print(problem, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
