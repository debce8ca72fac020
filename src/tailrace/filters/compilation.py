"""Compilation of the expressions of subscriptions, with a cache by their text.

The compilation of 8 KiB takes about 40 ms. The event loop compiles only short expressions. For longer ones
NotPreparedError is raised: a thread compiles them, and then the request is served again. The thread pauses after each
half a millisecond, because the event loop waits while it works.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, final

from tailrace.env.pauses import no_pause, pause
from tailrace.errors import FilterExpressionError, RefusalError
from tailrace.filters.sql_expression import SqlExpression
from tailrace.formats.remoting import ResponseCode
from tailrace.requests.config_changes import NotPreparedError

__all__ = ["AT_ONCE_MAX", "REMEMBERED_MAX", "SQL92", "SQL_MAX", "compile_filter", "compile_sql", "prepare_sql"]

SQL92: Final = "SQL92"
SQL_MAX: Final = 8 * 1024
"""Longest expression, in characters."""
AT_ONCE_MAX: Final = 128
"""Number of characters that one turn of the event loop may compile, which takes at most 1 ms."""
REMEMBERED_MAX: Final = 8 << 20
"""Bytes of all cached expressions. One of `SQL_MAX` characters takes up to 0.7 MiB."""
ENTRIES_MAX: Final = 4_096
_PARSER: Final = "tailrace.filters.sql_grammar"
OF_REQUEST_MAX: Final = 8 * SQL_MAX
"""Number of characters of the new expressions of one request, so that all are still cached when it is served."""
_Compiled = SqlExpression | FilterExpressionError


@final
class _Remembered:
    """A cache of results by text, which drops the least recently used ones; any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._results: OrderedDict[str, _Compiled] = OrderedDict()
        self._bytes = 0

    def find(self, text: str) -> _Compiled | None:
        with self._lock:
            found = self._results.get(text)
            if found is not None:
                self._results.move_to_end(text)
            return found

    def add(self, text: str, result: _Compiled) -> None:
        with self._lock:
            if text in self._results:
                return
            self._results[text] = result
            self._bytes += _size(text, result)
            while self._bytes > REMEMBERED_MAX or len(self._results) > ENTRIES_MAX:
                self._bytes -= _size(*self._results.popitem(last=False))


def _size(text: str, result: _Compiled) -> int:
    return result.size if isinstance(result, SqlExpression) else 1_000 + 8 * len(text)


_remembered: Final = _Remembered()


def _compile(text: str, step: Callable[[], None] = no_pause) -> _Compiled:
    found = _remembered.find(text)
    if found is not None:
        return found
    # Imported here because the parser takes 0.1 s to load, and most brokers need no expressions.
    from tailrace.filters.sql_grammar import parse_sql  # noqa: PLC0415 - see above

    try:
        found = parse_sql(text, step)
    except FilterExpressionError as error:
        # Cached too: each pull carries its expression, and a wrong one would be parsed each time. It is a new one,
        # because the traceback of the first one keeps the whole tree.
        found = FilterExpressionError(str(error))
    _remembered.add(text, found)
    return found


def _parser_is_loaded() -> bool:
    return _PARSER in sys.modules


def _on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def prepare_sql(texts: Iterable[str]) -> None:
    """Raise NotPreparedError if the expressions are too long to compile them on the event loop.

    Raises RefusalError if there are too many of them.
    """
    if not _on_event_loop():
        return
    missing = [text for text in dict.fromkeys(texts) if len(text) <= SQL_MAX and _remembered.find(text) is None]
    characters = sum(map(len, missing))
    if characters > OF_REQUEST_MAX:
        raise RefusalError(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"the expressions have {characters} characters, over the limit of {OF_REQUEST_MAX} for one request")
    if characters > AT_ONCE_MAX or (missing and not _parser_is_loaded()):
        def work() -> None:
            for text in missing:
                _compile(text, pause)

        raise NotPreparedError("expressions wait to be compiled", work)


def compile_sql(text: str, *, at_once: bool = False) -> SqlExpression:
    """Compile an expression, or return it from the cache.

    Raises FilterExpressionError with the error and its character, and unless ``at_once`` NotPreparedError if a
    thread has to compile it.
    """
    if len(text) > SQL_MAX:
        raise FilterExpressionError(
            f"the expression has {len(text)} characters, over the limit of {SQL_MAX}")
    if not at_once:
        prepare_sql((text,))
    found = _compile(text)
    if isinstance(found, FilterExpressionError):
        raise FilterExpressionError(str(found))
    return found


def compile_filter(text: str, expression_type: str, *, at_once: bool = False) -> SqlExpression:
    """Compile the expression of a subscription like `compile_sql`. Types other than SQL92 are refused."""
    if expression_type != SQL92:
        raise FilterExpressionError(
            f"the expression type {expression_type[:40]} is not known; known are TAG and {SQL92}")
    return compile_sql(text, at_once=at_once)
