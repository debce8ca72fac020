"""Log output of commands on stderr: as text, or as a JSON object for each line."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from tailrace.cli.arguments import usage
from tailrace.events import split_line

__all__ = ["FORMATS", "JsonFormatter", "log_to_stderr"]

FORMATS: Final = ("text", "json")


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to the current ``sys.stderr``. A progress bar replaces it, so that log lines do not cut the bar."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, value: TextIO) -> None: ...


class JsonFormatter(logging.Formatter):
    """Formats a line as a JSON object: time, level, logger, event, and the values of the event by their keys."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(), "logger": record.name,
        }
        event, keys = split_line(str(record.msg))
        if isinstance(record.args, tuple) and len(keys) == len(record.args) and "%" not in event:
            line["event"] = event
            line.update(zip(keys, map(_plain, record.args), strict=True))
        else:
            line["event"] = record.getMessage()
        if record.exc_info and not record.exc_text:  # from the logger of another package, such as asyncio
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            line["traceback"] = record.exc_text
        return json.dumps(line, ensure_ascii=False)


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def log_to_stderr(level: str, form: str = "", *, times: bool = False) -> None:
    """Print log lines on stderr, in the place of an earlier call. Ends with exit code 2 for an unknown level or form.

    `app.run` calls it for every command, and a command may call it again.
    """
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise usage(f"--log-level {level} is not debug, info, warning or error")
    if form and form not in FORMATS:
        raise usage(f"--log-format {form} is not {' or '.join(FORMATS)}")
    handler = _StderrHandler()
    text = "%(asctime)s %(levelname)s %(name)s %(message)s" if times else "%(levelname)s %(message)s"
    handler.setFormatter(JsonFormatter() if form == "json" else logging.Formatter(text))
    root = logging.root
    for earlier in [one for one in root.handlers if isinstance(one, _StderrHandler)]:
        root.removeHandler(earlier)
    logging.basicConfig(level=number, handlers=[handler])
