"""Archives the sealed segments of a store: this module plans and publishes, tasks write.

A segment is sealed when a later segment has records and the queues have a unit for a message after it.
A segment is published in three steps, and a kill may interrupt any of them:

1. The new files get their names: on a disk they are renamed out of ``_staging`` and synced, in an object store the
   tasks have put them there. Each name has the attempt that wrote the file, so no file is replaced.
2. The manifest is put into place. If the segment had one, because it is archived again, the old one is replaced
   unless it has changed since the job has looked.
3. Files of the segment that the manifest does not name are removed.

Before step 2 readers and retention see nothing of the segment, afterwards all of it. In an object store two jobs may
work at the same segment. Then step 2 succeeds for one of them, and the other one removes its files. Step 3 may remove
files of the other job, because that job can no longer publish them. Files that a kill has left are removed by a later
job (``ArchiveStore.left_over``).

Each segment is published as soon as its task has ended, whatever other tasks do (``spark.tasks``). If a task fails, the
segments of other tasks are published, and the next step makes that one again.

With a lag, ranges of the segment that is still written are published in the same steps, with manifests in ``_open``.
Once the sealed segment has its manifest, these ranges no longer count, and their files and manifests are removed.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self, final

import numpy as np

from tailrace import events
from tailrace.config import StoreConfig
from tailrace.env.clock import Clock, SystemClock
from tailrace.env.filesystem import FileSystem, OsFileSystem
from tailrace.errors import ConfigError, CorruptionError, StoreError
from tailrace.logs import get_logger
from tailrace.node.synced_directory import open_synced
from tailrace.segments import MappedFile
from tailrace.spark.archive.index import Indexes, cached_manifest
from tailrace.spark.archive.layout import OPEN_FILE, open_prefix, segment_names
from tailrace.spark.archive.open_segment import (
    OpenRange,
    check_goes_on,
    range_after,
    sealed_segments,
)
from tailrace.spark.archive.options import ArchiveOptions
from tailrace.spark.archive.queue_units import named_in, units_between
from tailrace.spark.archive.task import (
    SegmentResult,
    SegmentTask,
    new_attempt,
    run_task,
    write_segment,
)
from tailrace.store.archive_manifest import (
    HEAD_BYTES,
    OPEN,
    ROWS,
    Manifest,
    ManifestLink,
    archived_name,
    broken_link,
    list_manifests,
    manifest_name,
    open_ranges,
    read_manifest,
    read_versioned,
    write_manifest,
    wrong_file,
)
from tailrace.store.archive_store import ArchiveChangedError, absolute_location, archive_at
from tailrace.store.archive_tables import why_not_again
from tailrace.store.directory import StoreDirectory

__all__ = ["ArchiveJob", "ArchiveOptions", "Runner", "archive_store", "check_places",
           "local_runner", "spark_runner"]

_log = get_logger(__name__)
Runner = Callable[[Iterable[SegmentTask]], Iterable[SegmentResult]]
"""Takes tasks as it has room for them, and returns their results in any order."""
Share = Callable[[float], None]
_ATTEMPT_MAX_NS: Final = 12 * 3600 * 1_000_000_000
"""Time after which a result is not published in an object store: half of that after which its files may be removed."""


def check_places(store: str, archive: str) -> None:
    """Raise ConfigError if the archive would lie inside its own store or cannot be opened; MissingPackageError."""
    if not archive_at(archive).remote and Path(archive).resolve().is_relative_to(Path(store).resolve()):
        raise ConfigError(f"the archive {archive} must not be inside the store {store}")


def _counter(share: Share | None, whole: int) -> Callable[[int], None]:
    """Return a function that adds bytes that are done, and reports their share of ``whole``."""
    done = 0

    def add(size: int) -> None:
        nonlocal done
        done += size
        if share is not None and whole:
            share(done / whole)

    return add


def local_runner(file_system: FileSystem) -> Runner:
    """Return a runner that runs tasks one after the other in this process."""
    return lambda tasks: (write_segment(task, file_system, new_attempt()) for task in tasks)


def spark_runner(spark: Any) -> Runner:
    """Return a runner with a Spark task for each segment.

    All executors need store and archive at the same paths, or the rights to write an archive in an object store.
    """
    from tailrace.spark.tasks import results_of  # noqa: PLC0415 - PySpark

    return lambda tasks: results_of(spark, run_task, tasks)


@final
class ArchiveJob:
    """Writes one archive; ``step`` archives the segments that were sealed since the last step.

    ``archive`` is a directory or a URL ``s3://BUCKET/PREFIX``. Raises NotAStoreError if the directory is not a store,
    StoreLockedError while another job writes the archive, OSError if the archive cannot be written.
    """

    def __init__(
        self, store: str, archive: str, run: Runner, *, options: ArchiveOptions | None = None,
        config: StoreConfig | None = None, clock: Clock | None = None,
        file_system: FileSystem | None = None, progress: Callable[[Manifest], None] | None = None,
    ) -> None:
        check_places(store, archive)
        self._store = str(Path(store).absolute())
        self._archive = archive_at(absolute_location(archive), file_system)
        self._run = run
        self._options = options or ArchiveOptions()
        self._options.check()
        self._config = config
        self._clock = clock or SystemClock()
        self._file_system = file_system or OsFileSystem()
        self._progress = progress
        self._there: list[int] = []
        """Segments with a manifest, in order."""
        self._versions: dict[int, str] = {}
        """Version of the manifest of each segment that this job may write, as it was when the job looked."""
        self._began_ns: dict[int, int] = {}  # when the task of each segment was planned
        self._indexes = Indexes(self._archive)
        self._new_files: list[str] = []
        self.gone: list[int] = []
        """Segments that retention deleted before they were archived."""
        self.skipped = 0
        """Number of segments that were in the archive already."""
        self.checked = 0
        """Number of segments that ``verify`` has read again and found intact."""
        self.ranges: list[Manifest] = []
        """What the last step has published of the segment that is still written."""
        self.lag_ms = 0
        """How old the oldest message was when the last step published it, or if it was not published, when it ended."""
        opened = StoreDirectory(self._store, config=config, file_system=self._file_system)
        self._log_paths = opened.log_paths.all
        self._hold = self._archive.hold()
        try:
            self._remove_left_over()
            self._remove_replaced()
        except BaseException:
            self._hold.release()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let another job write the archive."""
        self._hold.release()

    def step(self, share: Share | None = None) -> list[Manifest]:
        """Archive every sealed segment that is not in the archive. Return what was published.

        ``share`` is called with the share of the bytes that are done, from 0 to 1. Raises StoreError if the
        archive holds segments of another store, or, after all others were published, if a segment could not
        be archived.
        """
        self.ranges, self.lag_ms = [], 0
        made = self._archive_sealed(share)
        if self._options.lag_ms:
            self._archive_open()
        return made

    def _archive_sealed(self, share: Share | None) -> list[Manifest]:
        names = [name for path in self._log_paths for name in self._file_system.list(path)]
        if names == self._new_files:
            return []  # a segment is sealed only when the log has a new file
        self._there = list_manifests(self._archive)
        directory = StoreDirectory(self._store, config=self._config, file_system=self._file_system)
        sealed = sealed_segments(directory)
        waiting: list[tuple[MappedFile, Manifest | None]] = []
        held: list[str] = []
        self.skipped = 0
        for file in sealed:
            published = self._look(file.file_from_offset)
            if published is None:
                waiting.append((file, None))
                continue
            self._check_is_of(published, file)
            if why := wrong_file(self._archive, published):
                if held_by := why_not_again(self._archive, self._options.tables):
                    held.append(f"segment {published.segment}: {why}; {held_by}")
                    continue
                events.A_SEGMENT_IS_ARCHIVED_AGAIN.log(_log, segment=published.segment, cause=why)
                waiting.append((file, None))
            elif published.verified or not self._options.verify:
                self.skipped += 1
            else:
                waiting.append((file, published))
        done = _counter(share, sum(file.size for file, _ in waiting))
        made, problems = self._run_tasks(directory, waiting, done)
        self._indexes.write(self._there)
        if problems := held + problems:
            raise StoreError("; ".join(problems))
        if len(sealed) >= len(directory.log_files) - 1:
            self._new_files = names
        return made

    def verify(self, *, accept_missing: bool = False, share: Share | None = None) -> list[Manifest]:
        """Read every archived segment again and compare it with its checksums.

        A damaged segment is archived again if the log still has it. Manifests of version 1 whose segment is
        intact are written again, with checksums and links. With ``accept_missing`` the archive becomes valid
        without the missing manifests. ``share`` is called with the share of the bytes that are read, from 0
        to 1. Return the manifests of the segments that were archived again. Raises StoreError that names every
        segment that stays damaged or missing.
        """
        self.checked = 0
        broken: dict[int, str] = {}
        found: list[Manifest] = []
        self._there = list_manifests(self._archive)
        for segment in self._there:
            try:
                manifest = self._look(segment, cached=False)
            except CorruptionError as error:
                broken[segment] = str(error)
            else:
                found += [manifest] if manifest is not None else []
        directory = StoreDirectory(self._store, config=self._config, file_system=self._file_system)
        in_log = {file.file_from_offset: file for file in sealed_segments(directory)}
        for manifest in found:
            if manifest.segment in in_log:
                self._check_is_of(manifest, in_log[manifest.segment])
        known = {one.segment: one for one in found}
        done = _counter(share, sum(one.size for one in found))
        with closing(self._results(self._resting(one) for one in found)) as results:
            for result in results:
                done(known[result.task_segment].size)
                if result.manifest is None:
                    broken[result.task_segment] = result.problem
                    continue
                self.checked += 1
                if result.manifest != known[result.task_segment]:
                    self._write(result.manifest)
        for segment, why in broken.items():
            events.A_SEGMENT_OF_THE_ARCHIVE_IS_DAMAGED.log(_log, segment=segment, cause=why)
        held_by = why_not_again(self._archive, self._options.tables) if broken else ""
        made, problems = self._run_tasks(
            directory, [(in_log[one], None) for one in sorted(broken) if one in in_log and not held_by],
            _counter(None, 0))
        problems += [
            f"segment {one}: {why}; {held_by}" for one, why in sorted(broken.items()) if held_by and one in in_log]
        problems += [
            f"segment {one}: {why}; the log no longer has the segment"
            for one, why in sorted(broken.items()) if one not in in_log]
        problems += self._mend_links(accept_missing=accept_missing)
        self._indexes.write(self._there)
        if problems:
            raise StoreError("; ".join(problems))
        return made

    def _run_tasks(
        self, directory: StoreDirectory, waiting: Sequence[tuple[MappedFile, Manifest | None]],
        done: Callable[[int], None],
    ) -> tuple[list[Manifest], list[str]]:
        """Archive or compare segments, and call ``done`` with the size of each.

        Return what was published, in the order of the log, and the problems.
        """
        sizes = {file.file_from_offset: file.size for file, _ in waiting}
        made: list[Manifest] = []
        problems: list[str] = []
        with closing(self._results(self._planned(directory, waiting))) as results:
            for result in results:
                self._finish(result, made, problems)
                done(sizes[result.task_segment])
        return sorted(made, key=lambda one: one.segment), problems

    def _results(self, tasks: Iterable[SegmentTask]) -> Generator[SegmentResult, None, None]:
        """Run tasks. When this generator is closed, so is that of the runner, which then ends the tasks that run."""
        yield from self._run(tasks)

    def _planned(
        self, directory: StoreDirectory, waiting: Sequence[tuple[MappedFile, Manifest | None]]
    ) -> Iterator[SegmentTask]:
        """Plan the tasks of ``at_once`` segments when the first of them is asked for."""
        for first in range(0, len(waiting), self._options.at_once):
            for task in self._tasks(directory, waiting[first : first + self._options.at_once]):
                self._began_ns[task.segment] = self._clock.monotonic_ns()
                yield task

    def _archive_open(self) -> None:
        """Archive a range of the first segment that is not sealed."""
        directory = open_synced(self._store, config=self._config, file_system=self._file_system).directory
        following = directory.log_files[len(sealed_segments(directory)) :]
        if not following or self._has(following[0].file_from_offset):
            return
        if (sealed := directory.log_files[: -len(following)]) and not self._has(sealed[-1].file_from_offset):
            return  # it was sealed since this step has looked, and the next one archives it
        file = following[0]
        ranges = self._ranges_of(file.file_from_offset, file.file_from_offset + file.size)
        if ranges:
            check_goes_on(self._archive.location, self._store, file, ranges[-1])
        found = range_after(directory, file, ranges)
        if found is None:
            return
        if found.stored_ms < 0 or found.age_ms(self._clock.now_ms()) * 2 >= self._options.lag_ms:
            self._archive_range(directory, found)
        self.lag_ms = found.age_ms(self._clock.now_ms())

    def _ranges_of(self, segment: int, until: int) -> list[Manifest]:
        """Return the ranges of a segment that are archived; none if one of them is damaged, then all are made again."""
        try:
            return open_ranges(self._archive, segment)
        except CorruptionError as error:
            events.A_SEGMENT_OF_THE_ARCHIVE_IS_DAMAGED.log(_log, segment=segment, cause=str(error))
            self._remove_ranges(segment, until)
            return []

    def _archive_range(self, directory: StoreDirectory, found: OpenRange) -> None:
        file, size = found.file, found.end - found.start
        wanted, named = named_in(units_between(directory, found.start, found.end), found.start, size)
        task = SegmentTask(
            self._store, self._config, self._archive.location, file.path, found.start, size, tuple(wanted),
            tuple(np.bincount(named[:, 2], minlength=len(wanted)).tolist()), self._options.piece_bytes,
            self._options.verify, within=file.file_from_offset)
        self._began_ns[task.segment] = self._clock.monotonic_ns()
        for result in self._run([task]):
            if result.gone:
                return
            if result.manifest is None:
                self._remove_failed(file.file_from_offset, result)
                raise StoreError(f"segment {file.file_from_offset} from {found.start}: {result.problem}")
            manifest = replace(result.manifest, archived_at=self._clock.now_ms())
            self._check_time(found.start)
            self._archive.publish(list(zip(result.staged, (one.path for one in manifest.files), strict=True)))
            try:
                write_manifest(self._archive, manifest, OPEN)
            except ArchiveChangedError:
                self._remove_refused(result, manifest)
                raise
            self._remove_files(file.file_from_offset, [manifest], open_prefix(found.start), _days_of(manifest))
            self._archive.end_attempts(file.file_from_offset, result.attempt)
            self.ranges.append(manifest)
            events.ARCHIVED_A_RANGE_OF_THE_LAST_SEGMENT.log(
                _log, segment=file.file_from_offset, from_=found.start, until=found.end, messages=manifest.messages,
                verified=manifest.verified)

    # -- planning

    def _check_is_of(self, published: Manifest, file: MappedFile) -> None:
        """Raise StoreError if a manifest belongs to a segment of another store."""
        head = file.read(0, HEAD_BYTES)
        if published.size != file.size or (head and zlib.crc32(head) != published.head_crc32):
            written = f", it was written from {published.store}" if published.store else ""
            raise StoreError(
                f"{self._archive.location} holds another segment {file.file_from_offset} than "
                f"{self._store}{written}: an archive is for one store")

    def _resting(self, manifest: Manifest) -> SegmentTask:
        """Return a task that verifies an archived segment without the log."""
        return SegmentTask(
            self._store, self._config, self._archive.location, "", manifest.segment, manifest.size, (), (),
            self._options.piece_bytes, verify=True, published=manifest)

    def _tasks(
        self, directory: StoreDirectory, files: Sequence[tuple[MappedFile, Manifest | None]]
    ) -> list[SegmentTask]:
        start = files[0][0].file_from_offset
        until = files[-1][0].file_from_offset + files[-1][0].size
        units = units_between(directory, start, until)
        tasks = []
        for file, published in files:
            wanted, named = named_in(units, file.file_from_offset, file.size)
            tasks.append(SegmentTask(
                self._store, self._config, self._archive.location, file.path, file.file_from_offset, file.size,
                tuple(wanted), tuple(np.bincount(named[:, 2], minlength=len(wanted)).tolist()),
                self._options.piece_bytes, self._options.verify, published))
        return tasks

    # -- publishing

    def _finish(self, result: SegmentResult, made: list[Manifest], problems: list[str]) -> None:
        if result.gone:
            self.gone.append(result.task_segment)
            events.A_SEGMENT_WAS_DELETED_BEFORE_IT_WAS_ARCHIVED.log(_log, segment=result.task_segment)
        elif result.manifest is None:
            problems.append(f"segment {result.task_segment}: {result.problem}")
            self._remove_failed(result.task_segment, result)
        else:
            manifest = replace(result.manifest, archived_at=self._clock.now_ms())
            try:
                self._publish(manifest, result)
            except ArchiveChangedError as error:
                problems.append(f"segment {manifest.segment}: {error}")
            else:
                made.append(manifest)
                if self._progress is not None:
                    self._progress(manifest)

    def _publish(self, manifest: Manifest, result: SegmentResult) -> None:
        old = self._readable(manifest.segment)
        if result.staged:
            self._check_time(manifest.segment)
            manifest = replace(manifest, before=old.before if old is not None else None)
            self._archive.publish(list(zip(result.staged, (one.path for one in manifest.files), strict=True)))
        try:
            self._write(manifest)
        except ArchiveChangedError:
            self._remove_refused(result, manifest)
            raise
        if result.staged:
            for file in old.files if old is not None else ():  # they may have the names of older archives
                if file.path not in {one.path for one in manifest.files}:
                    self._archive.delete(archived_name(self._archive, file.path))
            self._remove_files(manifest.segment, [manifest], "", _days_of(manifest))
        self._remove_ranges(manifest.segment, manifest.until)
        for name in (result.attempt, ""):
            self._archive.end_attempts(manifest.segment, name)
        events.ARCHIVED_A_SEGMENT.log(
            _log, segment=manifest.segment, messages=manifest.messages, files=len(manifest.files),
            verified=manifest.verified)

    def _check_time(self, segment: int) -> None:
        """Raise StoreError if another job may soon take the files of a task for left over."""
        took_ns = self._clock.monotonic_ns() - self._began_ns.pop(segment)
        if self._archive.remote and took_ns > _ATTEMPT_MAX_NS:
            raise StoreError(
                f"segment {segment}: its task took more than {_ATTEMPT_MAX_NS // 3600_000_000_000} hours, so it is not "
                f"published in {self._archive.location}; run the job again")

    def _remove_refused(self, result: SegmentResult, manifest: Manifest) -> None:
        """Remove the files of an attempt whose manifest was refused, which no job can publish any more."""
        if result.staged:
            for file in manifest.files:
                self._archive.delete(file.path)
            self._archive.end_attempts(manifest.segment, result.attempt)

    def _look(self, segment: int, *, cached: bool = True) -> Manifest | None:
        """Return the manifest of a segment, and remember its version for a write. Raises CorruptionError."""
        head = self._archive.head(manifest_name(segment))
        self._versions[segment] = "" if head is None else head.version
        if head is None:
            return None
        return cached_manifest(self._archive, segment, head) if cached else read_manifest(self._archive, segment)

    def _write(self, manifest: Manifest) -> None:
        """Write a manifest with its link, and the link of the manifest after it."""
        there, place = self._there, bisect_left(self._there, manifest.segment)
        before = manifest.before
        # The link to a missing manifest is kept, because nothing else says that it is missing.
        if before is None or self._has(before.segment):
            before = self._link_to(there[place - 1]) if place else None
        self._indexes.drop(manifest.segment)
        self._versions[manifest.segment] = write_manifest(
            self._archive, replace(manifest, before=before), version=self._versions.get(manifest.segment, ""))
        if not self._has(manifest.segment):
            there.insert(place, manifest.segment)
        link = ManifestLink(manifest.segment, manifest.sha256)
        if place + 1 < len(there):
            following, version = read_versioned(self._archive, there[place + 1])
            if following is not None and following.protected and following.before != link and (
                following.before is None or (
                    following.before.segment <= manifest.segment and self._has(following.before.segment))
            ):
                self._indexes.drop(following.segment)
                self._versions[following.segment] = write_manifest(
                    self._archive, replace(following, before=link), version=version)

    def _has(self, segment: int) -> bool:
        place = bisect_left(self._there, segment)
        return place < len(self._there) and self._there[place] == segment

    def _readable(self, segment: int) -> Manifest | None:
        return read_versioned(self._archive, segment)[0]

    def _link_to(self, segment: int) -> ManifestLink:
        """Return a link to a manifest, without a checksum if the manifest cannot be read."""
        manifest = self._readable(segment)
        return ManifestLink(segment, "" if manifest is None else manifest.sha256)

    def _mend_links(self, *, accept_missing: bool) -> list[str]:
        """Write links that are missing after a kill. Return problems: manifests that are missing."""
        read = [read_versioned(self._archive, segment) for segment in self._there]
        found = [one for one, _ in read if one is not None]
        versions = [version for one, version in read if one is not None]
        there = {one.segment for one in found}
        for number, one in enumerate(found):
            link = None if number == 0 else ManifestLink(
                found[number - 1].segment, found[number - 1].sha256)
            missing = one.before is not None and one.before.segment not in there
            if one.protected and one.before != link and (accept_missing or not missing):
                found[number] = replace(one, before=link)
                self._indexes.drop(one.segment)
                self._versions[one.segment] = write_manifest(self._archive, found[number], version=versions[number])
        why = broken_link(found)
        return [] if why is None else [
            (f"{self._archive.location}: {why}: restore it from a copy, or continue without it with "
            "--accept-missing")]

    def _remove_left_over(self) -> None:
        """Remove files of attempts that a kill has ended."""
        for attempt in self._archive.left_over():
            if self._remove_attempt(attempt.segment, attempt.name):
                events.REMOVED_FILES_OF_AN_ATTEMPT.log(_log, segment=attempt.segment, attempt=attempt.name)

    def _remove_failed(self, segment: int, result: SegmentResult) -> None:
        """Remove files of a task that has failed, or each try would add some to a disk that is full."""
        with suppress(StoreError, OSError):  # otherwise a later job removes them
            self._remove_attempt(segment, result.attempt)

    def _remove_attempt(self, segment: int, name: str) -> bool:
        """Return False if nothing was removed: a manifest that is damaged keeps all files of its segment."""
        try:
            manifest = read_manifest(self._archive, segment)
            ranges = open_ranges(self._archive, segment)
        except CorruptionError:
            return False
        kept = [*([manifest] if manifest is not None else []), *ranges]
        self._remove_files(segment, kept, "", None, f"-{name}.parquet")
        self._archive.end_attempts(segment, name)
        return True

    def _remove_replaced(self) -> None:
        """Remove ranges whose segment has a manifest by now: an earlier job ended before it had done that."""
        starts = list_manifests(self._archive, OPEN)
        there = list_manifests(self._archive) if starts else []
        for start in starts:
            place = bisect_right(there, start) - 1
            sealed = self._readable(there[place]) if place >= 0 else None
            if sealed is not None and start < sealed.until:
                self._remove_ranges(sealed.segment, sealed.until)

    def _remove_ranges(self, segment: int, until: int) -> None:
        """Remove the ranges of a segment; files before manifests, by which a later job finds what a kill has left."""
        starts = [one for one in list_manifests(self._archive, OPEN) if segment <= one < until]
        try:
            found = [read_manifest(self._archive, start, OPEN) for start in starts]
            days: set[str] | None = set().union(*(_days_of(one) for one in found if one is not None))
        except CorruptionError:
            days = None  # files of the damaged manifest may be in any day
        self._remove_files(segment, (), OPEN_FILE, days)
        for start in starts:
            self._archive.delete(manifest_name(start, OPEN))

    def _remove_files(
        self, segment: int, kept: Iterable[Manifest], prefix: str, days: Collection[str] | None, suffix: str = ""
    ) -> None:
        """Remove files of a segment that the manifests ``kept`` do not name, in some days or in all.

        Only files whose names have the prefix and the suffix are removed.
        """
        named = {archived_name(self._archive, file.path) for one in kept for file in one.files}
        for day in self._archive.list(ROWS) if days is None else days:
            for directory in segment_names(segment):
                place = f"{ROWS}/{day}/{directory}"
                for name in self._archive.list(place):
                    if name.startswith(prefix) and name.endswith(suffix) and f"{place}/{name}" not in named:
                        self._archive.delete(f"{place}/{name}")


def _days_of(manifest: Manifest) -> set[str]:
    """Return the names of the directories of the days that have files of a manifest."""
    return {file.path.split("/")[-3] for file in manifest.files}


def archive_store(
    spark: Any, store: str, archive: str, *, options: ArchiveOptions | None = None,
    config: StoreConfig | None = None, progress: Callable[[Manifest], None] | None = None,
) -> list[Manifest]:
    """Archive the sealed segments that are not in the archive. Return what was published. See ``ArchiveJob``."""
    with ArchiveJob(store, archive, spark_runner(spark), options=options, config=config, progress=progress) as job:
        return job.step()
