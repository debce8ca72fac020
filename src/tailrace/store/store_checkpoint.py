"""The checkpoint file: up to where log, queues and index are durable, in the form that Java brokers read.

Owns ``checkpoint``. Invariant: a field is set only after the sync that it stands for, so no field is after
the last synced position. The file is a hint: a damaged file is read as all zero.
"""

from __future__ import annotations

import threading
from typing import final

from tailrace.env.filesystem import FileSystem
from tailrace.env.whole_files import read_hint, write_file
from tailrace.formats.checkpoint import CHECKPOINT, CHECKPOINT_FILE_SIZE, Checkpoint

__all__ = ["StoreCheckpoint", "read_checkpoint"]


def read_checkpoint(file_system: FileSystem, path: str) -> Checkpoint:
    """Return the checkpoint of a directory, all zero if it is missing, too short or has a negative field."""
    nothing = Checkpoint(0, 0, 0, 0, 0, 0)
    data = read_hint(file_system, path, CHECKPOINT.size) or b""
    if len(data) < CHECKPOINT.size:
        return nothing
    found = CHECKPOINT.unpack_from(data)
    return found if min(found) >= 0 else nothing


@final
class StoreCheckpoint:
    """The six fields in memory, written as a whole."""

    def __init__(self, file_system: FileSystem, path: str) -> None:
        self._file_system = file_system
        self.path = self._path = path
        self._lock = threading.Lock()
        self._fields = read_checkpoint(file_system, path)
        self._written: Checkpoint | None = None

    @property
    def fields(self) -> Checkpoint:
        """A snapshot of the fields. Another thread may update them at any moment."""
        return self._fields

    def update(self, **fields: int) -> None:
        """Set fields by name. Call it after the sync that they stand for (FL3)."""
        with self._lock:
            self._fields = self._fields._replace(**fields)

    def flush(self, fields: Checkpoint) -> None:
        """Write and sync these fields if they are not the last ones written. Raises OSError.

        The caller passes a snapshot, because progress must name exactly the bytes that the file gets.
        """
        with self._lock:
            if fields == self._written:
                return
            write_file(
                self._file_system, self._path, CHECKPOINT.pack(*fields), CHECKPOINT_FILE_SIZE)
            self._written = fields
