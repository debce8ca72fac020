"""Output of commands: JSON lines in a pipe, tables on a terminal, and a progress bar for long work."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from tailrace.env.clock import Clock, SystemClock
from tailrace.formats.names import KEYS, TAGS, UNIQ_KEY
from tailrace.logs import one_line
from tailrace.spellings import size_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.text import Text

    from tailrace.cli.listings import Listing
    from tailrace.client.admin import Deleted

__all__ = [
    "About", "Progress", "deleted_line", "layout", "local_time", "print_fields", "print_kinds",
    "print_lines", "print_message", "print_table", "print_text", "show", "show_listing", "show_one", "wants_table",
]

QUIET_MS: Final = 2_000
"""The progress bar appears after this time."""
_NOTHING: Final = "-"
_SIZES: Final = frozenset({"bytes", "size", "bodySize", "mappedFileSizeCommitLog"})
"""Columns of bytes that are not named after their unit."""
_SHORT: Final = 16
"""Texts up to this width are never folded, such as a time or a number with its unit."""
_ROWS: Final = 100
"""Rows of a table that is printed while more rows are read."""
_STYLES: Final = {
    "lag": "yellow", "deadLetters": "red", "damaged": "red", "findings": "red", "parked": "yellow", "readOnly": "red",
    "problem": "red",
}
"""Colours of values that need attention, by the name of their column. NO_COLOR turns them off."""


@dataclass
class _Layout:
    """How tables are laid out."""

    wide: bool = False
    """Print each row on one line, however wide, for a terminal that is wide or scrolls."""


layout: Final = _Layout()


class About(int):
    """A number that is estimated, shown as ``~N``."""


def local_time(ms: int) -> str:
    """Return a time in this machine's time zone: ``2026-11-23T07:10:22.123+01:00``."""
    try:
        return datetime.fromtimestamp(ms / 1000).astimezone().isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return ""  # a time beyond the year 9999, which a message may carry


def _short_time(ms: int) -> str:
    return local_time(ms)[:23].replace("T", " ") or str(ms)


def print_lines(lines: Iterable[Mapping[str, Any]]) -> None:
    """Print JSON lines on stdout. Raises OSError, which names stdout, such as for a full disk."""
    import orjson  # noqa: PLC0415 - help and complaints need none

    for line in lines:
        with _names_stdout():
            sys.stdout.buffer.write(orjson.dumps(line) + b"\n")
    with _names_stdout():
        sys.stdout.buffer.flush()


@contextmanager
def _names_stdout() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, "stdout") from error


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


def show_one(fields: Mapping[str, Any], *, as_json: bool, shown: Mapping[str, Any] | None = None) -> None:
    """Print an object as a JSON line in a pipe, on a terminal its members, or those of ``shown``, one a line."""
    if wants_table(as_json=as_json):
        print_fields(fields if shown is None else shown)
    else:
        print_lines([fields])


def show_listing(
    noun: str, listing: Listing, row: Callable[[dict[str, Any]], dict[str, Any]], *, every: bool, as_json: bool
) -> None:
    """Print a listing: in a pipe all of its lines, in a table those that are not hidden, and how many are."""
    if not wants_table(as_json=as_json):
        print_lines(listing.lines)
    else:
        shown = [line for line in listing.lines if every or not line["hidden"]]
        print_table([row(line) for line in shown], f"there is no {noun}", may_hide=("lastUpdateTimestamp",))
        if hidden := len(listing.lines) - len(shown):
            print(f"{hidden} {noun}{'s' if hidden > 1 else ''} of the system not shown; --all shows them",
                  file=sys.stderr)
    if listing.uncounted:
        print(f"tailrace: {listing.uncounted} {noun}s are not counted, because a command counts at most "
              f"{len(listing.lines) - listing.uncounted}", file=sys.stderr)


def print_table(
    rows: Sequence[Mapping[str, Any]], empty: str = "nothing found", *, may_hide: Sequence[str] = ()
) -> None:
    """Print rows as a table. Columns with milliseconds since 1970 are shown as local times, those of bytes as GiB.

    A column without any value is left out. If the rows are wider than the terminal, the columns of ``may_hide`` are
    left out, the last one first, and texts are folded between words. If a word does not fit, such as an id, each row
    becomes a list of its fields. `wide` prints every column on one line.
    """
    if not rows:
        print(empty, file=sys.stderr)
        return
    from rich.table import Table  # noqa: PLC0415

    console, names, texts = _console(), _shown(rows), {}
    for name in names:
        texts[name] = [_cell(name, row.get(name)) for row in rows]
    for name in () if layout.wide else reversed(may_hide):
        if _width(names, texts, _widest) > console.width:
            names = [one for one in names if one != name]
    whole = _width(names, texts, _widest)
    if layout.wide:
        console.width = max(console.width, whole)
    elif whole > console.width and _width(names, texts, _longest_word) > console.width:
        for place, row in enumerate(rows):
            if place:
                console.print()
            _print_fields(console, {name: row.get(name) for name in names})
        return
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in names:
        table.add_column(
            _title(name), justify="right" if _is_number(name, rows) else "left", overflow="fold",
            min_width=_of_column(name, texts, _longest_word))
    for place, row in enumerate(rows):
        table.add_row(*(_styled(name, row.get(name), texts[name][place]) for name in names))
    console.print(table)


def print_kinds(lines: Iterable[Mapping[str, Any]]) -> None:
    """Print JSON lines with one member each, such as those of a dump, as a table for each sequence of one kind."""
    for kind, same in itertools.groupby(lines, key=lambda line: next(iter(line))):
        row = _message_row if kind == "message" else dict
        while rows := [row(line[kind]) for line in itertools.islice(same, _ROWS)]:
            print(f"{kind}:")
            if len(rows) > 1:
                print_table(rows, may_hide=("topic", "uniqueKey") if kind == "message" else ())
            else:
                print_fields(rows[0])
            print(flush=True)


def _message_row(message: Mapping[str, Any]) -> dict[str, Any]:
    properties = message["properties"]
    return {
        "topic": message["topic"], "place": f"{message['queueId']}:{message['queueOffset']}",
        "position": message["physicalOffset"], "size": message["size"],
        "storeTimestamp": message["storeTimestamp"], "tag": properties.get(TAGS), "keys": properties.get(KEYS),
        "uniqueKey": properties.get(UNIQ_KEY), "body": message.get("body", message.get("bodyBase64")),
    }


def print_fields(fields: Mapping[str, Any]) -> None:
    """Print names and values, one a line; those without a value are left out."""
    _print_fields(_console(), {name: fields[name] for name in _shown([fields])})


def _print_fields(console: Console, fields: Mapping[str, Any]) -> None:
    from rich.table import Table  # noqa: PLC0415

    titles = max(len(_title(name)) for name in fields)
    for name, value in fields.items():
        text = _styled(name, value, _cell(name, value))
        if layout.wide or _longest_word(text.plain) > console.width - titles - 2:
            console.print(f"{_title(name):<{titles}}  ", text, sep="", soft_wrap=True)  # an id is copied whole
            continue
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(width=titles, no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(_title(name), text)
        console.print(grid)


def print_text(lines: Iterable[str]) -> None:
    """Print lines; on a terminal, long ones are folded between words."""
    import shutil  # noqa: PLC0415
    import textwrap  # noqa: PLC0415

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() and not layout.wide else 0
    for line in lines:
        start = " " * (len(line) - len(line.lstrip()) + 2)
        print(textwrap.fill(
            line, width, subsequent_indent=start, break_long_words=False, break_on_hyphens=False,
            drop_whitespace=True) if 0 < width < len(line) else line)


def _console() -> Console:
    from rich.console import Console  # noqa: PLC0415 - not in pipes

    return Console(highlight=False, markup=False, emoji=False)


def _shown(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the columns that have a value in a row; all of them if none has."""
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if not name.endswith("Time")]
    return [name for name in names if any(_cell(name, row.get(name)) != _NOTHING for row in rows)] or names


def _width(names: Sequence[str], texts: Mapping[str, Sequence[str]], size: Callable[[str], int]) -> int:
    """Return the width of a table whose columns are as wide as ``size`` says of their texts."""
    return sum(_of_column(name, texts, size) for name in names) + 2 * max(len(names) - 1, 0)


def _of_column(name: str, texts: Mapping[str, Sequence[str]], size: Callable[[str], int]) -> int:
    return max(map(size, (_title(name), *texts[name])))


def _widest(text: str) -> int:
    from rich.cells import cell_len  # noqa: PLC0415

    return cell_len(text)


def _longest_word(text: str) -> int:
    """Return the width below which a text would be cut inside a word; short texts count as one word."""
    whole = _widest(text)
    return whole if whole <= _SHORT else max(_SHORT, *map(_widest, text.split()))


def _is_number(name: str, rows: Sequence[Mapping[str, Any]]) -> bool:
    values = [row.get(name) for row in rows]
    return not _is_time(name) and all(value is None or isinstance(value, int | float) for value in values)


def _styled(name: str, value: Any, text: str) -> Text:
    from rich.text import Text  # noqa: PLC0415

    style = _STYLES.get(name, "")
    return Text(text, style=style if style and value and text != _NOTHING else "")


def print_message(line: Mapping[str, Any]) -> None:
    """Print a message as one short line, cut to the width of the terminal."""
    import shutil  # noqa: PLC0415

    properties = line["properties"]
    words = [
        _short_time(line["storeTimestamp"]), f"{line['queueId']}:{line['queueOffset']}",
        *(f"{name.lower()}={properties[name]}" for name in (TAGS, KEYS) if properties.get(name)),
        line.get("body", line.get("bodyBase64", "")),
    ]
    text = one_line("  ".join(words))
    print(text[: shutil.get_terminal_size().columns], flush=True)


def _title(name: str) -> str:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name).lower()
    if _is_time(name):
        return words.removesuffix(" ms").removesuffix(" timestamp")
    return words.removesuffix(" bytes").removesuffix(" percent")


def _is_time(name: str) -> bool:
    return name.endswith("Timestamp") or name in {"dueMs", "nextDueMs", "lastMessageMs", "expiresMs", "createdMs"}


def _cell(name: str, value: Any) -> str:
    if value is None or value in ("", [], {}):
        return _NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float) and (name.endswith(("Percent", "Bytes")) or name in _SIZES):
        about = "~" if isinstance(value, About) else ""
        return about + (f"{value:g} %" if name.endswith("Percent") else size_text(round(value)))
    if isinstance(value, int) and _is_time(name):
        return _short_time(value) if value > 0 else _NOTHING
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, Mapping):
        return " ".join(f"{one_line(str(k))}={one_line(str(v))}" for k, v in value.items())
    if isinstance(value, list):
        return " ".join(_cell("", item) if isinstance(item, Mapping) else one_line(str(item)) for item in value)
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
