"""Texts in Java's ``.properties`` form: ``name=value`` or ``name: value``, comments with ``#`` and ``!``.

Values from a request are read by ``parse_properties``, which takes what a Java broker takes. A file of settings is
read by ``settings_in``, which refuses lines that set nothing and says where they are.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import Final

from tailrace.errors import ConfigError

__all__ = ["SETTINGS_FILE_MAX", "parse_properties", "repeated_settings", "settings_in"]

SETTINGS_FILE_MAX: Final = 1 << 20
"""Largest file of settings, in bytes."""
_EXPECTED: Final = "expected lines of name=value"
_END_OF_LINE: Final = re.compile(r"\r\n|\n|\r")
_SHOWN_MAX: Final = 40
_PROBLEMS_MAX: Final = 5
_SECRET: Final = re.compile("password|passwd|secret", re.IGNORECASE)
_UTF16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def parse_properties(source: str) -> dict[str, str]:
    """Return the values by name. If several lines set a name, the last one counts; a line without a value sets ""."""
    return {name: value or "" for _, name, value in _settings(source)}


def settings_in(data: bytes, path: str) -> dict[str, str]:
    """Return the values of a settings file with these bytes. A byte order mark of UTF-8 is left out.

    Raises ConfigError, which has file, line and the start of the text of each line that is not a setting.
    """
    problems: list[str] = []
    values: dict[str, str] = {}
    for number, name, value in _settings(_text(data, path)):
        if name and value is not None and name.isprintable():
            values[name] = value
        else:
            text = name + ("" if value is None else f"={value}")
            problems.append(f"{path} line {number}: {_shown(text)} is not a setting; {_EXPECTED}")
    if len(problems) > _PROBLEMS_MAX:
        problems[_PROBLEMS_MAX:] = [f"{path} has {len(problems) - _PROBLEMS_MAX} more such lines"]
    if problems:
        raise ConfigError(*problems)
    return values


def repeated_settings(data: bytes, path: str) -> list[str]:
    """Return a text for each line of a settings file that sets a name once more, to another value."""
    found = []
    seen: dict[str, tuple[int, str | None]] = {}
    for number, name, value in _settings(_text(data, path)):
        first, before = seen.get(name, (0, value))
        if before != value:
            found.append(
                f"{path} line {number}: {name[:_SHOWN_MAX]!r} has another value than in line {first}; "
                "expected one line for each name, and the last one counts")
        seen[name] = number, value
    return found


def _text(data: bytes, path: str) -> str:
    if len(data) > SETTINGS_FILE_MAX:
        raise ConfigError(f"{path} has more than {SETTINGS_FILE_MAX} bytes; {_EXPECTED}")
    if data.startswith(_UTF16):
        raise ConfigError(f"{path} line 1: the file is UTF-16 text, save it as UTF-8; {_EXPECTED}")
    try:
        return data.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        start = data.rfind(b"\n", 0, error.start) + 1
        number = data.count(b"\n", 0, start) + 1
        line = data[start:].partition(b"\n")[0].decode("utf-8", "backslashreplace")
        raise ConfigError(f"{path} line {number}: {_shown(line)} is not UTF-8 text; {_EXPECTED}") from None


def _settings(source: str) -> Iterator[tuple[int, str, str | None]]:
    """Yield (number of the line, name, value or None if there is no separator) for each setting."""
    lines = enumerate(_END_OF_LINE.split(source), 1)
    for number, line in lines:
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        last = line
        while last.endswith("\\"):
            last = next(lines, (0, ""))[1]
            text = text[:-1] + last.strip()
        name, separator, value = re.sub(r"\s*[=:]\s*", "=", text, count=1).partition("=")
        yield number, name.strip(), value.strip() if separator else None


def _shown(text: str) -> str:
    """Return the start of a text in quotes. A value that may be a secret is left out."""
    if _SECRET.search(text):
        text = re.split(r"[\s=:]", text, maxsplit=1)[0] + " ..."
    return repr(text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "...")
