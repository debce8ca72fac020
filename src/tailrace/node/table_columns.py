"""Columns of a table of messages as the arrays that ``kernels.table_records`` takes.

A table is a ``pyarrow.Table``, a ``RecordBatch``, or a dict of columns: Arrow arrays, NumPy arrays or
lists. Every column becomes an Arrow column of the type that its name has, and is then read through its buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np

from tailrace.arrow import pyarrow
from tailrace.env.entropy import Entropy
from tailrace.errors import MessageIllegalError
from tailrace.kernels import table_records
from tailrace.kernels.shared import constants as C

__all__ = [
    "COLUMNS", "NO_QUEUE", "Numbers", "Piece", "Texts", "illegal_row", "joined", "pieces_of", "stored_properties",
]

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
_NUMBERS: Final = ("queue_id", "flag", "deliver_at")
_NEEDED: Final = {
    **dict.fromkeys(_NUMBERS, "whole numbers are needed"), "body": "binary is needed",
    "keys": "a list of strings is needed", "properties": "a map of strings to strings is needed"}
_LONGEST: Final = 200
_PROPERTIES_A_ROW: Final = 120
_WHY: Final = {
    C.REFUSED_TAG_SEPARATOR: ("tags", "must not hold 0x01 or 0x02"),
    C.REFUSED_KEY_EMPTY: ("keys", "a key is empty"),
    C.REFUSED_KEY_BLANK: ("keys", "a key has a blank"),
    C.REFUSED_KEY_SEPARATOR: ("keys", "a key must not hold 0x01 or 0x02"),
    C.REFUSED_PROPERTY_EMPTY: ("properties", "name and value must not be empty"),
    C.REFUSED_PROPERTY_SEPARATOR: ("properties", "name and value must not hold 0x01 or 0x02"),
    C.REFUSED_PROPERTY_TWICE: ("properties", "a name is given twice"),
    C.REFUSED_TOO_LONG: ("properties", "more than 32767 bytes together"),
}


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


def joined(parts: list[bytes]) -> Texts:
    """Return some texts as one array of bytes."""
    lengths = np.fromiter(map(len, parts), np.int64, len(parts))
    return Texts(np.cumsum(lengths) - lengths, lengths, b"".join(parts))


def pieces_of(table: Any) -> Iterator[Piece]:
    """Yield the rows of a table in order, at most PIECE_ROWS at a time.

    Raises MessageIllegalError for a column or a value of a wrong type, TypeError if ``table`` is not a table, and
    MissingPackageError without pyarrow.
    """
    columns = {name: _arrow(name, column) for name, column in _columns(table).items()}
    first = 0
    for batch in pyarrow().table(columns).to_batches(max_chunksize=PIECE_ROWS):
        yield _piece(first, batch.num_rows, dict(zip(columns, batch.columns, strict=True)))
        first += batch.num_rows


def stored_properties(
    piece: Piece, entropy: Entropy, counter: str = "", start: str = "", number: int = 0
) -> tuple[Texts, Any]:
    """Return the stored properties of the rows, and the flags of ``kernels.shared.constants.ALONE`` of each row.

    With ``counter`` each row gets that property: ``start`` and a number, from ``number`` onwards. Raises
    MessageIllegalError, which names the row.
    """
    room = piece.count * (_PROPERTIES_A_ROW + len(counter) + len(start))
    if piece.tags is not None:
        room += piece.tags.size
    if piece.keys is not None:
        room += piece.keys[2].size + piece.keys[2].count
    if piece.properties is not None:
        room += piece.properties[2].size + piece.properties[3].size + 2 * piece.properties[2].count
    out = np.empty(room, np.uint8)
    ends = np.zeros(piece.count, np.int64)
    kinds = np.zeros(piece.count, np.uint8)
    columns = table_records.PropertyColumns(piece.count, piece.tags, piece.keys, piece.properties, piece.deliver_at)
    prefix = f"{entropy.randrange(1 << 16):04X}{entropy.u64():016X}"  # of this piece
    row, why = columns.encode(prefix.encode(), out, ends, kinds, counter.encode(), start.encode(), number)
    if why:
        column, text = _WHY[why]
        raise illegal_row(column, piece.first + row, text)
    lengths = np.diff(ends, prepend=0)
    used = int(ends[-1]) if piece.count else 0
    return Texts(ends - lengths, lengths, out[:used].copy()), kinds


def _columns(table: Any) -> dict[str, Any]:
    """Return the columns by the names in COLUMNS. Raises MessageIllegalError for unknown columns."""
    pa = pyarrow()
    if isinstance(table, Mapping):
        lengths = {str(name): len(column) for name, column in table.items()}
        if len(set(lengths.values())) > 1:
            raise MessageIllegalError("table", "columns differ in length: " + ", ".join(
                f"{name} {length}" for name, length in lengths.items()))
        found = list(table.items())
    elif isinstance(table, pa.Table | pa.RecordBatch):
        found = list(zip(table.schema.names, table.columns, strict=True))
    else:
        raise TypeError(
            f"put_table takes a pyarrow.Table, a RecordBatch or a dict of columns, not a "
            f"{type(table).__name__}")
    named: dict[str, Any] = {}
    given: set[str] = set()
    for name, column in found:
        plain = _ALIASES.get(name, name)
        if plain not in COLUMNS:
            raise MessageIllegalError("table", f"has the column {str(name)[:_LONGEST]!r}, which is not known: the "
                           f"columns are {', '.join(COLUMNS)}")
        if plain in named:
            twins = f"{name!r} twice" if name in given else f"{plain} twice, as {name} too"
            raise MessageIllegalError("table", f"has the column {twins}")
        named[plain] = column
        given.add(name)
    if "body" not in named:
        raise MessageIllegalError("body", "is missing, a table of messages has this column")
    return named


# -- columns of Arrow


@lru_cache(maxsize=32)
def _kind_of(name: str) -> Any:
    pa = pyarrow()
    text = pa.large_string()
    kinds = {"body": pa.large_binary(), "keys": pa.large_list(text), "properties": pa.map_(text, text)}
    return kinds.get(name, pa.int64() if name in _NUMBERS else text)


def _arrow(name: str, column: Any) -> Any:
    """Return a column as Arrow's, of the type that its name has."""
    pa = pyarrow()
    kind = _kind_of(name)
    if isinstance(column, np.ndarray) and column.dtype.kind in "iu" and column.ndim == 1 and name in _NUMBERS:
        column = pa.array(np.asarray(column, column.dtype.newbyteorder("=")))
    if not isinstance(column, pa.Array | pa.ChunkedArray):
        column = _of_values(name, column, kind)
    elif not _is_right(name, column.type):
        raise MessageIllegalError(name, f"is {column.type}, {_NEEDED.get(name, 'string is needed')}")
    if name == "topic" and pa.types.is_dictionary(column.type):
        return column
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False)  # a negative time stays negative or is 0
    try:
        column = column.cast(kind)
    except pa.ArrowInvalid:  # only of numbers that have no sign
        column = _of_values(name, column.to_pylist(), kind)
    if name == "body" and column.null_count:
        raise illegal_row(name, np.flatnonzero(column.is_null())[0], "is null")
    if name == "deliver_at" and (early := np.flatnonzero(column.fill_null(0).to_numpy() < 0)).size:
        raise illegal_row(name, early[0], f"{column[early[0]]} is negative")
    return column.dictionary_encode() if name == "topic" else column


def _is_right(name: str, kind: Any) -> bool:
    """Return True if an Arrow column of this type can be the column ``name``."""
    types = pyarrow().types
    if types.is_null(kind):
        return True
    if name in _NUMBERS:
        return types.is_integer(kind) or (name == "deliver_at" and types.is_timestamp(kind))
    if name == "keys":
        return (types.is_list(kind) or types.is_large_list(kind)) and _is_right("key", kind.value_type)
    if name == "properties":
        return types.is_map(kind) and _is_right("name", kind.key_type) and _is_right("value", kind.item_type)
    text = str(kind.value_type if types.is_dictionary(kind) else kind)
    return text.removeprefix("large_").removesuffix("_view") == ("binary" if name == "body" else "string")


def _of_values(name: str, column: Any, kind: Any) -> Any:
    """Return Python's or NumPy's values as an Arrow array. Raises MessageIllegalError, which names the row."""
    array = pyarrow().array
    why_wrong = _why_no_number if name in _NUMBERS else _WHY_WRONG.get(name, _why_no_text)
    values = list(column)
    for row, value in enumerate(values):
        if value is not None and (why := why_wrong(value)):
            raise illegal_row(name, row, why)
    if name == "properties":
        values = [value if value is None else dict(value) for value in values]
    try:
        return array(values, kind)
    except UnicodeEncodeError:
        for row, value in enumerate(values):
            try:
                array([value], kind)
            except UnicodeEncodeError as error:
                raise illegal_row(name, row, f"cannot be stored as UTF-8: {error}") from None
        raise


def _why_no_number(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        return f"{value!r:.{_LONGEST}} is not a whole number"
    return "" if -(1 << 63) < value < 1 << 63 else f"{value!r:.{_LONGEST}} has more than 64 bits"


def _why_no_text(value: Any) -> str:
    return "" if isinstance(value, str) else f"is {type(value).__name__}, str is needed"


def _why_no_body(value: Any) -> str:
    return "" if isinstance(value, bytes | bytearray) else f"is {type(value).__name__}, bytes is needed"


def _why_no_keys(value: Any) -> str:
    if isinstance(value, str | bytes) or not isinstance(value, list | Sequence | np.ndarray):
        return f"is {type(value).__name__}, a list of strings is needed"
    for key in value:
        if not isinstance(key, str):
            return f"has {key!r:.{_LONGEST}}, which is not a string"
    return ""


def _why_no_properties(value: Any) -> str:
    if not isinstance(value, dict | Mapping):
        return f"is {type(value).__name__}, a dict of strings is needed"
    for key, text in value.items():
        if not isinstance(key, str) or not isinstance(text, str):
            return f"{key!r:.{_LONGEST}}: name and value must be strings"
    return ""


_WHY_WRONG: Final[dict[str, Callable[[Any], str]]] = {
    "body": _why_no_body, "keys": _why_no_keys, "properties": _why_no_properties}


# -- arrays of the kernel


def _piece(first: int, count: int, columns: dict[str, Any]) -> Piece:
    def made(name: str, make: Callable[..., Any], *arguments: Any) -> Any:
        return make(columns[name], *arguments) if name in columns else None

    return Piece(
        first, count, made("body", _texts), made("topic", _topics), made("queue_id", _numbers, NO_QUEUE),
        made("tags", _texts), made("keys", _lists, first), made("properties", _maps, first),
        made("flag", _numbers, 0), made("deliver_at", _numbers, table_records.NO_TIME))


def _numbers(column: Any, instead: int) -> Numbers:
    """Return numbers with ``instead`` for those that are missing."""
    found: Numbers = column.fill_null(instead).to_numpy()
    return found


def _topics(column: Any) -> tuple[list[str | None], Numbers]:
    """Return the different topics and None, and the index of each row's topic."""
    names: list[str | None] = column.dictionary.to_pylist()
    return [*names, None], _numbers(column.indices.cast("int64"), len(names))


def _texts(column: Any) -> Texts:
    """Return texts; missing ones are empty."""
    starts, lengths = _places(column)
    return Texts(starts, lengths, np.frombuffer(column.buffers()[2] or b"", np.uint8))


def _places(column: Any) -> tuple[Numbers, Numbers]:
    """Return where each row's text or list starts among all bytes or values, and its length; 0 for a missing one."""
    if not len(column):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    raw = np.frombuffer(column.buffers()[1], np.int32 if pyarrow().types.is_map(column.type) else np.int64)
    ends = raw[column.offset : column.offset + len(column) + 1].astype(np.int64, copy=False)
    lengths = np.diff(ends)
    return ends[:-1], np.where(column.is_null(), 0, lengths) if column.null_count else lengths


def _lists(column: Any, first: int) -> Lists:
    starts, counts = _places(column)
    _refuse_null("keys", first, starts, counts, column.values)
    return starts, counts, _texts(column.values)


def _maps(column: Any, first: int) -> Maps:
    starts, counts = _places(column)
    _refuse_null("properties", first, starts, counts, column.items)
    return starts, counts, _texts(column.keys), _texts(column.items)


def _refuse_null(name: str, first: int, starts: Numbers, counts: Numbers, values: Any) -> None:
    """Raise MessageIllegalError if the list of a row holds a missing value."""
    if not values.null_count:
        return
    before = np.concatenate(([0], np.cumsum(values.is_null())))
    bad = np.flatnonzero(before[starts + counts] > before[starts])
    if bad.size:
        raise illegal_row(name, first + bad[0], "holds a null")
