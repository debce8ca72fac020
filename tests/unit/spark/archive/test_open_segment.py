"""Ranges of the segment that is still written: each row once, whenever the job is killed."""

import errno
import json
import os
import shutil
import time

import pytest

from tailrace.config import FlushDiskType, StoreConfig
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import StoreError
from tailrace.model import Message
from tailrace.node.message_store import MessageStore
from tailrace.testing.sim_clock import SimClock

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
import pyarrow.parquet as pq

import tailrace
from tailrace.node.retention.archive_pins import ArchivePins
from tailrace.spark.archive.job import ArchiveJob, ArchiveOptions, local_runner
from tailrace.spark.archive.verification import restored
from tailrace.store.archive_manifest import (
    OPEN,
    list_manifests,
    manifest_name,
    open_ranges,
    read_manifest,
)
from tailrace.store.archive_store import PosixArchive

FILES = OsFileSystem()
SEGMENT = 64 << 10
CONFIG = StoreConfig(mapped_file_size_commit_log=SEGMENT, flush_disk_type=FlushDiskType.SYNC_FLUSH)
pytestmark = pytest.mark.slow  # each opens and closes stores


def put(store, first, until):
    for number in range(first, until):
        store.put(Message(topic="ab"[number % 2], body=b"%d " % number * 200, keys=[f"k{number}"]),
                  queue_id=number % 3)


def fill(path, first, until):
    with MessageStore.open(str(path), config=CONFIG) as store:
        put(store, first, until)
        store.wait_dispatched(60_000)


def archive(path, target, *, file_system=FILES, lag_ms=1, clock=None, verify=True):
    with ArchiveJob(
        str(path), str(target), local_runner(file_system), file_system=file_system, clock=clock,
        options=ArchiveOptions(piece_bytes=1 << 16, lag_ms=lag_ms, verify=verify)) as job:
        job.step()
        return job


class FullFile:
    def __init__(self, file):
        self._file = file

    def __getattr__(self, name):
        return getattr(self._file, name)

    def pwrite(self, data, position):
        self._file.pwrite(data[: len(data) // 2], position)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class FullDisk:
    """A disk on which half of the first write to each new file has room."""

    def open(self, path, *, writable=False, **options):
        file = FILES.open(path, writable=writable, **options)
        return FullFile(file) if writable else file

    def __getattr__(self, name):
        return getattr(FILES, name)


@pytest.mark.parametrize("count", [30, 300])  # a range, and sealed segments with one
def test_a_task_that_fails_leaves_no_files_which_would_add_up_on_a_full_disk(tmp_path, count):
    path, target = tmp_path / "s", tmp_path / "a"
    fill(path, 0, count)
    with ArchiveJob(str(path), str(target), local_runner(FullDisk()), file_system=FILES,
                    options=ArchiveOptions(piece_bytes=1 << 16, lag_ms=1)) as job:
        for _ in range(2):
            with pytest.raises(StoreError, match="No space left on device"):
                job.step()
            assert [one for one in target.rglob("*.*") if one.is_file()] == []
    archive(path, target)
    assert named_rows(target)


def published(target):
    """The manifests that count, sealed segments and then ranges, which follow each other."""
    found = [read_manifest(PosixArchive(str(target)), one) for one in list_manifests(PosixArchive(str(target)))]
    return found, open_ranges(PosixArchive(str(target)), found[-1].until if found else 0)


def named_rows(target):
    """The positions of the rows that count."""
    rows = []
    for one in (one for kind in published(target) for one in kind):
        for file in one.files:
            rows += pq.ParquetFile(target / file.path).read(columns=["commitLogOffset"]).column(0).to_pylist()
    return sorted(rows)


def files_in(target):
    return sorted(str(one.relative_to(target)) for one in (target / "rows").rglob("*.*"))


def assert_exact(path, target):
    """Every row up to the end of the archive once, and no other file."""
    rows = named_rows(target)
    assert len(rows) == len(set(rows))
    sealed, ranges = published(target)
    log = {int(one.name): one.read_bytes() for one in (path / "commitlog").iterdir()}
    for one in (*sealed, *ranges):
        base = one.segment // SEGMENT * SEGMENT
        assert b"".join(restored(PosixArchive(str(target)), one)) == log[base][one.segment - base : one.until - base]
    assert files_in(target) == sorted(file.path for one in (*sealed, *ranges) for file in one.files)
    assert list_manifests(PosixArchive(str(target)), OPEN) == [one.segment for one in ranges]
    return (ranges or sealed)[-1].until


def test_ranges_follow_each_other_and_the_sealed_segment_replaces_them(tmp_path):
    path, target = tmp_path / "s", tmp_path / "a"
    fill(path, 0, 30)
    job = archive(path, target)
    assert (len(published(target)[0]), len(job.ranges)) == (0, 1)
    first = assert_exact(path, target)
    assert archive(path, target).ranges == [], "nothing is new"
    fill(path, 30, 50)
    archive(path, target)
    assert len(published(target)[1]) == 2
    assert assert_exact(path, target) > first
    bodies = tailrace.scan(target).to_table(columns=["body"])["body"].to_pylist()
    assert sorted(int(one.split()[0]) for one in bodies) == list(range(50))
    fill(path, 50, 200)
    archive(path, target)
    sealed, ranges = published(target)
    assert len(sealed) > 1
    assert [one.segment for one in ranges] == [sealed[-1].until]
    assert_exact(path, target)
    assert tailrace.scan(target).count_rows() == 200
    assert tailrace.scan(path, archive=target).count_rows() == 200
    archive(path, target, lag_ms=0)
    assert published(target)[1] == ranges, "a run without a lag leaves them"


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.long)])
def test_a_kill_at_any_step_neither_loses_nor_doubles_a_row(tmp_path, killed, every):
    path, begun, target = tmp_path / "s", tmp_path / "begun", tmp_path / "a"
    fill(path, 0, 40)
    archive(path, begun)
    fill(path, 40, 60)
    archive(path, begun)
    fill(path, 60, 100)
    before = named_rows(begun)
    shutil.copytree(begun, target)
    probe = killed.KilledFileSystem(10**9)
    archive(path, target, file_system=probe)
    whole = named_rows(target)
    assert len(published(target)[0]) == 1
    assert published(target)[1], "one segment is sealed, and the next one has a range"
    for at in range(0, probe.done, every):
        shutil.rmtree(target)
        shutil.copytree(begun, target)
        with pytest.raises(killed.Killed):
            archive(path, target, file_system=killed.KilledFileSystem(at))
        rows = named_rows(target)
        assert len(rows) == len(set(rows)), at
        assert set(before) <= set(rows) <= set(whole), at
        archive(path, target)
        assert named_rows(target) == whole, at
        assert_exact(path, target)


def test_files_of_a_killed_range_do_not_stay_beside_the_sealed_segment(tmp_path, killed):
    early, late, target = tmp_path / "early", tmp_path / "late", tmp_path / "a"
    fill(early, 0, 20)
    shutil.copytree(early, late)
    fill(late, 20, 100)
    probe = killed.KilledFileSystem(10**9)
    archive(early, target, file_system=probe)
    left = 0
    for at in range(0, probe.done, 4):
        shutil.rmtree(target)
        with pytest.raises(killed.Killed):
            archive(early, target, file_system=killed.KilledFileSystem(at))
        left += bool(files_in(target)) and not list_manifests(PosixArchive(str(target)), OPEN)
        archive(late, target, lag_ms=0)
        assert_exact(late, target)
    assert left, "some kills came between a file and its manifest"


def test_a_served_store_is_archived_up_to_what_is_synced(tmp_path):
    path, target = tmp_path / "s", tmp_path / "a"
    with MessageStore.open(str(path), config=CONFIG) as store:
        put(store, 0, 30)
        store.wait_dispatched(60_000)
        store.flush()
        until = time.monotonic() + 60
        while not (rows := len(named_rows(target))) and time.monotonic() < until:
            archive(path, target)  # the store writes from time to time what others may read
        assert 0 < rows <= 30
        put(store, 30, 40)
        store.wait_dispatched(60_000)
    archive(path, target)
    assert len(named_rows(target)) == 40
    assert_exact(path, target)


def test_a_store_that_was_not_closed_waits_for_its_next_open(tmp_path):
    path, target = tmp_path / "s", tmp_path / "a"
    fill(path, 0, 30)
    (path / "abort").write_text("1")
    assert archive(path, target).ranges == []
    fill(path, 30, 31)
    assert len(archive(path, target).ranges) == 1
    assert_exact(path, target)


def test_a_message_waits_for_half_of_the_lag(tmp_path):
    path, target = tmp_path / "s", tmp_path / "a"
    fill(path, 0, 30)
    stored = max(one.as_py() for one in tailrace.scan(path).to_table(columns=["storeTimestamp"]).column(0))
    clock = SimClock()
    clock.advance(int(stored.timestamp() * 1000) - clock.now_ms() + 20_000)
    job = archive(path, target, lag_ms=60_000, clock=clock)
    assert job.ranges == []
    assert 20_000 <= job.lag_ms < 30_000
    clock.advance(10_000)
    job = archive(path, target, lag_ms=60_000, clock=clock)
    assert len(job.ranges) == 1
    assert job.lag_ms >= 30_000


def test_what_does_not_fit_is_refused_or_made_again(tmp_path):
    path, target = tmp_path / "s", tmp_path / "a"
    fill(path, 0, 30)
    archive(path, target)
    other = tmp_path / "other"
    with MessageStore.open(str(other), config=CONFIG) as store:
        put(store, 100, 150)
    with pytest.raises(StoreError, match=r"other bytes of the segment 0 than .*other, it was written from .*/s"):
        archive(other, target)
    place = (target / manifest_name(0, OPEN))
    place.write_text(json.dumps({**json.loads(place.read_text()), "messages": 7}))
    archive(path, target)
    assert assert_exact(path, target)
    assert len(named_rows(target)) == 30


def test_the_broker_knows_how_far_the_archive_is(tmp_path):
    path, target = tmp_path / "s", tmp_path / "a"
    config = StoreConfig(mapped_file_size_commit_log=SEGMENT, archive_directory=str(target))
    with MessageStore.open(str(path), config=config) as store:
        put(store, 0, 30)
        store.wait_dispatched(60_000)
        assert store.stats()["archiveLagSeconds"] > 0
    archive(path, target)
    until = assert_exact(path, target)
    with MessageStore.open(str(path), config=config) as store:
        assert store.stats()["archiveLagSeconds"] == 0
    pins = ArchivePins(SimClock(), FILES, PosixArchive(str(target)), tuple)
    assert pins.archived_until(0) == until
    assert pins.archived_until(5) == 5
