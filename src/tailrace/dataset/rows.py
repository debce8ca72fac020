"""A dataset whose rows are made when they are read, in only the columns that are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tailrace.dataset.narrowing import columns_of
from tailrace.dataset.scanner import MessageScanner
from tailrace.dataset.virtual_files import files_of

__all__ = ["MessageRows", "Part", "Ranges", "RowsDataset", "TableRows"]

Ranges = dict[tuple[str, str, int], tuple[int, int]]
"""By (label, topic, queue id): offsets [start, end)."""
_PART: Final = 1 << 16
_PARTS: Final = 1 << 14
"""Messages of a part, and number of parts that is kept by making them larger."""
_BATCH: Final = 1 << 17
_SMALL: Final = "queueOffset"
"""The column that is read to count rows."""


class Part(NamedTuple):
    """Offsets [start, end) of a queue: a fragment of the dataset."""

    label: str
    topic: str
    queue_id: int
    start: int
    end: int


class Rows(Protocol):
    """Where the rows of a dataset come from."""

    schema: pa.Schema

    def parts(self) -> list[tuple[str, Any]]:
        """Return names and guarantees of the parts. Every row is in one of them."""
        ...

    def read(self, names: Sequence[str], columns: tuple[str, ...], filter_: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some parts, at least those that pass the filter, which may be None."""
        ...

    def reopened(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return a function and its arguments that make the dataset again in another process."""
        ...


class RowsDataset(ds.FileSystemDataset):
    """A ``pyarrow.dataset.Dataset``. DuckDB, Polars and pandas pass it the columns and the filter of a query.

    `scanner` and what is made of it (`to_table`, `to_batches`, `head`, `count_rows`, `take`) reads only the parts that
    can have rows which pass the filter, and only the columns that are needed. `get_fragments` returns the parts.
    """

    def __init__(self, rows: Rows, filter_: Any = None) -> None:
        form, files = ds.IpcFileFormat(), files_of(self._table_of)
        self.rows, self._filter = rows, filter_
        super().__init__([
            form.make_fragment(name, files, guarantee) for name, guarantee in rows.parts()
        ], rows.schema, form, files)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        make, arguments = self.rows.reopened()
        return (make, arguments) if self._filter is None else (_filtered, (make, arguments, self._filter))

    def scanner(self, columns: Any = None, filter: Any = None, **options: Any) -> MessageScanner:  # noqa: A002 - Arrow's name
        """Return a scanner. ``columns`` is a list of names or a dict of expressions, ``filter`` an expression.

        A batch has at most ``batch_size`` rows. The other options of Arrow's method have no meaning here. Raises
        ArrowInvalid for a column that the dataset does not have.
        """
        filter_ = _both(self._filter, filter)
        chosen = self.rows.schema.names if columns is None else columns
        if isinstance(chosen, Mapping):
            expressions = [*chosen.values()]
        else:
            chosen = list(chosen)
            expressions = [pc.field(name) for name in chosen]
        if filter_ is not None:
            expressions.append(filter_)
        needed = columns_of(expressions, self.rows.schema) or {_least(self.rows.schema)}
        names = tuple(name for name in self.rows.schema.names if name in needed)
        schema = pa.schema([self.rows.schema.field(name) for name in names])
        kept = [one.path for one in super().get_fragments(filter=filter_)]
        return MessageScanner(
            partial(self.rows.read, kept, names, filter_), schema, self.rows.schema, chosen, filter_,
            options.get("batch_size") or _BATCH)

    def count_rows(self, filter: Any = None, **options: Any) -> int:  # noqa: A002 - Arrow's name
        """Return the number of rows that pass ``filter``."""
        return self.scanner([], filter, **options).count_rows()

    def get_fragments(self, filter: Any = None) -> Iterator[ds.Fragment]:  # noqa: A002 - Arrow's name
        """Yield the parts that can have rows which pass ``filter``. A fragment reads whole rows."""
        yield from super().get_fragments(filter=_both(self._filter, filter))

    def filter(self, expression: Any) -> Self:
        """Return the dataset of the rows that pass ``expression``."""
        return type(self)(self.rows, _both(self._filter, expression))

    def replace_schema(self, schema: pa.Schema) -> Self:
        """Raise TypeError: the columns are those of messages; choose them by the argument ``columns`` of ``scan``."""
        raise TypeError("the schema of this dataset is fixed: choose columns by tailrace.scan(..., columns=[...])")

    def sort_by(self, sorting: Any, **options: Any) -> ds.InMemoryDataset:
        """Return the rows in an order. All rows are read into memory."""
        return ds.InMemoryDataset(self.to_table()).sort_by(sorting, **options)

    def join(self, right_dataset: ds.Dataset, *arguments: Any, **options: Any) -> ds.InMemoryDataset:
        """Return a join, as Arrow's method. All rows are read into memory."""
        return ds.InMemoryDataset(self.to_table()).join(right_dataset, *arguments, **options)

    def join_asof(self, right_dataset: ds.Dataset, *arguments: Any, **options: Any) -> ds.InMemoryDataset:
        """Return an asof join, as Arrow's method. All rows are read into memory."""
        return ds.InMemoryDataset(self.to_table()).join_asof(right_dataset, *arguments, **options)

    def _table_of(self, name: str) -> pa.Table:
        schema = self.rows.schema
        return pa.Table.from_batches(self.rows.read([name], tuple(schema.names), None), schema=schema)


def _filtered(make: Callable[..., RowsDataset], arguments: tuple[Any, ...], filter_: Any) -> RowsDataset:
    return make(*arguments).filter(filter_)


def _both(one: Any, other: Any) -> Any:
    return one if other is None else other if one is None else one & other


def _least(schema: pa.Schema) -> str:
    return _SMALL if _SMALL in schema.names else str(schema.names[0])


class MessageRows:
    """Names of the parts of queues, for a class that reads ranges of offsets."""

    def __init__(self, schema: pa.Schema, ranges: Ranges) -> None:
        self.schema = schema
        size = max(_PART, sum(end - start for start, end in ranges.values()) // _PARTS)
        self._parts = {
            f"{label}/{topic}/{queue_id}/{low}": Part(label, topic, queue_id, low, min(low + size, end))
            for (label, topic, queue_id), (start, end) in ranges.items() for low in range(start, end, size)}

    def parts(self) -> list[tuple[str, Any]]:
        """Return names and guarantees of the parts."""
        known = set(self.schema.names)
        return [(name, _guarantee(part, known)) for name, part in self._parts.items()]

    def ranges(self, names: Sequence[str]) -> Ranges:
        """Return for each queue the least range that has its parts."""
        found: Ranges = {}
        for name in names:
            one = self._parts[name]
            start, end = found.get(one[:3], one[3:])
            found[one[:3]] = min(start, one.start), max(end, one.end)
        return found


def _guarantee(part: Part, known: set[str]) -> Any:
    """Return what holds for the columns of the dataset."""
    made = pc.scalar(True)
    for name, one in (
        ("store", pc.field("store") == part.label), ("topic", pc.field("topic") == part.topic),
        ("queueId", pc.field("queueId") == pa.scalar(part.queue_id, pa.int32())),
        ("queueOffset", (pc.field("queueOffset") >= part.start) & (pc.field("queueOffset") < part.end)),
    ):
        made = made & one if name in known else made
    return made


class TableRows:
    """A table that is made when it is read first."""

    def __init__(self, schema: pa.Schema, make: Callable[[], pa.Table]) -> None:
        self.schema, self._make = schema, make
        self._table: pa.Table | None = None

    def parts(self) -> list[tuple[str, Any]]:
        """Return the only part."""
        return [("all", pc.scalar(True))]

    def read(self, names: Sequence[str], columns: tuple[str, ...], _filter: Any) -> Iterator[pa.RecordBatch]:
        """Yield all rows."""
        if self._table is None:
            self._table = self._make()
        if names:
            yield from self._table.select(list(columns)).to_batches()

    def reopened(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Raise TypeError: the table is that of one process."""
        raise TypeError("this table cannot be pickled")
