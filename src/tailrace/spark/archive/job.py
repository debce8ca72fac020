"""Archives the sealed segments of a store: this module plans and publishes, tasks write.

A segment is sealed when a later segment has records and the queues have a unit for a message after it.
A segment is published in three steps, and a kill may interrupt any of them:

1. Files that no manifest names are removed from the directories of the segment.
2. The new files are renamed into these directories and synced.
3. The manifest is renamed into place.

Before step 3 readers and retention see nothing of the segment, afterwards all of it. A segment that was not
published is archived again under the same names. If a published segment is archived again, because one of its
files is missing or damaged, its manifest is removed first.

With a lag, ranges of the segment that is still written are published in the same steps, with manifests in ``_open``.
Once the sealed segment has its manifest, these ranges no longer count, and their files and manifests are removed.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import methodcaller
from pathlib import Path
from typing import Any, Final, Self, final

import numpy as np

from tailrace import events
from tailrace.config import StoreConfig
from tailrace.env.clock import Clock, SystemClock
from tailrace.env.filesystem import FileSystem, OsFileSystem
from tailrace.errors import ConfigError, CorruptionError, StoreError, StoreLockedError
from tailrace.formats.consumequeue import PRE_BLANK_SIZE
from tailrace.logs import get_logger
from tailrace.node.synced_directory import open_synced
from tailrace.segments import MappedFile
from tailrace.spark.archive.index import Indexes, cached_manifest
from tailrace.spark.archive.layout import (
    LOCK,
    OPEN_FILE,
    STAGING,
    open_prefix,
    segment_names,
    staging_path,
)
from tailrace.spark.archive.open_segment import OpenRange, check_goes_on, range_after
from tailrace.spark.archive.queue_units import named_in, units_between
from tailrace.spark.archive.task import SegmentResult, SegmentTask, run_task, write_segment
from tailrace.store.archive_manifest import (
    HEAD_BYTES,
    MANIFESTS,
    OPEN,
    ROWS,
    Manifest,
    ManifestLink,
    broken_link,
    list_manifests,
    manifest_path,
    open_ranges,
    read_manifest,
    write_manifest,
    wrong_file,
)
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.store.directory import DirectoryState, StoreDirectory

__all__ = ["ArchiveJob", "ArchiveOptions", "Runner", "archive_store", "check_places",
           "local_runner", "spark_runner"]

_log = get_logger(__name__)
Runner = Callable[[Sequence[SegmentTask]], Iterable[SegmentResult]]
Share = Callable[[float], None]
_LEAST_PIECE: Final = 1 << 16
_MOST_PIECE: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveOptions:
    """Options of the job: a file holds ``piece_bytes`` of the log, and ``at_once`` segments are written together.

    With ``lag_ms`` a step also archives what is synced of the segment that is still written, if its oldest message is
    older than half of this time. 0 leaves that segment out.
    """

    piece_bytes: int = 64 << 20
    at_once: int = 2
    verify: bool = True
    lag_ms: int = 0

    def check(self) -> None:
        """Raise ConfigError for invalid values."""
        if not _LEAST_PIECE <= self.piece_bytes <= _MOST_PIECE:
            raise ConfigError(
                f"piece_bytes={self.piece_bytes} is not between {_LEAST_PIECE} and {_MOST_PIECE}")
        if self.at_once < 1:
            raise ConfigError(f"at_once={self.at_once} is not at least 1")


def check_places(store: str, archive: str) -> None:
    """Raise ConfigError if the archive would lie inside its own store."""
    if Path(archive).resolve().is_relative_to(Path(store).resolve()):
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
    return lambda tasks: (write_segment(task, file_system, "local") for task in tasks)


def spark_runner(spark: Any) -> Runner:
    """Return a runner with a Spark task for each segment. All executors need store and archive at the same paths."""
    return lambda tasks: (
        spark.sparkContext.parallelize(tasks, len(tasks)).map(run_task).collect())


@final
class ArchiveJob:
    """Writes one archive; ``step`` archives the segments that were sealed since the last step.

    Raises NotAStoreError if the directory is not a store, StoreLockedError while another job writes the
    archive.
    """

    def __init__(
        self, store: str, archive: str, run: Runner, *, options: ArchiveOptions | None = None,
        config: StoreConfig | None = None, clock: Clock | None = None,
        file_system: FileSystem | None = None, progress: Callable[[Manifest], None] | None = None,
    ) -> None:
        self._store, self._archive = str(Path(store).absolute()), str(Path(archive).absolute())
        self._run = run
        self._options = options or ArchiveOptions()
        self._options.check()
        self._config = config
        self._clock = clock or SystemClock()
        self._file_system = file_system or OsFileSystem()
        self._progress = progress
        check_places(self._store, self._archive)
        self._there: list[int] = []
        """Segments with a manifest, in order. No other job writes them while this one has the lock."""
        self._rows: dict[str, list[str]] | None = None
        """For each name of a segment's directory, the days that have it; None before the first is needed."""
        self._indexes = Indexes(self._file_system, self._archive)
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
        for name in (self._archive, f"{self._archive}/{MANIFESTS}", f"{self._archive}/{ROWS}"):
            self._file_system.makedirs(name)
        lock = self._file_system.lock(f"{self._archive}/{LOCK}")
        if lock is None:
            raise StoreLockedError(self._archive, "another archive job")
        self._lock = lock
        try:
            self._remove_tree(f"{self._archive}/{STAGING}")
            self._move_days()
            self._remove_replaced()
        except BaseException:
            lock.release()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock of the archive, so that another job can write it."""
        self._lock.release()

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
        self._there = list_manifests(self._file_system, self._archive)
        directory = StoreDirectory(self._store, config=self._config, file_system=self._file_system)
        sealed = sealed_segments(directory)
        waiting: list[tuple[MappedFile, Manifest | None]] = []
        self.skipped = 0
        for file in sealed:
            published = cached_manifest(self._file_system, self._archive, file.file_from_offset)
            if published is None:
                waiting.append((file, None))
                continue
            self._check_is_of(published, file)
            if why := wrong_file(self._file_system, self._archive, published):
                events.A_SEGMENT_IS_ARCHIVED_AGAIN.log(_log, segment=published.segment, cause=why)
                waiting.append((file, None))
            elif published.verified or not self._options.verify:
                self.skipped += 1
            else:
                waiting.append((file, published))
        done = _counter(share, sum(file.size for file, _ in waiting))
        made, problems = self._run_tasks(directory, waiting, done)
        self._indexes.write(self._there)
        if problems:
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
        self._there = list_manifests(self._file_system, self._archive)
        for segment in self._there:
            try:
                manifest = read_manifest(self._file_system, self._archive, segment)
            except CorruptionError as error:
                broken[segment] = str(error)
            else:
                found += [manifest] if manifest is not None else []
        directory = StoreDirectory(self._store, config=self._config, file_system=self._file_system)
        in_log = {file.file_from_offset: file for file in sealed_segments(directory)}
        for manifest in found:
            if manifest.segment in in_log:
                self._check_is_of(manifest, in_log[manifest.segment])
        sizes = {one.segment: one.size for one in found}
        done = _counter(share, sum(sizes.values()))
        for first in range(0, len(found), self._options.at_once):
            for result in self._run([
                self._resting(one) for one in found[first : first + self._options.at_once]]):
                done(sizes[result.task_segment])
                if result.manifest is None:
                    broken[result.task_segment] = result.problem
                    continue
                self.checked += 1
                if result.manifest != next(one for one in found if one.segment == result.task_segment):
                    self._write(result.manifest)
        for segment, why in broken.items():
            events.A_SEGMENT_OF_THE_ARCHIVE_IS_DAMAGED.log(_log, segment=segment, cause=why)
        made, problems = self._run_tasks(
            directory, [(in_log[one], None) for one in sorted(broken) if one in in_log], _counter(None, 0))
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

        Return what was published, and the problems.
        """
        sizes = {file.file_from_offset: file.size for file, _ in waiting}
        made: list[Manifest] = []
        problems: list[str] = []
        for first in range(0, len(waiting), self._options.at_once):
            tasks = self._tasks(directory, waiting[first : first + self._options.at_once])
            for result in self._run(tasks):
                self._finish(result, made, problems)
                done(sizes[result.task_segment])
        return made, problems

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
            check_goes_on(self._archive, self._store, file, ranges[-1])
        found = range_after(directory, file, ranges)
        if found is None:
            return
        if found.stored_ms < 0 or found.age_ms(self._clock.now_ms()) * 2 >= self._options.lag_ms:
            self._archive_range(directory, found)
        self.lag_ms = found.age_ms(self._clock.now_ms())

    def _ranges_of(self, segment: int, until: int) -> list[Manifest]:
        """Return the ranges of a segment that are archived; none if one of them is damaged, then all are made again."""
        try:
            return open_ranges(self._file_system, self._archive, segment)
        except CorruptionError as error:
            events.A_SEGMENT_OF_THE_ARCHIVE_IS_DAMAGED.log(_log, segment=segment, cause=str(error))
            self._remove_ranges(segment, until)
            return []

    def _archive_range(self, directory: StoreDirectory, found: OpenRange) -> None:
        file, size = found.file, found.end - found.start
        wanted, named = named_in(units_between(directory, found.start, found.end), found.start, size)
        task = SegmentTask(
            self._store, self._config, self._archive, file.path, found.start, size, tuple(wanted),
            tuple(np.bincount(named[:, 2], minlength=len(wanted)).tolist()), self._options.piece_bytes,
            self._options.verify, within=file.file_from_offset)
        for result in self._run([task]):
            if result.gone:
                return
            if result.manifest is None:
                raise StoreError(f"segment {file.file_from_offset} from {found.start}: {result.problem}")
            manifest = replace(result.manifest, archived_at=self._clock.now_ms())
            self._file_system.makedirs(f"{self._archive}/{OPEN}")
            self._remove_files(file.file_from_offset, methodcaller("startswith", open_prefix(found.start)))
            self._rename_staged(manifest, result.staged)
            write_manifest(self._file_system, self._archive, manifest, OPEN)
            self._remove_tree(staging_path(self._archive, found.start))
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
                f"{self._archive} holds another segment {file.file_from_offset} than "
                f"{self._store}{written}: an archive is for one store")

    def _resting(self, manifest: Manifest) -> SegmentTask:
        """Return a task that verifies an archived segment without the log."""
        return SegmentTask(
            self._store, self._config, self._archive, "", manifest.segment, manifest.size, (), (),
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
                self._store, self._config, self._archive, file.path, file.file_from_offset, file.size,
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
        else:
            manifest = replace(result.manifest, archived_at=self._clock.now_ms())
            self._publish(manifest, result.staged)
            made.append(manifest)
            if self._progress is not None:
                self._progress(manifest)

    def _publish(self, manifest: Manifest, staged: Sequence[str]) -> None:
        if staged:
            old = self._readable(manifest.segment)
            manifest = replace(manifest, before=old.before if old is not None else None)
            self._remove_manifest(manifest.segment)
            ranges = self._ranges_of(manifest.segment, manifest.until)
            named = {file.path.rpartition("/")[2] for one in ranges for file in one.files}
            self._remove_files(manifest.segment, lambda name: name not in named)
        self._rename_staged(manifest, staged)
        self._write(manifest)
        self._remove_ranges(manifest.segment, manifest.until)
        self._remove_tree(staging_path(self._archive, manifest.segment))
        events.ARCHIVED_A_SEGMENT.log(
            _log, segment=manifest.segment, messages=manifest.messages, files=len(manifest.files),
            verified=manifest.verified)

    def _rename_staged(self, manifest: Manifest, staged: Sequence[str]) -> None:
        """Give files in staging the names that a manifest has for them, durably."""
        places = set()
        for source, file in zip(staged, manifest.files, strict=False):
            target = f"{self._archive}/{file.path}"
            place = target.rpartition("/")[0]
            if place not in places:
                self._file_system.makedirs(place)
                places.add(place)
                day, name = place.rsplit("/", 2)[1:]
                if self._rows is not None and day not in self._rows.setdefault(name, []):
                    self._rows[name].append(day)
            self._file_system.rename(source, target)
        for place in sorted(places):
            self._file_system.sync_dir(place)

    def _write(self, manifest: Manifest) -> None:
        """Write a manifest with its link, and the link of the manifest after it."""
        there, place = self._there, bisect_left(self._there, manifest.segment)
        before = manifest.before
        # The link to a missing manifest is kept, because nothing else says that it is missing.
        if before is None or self._has(before.segment):
            before = self._link_to(there[place - 1]) if place else None
        self._indexes.drop(manifest.segment)
        write_manifest(self._file_system, self._archive, replace(manifest, before=before))
        if not self._has(manifest.segment):
            there.insert(place, manifest.segment)
        link = ManifestLink(manifest.segment, manifest.sha256)
        if place + 1 < len(there):
            following = self._readable(there[place + 1])
            if following is not None and following.protected and following.before != link and (
                following.before is None or (
                    following.before.segment <= manifest.segment and self._has(following.before.segment))
            ):
                self._indexes.drop(following.segment)
                write_manifest(self._file_system, self._archive, replace(following, before=link))

    def _has(self, segment: int) -> bool:
        place = bisect_left(self._there, segment)
        return place < len(self._there) and self._there[place] == segment

    def _readable(self, segment: int) -> Manifest | None:
        try:
            return read_manifest(self._file_system, self._archive, segment)
        except CorruptionError:
            return None

    def _link_to(self, segment: int) -> ManifestLink:
        """Return a link to a manifest, without a checksum if the manifest cannot be read."""
        manifest = self._readable(segment)
        return ManifestLink(segment, "" if manifest is None else manifest.sha256)

    def _mend_links(self, *, accept_missing: bool) -> list[str]:
        """Write links that are missing after a kill. Return problems: manifests that are missing."""
        found = [
            one for segment in self._there
            if (one := self._readable(segment)) is not None]
        there = {one.segment for one in found}
        for number, one in enumerate(found):
            link = None if number == 0 else ManifestLink(
                found[number - 1].segment, found[number - 1].sha256)
            missing = one.before is not None and one.before.segment not in there
            if one.protected and one.before != link and (accept_missing or not missing):
                found[number] = replace(one, before=link)
                self._indexes.drop(one.segment)
                write_manifest(self._file_system, self._archive, found[number])
        why = broken_link(found)
        return [] if why is None else [
            (f"{self._archive}: {why}: restore it from a copy, or continue without it with "
            "--accept-missing")]

    def _remove_manifest(self, segment: int) -> None:
        path = manifest_path(self._archive, segment)
        self._indexes.drop(segment)
        if self._file_system.exists(path):
            self._file_system.remove(path)
            self._file_system.sync_dir(path.rpartition("/")[0])
        if self._has(segment):
            self._there.remove(segment)

    def _remove_replaced(self) -> None:
        """Remove ranges whose segment has a manifest by now: an earlier job ended before it had done that."""
        starts = list_manifests(self._file_system, self._archive, OPEN)
        there = list_manifests(self._file_system, self._archive) if starts else []
        for start in starts:
            place = bisect_right(there, start) - 1
            sealed = self._readable(there[place]) if place >= 0 else None
            if sealed is not None and start < sealed.until:
                self._remove_ranges(sealed.segment, sealed.until)

    def _remove_ranges(self, segment: int, until: int) -> None:
        """Remove the ranges of a segment; files before manifests, by which a later job finds what a kill has left."""
        starts = [
            one for one in list_manifests(self._file_system, self._archive, OPEN) if segment <= one < until]
        if starts:
            self._remove_files(segment, methodcaller("startswith", OPEN_FILE))
        for start in starts:
            self._file_system.remove(manifest_path(self._archive, start, OPEN))

    def _remove_files(self, segment: int, chosen: Callable[[str], bool]) -> None:
        """Remove files of a segment that no manifest names, such as those of an attempt that was interrupted."""
        rows = f"{self._archive}/{ROWS}"
        if self._rows is None:
            self._rows = {}
            for day in self._file_system.list(rows):
                for name in self._file_system.list(f"{rows}/{day}"):
                    self._rows.setdefault(name, []).append(day)
        for name in segment_names(segment):
            for day in self._rows.pop(name, ()):
                place = f"{rows}/{day}/{name}"
                kept = [one for one in self._file_system.list(place) if not chosen(one)]
                for one in self._file_system.list(place):
                    if one not in kept:
                        self._file_system.remove(f"{place}/{one}")
                if kept:
                    self._rows.setdefault(name, []).append(day)
                else:
                    self._file_system.rmdir(place)

    def _move_days(self) -> None:
        """Move the days of an older archive below ``rows``; after a kill the next job moves the rest.

        A reader looks there first, and then in the older place, so it finds a file before and after its move.
        """
        days = [name for name in self._file_system.list(self._archive) if name.startswith("dt=")]
        for day in days:
            self._move(f"{self._archive}/{day}", f"{self._archive}/{ROWS}/{day}")
        if days:
            self._file_system.sync_dir(self._archive)

    def _move(self, source: str, target: str) -> None:
        files = self._file_system
        if not files.stat(source).is_dir:
            files.rename(source, target)
            return
        files.makedirs(target)
        for name in files.list(source):
            self._move(f"{source}/{name}", f"{target}/{name}")
        files.sync_dir(target)
        files.rmdir(source)

    def _remove_tree(self, path: str) -> None:
        if not self._file_system.exists(path):
            return
        for name in self._file_system.list(path):
            child = f"{path}/{name}"
            if self._file_system.stat(child).is_dir:
                self._remove_tree(child)
            else:
                self._file_system.remove(child)
        self._file_system.rmdir(path)


def sealed_segments(directory: StoreDirectory) -> list[MappedFile]:
    """Return the files of the log that no longer change and whose messages all have queue units."""
    named = directory.max_phy_offset
    if directory.state in {DirectoryState.LIVE, DirectoryState.LIVE_JAVA}:
        # Dispatch follows the order of the log. If a message after a segment has a unit, all of its messages do.
        named = max((_last_position(queue) for queue in directory.queues()), default=-1)
    return [
        file for file in directory.log_files
        if file.file_from_offset + file.size <= min(directory.max_phy_offset, named)
    ]


def _last_position(queue: ConsumeQueue) -> int:
    unit = queue.unit(queue.max_offset - 1)
    return -1 if unit is None or unit.size == PRE_BLANK_SIZE else unit.phy_offset


def archive_store(
    spark: Any, store: str, archive: str, *, options: ArchiveOptions | None = None,
    config: StoreConfig | None = None, progress: Callable[[Manifest], None] | None = None,
) -> list[Manifest]:
    """Archive the sealed segments that are not in the archive. Return what was published. See ``ArchiveJob``."""
    with ArchiveJob(
        store, archive, spark_runner(spark), options=options, config=config, progress=progress
    ) as job:
        return job.step()
