"""``config/timercheck``: the progress of the timer services, in the form of a Java broker.

Owns ``config/timercheck``. Invariant: no field claims more than is durable when it is written. The file is a
hint: if it is missing, short or impossible, recovery rebuilds the timers.
"""

from __future__ import annotations

from typing import final

from tailrace.env.filesystem import FileSystem
from tailrace.env.whole_files import read_hint, write_file
from tailrace.formats.timercheckpoint import (
    TIMER_CHECKPOINT,
    TIMER_CHECKPOINT_FILE_SIZE,
    TimerCheckpointFields,
)

__all__ = ["TimerCheckpoint", "read_timer_checkpoint"]


def read_timer_checkpoint(file_system: FileSystem, path: str) -> TimerCheckpointFields | None:
    """Return the timer checkpoint of a directory, or None if it is missing or invalid."""
    data = read_hint(file_system, path, TIMER_CHECKPOINT.size) or b""
    if len(data) < TIMER_CHECKPOINT.size:
        return None
    found = TIMER_CHECKPOINT.unpack_from(data)
    return found if min(found) >= 0 else None


@final
class TimerCheckpoint:
    """The fields on disk, written as a whole."""

    def __init__(self, file_system: FileSystem, path: str) -> None:
        self._file_system = file_system
        self._path = path
        self.fields = read_timer_checkpoint(file_system, path)

    def remove(self) -> None:
        """Remove the file durably, so that timers are rebuilt even if the rebuild that follows crashes."""
        if self._file_system.exists(self._path):
            self._file_system.remove(self._path)
            self._file_system.sync_dir(self._path.rpartition("/")[0])
        self.fields = None

    def write(self, fields: TimerCheckpointFields) -> None:
        """Write and sync if a field has changed. Raises OSError."""
        if fields == self.fields:
            return
        made = self.fields is None  # or its name is one that an earlier attempt left
        directory = self._path.rpartition("/")[0]
        if made:
            self._file_system.makedirs(directory)
        write_file(
            self._file_system, self._path, TIMER_CHECKPOINT.pack(*fields), TIMER_CHECKPOINT_FILE_SIZE)
        if made:
            self._file_system.sync_dir(directory)
        self.fields = fields
