"""Create the next CommitLog file before it is needed (RocketMQ's AllocateMappedFileService)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import final

from tailrace import events
from tailrace.errors import DiskFullError
from tailrace.logs import get_logger
from tailrace.segments.mapped_file import MappedFile

__all__ = ["AllocateMappedFileService"]

_log = get_logger(__name__)


@final
class AllocateMappedFileService:
    """Creates a file when the writer needs it (``take``), and the file after it ahead of time (``step``).

    A file that was created ahead is a last file of zeros. Recovery removes it after a crash, ``discard`` at a
    clean close.
    """

    def __init__(self, make: Callable[[str, int], MappedFile], sync_dir: Callable[[str], None]) -> None:
        """``make`` creates the file of a path that starts at a position."""
        self._make = make
        self._sync_dir = sync_dir
        self._lock = threading.Lock()
        self._wanted: tuple[str, int] | None = None
        self._ready: MappedFile | None = None

    def take(self, path: str, start: int) -> MappedFile:
        """Return the file at ``path``, made now if it is not ready. Raises DiskFullError or OSError."""
        with self._lock:
            ready, self._ready, self._wanted = self._ready, None, None
            if ready is not None and ready.path == path:
                return ready
            if ready is not None:
                ready.destroy()  # with a sync, so that its name does not reappear beside the new one
                self._sync_dir(ready.path.rpartition("/")[0])
            return self._make(path, start)

    def prepare(self, path: str, start: int) -> None:
        """Note the file that the next ``step`` creates."""
        self._wanted = (path, start)

    def step(self) -> None:
        """Create the file that ``prepare`` noted. A full disk is only logged; ``take`` reports it."""
        with self._lock:
            if self._wanted is None or self._ready is not None:
                return
            path, start = self._wanted
            try:
                self._ready = self._make(path, start)
                _ = self._ready.buffer
            except (DiskFullError, OSError) as error:
                events.CANNOT_MAKE_THE_NEXT_SEGMENT_FILE_AHEAD.log(_log, file=path, cause=error)
            self._wanted = None

    def discard(self) -> None:
        """Remove a file that was created ahead and not used."""
        with self._lock:
            ready, self._ready, self._wanted = self._ready, None, None
            if ready is not None:
                ready.destroy()
