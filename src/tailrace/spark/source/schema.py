"""Columns of the Spark source; ``arrow.schema`` declares them."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.arrow.schema import COLUMN_NAMES, COLUMN_TYPES
from tailrace.errors import ConfigError

__all__ = ["column_names", "columns_of", "spark_schema"]


def column_names(mode: str) -> tuple[str, ...]:
    """Return the columns for a value of the option ``mode``."""
    return (*COLUMN_NAMES, "damaged") if mode == "PERMISSIVE" else COLUMN_NAMES


def spark_schema(columns: tuple[str, ...]) -> str:
    """Return the schema of some columns as DDL, because Spark requests it where there is no session."""
    return ", ".join(f"`{name}` {COLUMN_TYPES[name]}" for name in columns)


def columns_of(types: Sequence[tuple[str, str]], known: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of a schema that a query or a table names, as (name, type).

    Raises ConfigError for a column that the source does not have, or has with another type.
    """
    problems = []
    for name, kind in types:
        if name not in known:
            problems.append(f"the source has no column {name}: known are {', '.join(known)}")
        elif kind != COLUMN_TYPES[name]:
            problems.append(
                f"column {name} is {COLUMN_TYPES[name]}, not {kind}: leave the schema out, or cast the "
                "column in a select")
    if problems:
        raise ConfigError(*problems)
    return tuple(name for name, _ in types)
