"""Draw how long an open takes against the size of the log and the number of queues.

    python benchmarks/macro/draw_recovery.py docs/contributing/design/recovery-growth.svg

Takes the newest line of each size from ``benchmarks/results/recovery-growth.jsonl``. Needs ``tailrace[plot]``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from results import RESULTS

SERIES = {
    "open_rebuild": ("rebuilt", "#d1495b", "s"), "open_killed": ("after a kill", "#edae49", "o"),
    "open_clean": ("after a clean stop", "#00798c", "^")}
PANELS = {"gb": "GB of log, 100 queues", "queues": "queues, 300,000 records"}


def newest() -> dict[str, dict[int, dict[str, Any]]]:
    """Metrics by what was varied and its value; later lines win."""
    found: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in PANELS}
    for text in (RESULTS / "recovery-growth.jsonl").read_text().splitlines():
        line = json.loads(text)
        parameters = line["parameters"]
        name = "gb" if "gb" in parameters else "queues"
        found[name][parameters[name]] = line["metrics"]
    return found


def draw(file: Path) -> None:
    """Two panels, one scale of milliseconds."""
    from matplotlib import rcParams, ticker
    from matplotlib.figure import Figure

    rcParams["svg.hashsalt"] = "tailrace"  # the same figures give the same file
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    both = figure.subplots(1, 2, sharey=True)
    for axes, (name, points) in zip(both, newest().items(), strict=True):
        values = sorted(points)
        for key, (label, colour, marker) in SERIES.items():
            axes.plot(values, [points[value][key]["ms"] for value in values], color=colour, marker=marker, label=label)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(values, [f"{value:,}" for value in values])
        axes.xaxis.set_minor_locator(ticker.NullLocator())
        axes.set_xlabel(PANELS[name])
        axes.grid(alpha=0.3)
    both[0].set_ylabel("ms until all can be read")
    both[0].yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
    both[0].legend(fontsize="small")
    figure.savefig(file, metadata={"Date": None})


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    draw(Path(sys.argv[1]))
