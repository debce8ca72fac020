"""``tailrace/timer.json``: what the reference's timer files do not say (W21).

A hint: precision and length of the wheel for whoever reads the directory, the coarsest precision that
messages in it were rounded by, so that none of them is early at a finer one, and up to which slot time
timers may have been delivered although the wall clock says that it is earlier, because it was
stepped back. Without it they may be delivered twice, never lost.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import orjson

from tailrace.env.filesystem import FileSystem
from tailrace.env.whole_files import read_hint, replace_file
from tailrace.formats.filenames import OWN

__all__ = ["Geometry", "grain_ms", "read_geometry", "read_suspicious_until_ms", "write_timer_hint"]

_NAME: Final = f"{OWN}/timer.json"


def read_suspicious_until_ms(file_system: FileSystem, root: str) -> int:
    """The slot time before which timers may have been delivered; 0 when nobody knows of any."""
    try:
        value = orjson.loads(read_hint(file_system, f"{root}/{_NAME}", 4096) or b"")[
            "suspiciousUntilMs"]
    except (ValueError, KeyError, TypeError):
        return 0
    return value if isinstance(value, int) else 0


class Geometry(NamedTuple):
    """What the wheel and its messages are made by."""

    precision_ms: int
    slots_total: int
    grain_ms: int
    """The coarsest precision that the directory has had: slot times of messages are rounded by it."""


def read_geometry(file_system: FileSystem, root: str) -> Geometry | None:
    """The geometry that was written last; None when nobody knows."""
    try:
        value = orjson.loads(read_hint(file_system, f"{root}/{_NAME}", 4096) or b"")
        found = [value["precisionMs"], value["slotsTotal"]]
        found.append(value.get("grainMs", found[0]))
    except (ValueError, KeyError, TypeError):
        return None
    return Geometry(*found) if all(type(number) is int and number > 0 for number in found) else None


def grain_ms(file_system: FileSystem, root: str, precision_ms: int) -> int:
    """The coarsest precision that a directory has had, that of now included."""
    found = read_geometry(file_system, root)
    return precision_ms if found is None else max(found.grain_ms, found.precision_ms, precision_ms)


def write_timer_hint(
    file_system: FileSystem, root: str, geometry: Geometry, suspicious_until_ms: int
) -> None:
    """Write the hint; durable on return. Raises OSError."""
    file_system.makedirs(f"{root}/{OWN}")
    replace_file(file_system, f"{root}/{_NAME}", orjson.dumps({
        "precisionMs": geometry.precision_ms, "slotsTotal": geometry.slots_total,
        "grainMs": geometry.grain_ms, "suspiciousUntilMs": suspicious_until_ms,
    }))
