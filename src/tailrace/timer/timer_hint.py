"""``tailrace/timer.json``: facts that the timer files of RocketMQ do not have (W21).

The file is a hint with three facts. Precision and length of the wheel, for programs that read the directory. The
coarsest precision by which messages were rounded, so that no message is early at a finer one. The slot time up to
which timers may be delivered already although it is later than the wall clock, because the clock was set back.
Without the hint timers may be delivered twice, but are never lost.
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
    """Return the slot time before which timers may be delivered already; 0 without a hint."""
    try:
        value = orjson.loads(read_hint(file_system, f"{root}/{_NAME}", 4096) or b"")[
            "suspiciousUntilMs"]
    except (ValueError, KeyError, TypeError):
        return 0
    return value if isinstance(value, int) else 0


class Geometry(NamedTuple):
    """Precision and size of the wheel and of its messages."""

    precision_ms: int
    slots_total: int
    grain_ms: int
    """The coarsest precision that the directory has had: slot times of messages are rounded by it."""


def read_geometry(file_system: FileSystem, root: str) -> Geometry | None:
    """Return the geometry that was written last; None without a valid hint."""
    try:
        value = orjson.loads(read_hint(file_system, f"{root}/{_NAME}", 4096) or b"")
        found = [value["precisionMs"], value["slotsTotal"]]
        found.append(value.get("grainMs", found[0]))
    except (ValueError, KeyError, TypeError):
        return None
    return Geometry(*found) if all(type(number) is int and number > 0 for number in found) else None


def grain_ms(file_system: FileSystem, root: str, precision_ms: int) -> int:
    """Return the coarsest precision that a directory has had, including the present one."""
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
