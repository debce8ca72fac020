"""``tailrace/timer.json``: what the reference's timer files do not say (W21).

A hint: precision and length of the wheel for whoever reads the directory, and up to which slot time
timers may have been delivered although the wall clock says that it is earlier, because it was
stepped back. Without it they may be delivered twice, never lost.
"""

from __future__ import annotations

from typing import Final

import orjson

from tailrace.env.filesystem import FileSystem
from tailrace.env.whole_files import read_if_there, replace_file
from tailrace.formats.filenames import OWN

__all__ = ["read_suspicious_until_ms", "write_timer_hint"]

_NAME: Final = f"{OWN}/timer.json"


def read_suspicious_until_ms(file_system: FileSystem, root: str) -> int:
    """The slot time before which timers may have been delivered; 0 when nobody knows of any."""
    try:
        value = orjson.loads(read_if_there(file_system, f"{root}/{_NAME}", 4096) or b"")[
            "suspiciousUntilMs"]
    except (ValueError, KeyError, TypeError):
        return 0
    return value if isinstance(value, int) else 0


def write_timer_hint(
    file_system: FileSystem, root: str, precision_ms: int, slots_total: int, suspicious_until_ms: int
) -> None:
    """Write the hint; durable on return. Raises OSError."""
    file_system.makedirs(f"{root}/{OWN}")
    replace_file(file_system, f"{root}/{_NAME}", orjson.dumps({
        "precisionMs": precision_ms, "slotsTotal": slots_total,
        "suspiciousUntilMs": suspicious_until_ms,
    }))
