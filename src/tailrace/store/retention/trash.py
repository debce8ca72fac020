"""Deleted segment files: renamed out of their directory first, freed later and slowly.

Owns ``tailrace/trash/``. A directory of segments on another device has a ``.tailrace-trash/`` of its own,
because a rename cannot leave a device. Invariants:
  TR1  A file in the trash is in no list: its name was durably removed before its list changed.
  TR2  A file is cut in slices only if no reader holds it. A file that is read loses its name, not its
       bytes.
The trash is not needed to open a store: files that a crash leaves there are deleted by the next run.
"""

from __future__ import annotations

import errno
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final, final

from tailrace import events
from tailrace.env.clock import Clock
from tailrace.env.filesystem import FileSystem
from tailrace.env.shortage import DirectorySyncs
from tailrace.formats import filenames
from tailrace.logs import get_logger
from tailrace.segments import MappedFile

__all__ = ["Trash"]

_log = get_logger(__name__)
_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)
_RETRY_NS: Final = 10_000_000_000
_SECOND_NS: Final = 1_000_000_000


@dataclass(slots=True)
class _Entry:
    path: str
    size: int
    taken: int
    """Bytes that it occupies on the disk."""
    directory: str
    file: MappedFile | None
    retry_ns: int = 0


@final
class Trash:
    """Takes files and frees their bytes at ``rate`` bytes a second (0: without a limit).

    ``directories`` are those of the segments. One deleter calls ``take`` and ``add``, one service calls
    ``step``; any thread may call ``empty``.
    """

    def __init__(
        self, clock: Clock, file_system: FileSystem, root: str, directories: Sequence[str], rate: int
    ) -> None:
        self._clock = clock
        self._file_system = file_system
        self._removals = DirectorySyncs(file_system)
        self._shared = f"{root}/{filenames.TRASH}"
        self._directories = tuple(directories)
        self._rate = rate
        self._elsewhere: set[str] = set()
        self._entries: deque[_Entry] = deque()
        self._lock = threading.Lock()
        self._draining = threading.Lock()
        """Held by the one thread that frees bytes."""
        self._last_ns = clock.monotonic_ns()
        self._room = 0
        self.freed_bytes = 0
        self.failures = 0

    def load(self) -> None:
        """Add the files that an earlier run left."""
        places = [(self._shared, self._directories[0])]
        places += [(f"{d}/{filenames.SEGMENT_TRASH}", d) for d in self._directories]
        for place, directory in places:
            for name in self._file_system.list(place):
                path = f"{place}/{name}"
                stat = self._file_system.stat(path)
                self._entries.append(_Entry(path, stat.size, stat.allocated, directory, None))

    def bytes_of(self, directory: str) -> int:
        """Return the bytes that will soon be free on the device of a directory of segments.

        Files that could not be deleted are not counted.
        """
        with self._lock:
            return sum(
                e.taken for e in self._entries if e.directory == directory and not e.retry_ns)

    @property
    def draining_bytes(self) -> int:
        """Bytes that will soon be free, for all directories."""
        with self._lock:
            return sum(entry.taken for entry in self._entries if not entry.retry_ns)

    @property
    def total_bytes(self) -> int:
        """Bytes of all files in the trash."""
        with self._lock:
            return sum(entry.taken for entry in self._entries)

    # -- the deleter's side

    def take(self, file: MappedFile) -> None:
        """Rename a segment file out of its directory, durably.

        On a disk without room for the new name the file is removed instead. Raises OSError if the file
        is unchanged. Raises FatalStorageError if it is unknown whether the name is durably removed: then
        no later file may be deleted, because a power loss could leave a hole in the log.
        """
        directory, _, name = file.path.rpartition("/")
        self._removals.settle()
        try:
            self._rename(file, directory, name)
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            self._file_system.remove(file.path)
            file.close()  # it cannot be opened again, even if the removal is not durable
        self._removals.sync(directory)

    def _rename(self, file: MappedFile, directory: str, name: str) -> None:
        if directory not in self._elsewhere:
            try:
                self._file_system.makedirs(self._shared)
                file.move_to(self._free_name(self._shared, name))
                return
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                self._elsewhere.add(directory)
        place = f"{directory}/{filenames.SEGMENT_TRASH}"
        self._file_system.makedirs(place)
        file.move_to(self._free_name(place, name))

    def _free_name(self, place: str, name: str) -> str:
        """Return a path that is not in use, because two entries must not share a file."""
        while self._file_system.exists(f"{place}/{name}"):
            name += "+"
        return f"{place}/{name}"

    def add(self, file: MappedFile, directory: str) -> None:
        """Add a file that ``take`` renamed out of ``directory``. The file is in no list and closed."""
        try:
            taken = self._file_system.stat(file.path).allocated
        except FileNotFoundError:
            return  # there was no room for its name in the trash, so `take` has removed it
        except OSError:
            taken = file.size  # for now no more is known; the file must not stay because of that
        with self._lock:
            self._entries.append(_Entry(file.path, file.size, taken, directory, file))

    # -- the service

    def step(self) -> None:
        """Free as many bytes as the rate allows for the time since the last step."""
        with self._draining:
            now = self._clock.monotonic_ns()
            self._room = min(
                self._room + (now - self._last_ns) * self._rate // _SECOND_NS, self._rate)
            self._last_ns = now
            self._drain(now)

    def empty(self) -> None:
        """Free everything now, at any rate."""
        with self._draining:
            with self._lock:
                self._room = sum(entry.size for entry in self._entries)
            self._drain(self._clock.monotonic_ns())

    def _drain(self, now: int) -> None:
        with self._lock:
            entries = list(self._entries)
        for entry in entries:
            if now < entry.retry_ns:
                continue
            try:
                if not self._shrink(entry):
                    return
            except OSError as error:
                self.failures += 1
                entry.retry_ns = now + _RETRY_NS
                events.CANNOT_DELETE_A_FILE_IN_THE_TRASH.log(_log, file=entry.path, cause=error)
            else:
                with self._lock:
                    self._entries.remove(entry)

    def _shrink(self, entry: _Entry) -> bool:
        """Cut a file by the bytes that are allowed, or remove it. Return True if it is removed."""
        leased = entry.file is not None and entry.file.leased
        if leased or not self._rate or entry.size <= self._room:
            try:
                self._file_system.remove(entry.path)
            except FileNotFoundError:
                pass  # it is removed already
            self._room = max(self._room - entry.size, 0)
            self.freed_bytes += entry.taken
            if leased:
                events.A_DELETED_FILE_IS_STILL_READ.log(_log, file=entry.path)
            return True
        if self._room > 0:
            size = entry.size - self._room
            with closing(self._file_system.open(entry.path, writable=True)) as file:
                file.truncate(size)
            taken = min(entry.taken, size)
            self.freed_bytes += entry.taken - taken
            entry.size, entry.taken, self._room = size, taken, 0
        return False
