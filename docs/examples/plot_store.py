"""Pictures of a store: messages, bytes and pending timers by hour and topic, as PNG.

    python plot_store.py STORE DIRECTORY

Needs the extras ``spark`` and ``plot``: ``pip install '.[spark,plot]'`` in the checkout. Times are in UTC. The tables
are those of ``tailrace pipeline traffic`` and ``tailrace pipeline timers``; any other tool that plots tables does as well.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

Lines = dict[str, tuple[list[datetime], list[float]]]
TOPICS = 9
UNITS = {"messages": "", "bytes": "B", "timers": ""}
TITLES = {
    "messages": "Messages stored an hour, by topic", "bytes": "Bytes stored an hour, by topic",
    "timers": "Pending timers by the hour they are due, by topic"}


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
        found[topic][0].append(start.astimezone(UTC))
        found[topic][1].append(value)
    return dict(found)


def columns_of(lines: Lines) -> dict[str, dict[datetime, float]]:
    """The topics with most, and all others together; values by time."""
    ranked = sorted(lines, key=lambda topic: -sum(lines[topic][1]))
    found: dict[str, dict[datetime, float]] = {}
    for place, topic in enumerate(ranked):
        name = topic if len(ranked) <= TOPICS or place < TOPICS - 1 else f"{len(ranked) - TOPICS + 1} others"
        one = found.setdefault(name, {})
        for time, value in zip(*lines[topic], strict=True):
            one[time] = one.get(time, 0) + value
    return found


def draw(name: str, lines: Lines, file: Path) -> None:
    """One picture: a bar an hour, the topics one on the other; an hour without a bar had nothing."""
    from matplotlib import dates, ticker
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.add_subplot()
    below: dict[datetime, float] = defaultdict(float)
    for topic, values in columns_of(lines).items():
        times = sorted(values)
        axes.bar(
            times, [values[time] for time in times], bottom=[below[time] for time in times],
            width=timedelta(hours=0.9), align="edge", label=topic)
        for time in times:
            below[time] += values[time]
    axes.set_title(TITLES[name])
    axes.set_xlabel("UTC")
    locator = dates.AutoDateLocator(tz=UTC)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, tz=UTC))
    axes.yaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(ticker.EngFormatter(UNITS[name]))
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    if below:
        figure.legend(loc="outside right upper", fontsize="small")
    else:
        axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center")
    figure.savefig(file, dpi=80)


def main() -> int:
    """Draw everything; 3 when something is not installed."""
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        print("plot_store: matplotlib is not installed: pip install '.[plot]' in the checkout", file=sys.stderr)
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
