"""Loggers whose lines cannot be forged by the values in them; `tailrace.events` lists the lines.

No logger of Tailrace has a handler. So a program that configures logging decides where the lines go, and in another
program Python's last-resort handler prints warnings and errors on stderr, as the message without level and time.
"""

from __future__ import annotations

import logging
import traceback
from collections import Counter
from typing import Any, Final, final

__all__ = ["LogRateLimiter", "get_logger", "one_line"]

VALUE_MAX: Final = 4_096
"""Number of characters of a logged value. A longer value is cut, and its length is added."""
RARE_S: Final = 60.0
"""Time in seconds in which `LogRateLimiter` logs at most one line for each reason."""


def get_logger(name: str) -> logging.Logger:
    """Return the logger of a module, whose lines cannot be forged by the values in them.

    Client ids, groups, topics, paths and error texts come from other programs. A line end in such a value
    would start a line that looks like a line of Tailrace, and an escape sequence would change what a terminal
    shows. So a filter of the logger makes one printable line of each value, before the record reaches a handler.
    Escaping in a formatter or handler would protect only programs that use it, and Tailrace is also a library.
    Escaping where values come in would have to be repeated for every value. Every module must get its logger
    here; the linter refuses ``logging.getLogger``.
    """
    logger = logging.getLogger(name)
    if _one_line_values not in logger.filters:
        logger.addFilter(_one_line_values)
    return logger


@final
class LogRateLimiter:
    """Counts lines by reason, and decides which are logged: at most one a minute for each reason, with the number."""

    def __init__(self) -> None:
        self._logged_s: dict[str, float] = {}
        self._waiting: Counter[str] = Counter()

    def due(self, reason: str, now: float) -> int:
        """Count a line at a time (s). Return the number of lines since the last logged one; 0: do not log now."""
        self._waiting[reason] += 1
        if now - self._logged_s.get(reason, -RARE_S) < RARE_S:
            return 0
        self._logged_s[reason] = now
        return self._waiting.pop(reason)


def one_line(text: str) -> str:
    """Return a text with its control characters, line ends and lone surrogates escaped."""
    if len(text) > VALUE_MAX:
        text = f"{text[:VALUE_MAX]}... ({len(text)} characters)"
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _one_line_values(record: logging.LogRecord) -> bool:
    """Escape the values of a record, and indent its traceback, so that a reader sees one entry."""
    if isinstance(record.args, tuple):
        record.args = tuple(map(_safe, record.args))
    elif record.args:
        record.args = {name: _safe(value) for name, value in record.args.items()}
    if record.exc_info:
        kind, error, trace = record.exc_info
        lines = "".join(traceback.format_exception(kind, error, trace)).splitlines()
        record.exc_text = "\n".join(f"    {one_line(line)}" for line in lines)
        record.exc_info = None
    return True


def _safe(value: Any) -> Any:
    """Return a value whose text is one line; a number (also of NumPy) and None are returned unchanged."""
    kind = type(value)
    if value is None or hasattr(kind, "__index__") or hasattr(kind, "__float__"):
        return value
    return one_line(value) if isinstance(value, str) else _OneLine(value)


class _OneLine:
    """A value whose ``str`` and ``repr`` are one line."""

    __slots__ = ("_repr", "_str")

    def __init__(self, value: object) -> None:
        self._str, self._repr = one_line(str(value)), one_line(repr(value))

    def __str__(self) -> str:
        return self._str

    def __repr__(self) -> str:
        return self._repr
