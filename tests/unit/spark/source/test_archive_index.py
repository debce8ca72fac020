"""An index stands for many manifests: the same rows, the same errors, and as many reads for ten times the segments."""

import json
import pickle
import resource
import time
from dataclasses import asdict, replace

import pytest
from archives import write_manifest_over

from tailrace.config import StoreConfig
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import CorruptionError, DataLossError
from tailrace.model import Message
from tailrace.node.message_store import MessageStore

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
import tailrace
from tailrace.spark.archive import directory, index
from tailrace.spark.archive.job import ArchiveJob, ArchiveOptions, local_runner
from tailrace.spark.data_source import TailraceDataSource
from tailrace.spark.plan import explain
from tailrace.spark.source.archive_scan import IndexedTask
from tailrace.store import archive_manifest
from tailrace.store.archive_manifest import (
    Manifest,
    ManifestLink,
    QueueRange,
    manifest_name,
    read_manifest,
)
from tailrace.store.archive_store import PosixArchive

FILES = OsFileSystem()
SEGMENT = 64 << 10
pytestmark = pytest.mark.slow  # each opens and closes stores


def opened(path):
    return MessageStore.open(str(path), config=StoreConfig(mapped_file_size_commit_log=SEGMENT, file_reserved_time=0))


def fill(path, first=0, until=500):
    with opened(path) as store:
        for number in range(first, until):
            store.put(Message(topic="abc"[number % 3], body=b"%d " % number * 200), queue_id=number % 2)
        store.wait_dispatched(60_000)


def archive(path, target):
    with ArchiveJob(str(path), str(target), local_runner(FILES), options=ArchiveOptions(piece_bytes=1 << 16)) as job:
        job.step()
        return job


def delete(path):
    with opened(path) as store:
        return store.retention.delete_now()


def planned(path, target, **options):
    reader = TailraceDataSource(
        {"path": str(path), "fallback": "archive", "archive": str(target), **options}).reader(None)
    return reader, reader.partitions()


def read(path, target, **options):
    reader, tasks = planned(path, target, **options)
    return sorted(
        (row for task in tasks for batch in reader.read(pickle.loads(pickle.dumps(task))) for row in batch.to_pylist()),
        key=lambda row: row["commitLogOffset"])


@pytest.fixture
def both(tmp_path, monkeypatch):
    """A store that has only the last file of its log, and its archive with an index of every two segments."""
    monkeypatch.setattr(index, "GROUP", 2)
    path, target = tmp_path / "s", tmp_path / "a"
    fill(path)
    archive(path, target)
    rows = read(path, target)
    delete(path)
    assert len(index.list_indexes(PosixArchive(str(target)))) == 3
    return path, target, rows


def test_queries_give_the_rows_that_manifests_give(both, monkeypatch):
    path, target, rows = both
    assert len(rows) == 500
    times = [str(int(rows[place]["storeTimestamp"].timestamp() * 1000)) for place in (100, 260, 400)]
    queries = [
        {}, {"splitBytes": "20000"}, {"topic": "b"}, {"startingTimestamp": times[0]}, {"endingTimestamp": times[1]},
        {"startingTimestamp": times[2], "topic": "a"}, {"startingCommitLogOffset": "70000"},
        {"startingOffsets": '{"a": {"0": 7, "1": 40}, "b": {"0": 30}}'}, {"body": "none", "columns": "body,queueOffset,"
         "commitLogOffset"}]
    found = [read(path, target, **options) for options in queries]
    assert found[0] == rows == found[1]
    assert any(isinstance(task, IndexedTask) for task in planned(path, target)[1])
    plan = explain({"path": str(path), "fallback": "archive", "archive": str(target)}, show=None)
    assert plan.messages == 500
    assert any("_manifests" in name for task in plan.tasks for name in task.files)
    assert tailrace.scan(target).count_rows() == sum(one.archived for one in plan.queues)
    monkeypatch.setattr(directory, "groups", lambda *_: {})
    assert [read(path, target, **options) for options in queries] == found


def test_a_manifest_that_is_missing_or_another_one_is_noticed(both):
    path, target, rows = both
    second = (target / manifest_name(SEGMENT))
    kept = second.read_bytes()
    second.unlink()
    with pytest.raises(DataLossError):
        read(path, target)
    second.write_bytes(kept)
    assert read(path, target) == rows
    other = replace(read_manifest(PosixArchive(str(target)), SEGMENT), sha256="0" * 64)
    write_manifest_over(PosixArchive(str(target)), other)
    with pytest.raises(CorruptionError, match=r"segment 65536 is another one than when the archive was indexed"):
        read(path, target)
    second.write_bytes(kept)
    place = target / index.index_name(0)
    place.write_text(json.dumps({**json.loads(place.read_text()), "runs": []}))
    assert read(path, target) == rows, "a damaged index does not count"


def test_the_job_removes_an_index_before_a_manifest_changes_and_writes_it_again(both):
    path, target, rows = both
    kept = index.list_indexes(PosixArchive(str(target)))
    fill(path, 500, 800)
    archive(path, target)
    assert set(kept) < set(index.list_indexes(PosixArchive(str(target))))
    last = index.list_indexes(PosixArchive(str(target)))[-1]
    (target / read_manifest(PosixArchive(str(target)), last).files[0].path).unlink()
    seen = []
    with ArchiveJob(str(path), str(target), local_runner(FILES), options=ArchiveOptions(piece_bytes=1 << 16),
                    progress=lambda _: seen.append(index.list_indexes(PosixArchive(str(target))))) as job:
        job.step()
    assert last not in seen[0]
    assert last in index.list_indexes(PosixArchive(str(target)))
    assert read(path, target)[:500] == rows


def test_a_topic_that_was_made_again_within_an_index(tmp_path, monkeypatch):
    monkeypatch.setattr(index, "GROUP", 4)
    path, target = tmp_path / "s", tmp_path / "a"
    fill(path, until=200)
    with opened(path) as store:
        store.delete_topics({"a"})
        for number in range(300):
            store.put(Message(topic="a", body=b"%d" % number * 300), queue_id=0)
        store.wait_dispatched(60_000)
    archive(path, target)
    before = read(path, target, topic="a", queueId="0")
    assert len(before) == 300
    delete(path)
    assert index.list_indexes(PosixArchive(str(target)))
    assert read(path, target, topic="a", queueId="0") == before


def test_a_plan_reads_no_manifest_that_is_indexed(both, monkeypatch):
    path, target, _ = both
    reads = []
    original = PosixArchive.read

    def counted(archive, name):
        if name.startswith("_manifests/"):
            reads.append(name)
        return original(archive, name)

    monkeypatch.setattr(PosixArchive, "read", counted)
    monkeypatch.setattr(index, "_cache", index._Cache())
    planned(path, target)
    manifests = len(archive_manifest.list_manifests(PosixArchive(str(target))))
    assert len(reads) == manifests % 2
    planned(path, target)
    assert len(reads) == manifests % 2, "what did not change is read once"


SEGMENTS, QUEUES = 100_000, 1_000


@pytest.mark.long
def test_the_plan_over_an_archive_of_a_hundred_terabytes_takes_seconds(tmp_path):
    """Indexes of 100,000 segments of 1 GiB and 1,000 queues; planning only lists the manifests, which are empty."""
    path, target = tmp_path / "s", tmp_path / "a"
    size = 1 << 30
    fill(path, until=10)
    log = path / "commitlog" / f"{0:020d}"
    for name in path.glob("consumequeue/*/*/*"):
        name.unlink()
    log.rename(log.with_name(f"{SEGMENTS * size:020d}"))
    (target / "_manifests").mkdir(parents=True)
    before = None
    for first in range(0, SEGMENTS, 1_000):
        manifests = []
        for number in range(first, first + 1_000):
            queues = [QueueRange("T", queue, number * 9, number * 9 + 9, 9, number * size, number * size + 1000, 1, 2)
                      for queue in range(QUEUES)] if number == first else []
            manifests.append(Manifest(number * size, size, 1, f"{number:064d}", 1, 9, 9, 0, 1, 2, tuple(queues), (),
                                      verified=True, before=before))
            before = ManifestLink(number * size, f"{number:064d}")
            (target / manifest_name(number * size)).touch()
        group = index.group_of(manifests)
        runs = [replace(one, end=(first + 1_000) * 9, last=(first + 999) * size + 1000) for one in group.runs]
        index.write_group(PosixArchive(str(target)), replace(group, runs=tuple(runs)))
    assert asdict(group)["version"] == 1
    began, used = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tasks = planned(path, target)[1]
    sizes = sum(len(pickle.dumps(task)) for task in tasks)
    took, used = time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used
    print(f"{len(tasks)} tasks, {sizes / 1e6:.0f} MB, {took:.1f} s of a processor, {used >> 10} MiB more")
    assert took < 30
    assert used < 2 << 20
    assert sizes < 600 << 20
