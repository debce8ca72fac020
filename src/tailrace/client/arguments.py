"""Checks of the arguments of clients: durations, numbers and addresses, with what to write instead."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from tailrace.errors import ConfigError
from tailrace.remoting.client import split_address
from tailrace.spellings import duration_ms, time_ms

__all__ = ["Duration", "Time", "check_address", "in_ms", "in_s", "in_time_ms", "not_above_zero"]

Duration = float | str | timedelta
"""A number in the unit that the name of the argument has, a timedelta, or a text with units such as ``5s``."""
Time = int | str | datetime
"""Milliseconds since 1970, a datetime, or a text of ISO 8601."""


def in_ms(name: str, value: Duration) -> float:
    """Return a duration in milliseconds, of which a number is given. Raises ConfigError."""
    return _checked(duration_ms, value, name) if isinstance(value, str | timedelta) else _number(name, value, "ms")


def in_s(name: str, value: Duration) -> float:
    """Return a duration in seconds, of which a number is given. Raises ConfigError."""
    return _checked(duration_ms, value, name) / 1_000 if isinstance(value, str | timedelta) else (
        _number(name, value, "s"))


def in_time_ms(name: str, value: Time) -> int:
    """Return a time in milliseconds since 1970. Raises ConfigError."""
    return _checked(time_ms, value, name)


def _checked(read: Callable[[Any, str], int], value: object, name: str) -> int:
    try:
        return read(value, name)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _number(name: str, value: Any, unit: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ConfigError(f"{name}={value!r} is not a duration: give {unit}, a timedelta or a text such as '5s'")
    return value


def not_above_zero(**values: Any) -> list[str]:
    """Return a problem for each value that is not a number above 0."""
    return [
        f"{name}={value!r} is not above 0" for name, value in values.items()
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0]


def check_address(name: str, text: Any, port: int) -> None:
    """Raise ConfigError for a text that is not HOST:PORT; of name servers there may be several, separated by ``;``."""
    if not isinstance(text, str):
        raise ConfigError(f"{name}={text!r} is not a text; write {name}='HOST:{port}'")
    for part in text.split(";"):
        address = part.strip()
        if "://" in address:
            raise ConfigError(f"{name}={text!r} is not HOST:PORT; write it without {address.partition('://')[0]}://")
        if address and split_address(address) is None:
            host, _, wrong = address.rpartition(":")
            if host and not host.endswith(":") and "]" not in wrong:
                raise ConfigError(f"{name}={text!r}: {wrong!r} is not a port; write {host}:{port}")
            raise ConfigError(f"{name}={text!r} has no port; write {address}:{port}")
