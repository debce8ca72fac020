"""Output of commands: JSON lines in a pipe, tables on a terminal, and a progress bar for long work."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from tailrace.env.clock import Clock, SystemClock
from tailrace.logs import one_line

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from tailrace.client.admin import Deleted

__all__ = [
    "Progress", "camel", "deleted_line", "local_time", "print_lines", "print_message", "print_table", "show",
    "wants_table",
]

QUIET_MS: Final = 2_000
"""The progress bar appears after this time."""


def camel(name: str) -> str:
    """Return the name of a field in the spelling of JSON lines: ``allocatedBytes``."""
    return re.sub(r"_([a-z0-9])", lambda found: found[1].upper(), name)


def local_time(ms: int) -> str:
    """Return a time in this machine's time zone: ``2026-11-23T07:10:22.123+01:00``."""
    try:
        return datetime.fromtimestamp(ms / 1000).astimezone().isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return ""  # a time beyond the year 9999, which a message may carry


def _short_time(ms: int) -> str:
    return local_time(ms)[:23].replace("T", " ") or str(ms)


def print_lines(lines: Iterable[Mapping[str, Any]]) -> None:
    """Print JSON lines on stdout."""
    import orjson  # noqa: PLC0415 - help and complaints need none

    for line in lines:
        sys.stdout.buffer.write(orjson.dumps(line) + b"\n")
    sys.stdout.buffer.flush()


def wants_table(*, as_json: bool) -> bool:
    """Return whether to print tables: stdout is a terminal, and --json is not given."""
    return not as_json and sys.stdout.isatty()


def deleted_line(name: str, done: Deleted) -> dict[str, Any]:
    """Return the line about a deletion: who did it, which other topics were deleted, and what is kept."""
    also = [topic for topic in done.topics if topic != name]
    return {"deleted": name, "by": done.by, **({"also": also} if also else {}),
            **({"kept": done.kept} if done.kept else {})}


def show(lines: Iterable[Mapping[str, Any]], *, as_json: bool = False, empty: str = "nothing found") -> None:
    """Print rows as a table on a terminal, as JSON lines in a pipe."""
    if wants_table(as_json=as_json):
        print_table([*lines], empty)
    else:
        print_lines(lines)


def print_table(rows: Sequence[Mapping[str, Any]], empty: str = "nothing found") -> None:
    """Print rows as a table. Columns with milliseconds since 1970 are shown as local times."""
    from rich.console import Console  # noqa: PLC0415 - not in pipes
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    if not rows:
        print(empty, file=sys.stderr)
        return
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if not name.endswith("Time")]
    console = Console(highlight=False, markup=False, emoji=False)
    if console.width < 8 * len(names):  # a terminal too narrow for columns
        for row in rows:
            for name in names:
                console.print(Text(f"{_title(name)}: {_cell(name, row.get(name))}"))
        return
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in names:
        numbers = all(isinstance(row.get(name), int | float) for row in rows) and not _is_time(name)
        table.add_column(_title(name), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(name, row.get(name))) for name in names))
    console.print(table)


def print_message(line: Mapping[str, Any]) -> None:
    """Print a message as one short line, cut to the width of the terminal."""
    import shutil  # noqa: PLC0415

    properties = line["properties"]
    words = [
        _short_time(line["storeTimestamp"]), f"{line['queueId']}:{line['queueOffset']}",
        *(f"{name.lower()}={properties[name]}" for name in ("TAGS", "KEYS") if properties.get(name)),
        line.get("body", line.get("bodyBase64", "")),
    ]
    text = one_line("  ".join(words))
    print(text[: shutil.get_terminal_size().columns], flush=True)


def _title(name: str) -> str:
    words = re.sub(r"([A-Z])", r" \1", name).lower()
    return words.removesuffix(" ms").removesuffix(" timestamp") if _is_time(name) else words


def _is_time(name: str) -> bool:
    return name.endswith("Timestamp") or name in {"dueMs", "nextDueMs", "lastMessageMs", "expiresMs"}


def _cell(name: str, value: Any) -> str:
    if value is None or value in ("", [], {}):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and _is_time(name):
        return _short_time(value) if value > 0 else "-"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, Mapping):
        return " ".join(f"{one_line(str(k))}={one_line(str(v))}" for k, v in value.items())
    if isinstance(value, list):
        return " ".join(one_line(str(item)) for item in value)
    return one_line(str(value))


class Progress:
    """A progress bar on stderr. It appears after two seconds, and only if stderr is a terminal.

    Call the object with the share that is done, from 0 to 1. Use it as a context manager, which removes the bar.
    """

    def __init__(self, what: str, clock: Clock | None = None, *, beside_output: bool = True) -> None:
        """With ``beside_output=False`` there is no bar if stdout is a terminal, because output would cut the bar."""
        self._what = what
        self._clock = clock or SystemClock()
        self._began_ms = self._clock.monotonic_ns() // 1_000_000
        self._bar: Bar | None = None
        self._on = sys.stderr.isatty() and (beside_output or not sys.stdout.isatty())

    def __call__(self, done: float) -> None:
        """Show the progress."""
        if not self._on:
            return
        if self._bar is None:
            if self._clock.monotonic_ns() // 1_000_000 - self._began_ms < QUIET_MS:
                return
            self._bar = _new_bar()
            self._bar.add_task(self._what, total=1.0)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=min(1.0, max(0.0, done)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def _new_bar() -> Bar:
    from rich.console import Console  # noqa: PLC0415 - only for what takes long
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn(),
        console=Console(stderr=True), transient=True)
