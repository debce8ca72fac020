"""A file to which whole lines are appended, and which another program may rename or remove (log rotation)."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import final

__all__ = ["AppendFile"]


@final
class AppendFile:
    """An open file. A new one is readable by its owner only. Raises OSError if it is not a regular file."""

    def __init__(self, path: str) -> None:
        self._path = path
        # Without O_NONBLOCK the open of a named pipe would wait for a reader.
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            os.close(self._fd)
            raise OSError(None, "it is not a regular file", path)

    def is_current(self) -> bool:
        """Return whether the path still leads to this file."""
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._fd))
        except FileNotFoundError:
            return False

    def append(self, data: bytes) -> None:
        """Append bytes. Raises OSError; then nothing of them stays in the file, if the file can be cut."""
        size, done = os.fstat(self._fd).st_size, 0
        try:
            while done < len(data):
                done += os.write(self._fd, data[done:])
        except OSError:
            if done:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, size)
            raise

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)
