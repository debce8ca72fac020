"""Rows of ``messages`` from rows of the archive: messages only, decompressed, one row for each of an inner batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.arrow.columns import MAX_BODY, Columns, Fields
from tailrace.arrow.inner_rows import message_rows
from tailrace.arrow.schema import arrow_schema
from tailrace.errors import CorruptionError
from tailrace.formats.commitlog import SysFlag, decompress_body
from tailrace.formats.inner_batch import INNER_BATCH_BITS
from tailrace.spark.archive.layout import MESSAGE
from tailrace.spark.archive.rows import ENCODED_COLUMNS
from tailrace.spark.buffers import Scratch
from tailrace.spark.lake.schemas import BROKER, MESSAGES_SCHEMA, SOURCE_NAMES, STORE_TIME
from tailrace.spark.source.archived_batches import records_of

__all__ = ["NEEDED", "NEEDED_OF_BATCHES", "days_of", "has_inner_batch", "inner_batches", "messages_in"]

_SOURCE: Final = tuple(SOURCE_NAMES.values())
_SCHEMA: Final = arrow_schema(_SOURCE)
NEEDED: Final = ("kind", *_SOURCE)
"""Columns of the archive that ``messages_in`` needs."""
NEEDED_OF_BATCHES: Final = tuple(dict.fromkeys((*NEEDED, *ENCODED_COLUMNS)))
"""Columns that it needs for a table with an inner batch, whose record is made again."""
_TIMES: Final = ("storeTimestamp", "bornTimestamp", "deliverAt")
_DAY_US: Final = 86_400_000_000
_LAST_US: Final = 2_932_897 * _DAY_US
"""The start of the year 10000."""
_SLICE: Final = 64 << 20
"""Bytes of decompressed bodies in a table that is yielded, unless one body is longer."""


def messages_in(
    table: pa.Table, broker: str, is_wanted: Callable[[str], bool], scratch: Scratch
) -> Iterator[pa.Table]:
    """Yield the messages of a row group of the archive, as rows of ``messages``.

    ``is_wanted`` chooses topics. Raises CorruptionError for a row of an inner batch from which no record can be made.
    """
    topics = table["topic"].combine_chunks().dictionary_encode()
    topics = topics.chunk(0) if isinstance(topics, pa.ChunkedArray) else topics
    wanted = [name is not None and is_wanted(name) for name in topics.dictionary.to_pylist()]
    if not any(wanted):
        return
    keep = pc.equal(table["kind"], MESSAGE)
    if not all(wanted) or topics.null_count:
        of_topic = np.append(np.array(wanted, dtype=bool), False)[topics.indices.fill_null(len(wanted)).to_numpy()]
        keep = pc.and_(keep, pa.chunked_array([of_topic]))
    if not pc.all(keep).as_py():
        table = table.filter(keep)
    if not table.num_rows:
        return
    inner = inner_batches(table)
    if inner.any():
        for _, data, rows in records_of(table.filter(pa.array(inner)), scratch):
            made = Columns(data, Fields.of(message_rows(data, rows), _SOURCE), "", "stored")
            yield from _shown(pa.table([made.make(one.name, one.type) for one in _SCHEMA], schema=_SCHEMA), broker)
        table = table.filter(pa.array(~inner))
    if table.num_rows:
        yield from _shown(table, broker)


def inner_batches(table: pa.Table) -> Any:
    """Return for each row of the archive whether it is a record with several messages."""
    return table["sysFlag"].fill_null(0).to_numpy() & INNER_BATCH_BITS == INNER_BATCH_BITS


def has_inner_batch(table: pa.Table) -> bool:
    """Return True if a row of the archive is a record with several messages."""
    return bool(inner_batches(table).any())


def _shown(table: pa.Table, broker: str) -> Iterator[pa.Table]:
    for low, high, body, reason in _bodies(table):
        part = table.slice(low, high - low)
        known = {BROKER: pa.repeat(pa.scalar(broker), len(part)), "body": body, "body_error": reason}
        columns = []
        for one in MESSAGES_SCHEMA:
            made = known.get(one.name)
            if made is None:
                name = SOURCE_NAMES[one.name]
                made = _time(part[name]) if name in _TIMES else part[name]
            columns.append(made if made.type == one.type else made.cast(one.type))
        yield pa.table(columns, schema=MESSAGES_SCHEMA)


def _bodies(table: pa.Table) -> Iterator[tuple[int, int, Any, Any]]:
    """Yield ranges of rows with their decompressed bodies and the reasons why some could not be decompressed."""
    flags = table["sysFlag"].to_numpy()
    if not (flags & SysFlag.COMPRESSED).any():
        yield 0, len(table), table["body"], pa.nulls(len(table), pa.string())
        return
    low, size, bodies, reasons = 0, 0, list[bytes | None](), list[str | None]()
    for row, (body, flag) in enumerate(zip(table["body"].to_pylist(), flags.tolist(), strict=True)):
        reason, plain = None, body
        if body is not None:
            try:
                plain = decompress_body(body, flag, MAX_BODY)
            except CorruptionError as error:
                reason = str(error)
        bodies.append(plain)
        reasons.append(reason)
        size += len(plain or b"")
        if size >= _SLICE:
            yield low, row + 1, pa.array(bodies, pa.binary()), pa.array(reasons, pa.string())
            low, size, bodies, reasons = row + 1, 0, [], []
    if bodies:
        yield low, len(table), pa.array(bodies, pa.binary()), pa.array(reasons, pa.string())


def _time(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return times without those outside of the years 1970 to 9999."""
    numbers = column.cast(pa.int64())
    inside = pc.and_(pc.greater_equal(numbers, 0), pc.less(numbers, _LAST_US))
    if pc.all(inside, min_count=0).as_py():
        return column
    return pc.if_else(inside, column, pa.scalar(None, column.type))


def days_of(table: pa.Table, column: str = STORE_TIME) -> dict[int | None, pa.Table]:
    """Return the rows of a table by the UTC day of their store time, counted from 1970; None without one."""
    times = table[column].cast(pa.int64())
    days = times.fill_null(-1).to_numpy() // _DAY_US
    found = np.unique(days).tolist()
    if len(found) == 1:
        return {None if found[0] < 0 else found[0]: table}
    return {None if day < 0 else day: table.filter(pa.array(days == day)) for day in found}
