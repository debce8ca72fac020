"""Compiled expressions of subscriptions, remembered by their text."""

from __future__ import annotations

import functools
from typing import Final

from tailrace.broker.filters.sql_expression import SqlExpression
from tailrace.errors import FilterExpressionError

__all__ = ["SQL92", "SQL_MAX", "compile_filter", "compile_sql"]

SQL92: Final = "SQL92"
SQL_MAX: Final = 8 * 1024
"""Characters of an expression."""


@functools.lru_cache(maxsize=256)
def _compiled(text: str) -> SqlExpression | FilterExpressionError:
    # Imported here because the parser takes 0.1 s to load, and most brokers have no filters.
    from tailrace.broker.filters.sql_grammar import parse_sql  # noqa: PLC0415 - see above

    try:
        return parse_sql(text)
    except FilterExpressionError as error:
        return error  # pulls carry their expression: a wrong one is not parsed for each of them


def compile_sql(text: str) -> SqlExpression:
    """Compile an expression; the last few hundred are remembered.

    Raises FilterExpressionError that says what is wrong, and at which character.
    """
    if len(text) > SQL_MAX:
        raise FilterExpressionError(
            f"the expression has {len(text)} characters, over the limit of {SQL_MAX}")
    found = _compiled(text)
    if isinstance(found, FilterExpressionError):
        raise FilterExpressionError(str(found))
    return found


def compile_filter(text: str, expression_type: str) -> SqlExpression:
    """Compile the expression of a subscription; raises FilterExpressionError for another type than SQL92."""
    if expression_type != SQL92:
        raise FilterExpressionError(
            f"the expression type {expression_type[:40]} is not known; known are TAG and {SQL92}")
    return compile_sql(text)
