"""Durations, times, sizes and names as people write and read them."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Final

__all__ = [
    "Duration", "Time", "camel", "duration_ms", "meant", "milliseconds", "nearest", "no_such", "seconds", "size_text",
    "time_ms",
]

Duration = float | str | timedelta
"""A number in the unit that the name of the argument has, a timedelta, or a text with units such as ``5s``."""
Time = int | str | datetime
"""Milliseconds since 1970, a datetime, or a text of ISO 8601."""
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART: Final = re.compile(r"(\d{1,18}(?:\.\d{1,9})?) ?(ms|s|m|h|d)", re.ASCII)
_PARTS: Final = re.compile(rf"(?:{_PART.pattern} ?)+", re.ASCII)
_MAX_MS: Final = (1 << 63) - 1


def camel(name: str) -> str:
    """Return the name of a field in the spelling of JSON lines: ``allocatedBytes``."""
    return re.sub(r"_([a-z0-9])", lambda found: found[1].upper(), name)


def duration_ms(value: Duration, name: str = "a duration") -> int:
    """Return a duration in milliseconds.

    ``value`` is a number of seconds, a ``timedelta``, or a text with units such as ``5s``, ``1h30m`` or ``500ms``.
    Raises ValueError, which begins with ``name``, for another value, a negative one, and a text without a unit.
    """
    if isinstance(value, str):
        text = value.strip()
        if re.fullmatch(r"\d+(?:\.\d+)?", text, re.ASCII):
            raise ValueError(f"{name} {value!r} has no unit; write {text}s or {text}ms")
        if not _PARTS.fullmatch(text):
            raise ValueError(f"{name} {value!r} is not a duration; write 500ms, 5s, 10m, 1h30m or 2d")
        found = sum(float(number) * _UNITS_MS[unit] for number, unit in _PART.findall(text))
    elif isinstance(value, timedelta):
        found = value / timedelta(milliseconds=1)
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(  # noqa: TRY004 - one error for every value that is refused
            f"{name} {value!r} is not a duration; give seconds, a timedelta or a text such as 5s")
    else:
        found = value * 1_000
    if not math.isfinite(found) or not 0 <= found <= _MAX_MS:
        raise ValueError(f"{name} {value!r} is not a duration from 0 on")
    return round(found)


def milliseconds(value: Duration, name: str = "a duration") -> float:
    """Return a duration in milliseconds, of which a number is given; otherwise as `duration_ms`."""
    return duration_ms(value, name) if isinstance(value, str | timedelta) else _number(value, name, "ms")


def seconds(value: Duration, name: str = "a duration") -> float:
    """Return a duration in seconds, of which a number is given; otherwise as `duration_ms`."""
    return duration_ms(value, name) / 1_000 if isinstance(value, str | timedelta) else _number(value, name, "seconds")


def _number(value: Any, name: str, unit: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{name}={value!r} is not a duration: give {unit}, a timedelta or a text such as '5s'")
    return value


def time_ms(value: Time, name: str = "a time") -> int:
    """Return a time in milliseconds since 1970.

    ``value`` is a number of milliseconds since 1970, the same number as a text, a ``datetime``, or a text of
    ISO 8601 such as ``2026-01-31T12:00`` or ``2026-01-31T12:00:00Z``. A time without a zone is a time of this
    machine's zone. Raises ValueError, which begins with ``name``, for another value and a time before 1970.
    """
    found: float | None = None
    try:
        if isinstance(value, str):
            text = value.strip()
            is_number = text.isascii() and text.isdecimal()
            found = int(text) if is_number else datetime.fromisoformat(text).timestamp() * 1000
        elif isinstance(value, datetime):
            found = value.timestamp() * 1000
        elif type(value) is int:
            found = value
    except (ValueError, OverflowError, OSError):
        pass
    if found is None or not 0 <= found <= _MAX_MS:
        raise ValueError(f"{name} {value!r} is not a time; write 2026-01-31T12:00 or milliseconds since 1970")
    return round(found)


def meant(name: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """Return ``; is NAME meant?`` with the most similar known name.

    Return "" if no name is at least that similar: 0 is any name, 1 the name itself.
    """
    near = nearest(name, known, likeness)
    return f"; is {near} meant?" if near else ""


def nearest(name: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """Return the most similar known name; "" if no name is at least that similar, as for `meant`."""
    return next(iter(difflib.get_close_matches(name, known, 1, likeness)), "")


def size_text(count: int) -> str:
    """Return a number of bytes for people, in the form that RocketMQ's tools read, such as ``1.5 KiB``."""
    if count < 1024:
        return f"{count} B"
    place = (count.bit_length() - 1) // 10
    return f"{count / (1 << 10 * place):.1f} {'KMGTPE'[place - 1]}iB"


def no_such(kind: str, name: str, known: Iterable[str], where: str) -> str:
    """Return the text for a topic or group that does not exist: with the most similar name, or all if they are few."""
    known = list(known)
    few = f"; it has {', '.join(sorted(known))}" if 0 < len(known) < 10 else ""
    return f"{where} has no {kind} {name}" + (meant(name, known) or few)
