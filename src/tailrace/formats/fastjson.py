"""Read the JSON dialect of Java brokers (fastjson), and write JSON that their clients can read.

fastjson does not quote numeric keys, writes objects as keys of maps, and replaces the second occurrence of an
object by ``{"$ref": "$.path"}``. `loads` accepts all three; an object used as a key becomes its compact JSON
text. Tailrace writes numeric keys in quotes, which every client accepts, and objects as keys only with
`object_keyed`, because older clients accept no other form there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import orjson

__all__ = [
    "TOLERANT_MAX", "dumps", "dumps_large", "dumps_pretty", "loads", "loads_bounded", "nested", "object_keyed",
    "pairs_of",
]

_BLANKS: Final = re.compile(r"[\s,]*")
_ATOM: Final = re.compile(r"[^\s,:\[\]{}\"]+")
_PATH: Final = re.compile(r"\.([^.\[]+)|\[(\d+)\]|\[\"((?:[^\"\\]|\\.)*)\"\]")
_LIMIT: Final = 200
_NODES_LIMIT: Final = 1_000_000
_BOUNDED_NODES: Final = 50_000
_PART: Final = 4_000
"""Values of an object that are written in one call, which takes less than a millisecond; the last may add as many."""
_COUNTED: Final = 1 << 18
BOUNDED_MAX: Final = 2 << 20
"""Greatest length of a text from a client, in bytes."""
TOLERANT_MAX: Final = 16 * 1024
"""Greatest length of a text from a client in fastjson's own form, in bytes; reading takes about 1 us per byte."""


def dumps(value: Any) -> bytes:
    """Return compact JSON with sorted members, as fastjson writes it."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def dumps_pretty(value: Any) -> bytes:
    """Return indented JSON for files that people read."""
    return _dumps_parts(value, orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2, pretty=True)


def dumps_large(value: dict[str, Any]) -> bytes:
    """As `dumps`, in steps between which other threads can run; for objects with large members."""
    return _dumps_parts(value, orjson.OPT_SORT_KEYS, pretty=False)


def _dumps_parts(value: Any, option: int, *, pretty: bool) -> bytes:
    """Write an object in calls of orjson with few values each, with the same result as one call.

    orjson holds the interpreter's lock during a call: 100 ms for 100,000 topics, or for the offsets of 60 groups of a
    topic with 16,384 queues.
    """
    if not isinstance(value, dict) or _values_in(value) <= _PART:
        return orjson.dumps(value, option=option)
    parts: list[bytes] = []
    _write(value, option, parts, 0, pretty=pretty)
    return b"".join(parts)


def _values_in(value: Any, most: int = _PART) -> int:
    """Return how many values a value has, those of its members included; more than ``most`` are not counted."""
    if not isinstance(value, dict | list):
        return 1
    count = len(value)
    for member in value.values() if isinstance(value, dict) else value:
        if count > most:
            break
        if isinstance(member, dict | list):
            count += _values_in(member, most - count)
    return count


def _write(members: dict[str, Any], option: int, parts: list[bytes], depth: int, *, pretty: bool) -> None:
    """Append the text of an object that is a member of ``depth`` objects, each of which is larger than a part."""
    margin = b"\n" + b"  " * depth if pretty else b""
    few: dict[str, Any] = {}
    count, before = 0, b"{"

    def flush() -> None:
        nonlocal count, before
        if few:
            text = orjson.dumps(few, option=option)
            # A line end is never inside a text, because orjson escapes it.
            parts.append(before + (text[1:-2].replace(b"\n", margin) if pretty else text[1:-1]))
            few.clear()
            count, before = 0, b","

    for name in sorted(members):
        member = members[name]
        size = _values_in(member)
        if isinstance(member, dict) and size > _PART:
            flush()
            parts.append(before + (margin + b"  %b: " if pretty else b"%b:") % orjson.dumps(name))
            _write(member, option, parts, depth + 1, pretty=pretty)
            before = b","
            continue
        few[name] = member
        count += size
        if count >= _PART:
            flush()
    flush()
    parts.append(margin + b"}")


def object_keyed(entries: Iterable[tuple[Any, Any]]) -> bytes:
    """Return an object whose keys are objects. That is not JSON, but Java clients expect it."""
    return b"{" + b",".join([dumps(k) + b":" + dumps(v) for k, v in entries]) + b"}"


def pairs_of(value: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield (key, inner key, value) of an object of objects; a value of another form has none."""
    for key, inner in value.items() if isinstance(value, dict) else ():
        for name, member in inner.items() if isinstance(inner, dict) else ():
            yield str(key), str(name), member


def nested(entries: Iterable[tuple[str, str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the object of objects that `pairs_of` reads."""
    found: dict[str, dict[str, Any]] = {}
    for key, name, member in entries:
        found.setdefault(key, {})[name] = member
    return found


def loads_bounded(data: bytes, values_max: int, bytes_max: int = BOUNDED_MAX) -> Any:
    """As `loads`, with limited work, for a text from a client. Raises ValueError.

    The text may have ``bytes_max`` bytes and about ``values_max`` values. fastjson's own form and references are
    accepted in texts of up to `TOLERANT_MAX` bytes, because Python code reads them.
    """
    if len(data) > bytes_max:
        raise ValueError(f"{len(data)} bytes, over the limit of {bytes_max}; send several requests")
    left = values_max
    for start in range(0, len(data), _COUNTED):
        part = data[start : start + _COUNTED]
        left -= part.count(b",") + part.count(b"[") + part.count(b"{")
        if left < 0:
            raise ValueError(f"more than {values_max} values; send several requests")
    if len(data) <= TOLERANT_MAX:
        return loads(data, _BOUNDED_NODES)
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ValueError(
            f"{error}; fastjson's own forms are read in texts of up to {TOLERANT_MAX} bytes, "
            f"this one has {len(data)}") from None
    if b'"$ref"' in data:
        raise ValueError(
            f"references ($ref) are read in texts of up to {TOLERANT_MAX} bytes, this one has "
            f"{len(data)}")
    return value


def loads(data: bytes | str, nodes_max: int = _NODES_LIMIT) -> Any:
    """Return the value of a text. Raises ValueError with the position of the error."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        text = data if isinstance(data, str) else data.decode("utf-8", "strict")
        reader = _Reader(text)
        value = reader.value(0)
        reader.end()
    if (b"$ref" in data) if isinstance(data, bytes) else ("$ref" in data):
        value = _resolve(value, value, [], 0)
        _check_size(value, nodes_max)
    return value


class _Reader:
    """A recursive reader of fastjson's own form."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._pos = 0

    def end(self) -> None:
        self._blanks()
        if self._pos != len(self._text):
            raise ValueError(f"unexpected text at position {self._pos}")

    def value(self, depth: int) -> Any:
        if depth > _LIMIT:
            raise ValueError(f"more than {_LIMIT} levels at position {self._pos}")
        self._blanks()
        first = self._text[self._pos : self._pos + 1]
        if first == "{":
            return self._object(depth)
        if first == "[":
            return self._array(depth)
        if first == '"':
            return self._string()
        return self._atom()

    def _blanks(self) -> None:
        match = _BLANKS.match(self._text, self._pos)
        self._pos = match.end() if match else self._pos

    def _object(self, depth: int) -> dict[str, Any]:
        self._pos += 1
        made: dict[str, Any] = {}
        while True:
            self._blanks()
            if self._text.startswith("}", self._pos):
                self._pos += 1
                return made
            key = self.value(depth + 1)
            self._blanks()
            if not self._text.startswith(":", self._pos):
                raise ValueError(f"no colon at position {self._pos}")
            self._pos += 1
            made[_key_text(key)] = self.value(depth + 1)

    def _array(self, depth: int) -> list[Any]:
        self._pos += 1
        made: list[Any] = []
        while True:
            self._blanks()
            if self._text.startswith("]", self._pos):
                self._pos += 1
                return made
            made.append(self.value(depth + 1))

    def _string(self) -> str:
        # Not a regular expression, because one that skips escapes needs memory for each of them.
        text, end = self._text, self._pos
        while True:
            end = text.find('"', end + 1)
            if end < 0:
                raise ValueError(f"text without an end at position {self._pos}")
            start = end
            while text[start - 1] == "\\":
                start -= 1
            if (end - start) % 2 == 0:
                break
        found = text[self._pos : end + 1]
        self._pos = end + 1
        return str(orjson.loads(found))

    def _atom(self) -> Any:
        match = _ATOM.match(self._text, self._pos)
        if match is None:
            raise ValueError(f"no value at position {self._pos}")
        try:
            value = orjson.loads(match.group())
        except orjson.JSONDecodeError as error:
            raise ValueError(f"no value at position {self._pos}") from error
        self._pos = match.end()
        return value


def _key_text(key: Any) -> str:
    if isinstance(key, str):
        return key
    return dumps(key).decode()


def _resolve(value: Any, root: Any, parents: list[Any], depth: int) -> Any:
    """Return ``value`` with its references replaced; unknown references become None."""
    if depth > _LIMIT:
        raise ValueError(f"more than {_LIMIT} levels")
    if isinstance(value, dict):
        ref = value.get("$ref")
        if len(value) == 1 and isinstance(ref, str):
            return _target(ref, root, parents)
        for key, member in value.items():
            value[key] = _resolve(member, root, [*parents, value], depth + 1)
    elif isinstance(value, list):
        for i, member in enumerate(value):
            value[i] = _resolve(member, root, [*parents, value], depth + 1)
    return value


def _check_size(value: Any, nodes_max: int) -> None:
    """Raise ValueError if references make a huge or an endless value from a short text."""
    left = nodes_max
    open_values = [value]
    while open_values:
        found = open_values.pop()
        if isinstance(found, dict):
            open_values.extend(found.values())
        elif isinstance(found, list):
            open_values.extend(found)
        left -= 1
        if left < len(open_values):
            raise ValueError(f"references make more than {nodes_max} values")


def _target(ref: str, root: Any, parents: list[Any]) -> Any:
    if ref in ("@", ".."):
        back = 1 if ref == "@" else 2
        return parents[-back] if len(parents) >= back else None
    found = root
    for match in _PATH.finditer(ref[1:]):
        name, index, quoted = match.groups()
        if index is not None and isinstance(found, list) and int(index) < len(found):
            found = found[int(index)]
        elif isinstance(found, dict):
            found = found.get(name or quoted or index)
        else:
            return None
    return found
