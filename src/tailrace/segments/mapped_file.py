"""One segment file of fixed size.

Owns one file. Invariants:
  M1  flushed_position <= wrote_position <= size.
  M2  wrote_position moves after the bytes below it are in place, so a reader that respects it
      never sees half a write.
  M3  A store through the mapping touches allocated blocks only, so a full disk is a DiskFullError of
      ``reserve`` and not a signal.
  M4  A file whose sync failed is never flushed again: every later ``flush`` raises FatalStorageError.
  M5  A descriptor is not closed while a call uses it, because its number may be reused for another file.
  M6  With ``open_files`` an idle file closes its descriptor and mapping and opens them again on demand, but
      not while it has unsynced bytes: a failed write may be reported to the old descriptor only.
  M7  Bytes that are not known to be in memory are read with a system call, because a load from a mapping ends the
      process if the disk cannot read them. A caller that takes the mapping itself (``hold_view``, ``buffer``,
      ``select`` with ``mapped``) answers for that.
Commit point: ``advance`` for readers, ``flush`` for durability. Other rooms move positions with these and with
``loaded_at``, ``end_at`` and ``doubt`` only. The wrote position is in `FileEnd`, where compiled code has its verbs.
Concurrency: one writer; beside it any number of readers, one flusher, and one service for ``reserve_ahead``.
Durable on return: ``flush`` all bytes below the position it returns; nothing else.
"""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Iterator
from functools import partial
from typing import NoReturn, final

from tailrace import events
from tailrace.env.filesystem import File, FileSystem, Mapping
from tailrace.env.whole_files import open_new
from tailrace.errors import DiskFullError, FatalStorageError, StoreClosedError
from tailrace.kernels.file_end import FileEnd
from tailrace.logs import get_logger
from tailrace.segments.lease import Lease
from tailrace.segments.open_files import OpenFiles

__all__ = ["MappedFile"]

_log = get_logger(__name__)
_CHUNK = 1 << 20
_BLOCK = 4096
_SHORT_WRITE = 64 << 10
"""Bytes up to which a write of ``write_after`` keeps the interpreter's lock: some microseconds."""
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _raise(path: str, error: OSError) -> NoReturn:
    """Raise the error, as a DiskFullError if it says that there is no room."""
    if error.errno in _NO_SPACE:
        raise DiskFullError(path, error.strerror or str(error)) from error
    raise error


@final
class MappedFile(FileEnd):
    """A file of ``size`` bytes that starts at ``file_from_offset`` of its stream.

    ``mapped`` files are written through ``buffer`` or, for many pages, with ``write_after``; disk blocks are allocated
    ahead in steps of ``allocate_step`` bytes. The others are written with ``append``, and are sparse.

    A ``foreign`` file belongs to another process, which may delete it: each call opens it to read. A deleted file has
    no bytes.
    """

    def __init__(
        self, file_system: FileSystem, path: str, file_from_offset: int, size: int, *, mapped: bool = False,
        allocate_step: int = 0, open_files: OpenFiles | None = None, foreign: bool = False,
    ) -> None:
        super().__init__(size)
        self.path = path
        self.file_from_offset = file_from_offset
        self.size = size
        self.wrote_position = self.flushed_position = size if foreign else 0
        self._foreign = foreign
        self.store_timestamp = 0
        self._mtime_ms = -1
        self._file_system = file_system
        self._mapped = mapped
        self._step = allocate_step or size
        self._reserved = self._tried = self._populated = 0
        self._reserving = threading.RLock()  # keeps ``reserve_ahead`` apart from the writer and from ``give_back``
        self._wrote_after = -1
        self._open_files = open_files
        self.used_at = 0
        """Number of the last use among those that ``open_files`` counts."""
        self._file: File | None = None
        self._mapping: Mapping | None = None
        self._unsynced = False
        self._failed: str = ""
        self._unmappable = False
        self._holds = 0 if foreign else 1  # without a hold of its own every release closes the file
        self._available = True
        self._retired_ms = 0
        self._lock = threading.RLock()

    def __reduce__(self) -> tuple[object, ...]:
        """A foreign file goes to other processes by its name, such as to the tasks of a Spark job."""
        if not self._foreign:
            raise TypeError(f"{self.path} belongs to this process")
        return partial(MappedFile, foreign=True), (self._file_system, self.path, self.file_from_offset, self.size)

    def __repr__(self) -> str:
        return f"<MappedFile {self.path} {self.flushed_position}/{self.wrote_position}/{self.size}>"

    # -- life

    @classmethod
    def create(
        cls, file_system: FileSystem, path: str, file_from_offset: int, size: int, *, mapped: bool,
        allocate_step: int = 0, open_files: OpenFiles | None = None, derived: bool = False,
    ) -> MappedFile:
        """Make the file at its full length; its name is durable on return.

        A file that is ``derived`` from the log is made even after a sync has failed, so that messages
        can be read. No sync succeeds in such a store, so the file never counts as durable (F6).
        A file of that name that exists already is moved aside, never reused: a new file is all zeros.
        Raises DiskFullError if there is no room for the file; the name is then removed.
        """
        sync_may_be_refused = (
            contextlib.suppress(FatalStorageError) if derived else contextlib.nullcontext())
        made = cls(
            file_system, path, file_from_offset, size, mapped=mapped, allocate_step=allocate_step,
            open_files=open_files)
        try:
            made._file = open_new(file_system, path)
        except OSError as error:
            _raise(path, error)
        try:
            with made as file:
                file.truncate(size)
                if mapped:
                    made.reserve(1)
                    with sync_may_be_refused:
                        file.sync_data()  # a name without its length would be a file of length zero
            with sync_may_be_refused:
                file_system.sync_dir(path.rpartition("/")[0])
        except (OSError, DiskFullError, FatalStorageError) as error:
            made.close()
            with contextlib.suppress(OSError):  # the caller gets the first error
                file_system.remove(path)
            if isinstance(error, OSError):
                _raise(path, error)
            raise
        return made

    def _open(self) -> File:
        file = self._file
        if file is None:
            with self._lock:
                file = self._file
                if file is None:
                    if not self._holds:
                        raise StoreClosedError(f"{self.path} is closed")
                    try:
                        file = self._file_system.open(self.path, writable=not self._foreign)
                    except FileNotFoundError:
                        if self._foreign or not self._available:  # deleted between the hold and the open
                            raise StoreClosedError(f"{self.path} is deleted") from None
                        raise
                    except OSError as error:
                        if error.errno != errno.EROFS:
                            raise
                        file = self._file_system.open(self.path)  # an old part of the log
                    self._file = file
        if self._open_files is not None:
            self._open_files.used(self, 2 if self._mapping is not None else 1)
        return file

    def __enter__(self) -> File:
        """Return the open file. Descriptor and mapping stay open inside of the ``with`` block (M5)."""
        if not self.hold():
            raise StoreClosedError(f"{self.path} is closed")
        try:
            return self._open()
        except BaseException:
            self.release()
            raise

    def __exit__(self, *_: object) -> None:
        self.release()

    @property
    def unsynced(self) -> bool:
        """True if the file may have bytes that no sync covers."""
        return self._unsynced or self.flushed_position < self.wrote_position

    @property
    def may_be_closed(self) -> bool:
        """True if the file may be closed after a sync: it is not in use, and no sync has failed."""
        writes = self._mapping is not None and not self.is_full()
        return not (self.leased or self._failed or writes)

    def give_up_descriptors(self) -> bool:
        """Close descriptor and mapping until the next use; return True if they are closed.

        They stay open while a lease or a call uses the file (M5), while it has unsynced bytes (M6) and
        while it is written to through its mapping.
        """
        if not self._lock.acquire(blocking=False):
            return False  # another thread opens it; waiting here could be a deadlock
        try:
            if self.unsynced or not self.may_be_closed:
                return False
            self._close_descriptors()
            return True
        finally:
            self._lock.release()

    def unmap(self) -> None:
        """Close the mapping until the next use, unless a lease or a writer uses it.

        Its pages stay in the page cache, changed ones too. They no longer count as memory of this process.
        """
        with self._lock:
            if self._mapping is None or not self.is_full() or self.leased:
                return
            self._mapping.close()
            self._mapping = None
        if self._open_files is not None and self._file is not None:
            self._open_files.used(self, 1)

    def sync_and_give_up_descriptors(self) -> bool:
        """Sync, then do what ``give_up_descriptors`` does. If the sync fails, the next ``flush`` raises its error."""
        try:
            self.flush()
        except (FatalStorageError, StoreClosedError, OSError):
            return False
        return self.give_up_descriptors()

    def _close_descriptors(self) -> None:
        if self._mapping is not None:
            self._mapping.close()
            self._mapping = None
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._open_files is not None:
            self._open_files.forget(self)

    def close(self) -> None:
        """Unmap and close once the last lease has ended."""
        with self._lock:
            if not self._available:
                return
            self._available = False
        self.release()

    @property
    def available(self) -> bool:
        """Return True if new readers are admitted."""
        return self._available

    @property
    def leased(self) -> bool:
        """Return True if a reader holds the file now."""
        return self._holds > self._available

    def retire(self, now_ms: int, forcibly_after_ms: int) -> bool:
        """Admit no more readers. Return True if the file may be deleted (ReferenceResource.shutdown).

        It may be deleted when the last reader has released it, or ``forcibly_after_ms`` after the first
        call, by a clock that never steps back. Readers that hold it then keep its bytes, not its name.
        """
        with self._lock:
            first = self._available
            if first:
                self._retired_ms = now_ms
        self.close()
        return not self.leased or (not first and now_ms - self._retired_ms >= forcibly_after_ms)

    def move_to(self, path: str) -> None:
        """Rename the file. Readers continue with the new name. The caller syncs the directories."""
        with self._lock:
            self._file_system.rename(self.path, path)
            self.path = path

    def hold(self) -> bool:
        """Keep the file open until ``release``. Return False if it is closed already."""
        with self._lock:
            if not self._available:
                return False
            self._holds += 1
            return True

    def release(self) -> None:
        """End a ``hold``. The last ``release`` unmaps and closes the file."""
        with self._lock:
            self._holds -= 1
            if not self._holds:
                self._close_descriptors()

    def destroy(self) -> None:
        """Close the file and remove its name; the caller syncs the directory."""
        self.close()
        self._file_system.remove(self.path)

    # -- writing

    @property
    def buffer(self) -> memoryview:
        """The mapped bytes, writable. Store only below a reserved position.

        The bytes may be unmapped when the file is full and synced; ``with`` the file prevents that.
        """
        return self._map(writable=True).view

    def _map(self, *, writable: bool) -> Mapping:
        mapping = self._mapping
        if mapping is None or (writable and mapping.view.readonly):
            with self as file:
                with self._lock:
                    mapping = self._mapping
                    if mapping is None or (writable and mapping.view.readonly):
                        # Leases of a read-only mapping keep it until they end; they also see later writes.
                        mapping = self._mapping = file.map(self.size, writable=writable)
                if self._open_files is not None:
                    self._open_files.used(self, 2)  # a mapping keeps a descriptor of its own
        return mapping

    def mtime_ms(self) -> int:
        """Return the time of the last change from the file system, ms; it is read again after a write."""
        if self._mtime_ms < 0:
            self._mtime_ms = self._file_system.stat(self.path).mtime_ms
        return self._mtime_ms

    def loaded_at(self, end: int) -> None:
        """Count the bytes below ``end`` as written and flushed, because the file was there before."""
        self.wrote_position = self.flushed_position = end

    def end_at(self, position: int) -> None:
        """End the file for readers and for ``append`` at ``position``; the bytes below it are in place (M2)."""
        self.wrote_position = position
        self.flushed_position = min(self.flushed_position, position)

    def doubt(self) -> None:
        """Count no byte as flushed: bytes of a killed process may be in the page cache only."""
        self.flushed_position = 0

    def touched(self) -> None:
        """Note that bytes were stored through ``buffer``: no byte of the file counts as flushed."""
        self.doubt()
        self._unsynced = True
        self._mtime_ms = -1

    def is_full(self) -> bool:
        """Return True if every byte was written."""
        return self.wrote_position == self.size

    def reserve(self, until: int) -> int:
        """Allocate disk blocks up to ``until``, and more ahead. Return their end. Raises DiskFullError."""
        if until <= self._reserved:
            return self._reserved
        with self._reserving:
            if until > self._reserved:  # still: the service may have reserved it
                until = min(self.size, -(-until // self._step) * self._step)
                try:
                    with self as file:
                        file.allocate(self._reserved, until - self._reserved)
                except OSError as error:
                    _raise(self.path, error)
                self._reserved = until
        return self._reserved

    def reserve_ahead(self, ahead: int) -> None:
        """Reserve the next ``ahead`` bytes after the last written one, a step at most, beside a writer.

        Without this call the writer waits for the file system, and at times for a sync. Each step is tried once, and
        only the writer that needs the blocks reports an error. Nothing is done before a writer has used the file.
        """
        until = min(self.size, self.wrote_position + min(ahead, self._step))
        if until <= self._reserved or self._reserved == self._tried:
            return
        self._tried = self._reserved
        with self._reserving, contextlib.suppress(DiskFullError, StoreClosedError, OSError):
            if not self.is_full():  # give_back may have freed the blocks of a full file
                self.reserve(until)

    def populate(self, ahead: int) -> None:
        """Bring the next ``ahead`` bytes after the last written one into memory, beside a writer.

        Otherwise each new page costs the writer a page fault. Only reserved blocks are read, and no page becomes
        dirty. Nothing is done while half of the bytes are in memory, or if the system cannot do it, or after
        ``write_after``, which needs no pages in memory.
        """
        if self.wrote_position == self._wrote_after:
            return
        start = max(self._populated, self.wrote_position // _BLOCK * _BLOCK)
        until = min(self.wrote_position + ahead, self._reserved) // _BLOCK * _BLOCK
        if until - start < ahead // 2 or not self.hold():
            return
        try:
            mapping = self._map(writable=True)
            while start < until:
                n = min(_CHUNK, until - start)
                start = start + n if mapping.populate(start, n) else self.size
        finally:
            self.release()
        self._populated = start

    def give_back(self, start: int) -> None:
        """Free the disk blocks after ``start``, which are not written any more.

        A file system without that operation keeps them.
        """
        start = -(-start // _BLOCK) * _BLOCK
        if start >= self.size or not self._available:
            return
        try:
            with self._reserving, self as file:
                file.punch_hole(start, self.size - start)
        except OSError as error:
            events.BLOCKS_ARE_KEPT.log(_log, file=self.path, cause=error)

    def append(self, data: bytes | bytearray | memoryview) -> int:
        """Write ``data`` after the last byte. Return its position, or -1 if it does not fit."""
        at = self.wrote_position
        if at + len(data) > self.size:
            return -1
        self.write_at(data, at)
        self.wrote_position = at + len(data)
        return at

    def write_at(self, data: bytes | bytearray | memoryview, at: int) -> None:
        """Write ``data`` at ``at`` without moving ``wrote_position``.

        Raises DiskFullError; a part of the bytes may then be written.
        """
        if not self.hold():  # as a with statement does, which costs more than the rest here
            raise StoreClosedError(f"{self.path} is closed")
        try:
            self._unsynced = True
            if self._mapped:
                self.reserve(at + len(data))
                self.buffer[at : at + len(data)] = data
            else:
                self._open().pwrite(data, at)
            self._unsynced = True  # set again: a sync that began before the write does not cover the write
            self.flushed_position = min(self.flushed_position, at)
        except OSError as error:
            _raise(self.path, error)
        finally:
            self.release()
        self._mtime_ms = -1

    def write_after(self, data: memoryview, at: int) -> None:
        """Write ``data``, a writable buffer, into reserved blocks after the last byte with a system call.

        ``wrote_position`` stays. If the call fails, clears what was written as far as possible.
        Raises DiskFullError or OSError.
        """
        try:
            self._call(data, at, short=len(data) <= _SHORT_WRITE)
        except (DiskFullError, OSError):
            with contextlib.suppress(DiskFullError, OSError):
                self._call(bytes(len(data)), at)
            raise
        self._wrote_after = at + len(data)

    def write_long(self, data: bytes | bytearray | memoryview, at: int) -> None:
        """``write_at`` with a system call, even for a mapped file, for writes of many pages.

        A store through a mapping costs a page fault for each page that was not used before.
        """
        self.reserve(at + len(data))
        self.touched()
        self._call(data, at)
        self.touched()  # set again: a sync that began before the write does not cover the write

    def _call(self, data: bytes | bytearray | memoryview, at: int, *, short: bool = False) -> None:
        try:
            with self as file:
                if short:
                    file.pwrite_with_lock(memoryview(data), at)
                else:
                    file.pwrite(data, at)
        except OSError as error:
            _raise(self.path, error)

    def zero_tail(self, start: int) -> None:
        """Clear every byte from ``start`` onwards, so that old bytes are never read again.

        Chunks of zeros are not written, so a sparse file stays sparse.
        """
        for at, data in self.nonzero(start):
            self.write_at(bytes(len(data)), at)

    def nonzero(self, start: int) -> Iterator[tuple[int, bytes]]:
        """Yield (position, bytes) of every chunk from ``start`` onwards that is not all zero.

        Bytes after ``wrote_position`` are included. Holes are skipped without being read.
        """
        try:
            with self as file:
                ranges = file.data_ranges(start, self.size)
            for low, high in ranges:
                for at in range(low, high, _CHUNK):
                    with self as file:
                        data = file.pread(min(_CHUNK, high - at), at)
                    if data != bytes(len(data)):
                        yield at, data
        except StoreClosedError:
            if not self._foreign:
                raise

    def data_end(self) -> int:
        """Return the position after which the file has only a hole; 0 if a foreign file was deleted."""
        try:
            with self as file:
                ranges = file.data_ranges(0, self.size)
        except StoreClosedError:
            if not self._foreign:
                raise
            return 0
        return ranges[-1][1] if ranges else 0

    # -- reading

    def read(self, at: int, n: int, *, apart: bool = False) -> bytes:
        """Return up to ``n`` bytes from ``at``, only bytes before ``wrote_position``.

        With ``apart`` use a system call even if the file is mapped: other threads run while it waits for the disk.
        """
        n = min(n, self.wrote_position - at)
        if n <= 0 or at < 0:
            return b""
        if not self.hold():
            return b""
        try:
            mapping = None if apart else self._mapping
            if mapping is not None and mapping.in_memory(at, n):
                return bytes(mapping.view[at : at + n])
            return self._open().pread(n, at)
        except StoreClosedError:
            return b""
        finally:
            self.release()

    def read_cached(self, at: int, n: int) -> bytes | None:
        """``read`` of a file that is not mapped, without waiting for the disk; None if it would wait."""
        n = min(n, self.wrote_position - at)
        if n <= 0 or at < 0 or not self.hold():
            return b""
        try:
            return self._open().pread_cached(n, at)
        except StoreClosedError:
            return b""
        finally:
            self.release()

    def read_into(self, at: int, buffer: bytearray | memoryview) -> int:
        """Fill ``buffer`` with bytes from ``at`` up to ``wrote_position``. Return the number of bytes."""
        n = min(len(buffer), self.wrote_position - at)
        if n <= 0 or at < 0 or not self.hold():
            return 0
        try:
            mapping = self._mapping
            if mapping is not None and mapping.in_memory(at, n):
                buffer[:n] = mapping.view[at : at + n]
                return n
            return self._open().pread_into(memoryview(buffer)[:n], at)
        except StoreClosedError:
            return 0
        finally:
            self.release()

    def select(self, at: int, n: int, *, mapped: bool = False) -> Lease | None:
        """Return a lease of exactly ``n`` written bytes from ``at``, or None.

        ``mapped`` maps the file instead of reading it into memory, whether its bytes are in memory or not (M7).
        """
        if at < 0 or n < 0 or at + n > self.wrote_position or not self.hold():
            return None
        try:
            mapping = self._map(writable=not self._foreign) if mapped else self._mapping
            if mapping is None or not (mapped or mapping.in_memory(at, n)):
                return Lease(self, memoryview(self._open().pread(n, at)))
            return Lease(self, mapping.view[at : at + n])
        except StoreClosedError:
            self.release()
            return None
        except OSError:
            self.release()
            raise

    def hold_view(self) -> memoryview | None:
        """Hold the file and return its mapped bytes, also those not written yet; the caller must call ``release``.

        Return None, without a hold, if the file is closed or cannot be mapped. A slice must not outlive the hold.
        """
        with self._lock:  # as hold does; every read comes here
            if not self._available:
                return None
            self._holds += 1
        try:
            mapping = self._mapping or self._map_to_read()
        except StoreClosedError:
            mapping = None
        except OSError:
            self.release()
            raise
        if mapping is None:
            self.release()
            return None
        return mapping.view

    def _map_to_read(self) -> Mapping | None:
        """Map a file of the log to read it. Return None if it cannot be mapped.

        A full file is never written again, so its mapping is read-only: that needs no permission to write,
        and an overlay keeps no copy of it.
        """
        if not self._mapped or self._unmappable:
            return None
        try:
            self._map(writable=not self.is_full())
        except (OSError, ValueError) as error:  # for example no permission to write, or no address space
            events.A_SEGMENT_IS_READ_WITHOUT_A_MAPPING.log(_log, file=self.path, cause=error)
            self._unmappable = True
        return self._mapping

    # -- durability

    def flush(self) -> int:
        """Make every written byte durable. Return the position after the last durable byte.

        Raises FatalStorageError when the sync fails, and at every later call. Raises OSError if the file cannot
        be opened again; its bytes may be durable or not.
        """
        if self._failed:
            raise FatalStorageError(self.path, self._failed)
        wrote = self.wrote_position
        if wrote == self.flushed_position and not self._unsynced:
            return wrote
        with self as file:  # an error here is not a failed sync
            self._unsynced = False  # before the sync: a write during the sync sets it again
            try:
                file.sync_data()
            except OSError as error:
                self._failed = str(error)
                raise FatalStorageError(self.path, self._failed) from error
            self.flushed_position = wrote
        return wrote
