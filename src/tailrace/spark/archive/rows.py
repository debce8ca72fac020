"""Converts records to rows of the archive, and rows back to the bytes of the records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tailrace.arrow.columns import Columns, Fields, Rows, gather
from tailrace.formats.commitlog import MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2, SysFlag
from tailrace.kernels import column_records
from tailrace.kernels.shared import constants as C
from tailrace.spark.archive.layout import (
    ARCHIVE_SCHEMA,
    MESSAGE,
    RECORD,
    SOURCE_COLUMNS,
)
from tailrace.spark.buffers import Scratch

__all__ = ["ENCODED_COLUMNS", "Piece", "RawRange", "bytes_of", "days_of",
           "first_difference", "give_back", "raw_table_of", "table_of"]

_V6: Final = {
    "rawBornHost": (C.BORN_HOST_POS, int(SysFlag.BORNHOST_V6)),
    "rawStoreHost": (C.STORE_HOST_POS, int(SysFlag.STOREHOST_V6)),
}
_NUMBERS: Final = {
    "commitLogOffset": C.N_PHY, "storeSize": C.N_SIZE,
    "bodyCRC": C.N_BODY_CRC, "queueId": C.N_QUEUE_ID,
    "flag": C.N_FLAG, "queueOffset": C.N_QUEUE_OFFSET,
    "sysFlag": C.N_SYS_FLAG, "reconsumeTimes": C.N_RECONSUME_TIMES,
    "preparedTransactionOffset": C.N_PREPARED,
}
_TIMES: Final = {
    "bornTimestamp": C.N_BORN_TIMESTAMP,
    "storeTimestamp": C.N_STORE_TIMESTAMP,
}
_PARTS: Final = ("rawBornHost", "rawStoreHost", "body", "topic", "rawProperties")
ENCODED_COLUMNS: Final = (*_NUMBERS, *_TIMES, *_PARTS, "magic", "raw")
"""Columns that ``bytes_of`` needs."""
_MAGICS: Final = {
    magic - (1 << 32): magic for magic in (MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2)}
_BLOCK: Final = 1 << 18
_DAY_MS: Final = 86_400_000
_LAST_DAY: Final = 2_932_896  # 9999-12-31


@dataclass(frozen=True, slots=True)
class RawRange:
    """Bytes of the log that are not a valid record."""

    start: int
    end: int
    kind: str
    reason: str


def first_difference(one: memoryview, other: bytes | memoryview) -> int:
    """Return the index of the first difference of two buffers of one length, or -1 if they are equal."""
    left, right = np.frombuffer(one, dtype=np.uint8), np.frombuffer(other, dtype=np.uint8)
    for at in range(0, len(right), _BLOCK):
        differ = left[at : at + _BLOCK] != right[at : at + _BLOCK]
        if differ.any():
            return at + int(np.argmax(differ))
    return -1


@dataclass(slots=True)
class Piece:
    """A part of a segment that starts at ``base``: the rows of its records, which point into ``data``."""

    base: int
    data: memoryview
    rows: Rows
    raw: list[RawRange] = field(default_factory=list)


def days_of(rows: Rows, before: int) -> Rows:
    """Return the UTC day of each row, counted from 1970; ``before`` for times outside of 1970 to 9999."""
    days = rows[:, C.STORE_TIMESTAMP] // _DAY_MS
    return np.where((days >= 0) & (days <= _LAST_DAY), days, before)


def _magics(piece: Piece, rows: Rows) -> pa.Array:
    data = np.frombuffer(piece.data, dtype=np.uint8)
    at = rows[:, C.PHY] - piece.base + 4
    made = np.zeros(len(rows), dtype=np.uint32)
    for number in range(4):
        made = (made << np.uint32(8)) | data[at + number]
    return pa.array(made.view(np.int32))


def _hosts(piece: Piece, rows: Rows, at: int, v6: int) -> pa.Array:
    return gather(piece.data, rows[:, at], np.where(rows[:, C.SYS_FLAG] & v6, 20, 8))


def table_of(
    piece: Piece, order: Rows, messages: np.ndarray[Any, np.dtype[np.bool_]], scratch: Scratch,
) -> pa.Table:
    """Return a table of the records of a piece whose numbers are in ``order``, in that order.

    A record that cannot be restored from its columns keeps its bytes in ``raw``.
    """
    rows = np.ascontiguousarray(piece.rows[order])
    made = Columns(piece.data, Fields.of(rows, SOURCE_COLUMNS), "", "stored")
    kinds = pa.array([RECORD, MESSAGE])
    columns: dict[str, pa.Array] = {
        "kind": kinds.take(pa.array(messages[order].astype(np.int8))),
        "magic": _magics(piece, rows),
        "rawProperties": gather(
            piece.data, rows[:, C.PROPS_POS], rows[:, C.PROPS_LEN]),
        "raw": pa.nulls(len(rows), pa.binary()),
    }
    for name, (at, v6) in _V6.items():
        columns[name] = _hosts(piece, rows, at, v6)
    for name in SOURCE_COLUMNS:
        columns[name] = made.make(name, ARCHIVE_SCHEMA.field(name).type)
    table = pa.table([columns[name] for name in ARCHIVE_SCHEMA.names], schema=ARCHIVE_SCHEMA)
    return _keep_odd_records(piece, rows, table, scratch)


def _keep_odd_records(piece: Piece, rows: Rows, table: pa.Table, scratch: Scratch) -> pa.Table:
    odd = differing_rows(table, piece.base, piece.data, scratch)
    if not odd.any():
        return table
    starts, sizes = rows[:, C.PHY] - piece.base, rows[:, C.SIZE]
    raw = pa.array([
        bytes(piece.data[start : start + size]) if is_odd else None
        for start, size, is_odd in zip(starts.tolist(), sizes.tolist(), odd.tolist(), strict=True)
    ], pa.binary())
    return table.set_column(ARCHIVE_SCHEMA.get_field_index("raw"), ARCHIVE_SCHEMA.field("raw"), raw)


def raw_table_of(piece: Piece) -> pa.Table:
    """Return a table of the bytes of a piece that are not a valid record."""
    parts = [
        bytes(piece.data[one.start - piece.base : one.end - piece.base]) for one in piece.raw]
    known: dict[str, pa.Array] = {
        "kind": pa.array([one.kind for one in piece.raw], pa.string()),
        "commitLogOffset": pa.array([one.start for one in piece.raw], pa.int64()),
        "storeSize": pa.array([one.end - one.start for one in piece.raw], pa.int32()),
        "raw": pa.array([part.rstrip(b"\0") for part in parts], pa.binary()),
    }
    return pa.table([
        known[one.name] if one.name in known else pa.nulls(len(piece.raw), one.type)
        for one in ARCHIVE_SCHEMA
    ], schema=ARCHIVE_SCHEMA)


def _part(table: pa.Table, name: str) -> tuple[Any, Any]:
    """Return offsets and bytes of a column of variable length."""
    found = table[name].combine_chunks()
    array = found.chunk(0) if isinstance(found, pa.ChunkedArray) else found
    _, offsets, data = array.buffers()
    if offsets is None or not len(array):
        return np.zeros(len(array) + 1, dtype=np.int32), b""
    view = np.frombuffer(offsets, dtype=np.int32)[array.offset : array.offset + len(array) + 1]
    return view, b"" if data is None else memoryview(data).cast("B")


def _numbers(table: pa.Table) -> Rows:
    """Return the numbers of records, as ``kernels.column_records`` needs them."""
    numbers = np.zeros((table.num_rows, C.N_COLUMNS), dtype=np.int64)
    for name, place in _NUMBERS.items():
        numbers[:, place] = table[name].fill_null(0).to_numpy()
    for name, place in _TIMES.items():
        numbers[:, place] = table[name].cast(pa.int64()).fill_null(0).to_numpy() // 1000
    magics = table["magic"].fill_null(0).to_numpy()
    for signed, magic in _MAGICS.items():
        numbers[magics == signed, C.N_MAGIC] = magic
    return numbers


def differing_rows(table: pa.Table, base: int, data: memoryview, scratch: Scratch) -> Any:
    """Return for each row 1 if its columns do not give the record at its position in the log, else 0.

    ``data`` are the bytes of the log from ``base``.
    """
    numbers = _numbers(table)
    differ = np.ones(len(numbers), dtype=np.uint8)
    sizes = numbers[:, C.N_SIZE]
    longest = min(max(int(sizes.max(initial=0)), 0), len(data))
    born, store, body, topic, properties = (_part(table, name) for name in _PARTS)
    column_records.differing_rows(
        numbers, *born, *store, *body, *topic, *properties, base, data, scratch.room(longest), differ)
    return differ


def give_back(tables: Iterable[pa.Table], base: int, data: memoryview, scratch: Scratch) -> bool:
    """Return True if the rows of tables are the bytes of the log from ``base``, each byte once."""
    spans = [np.empty((0, 2), dtype=np.int64)]
    for table in tables:
        differ = differing_rows(table, base, data, scratch)
        starts = table["commitLogOffset"].fill_null(-1).to_numpy() - base
        sizes = table["storeSize"].fill_null(0).to_numpy().astype(np.int64)
        spans.append(np.stack([starts, starts + sizes], axis=1))
        raw = table["raw"]
        kept = np.flatnonzero(raw.is_valid().to_numpy()) if raw.null_count < len(raw) else ()
        for row in kept:  # the stored bytes of a row are its record, whatever its columns say
            kept_bytes, start, size = raw[int(row)].as_py(), int(starts[row]), int(sizes[row])
            differ[row] = len(kept_bytes) > size or not 0 <= start <= len(data) - size or (
                data[start : start + size] != kept_bytes.ljust(size, b"\0"))
        if differ.any():
            return False
    found = np.concatenate(spans)
    found = found[np.argsort(found[:, 0], kind="stable")]
    ends = np.append(found[:, 0], len(data))
    return bool((ends == np.append(0, found[:, 1])).all())


def bytes_of(table: pa.Table, base: int, out: memoryview) -> int:
    """Write the records of a table at their positions; ``out[0]`` is at ``base``. Return the number of bytes.

    Rows that do not fit are left out; the comparison with the log then fails.
    """
    if not table.num_rows:
        return 0
    numbers, fits = _numbers(table), np.empty(table.num_rows, dtype=np.uint8)
    born, store, body, topic, properties = (_part(table, name) for name in _PARTS)
    column_records.encode_rows(numbers, *born, *store, *body, *topic, *properties, base, out, fits)
    sizes = numbers[:, C.N_SIZE]
    raw = table["raw"]
    kept = np.flatnonzero(raw.is_valid().to_numpy()) if raw.null_count < len(raw) else np.empty(0, dtype=np.int64)
    fits[kept] = 0  # their stored bytes replace the bytes that were just written
    written = int(sizes[fits == 1].sum())
    for n in kept:
        at, size, data = int(numbers[n, C.N_PHY]) - base, int(sizes[n]), raw[int(n)].as_py()
        if 0 <= at <= len(out) - size and len(data) <= size:
            out[at : at + size] = data.ljust(size, b"\0")
            written += size
    return written
