"""Which rows of a table have to go: of a topic, a key or an age."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.spark.lake.schemas import Form

__all__ = ["Condition", "matching"]


@dataclass(frozen=True, slots=True)
class Condition:
    """Rows to remove: those that match all values that are given.

    ``key`` is a unique key or one of the keys of a message. ``before_us`` is a time in microseconds since 1970.
    """

    topic: str = ""
    key: str = ""
    before_us: int | None = None


def matching(table: pa.Table, form: Form, conditions: Sequence[Condition]) -> Any:
    """Return for each row whether it matches one of the conditions, as a NumPy array of bool."""
    found = np.zeros(len(table), dtype=bool)
    for one in conditions:
        rows = np.ones(len(table), dtype=bool)
        if one.topic:
            rows &= _bools(pc.equal(table[form.topic], one.topic))
        if one.key:
            rows &= _bools(pc.equal(table[form.uniq_key], one.key)) | _has_key(table[form.keys], one.key)
        if one.before_us is not None:
            rows &= _bools(pc.less(table[form.time].cast(pa.int64()), one.before_us))
        found |= rows
    return found


def _bools(column: Any) -> Any:
    return column.fill_null(False).to_numpy(zero_copy_only=False) if isinstance(column, pa.Array) else (
        column.fill_null(False).to_numpy())


def _has_key(column: pa.ChunkedArray, key: str) -> Any:
    keys = column.combine_chunks()
    found = np.zeros(len(keys), dtype=bool)
    for part in keys.chunks if isinstance(keys, pa.ChunkedArray) else [keys]:
        rows = pc.list_parent_indices(part).filter(pc.equal(pc.list_flatten(part), key).fill_null(False))
        found[rows.to_numpy()] = True
    return found
