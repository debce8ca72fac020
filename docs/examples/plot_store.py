"""Pictures of a store: messages and bytes by topic over time, and timers by hour, as PNG.

    python plot_store.py STORE DIRECTORY

Needs ``pip install 'tailrace[spark]' matplotlib``. The tables are those of ``tailrace pipeline traffic``
and ``tailrace pipeline timers``; any other tool that plots tables does as well.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from datetime import datetime
from pathlib import Path
from typing import Any

Lines = dict[str, tuple[list[datetime], list[float]]]


def tables(spark: Any, store: str, bucket: str = "hour") -> dict[str, Lines]:
    """For each picture a line a topic: times, and a value at each."""
    from tailrace.spark.pipeline.tables import timers_by_time, traffic

    rows = traffic(spark, store, bucket=bucket).collect()
    return {
        "messages": _lines((row["topic"], row["start"], row["messages"]) for row in rows),
        "bytes": _lines((row["topic"], row["start"], row["bytes"]) for row in rows),
        "timers": _lines(
            (row["topic"], row["start"], row["pending"])
            for row in timers_by_time(spark, store, bucket=bucket).collect()),
    }


def _lines(points: Any) -> Lines:
    found: Lines = defaultdict(lambda: ([], []))
    for topic, start, value in sorted(points):
        found[topic][0].append(start)
        found[topic][1].append(value)
    return dict(found)


def draw(name: str, lines: Lines, file: Path) -> None:
    """One picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(10, 4))
    for topic, (times, values) in lines.items():
        axes.plot(times, values, marker="o", label=topic)
    axes.set_title(f"{name} an hour")
    axes.set_ylim(bottom=0)
    if lines:
        axes.legend(fontsize="small")
    figure.autofmt_xdate()
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def main() -> int:
    """Draw everything; 3 when something is not installed."""
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        print("plot_store: matplotlib is not installed: pip install matplotlib", file=sys.stderr)
        return 3
    from tailrace.spark.session import local_session

    directory = Path(sys.argv[2])
    directory.mkdir(parents=True, exist_ok=True)
    spark = local_session("local[*]")
    try:
        for name, lines in tables(spark, sys.argv[1]).items():
            draw(name, lines, directory / f"{name}.png")
            print(directory / f"{name}.png")
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
