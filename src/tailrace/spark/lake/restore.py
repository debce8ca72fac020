"""Restoring of CommitLog files from a table ``raw``, which needs no manifest and no directory of the archive.

The table names data files. Each has the rows of a part of a segment, and their note (``archive.origin``) says of which
bytes. Files of an earlier version have no note: their rows then have to follow each other without a gap, and every
record has to be valid.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, Final, NamedTuple, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from isal import isal_zlib
from pyiceberg.expressions import AlwaysTrue, GreaterThanOrEqual

from tailrace.env.filesystem import FileSystem, OsFileSystem
from tailrace.env.object_store import ObjectStoreError
from tailrace.errors import ChecksumMismatchError, ConfigError, CorruptionError, StoreError
from tailrace.formats.filenames import file_name_to_offset, offset_to_file_name
from tailrace.spark.archive.layout import MESSAGE, RECORD
from tailrace.spark.archive.origin import Origin, origin_in
from tailrace.spark.archive.pieces import pieces_of
from tailrace.spark.archive.restore import RestoredLog
from tailrace.spark.archive.rows import ENCODED_COLUMNS, bytes_of
from tailrace.spark.buffers import Scratch
from tailrace.spark.lake.catalogue import LakeTable, Namespace, catalogue_errors
from tailrace.spark.lake.files import segment_of
from tailrace.spark.lake.message_rows import inner_batches
from tailrace.spark.lake.places import Reader, TableFiles, path_of
from tailrace.spark.lake.schemas import check_ids
from tailrace.store.archive_store import is_remote

__all__ = ["raw_table", "restore_table"]

_SEGMENT_MAX: Final = (1 << 31) - 1
"""Largest size of a file of the log, in bytes."""
_POSITION, _SIZE = "commitLogOffset", "storeSize"


def raw_table(tables: Namespace, broker: str) -> LakeTable:
    """Return the table ``raw`` of a broker, of the only one by default.

    Raises ConfigError if there are several and the broker is not chosen, StoreError without one.
    """
    found: dict[str, LakeTable] = {}
    for one in tables.tables:
        if one.kind == "raw":
            name, *others = sorted(one.marks())
            if others:
                raise StoreError(f"the table {one.name} has rows of the brokers {name} and {others[0]}: it was changed")
            found[name] = one
    there = ", ".join(sorted(found))
    if not broker and len(found) > 1:
        raise ConfigError(f"there are tables of the brokers {there}: choose one with --broker")
    if not found or broker not in {"", *found}:
        raise StoreError(
            f"the namespace {tables.namespace} has no table with the rows of "
            + (f"the broker {broker}; there are those of {there}" if found else "an archive"))
    return found[broker] if broker else next(iter(found.values()))


def restore_table(
    table: LakeTable, store: str, first: int, until: int, file_system: FileSystem | None = None
) -> Iterator[dict[str, Any]]:
    """Write the segments of a table ``raw`` that start in [first, until). Yield one report per segment.

    A file gets its name after it was compared: with the SHA-256 of its segment, or, if the table does not have that,
    record by record. One part of a segment is in memory at a time. Batch queues get their directories.

    Raises StoreError if the table has no such segment or lacks one between two others, or was changed by another
    program; CorruptionError for rows that are missing, doubled or changed.
    """
    file_system = file_system or OsFileSystem()
    restoring = _Restoring(table, file_system)
    log = RestoredLog(store, file_system)
    queues: set[tuple[str, int]] = set()
    try:
        for segment in restoring.chosen(first, until):
            name = log.write(segment.start, segment.parts(queues))
            yield {
                "file": name, "bytes": segment.end - segment.start, "sha256": segment.sha256,
                "records": segment.records, "compared": segment.compared}
    finally:
        log.make_batch_queues(queues)


@contextmanager
def _opened(path: str, place: TableFiles, footer: pq.FileMetaData | None = None) -> Iterator[pq.ParquetFile]:
    """Open a data file. Each of its errors becomes a CorruptionError that names it."""
    try:
        with (closing(Reader(place.open(path))) as source,
              pq.ParquetFile(pa.PythonFile(source, "r"), metadata=footer) as found):
            yield found
    except (CorruptionError, ObjectStoreError):
        raise
    except (OSError, pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        text = " ".join(str(error).split())
        raise CorruptionError(
            f"a file of the table cannot be read: {type(error).__name__}: {text}", path=path) from error


class _File(NamedTuple):
    """A data file, by its footer: [low, high] are the positions of its rows."""

    path: str
    footer: pq.FileMetaData
    origin: Origin | None
    low: int
    high: int


class _Part(NamedTuple):
    """Bytes [start, end) of a segment, with the files that have their rows."""

    start: int
    end: int
    files: list[_File]


@final
class _Restoring:
    """The data files of a table by segment."""

    def __init__(self, table: LakeTable, file_system: FileSystem) -> None:
        table.reload()
        self.table, self.ids, self.place = table, table.ids, table.files(file_system)
        (self.mark,) = table.marks().values()

    def chosen(self, first: int, until: int) -> Iterator[_Segment]:
        """Yield the segments that start in [first, until). Raises StoreError for one that is missing."""
        files = self._files(first)
        starts = sorted(files)
        if not any(start < until for start in starts):
            raise StoreError(f"the table {self.table.name} has no segment between {first} and {until}")
        expected = starts[0]
        for start, following in itertools.pairwise([*starts, max(self.mark.until, starts[-1] + 1)]):
            if start >= until:
                break
            self._check_follows(start, expected)
            segment = _Segment(self, start, following, [self._footer(*one) for one in sorted(files[start].items())])
            yield segment
            expected = segment.end
        if expected < min(until, self.mark.until):
            self._check_follows(self.mark.until, expected)

    def _check_follows(self, start: int, expected: int) -> None:
        if start != expected:
            raise StoreError(
                f"the table {self.table.name} lacks the segment at {expected}: restore only segments before or after "
                "it")

    def _files(self, first: int) -> dict[int, dict[str, int]]:
        """Return paths and numbers of rows by segment, from ``first`` onwards."""
        found: dict[int, dict[str, int]] = defaultdict(dict)
        name, is_in_bucket = self.table.name, is_remote(self.table.place)
        with catalogue_errors(f"the files of the table {name}"):
            scan = self.table.table.scan(GreaterThanOrEqual(_POSITION, first) if first else AlwaysTrue())
            for one in scan.plan_files():
                path = path_of(one.file.file_path)
                if one.delete_files:
                    raise StoreError(f"another program has deleted rows of the table {name}, by the file "
                                     f"{next(iter(one.delete_files)).file_path}: {_EARLIER}")
                if path is None or is_remote(path) != is_in_bucket or (segment := _segment_in(path)) is None:
                    raise StoreError(f"another program has written the file {one.file.file_path} of the table {name}: "
                                     f"{_EARLIER}")
                if segment >= first:
                    found[segment][path] = one.file.record_count
        return found

    def _footer(self, path: str, rows: int) -> _File:
        with _opened(path, self.place) as file:
            footer = file.metadata
            if why := check_ids(file.schema_arrow, self.ids):
                raise CorruptionError(f"the file is not of the table {self.table.name}: {why}", path=path)
            if footer.num_rows != rows:
                raise CorruptionError(
                    f"the file has {footer.num_rows} rows, {rows} in the table {self.table.name}", path=path)
            leaf = next(at for at in range(footer.num_columns) if footer.schema.column(at).path == _POSITION)
            known = [footer.row_group(at).column(leaf).statistics for at in range(footer.num_row_groups)]
            if not known or not all(one is not None and one.has_min_max for one in known):
                raise CorruptionError(f"the file has no bounds of its column {_POSITION}", path=path)
            return _File(
                path, footer, origin_in(footer, path), min(one.min for one in known), max(one.max for one in known))


def _segment_in(path: str) -> int | None:
    """Return the segment of a file of the archive, or of a copy of it, by its path; None for another file."""
    directory = path.split("/")[-2:-1]
    return segment_of(path) if not directory or not directory[0].startswith("segment=") else (
        file_name_to_offset(directory[0].removeprefix("segment=").removeprefix("p")))


_EARLIER: Final = "restore from an earlier snapshot of it, or from the archive"


@final
class _Segment:
    """A segment that is read from its data files. After ``parts`` has ended, the figures are there."""

    def __init__(self, restoring: _Restoring, start: int, following: int, files: Sequence[_File]) -> None:
        self._table, self._place, self._mark = restoring.table.name, restoring.place, restoring.mark
        self.start, self.records, self.sha256 = start, 0, ""
        self._origins = [one.origin for one in files if one.origin is not None]
        if len(self._origins) < len(files):
            self._origins = []
        for one in self._origins:
            if (one.segment, one.size) != (start, self._origins[0].size):
                raise CorruptionError(f"the files of segment {start} in the table {self._table} differ in their notes")
        self.end = start + self._origins[0].size if self._origins else following
        if self.end - start > _SEGMENT_MAX or self.end > following:
            raise StoreError(f"the table {self._table} has no segment that ends between {start} and {following}")
        self._files = files
        self._scratch = Scratch()

    @property
    def compared(self) -> str:
        """How the bytes were compared: ``sha256`` of the segment, or valid ``records``."""
        return "sha256" if self._expected else "records"

    @property
    def _expected(self) -> set[str]:
        """The SHA-256 that the segment must have, by its files and by the table; empty if neither has one."""
        found = {one.sha256 for one in self._origins if one.end == self.end}
        return found | ({self._mark.sha256} if self._mark.segment == self.start else set())

    def parts(self, batch_queues: set[tuple[str, int]]) -> Iterator[memoryview]:
        """Yield the bytes part by part, and bring ``batch_queues`` up to date. Raises CorruptionError."""
        total, position = hashlib.sha256(), self.start
        own = {queue for one in self._origins for queue in one.batch_queues}
        batch_queues |= own
        others = batch_queues - own if self._origins else set()
        for part in [*self._divided(), _Part(self.end, self.end, [])]:
            if part.start != position:
                raise self._missing(position, part.start)
            if part.files:
                data = self._read(part, batch_queues, others)
                total.update(data)
                position = part.end
                yield data
        self.sha256 = total.hexdigest()
        if self._expected - {self.sha256}:
            raise ChecksumMismatchError(
                f"the segment at {self.start} of the table {self._table} is not what was archived",
                expected=min(self._expected - {self.sha256}), actual=self.sha256)

    def _divided(self) -> list[_Part]:
        if self._origins:
            found: dict[tuple[int, int], list[_File]] = defaultdict(list)
            for file in self._files:
                assert file.origin is not None
                found[file.origin.start, file.origin.end].append(file)
            return [_Part(start, end, files) for (start, end), files in sorted(found.items())]
        groups: list[_Part] = []
        for file in sorted(self._files, key=lambda one: one.low):
            if groups and file.low <= groups[-1].end:  # ``end`` is that of the positions for now
                last = groups.pop()
                groups.append(_Part(last.start, max(last.end, file.high), [*last.files, file]))
            else:
                groups.append(_Part(file.low, file.high, [file]))
        bounds = [*(one.start for one in groups), self.end]
        return [one._replace(end=end) for one, end in zip(groups, bounds[1:], strict=True)]

    def _missing(self, start: int, end: int) -> CorruptionError:
        return CorruptionError(
            f"the table {self._table} lacks the rows of {end - start} bytes of the log" if end > start else
            f"the table {self._table} has rows of the same bytes of the log twice", phy_offset=min(start, end))

    def _read(self, part: _Part, batch_queues: set[tuple[str, int]], others: set[tuple[str, int]]) -> memoryview:
        """Return the bytes of a part, compared with its checksum or record by record."""
        self._check_rows(part)
        out, written, records = self._scratch.take(part.end - part.start), 0, 0
        for table in self._row_groups(part, ("kind", *ENCODED_COLUMNS)):
            written += bytes_of(table, part.start, out)
            records += pc.sum(pc.is_in(table["kind"], pa.array([MESSAGE, RECORD]))).as_py() or 0
            _note_queues(table, batch_queues, others, noted=bool(self._origins))
        self.records += records
        if written != len(out):
            raise CorruptionError(
                f"{self._named(part)}: {written} bytes of the log instead of {len(out)}", phy_offset=part.start)
        if self._origins:
            actual = isal_zlib.crc32(out)
            for file in part.files:
                if file.origin is not None and file.origin.crc32 != actual:
                    raise ChecksumMismatchError(
                        f"{self._named(part)}: the rows are not those that were archived", phy_offset=part.start,
                        expected=file.origin.crc32, actual=actual)
        elif records and (valid := _valid_records(out, part.start)) != records:
            raise CorruptionError(
                f"{self._named(part)}: {valid} valid records in {records} rows", phy_offset=part.start)
        return out

    def _check_rows(self, part: _Part) -> None:
        """Raise CorruptionError unless the rows of a part follow each other from its start to its end."""
        found = pa.concat_tables(self._row_groups(part, (_POSITION, _SIZE)))
        if any(found[name].null_count for name in found.column_names):
            raise CorruptionError(f"{self._named(part)}: a row has no position", phy_offset=part.start)
        begins, sizes = (found[name].to_numpy().astype(np.int64) for name in (_POSITION, _SIZE))
        order = np.argsort(begins, kind="stable")
        begins = np.append(begins[order], part.end)
        ends = np.insert(begins[:-1] + sizes[order], 0, part.start)
        if len(wrong := np.flatnonzero(begins != ends)):
            raise self._missing(int(ends[wrong[0]]), int(begins[wrong[0]]))

    def _row_groups(self, part: _Part, columns: tuple[str, ...]) -> Iterator[pa.Table]:
        for one in part.files:
            with _opened(one.path, self._place, one.footer) as file:
                for number in range(one.footer.num_row_groups):
                    yield file.read_row_group(number, columns=list(columns), use_threads=False)

    def _named(self, part: _Part) -> str:
        return ", ".join(one.path for one in part.files)


def _note_queues(
    table: pa.Table, batch_queues: set[tuple[str, int]], others: set[tuple[str, int]], *, noted: bool
) -> None:
    """Bring the batch queues up to date with rows. ``others`` are those that the segment's note does not have."""
    if noted and not others:
        return
    rows = table.filter(pc.equal(table["kind"], MESSAGE))
    if noted:
        batch_queues -= others & _queues(rows)  # a topic counts with its last type
    else:
        batch_queues |= _queues(rows.filter(pa.array(inner_batches(rows))))


def _queues(rows: pa.Table) -> set[tuple[str, int]]:
    found = rows.group_by(["topic", "queueId"]).aggregate([])
    return set(zip(found["topic"].to_pylist(), found["queueId"].to_pylist(), strict=True))


@final
class _Bytes:
    """A part of a segment in memory, as ``pieces_of`` reads it."""

    def __init__(self, data: memoryview, start: int) -> None:
        self.path, self.file_from_offset, self.size = offset_to_file_name(start), start, len(data)
        self._data = data

    def read_into(self, room: memoryview, at: int) -> int:
        """Copy the bytes from ``at`` onwards."""
        found = self._data[at : at + len(room)]
        room[: len(found)] = found
        return len(found)


def _valid_records(data: memoryview, start: int) -> int:
    """Return the number of records whose lengths, magic and CRC are right."""
    return sum(len(one.rows) for one in pieces_of(_Bytes(data, start), len(data)))
