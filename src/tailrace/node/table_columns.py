"""Columns of a table of messages as the arrays that ``kernels.table_records`` takes.

A table is a ``pyarrow.Table``, a ``RecordBatch``, or a dict of columns: Arrow arrays, NumPy arrays or
lists. Arrow objects are read through their buffers, so this module does not need pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tailrace.errors import MessageIllegalError
from tailrace.kernels import table_records

__all__ = ["COLUMNS", "NO_QUEUE", "Numbers", "Piece", "Texts", "illegal_row", "joined", "pieces_of"]

Texts = table_records.Texts
Numbers = np.ndarray[Any, np.dtype[np.int64]]
Lists = tuple[Numbers, Numbers, Texts]
Maps = tuple[Numbers, Numbers, Texts, Texts]
PIECE_ROWS: Final = 16384
"""Number of rows of a piece; checking one takes some milliseconds."""
NO_QUEUE: Final = -(1 << 62)
"""Queue id of a row that has none."""
COLUMNS: Final = ("body", "topic", "queue_id", "tags", "keys", "properties", "flag", "deliver_at")
_ALIASES: Final = {"queueId": "queue_id", "deliverAt": "deliver_at"}
_VIEWS: Final = {"binary_view": "large_binary", "string_view": "large_string"}
_INTEGERS: Final = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_LONGEST: Final = 200


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive rows of a table; ``first`` is the number of the first one. None stands for a missing column."""

    first: int
    count: int
    body: Texts
    topic: tuple[list[str | None], Numbers] | None
    """Topic names, and the index of each row's name."""
    queue_id: Numbers | None
    tags: Texts | None
    keys: Lists | None
    properties: Maps | None
    flag: Numbers | None
    deliver_at: Numbers | None


def illegal_row(column: str, row: Any, why: str) -> MessageIllegalError:
    """Return the error of one row; it names the column and the row."""
    return MessageIllegalError(column, f"row {int(row)}: {why}")


def pieces_of(table: Any) -> Iterator[Piece]:
    """Yield the rows of a table in order, at most PIECE_ROWS at a time.

    Raises MessageIllegalError for a column or a value of a wrong type, and TypeError if ``table`` is
    not a table.
    """
    first = 0
    for columns, count in _chunks(table):
        named = _named(columns)
        for at in range(0, count, PIECE_ROWS):
            size = min(PIECE_ROWS, count - at)
            yield _piece(first, size, {name: column[at : at + size] for name, column in named.items()})
            first += size


def _chunks(table: Any) -> Iterator[tuple[dict[str, Any], int]]:
    if isinstance(table, Mapping):
        lengths = {str(name): len(column) for name, column in table.items()}
        if len(set(lengths.values())) > 1:
            raise MessageIllegalError("table", "columns differ in length: " + ", ".join(
                f"{name} {length}" for name, length in lengths.items()))
        plain = {name: _one_chunk(column) for name, column in table.items()}
        yield plain, next(iter(lengths.values()), 0)
    elif hasattr(table, "to_batches"):
        _named(dict.fromkeys(table.column_names))  # a table of no rows has no batch
        _no_twins(table.column_names)
        for batch in table.to_batches():
            yield dict(zip(batch.schema.names, batch.columns, strict=True)), batch.num_rows
    elif hasattr(table, "schema") and hasattr(table, "columns") and hasattr(table, "num_rows"):
        _no_twins(table.schema.names)
        yield dict(zip(table.schema.names, table.columns, strict=True)), table.num_rows
    else:
        raise TypeError(
            f"put_table takes a pyarrow.Table, a RecordBatch or a dict of columns, not a "
            f"{type(table).__name__}")


def _one_chunk(column: Any) -> Any:
    """Return an Arrow column without chunks; return other columns unchanged."""
    return column.combine_chunks() if hasattr(column, "combine_chunks") else column


def _no_twins(names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise MessageIllegalError("table", f"has the column {name[:_LONGEST]!r} twice")


def _named(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns by the names in COLUMNS. Raises MessageIllegalError for unknown columns."""
    named: dict[str, Any] = {}
    for name, column in columns.items():
        plain = _ALIASES.get(name, name)
        if plain not in COLUMNS:
            raise MessageIllegalError("table", f"has the column {str(name)[:_LONGEST]!r}, which is not known: the "
                           f"columns are {', '.join(COLUMNS)}")
        if plain in named:
            raise MessageIllegalError("table", f"has the column {plain} twice, as {name} too")
        named[plain] = column
    if "body" not in named:
        raise MessageIllegalError("body", "is missing, a table of messages has this column")
    return named


def _piece(first: int, count: int, columns: dict[str, Any]) -> Piece:
    def made(name: str, make: Callable[[str, int, Any], Any]) -> Any:
        return make(name, first, columns[name]) if name in columns else None

    return Piece(
        first, count, made("body", _bodies), made("topic", _topics),
        _filled(made("queue_id", _numbers), NO_QUEUE), _whole_texts(made("tags", _texts)),
        made("keys", _lists), made("properties", _maps), _filled(made("flag", _numbers), 0),
        _filled(made("deliver_at", _times), table_records.NO_TIME))


# -- numbers


def _filled(found: tuple[Numbers, Any] | None, instead: int) -> Numbers | None:
    """Return numbers with ``instead`` for those that are missing."""
    if found is None:
        return None
    numbers, missing = found
    return numbers if missing is None else np.where(missing, instead, numbers)


def _numbers(name: str, first: int, column: Any) -> tuple[Numbers, Any]:
    """Return int64 values, and a mask of the missing ones, or None if all are there."""
    if hasattr(column, "buffers"):
        if str(column.type) == "null":
            return np.zeros(len(column), np.int64), np.ones(len(column), bool)
        if str(column.type) not in _INTEGERS:
            raise MessageIllegalError(name, f"is {column.type}, whole numbers are needed")
        missing = _missing(column)
        raw = np.frombuffer(column.buffers()[1] or b"", np.dtype(str(column.type)))
        return _as_int64(name, first, raw[column.offset : column.offset + len(column)]), missing
    if isinstance(column, np.ndarray) and column.dtype.kind in "iu" and column.ndim == 1:
        return _as_int64(name, first, column), None
    missing = np.zeros(len(column), bool)
    numbers = np.zeros(len(column), np.int64)
    for n, value in enumerate(column):
        if value is None:
            missing[n] = True
        elif isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise illegal_row(name, first + n, f"{value!r:.{_LONGEST}} is not a whole number")
        elif not -(1 << 63) < value < 1 << 63:
            raise illegal_row(name, first + n, f"{value!r:.{_LONGEST}} has more than 64 bits")
        else:
            numbers[n] = value
    return numbers, missing


def _as_int64(name: str, first: int, numbers: Any) -> Numbers:
    if numbers.dtype == np.uint64 and (beyond := np.flatnonzero(numbers >= 1 << 63)).size:
        raise illegal_row(name, first + beyond[0], f"{numbers[beyond[0]]} has more than 63 bits")
    return np.ascontiguousarray(numbers, np.int64)


def _times(name: str, first: int, column: Any) -> tuple[Numbers, Any]:
    """Return times in ms, and the missing ones. Arrow timestamps are rounded down."""
    if hasattr(column, "buffers") and str(column.type).startswith("timestamp["):
        unit = str(column.type)[len("timestamp[") :].split("]")[0].split(",")[0]
        numbers, missing = _numbers(name, first, column.cast("int64"))
        return {"s": lambda v: v * 1000, "ms": lambda v: v, "us": lambda v: v // 1000,
                "ns": lambda v: v // 1_000_000}[unit](numbers), missing
    return _numbers(name, first, column)


# -- texts


def _missing(column: Any) -> Any:
    return np.asarray(column.is_null()) if column.null_count else None


def _bodies(name: str, first: int, column: Any) -> Texts:
    texts, missing = _texts(name, first, column)
    if missing is not None and missing.any():
        raise illegal_row(name, first + np.flatnonzero(missing)[0], "is null")
    return texts


def _whole_texts(found: tuple[Texts, Any] | None) -> Texts | None:
    """Return the texts; missing ones are empty."""
    return found[0] if found is not None else None


def _texts(name: str, first: int, column: Any) -> tuple[Texts, Any]:
    """Return texts, and a mask of the missing ones, which are empty; None instead of a mask if all are there."""
    if not hasattr(column, "buffers"):
        return _texts_of_list(name, first, column)
    if str(column.type) == "null":
        nothing = np.zeros(len(column), np.int64)
        return Texts(nothing, nothing, b""), np.ones(len(column), bool)
    if hasattr(column, "dictionary_decode"):
        column = column.dictionary_decode()
    if str(column.type) in _VIEWS:
        column = column.cast(_VIEWS[str(column.type)])
    kind = str(column.type)
    needed = "binary" if name == "body" else "string"
    if kind not in (needed, f"large_{needed}"):
        raise MessageIllegalError(name, f"is {kind}, {needed} is needed")
    ends = _offsets(column.buffers()[1], column, large=kind.startswith("large"))
    missing = _missing(column)
    lengths = np.diff(ends)
    if missing is not None:
        lengths = np.where(missing, 0, lengths)
    data = np.frombuffer(column.buffers()[2] or b"", np.uint8)
    return Texts(np.ascontiguousarray(ends[:-1]), lengths, data), missing


def _offsets(buffer: Any, column: Any, *, large: bool) -> Numbers:
    """Return the Arrow offsets of a column: one more than it has rows."""
    if not len(column):
        return np.zeros(1, np.int64)
    raw = np.frombuffer(buffer, np.int64 if large else np.int32)
    return raw[column.offset : column.offset + len(column) + 1].astype(np.int64)


def _texts_of_list(name: str, first: int, column: Any) -> tuple[Texts, Any]:
    kinds = (bytes, bytearray) if name == "body" else (str,)
    parts: list[bytes] = []
    missing = np.zeros(len(column), bool)
    for n, value in enumerate(column):
        if value is None:
            missing[n] = True
            parts.append(b"")
        elif not isinstance(value, kinds):
            raise illegal_row(name, first + n, f"is {type(value).__name__}, {kinds[0].__name__} is needed")
        else:
            parts.append(_encoded(name, first + n, value))
    return joined(parts), missing


def _encoded(name: str, row: int, value: Any) -> bytes:
    try:
        return value.encode() if isinstance(value, str) else value
    except UnicodeEncodeError as error:
        raise illegal_row(name, row, f"cannot be stored as UTF-8: {error}") from None


def joined(parts: list[bytes]) -> Texts:
    """Return some texts as one array of bytes."""
    lengths = np.fromiter(map(len, parts), np.int64, len(parts))
    return Texts(np.cumsum(lengths) - lengths, lengths, b"".join(parts))


def _topics(name: str, first: int, column: Any) -> tuple[list[str | None], Numbers]:
    """Return the different topics, and the index of each row's topic."""
    values = column
    if hasattr(column, "buffers"):
        if not str(column.type).startswith("dictionary"):
            _texts(name, first, column[:0])  # raises for a wrong type
            column = column.dictionary_encode()
        indices, missing = _numbers(name, first, column.indices)
        names: list[str | None] = column.dictionary.to_pylist()
        if names and not isinstance(next((one for one in names if one is not None), ""), str):
            raise MessageIllegalError(name, f"is {column.type}, string is needed")
        return [*names, None], np.where(missing, len(names), indices) if missing is not None else indices
    numbers: dict[str | None, int] = {}
    of_rows = np.zeros(len(values), np.int64)
    for n, value in enumerate(values):
        if value is not None and not isinstance(value, str):
            raise illegal_row(name, first + n, f"is {type(value).__name__}, str is needed")
        of_rows[n] = numbers.setdefault(value if value is None else str(value), len(numbers))
    return list(numbers), of_rows


# -- lists and maps


def _lists(name: str, first: int, column: Any) -> Lists:
    if hasattr(column, "buffers"):
        kind = str(column.type)
        if kind == "null":
            return _no_lists(len(column))
        if not kind.startswith(("list<", "large_list<")):
            raise MessageIllegalError(name, f"is {kind}, a list of strings is needed")
        starts, counts = _places(column, large=kind.startswith("large"))
        texts, missing = _texts(name, first, column.values)
        _refuse_null(name, first, starts, counts, missing)
        return starts, counts, texts
    lists: list[Any] = [() if value is None else value for value in column]
    parts: list[bytes] = []
    for n, keys in enumerate(lists):
        if isinstance(keys, str | bytes) or not isinstance(keys, Sequence | np.ndarray):
            raise illegal_row(name, first + n, f"is {type(keys).__name__}, a list of strings is needed")
        for key in keys:
            if not isinstance(key, str):
                raise illegal_row(name, first + n, f"has {key!r:.{_LONGEST}}, which is not a string")
            parts.append(_encoded(name, first + n, key))
    return *_runs(lists), joined(parts)


def _maps(name: str, first: int, column: Any) -> Maps:
    if hasattr(column, "buffers"):
        kind = str(column.type)
        if kind == "null":
            return *_no_lists(len(column)), joined([])
        if not kind.startswith("map<"):
            raise MessageIllegalError(name, f"is {kind}, a map of strings to strings is needed")
        starts, counts = _places(column, large=False)
        names, _ = _texts(name, first, column.keys)
        values, missing = _texts(name, first, column.items)
        _refuse_null(name, first, starts, counts, missing)
        return starts, counts, names, values
    maps = [{} if value is None else value for value in column]
    names_, values_ = [], []
    for n, properties in enumerate(maps):
        if not isinstance(properties, Mapping):
            raise illegal_row(name, first + n, f"is {type(properties).__name__}, a dict of strings is needed")
        for key, value in properties.items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise illegal_row(name, first + n, f"{key!r:.{_LONGEST}}: name and value must be strings")
            names_.append(_encoded(name, first + n, key))
            values_.append(_encoded(name, first + n, value))
    return *_runs(maps), joined(names_), joined(values_)


def _no_lists(count: int) -> Lists:
    nothing = np.zeros(count, np.int64)
    return nothing, nothing, joined([])


def _runs(lists: Sequence[Any]) -> tuple[Numbers, Numbers]:
    counts = np.fromiter(map(len, lists), np.int64, len(lists))
    return np.cumsum(counts) - counts, counts


def _places(column: Any, *, large: bool) -> tuple[Numbers, Numbers]:
    """Return where each row's list starts among all values, and its length; 0 for a missing list."""
    ends = _offsets(column.buffers()[1], column, large=large)
    missing = _missing(column)
    counts = np.diff(ends)
    if missing is not None:
        counts = np.where(missing, 0, counts)
    return np.ascontiguousarray(ends[:-1]), counts


def _refuse_null(name: str, first: int, starts: Numbers, counts: Numbers, missing: Any) -> None:
    """Raise MessageIllegalError if the list of a row holds a missing value."""
    if missing is None:
        return
    before = np.concatenate(([0], np.cumsum(missing)))
    bad = np.flatnonzero(before[starts + counts] > before[starts])
    if bad.size:
        raise illegal_row(name, first + bad[0], "holds a null")
