"""An archive in an object store: whole segments or nothing, whatever is killed, refused or damaged."""

import os

import pytest
from fake_s3 import FakeS3

from tailrace.config import FlushDiskType, StoreConfig
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import ConfigError, CorruptionError, StoreError
from tailrace.model import Message
from tailrace.node.message_store import MessageStore
from tailrace.testing.sim_clock import SimClock

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
pytest.importorskip("obstore")
import tailrace
from tailrace.env.object_store import ObjectStore, ObjectStoreError
from tailrace.node.retention.archive_pins import ArchivePins
from tailrace.spark.archive import job as jobs
from tailrace.spark.archive.job import ArchiveJob, ArchiveOptions, local_runner
from tailrace.spark.archive.restore import restore_segments
from tailrace.spark.archive.verification import restored
from tailrace.spark.data_source import TailraceDataSource
from tailrace.store.archive_manifest import OPEN, list_manifests, open_ranges, read_manifest
from tailrace.store.archive_store import archive_at
from tailrace.store.object_archive import LEFT_OVER_MS

FILES = OsFileSystem()
SEGMENT = 64 << 10
pytestmark = pytest.mark.slow  # each opens and closes stores


class Killed(BaseException):
    """Thrown where a process would have died."""


@pytest.fixture
def s3(monkeypatch):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-test")
    made = FakeS3("b")
    monkeypatch.setenv("AWS_ENDPOINT_URL", made.endpoint)
    yield made
    made.close()


@pytest.fixture
def path(tmp_path):
    fill(tmp_path / "s")
    return tmp_path / "s"


def opened(path):
    return MessageStore.open(str(path), config=StoreConfig(
        mapped_file_size_commit_log=SEGMENT, file_reserved_time=0, flush_disk_type=FlushDiskType.SYNC_FLUSH))


def fill(path, first=0, until=220):
    with opened(path) as store:
        for number in range(first, until):
            store.put(Message(topic="ab"[number % 2], body=b"%d " % number * 200, keys=[f"k{number}"]),
                      queue_id=number % 3)
        store.wait_dispatched(60_000)


def job(path, target, *, run=None, clock=None, **options):
    return ArchiveJob(
        str(path), target, run or local_runner(FILES), clock=clock,
        options=ArchiveOptions(piece_bytes=1 << 16, **options))


def archive(path, target, **more):
    with job(path, target, **more) as one:
        return one.step()


def segments(path):
    return {int(one.name): one.read_bytes() for one in (path / "commitlog").iterdir()}


def rows_in(s3, prefix):
    return sorted(key for key in s3.buckets["b"] if key.startswith(f"{prefix}/rows/"))


def assert_whole(path, target, s3, sealed):
    """Each sealed segment has one manifest, its bytes are restored, and each object of rows is named once."""
    there, log = archive_at(target), segments(path)
    found = [read_manifest(there, one) for one in list_manifests(there)]
    assert [one.segment for one in found] == sorted(log)[:sealed]
    for one in found:
        assert b"".join(restored(there, one)) == log[one.segment]
    prefix = target.removeprefix("s3://b/")
    named = sorted(f"{prefix}/{file.path}" for one in found for file in one.files)
    assert len(set(named)) == len(named)
    assert rows_in(s3, prefix) == named
    return found


def read(path, **options):
    reader = TailraceDataSource({"path": str(path), **options}).reader(None)
    return sorted((row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()),
                  key=lambda row: row["commitLogOffset"])


def test_segments_are_archived_verified_and_come_back(s3, path, tmp_path):
    made = archive(path, "s3://b/x/archive")
    found = assert_whole(path, "s3://b/x/archive", s3, 2)
    assert [one.segment for one in made] == [one.segment for one in found]
    assert all(one.verified and file.tag for one in found for file in one.files)
    assert archive(path, "s3://b/x/archive") == []
    assert not [key for key in s3.buckets["b"] if "_staging" in key], "nothing is left over"
    done = list(restore_segments(archive_at("s3://b/x/archive"), str(tmp_path / "again"), 0, 1 << 62))
    assert [one["bytes"] for one in done] == [SEGMENT, SEGMENT]
    log = segments(path)
    assert all(data == log[base] for base, data in segments(tmp_path / "again").items())
    with job(path, "s3://b/x/archive") as one:
        assert (one.verify(), one.checked) == ([], 2)


def test_no_byte_is_downloaded_while_a_segment_is_archived(s3, path):
    archive(path, "s3://b/a")
    assert not [key for method, key, _ in s3.requests if method == "GET" and "/rows/dt=" in key]


def test_log_and_archive_are_one_table_and_the_archive_is_read_alone(s3, path):
    archive(path, "s3://b/a")
    before = read(path)
    with opened(path) as store:
        assert store.retention.delete_now() == 2
    assert len(read(path)) < len(before)
    table = {"fallback": "archive", "archive": "s3://b/a"}
    assert read(path, **table) == before
    alone = tailrace.scan("s3://b/a").to_table(columns=["topic", "queueOffset", "commitLogOffset"]).to_pylist()
    sealed = [row for row in before if row["commitLogOffset"] < 2 * SEGMENT]
    assert sorted(row["commitLogOffset"] for row in alone) == [row["commitLogOffset"] for row in sealed]
    with pytest.raises(ConfigError, match=r"s3://b/other.* is not an archive"):
        read(path, fallback="archive", archive="s3://b/other")
    with pytest.raises(ConfigError, match="option bucket, which is not known"):
        read(path, fallback="archive", archive="s3://b/a?bucket=c")


def test_a_damaged_object_is_named_and_archived_again_while_the_log_has_it(s3, path):
    archive(path, "s3://b/a")
    key = rows_in(s3, "a")[0]
    data = bytearray(s3.buckets["b"][key].data)
    data[len(data) // 2] ^= 1
    s3.buckets["b"][key].data = bytes(data)  # the server's checksum stays that of the right bytes
    with pytest.raises(CorruptionError, match=f"s3://b/{key}"):
        list(restored(archive_at("s3://b/a"), read_manifest(archive_at("s3://b/a"), 0)))
    with job(path, "s3://b/a") as one:
        assert [again.segment for again in one.verify()] == [0]
    assert key not in s3.buckets["b"], "the damaged object is gone"
    found = assert_whole(path, "s3://b/a", s3, 2)
    del s3.buckets["b"][f"a/{found[1].files[0].path}"]
    assert [again.segment for again in archive(path, "s3://b/a")] == [SEGMENT]
    assert_whole(path, "s3://b/a", s3, 2)


def test_a_kill_at_any_request_leaves_nothing_half_published(s3, path, monkeypatch):
    call, left = ObjectStore._call, [10**9]

    def counted(self, what, key, request):
        left[0] -= 1
        if left[0] < 0:
            raise Killed(f"{what} {key}")
        made = call(self, what, key, request)
        if left[0] == 0 and after:
            raise Killed(f"after {what} {key}")
        return made

    monkeypatch.setattr(ObjectStore, "_call", counted)
    after = False
    archive(path, "s3://b/whole")
    total = 10**9 - left[0]
    assert total > 20
    step = 1 if os.environ.get("TAILRACE_LONG") else 7
    for number, at in enumerate(range(1, total, step)):
        after, left[0] = bool(number % 2), at
        target = f"s3://b/{at}"
        with pytest.raises(Killed):
            archive(path, target)
        left[0] = 10**9
        there = archive_at(target)
        published = [read_manifest(there, one) for one in list_manifests(there)]
        for one in published:
            assert b"".join(restored(there, one)) == segments(path)[one.segment]
        made = archive(path, target)
        assert len(made) + len(published) == 2, at
        s3.now += LEFT_OVER_MS // 1000
        archive(path, target)
        assert_whole(path, target, s3, 2)
        assert not [key for key in s3.buckets["b"] if key.startswith(f"{at}/_staging")], at


def test_of_two_jobs_at_once_one_publishes_and_the_other_says_so(s3, path):
    """The second job works at the same segments while the first one publishes."""
    def run_with_another(tasks):
        results = list(local_runner(FILES)(tasks))
        archive(path, "s3://b/a")
        return results

    with job(path, "s3://b/a", run=run_with_another) as one, pytest.raises(
        StoreError, match=r"segment 0: s3://b/a\?\S+: another job has written _manifests/0{20}.json since.*stop one"
    ):
        one.step()
    assert_whole(path, "s3://b/a", s3, 2)
    assert not [key for key in s3.buckets["b"] if "_staging" in key]


def test_of_two_jobs_that_archive_a_damaged_segment_again_one_publishes(s3, path):
    archive(path, "s3://b/a")
    del s3.buckets["b"][rows_in(s3, "a")[0]]
    runs = []

    def run_with_another(tasks):
        results = list(local_runner(FILES)(tasks))
        runs.append(archive(path, "s3://b/a"))
        return results

    with job(path, "s3://b/a", run=run_with_another) as one, pytest.raises(StoreError, match="another job has written"):
        one.step()
    assert [again.segment for again in runs[0]] == [0]
    assert_whole(path, "s3://b/a", s3, 2)


def test_a_result_that_took_too_long_is_not_published(s3, path):
    clock = SimClock()

    def run_slowly(tasks):
        results = list(local_runner(FILES)(tasks))
        clock.advance(13 * 3600_000)
        return results

    with job(path, "s3://b/a", run=run_slowly, clock=clock) as one, pytest.raises(StoreError, match="than 12 hours"):
        one.step()
    assert list_manifests(archive_at("s3://b/a")) == []


@pytest.mark.parametrize("state", ["full", "rights", "bucket"])
def test_a_store_that_refuses_is_one_error_and_nothing_is_published(s3, path, state, monkeypatch):
    monkeypatch.setattr(jobs, "archive_at", lambda location, files=None: archive_at(location, files, hurried=True))
    if state == "bucket":
        with pytest.raises(ObjectStoreError, match="there is no such bucket"):
            archive(path, "s3://missing/a")
        return
    with job(path, "s3://b/a") as one:
        if state == "full":
            s3.full = True
            why = r"segment 0: ObjectStoreError: cannot write s3://b/a/\S+ at http://127.0.0.1:\d+: the store is full"
        else:
            s3.allowed, s3.readers = set(), {"key"}
            why = "segment 0: ObjectStoreError: cannot write .*the credentials do not allow it"
        with pytest.raises(StoreError, match=why):
            one.step()
    assert list_manifests(archive_at("s3://b/a")) == []
    assert rows_in(s3, "a") == []


# -- the segment that is still written


def test_ranges_of_the_last_segment_are_replaced_when_it_is_sealed(s3, path):
    archive(path, "s3://b/a", lag_ms=1)
    there = archive_at("s3://b/a")
    first = open_ranges(there, 2 * SEGMENT)
    assert len(first) == 1
    fill(path, 220, 224)
    archive(path, "s3://b/a", lag_ms=1)
    assert len(open_ranges(there, 2 * SEGMENT)) == 2
    fill(path, 224, 400)
    archive(path, "s3://b/a")
    assert list_manifests(there, OPEN) == []
    assert_whole(path, "s3://b/a", s3, len(segments(path)) - 1)


# -- retention


def pins(path, store):
    return ArchivePins(
        SimClock(), FILES, archive_at("s3://b/a", hurried=True), lambda: store.inner.commit_log.queue.files[:-1])


def confirmed(source, file):
    return any(source.confirmed(file) for _ in range(20))


def test_retention_waits_for_the_checksums_that_the_server_holds(s3, path):
    with opened(path) as store:
        source = pins(path, store)
        first = store.inner.commit_log.queue.files[0]
        assert "has no manifest" in next(iter(source())).holder
    archive(path, "s3://b/a")
    with opened(path) as store:
        source = pins(path, store)
        first = store.inner.commit_log.queue.files[0]
        assert list(source()) == []
        s3.requests.clear()
        assert confirmed(source, first)
        assert not [key for method, key, _ in s3.requests if method == "GET" and "/rows/" in key], "nothing is read"
        key = rows_in(s3, "a")[0]
        kept = s3.buckets["b"][key]
        s3.buckets["b"][key] = type(kept)(bytes(len(kept.data)), s3.now)  # the same size, another checksum
        pin, = source()
        assert "and should have" in pin.holder
        assert not confirmed(source, first)
        s3.buckets["b"][key] = kept
        assert list(source()) == []
        assert source.lag_bytes() == 0


def test_retention_keeps_the_log_while_the_server_is_down(s3, path):
    archive(path, "s3://b/a")
    with opened(path) as store:
        source = pins(path, store)
        s3.allowed = set()
        pin, = source()
        assert "cannot read s3://b/a/_manifests" in pin.holder
        assert source.archived_until(0) == 0, "the last answer counts, and no request is made"
        assert not source.confirmed(store.inner.commit_log.queue.files[0])
        s3.allowed = {"key"}
        assert list(source()) == []
