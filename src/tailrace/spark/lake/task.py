"""The work of a task on an archived segment: the data files of both tables.

Nothing here commits. A task that is run twice, or killed, leaves files that no snapshot names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tailrace.env.entropy import SystemEntropy
from tailrace.env.filesystem import File, FileSystem, OsFileSystem
from tailrace.errors import CorruptionError, StoreError
from tailrace.formats import names as N
from tailrace.formats.filenames import offset_to_file_name
from tailrace.node.topic_config import SYSTEM_TOPICS
from tailrace.spark.archive.layout import ROW_GROUP, write_options
from tailrace.spark.archive.parquet_file import opened
from tailrace.spark.archive.task import FileSink
from tailrace.spark.buffers import Scratch
from tailrace.spark.lake.files import WrittenFile, written_file
from tailrace.spark.lake.message_rows import (
    NEEDED,
    NEEDED_OF_BATCHES,
    days_of,
    has_inner_batch,
    messages_in,
)
from tailrace.spark.lake.schemas import (
    MESSAGES_SCHEMA,
    RAW_SCHEMA,
    Ids,
    arrow_paths,
    check_ids,
    marked,
    message_options,
)
from tailrace.store.archive_manifest import ArchivedFile, Manifest, archived_path

__all__ = ["LakeResult", "LakeTask", "Target", "file_name", "is_business_topic", "run_task", "write_data_files"]

_GROUP_BYTES: Final = 64 << 20
"""Bytes of the columns of ``messages`` in a row group."""


@dataclass(frozen=True, slots=True)
class Target:
    """A table that a task makes files for: its field ids, and the directory for files that the task writes."""

    ids: Ids
    directory: str


@dataclass(frozen=True, slots=True)
class LakeTask:
    """An archived segment. A table that has its rows already is None."""

    archive: str
    manifest: Manifest
    broker: str
    own_topics: frozenset[str]
    """Topics of the system that are named after the broker and its cluster."""
    every_topic: bool
    raw: Target | None
    messages: Target | None


@dataclass(slots=True)
class LakeResult:
    """Files to commit. A result with ``problem`` has no files."""

    segment: int
    raw: list[WrittenFile] = field(default_factory=list)
    messages: list[WrittenFile] = field(default_factory=list)
    problem: str = ""


def is_business_topic(topic: str, own: frozenset[str]) -> bool:
    """Return True unless a topic belongs to brokers, or has messages of another topic again for a group's retries."""
    return not (
        topic in SYSTEM_TOPICS or topic in own
        or topic.startswith((N.SYSTEM_TOPIC_PREFIX, N.RETRY_GROUP_TOPIC_PREFIX)))


def file_name(segment: int, day: str, attempt: str) -> str:
    """Return the name of a file of one attempt."""
    return f"p{offset_to_file_name(segment)}-{day}-{attempt}.parquet"


def write_data_files(task: LakeTask, file_system: FileSystem, attempt: str) -> LakeResult:
    """Make the files of a segment. A problem of the archive or a table is returned, not raised."""
    result = LakeResult(task.manifest.segment)
    try:
        if task.raw is not None:
            result.raw = _raw_files(task, task.raw, file_system, attempt)
        if task.messages is not None:
            with ExitStack() as stack:
                writer = _MessageWriter(task, task.messages, file_system, attempt, stack)
                result.messages = writer.write()
    except (StoreError, OSError, pa.ArrowException) as error:
        return LakeResult(task.manifest.segment, problem=f"{type(error).__name__}: {error}")
    return result


def run_task(task: LakeTask, file_system: FileSystem | None = None) -> LakeResult:
    """Make the files of a segment, in a Spark worker for example. The files of every attempt have their own names."""
    return write_data_files(task, file_system or OsFileSystem(), f"{SystemEntropy().u64():016x}")


def _raw_files(task: LakeTask, target: Target, file_system: FileSystem, attempt: str) -> list[WrittenFile]:
    """Return the files of the archive itself, or copies of those that do not have the field ids of the table."""
    found = []
    for number, file in enumerate(task.manifest.files):
        path = archived_path(file_system, task.archive, file.path)
        with opened(file_system, path, file) as archived:
            if check_ids(archived.schema_arrow, target.ids):
                found.append(_copied(task, target, archived, file_system, f"{number}-{attempt}"))
            else:
                found.append(written_file(
                    f"file://{path}", file.size, archived.metadata, target.ids, "raw", None))
    return found


def _copied(
    task: LakeTask, target: Target, archived: pq.ParquetFile, file_system: FileSystem, attempt: str
) -> WrittenFile:
    there, wanted = arrow_paths(archived.schema_arrow), arrow_paths(RAW_SCHEMA)
    if {name: kind for name, (_, kind) in there.items()} != {name: kind for name, (_, kind) in wanted.items()}:
        raise CorruptionError(
            f"the files of segment {task.manifest.segment} have other columns than {target.ids.table}")
    schema = marked(RAW_SCHEMA, target.ids)
    groups = range(archived.num_row_groups)
    most = max((archived.metadata.row_group(number).num_rows for number in groups), default=1)
    path = f"{target.directory}/{file_name(task.manifest.segment, 'copy', attempt)}"
    with ExitStack() as stack:
        file = _DataFile(file_system, path, schema, write_options(most), stack)
        for number in groups:
            file.write(archived.read_row_group(number).cast(schema))
        return file.finish(target.ids, "raw", None)


class _DataFile:
    """A Parquet file that is written; ``finish`` makes it durable."""

    def __init__(
        self, file_system: FileSystem, path: str, schema: pa.Schema, options: dict[str, object], stack: ExitStack
    ) -> None:
        self._path, self._file_system = path, file_system
        file_system.makedirs(path.rpartition("/")[0])
        self._file: File = stack.enter_context(closing(file_system.open(path, writable=True, create=True)))
        self._sink = FileSink(self._file)
        self._writer = stack.enter_context(pq.ParquetWriter(pa.PythonFile(self._sink, "w"), schema, **options))

    def write(self, table: pa.Table) -> None:
        """Write a row group."""
        self._writer.write_table(table, row_group_size=max(len(table), 1))

    def finish(self, ids: Ids, table: str, day: int | None) -> WrittenFile:
        """Write the footer, sync file and name, and return the file as the table needs it."""
        self._writer.close()
        self._sink.finish()
        self._file_system.sync_dir(self._path.rpartition("/")[0])
        with pq.ParquetFile(pa.PythonFile(_Reader(self._file), "r")) as found:
            return written_file(f"file://{self._path}", self._sink.size, found.metadata, ids, table, day)


class _MessageWriter:
    """Writes the messages of a segment: a file for each day, a row group for about 64 MiB of columns.

    The rows of a row group are in the order of topic, queue and offset.
    """

    def __init__(
        self, task: LakeTask, target: Target, file_system: FileSystem, attempt: str, stack: ExitStack
    ) -> None:
        self._task, self._target, self._file_system = task, target, file_system
        self._attempt, self._stack = attempt, stack
        self._schema = marked(MESSAGES_SCHEMA, target.ids)
        self._waiting: dict[int | None, list[pa.Table]] = {}
        self._mixed: set[int | None] = set()
        """Days whose waiting rows are not in the order of topic, queue and offset."""
        self._files: dict[int | None, _DataFile] = {}

    def write(self) -> list[WrittenFile]:
        task, scratch, read = self._task, Scratch(), Scratch()
        is_wanted: Callable[[str], bool] = (
            (lambda _: True) if task.every_topic else lambda topic: is_business_topic(topic, task.own_topics))
        piece = -1
        for start, table in _row_groups(task, self._file_system, read):
            if start != piece:  # the rows of a piece of the log are in their order, and a row group of its own
                for day in list(self._waiting):
                    if sum(one.nbytes for one in self._waiting[day]) >= _GROUP_BYTES // 2:
                        self._flush(day)
                self._mixed.update(self._waiting)
                piece = start
            is_mixed = has_inner_batch(table)
            for made in messages_in(table, task.broker, is_wanted, scratch):
                for day, rows in days_of(made).items():
                    waiting = self._waiting.setdefault(day, [])
                    waiting.append(rows)
                    if is_mixed:
                        self._mixed.add(day)
                    if sum(one.nbytes for one in waiting) >= 2 * _GROUP_BYTES:
                        self._flush(day)
        for day in list(self._waiting):
            self._flush(day)
        return [
            file.finish(self._target.ids, "messages", day)
            for day, file in sorted(self._files.items(), key=lambda one: -1 if one[0] is None else one[0])]

    def _flush(self, day: int | None) -> None:
        waiting = self._waiting.pop(day)
        table = pa.concat_tables(waiting)
        if day in self._mixed:
            self._mixed.remove(day)
            table = table.sort_by([(name, "ascending") for name in ("topic", "queue_id", "queue_offset")])
        if day not in self._files:
            text = "none" if day is None else str(np.datetime64(day, "D"))
            path = f"{self._target.directory}/{file_name(self._task.manifest.segment, text, self._attempt)}"
            self._files[day] = _DataFile(
                self._file_system, path, self._schema, message_options(ROW_GROUP), self._stack)
        self._files[day].write(table)


def _row_groups(task: LakeTask, file_system: FileSystem, scratch: Scratch) -> Iterator[tuple[int, pa.Table]]:
    """Yield the row groups of an archived segment, each compared with its checksum, and the start of their piece."""
    files: Sequence[ArchivedFile] = sorted(task.manifest.files, key=lambda one: (one.start, one.path))
    for file in files:
        with opened(file_system, archived_path(file_system, task.archive, file.path), file, scratch) as found:
            for number in range(found.num_row_groups):
                table = found.read_row_group(number, columns=list(NEEDED), use_threads=False)
                if has_inner_batch(table):
                    table = found.read_row_group(number, columns=list(NEEDED_OF_BATCHES), use_threads=False)
                yield file.start, table


class _Reader:
    """Reads a file from any position, as PyArrow asks for it."""

    def __init__(self, file: File) -> None:
        self._file, self._at, self.closed = file, 0, False

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = (0, self._at, self._file.size())[whence] + offset
        return self._at

    def read(self, n: int = -1) -> bytes:
        data = self._file.pread(self._file.size() - self._at if n < 0 else n, self._at)
        self._at += len(data)
        return data

    def close(self) -> None:
        self.closed = True
