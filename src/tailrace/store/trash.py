"""Files on their way out: renamed away from their directory first, given back to the disk later.

Owns ``tailrace/trash/``, and ``.tailrace-trash/`` inside a directory of segments that is on another
device, which a rename cannot leave. Invariants:
  TR1  A file here is in no list: its name was gone, durably, before its list changed.
  TR2  A file is cut in slices only when nobody reads it; a reader's file loses its name, not its
       bytes.
Nothing here is needed to open a store: what a crash leaves is deleted by the next run.
"""

from __future__ import annotations

import errno
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

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
    """Bytes of the disk that it really takes."""
    directory: str
    file: MappedFile | None
    retry_ns: int = 0


@final
class Trash:
    """Takes files and gives their bytes back at ``rate`` bytes a second (0: at once).

    ``directories`` are those of the segments; ``take`` and ``add`` are called by one deleter,
    ``step`` by the service that empties it, ``empty`` by anybody.
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
        """Held by the one thread that gives bytes back."""
        self._last_ns = clock.monotonic_ns()
        self._room = 0
        self.freed_bytes = 0
        self.failures = 0

    def load(self) -> None:
        """Find what an earlier run left."""
        places = [(self._shared, self._directories[0])]
        places += [(f"{d}/{filenames.SEGMENT_TRASH}", d) for d in self._directories]
        for place, directory in places:
            for name in self._file_system.list(place):
                path = f"{place}/{name}"
                stat = self._file_system.stat(path)
                self._entries.append(_Entry(path, stat.size, stat.allocated, directory, None))

    def bytes_of(self, directory: str) -> int:
        """Bytes on the device of a directory of segments that will be free soon.

        Files that could not be deleted are not among them.
        """
        with self._lock:
            return sum(
                e.taken for e in self._entries if e.directory == directory and not e.retry_ns)

    @property
    def draining_bytes(self) -> int:
        """The same for all directories."""
        with self._lock:
            return sum(entry.taken for entry in self._entries if not entry.retry_ns)

    @property
    def total_bytes(self) -> int:
        """Bytes of every file here."""
        with self._lock:
            return sum(entry.taken for entry in self._entries)

    # -- the deleter's side

    def take(self, file: MappedFile) -> None:
        """Rename a segment file away from its directory, durably.

        On a disk without room for the new name the file is removed on the spot. Raises OSError when
        the file stays as it is, FatalStorageError when nobody knows whether its name is durably
        gone: then no file behind it may go, or a power loss would leave a hole in the log.
        """
        directory, _, name = file.path.rpartition("/")
        self._removals.settle()
        try:
            self._rename(file, directory, name)
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            self._file_system.remove(file.path)
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
        """A path that no leftover has: two entries must not share a file."""
        while self._file_system.exists(f"{place}/{name}"):
            name += "+"
        return f"{place}/{name}"

    def add(self, file: MappedFile, directory: str) -> None:
        """Have a file that was taken from ``directory`` deleted; it is in no list and closed."""
        try:
            taken = self._file_system.stat(file.path).allocated
        except OSError:
            return  # there was no room for its name here: it is gone
        with self._lock:
            self._entries.append(_Entry(file.path, file.size, taken, directory, file))

    # -- the service

    def step(self) -> None:
        """Give back as many bytes as the time since the last step allows."""
        with self._draining:
            now = self._clock.monotonic_ns()
            self._room = min(
                self._room + (now - self._last_ns) * self._rate // _SECOND_NS, self._rate)
            self._last_ns = now
            self._drain(now)

    def empty(self) -> None:
        """Give back everything at once."""
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
                _log.warning("cannot delete a file in the trash file=%s cause=%s", entry.path, error)
            else:
                with self._lock:
                    self._entries.remove(entry)

    def _shrink(self, entry: _Entry) -> bool:
        """Cut a file by what is allowed, or remove it; True when it is gone."""
        leased = entry.file is not None and entry.file.leased
        if leased or not self._rate or entry.size <= self._room:
            try:
                self._file_system.remove(entry.path)
            except FileNotFoundError:
                pass  # somebody else was faster
            self._room = max(self._room - entry.size, 0)
            self.freed_bytes += entry.taken
            if leased:
                _log.warning("a deleted file is still read, its room comes back later file=%s",
                             entry.path)
            return True
        if self._room > 0:
            size = entry.size - self._room
            file = self._file_system.open(entry.path, writable=True)
            try:
                file.truncate(size)
            finally:
                file.close()
            taken = min(entry.taken, size)
            self.freed_bytes += entry.taken - taken
            entry.size, entry.taken, self._room = size, taken, 0
        return False
