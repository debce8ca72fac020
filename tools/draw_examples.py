"""Draw three pictures of one day for the site, from a store that is made for them. This is a hook of mkdocs.yml.

    python tools/draw_examples.py     writes them to docs/pictures, for readers of the files; part of make gen

The store is filled by a simulated clock, archived, and freed of its oldest files. The figures are read back with
`tailrace.scan` and the tables of `tailrace sql`, as a user does it. The same pictures come out of every run.
"""

from __future__ import annotations

import io
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np

from tailrace import Message, MessageStore, StoreConfig
from tailrace.dataset.sql import tables_of
from tailrace.env.filesystem import OsFileSystem
from tailrace.node.store_opening import StoreParts
from tailrace.spark.archive.job import ArchiveJob, ArchiveOptions, local_runner
from tailrace.store.archive_manifest import list_manifests, read_manifest
from tailrace.store.archive_store import PosixArchive
from tailrace.testing import ManualScheduler, SimClock

DAY: Final = datetime(2026, 11, 20, tzinfo=UTC)
STEP_MS: Final = 600_000
STEPS: Final = 144
SEGMENT: Final = 256 << 10
WIDTH_IN: Final = 4.6
"""Width in inches: on a phone the smallest text, of 9 points, keeps more than 9 pixels."""
NAMES: Final = ("example-day.svg", "example-retention.svg", "example-timers.svg")


def _rate(step: int, peak: float, most: float) -> int:
    """Messages of a topic in ten minutes: a hill around an hour of the day."""
    away = (step / 6 - peak + 12) % 24 - 12
    return round(2 + most * math.exp(-away * away / 12))


def timers(hour: int) -> tuple[tuple[str, int], ...]:
    """Topics and numbers of the timers that are due in an hour of the day after."""
    return ("reminders", _rate(hour * 6, 9, 25)), ("invoices", 3 if hour % 6 else 20)


def fill(place: Path, clock: SimClock) -> list[int]:
    """Store a day of messages and of timers for the day after; return the lag of a consumer every ten minutes."""
    config = StoreConfig(mapped_file_size_commit_log=SEGMENT)
    scheduler = ManualScheduler()
    lag, waiting = [], 0
    parts = StoreParts(clock=clock, file_system=OsFileSystem(), scheduler=scheduler)
    with MessageStore.open(str(place), config=config, parts=parts) as store:
        for step in range(STEPS):
            orders = _rate(step, 13, 14)
            for topic, count in (("orders", orders), ("clicks", _rate(step, 20, 22)), ("mails", _rate(step, 7, 6))):
                store.put_many([Message(topic=topic, body=bytes(1_000))] * count)
            # The consumer of orders stops from 10:00 to 12:30, and then has more to do than usual.
            waiting = max(waiting + orders - (0 if 60 <= step < 75 else 20), 0)
            lag.append(waiting)
            clock.advance(STEP_MS)
        for hour in range(24):
            for topic, count in timers(hour):
                for number in range(count):
                    due_ms = clock.now_ms() + hour * 3_600_000 + (number + 1) * 60_000
                    store.put(Message(topic=topic, body=b"later", deliver_at=due_ms))
        while scheduler.steps["ReputMessageService"]():
            pass
        store.flush()
    return lag


def archive_and_free(place: Path, archive: Path, clock: SimClock) -> None:
    """Archive what is sealed, then let retention delete the older half of the log."""
    files = OsFileSystem()
    with ArchiveJob(
        str(place), str(archive), local_runner(files), clock=clock, options=ArchiveOptions(piece_bytes=SEGMENT),
    ) as job:
        sealed = sum(one.size for one in job.step())
    parts = StoreParts(clock=clock, file_system=files, scheduler=ManualScheduler())
    config = StoreConfig(mapped_file_size_commit_log=SEGMENT, archive_directory=str(archive))
    with MessageStore.open(str(place), config=config, parts=parts) as store:
        store.retention.free_now(sealed // 2)


def hours_of(times: Any, values: Any) -> Any:
    """Return the sums of values by hour of the day."""
    hours = (times.astype("datetime64[us]") - np.datetime64(DAY.replace(tzinfo=None), "us")) // np.timedelta64(1, "h")
    inside = (hours >= 0) & (hours < 24)
    return np.bincount(hours[inside].astype(int), weights=values[inside], minlength=24)


def _axes(title: str, rows: int = 1) -> tuple[Any, Any]:
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    rcParams["svg.hashsalt"] = "tailrace"  # ids by their content, not by chance
    rcParams["svg.fonttype"] = "none"  # text stays text
    figure = Figure(figsize=(WIDTH_IN, 1.8 + 1.4 * rows), layout="constrained")
    axes = figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]
    axes[0].set_title(title, fontsize=10)
    for one in axes:
        one.grid(axis="y", alpha=0.3)
        one.set_axisbelow(True)
        one.set_xlim(0, 24)
        one.set_xticks(range(0, 25, 3))
    return figure, axes


def _bars(axes: Any, parts: Mapping[str, Any]) -> None:
    below = np.zeros(24)
    for name, values in parts.items():
        axes.bar(np.arange(24), values, bottom=below, width=0.9, align="edge", label=name)
        below += values
    axes.legend(fontsize=9)


def _svg(figure: Any) -> str:
    made = io.StringIO()
    figure.savefig(made, format="svg", metadata={"Date": None, "Creator": "tools/draw_examples.py"})
    return made.getvalue()


def draw_day(rows: Any, lag: Sequence[int]) -> str:
    """Messages by topic and hour, and the lag of a consumer below."""
    figure, (above, below) = _axes("A day: messages stored an hour, by topic", 2)
    topics, times = rows["topic"].to_numpy(zero_copy_only=False), rows["storeTimestamp"].to_numpy()
    ones = np.ones(len(topics))
    names = ("orders", "clicks", "mails")
    _bars(above, {name: hours_of(times[topics == name], ones[topics == name]) for name in names})
    below.set_title("Lag of the consumer of orders, in messages", fontsize=10)
    below.plot(np.arange(STEPS) / 6, lag, color="tab:red")
    below.fill_between(np.arange(STEPS) / 6, lag, color="tab:red", alpha=0.2)
    below.set_xlabel("hour (UTC)")
    return _svg(figure)


def draw_retention(rows: Any, freed_until: int, archived_until: int) -> str:
    """Bytes by the hour in which they were stored, and where they are after archive and deletion."""
    figure, (axes,) = _axes("Where the bytes of each hour are, in KiB")
    at, size = rows["commitLogOffset"].to_numpy(), rows["storeSize"].to_numpy() / 1024
    times = rows["storeTimestamp"].to_numpy()
    parts = {
        "archive, deleted from the log": at < freed_until,
        "log and archive": (at >= freed_until) & (at < archived_until),
        "log: the file is not sealed": at >= archived_until}
    _bars(axes, {name: hours_of(times[chosen], size[chosen]) for name, chosen in parts.items()})
    axes.set_xlabel("hour of the store time (UTC)")
    return _svg(figure)


def draw_timers(rows: Any) -> str:
    """Pending timers by the hour in which they are due."""
    figure, (axes,) = _axes("Pending timers by the hour they are due, by topic")
    topics = rows["topic"].to_numpy(zero_copy_only=False)
    times = rows["dueTimestamp"].to_numpy() - np.timedelta64(1, "D")
    ones = np.ones(len(topics))
    _bars(axes, {name: hours_of(times[topics == name], ones[topics == name]) for name in sorted(set(topics))})
    axes.set_xlabel(f"hour of {(DAY + timedelta(days=1)).date()} (UTC)")
    return _svg(figure)


def pictures() -> Iterator[tuple[str, str]]:
    """Yield name and content of each picture."""
    with tempfile.TemporaryDirectory(prefix="tailrace-pictures-") as directory:
        place, archive = Path(directory, "store"), Path(directory, "archive")
        clock = SimClock(round(DAY.timestamp() * 1000))
        lag = fill(place, clock)
        archive_and_free(place, archive, clock)
        tables = tables_of(place, archive=archive)
        columns = ["topic", "commitLogOffset", "storeSize", "storeTimestamp"]
        messages = tables["messages"].to_table(columns=columns)
        there = PosixArchive(str(archive))
        last = read_manifest(there, list_manifests(there)[-1])
        assert last is not None
        freed = min(one["segment"] for one in tables["segments"].to_table().to_pylist() if one["inLog"])
        yield NAMES[0], draw_day(messages, lag)
        yield NAMES[1], draw_retention(messages, freed, last.until)
        yield NAMES[2], draw_timers(tables["timers"].to_table())


def on_files(files: Any, config: Any) -> Any:
    """Put the pictures into the site, in place of those of the tree."""
    from mkdocs.structure.files import File

    for name, content in pictures():
        path = f"pictures/{name}"
        if (there := files.get_file_from_path(path)) is not None:
            files.remove(there)
        files.append(File.generated(config, path, content=content))
    return files


if __name__ == "__main__":
    for one, text in pictures():
        (Path(__file__).resolve().parents[1] / "docs" / "pictures" / one).write_text(text)
