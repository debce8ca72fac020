"""Processor time of each thread of this process, which shows what limits it.

The kernel counts it (``/proc/self/task/N/stat``, fields 14 and 15 of proc(5)). A system without these files gives no
times.
"""

from __future__ import annotations

import os
import re
import threading
from collections import defaultdict
from pathlib import Path

__all__ = ["processor_seconds"]

_NUMBER = re.compile(r"[-_]\d+(?= |$)")
"""Of a thread in a pool, or of one without a name of its own."""


def processor_seconds() -> dict[str, float]:
    """Return seconds of user and system time of the threads that live, by name; those of a pool are one.

    Threads that C libraries started have no name in Python and count as ``other``.
    """
    names = {thread.native_id: _NUMBER.sub("", thread.name) for thread in threading.enumerate()}
    found: dict[str, float] = defaultdict(float)
    for task in _tasks():
        try:
            fields = (task / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        found[names.get(int(task.name), "other")] += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return dict(found)


def _tasks() -> list[Path]:
    try:
        return list(Path("/proc/self/task").iterdir())
    except FileNotFoundError:
        return []
