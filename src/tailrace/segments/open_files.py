"""A bound on open descriptors: thousands of queues share a few hundred."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from tailrace.segments.mapped_file import MappedFile

__all__ = ["OpenFiles"]


@final
class OpenFiles:
    """Closes the descriptor that was used longest ago when there are more than ``limit``.

    A file opens itself again when it is used. Its unsynced bytes are in the page cache, so closing
    loses nothing and a later sync covers them.
    """

    def __init__(self, limit: int = 512) -> None:
        self._limit = limit
        self._used: OrderedDict[MappedFile, None] = OrderedDict()
        self._lock = threading.Lock()

    def used(self, file: MappedFile) -> None:
        """Note a use of ``file``, whose descriptor is open."""
        with self._lock:
            self._used[file] = None
            self._used.move_to_end(file)
            idle = [self._used.popitem(last=False)[0]] if len(self._used) > self._limit else []
        for other in idle:
            other.close_descriptor()

    def forget(self, file: MappedFile) -> None:
        """Drop a file that is being closed."""
        with self._lock:
            self._used.pop(file, None)
