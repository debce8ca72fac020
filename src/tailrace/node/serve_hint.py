"""Which process has a store directory open, from the lock and from the hint that ``tailrace serve`` leaves."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tailrace.env.filesystem import FileSystem, OsFileSystem
from tailrace.env.processes import name_of
from tailrace.errors import CorruptionError, StoreLockedError
from tailrace.formats import filenames

if TYPE_CHECKING:
    from tailrace.env.state_file import StateFile

__all__ = ["locked_error", "serve_file", "serve_hint"]


def serve_hint(store: str, file_system: FileSystem | None = None) -> dict[str, Any]:
    """Return the hint that a running ``tailrace serve`` left in its directory; empty without one."""
    try:
        return serve_file(store, file_system or OsFileSystem()).read() or {}
    except (OSError, CorruptionError):
        return {}


def serve_file(store: str, file_system: FileSystem) -> StateFile[dict[str, Any]]:
    """Return the file of the hint."""
    from tailrace.env.state_file import StateFile  # noqa: PLC0415 - msgspec, which most commands do not need

    return StateFile(file_system, f"{store}/{filenames.SERVE}", dict[str, Any])


def locked_error(file_system: FileSystem, root: str) -> StoreLockedError:
    """Return the error for a directory that another store object has open, with its process and its address."""
    pid = file_system.lock_holder(f"{root}/{filenames.LOCK}") or 0
    if pid == os.getpid():
        return StoreLockedError(root, "another store object of this process", pid)
    hint = serve_hint(root, file_system)
    if isinstance(hint.get("pid"), int) and "broker" in hint:
        return StoreLockedError(root, "another process", hint["pid"], str(hint["broker"]))
    name = name_of(pid) if pid else ""
    return StoreLockedError(root, f"process {pid}" + (f" ({name})" if name else "") if pid else "another process", pid)
