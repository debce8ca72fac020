"""The work of a task on a segment: read it once, write its files, compare them.

Nothing here publishes. A task that is run twice, or killed, leaves files of its own attempt that no
manifest names. The files are compared with the same bytes in memory that were checked and hashed.
"""

from __future__ import annotations

import hashlib
import io
import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from isal import isal_zlib

from tailrace.arrow.columns import Rows
from tailrace.config import StoreConfig
from tailrace.env.entropy import Entropy, SystemEntropy
from tailrace.env.filesystem import File, FileSystem, OsFileSystem
from tailrace.env.read_ahead import in_background
from tailrace.errors import CorruptionError, StoreError
from tailrace.kernels.shared import constants as C
from tailrace.spark.archive.layout import (
    ROW_GROUP,
    ROW_GROUP_BYTES,
    WRITTEN_SCHEMA,
    open_prefix,
    part_path,
    write_options,
)
from tailrace.spark.archive.origin import Origin
from tailrace.spark.archive.parquet_file import Readable, in_archive
from tailrace.spark.archive.pieces import pieces_of, read_into
from tailrace.spark.archive.queue_units import named_in, units_between
from tailrace.spark.archive.rows import Piece, days_of, raw_table_of, table_of
from tailrace.spark.archive.verification import checked, compare
from tailrace.spark.buffers import Scratch
from tailrace.spark.offset_ranges import OffsetRange, RowFilter
from tailrace.store.archive_manifest import (
    HEAD_BYTES,
    ArchivedFile,
    FilePart,
    LostMessage,
    Manifest,
    QueueRange,
)
from tailrace.store.archive_store import ArchiveStore, Attempt, NewFile, archive_at
from tailrace.store.directory import StoreDirectory

__all__ = ["FileSink", "SegmentResult", "SegmentTask", "new_attempt", "run_task", "write_segment"]

_WRITE: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """A sealed segment to archive, or a range of the one that is still written, which ends with a record.

    Each queue in ``wanted`` has units for ``counts`` of its messages.
    """

    store: str
    config: StoreConfig | None
    archive: str
    """Location of the archive."""
    path: str
    segment: int
    size: int
    wanted: tuple[OffsetRange, ...]
    counts: tuple[int, ...]
    piece_bytes: int
    verify: bool
    published: Manifest | None = None
    """Its manifest, if the files exist and are only compared: with the segment at ``path``, or with the checksums
    of the manifest if ``path`` is empty."""
    within: int | None = None
    """For a range: where the segment begins that has it. ``segment`` and ``size`` are then those of the range."""


@dataclass(slots=True)
class SegmentResult:
    """A manifest that is not published yet; ``staged`` has the present name of each of its files, of ``attempt``.

    Without a manifest, ``problem`` is the reason; ``gone`` means that retention has deleted the segment.
    """

    task_segment: int
    manifest: Manifest | None = None
    staged: list[str] = field(default_factory=list)
    problem: str = ""
    gone: bool = False
    attempt: str = ""


class _Segment:
    """A file of the log that stays open."""

    def __init__(self, file: File, task: SegmentTask) -> None:
        self.path, self.file_from_offset, self.size = task.path, task.segment, task.size
        self._file, self._begin = file, 0 if task.within is None else task.segment - task.within

    def read(self, at: int, n: int) -> bytes:
        return self._file.pread(min(n, self.size - at), self._begin + at)

    def read_into(self, room: memoryview, at: int) -> int:
        return self._file.pread_into(room[: self.size - at], self._begin + at)


class FileSink(io.RawIOBase):
    """A file that is written from start to end, in long writes, with checksums of the file and its parts."""

    def __init__(self, file: File | NewFile) -> None:
        self._file = file
        self._waiting = bytearray()
        self._sha = hashlib.sha256()
        self._crc = 0
        self.size = 0
        self.parts: list[FilePart] = []
        file.truncate(0)

    def writable(self) -> bool:
        """Return True, as PyArrow asks for."""
        return True

    def write(self, data: Any) -> int:
        """Add bytes to the end of the file; they are on the disk after ``finish``."""
        self._waiting += data
        self._crc = isal_zlib.crc32(data, self._crc)
        if len(self._waiting) >= _WRITE:
            self._write_waiting()
        return len(data)

    def _write_waiting(self) -> None:
        if self._waiting:
            self._sha.update(self._waiting)
            self._file.pwrite(self._waiting, self.size)
            self.size += len(self._waiting)
            self._waiting.clear()

    def end_part(self) -> None:
        """End a part: bytes that are written afterwards belong to the next part."""
        self.parts.append(FilePart(self.size + len(self._waiting), self._crc))
        self._crc = 0

    def finish(self) -> str:
        """End the last part and make the file durable; return its SHA-256."""
        self.end_part()
        self._write_waiting()
        self._file.sync_data()
        return self._sha.hexdigest()


class _Writer:
    """Files and figures of a segment."""

    def __init__(
        self, file_system: FileSystem, archive: ArchiveStore, task: SegmentTask, attempt: str, head: bytes
    ) -> None:
        self._file_system, self._archive, self._attempt = file_system, archive, attempt
        self._task = task
        self._filter = RowFilter(list(task.wanted))
        self._day = 0
        self._scratch, self._read = Scratch(), Scratch()
        self._sha = hashlib.sha256()
        self._crc = self._crc_of_piece = 0
        self._head = isal_zlib.crc32(head)
        self._records = self._messages = self._raw = 0
        self._times: dict[int, tuple[int, int]] = {}
        self._span: tuple[int, int] | None = None
        self._found: list[Rows] = []
        self._reasons: list[tuple[int, int, str]] = []
        self.files: list[ArchivedFile] = []
        self.staged: list[str] = []

    def take(self, piece: Piece) -> None:
        """Write a piece. Another thread computes checksums in the meantime, so one segment uses two cores."""
        wait = in_background(lambda: self._add_to_checksums(piece.data))
        try:
            self._write_rows(piece, wait)
        finally:
            wait()

    def _add_to_checksums(self, data: memoryview) -> None:
        self._sha.update(data)
        self._crc = isal_zlib.crc32(data, self._crc)
        self._crc_of_piece = isal_zlib.crc32(data)

    def _origin(self, piece: Piece) -> Origin:
        """Return the note of the files of a piece, whose checksums are there."""
        task, end = self._task, piece.base + len(piece.data)
        is_last = end == task.segment + task.size
        return Origin(
            task.segment, task.size, piece.base, end, self._crc_of_piece, self._sha.hexdigest() if is_last else "",
            tuple((one.topic, one.queue_id) for one in task.wanted if one.is_batch) if is_last else ())

    def _write_rows(self, piece: Piece, wait: Callable[[], None]) -> None:
        task = self._task
        messages = self._filter.mask(piece.rows)
        self._count(piece, messages)
        if self._day == 0 and len(piece.rows):
            self._day = int(days_of(piece.rows[:1], 0)[0])
        days = days_of(piece.rows, self._day)
        order = _order(piece, days)
        # Raw rows come last and belong to the last day that was seen.
        if len(days):
            self._day = int(days.max())
        of_rows = np.append(days[order], np.full(len(piece.raw), self._day))
        bounds = [0, *(np.flatnonzero(of_rows[1:] != of_rows[:-1]) + 1).tolist(), len(of_rows)]
        with ExitStack() as files:
            made = [
                self._write(
                    files, piece, order[low:high], messages, int(of_rows[low]), wait, raw=high > len(order))
                for low, high in itertools.pairwise(bounds)
            ]
            if task.verify:
                compare(made, piece.base, piece.data, self._scratch, self._read)

    def _count(self, piece: Piece, messages: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> None:
        rows = piece.rows[messages]
        self._records += len(piece.rows)
        self._messages += len(rows)
        self._raw += len(piece.raw)
        self._found.append(rows[:, C.PHY].copy())
        self._reasons += [(one.start, one.end, one.reason) for one in piece.raw]
        times = piece.rows[:, C.STORE_TIMESTAMP]
        if len(times):
            low, high = int(times.min()), int(times.max())
            self._span = (low, high) if self._span is None else (
                min(low, self._span[0]), max(high, self._span[1]))
        if not len(rows):
            return
        order = np.argsort(rows[:, C.QUEUE_HASH], kind="stable")  # one pass, whatever the number of queues
        names, starts = np.unique(rows[order, C.QUEUE_HASH], return_index=True)
        times = rows[order, C.STORE_TIMESTAMP]
        firsts, lasts = np.minimum.reduceat(times, starts), np.maximum.reduceat(times, starts)
        for name, first, last in zip(names.tolist(), firsts.tolist(), lasts.tolist(), strict=True):
            low, high = self._times.get(name, (first, last))
            self._times[name] = min(low, first), max(high, last)

    def _write(
        self, files: ExitStack, piece: Piece, order: Rows, messages: np.ndarray[tuple[int], np.dtype[np.bool_]],
        day: int, wait: Callable[[], None], *, raw: bool,
    ) -> Readable:
        """Write a file, which stays open in ``files``. ``wait`` returns when the checksums of the piece are there."""
        number = len(self.files)
        segment, within = self._task.segment, self._task.within
        path = part_path(
            str(np.datetime64(day, "D")), segment if within is None else within, number, self._attempt,
            *(() if within is None else (open_prefix(segment),)))
        groups = list(_row_groups(piece, order))
        most = max([len(group) for group in groups], default=1)
        file = files.enter_context(
            closing(self._archive.create(path, Attempt(segment if within is None else within, self._attempt))))
        sink = FileSink(file)
        with pq.ParquetWriter(
            pa.PythonFile(sink, "w"), WRITTEN_SCHEMA, **write_options(most)
        ) as writer:
            for group in groups:
                writer.write_table(table_of(piece, group, messages, self._scratch))
                sink.end_part()
            if raw:
                writer.write_table(raw_table_of(piece))
                sink.end_part()
            wait()
            writer.add_key_value_metadata(self._origin(piece).note)
        sha256 = sink.finish()
        self.files.append(ArchivedFile(
            path, sink.size, sha256,
            len(order) + (len(piece.raw) if raw else 0), piece.base, piece.base + len(piece.data),
            tuple(sink.parts), file.tag))
        self.staged.append(file.name)
        return Readable(file.written, self._archive.path_of(file.name), self.files[-1])

    def manifest(self) -> Manifest:
        """Return the manifest of the written files."""
        task = self._task
        first, last = self._span or (0, 0)
        return Manifest(
            segment=task.segment, size=task.size, crc32=self._crc, sha256=self._sha.hexdigest(),
            head_crc32=self._head, records=self._records, messages=self._messages,
            raw_rows=self._raw, min_store_timestamp=first, max_store_timestamp=last,
            queues=tuple(self._queues()), files=tuple(self.files), damaged=tuple(self._damaged()),
            verified=task.verify, store=task.store)

    def _queues(self) -> list[QueueRange]:
        found = []
        for one, count in zip(self._task.wanted, self._task.counts, strict=True):
            low, high = self._times.get(self._filter.hash_of(one), (0, 0))
            found.append(QueueRange(
                one.topic, one.queue_id, one.start, one.end, count, one.first, one.last, low, high, one.is_batch))
        return found

    def _damaged(self) -> list[LostMessage]:
        """Return messages that queue units name and that are missing. Queues are read only if any is missing."""
        task = self._task
        if self._messages == sum(task.counts):
            return []
        directory = StoreDirectory(task.store, config=task.config, file_system=self._file_system)
        units = units_between(directory, task.segment, task.segment + task.size)
        wanted, named = named_in(units, task.segment, task.size)
        queues = {(queue.topic, queue.queue_id): queue for queue, _, _ in units}
        missing = named[~np.isin(named[:, 0], np.concatenate(self._found))]
        if len(missing) + self._messages != sum(task.counts):
            raise StoreError(
                f"{self._messages} of {sum(task.counts)} messages are intact, and the queues no longer have units "
                "of the others")
        found = []
        for position, offset, number in missing[np.argsort(missing[:, 0])].tolist():
            one = wanted[number]
            reason = next(
                (why for low, high, why in self._reasons if low <= position < high),
                "another record is there")
            end = queues[one.topic, one.queue_id].end_of(offset)
            found.append(LostMessage(one.topic, one.queue_id, offset, position, reason, end - offset))
        return found


def _row_groups(piece: Piece, order: Rows) -> Iterator[Rows]:
    """Yield groups of consecutive rows that are short enough for a row group."""
    ends = np.cumsum(piece.rows[order, C.SIZE])
    low = 0
    while low < len(order):
        before = int(ends[low - 1]) if low else 0
        high = int(np.searchsorted(ends, before + ROW_GROUP_BYTES, side="right"))
        high = min(max(high, low + 1), low + ROW_GROUP)
        yield order[low:high]
        low = high


def _order(piece: Piece, days: Rows) -> Rows:
    """Return the order of rows by day, topic, queue and offset."""
    rows = piece.rows
    names, firsts, place = np.unique(
        rows[:, C.QUEUE_HASH], return_index=True, return_inverse=True)
    keys = []
    for number, row in enumerate(firsts.tolist()):
        at = int(rows[row, C.TOPIC_POS])
        topic = bytes(piece.data[at : at + int(rows[row, C.TOPIC_LEN])])
        keys.append((topic, int(rows[row, C.QUEUE_ID]), number))
    rank = np.empty(len(names), dtype=np.int64)
    for at, (_, _, number) in enumerate(sorted(keys)):
        rank[number] = at
    return np.lexsort((
        rows[:, C.PHY], rows[:, C.QUEUE_OFFSET], rank[place.reshape(-1)], days))


def write_segment(task: SegmentTask, file_system: FileSystem, attempt: str) -> SegmentResult:
    """Write or compare the files of a segment. A problem of store or archive is returned, not raised."""
    result = SegmentResult(task.segment, attempt=attempt)
    archive = archive_at(task.archive, file_system)
    if not task.path and task.published is not None:
        try:
            result.manifest = checked(archive, task.published)
        except (StoreError, OSError) as error:
            result.problem = f"{type(error).__name__}: {error}"
        return result
    try:
        opened = file_system.open(task.path)
    except FileNotFoundError:
        result.gone = True
        return result
    try:
        segment = _Segment(opened, task)
        if task.published is not None:
            _compare_published(task, task.published, segment, archive)
            result.manifest = task.published.as_verified()
            return result
        writer = _Writer(file_system, archive, task, attempt, segment.read(0, HEAD_BYTES))
        for piece in pieces_of(segment, task.piece_bytes):
            writer.take(piece)
        result.manifest, result.staged = writer.manifest(), writer.staged
    except FileNotFoundError as error:
        result.gone = str(error) == task.path
        result.problem = "" if result.gone else str(error)
    except (StoreError, OSError, pa.ArrowException) as error:
        result.problem = f"{type(error).__name__}: {error}"
    finally:
        opened.close()
    return result


def _compare_published(
    task: SegmentTask, manifest: Manifest, segment: _Segment, archive: ArchiveStore
) -> None:
    scratch, segment_bytes, read = Scratch(), Scratch(), Scratch()
    for start, end in sorted({(one.start, one.end) for one in manifest.files}):
        data = read_into(segment, start - task.segment, end - start, segment_bytes)
        compare(
            [in_archive(archive, one) for one in manifest.files if one.start == start], start, data, scratch, read)
    if sum({one.start: one.end - one.start for one in manifest.files}.values()) != task.size:
        raise CorruptionError(f"the files of segment {task.segment} do not cover it")


def run_task(task: SegmentTask) -> SegmentResult:
    """Write or compare a segment in a Spark worker."""
    return write_segment(task, OsFileSystem(), new_attempt())


def new_attempt(entropy: Entropy | None = None) -> str:
    """Return the name of an attempt, which no other one has."""
    return f"{(entropy or SystemEntropy()).u64():016x}"
