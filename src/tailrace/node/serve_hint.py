"""The hint of a running ``tailrace serve`` in its directory: its process and its addresses."""

from __future__ import annotations

import json
from typing import Any, Final

from tailrace.env.filesystem import FileSystem, OsFileSystem
from tailrace.env.whole_files import read_hint
from tailrace.formats.filenames import SERVE

__all__ = ["serve_hint"]

SERVE_HINT_MAX: Final = 4096


def serve_hint(store: str, file_system: FileSystem | None = None) -> dict[str, Any]:
    """Return the hint that a running ``tailrace serve`` left in its directory; empty without one."""
    try:
        hint = json.loads(read_hint(file_system or OsFileSystem(), f"{store}/{SERVE}", SERVE_HINT_MAX) or b"{}")
    except (OSError, ValueError):
        return {}
    return hint if isinstance(hint, dict) else {}
