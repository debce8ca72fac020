"""Checks of the arguments of clients: durations, numbers and addresses, with what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tailrace.errors import ConfigError
from tailrace.remoting.client import split_address
from tailrace.spellings import Duration, Time, milliseconds, seconds, time_ms

__all__ = ["Duration", "Time", "check_address", "check_group", "in_ms", "in_s", "in_time_ms", "not_above_zero"]

_Number = TypeVar("_Number", int, float)


def in_ms(name: str, value: Duration) -> float:
    """Return a duration in milliseconds, of which a number is given. Raises ConfigError."""
    return _checked(milliseconds, value, name)


def in_s(name: str, value: Duration) -> float:
    """Return a duration in seconds, of which a number is given. Raises ConfigError."""
    return _checked(seconds, value, name)


def in_time_ms(name: str, value: Time) -> int:
    """Return a time in milliseconds since 1970. Raises ConfigError."""
    return _checked(time_ms, value, name)


def _checked(read: Callable[[Any, str], _Number], value: object, name: str) -> _Number:
    try:
        return read(value, name)
    except ValueError as error:
        raise ConfigError(str(error)) from None


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


def check_group(group: Any) -> None:
    """Raise ConfigError for what is not the name of a group."""
    if not isinstance(group, str) or not group:
        raise ConfigError(f"group is the name of a group, not {group!r}")
    if ":" in group:
        raise ConfigError(f"group={group!r} is an address, not a name; write namesrv={group!r} and name the group")
