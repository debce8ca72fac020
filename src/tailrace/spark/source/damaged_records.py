"""Report of damaged records by the option ``mode``: an error, a row with the reason, or only a log line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from tailrace import events
from tailrace.arrow.schema import arrow_schema
from tailrace.errors import CorruptionError
from tailrace.logs import get_logger
from tailrace.spark.source.options import ReadOptions

__all__ = ["report_damaged"]

_log = get_logger(__name__)


def report_damaged(
    label: str, path: str, bad: Sequence[tuple[int, str]], options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    """Log the (position, reason) of damaged records in a store or archive at ``path``; yield their rows.

    There are no rows in mode DROPMALFORMED. Raises CorruptionError in mode FAILFAST.
    """
    if options.mode == "FAILFAST":
        place, reason = bad[0]
        raise CorruptionError(
            f"damaged record in {path}: {reason}; mode=PERMISSIVE makes it a row with the "
            "column damaged, mode=DROPMALFORMED leaves it out",
            phy_offset=place)
    for place, reason in bad:
        events.DAMAGED_RECORD.log(_log, store=label, phy_offset=place, reason=reason)
    if options.mode == "DROPMALFORMED":
        events.DAMAGED_RECORDS_DROPPED.log(_log, store=label, dropped=len(bad))
    else:
        yield _damaged_rows(label, bad, options)


def _damaged_rows(
    label: str, bad: Sequence[tuple[int, str]], options: ReadOptions
) -> pa.RecordBatch:
    """Return a row for each: its position and the reason, but no value from its bytes."""
    schema = arrow_schema(options.columns)
    known: Mapping[str, list[Any]] = {
        "store": [label] * len(bad),
        "commitLogOffset": [place for place, _ in bad],
        "damaged": [reason for _, reason in bad],
    }
    return pa.RecordBatch.from_arrays(
        [
            pa.array(known[field.name], field.type) if field.name in known
            else pa.nulls(len(bad), field.type) for field in schema
        ], schema=schema)
