"""Segment files as one stream of bytes.

Owns the files of one or more directories. Invariants:
  Q1  Every file has exactly ``file_size`` bytes, and its name is the position of its first byte.
  Q2  The list ``files`` is an immutable tuple that is replaced as a whole, so readers need no lock.
  Q3  ``flushed_where`` covers a file only if all earlier files are covered.
  Q4  A new file goes to the writable directories in turn. A directory that is too full is used only if all are.
Commit point of a new file: its name is durable before its first byte is written.
Concurrency: one writer (``last_file``, ``truncate_dirty_files``), one deleter (``drop_head``), one
flusher, any readers.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import final

from tailrace import events
from tailrace.env.filesystem import FileSystem
from tailrace.env.shortage import DirectorySyncs
from tailrace.errors import CorruptionError, DiskFullError, OddFileError
from tailrace.formats.filenames import file_name_to_offset, offset_to_file_name
from tailrace.logs import get_logger
from tailrace.segments.allocate_service import AllocateMappedFileService
from tailrace.segments.mapped_file import MappedFile
from tailrace.segments.open_files import OpenFiles

__all__ = ["MappedFileQueue"]

_log = get_logger(__name__)
PAGE_SIZE = 4096


@final
class MappedFileQueue:
    """The files of a CommitLog or of one ConsumeQueue, oldest first."""

    def __init__(
        self,
        file_system: FileSystem,
        directory: str | Sequence[str],
        file_size: int,
        *,
        mapped: bool,
        allocate_step: int = 0,
        open_files: OpenFiles | None = None,
        read_only: tuple[str, ...] = (),
        full_directories: Callable[[], Collection[str]] = tuple,
        ahead: bool = False,
        files: Iterable[MappedFile] = (),
    ) -> None:
        """``ahead``: ``prepare_ahead`` creates the next file before it is needed.

        No file is created in the directories ``read_only``. ``full_directories`` returns those that are too full for
        new files (Q4), if there are several.
        """
        self.directories = (directory,) if isinstance(directory, str) else tuple(directory)
        self._full_directories = full_directories
        self._writable = sorted(set(self.directories).difference(read_only))
        self.file_size = file_size
        self.files = tuple(files)
        self.flushed_where = 0
        self.foreign = 0
        """Number of files that ``load`` found and that are not segment files."""
        self._file_system = file_system
        self._removals = DirectorySyncs(file_system)
        self._mapped = mapped
        self._step = allocate_step
        self._open_files = open_files
        self._allocate_service = AllocateMappedFileService(self._make, file_system.sync_dir) if ahead else None
        self._list_lock = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        """A queue of foreign files goes to other processes as its list, see ``MappedFile.__reduce__``."""
        return partial(MappedFileQueue, mapped=False, files=self.files), (
            self._file_system, self.directories, self.file_size)

    # -- life

    def load(self) -> None:
        """Load the list of files from the directories. All of them count as written and flushed.

        Empty files at the end are removed, because they were never used. Sub-directories and files of other
        names are left alone; each such file is logged and counts in ``foreign``.
        Raises CorruptionError for a file of an impossible name or length, and changes nothing then.
        """
        entries = sorted(
            (name, directory) for directory in self.directories for name in self._file_system.list(directory))
        found: list[tuple[int, str, int]] = []
        self.foreign = 0
        for name, directory in entries:
            path = f"{directory}/{name}"
            size, offset = self._size(name, path), file_name_to_offset(name)
            if size is not None and offset is None:
                events.NOT_A_SEGMENT_FILE.log(_log, file=path)
                self.foreign += 1
            elif size is not None and offset is not None:
                if offset % self.file_size:
                    raise CorruptionError("not the name of a segment file", path=path)
                found.append((offset, path, size))
        empty = []
        while found and not found[-1][2]:
            empty.append(found.pop()[1])
        for _, path, size in found:
            if size != self.file_size:
                raise CorruptionError(
                    "segment file of a wrong length", path=path, expected=self.file_size, actual=size)
        for (offset, path, _), (following, other, _) in itertools.pairwise(found):
            if offset == following:
                raise CorruptionError(f"the same segment file is also {other}", path=path)
        for path in reversed(empty):
            events.REMOVE_EMPTY_SEGMENT_FILE.log(_log, file=path)
            self._file_system.remove(path)
        files = []
        for offset, path, _ in found:
            file = MappedFile(
                self._file_system, path, offset, self.file_size, mapped=self._mapped,
                allocate_step=self._step, open_files=self._open_files)
            file.loaded_at(self.file_size)
            files.append(file)
        self.files = tuple(files)
        self.flushed_where = self.max_offset

    def _size(self, name: str, path: str) -> int | None:
        """Return the length of a file, None for a sub-directory. Raises OddFileError for an odd segment file."""
        try:
            stat = self._file_system.stat(path)
        except OddFileError:
            if file_name_to_offset(name) is not None:
                raise
            return 0  # not a segment file, so it is ignored
        if not stat.is_dir:
            return stat.size
        if file_name_to_offset(name) is not None:
            raise OddFileError(path, "is a directory, not a regular file")
        return None

    def close(self) -> None:
        """Close every file."""
        for file in self.files:
            file.close()

    # -- positions

    @property
    def min_offset(self) -> int:
        """Position of the first byte, -1 without a file."""
        files = self.files
        return files[0].file_from_offset if files else -1

    @property
    def max_offset(self) -> int:
        """Position after the last written byte, 0 without a file."""
        files = self.files
        return files[-1].file_from_offset + files[-1].wrote_position if files else 0

    def find(self, offset: int) -> MappedFile | None:
        """Return the file that has position ``offset``, or None."""
        files = self.files
        if not files:
            return None
        place = (offset - files[0].file_from_offset) // self.file_size
        if 0 <= place < len(files):
            file = files[place]
            if 0 <= offset - file.file_from_offset < self.file_size:
                return file
        for file in files:  # files are missing in between
            if file.file_from_offset <= offset < file.file_from_offset + self.file_size:
                return file
        return None

    def read(self, offset: int, n: int) -> bytes:
        """Return up to ``n`` written bytes from ``offset``, all from one file; empty if they are deleted."""
        file = self.find(offset)
        return file.read(offset - file.file_from_offset, n) if file is not None else b""

    def read_cached(self, offset: int, n: int) -> bytes | None:
        """``read`` of a file that is not mapped, without waiting for the disk; None if it would wait."""
        file = self.find(offset)
        return file.read_cached(offset - file.file_from_offset, n) if file is not None else b""

    def hold_around(
        self, offset: int, n: int, *, mapped: bool = True
    ) -> tuple[MappedFile | None, memoryview | bytes, int, int]:
        """Return (file, bytes, position of the first of them, number of written ones) that include ``offset``.

        The bytes are the mapping of the whole file, which the caller must release. If the file cannot be mapped, and
        with ``mapped`` false, they are a copy of up to ``n`` bytes from ``offset`` and the file is None. Without
        the file there are no bytes.
        """
        file = self.find(offset)
        if file is None:
            return None, b"", offset, 0
        start = file.file_from_offset
        if mapped and offset - start < (wrote := file.wrote_position):
            view = file.hold_view()
            if view is not None:
                return file, view, start, wrote
        data = file.read(offset - start, n, apart=True)
        return None, data, offset, len(data)

    # -- writing

    def last_file(self, create_at: int | None = None) -> MappedFile | None:
        """Return the file to write to.

        If the last file is full, a new one is made after it. If there is no file, the first one is made
        at ``create_at``, a stream position that is rounded down to a whole file; without ``create_at``
        the result is None. Raises DiskFullError or OSError.
        """
        files = self.files
        if files and not files[-1].is_full():
            return files[-1]
        if files:
            start = files[-1].file_from_offset + self.file_size
        elif create_at is None:
            return None
        else:
            start = create_at - create_at % self.file_size
        made = self._create(start)
        with self._list_lock:  # the oldest file may have been deleted since `files` was read
            self.files = (*self.files, made)
        return made

    def write(self, at: int, data: bytes | memoryview) -> None:
        """Write ``data`` at position ``at``, into as many files as needed, which are made after the last one."""
        while data:
            file = self.find(at)
            if file is None:
                file = self.last_file(at)
                assert file is not None
                assert file.file_from_offset == at - at % self.file_size, "C1"
            begin = at % self.file_size
            part, data = data[: self.file_size - begin], data[self.file_size - begin :]
            file.write_at(part, begin)
            file.end_at(max(file.wrote_position, begin + len(part)))
            self.flushed_where = min(self.flushed_where, at)
            at += len(part)

    def append_to_last(self, at: int, data: memoryview) -> bool:
        """Do what `write` does if all of ``data`` belongs into the last file; else return False."""
        files = self.files
        if not files:
            return False
        file = files[-1]
        begin = at - file.file_from_offset
        if begin < 0 or begin + len(data) > self.file_size:
            return False
        file.write_at(data, begin)
        if begin + len(data) > file.wrote_position:
            file.end_at(begin + len(data))
        self.flushed_where = min(self.flushed_where, at)
        return True

    def drop_head(self, file: MappedFile) -> None:
        """Remove the oldest file from the list; its name is removed already. The last file stays."""
        with self._list_lock:
            assert len(self.files) > 1, "the last file stays"
            assert self.files[0] is file, "only the oldest file is removed"
            self.files = self.files[1:]

    def delete_head(self, file: MappedFile) -> None:
        """Delete the oldest file, durably; the list changes only after success.

        Raises OSError; FatalStorageError when a sync fails.
        """
        self._removals.settle()  # earlier removals must be durable before this one
        file.flush()  # a flusher that still has the old list must find nothing to flush
        self._file_system.remove(file.path)
        self._removals.sync(file.path.rpartition("/")[0])
        self.drop_head(file)
        file.close()

    def _create(self, start: int) -> MappedFile:
        paths = self._paths_of(start)
        for path in paths:
            try:
                return self._create_at(path, start)
            except DiskFullError as error:
                if path is paths[-1]:
                    raise
                events.A_FILE_IS_MADE_IN_ANOTHER_DIRECTORY.log(_log, cause=error)
        raise AssertionError("there is at least one directory")

    def _create_at(self, path: str, start: int) -> MappedFile:
        if self._allocate_service is None:
            return self._make(path, start)
        made = self._allocate_service.take(path, start)
        self._allocate_service.prepare(self.path_of(start + self.file_size), start + self.file_size)
        return made

    def _make(self, path: str, start: int) -> MappedFile:
        self._file_system.makedirs(path.rpartition("/")[0])
        return MappedFile.create(
            self._file_system, path, start, self.file_size, mapped=self._mapped,
            allocate_step=self._step, open_files=self._open_files, derived=not self._mapped)

    def prepare_ahead(self) -> None:
        """Create the file after the last one, once. A full disk is only logged."""
        if self._allocate_service is not None:
            self._allocate_service.step()

    def discard_ahead(self) -> None:
        """Remove a file that was created ahead and not used."""
        if self._allocate_service is not None:
            self._allocate_service.discard()

    def path_of(self, start: int) -> str:
        """Return the path at which the file that starts at ``start`` is made."""
        return self._paths_of(start)[0]

    def _paths_of(self, start: int) -> list[str]:
        """Return the paths at which the file may be made, best first."""
        name = offset_to_file_name(start)
        if len(self.directories) == 1:
            return [f"{self.directories[0]}/{name}"]
        full = self._full_directories()
        usable = [directory for directory in self._writable if directory not in full] or self._writable
        turn = start // self.file_size % len(usable)
        return [f"{directory}/{name}" for directory in usable[turn:] + usable[:turn]]

    def set_end(self, offset: int) -> None:
        """End the stream at ``offset`` for readers and writers. The files are not changed."""
        for file in self.files:
            file.end_at(min(max(offset - file.file_from_offset, 0), self.file_size))
        self.files = tuple(f for f in self.files if f.wrote_position or f is self.files[0])
        self.flushed_where = min(self.flushed_where, offset)

    def truncate_dirty_files(self, offset: int, *, clear: bool = True) -> None:
        """End the stream at ``offset``: set the positions and remove later files, durably.

        The bytes after ``offset`` in its file are cleared, so that a later scan cannot take them for
        records again. Pass ``clear=False`` if they are known to be zero.
        """
        files = list(self.files)
        self._remove_after(files, offset)
        for file in files:
            at = offset - file.file_from_offset
            if at >= self.file_size:
                continue
            if clear:
                file.zero_tail(at)
            file.end_at(at)
            file.doubt()
            self.flushed_where = min(self.flushed_where, file.file_from_offset)
        self.files = tuple(files)
        self.flushed_where = min(self.flushed_where, offset)

    def _remove_after(self, files: list[MappedFile], offset: int) -> None:
        """Remove the files after ``offset``, the last one first, so that those that are left have no gap.

        After a power loss, records of a file that is there again would be part of the stream.
        """
        changed = set()
        while files and (at := offset - files[-1].file_from_offset) <= 0 and (at < 0 or len(files) > 1):
            file = files.pop()
            events.REMOVE_SEGMENT_FILE_AFTER_THE_END.log(_log, file=file.path)
            file.destroy()
            changed.add(file.path.rpartition("/")[0])
        for directory in sorted(changed):
            self._file_system.sync_dir(directory)

    def remove_all(self) -> None:
        """Remove every segment file, also files that ``load`` did not load."""
        for file in self.files:
            file.close()
        self.files = ()
        self.flushed_where = 0
        for directory in self.directories:
            for name in self._file_system.list(directory):
                path = f"{directory}/{name}"
                if file_name_to_offset(name) is not None and not self._file_system.stat(path).is_dir:
                    self._file_system.remove(path)

    def destroy(self) -> None:
        """Remove every file, and the directories. A directory stays if it has files that are not segment files."""
        for file in self.files:
            file.destroy()
        self.files = ()
        for directory in self.directories:
            names = self._file_system.list(directory)
            if not names or any(file_name_to_offset(name) is not None for name in names):
                self._file_system.rmdir(directory)
                continue
            for name in names:
                events.NOT_A_SEGMENT_FILE.log(_log, file=f"{directory}/{name}")

    # -- durability

    def doubt(self, last: int) -> None:
        """Count the last files, this many, as not flushed, because a killed process may have left them so."""
        for file in self.files[-last:] if last else ():
            file.doubt()
            self.flushed_where = min(self.flushed_where, file.file_from_offset)

    def flushed_but(self, files: Iterable[MappedFile]) -> None:
        """Count every byte as flushed, except from the first of ``files`` that has unsynced bytes."""
        self.flushed_where = min((file.file_from_offset for file in files if file.unsynced), default=self.max_offset)

    def dirty_bytes(self) -> int:
        """Return the number of bytes that are written and not yet flushed."""
        return self.max_offset - self.flushed_where

    def flush(self, least_pages: int = 0) -> bool:
        """Make written bytes durable, oldest file first, if at least ``least_pages`` pages of 4 KiB are dirty.

        Return True if bytes were flushed. Raises FatalStorageError.
        """
        dirty = self.dirty_bytes()
        if dirty <= 0 or dirty < least_pages * PAGE_SIZE:
            return False
        for file in self.files:
            if file.file_from_offset + self.file_size <= self.flushed_where:
                continue
            position = file.file_from_offset + file.flush()
            self.flushed_where = max(self.flushed_where, position)
            if position < file.file_from_offset + self.file_size:
                break
        return True
