"""The work of a task that makes new data files from old ones: sorted, larger, and without rows that have to go.

Nothing here commits, and no old file changes. A task that is run twice, or killed, leaves files that no snapshot names.

The rows of a row group are in order, so the task merges row groups: it holds a batch of each, and writes all rows up
to the smallest last row of these batches. A row group is opened when its smallest topic is reached, so of files that
are sorted as a whole few are open at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tailrace.env.entropy import SystemEntropy
from tailrace.env.filesystem import FileSystem, OsFileSystem
from tailrace.errors import CorruptionError, StoreError
from tailrace.spark.archive.layout import FIELD_ID, ROW_GROUP
from tailrace.spark.lake.conditions import Condition, matching
from tailrace.spark.lake.data_file import DataFile
from tailrace.spark.lake.files import WrittenFile
from tailrace.spark.lake.places import Reader, S3Server, TableFiles, files_of
from tailrace.spark.lake.schemas import FORMS, Ids, arrow_paths, file_options

__all__ = [
    "Described", "OldFile", "RewriteResult", "RewriteTask", "adapted", "depth", "rewrite_files", "run_task"]

_GROUP_BYTES: Final = 64 << 20
"""Bytes of the columns in a row group that is written."""
_READ: Final = 1 << 20
_MEMORY: Final = 32 << 20
"""Bytes of all batches that a task holds while it merges."""


@dataclass(frozen=True, slots=True)
class OldFile:
    """A data file of the table, and the number of rows that the table says it has."""

    path: str
    rows: int


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """Files of one partition that become new files of about ``target_bytes``, or one without the ``removed`` rows.

    ``number`` is returned in the result. With ``count_only`` matching rows are counted and nothing is written.
    """

    number: int
    table: str
    kind: str
    files: tuple[OldFile, ...]
    removed: tuple[Condition, ...]
    name: str
    """Start of the names of new files."""
    directory: str
    schema: pa.Schema
    ids: Ids
    day: int | None
    target_bytes: int
    count_only: bool = False
    server: S3Server | None = None
    """The server of the bucket of all files; None for a disk."""


class Described(NamedTuple):
    """Path, size in bytes and SHA-256 of a file."""

    path: str
    size: int
    sha256: str


@dataclass(slots=True)
class RewriteResult:
    """New files to commit. A result with ``problem`` has no files, and neither has one of a removal that found
    no row."""

    number: int
    files: list[WrittenFile] = field(default_factory=list)
    removed: int = 0
    old: list[Described] = field(default_factory=list)
    """The files of the task, if rows were removed."""
    problem: str = ""


def run_task(task: RewriteTask, file_system: FileSystem | None = None) -> RewriteResult:
    """Rewrite the files of a task, in a Spark worker for example. Files of every attempt have their own names."""
    return rewrite_files(task, file_system or OsFileSystem(), f"{SystemEntropy().u64():016x}")


def rewrite_files(task: RewriteTask, file_system: FileSystem, attempt: str) -> RewriteResult:
    """Rewrite the files of a task. A problem of a file is returned, not raised."""
    result = RewriteResult(task.number)
    try:
        place = files_of(task.server, file_system)
        with ExitStack() as stack:
            opened = [_opened(one, task, place, stack) for one in task.files]
            if task.removed:
                result.removed = sum(_count(one, task) for one in opened)
            if not task.count_only and (result.removed or not task.removed):
                result.files = _write(task, opened, result.removed, place, attempt, stack)
                result.old = [_described(one.path, place) for one in task.files] if result.removed else []
    except (StoreError, OSError, pa.ArrowException) as error:
        return RewriteResult(task.number, problem=f"{type(error).__name__}: {error}")
    return result


def _described(path: str, place: TableFiles) -> Described:
    found, size = hashlib.sha256(), 0
    with closing(place.open(path)) as file:
        while data := file.pread(_READ, size):
            found.update(data)
            size += len(data)
    return Described(path, size, found.hexdigest())


def _opened(old: OldFile, task: RewriteTask, place: TableFiles, stack: ExitStack) -> pq.ParquetFile:
    source = stack.enter_context(closing(Reader(place.open(old.path))))
    found = stack.enter_context(pq.ParquetFile(pa.PythonFile(source, "r")))
    known = set(task.ids.of.values())
    for name, (number, _) in arrow_paths(found.schema_arrow).items() if not task.count_only else ():
        if number not in known:
            raise CorruptionError(
                f"the column {name} of the file has the field id {number}, which the table {task.table} does not have",
                path=old.path)
    if found.metadata.num_rows != old.rows:
        raise CorruptionError(
            f"the file has {found.metadata.num_rows} rows, {old.rows} in the table", path=old.path)
    return found


def _count(file: pq.ParquetFile, task: RewriteTask) -> int:
    form = FORMS[task.kind]
    wanted: dict[str, None] = {}
    for one in task.removed:
        wanted |= dict.fromkeys([form.topic] if one.topic else [])
        wanted |= dict.fromkeys([form.uniq_key, form.keys] if one.key else [])
        wanted |= dict.fromkeys([form.time] if one.before_us is not None else [])
    if not wanted:
        return file.metadata.num_rows
    groups = range(file.metadata.num_row_groups)
    return sum(
        int(matching(file.read_row_group(number, columns=list(wanted), use_threads=False), form, task.removed).sum())
        for number in groups)


def _write(
    task: RewriteTask, opened: Sequence[pq.ParquetFile], removed: int, place: TableFiles, attempt: str,
    stack: ExitStack,
) -> list[WrittenFile]:
    form = FORMS[task.kind]
    order = [(name, "ascending") for name in (*form.order, form.broker) if name]
    groups = [(file, number, _span(file, number, task, order[0][0]))
              for file in opened for number in range(file.metadata.num_row_groups)]
    known = [span for _, _, span in groups if span is not None]
    at_once = depth(known) + len(groups) - len(known)
    tables = [
        _Run(None if span is None else span[0], _run(file, number, task, _MEMORY // max(at_once, 1), order))
        for file, number, span in groups]
    made: list[WrittenFile] = []
    writing: DataFile | None = None
    waiting: list[pa.Table] = []
    size = rows = 0

    def flush() -> None:
        nonlocal writing, size, rows
        if writing is None:
            path = f"{task.directory}/{task.name}-{attempt}-{len(made)}.parquet"
            writing = DataFile(place, path, task.schema, file_options(task.kind, task.schema, ROW_GROUP), stack)
        writing.write(pa.concat_tables(waiting))
        waiting.clear()
        size = rows = 0
        if writing.size >= task.target_bytes:
            made.append(writing.finish(task.ids, task.kind, task.day))
            writing = None

    for table in _merged(tables, [name for name, _ in order]):
        kept = table.filter(pa.array(~matching(table, form, task.removed))) if task.removed else table
        if len(kept):
            waiting.append(kept)
            size += kept.nbytes
            rows += len(kept)
        if size >= _GROUP_BYTES or rows >= ROW_GROUP:
            flush()
    if waiting:
        flush()
    if writing is not None:
        made.append(writing.finish(task.ids, task.kind, task.day))
    there = sum(one.rows for one in task.files)
    if (written := sum(one.rows for one in made)) + removed != there:
        raise CorruptionError(
            f"{written} rows were written and {removed} removed of {there}", path=task.files[0].path)
    return made


def _run(
    file: pq.ParquetFile, number: int, task: RewriteTask, most_bytes: int, order: list[tuple[str, str]]
) -> Iterator[pa.Table]:
    """Yield the rows of a row group in order, as batches with the columns of the table."""
    group = file.metadata.row_group(number)
    each = max(group.total_byte_size // max(group.num_rows, 1), 1)
    if not group.sorting_columns:  # written by another program
        yield _rows(file.read_row_group(number, use_threads=False), task).sort_by(order)
        return
    for batch in file.iter_batches(
            row_groups=[number], batch_size=int(min(max(most_bytes // each, 16), ROW_GROUP)), use_threads=False):
        yield _rows(pa.Table.from_batches([batch]), task)


def _rows(table: pa.Table, task: RewriteTask) -> pa.Table:
    return pa.table(
        [_column(table, one) for one in task.schema], schema=task.schema)


def _column(table: pa.Table, wanted: pa.Field) -> pa.Array:
    found = [at for at, one in enumerate(table.schema) if _id(one) == _id(wanted)]
    if not found:
        return pa.nulls(len(table), wanted.type)
    column = table.column(found[0]).combine_chunks()
    return adapted(column.chunk(0) if isinstance(column, pa.ChunkedArray) else column, wanted.type)


def _id(one: pa.Field) -> bytes | None:
    return (one.metadata or {}).get(FIELD_ID)


def adapted(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return values with a later type of their field: fields of a struct that they lack are null, numbers are wider.

    Fields are found by their ids.
    """
    if values.type == kind and not pa.types.is_nested(kind):
        return values
    if pa.types.is_struct(kind):
        there = {_id(values.type.field(at)): at for at in range(values.type.num_fields)}
        wanted = [kind.field(at) for at in range(kind.num_fields)]
        parts = [
            adapted(values.field(there[_id(one)]), one.type) if _id(one) in there else pa.nulls(len(values), one.type)
            for one in wanted]
        return pa.StructArray.from_arrays(parts, fields=wanted, mask=values.is_null())
    if pa.types.is_map(kind):
        items = adapted(values.items, kind.item_type)
        return pa.MapArray.from_arrays(
            _offsets(values), adapted(values.keys, kind.key_type), items, type=kind)
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(_offsets(values), adapted(values.values, kind.value_type), type=kind)
    return values.cast(kind)


def _offsets(values: pa.Array) -> pa.Array:
    """Return the offsets of lists, with a null for each list that is null."""
    offsets = values.offsets
    if not values.null_count:
        return offsets
    gone = np.append(values.is_null().to_numpy(zero_copy_only=False), False)
    return pa.array(offsets.to_numpy(), offsets.type, mask=gone)


class _Run(NamedTuple):
    """The rows of a row group, and the least value of the first column of their order; None if it is not known."""

    least: Any
    batches: Iterator[pa.Table]


def _span(file: pq.ParquetFile, number: int, task: RewriteTask, column: str) -> tuple[Any, Any] | None:
    """Return the bounds of a column in a row group, by its statistics; None if it has none."""
    wanted = task.schema.field(column)
    place = file.schema_arrow.get_field_index(column)
    if place < 0 or _id(file.schema_arrow.field(place)) != _id(wanted):
        return None
    group = file.metadata.row_group(number)
    for leaf in range(group.num_columns):
        found = group.column(leaf)
        if found.path_in_schema == column:
            known = found.statistics
            return None if known is None or not known.has_min_max or known.null_count else (known.min, known.max)
    return None


def depth(spans: Iterable[tuple[Any, Any]], *, inside: bool = False) -> int:
    """Return how many spans cover the same value at most. With ``inside`` their bounds do not count."""
    changes = [change for low, high in spans if low < high or not inside
               for change in ((low, inside, 1), (high, not inside, -1))]
    now = most = 0
    for _, _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


class _Cursor:
    """The batch of a run that is merged now, and the first of its rows that is not written."""

    def __init__(self, batches: Iterator[pa.Table], order: Sequence[str]) -> None:
        self._batches, self._order = batches, order
        self._table: pa.Table | None = None
        self._columns: list[pa.ChunkedArray] = []
        self._at = 0
        self.last: tuple[Any, ...] = ()

    def load(self) -> bool:
        """Load the next batch if all rows of this one are written. Return False at the end."""
        while self._table is None or self._at == len(self._table):
            self._table = next(self._batches, None)
            if self._table is None:
                return False
            self._at = 0
            if len(self._table):
                self._columns = [self._table[name] for name in self._order]
                self.last = self._key(len(self._table) - 1)
        return True

    def _key(self, row: int) -> tuple[Any, ...]:
        return tuple(one[row].as_py() for one in self._columns)

    def rows_until(self, bound: tuple[Any, ...]) -> pa.Table:
        """Return the next rows up to a key."""
        assert self._table is not None
        low, high = self._at, len(self._table)
        if self.last > bound:
            while low < high:
                middle = (low + high) // 2
                if self._key(middle) <= bound:
                    low = middle + 1
                else:
                    high = middle
        found = self._table.slice(self._at, high - self._at)
        self._at = high
        return found


def _merged(runs: Sequence[_Run], order: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the rows of all runs in order."""
    live = [_Cursor(one.batches, order) for one in runs if one.least is None]
    waiting = sorted((one for one in runs if one.least is not None), key=lambda one: one.least, reverse=True)
    while True:
        live = [one for one in live if one.load()]
        while waiting and (not live or waiting[-1].least <= min(one.last for one in live)[0]):
            opened = _Cursor(waiting.pop().batches, order)
            live += [opened] if opened.load() else []
        if not live:
            return
        bound = min(one.last for one in live)
        parts = [part for one in live if len(part := one.rows_until(bound))]
        yield parts[0] if len(parts) == 1 else pa.concat_tables(parts).sort_by(
            [(name, "ascending") for name in order])
