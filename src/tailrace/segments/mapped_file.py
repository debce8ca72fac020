"""One segment file of fixed size.

Owns one file. Invariants:
  M1  flushed_position <= wrote_position <= size.
  M2  wrote_position moves after the bytes below it are in place, so a reader that respects it
      never sees half a write.
  M3  No store through the mapping touches a block that was not allocated: a full disk is a
      DiskFullError of ``reserve``.
  M4  After a failed sync the file flushes no more (``FatalStorageError`` for good).
  M5  A descriptor is never closed under a call that uses it: its number may be another file by then.
Commit point: ``advance`` for readers, ``flush`` for durability.
Concurrency: one writer; any number of readers and one flusher beside it.
Durable on return: ``flush`` all bytes below the position it returns; nothing else.
"""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Iterable, Iterator
from typing import final

from tailrace.env.filesystem import File, FileSystem, Mapping
from tailrace.errors import DiskFullError, FatalStorageError, StoreClosedError
from tailrace.events import get_logger
from tailrace.segments.lease import Lease
from tailrace.segments.open_files import OpenFiles

__all__ = ["MappedFile"]

_log = get_logger(__name__)
_CHUNK = 1 << 20
_BLOCK = 4096
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _raise_if_full(path: str, error: OSError) -> None:
    if error.errno in _NO_SPACE:
        raise DiskFullError(path, str(error)) from error


@final
class MappedFile:
    """A file of ``size`` bytes that starts at ``file_from_offset`` of its stream.

    ``mapped`` files are written through ``buffer``, with disk blocks allocated ahead in steps of
    ``allocate_step`` bytes; the others with ``append``, and are sparse.
    """

    def __init__(
        self,
        file_system: FileSystem,
        path: str,
        file_from_offset: int,
        size: int,
        *,
        mapped: bool,
        allocate_step: int = 0,
        open_files: OpenFiles | None = None,
    ) -> None:
        self.path = path
        self.file_from_offset = file_from_offset
        self.size = size
        self.wrote_position = 0
        self.flushed_position = 0
        self.store_timestamp = 0
        self._mtime_ms = -1
        self._file_system = file_system
        self._mapped = mapped
        self._step = allocate_step or size
        self._reserved = 0
        self._open_files = open_files
        self._file: File | None = None
        self._mapping: Mapping | None = None
        self._failed: str = ""
        self._holds = 1
        self._available = True
        self._retired_ms = 0
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"<MappedFile {self.path} {self.flushed_position}/{self.wrote_position}/{self.size}>"

    # -- life

    @classmethod
    def create(
        cls,
        file_system: FileSystem,
        path: str,
        file_from_offset: int,
        size: int,
        *,
        mapped: bool,
        allocate_step: int = 0,
        open_files: OpenFiles | None = None,
    ) -> MappedFile:
        """Make the file at its full length; its name is durable on return.

        Raises DiskFullError when there is no room for it, and leaves nothing behind.
        """
        made = cls(
            file_system, path, file_from_offset, size, mapped=mapped, allocate_step=allocate_step,
            open_files=open_files,
        )
        try:
            with made._descriptor(create=True) as file:
                file.truncate(size)
                if mapped:
                    made.reserve(1)
                    file.sync_data()  # a name without its length would be a file of length zero
            file_system.sync_dir(path.rpartition("/")[0])
        except (OSError, DiskFullError) as error:
            made._discard()
            if isinstance(error, OSError):
                _raise_if_full(path, error)
            raise
        return made

    def _discard(self) -> None:
        self.close()
        try:
            self._file_system.remove(self.path)
        except OSError:
            pass  # the first error is the one to tell

    def _open(self, *, create: bool = False) -> File:
        file = self._file
        if file is None:
            with self._lock:
                file = self._file
                if file is None:
                    if not self._holds:
                        raise StoreClosedError(f"{self.path} is closed")
                    try:
                        file = self._file_system.open(self.path, writable=True, create=create)
                    except OSError as error:
                        if create or error.errno != errno.EROFS:
                            raise
                        file = self._file_system.open(self.path)  # an old part of the log
                    self._file = file
        if self._open_files is not None:
            self._open_files.used(self)
        return file

    @contextlib.contextmanager
    def _descriptor(self, *, create: bool = False) -> Iterator[File]:
        """The open file, which stays open meanwhile (M5)."""
        if not self.hold():
            raise StoreClosedError(f"{self.path} is closed")
        try:
            yield self._open(create=create)
        finally:
            self.release()

    def close_descriptor(self) -> None:
        """Give the descriptor back until the next use, unless somebody is at it (M5)."""
        with self._lock:
            if self._file is not None and not self.leased:
                self._file.close()
                self._file = None

    def close(self) -> None:
        """Unmap and close once the last lease has ended."""
        with self._lock:
            if not self._available:
                return
            self._available = False
        self.release()

    @property
    def available(self) -> bool:
        """Whether new readers are let in."""
        return self._available

    @property
    def leased(self) -> bool:
        """Whether somebody reads it right now."""
        return self._holds > self._available

    def retire(self, now_ms: int, forcibly_after_ms: int) -> bool:
        """Let no more readers in; whether the file may go (ReferenceResource.shutdown).

        It may once the last reader has left, or that long after the first call, by a clock that
        never steps back. Readers that still hold it then keep its bytes, but not its name.
        """
        with self._lock:
            first = self._available
            if first:
                self._retired_ms = now_ms
        self.close()
        return not self.leased or (not first and now_ms - self._retired_ms >= forcibly_after_ms)

    def move_to(self, path: str) -> None:
        """Rename the file, for those who read it, too; the caller syncs the directories."""
        with self._lock:
            self._file_system.rename(self.path, path)
            self.path = path

    def hold(self) -> bool:
        """Keep the file usable; False when it is already closed."""
        with self._lock:
            if not self._available:
                return False
            self._holds += 1
            return True

    def release(self) -> None:
        """End a ``hold``; the last one out unmaps and closes."""
        with self._lock:
            self._holds -= 1
            if self._holds:
                return
            if self._mapping is not None:
                self._mapping.close()
                self._mapping = None
            if self._open_files is not None:
                self._open_files.forget(self)
            self.close_descriptor()

    def destroy(self) -> None:
        """Close the file and remove its name; the caller syncs the directory."""
        self.close()
        self._file_system.remove(self.path)

    # -- writing

    @property
    def buffer(self) -> memoryview:
        """The mapped bytes, writable; store only below a position that was reserved."""
        mapping = self._mapping
        if mapping is None:
            with self._lock:
                mapping = self._mapping
                if mapping is None:
                    mapping = self._open().map(self.size, writable=True)
                    self._mapping = mapping
        return mapping.view

    def mtime_ms(self) -> int:
        """When the file was changed last, as the file system says; asked again after a write."""
        if self._mtime_ms < 0:
            self._mtime_ms = self._file_system.stat(self.path).mtime_ms
        return self._mtime_ms

    def touched(self) -> None:
        """Bytes were stored through ``buffer`` anywhere: nothing of the file counts as flushed."""
        self.flushed_position = 0
        self._mtime_ms = -1

    def is_full(self) -> bool:
        """Whether every byte was written."""
        return self.wrote_position == self.size

    def reserve(self, until: int) -> None:
        """Have disk blocks for every byte below ``until``; raises DiskFullError."""
        if until <= self._reserved:
            return
        until = min(self.size, -(-until // self._step) * self._step)
        try:
            with self._descriptor() as file:
                file.allocate(self._reserved, until - self._reserved)
        except OSError as error:
            _raise_if_full(self.path, error)
            raise
        self._reserved = until

    def give_back(self, start: int) -> None:
        """Give the blocks behind ``start`` back, which nobody will write any more.

        A file system that cannot keeps them.
        """
        start = -(-start // _BLOCK) * _BLOCK
        if start >= self.size or not self._available:
            return
        try:
            with self._descriptor() as file:
                file.punch_hole(start, self.size - start)
        except OSError as error:
            _log.info("blocks are kept file=%s cause=%s", self.path, error)

    def advance(self, n: int) -> None:
        """Publish ``n`` bytes that were stored through ``buffer``."""
        assert self.wrote_position + n <= self.size, "M1"
        self.wrote_position += n

    def append(self, data: bytes | bytearray | memoryview) -> int:
        """Write ``data`` behind the last byte; its position, or -1 when it does not fit."""
        at = self.wrote_position
        if at + len(data) > self.size:
            return -1
        self.write_at(data, at)
        self.wrote_position = at + len(data)
        return at

    def write_at(self, data: bytes | bytearray | memoryview, at: int) -> None:
        """Write without moving a position. Raises DiskFullError; bytes at ``at`` may then differ."""
        try:
            if self._mapped:
                self.reserve(at + len(data))
                self.buffer[at : at + len(data)] = data
            else:
                if not self.hold():  # as _descriptor does, which costs more than the rest here
                    raise StoreClosedError(f"{self.path} is closed")
                try:
                    self._open().pwrite(data, at)
                finally:
                    self.release()
        except OSError as error:
            _raise_if_full(self.path, error)
            raise
        self.flushed_position = min(self.flushed_position, at)
        self._mtime_ms = -1

    def write_long(self, data: bytes | bytearray | memoryview, at: int) -> None:
        """``write_at`` by a system call also into a mapped file: it takes many pages at a time.

        A store through a mapping that nobody has touched yet costs a fault a page.
        """
        self.reserve(at + len(data))
        try:
            with self._descriptor() as file:
                file.pwrite(data, at)
        except OSError as error:
            _raise_if_full(self.path, error)
            raise
        self.touched()

    def zero_tail(self, start: int) -> None:
        """Clear every byte from ``start`` on, so that nothing stale is ever read there again.

        Chunks that are zero already are left alone, which keeps a sparse file sparse.
        """
        for at, data in self.nonzero(start):
            self.write_at(bytes(len(data)), at)

    def nonzero(self, start: int) -> Iterator[tuple[int, bytes]]:
        """(position, bytes) of every chunk behind ``start`` that is not all zero, written or not.

        Holes are skipped without being read.
        """
        with self._descriptor() as file:
            ranges = file.data_ranges(start, self.size)
        for low, high in ranges:
            for at in range(low, high, _CHUNK):
                with self._descriptor() as file:
                    data = file.pread(min(_CHUNK, high - at), at)
                if data != bytes(len(data)):
                    yield at, data

    def data_end(self) -> int:
        """Position behind which the file system has nothing but a hole."""
        with self._descriptor() as file:
            ranges = file.data_ranges(0, self.size)
        return ranges[-1][1] if ranges else 0

    # -- reading

    def read(self, at: int, n: int) -> bytes:
        """Up to ``n`` bytes from ``at``, none of them behind ``wrote_position``."""
        n = min(n, self.wrote_position - at)
        if n <= 0 or at < 0:
            return b""
        if not self.hold():
            return b""
        try:
            if self._mapping is not None:
                return bytes(self._mapping.view[at : at + n])
            return self._open().pread(n, at)
        finally:
            self.release()

    def read_into(self, at: int, buffer: bytearray | memoryview) -> int:
        """Read as much as there is room for, not behind ``wrote_position``; how many bytes."""
        n = min(len(buffer), self.wrote_position - at)
        if n <= 0 or at < 0 or not self.hold():
            return 0
        try:
            if self._mapping is not None:
                buffer[:n] = self._mapping.view[at : at + n]
                return n
            return self._open().pread_into(memoryview(buffer)[:n], at)
        finally:
            self.release()

    def read_many(self, places: Iterable[tuple[int, int]]) -> list[bytes]:
        """The same for many (position, length); empty where nothing was written."""
        if not self.hold():
            return [b"" for _ in places]
        try:
            wrote, mapping = self.wrote_position, self._mapping
            if mapping is not None:
                view = mapping.view
                return [bytes(view[at : min(at + n, wrote)]) if at >= 0 else b"" for at, n in places]
            file = self._open()
            return [
                file.pread(min(n, wrote - at), at) if 0 <= at < wrote else b"" for at, n in places]
        finally:
            self.release()

    def select(self, at: int, n: int) -> Lease | None:
        """A lease of exactly ``n`` written bytes from ``at``, or None."""
        if at < 0 or n < 0 or at + n > self.wrote_position or not self.hold():
            return None
        if self._mapping is not None:
            return Lease(self, self._mapping.view[at : at + n])
        try:
            return Lease(self, memoryview(self._open().pread(n, at)))
        except OSError:
            self.release()
            raise

    # -- durability

    def flush(self) -> int:
        """Make every written byte durable; the position up to which they are.

        Raises FatalStorageError when the sync fails, and ever after.
        """
        if self._failed:
            raise FatalStorageError(self.path, self._failed)
        wrote = self.wrote_position
        if wrote == self.flushed_position:
            return wrote
        try:
            with self._descriptor() as file:
                file.sync_data()
        except OSError as error:
            self._failed = str(error)
            raise FatalStorageError(self.path, self._failed) from error
        self.flushed_position = wrote
        return wrote
