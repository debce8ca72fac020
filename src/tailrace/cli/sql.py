"""``tailrace sql``: a query over messages, queues, timers and segments, as a table, CSV, JSON lines or Parquet."""

import csv
import itertools
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Optional, TextIO

import typer

from tailrace.cli import completion
from tailrace.cli.arguments import complain, errors, usage
from tailrace.cli.contexts import tls_of
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import StoreError
from tailrace.logs import one_line

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["sql"]

_TABLE, _CSV, _JSON, _PARQUET = "table", "csv", "json", "parquet"
_FORMATS: Final = (_TABLE, _CSV, _JSON, _PARQUET)
_SUFFIXES: Final = {".csv": _CSV, ".json": _JSON, ".jsonl": _JSON, ".parquet": _PARQUET}
_SHOWN: Final = 1_000
"""Rows of a table on a terminal at most."""


def sql(
    store: Annotated[str, typer.Argument(
        metavar="STORE",
        help="A store directory, an archive, or HOST:PORT of a name server.", autocompletion=completion.stores)],
    query: Annotated[str, typer.Argument(metavar="SQL", help="The query; - reads it from stdin.")],
    form: Annotated[str, typer.Option(
        "--format", help="table, csv, json (one row a line) or parquet. Default: by the suffix of --out; a table on a "
        "terminal, JSON lines in a pipe.", autocompletion=completion.one_of(*_FORMATS))] = "",
    out: Annotated[
        Optional[Path],  # noqa: UP045 - typer reads the annotation at run time
        typer.Option("--out", metavar="FILE", help="Write the rows to a new FILE."),
    ] = None,
    archive: Annotated[
        str,
        typer.Option("--archive", metavar="ARCHIVE", help="Also read messages that only this archive has."),
    ] = "",
    skip_damaged: Annotated[
        bool, typer.Option("--skip-damaged", help="Leave out damaged records, with a warning.")] = False,
    external_access: Annotated[
        bool, typer.Option("--external-access", help="Let the SQL read and write files and use the network.")] = False,
    config: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--config", metavar="FILE", help="A settings file of the store."),
    ] = None,
) -> None:
    """Run a query of DuckDB over a directory, an archive or brokers.

    The tables are messages, queues, timers and segments; DESCRIBE messages lists the columns of one. A condition on
    topic, queueId, queueOffset, commitLogOffset or storeTimestamp limits what is read. Bodies are decompressed; as text
    they are UTF-8, with \\xNN for other bytes. Times are in UTC. A server may have the directory open.

    Needs the extra `sql`. Nothing in STORE changes.
    """
    form = _form(form, out)
    text = sys.stdin.read() if query == "-" else query
    with errors():
        from tailrace.dataset import sql as queries  # noqa: PLC0415 - optional packages
        from tailrace.store.archive_store import is_remote  # noqa: PLC0415 - loads the store

        tables = queries.tables_of(
            store, archive=archive, config=config or "", mode="DROPMALFORMED" if skip_damaged else "FAILFAST",
            tls=tls_of() if not Path(store).exists() and not is_remote(store) else None)
        with queries.query(tables, text, external_access=external_access) as rows:
            if form == _PARQUET:
                assert out is not None
                _write_parquet(out, rows)
            else:
                _write_text(form, out, rows)


def _form(form: str, out: Path | None) -> str:
    """Return the form of the output. Ends with exit code 2 for a wrong one."""
    if form and form not in _FORMATS:
        raise usage(f"--format {form!r} is not one of {', '.join(_FORMATS)}")
    if not form and out is not None:
        form = _SUFFIXES.get(out.suffix.lower(), "")
        if not form:
            raise usage(f"--out {out}: add --format, or end the name with {', '.join(_SUFFIXES)}")
    if form == _PARQUET and out is None:
        raise usage("--format parquet needs --out FILE")
    return form or (_TABLE if sys.stdout.isatty() else _JSON)


@contextmanager
def _new_file(path: Path) -> Iterator[Path]:
    """Yield a path to write to, which becomes ``path`` at the end. Raises StoreError if it exists, and OSError."""
    files = OsFileSystem()
    if path.exists():
        raise StoreError(f"{path} exists")
    part = path.with_name(f"{path.name}.part")
    try:
        yield part
        files.rename(str(part), str(path))
    except OSError as error:
        if error.errno is None or error.filename:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error  # a full disk has no name
    finally:
        if part.exists():
            files.remove(str(part))


def _write_parquet(out: Path, rows: "pa.RecordBatchReader") -> None:
    import pyarrow.parquet as pq  # noqa: PLC0415

    with _new_file(out) as path, pq.ParquetWriter(path, rows.schema, compression="zstd") as writer:
        for batch in rows:
            writer.write_batch(batch)


def _write_text(form: str, out: Path | None, rows: "pa.RecordBatchReader") -> None:
    lines = (line for batch in rows for line in _lines(batch))
    if out is None:
        _print_text(form, rows.schema.names, lines, sys.stdout)
        return
    with _new_file(out) as path, path.open("w", encoding="utf-8", newline="") as file:
        _print_text(form, rows.schema.names, lines, file)


def _print_text(form: str, names: list[str], lines: Iterator[list[Any]], file: TextIO) -> None:
    import orjson  # noqa: PLC0415

    if form == _TABLE:
        _print_table(names, lines, file)
    elif form == _CSV:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([_text(value, "") for value in line] for line in lines)
    else:
        if len(set(names)) < len(names):
            raise StoreError(f"SQL: columns have the same name, which JSON cannot have: {', '.join(names)}; use AS")
        file.writelines(orjson.dumps(dict(zip(names, line, strict=True))).decode() + "\n" for line in lines)
    file.flush()


def _print_table(names: list[str], lines: Iterator[list[Any]], file: TextIO) -> None:
    from rich.cells import cell_len  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    shown = [[one_line(_text(value, "null")) for value in line] for line in itertools.islice(lines, _SHOWN)]
    console = Console(file=file, highlight=False, markup=False, emoji=False)
    widths = [max(map(cell_len, cells)) for cells in zip(names, *shown, strict=True)]
    if shown and sum(widths) + 2 * len(widths) > console.width:  # each row becomes a list of its values
        titles = max(map(len, names))
        for row in shown:
            file.writelines(f"{name:<{titles}}  {text}\n" for name, text in zip(names, row, strict=True))
            file.write("\n")
    else:
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        for name in names:
            table.add_column(name, no_wrap=True)
        for row in shown:
            table.add_row(*row)
        console.print(table)
    if next(lines, None) is not None:
        complain(f"only the first {_SHOWN:,} rows are shown: --format json or --out has all of them")


def _text(value: Any, null: str) -> str:
    """Return a value as a cell: nested values are JSON."""
    import orjson  # noqa: PLC0415

    if value is None:
        return null
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _lines(batch: "pa.RecordBatch") -> Iterable[list[Any]]:
    """Return the rows of a batch, in values that JSON has."""
    columns = [[_plain(value) for value in _values(column)] for column in batch.columns]
    return [list(row) for row in zip(*columns, strict=True)] if columns else []


def _values(column: "pa.Array") -> list[Any]:
    """Return the values of a column; maps are dicts."""
    import pyarrow as pa  # noqa: PLC0415

    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":  # Python's times have microseconds
        return list(column.cast(pa.string()).to_pylist())
    if pa.types.is_map(column.type):
        return list(column.to_pylist(maps_as_pydicts="lossy"))
    return list(column.to_pylist())


def _plain(value: Any) -> Any:
    """Return a value of a result as JSON has it; whole numbers of any size stay exact."""
    import datetime as dt  # noqa: PLC0415
    from decimal import Decimal  # noqa: PLC0415

    match value:
        case None | bool() | float() | str():
            return value
        case int():
            return value if -(1 << 63) <= value < 1 << 64 else str(value)
        case bytes():
            return value.decode("utf-8", "backslashreplace")
        case Decimal():
            return _plain(int(value)) if value == value.to_integral_value() else str(value)
        case dt.datetime():
            unit = "milliseconds" if value.microsecond % 1000 == 0 else "microseconds"
            return value.isoformat(timespec=unit).replace("+00:00", "Z")
        case list():
            return [_plain(one) for one in value]
        case dict():
            return {str(name): _plain(one) for name, one in value.items()}
        case _:
            return str(value)
