"""Compute the disk usage of a store directory by kind of file."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.config import StoreConfig
from tailrace.env.filesystem import FileSystem
from tailrace.formats import filenames
from tailrace.store.log_paths import log_paths

__all__ = ["Usage", "disk_usage"]

_KINDS = {
    filenames.COMMITLOG: "commitlog", filenames.CONSUMEQUEUE: "consumequeue",
    filenames.INDEX: "index", filenames.COMPACTION: "compaction", filenames.CONFIG: "config", "timerwheel": "timer",
    "timerlog": "timer",
}


@dataclass(slots=True)
class Usage:
    """Files of one kind: lengths and disk blocks, in bytes."""

    kind: str
    files: int = 0
    apparent_bytes: int = 0
    allocated_bytes: int = 0


def disk_usage(file_system: FileSystem, root: str, config: StoreConfig) -> list[Usage]:
    """Return the usage by kind, largest first. Quarantine and trash are separate kinds."""
    found: dict[str, Usage] = {}
    for path in log_paths(config, root).all:
        if not path.startswith(f"{root}/"):
            _walk(file_system, path, filenames.COMMITLOG, found)
    _walk(file_system, root, "", found)
    return sorted(found.values(), key=lambda usage: -usage.allocated_bytes)


def _walk(file_system: FileSystem, root: str, kind_of_all: str, found: dict[str, Usage]) -> None:
    pending = [(name, name) for name in file_system.list(root)]
    while pending:
        relative, top = pending.pop()
        stat = file_system.stat(f"{root}/{relative}")
        if stat.is_dir:
            pending += [(f"{relative}/{name}", top) for name in file_system.list(f"{root}/{relative}")]
            continue
        kind = kind_of_all or _KINDS.get(top, "other")
        if relative.startswith(filenames.QUARANTINE):
            kind = "quarantine"
        elif relative.startswith(filenames.TRASH) or (
            f"/{filenames.SEGMENT_TRASH}/" in f"/{relative}"
        ):
            kind = "trash"
        elif top == filenames.OWN:
            kind = "hints"
        usage = found.setdefault(kind, Usage(kind))
        usage.files += 1
        usage.apparent_bytes += stat.size
        usage.allocated_bytes += stat.allocated
