"""The work of a task on an archived segment: the data files of all tables.

Nothing here commits. A task that is run twice, or killed, leaves files that no snapshot names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tailrace.env.entropy import SystemEntropy
from tailrace.env.filesystem import FileSystem, OsFileSystem
from tailrace.env.object_store import place_of
from tailrace.errors import CorruptionError, StoreError
from tailrace.formats import names as N
from tailrace.formats.filenames import offset_to_file_name
from tailrace.node.topic_config import SYSTEM_TOPICS
from tailrace.spark.archive.layout import ROW_GROUP, write_options
from tailrace.spark.archive.origin import origin_in
from tailrace.spark.archive.parquet_file import groups_with_topic, in_archive, opened
from tailrace.spark.buffers import Scratch
from tailrace.spark.lake.bodies.rows import TopicSchema, typed_rows
from tailrace.spark.lake.conditions import Condition, matching
from tailrace.spark.lake.data_file import DataFile
from tailrace.spark.lake.files import WrittenFile, written_file
from tailrace.spark.lake.message_rows import (
    NEEDED,
    NEEDED_OF_BATCHES,
    days_of,
    has_inner_batch,
    messages_in,
)
from tailrace.spark.lake.places import S3Server, TableFiles, files_of, url_of
from tailrace.spark.lake.schemas import (
    FORMS,
    MESSAGES_SCHEMA,
    RAW_SCHEMA,
    Ids,
    arrow_paths,
    check_ids,
    file_options,
    marked,
)
from tailrace.store.archive_manifest import ArchivedFile, Manifest
from tailrace.store.archive_store import ArchiveStore, archive_at

__all__ = [
    "LakeResult", "LakeTask", "Target", "TypedTarget", "file_name", "is_business_topic", "run_task", "write_data_files",
]

_GROUP_BYTES: Final = 64 << 20
"""Bytes of the columns of ``messages`` in a row group."""


@dataclass(frozen=True, slots=True)
class Target:
    """A table that a task makes files for: its field ids, and the directory for files that the task writes."""

    ids: Ids
    directory: str
    forgotten: tuple[tuple[Condition, int], ...] = ()
    """Rows of the broker that a user has removed: those that match and lie before a position."""
    server: S3Server | None = None
    """The server of the bucket of ``directory``; None for a disk."""


@dataclass(frozen=True, slots=True)
class TypedTarget:
    """A typed table: its columns with field ids, and the schemas of the bodies of its topic."""

    target: Target
    schema: pa.Schema
    topic: TopicSchema


@dataclass(frozen=True, slots=True)
class LakeTask:
    """An archived segment. A table that has its rows already is None, or not among ``typed``."""

    archive: str
    manifest: Manifest
    broker: str
    own_topics: frozenset[str]
    """Topics of the system that are named after the broker and its cluster."""
    every_topic: bool
    raw: Target | None
    messages: Target | None
    typed: tuple[TypedTarget, ...] = ()


@dataclass(slots=True)
class LakeResult:
    """Files to commit. A result with ``problem`` has no files."""

    segment: int
    raw: list[WrittenFile] = field(default_factory=list)
    messages: list[WrittenFile] = field(default_factory=list)
    typed: dict[str, list[WrittenFile]] = field(default_factory=dict)
    """By the topic of the table."""
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
        if task.messages is not None or task.typed:
            with ExitStack() as stack:
                _write_rows(task, result, file_system, attempt, stack)
    except (StoreError, OSError, pa.ArrowException) as error:
        return LakeResult(task.manifest.segment, problem=f"{type(error).__name__}: {error}")
    return result


def run_task(task: LakeTask, file_system: FileSystem | None = None) -> LakeResult:
    """Make the files of a segment, in a Spark worker for example. The files of every attempt have their own names."""
    return write_data_files(task, file_system or OsFileSystem(), f"{SystemEntropy().u64():016x}")


def _raw_files(task: LakeTask, target: Target, file_system: FileSystem, attempt: str) -> list[WrittenFile]:
    """Return the files of the archive itself, or copies of those that the table cannot name.

    These do not have the field ids of the table, or are in another kind of store or on another server.
    """
    found = []
    archive = archive_at(task.archive, file_system)
    is_near = _server_of(archive) == target.server
    for number, file in enumerate(task.manifest.files):
        readable = in_archive(archive, file)
        with opened(readable) as archived:
            if not is_near or check_ids(archived.schema_arrow, target.ids):
                found.append(_copied(task, target, archived, file_system, f"{number}-{attempt}"))
            else:
                found.append(written_file(
                    url_of(readable.path), file.size, archived.metadata, target.ids, "raw", None))
    return found


def _server_of(archive: ArchiveStore) -> S3Server | None:
    if not archive.remote:
        return None
    place = place_of(archive.location)
    return S3Server(place.endpoint, place.region)


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
        file = DataFile(files_of(target.server, file_system), path, schema, write_options(most), stack)
        for number in groups:
            file.write(archived.read_row_group(number).cast(schema))
        if (origin := origin_in(archived.metadata, path)) is not None:
            file.note(origin.note)
        return file.finish(target.ids, "raw", None)


def _write_rows(
    task: LakeTask, result: LakeResult, file_system: FileSystem, attempt: str, stack: ExitStack
) -> None:
    """Write the messages of a segment to ``messages`` and to the typed tables, in one pass over its files."""
    scratch, read = Scratch(), Scratch()
    wanted: list[tuple[Target, TypedTarget | None]] = [(one.target, one) for one in task.typed]
    wanted += [(task.messages, None)] if task.messages is not None else []
    writers = [
        _RowWriter(task, target, typed, files_of(target.server, file_system), attempt, stack)
        for target, typed in wanted]
    piece = -1
    for start, table in _row_groups(task, file_system, read):
        if start != piece:  # the rows of a piece of the log are in their order, and a row group of its own
            for one in writers:
                one.begin_piece()
            piece = start
        is_mixed = has_inner_batch(table)
        for made in messages_in(table, task.broker, lambda topic: any(one.has(topic) for one in writers), scratch):
            for one in writers:
                one.add(made, is_mixed=is_mixed)
    for one in writers:
        files = one.finish()
        if one.typed is None:
            result.messages = files
        else:
            result.typed[one.typed.topic.topic] = files


class _RowWriter:
    """Writes the rows of a segment for one table: a file for each day, a row group for about 64 MiB of columns.

    The rows of a row group are in the order of topic, queue and offset. Without ``typed`` the table is ``messages``.
    """

    def __init__(
        self, task: LakeTask, target: Target, typed: TypedTarget | None, place: TableFiles, attempt: str,
        stack: ExitStack,
    ) -> None:
        self._task, self._target, self._place = task, target, place
        self._attempt, self._stack = attempt, stack
        self.typed = typed
        self._kind = "messages" if typed is None else "typed"
        self._schema = marked(MESSAGES_SCHEMA, target.ids) if typed is None else typed.schema
        self._waiting: dict[int | None, list[pa.Table]] = {}
        self._mixed: set[int | None] = set()
        """Days whose waiting rows are not in the order of topic, queue and offset."""
        self._files: dict[int | None, DataFile] = {}

    def has(self, topic: str) -> bool:
        """Return whether the table has messages of a topic."""
        if self.typed is not None:
            return topic == self.typed.topic.topic
        return self._task.every_topic or is_business_topic(topic, self._task.own_topics)

    def begin_piece(self) -> None:
        """End the row groups that are half full, because the rows that follow begin a new order."""
        for day in list(self._waiting):
            if sum(one.nbytes for one in self._waiting[day]) >= _GROUP_BYTES // 2:
                self._flush(day)
        self._mixed.update(self._waiting)

    def add(self, made: pa.Table, *, is_mixed: bool) -> None:
        """Add rows of ``messages``, of any topics."""
        if self.typed is None:
            made = self._own_rows(made)
        made = self._without_forgotten(made)
        if self.typed is not None:
            made = typed_rows(made, self.typed.topic, self._schema)
        if not len(made):
            return
        for day, rows in days_of(made, FORMS[self._kind].time).items():
            waiting = self._waiting.setdefault(day, [])
            waiting.append(rows)
            if is_mixed:
                self._mixed.add(day)
            if sum(one.nbytes for one in waiting) >= 2 * _GROUP_BYTES:
                self._flush(day)

    def _own_rows(self, made: pa.Table) -> pa.Table:
        if all(self.has(one.topic.topic) for one in self._task.typed):
            return made  # the typed tables have brought no topic that this one does not have
        topics = made["topic"].unique().to_pylist()
        return made.filter(pc.is_in(made["topic"], pa.array([one for one in topics if self.has(one)], pa.string())))

    def _without_forgotten(self, made: pa.Table) -> pa.Table:
        for condition, until in self._target.forgotten:
            gone = matching(made, FORMS["messages"], [condition]) & (made["commit_log_offset"].to_numpy() < until)
            if gone.any():
                made = made.filter(pa.array(~gone))
        return made

    def finish(self) -> list[WrittenFile]:
        """End all files, durably, and return them."""
        for day in list(self._waiting):
            self._flush(day)
        return [
            file.finish(self._target.ids, self._kind, day)
            for day, file in sorted(self._files.items(), key=lambda one: -1 if one[0] is None else one[0])]

    def _flush(self, day: int | None) -> None:
        waiting = self._waiting.pop(day)
        table = pa.concat_tables(waiting)
        if day in self._mixed:
            self._mixed.remove(day)
            table = table.sort_by([(name, "ascending") for name in FORMS[self._kind].order])
        if day not in self._files:
            text = "none" if day is None else str(np.datetime64(day, "D"))
            path = f"{self._target.directory}/{file_name(self._task.manifest.segment, text, self._attempt)}"
            self._files[day] = DataFile(
                self._place, path, self._schema, file_options(self._kind, self._schema, ROW_GROUP), self._stack)
        self._files[day].write(table)


def _row_groups(task: LakeTask, file_system: FileSystem, scratch: Scratch) -> Iterator[tuple[int, pa.Table]]:
    """Yield the row groups of an archived segment, each compared with its checksum, and the start of their piece."""
    files: Sequence[ArchivedFile] = sorted(task.manifest.files, key=lambda one: (one.start, one.path))
    archive = archive_at(task.archive, file_system)
    for file in files:
        with opened(in_archive(archive, file), scratch) as found:
            for number in range(found.num_row_groups) if task.messages is not None else groups_with_topic(
                    found, [one.topic.topic for one in task.typed]):
                table = found.read_row_group(number, columns=list(NEEDED), use_threads=False)
                if has_inner_batch(table):
                    table = found.read_row_group(number, columns=list(NEEDED_OF_BATCHES), use_threads=False)
                yield file.start, table
