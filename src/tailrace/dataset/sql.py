"""SQL over the tables of a store, by DuckDB, which must be installed (the extra ``sql``).

SQL reads the given tables and nothing else, unless the caller allows more: no files, no network, no variables of the
program, no extensions, and no temporary files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, cast

from tailrace.arrow import pyarrow
from tailrace.errors import MissingPackageError, StoreError

if TYPE_CHECKING:
    import pyarrow as pa

    from tailrace.dataset.brokers import BrokerRows
    from tailrace.dataset.rows import RowsDataset
    from tailrace.remoting.tls import TlsOptions

__all__ = ["TABLES", "query", "tables_of"]

TABLES: Final = ("messages", "queues", "timers", "segments")
_BATCH: Final = 1 << 14
_SETTINGS: Final = (
    "TimeZone = 'UTC'", "temp_directory = ''", "python_enable_replacements = false")
_CLOSED: Final = (
    "autoinstall_known_extensions = false", "autoload_known_extensions = false", "enable_external_access = false",
    "lock_configuration = true")


def tables_of(
    place: str | os.PathLike[str], *, archive: str | os.PathLike[str] = "", config: str | os.PathLike[str] = "",
    mode: str = "FAILFAST", tls: TlsOptions | None = None,
) -> dict[str, RowsDataset]:
    """Return the tables of a directory, an archive or brokers by name, see `tailrace.scan`.

    ``messages`` has decoded bodies. An archive that is read alone has no ``timers``, and brokers have only ``messages``
    and ``queues``. ``tls`` is for brokers.
    """
    _duckdb()
    from tailrace.dataset.opening import scan  # noqa: PLC0415 - needs pyarrow
    from tailrace.dataset.store import StoreRows  # noqa: PLC0415
    from tailrace.dataset.tables import queues_of_brokers, side_tables  # noqa: PLC0415

    messages = scan(place, archive=archive, config=config, mode=mode, tls=tls or False)
    if isinstance(messages.rows, StoreRows):
        return {"messages": messages, **side_tables(messages.rows.directories)}
    return {"messages": messages, "queues": queues_of_brokers(cast("BrokerRows", messages.rows).ranges_of_queues)}


def _duckdb() -> Any:
    """Return the module duckdb. Raises MissingPackageError without it or without pyarrow."""
    for package in ("duckdb", "pyarrow"):
        try:
            import_module(package)
        except ImportError as error:
            raise MissingPackageError("SQL queries", package, "sql") from error
    return import_module("duckdb")


@contextmanager
def query(
    tables: Mapping[str, RowsDataset], sql: str, *, external_access: bool = False
) -> Iterator[pa.RecordBatchReader]:
    """Yield the rows of the last statement of ``sql``. Times have the time zone UTC.

    With ``external_access`` SQL may read and write files and use the network. Raises StoreError for SQL that DuckDB
    refuses or that returns no rows, MissingPackageError without DuckDB, and what reading of a table raises.
    """
    duckdb = _duckdb()
    from tailrace.dataset.rows import RowsDataset  # noqa: PLC0415 - needs pyarrow

    watched = {name: _Watched(table.rows) for name, table in tables.items()}
    with duckdb.connect(":memory:") as base:
        for name, rows in watched.items():
            base.register(name, RowsDataset(rows))
        for setting in (*_SETTINGS, *(() if external_access else _CLOSED)):
            base.execute(f"SET {setting}")
        try:
            found = base.sql(sql)
            if found is None:
                raise StoreError("SQL: the last statement has no rows; end with a SELECT")
            yield found.to_arrow_reader(_BATCH)
        except (duckdb.Error, pyarrow().ArrowException, OSError) as error:
            for rows in watched.values():
                if rows.error is not None:
                    raise rows.error from error
            if isinstance(error, OSError) and error.errno is not None:
                raise  # of the caller's output
            raise StoreError(f"SQL: {_in_a_line(error)}") from error


class _Watched:
    """Rows of a dataset, with the error that reading them raised: other code may have put it into a text."""

    def __init__(self, rows: Any) -> None:
        self.schema, self._rows = rows.schema, rows
        self.parts, self.reopened = rows.parts, rows.reopened
        self.error: Exception | None = None

    def read(self, names: Sequence[str], columns: tuple[str, ...], filter_: Any) -> Iterator[Any]:
        """Yield what the rows yield."""
        try:
            yield from self._rows.read(names, columns, filter_)
        except (StoreError, OSError) as error:
            self.error = error
            raise


def _in_a_line(error: Exception) -> str:
    """Return an error of DuckDB without the copy of the statement."""
    text = str(error).partition("\nLINE ")[0]
    return " ".join(text.split())
