"""Times, sizes and states as people read them."""

from __future__ import annotations

from datetime import datetime
from typing import Final
from xml.etree.ElementTree import Element

from tailrace.console.elements import Child, h

__all__ = ["ago", "client_version", "clock_time", "local_time", "moment", "span", "zone"]

_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))
_FIRST_REGULAR: Final = 212
"""Number of the version 4.0.0 of clients; from it on there are ten patches for each minor version, each with a
number before it for its snapshot."""
_VERSIONS_END: Final = _FIRST_REGULAR + 400


def local_time(ms: int, spec: str = "seconds") -> str:
    """Return a time in this machine's zone, "-" for none. ``spec`` is that of `datetime.isoformat`."""
    try:
        return datetime.fromtimestamp(ms / 1000).isoformat(" ", spec) if ms > 0 else "-"  # noqa: DTZ006 - zone() says it
    except (OverflowError, ValueError, OSError):
        return str(ms)


def moment(ms: int, spec: str = "seconds") -> Child:
    """Return a time as an element; "-" for none."""
    if ms <= 0:
        return "-"
    try:
        exact = datetime.fromtimestamp(ms / 1000).astimezone().isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return str(ms)
    return h("time", local_time(ms, spec), datetime=exact, title=exact)


def clock_time(ms: int, now_ms: int) -> Element | str:
    """Return how long ago a time is, with the time itself as its title; "-" for none."""
    if ms <= 0:
        return "-"
    found = moment(ms)
    if isinstance(found, Element):
        found.text = ago(ms, now_ms)
        return found
    return str(found)


def zone(now_ms: int) -> str:
    """Return the zone of all times, such as ``UTC+01:00``."""
    return f"UTC{datetime.fromtimestamp(now_ms / 1000).astimezone().isoformat()[-6:]}"


def span(ms: float) -> str:
    """Return a duration in its greatest unit, such as ``90 s`` or ``3 d``; below two of a unit in the next one."""
    for unit, name in _UNITS:
        if ms >= 2 * unit or (name == "s" and ms >= 1_000):
            return f"{ms // unit:,.0f} {name}"
    return f"{max(ms, 0):.0f} ms"


def ago(ms: int, now_ms: int) -> str:
    """Return how long ago, or in how long, a time is."""
    if ms > now_ms:
        return f"in {span(ms - now_ms)}"
    return "now" if now_ms - ms < 1_000 else f"{span(now_ms - ms)} ago"


def client_version(number: int) -> str:
    """Return the version of a RocketMQ client from the number in its requests, such as ``5.3.1``."""
    if number < _FIRST_REGULAR:
        return "before 4.0.0"
    if number >= _VERSIONS_END:
        return "after 5.9.9"
    release, is_release = divmod(number - _FIRST_REGULAR, 2)
    major, rest = divmod(release, 100)
    return f"{4 + major}.{rest // 10}.{rest % 10}{'' if is_release else '-SNAPSHOT'}"
