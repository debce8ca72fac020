"""The file of ``serve --audit-log``: JSON lines, appended by a thread.

A line is written as soon as the thread gets to it, usually within a millisecond. If the file was renamed or removed,
the next line goes to a new file. If a line cannot be written, for example because the disk is full, the broker
continues: at most `WAITING_MAX` lines are kept in memory, and the write is repeated each second. If more come, the
oldest ones are lost, counted and reported. A stop writes the lines that wait.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol, final

from tailrace import events
from tailrace.env.append_file import AppendFile
from tailrace.errors import ConfigError
from tailrace.formats import fastjson
from tailrace.logs import get_logger

__all__ = ["AuditLog", "Lines"]

_log = get_logger(__name__)

WAITING_MAX: Final = 10_000
LINE_MAX: Final = 16 << 10
"""Bytes of a line; the details of a longer one are left out."""


class Lines(Protocol):
    """An open file of lines."""

    def is_current(self) -> bool:
        """Return whether its path still leads to the file."""
        ...

    def append(self, data: bytes) -> None:
        """Append bytes, or raise OSError."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


@final
class AuditLog:
    """Appends lines to a file. Any thread may call. Raises ConfigError if the file cannot be opened."""

    def __init__(self, path: str, open_file: Callable[[str], Lines] = AppendFile) -> None:
        self.path = path
        self._open = open_file
        self._waiting: deque[bytes] = deque()
        self._lock = threading.Lock()
        self._scheduled = self._closed = False
        self._failing = ""
        self.lost = 0
        """Number of lines that were dropped because too many waited."""
        try:
            self._file: Lines | None = open_file(path)
        except OSError as error:
            raise ConfigError(f"auditLog={path} cannot be opened: {error.strerror or error}") from None
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="AuditLog")

    @staticmethod
    def check(path: str) -> None:
        """Raise ConfigError if the file cannot be opened; a missing one is created."""
        AuditLog(path).close()

    @property
    def waiting(self) -> int:
        """Number of lines that are not written yet."""
        return len(self._waiting)

    def write(self, line: Mapping[str, Any]) -> None:
        """Append a line soon."""
        data = fastjson.dumps(line)
        if len(data) > LINE_MAX:
            data = fastjson.dumps({**line, "details": "left out, because they are too long"})[:LINE_MAX]
        with self._lock:
            if len(self._waiting) >= WAITING_MAX:
                self._waiting.popleft()
                self.lost += 1
            self._waiting.append(data + b"\n")
        self.flush()

    def flush(self) -> None:
        """Have the lines written that wait; called each second, so that a failed write is tried again."""
        with self._lock:
            if self._scheduled or self._closed or not self._waiting:
                return
            self._scheduled = True
        self._executor.submit(self._write)

    def close(self) -> None:
        """Write the lines that wait, and close the file."""
        with self._lock:
            self._closed = True
        self._executor.shutdown()
        self._write()
        if self._file is not None:
            self._file.close()
        if self._waiting:
            events.AUDIT_LINES_LOST.log(_log, file=self.path, lines=len(self._waiting))

    def _write(self) -> None:
        with self._lock:
            self._scheduled = False
        try:
            while self._waiting:
                lines = list(self._waiting)
                self._current().append(b"".join(lines))
                with self._lock:  # others may have been dropped from the left in the meantime
                    while lines and self._waiting:
                        if self._waiting[0] is lines[0]:
                            self._waiting.popleft()
                        lines.pop(0)
        except OSError as error:
            if not self._failing:
                events.AUDIT_LOG_CANNOT_BE_WRITTEN.log(_log, file=self.path, cause=error, lost=self.lost)
            self._failing = str(error)
            return
        if self._failing:
            self._failing = ""
            events.AUDIT_LOG_IS_WRITTEN_AGAIN.log(_log, file=self.path, lost=self.lost)

    def _current(self) -> Lines:
        if self._file is not None and not self._file.is_current():
            self._file.close()
            self._file = None
        if self._file is None:
            self._file = self._open(self.path)
        return self._file
