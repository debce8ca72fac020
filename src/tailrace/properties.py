"""Texts in Java's ``.properties`` form, as ``java.util.Properties`` reads and writes them.

A line is ``name=value``, ``name: value`` or ``name value``. A line that ends with an odd number of backslashes
continues in the next one. A backslash and the character after it stand for that character; ``\\t``, ``\\n``, ``\\r``,
``\\f`` and ``\\uXXXX`` are the ones of Java. Comments begin with ``#`` or ``!``. Blanks around a value do not count,
because a Java broker trims values.

Values from a request are read by ``parse_properties``, which takes what a Java broker takes. A file of settings is
read by ``settings_in``, which refuses lines that set nothing and says where they are. ``with_settings`` changes
settings of such a text.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from tailrace.errors import ConfigError

__all__ = ["SETTINGS_FILE_MAX", "parse_properties", "repeated_settings", "setting_text", "settings_in", "with_settings"]

SETTINGS_FILE_MAX: Final = 1 << 20
"""Largest file of settings, in bytes."""
_EXPECTED: Final = "expected lines of name=value"
_LINE: Final = re.compile(r"([^\r\n]*)(\r\n|\n|\r|\Z)")
_BLANKS: Final = " \t\f"
# Characters without a backslash before them are taken in one step: a name of 4 MB takes 80 ms, not 2 s.
_PARTS: Final = re.compile(r"([^\\=: \t\f]*(?:\\.[^\\=: \t\f]*)*)([ \t\f]*([=:]?)[ \t\f]*)(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPED: Final = {"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r", "\f": r"\f"}
_SHOWN_MAX: Final = 40
_PROBLEMS_MAX: Final = 5
_SECRET: Final = re.compile("password|passwd|secret", re.IGNORECASE)
_UTF16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class _Setting(NamedTuple):
    """A setting of a text, or lines without one."""

    number: int
    """Number of its first line."""
    raw: str
    """The lines as they are in the text, with their ends."""
    text: str
    """The lines as one, without the blanks before them; empty for an empty line or a comment."""
    name: str = ""
    value: str = ""
    separator: str = ""
    """``=`` or ``:``; empty without one, or for blanks only."""
    problem: str = ""


def setting_text(value: object) -> str:
    """Return the value of a setting as files of settings have it."""
    return str(value).lower() if isinstance(value, bool) else str(getattr(value, "value", value))


def parse_properties(source: str) -> dict[str, str]:
    """Return the values by name. If several lines set a name, the last one counts; a line without a value sets "".

    Raises ValueError for an escape that Java cannot read.
    """
    values: dict[str, str] = {}
    for one in _settings(source):
        if one.problem:
            raise ValueError(f"line {one.number}: {_shown(one.text)} {one.problem}")
        values[one.name] = one.value
    return values


def settings_in(data: bytes, path: str) -> dict[str, str]:
    """Return the values of a settings file with these bytes. A byte order mark of UTF-8 is left out.

    Raises ConfigError, which has file, line and the start of the text of each line that is not a setting.
    """
    problems: list[str] = []
    values: dict[str, str] = {}
    for one in _settings(_text(data, path)):
        if one.name and one.separator and one.name.isprintable():
            values[one.name] = one.value
        else:
            why = one.problem or "is not a setting"
            problems.append(f"{path} line {one.number}: {_shown(one.text)} {why}; {_EXPECTED}")
    if len(problems) > _PROBLEMS_MAX:
        problems[_PROBLEMS_MAX:] = [f"{path} has {len(problems) - _PROBLEMS_MAX} more such lines"]
    if problems:
        raise ConfigError(*problems)
    return values


def with_settings(text: str, values: Mapping[str, str]) -> str:
    """Return a text after a change of these settings; all other lines stay as they are.

    If several lines set a setting, the last one counts: it is replaced, and the earlier ones are removed. A
    setting without a line gets one at the end. Values are written so that Java and ``settings_in`` read them back.
    """
    left = dict(values)
    kept: list[str] = []
    for one in reversed(list(_lines(text))):
        if not one.text or one.name not in values:
            kept.append(one.raw)
        elif one.name in left:
            kept.append(f"{one.name}={_escaped(left.pop(one.name))}\n")
    kept.reverse()
    if left and kept and not kept[-1].endswith(("\n", "\r")):
        kept[-1] += "\n"
    return "".join(kept) + "".join(f"{name}={_escaped(value)}\n" for name, value in left.items())


def repeated_settings(data: bytes, path: str) -> list[str]:
    """Return a text for each line of a settings file that sets a name once more, to another value."""
    found = []
    seen: dict[str, tuple[int, str]] = {}
    for one in _settings(_text(data, path)):
        number, name, value = one.number, one.name, one.value
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


def _settings(source: str) -> Iterator[_Setting]:
    """Yield each setting of a text."""
    return (one for one in _lines(source) if one.text)


def _lines(source: str) -> Iterator[_Setting]:
    """Yield the settings, comments and empty lines of a text, which together are the whole text."""
    lines = _LINE.finditer(source)
    number = 0
    for line in lines:
        number += 1
        first, raw, text = number, line[0], line[1].lstrip(_BLANKS)
        if not raw:
            return
        if not text or text[0] in "#!":
            yield _Setting(first, raw, "")
            continue
        while _goes_on(text):
            text = text[:-1]
            following = next(lines, None)
            if following is None:
                break
            number += 1
            raw += following[0]
            text += following[1].lstrip(_BLANKS)
        yield _parsed(first, raw, text)


def _goes_on(text: str) -> bool:
    return (len(text) - len(text.rstrip("\\"))) % 2 == 1


def _parsed(number: int, raw: str, text: str) -> _Setting:
    """Return the setting of a logical line."""
    parts = _PARTS.match(text)
    assert parts is not None, "every text begins with a name, perhaps an empty one"
    try:
        value = parts[4].rstrip(_BLANKS)
        if _goes_on(value):
            value += parts[4][len(value)]  # an escaped blank belongs to the value
        return _Setting(number, raw, text, _unescaped(parts[1]), _unescaped(value), parts[3])
    except ValueError as error:
        return _Setting(number, raw, text, problem=str(error))


def _unescaped(text: str) -> str:
    """Return a name or value with its escapes resolved. Raises ValueError for one that Java cannot read."""
    if "\\" not in text:
        return text

    def one(match: re.Match[str]) -> str:
        code = match[1]
        if code[0] != "u":
            return _ESCAPES.get(code, code)
        if len(code) == 1:
            raise ValueError(r"has \u without four hexadecimal digits")
        return chr(int(code[1:], 16))

    try:
        return _ESCAPE.sub(one, text).encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise ValueError("has half of a character that needs two escapes") from None


def _escaped(value: str) -> str:
    """Return a value as it is written: ASCII only, because Java reads a file as Latin-1."""
    made = "".join(
        _ESCAPED.get(c, c) if c in _ESCAPED or " " <= c <= "~" else "".join(
            f"\\u{unit:04X}" for unit in memoryview(c.encode("utf-16-le", "surrogatepass")).cast("H"))
        for c in value)
    return f"\\{made}" if made.startswith(" ") else made


def _shown(text: str) -> str:
    """Return the start of a text in quotes. A value that may be a secret is left out."""
    if _SECRET.search(text):
        text = re.split(r"[\s=:]", text, maxsplit=1)[0] + " ..."
    return repr(text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "...")
