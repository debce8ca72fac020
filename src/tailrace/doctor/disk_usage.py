"""Bytes of a store directory by kind of file."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.env.filesystem import FileSystem
from tailrace.formats import filenames

__all__ = ["Usage", "disk_usage"]

_KINDS = {
    filenames.COMMITLOG: "commitlog", filenames.CONSUMEQUEUE: "consumequeue",
    filenames.INDEX: "index", filenames.CONFIG: "config", "timerwheel": "timer",
    "timerlog": "timer",
}


@dataclass(slots=True)
class Usage:
    """Files of one kind: lengths and disk blocks, in bytes."""

    kind: str
    files: int = 0
    apparent_bytes: int = 0
    allocated_bytes: int = 0


def disk_usage(file_system: FileSystem, root: str) -> list[Usage]:
    """Usage by kind, largest first; quarantine and trash are kinds of their own."""
    found: dict[str, Usage] = {}
    pending = [(name, name) for name in file_system.list(root)]
    while pending:
        relative, top = pending.pop()
        stat = file_system.stat(f"{root}/{relative}")
        if stat.is_dir:
            pending += [(f"{relative}/{name}", top) for name in file_system.list(f"{root}/{relative}")]
            continue
        kind = _KINDS.get(top, "other")
        if relative.startswith(filenames.QUARANTINE):
            kind = "quarantine"
        elif relative.startswith(filenames.TRASH) or f"/{filenames.SEGMENT_TRASH}/" in relative:
            kind = "trash"
        elif top == filenames.OWN:
            kind = "hints"
        usage = found.setdefault(kind, Usage(kind))
        usage.files += 1
        usage.apparent_bytes += stat.size
        usage.allocated_bytes += stat.allocated
    return sorted(found.values(), key=lambda usage: -usage.allocated_bytes)
