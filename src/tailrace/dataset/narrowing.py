"""What a filter allows and names. Arrow's C++ code decides it, so no filter is parsed here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import fs

__all__ = ["columns_of", "narrowed"]


def narrowed(
    filter_: Any, schema: pa.Schema, column: str, low: int, high: int, scalar: Callable[[int], Any], step: int
) -> tuple[int, int]:
    """Return bounds [first, end) of the values of a column that may pass a filter, at most ``step`` wider than needed.

    ``low`` and ``high`` are where values are expected. They are no limits: a filter for values below ``low`` returns
    bounds that start at ``low``, one for values from ``high`` onwards bounds that end at ``high``. ``scalar`` makes a
    value of the column's type of a number.
    """
    field, form, files = pc.field(column), ds.IpcFileFormat(), fs.LocalFileSystem()

    def may(guarantee: Any) -> bool:
        fragment = form.make_fragment("", files, guarantee)
        return any(True for _ in ds.FileSystemDataset([fragment], schema, form, files).get_fragments(filter=filter_))

    first, end = low, high
    below, above = low, high  # no value below ``below`` passes
    while above - below > step:
        middle = (below + above) // 2
        if may(field < scalar(middle)):
            above = middle
        else:
            below = first = middle
    below, above = first, high  # no value from ``above`` onwards passes
    while above - below > step:
        middle = (below + above) // 2
        if may(field >= scalar(middle)):
            below = middle
        else:
            above = end = middle
    return first, end


def columns_of(expressions: list[Any], schema: pa.Schema) -> set[str]:
    """Return the columns that expressions name. Raises ArrowInvalid if the schema does not have one of them."""
    named = {str(number): one for number, one in enumerate(expressions)}
    _bind(named, schema)
    found = set()
    for name in schema.names:
        try:
            _bind(named, pa.schema([field for field in schema if field.name != name]))
        except pa.ArrowInvalid:
            found.add(name)
    return found


def _bind(expressions: dict[str, Any], schema: pa.Schema) -> None:
    """Raise ArrowInvalid for a column that the schema does not have."""
    ds.Scanner.from_batches([], schema=schema, columns=expressions)
