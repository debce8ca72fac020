"""Damaged messages of compaction logs: each is named once and counted, and its bytes are kept before they are dropped.

A read skips a damaged message (W14). A compaction leaves it out after its bytes are in quarantine. No other message
is dropped because of it, because the key of a damaged message cannot be trusted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, final

from tailrace import events
from tailrace.logs import get_logger
from tailrace.segments import MappedFile
from tailrace.store.recovery.quarantine import COMPACTION

__all__ = ["DamagedMessages", "Keep"]

_log = get_logger(__name__)
_MOST_LOGGED: Final = 1000
Keep = Callable[[str, int, int, bytes, str], object]
"""Copies (file, position in it, position in the log, bytes, reason) to quarantine, durably. Raises OSError."""


@final
class DamagedMessages:
    """The damaged messages of all compaction logs of a store. Any thread may call."""

    def __init__(self, keep: Keep) -> None:
        self._keep = keep
        self._lock = threading.Lock()
        self._named: set[tuple[str, int, int]] = set()
        self.count = 0
        """Number of damaged messages that were found."""

    def name(self, file: MappedFile, phy_offset: int, queue_offset: int) -> None:
        """Log and count a damaged message, once. ``queue_offset`` is -1 if it is not known."""
        place = _directory(file.path), queue_offset, phy_offset if queue_offset < 0 else -1
        with self._lock:
            if place in self._named:
                return
            self._named.add(place)
            self.count += 1
        if self.count <= _MOST_LOGGED:
            events.A_MESSAGE_OF_A_COMPACTION_LOG_IS_DAMAGED.log(
                _log, file=file.path, phy_offset=phy_offset, queue_offset=queue_offset)

    def keep(self, file: MappedFile, phy_offset: int, until: int) -> None:
        """Copy the bytes of these positions to quarantine. Raises OSError."""
        at = phy_offset - file.file_from_offset
        self._keep(file.path, at, phy_offset, file.read(at, until - phy_offset), COMPACTION)

    def forget(self, directory: str) -> None:
        """Forget the messages of a deleted queue, so that those of a new queue of this name are logged."""
        with self._lock:
            self._named = {place for place in self._named if place[0] != directory}


def _directory(path: str) -> str:
    return path.rpartition("/")[0]
