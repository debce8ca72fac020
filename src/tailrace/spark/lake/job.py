"""Brings the tables up to date with an archive: this module plans and commits, tasks make files.

The archive is the source, so a table can be created at any time, also after the log was deleted. Segments are added in
the order of the log. A segment that is in the log and not in the archive yet holds back the segments after it; one that
retention deleted before it was archived does not.

The table ``messages`` and the typed tables also get the ranges that the archive has of the segment that is still
written. The commit that adds the sealed segment takes their rows out again.

A kill at any step leaves whole segments in each table: rows and mark are one commit. Data files of commits that did not
happen are removed by the next job for the same archive and table.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, final

from tailrace import events
from tailrace.config import BrokerConfig, StoreConfig
from tailrace.env.clock import Clock, SystemClock
from tailrace.env.filesystem import FileSystem, OsFileSystem
from tailrace.errors import StoreError
from tailrace.logs import get_logger
from tailrace.spark.lake.bodies.rows import TopicSchema
from tailrace.spark.lake.bodies.topics import TopicSchemas
from tailrace.spark.lake.catalogue import FORGOTTEN, Lake, LakeTable, Mark
from tailrace.spark.lake.commit import commit, expire_snapshots, files_of_ranges
from tailrace.spark.lake.files import WrittenFile, segment_of
from tailrace.spark.lake.places import path_of
from tailrace.spark.lake.task import LakeResult, LakeTask, Target, TypedTarget, run_task
from tailrace.store.archive_manifest import (
    OPEN,
    Manifest,
    list_manifests,
    open_ranges,
    read_manifest,
)
from tailrace.store.archive_store import absolute_location, archive_at
from tailrace.store.archive_tables import CommitCounts, add_counts, attach
from tailrace.store.directory import StoreDirectory
from tailrace.store.log_paths import segment_files

__all__ = ["LakeJob", "LakeReport", "local_runner", "spark_runner"]

_log = get_logger(__name__)
Runner = Callable[[Sequence[LakeTask]], Iterable[LakeResult]]
_GROUP: Final = 64
"""Largest number of segments in a commit."""
_NOTHING: Final = Mark(0, -1, "", 0)
"""The mark of a table without a row of the broker."""
_GROUP_MS: Final = 60_000
"""A commit is made when its first segment has waited this long."""


@dataclass(slots=True)
class LakeReport:
    """What a step has added to the tables. ``waits`` says why later segments were not added."""

    segments: int = 0
    ranges: int = 0
    """Ranges of the segment that is still written. Their rows are in ``message_rows``, and once more when the segment
    is sealed."""
    raw_rows: int = 0
    message_rows: int = 0
    commits: int = 0
    waits: str = ""
    typed_rows: int = 0
    bad_bodies: int = 0
    """Rows of typed tables whose body does not fit its schema."""
    retries: int = 0
    """Commits that were sent again, because another program had changed the table."""
    refused: list[str] = field(default_factory=list)
    """Why typed tables were left out of the step, such as a registry that does not answer."""


@dataclass(slots=True)
class _Group:
    """Segments that are not committed yet, with their files."""

    manifests: list[Manifest] = field(default_factory=list)
    results: list[LakeResult] = field(default_factory=list)
    since_ms: int = 0


def local_runner(file_system: FileSystem) -> Runner:
    """Return a runner that runs tasks one after the other in this process."""
    return lambda tasks: (run_task(task, file_system) for task in tasks)


def spark_runner(spark: Any) -> Runner:
    """Return a runner with a Spark task for each segment. All executors need archive and tables at the same paths."""
    from tailrace.spark.tasks import all_of  # noqa: PLC0415 - PySpark

    return lambda tasks: all_of(spark, run_task, tasks)


@final
class LakeJob:
    """Adds the segments of an archive, in a directory or a bucket, to the tables of ``lake``.

    The caller holds the archive (``ArchiveStore.hold``).

    ``at_once`` segments are read together. ``broker`` names the topics of the system that ``messages`` leaves out.
    ``schemas`` names the topics that have typed tables.
    """

    def __init__(
        self, store: str, archive: str, lake: Lake, run: Runner, *, broker: BrokerConfig, at_once: int = 2,
        config: StoreConfig | None = None, clock: Clock | None = None, file_system: FileSystem | None = None,
        progress: Callable[[LakeReport], None] | None = None, schemas: TopicSchemas | None = None,
    ) -> None:
        self._store = str(Path(store).absolute())
        self._there = archive_at(absolute_location(archive), file_system)
        self._archive = self._there.location
        self._lake, self._run, self._at_once = lake, run, at_once
        self._file_system = file_system or OsFileSystem()
        self._own_topics = frozenset({
            broker.broker_name, broker.broker_cluster_name, f"{broker.broker_cluster_name}_REPLY_TOPIC"})
        self._log_paths = StoreDirectory(
            self._store, config=config, file_system=self._file_system, raw=True).log_paths.all
        self._clock = clock or SystemClock()
        self._progress = progress
        self._schemas = schemas
        self._typed: dict[str, TopicSchema] = {}
        """By the names of the typed tables among ``_tables``."""
        self._opened: dict[str, LakeTable] = {}
        """Typed tables by topic."""
        self._forgotten: dict[str, str] = {}
        """The property FORGOTTEN of each table when the step began."""
        self._tables = [lake.raw, lake.messages]
        attach(self._there, lake.catalogue, lake.namespace)
        for table in self._tables:
            self._begin(table)

    def step(self) -> LakeReport:
        """Add the segments that the archive has and the tables do not have. Return what was added.

        Raises StoreError if a segment or a commit fails; what was committed before stays. The numbers of commits are
        written to the archive in any case.
        """
        report = LakeReport()
        try:
            self._add(report)
        except (StoreError, OSError):
            self._write_counts(report)
            raise
        self._write_counts(report)
        return report

    def _write_counts(self, report: LakeReport) -> None:
        found = CommitCounts()
        for table in self._tables:
            found, table.counts = found.plus(table.counts), CommitCounts()
        report.retries = found.retries
        add_counts(self._there, self._lake.catalogue, self._lake.namespace, found)

    def _add(self, report: LakeReport) -> None:
        self._open_typed(report)
        marks = [table.refresh() for table in self._tables]
        waiting, report.waits = self._waiting(marks)
        self._forgotten = {one.name: one.table.properties.get(FORGOTTEN, "") for one in self._tables}
        targets = [self._target(table) for table in self._tables]
        self._replace(waiting, marks, targets, report)
        new = [one for one in waiting if one.segment >= min(_until(mark) for mark in marks)]
        group = _Group()
        for first in range(0, len(new), self._at_once):
            window = new[first : first + self._at_once]
            done = {one.segment: one for one in self._run([self._task(one, marks, targets) for one in window])}
            for manifest in window:
                result = done[manifest.segment]
                if result.problem:
                    self._commit(group, report)
                    raise StoreError(f"segment {manifest.segment} is not in the tables: {result.problem}")
                if not group.manifests:
                    group.since_ms = self._clock.now_ms()
                group.manifests.append(manifest)
                group.results.append(result)
            if len(group.manifests) >= _GROUP or self._clock.now_ms() - group.since_ms >= _GROUP_MS:
                self._commit(group, report)
                group = _Group()
        self._commit(group, report)
        if not report.waits:
            self._add_ranges(report)

    # -- planning

    def _begin(self, table: LakeTable) -> None:
        mark = table.refresh()
        self._check_identity(table, mark)
        self._remove_left_over(table, mark or _NOTHING)

    def _open_typed(self, report: LakeReport) -> None:
        """Open the typed tables with the schemas as they are now. One that cannot be is left out and reported."""
        self._tables = [self._lake.raw, self._lake.messages]
        self._typed = {}
        if (schemas := self._schemas) is None:
            return
        for topic in schemas.topics:
            try:
                schema = schemas.schema_of(topic)
                table = self._lake.typed(schema)
                if topic not in self._opened:
                    self._begin(table)
                self._opened[topic] = table
            except StoreError as error:
                report.refused.append(f"topic {topic} is not in its typed table: {error}")
                continue
            self._tables.append(table)
            self._typed[table.name] = schema

    def _target(self, table: LakeTable) -> Target:
        """Return the target of a table. Its directory is of this archive alone, so that no other job removes a file."""
        target = table.target
        return replace(target, directory=f"{target.directory}/{zlib.crc32(self._archive.encode()):08x}")

    def _waiting(self, marks: Sequence[Mark | None]) -> tuple[list[Manifest], str]:
        """Return the manifests that may have to be added or replaced, and why there are not more."""
        in_log = self._log_segments()
        least = min(_until(mark) for mark in marks)
        known = frozenset(in_log)
        found: list[Manifest] = []
        expected = least
        for segment in list_manifests(self._there):
            if segment < least and segment not in known:
                continue  # only a segment that the log has can have been archived again
            manifest = read_manifest(self._there, segment)
            if manifest is None:
                continue
            if segment >= least:
                missing = next((one for one in in_log if expected <= one < segment), None)
                if missing is not None:
                    return found, f"segment {missing} is in the log and not in the archive"
                if not manifest.verified:
                    return found, f"segment {segment} of the archive is not verified"
                expected = manifest.until
            found.append(manifest)
        return found, ""

    def _log_segments(self) -> list[int]:
        """Return the positions of the segments that the log has."""
        return [offset for offset, _ in segment_files(self._file_system, self._log_paths)]

    def _task(
        self, manifest: Manifest, marks: Sequence[Mark | None], targets: Sequence[Target], *, replaced: bool = False
    ) -> LakeTask:
        raw, messages, *typed = (
            target if manifest.segment >= _until(mark) else None for target, mark in zip(targets, marks, strict=True))
        return LakeTask(
            self._archive, manifest, self._lake.messages.broker, self._own_topics, self._lake.every_topic,
            targets[0] if replaced else raw, None if replaced else messages,
            () if replaced else tuple(
                TypedTarget(target, table.whole_schema, self._typed[table.name])
                for target, table in zip(typed, self._tables[2:], strict=True) if target is not None))

    def _check_identity(self, table: LakeTable, mark: Mark | None) -> None:
        """Raise StoreError unless the archive has the segment that a mark names."""
        if mark is None or mark.segment < 0:
            return
        last = read_manifest(self._there, mark.segment)
        if last is None or last.sha256 != mark.sha256:
            raise StoreError(
                f"the table {table.name} has the broker {table.broker} up to segment {mark.segment}, and "
                f"{self._archive} has {'no such segment' if last is None else 'another segment there'}: it is the "
                "archive of another store, whose broker needs a brokerName of its own in --config")

    # -- commits

    def _replace(
        self, waiting: Sequence[Manifest], marks: list[Mark | None], targets: Sequence[Target], report: LakeReport
    ) -> None:
        """Exchange the files of segments that were archived again since the table ``raw`` got them."""
        mark = marks[0]
        if mark is None:
            return
        again = [one for one in waiting if one.segment < mark.until and one.archived_at > mark.archived_at]
        if not again:
            return
        results = [*self._run([self._task(one, marks, targets, replaced=True) for one in again])]
        for result in results:
            if result.problem:
                raise StoreError(f"segment {result.segment} is not in the tables: {result.problem}")
        later = mark._replace(archived_at=max(one.archived_at for one in again))
        commit(
            self._lake.raw, [file for one in results for file in one.raw], mark, later,
            [(one.segment, one.until) for one in again])
        marks[0] = later
        report.commits += 1

    def _add_ranges(self, report: LakeReport) -> None:
        """Add the ranges of the segment that is still written to ``messages`` and the typed tables."""
        for table in self._tables[1:]:
            self._add_ranges_to(table, report)

    def _add_ranges_to(self, table: LakeTable, report: LakeReport) -> None:
        before = table.refresh() or _NOTHING
        there = list_manifests(self._there, OPEN)
        begin = before.until if before.segment >= 0 else min(there, default=0)
        found = open_ranges(self._there, begin)
        new = [one for one in found if one.segment >= before.reached]
        if not new:
            return
        if before.open_until and new[0].segment != before.open_until:
            report.waits = (f"the archive has other ranges of the segment {begin} than the table {table.name}, which "
                            "gets the segment when it is sealed")
            return
        if not all(one.verified for one in new):
            report.waits = f"a range of the segment {begin} is not verified"
            return
        every = Mark(1 << 63, -1, "", 0)
        marks = [None if one is table else every for one in self._tables]
        targets = [self._target(one) for one in self._tables]
        results = [*self._run([self._task(one, marks, targets) for one in new])]
        for result in results:
            if result.problem:
                raise StoreError(f"the range at {result.segment} is not in the tables: {result.problem}")
        files = [file for one in results for file in self._files(one, table)]
        rows = sum(file.rows for file in files)
        mark = before._replace(
            open_until=new[-1].until, open_rows=before.open_rows + rows,
            until=begin if before.segment < 0 else before.until)
        commit(table, files, None if before is _NOTHING else before, mark, forgotten=self._forgotten[table.name])
        expire_snapshots(table)
        self._count(table, files, report)
        if table.kind == "messages":
            report.ranges += len(new)

    def _files(self, result: LakeResult, table: LakeTable) -> list[WrittenFile]:
        if table.kind == "typed":
            return result.typed[self._typed[table.name].topic]
        return result.raw if table.kind == "raw" else result.messages

    def _count(self, table: LakeTable, files: Sequence[WrittenFile], report: LakeReport) -> None:
        rows = sum(file.rows for file in files)
        report.commits += 1
        if table.kind == "raw":
            report.raw_rows += rows
        elif table.kind == "messages":
            report.message_rows += rows
        else:
            report.typed_rows += rows
            number = table.ids.of["_error"]
            bad = sum(file.value_counts.get(number, 0) - file.null_counts.get(number, 0) for file in files)
            report.bad_bodies += bad
            if bad:
                events.BODIES_DO_NOT_FIT_THEIR_SCHEMA.log(_log, table=table.name, count=bad)

    def _commit(self, group: _Group, report: LakeReport) -> None:
        if not group.manifests:
            return
        for table in self._tables:
            before = table.refresh()
            new = [
                (one, result) for one, result in zip(group.manifests, group.results, strict=True)
                if one.segment >= _until(before)]
            if not new:
                continue
            files = [file for _, result in new for file in self._files(result, table)]
            last = new[-1][0]
            newest = max(one.archived_at for one, _ in new)
            commit(table, files, before, Mark(
                last.until, last.segment, last.sha256, newest if before is None else max(newest, before.archived_at)),
                forgotten=self._forgotten[table.name] if table.kind != "raw" else None)
            expire_snapshots(table)
            self._count(table, files, report)
        report.segments += len(group.manifests)
        if self._progress is not None:
            self._progress(report)

    def _remove_left_over(self, table: LakeTable, mark: Mark) -> None:
        """Remove files of attempts that were not committed: those of segments that the table does not have.

        Nothing locks an archive in a bucket, so there they may be of a job that still works. ``expire`` removes them
        when they are old.
        """
        if self._there.remote:
            return
        named = {path_of(one.file_path) for one in files_of_ranges(table, mark.until)} if mark.open_until else set()
        files, place = table.files(self._file_system), self._target(table).directory
        left = [
            path for path, _, _ in files.walk(place)
            if (segment := segment_of(path)) is not None and segment >= mark.until and path not in named]
        files.remove(left)


def _until(mark: Mark | None) -> int:
    return 0 if mark is None else mark.until
